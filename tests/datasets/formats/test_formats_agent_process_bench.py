"""Laws of AgentProcessBench's form, on rows with the published fields."""

import collections
import json

import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets.formats import agent_process_bench
from prm_jax.text import encoding
from prm_jax.text import messages

CALL = {
  "id": "c1",
  "type": "function",
  "function": {"name": "search", "arguments": '{"q": ["a"]}'},
}
ROW = {
  "total_index": 230,
  "query_index": 46,
  "sample_index": 0,
  "question": "Which town?",
  "data_source": "searchR1_hotpotqa",
  "ground_truth": {"target": ["Richmond"]},
  "answer_text": "Dumaresq",
  "messages": [
    {"role": "system", "content": "You are helpful."},
    {"role": "user", "content": "Answer the question. Which town?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "search", "content": "{}", "tool_call_id": "c1"},
    {"role": "assistant", "content": "It is Dumaresq."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "No, it is Richmond."},
  ],
  "tool_metrics": {"search": [{"status": "success"}]},
  "tools": [{"name": "search", "parameters": {"type": "dict"}, "response": {}}],
  "step_labels": {"2": 0, "4": -1, "6": 1},
  "final_label": -1,
}


@pytest.mark.parametrize(
  "change",
  [
    {},
    {"final_label": 0, "ground_truth": [["f(x)"]], "answer_text": None},
    {"final_label": 1, "step_labels": {"4": 1}, "task_description": None},
    {"question": "", "tools": [], "total_index": None},
  ],
)
def test_a_row_comes_back_with_every_field(change, read_row, folder):
  solution = read_row("agent_process_bench", ROW | change)
  agent_process_bench.write(folder / "out.jsonl", [solution])
  assert json.loads((folder / "out.jsonl").read_text()) == ROW | change


def test_ratings_are_of_turns_and_the_final_label_is_the_outcome(read_row):
  found = read_row("agent_process_bench", ROW)
  assert found.ratings == (0, -1, 1) and found.labels is None
  assert found.id == "agent_process_bench/230"
  assert (found.problem, found.answer) == ("Which town?", "Dumaresq")
  part = read_row("agent_process_bench", ROW | {"step_labels": {"6": 1}})
  assert part.ratings == (None, None, 1)
  for label, outcome in ((1, True), (0, None), (-1, False)):
    row = ROW | {"final_label": label}
    assert read_row("agent_process_bench", row).outcome is outcome


def test_labels_after_an_error_stay_if_the_policy_keeps_them(read_row):
  found = read_row("agent_process_bench", ROW)
  keep = encoding.LabelPolicy(after_first_error="keep")
  assert encoding.step_labels(found, keep) == [1.0, 0.0, 1.0]
  assert encoding.step_labels(found, encoding.LabelPolicy())[2] is None


def test_a_row_without_a_question_is_of_what_users_say_first(read_row):
  found = read_row("agent_process_bench", ROW | {"question": None})
  assert found.problem == ROW["messages"][1]["content"]


def test_columns_that_are_json_texts_are_the_same(read_row):
  names = ("messages", "tools", "step_labels")
  texts = {name: json.dumps(ROW[name]) for name in names}
  # A table has every key in every row.
  texts["step_labels"] = json.dumps(ROW["step_labels"] | {"9": None})
  found, same = (read_row("agent_process_bench", ROW | x) for x in ({}, texts))
  assert same == found


def test_arguments_that_are_not_json_are_counted_and_nothing_else(write_rows):
  call = CALL | {"function": CALL["function"] | {"arguments": '{"q": ["a"]'}}
  broken = json.loads(json.dumps(ROW))
  broken["messages"][2]["tool_calls"] = [call]
  path = write_rows(broken, ROW)
  left_out = collections.Counter()
  (found,) = agent_process_bench.read(path, left_out)
  assert found.messages[2].calls[0].arguments == {"q": ["a"]}
  assert left_out == {"trajectories_with_arguments_that_are_not_JSON": 1}
  with pytest.raises(errors.InputError, match=r":1: messages\[2\]: tool_calls"):
    list(agent_process_bench.read(path))
  for bad, reason in (
    (ROW["messages"][4:5] * 2, "two assistant messages"),
    ([dict(role="human", content="x")], "role is 'human'"),
    (None, "is null"),
  ):
    path = write_rows(ROW, ROW | {"messages": bad})
    with pytest.raises(errors.InputError, match=f":2: .*{reason}"):
      list(agent_process_bench.read(path, collections.Counter()))


def test_hard_labels_are_written_as_ratings(folder):
  labels = (1.0, None, 0.0)
  said = [schema.Message("user", "1+1?")]
  for text in "abc":
    said += [schema.Message("assistant", text), schema.Message("user", "?")]
  agent_process_bench.write(
    folder / "out.jsonl", [messages.trajectory(said, labels=labels)]
  )
  (same,) = agent_process_bench.read(folder / "out.jsonl")
  assert same.ratings == (1, None, -1)
