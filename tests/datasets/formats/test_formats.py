"""Laws that hold for all published formats, and those of `stepwise`."""

import collections
import dataclasses
import gzip
import json
import re

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets import formats
from prm_jax.datasets.formats import trl_stepwise
from prm_jax.records import jsonl
from prm_jax.runtime import files

# As Hugging Face's templates take it, without ids of calls.
CHAT = [
  {"role": "user", "content": "1+1?"},
  {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"function": {"name": "add", "arguments": {"x": [1, 1]}}}],
  },
  {"role": "tool", "content": "2", "time": 0.5},
  {"role": "assistant", "content": "So 3."},
]
# One good row of each form, as its home publishes it.
ROWS = {
  "jsonl": {
    "id": "a",
    "problem": "1+1?",
    "steps": ["1+1=2", "So 3."],
    "labels": [1.0, 0.25],
    "answer": "3",
    "outcome": False,
    "source": "me",
    "group": "sums",
  },
  "prm800k": {
    "question": {"problem": "1+1?", "ground_truth_answer": "2"},
    "label": {
      "steps": [
        {
          "completions": [{"text": "So 2.", "rating": 1, "flagged": False}],
          "human_completion": None,
          "chosen_completion": 0,
        }
      ],
      "finish_reason": "solution",
    },
  },
  "processbench": {
    "id": "gsm8k-7",
    "generator": "Q",
    "problem": "1+1?",
    "steps": ["1+1=2", "So 3.", "Done."],
    "final_answer_correct": False,
    "label": 1,
  },
  "gsm8k": {
    "question": "Half of 8?",
    "answer": "It is 8/2 = <<8/2=4>>4 clips.\n#### 4",
  },
  "math_shepherd": {
    "input": "1+1? Step 1: 1+1=2 ки\nStep 2: So 3. The answer is: 3 ки",
    "label": "1+1? Step 1: 1+1=2 +\nStep 2: So 3. The answer is: 3 -",
    "task": "GSM8K",
  },
  "stepwise": {
    "prompt": "1+1?",
    "completions": ["1+1=2", "So 3."],
    "labels": [True, False],
  },
  "prmbench": {
    "original_question": "1+1?",
    "modified_question": "1+1?",
    "original_process": ["1+1=2"],
    "modified_process": ["1+1=2", "So 3."],
    "modified_steps": [1, 2],
    "error_steps": [2],
    "reason": "It is 2.",
    "idx": "prm_test_p1_0",
    "question": "1+1?",
    "classification": "circular",
  },
  "math_aps": {
    "question": "1+1?",
    "final_answer": "2",
    "reasoning_steps": [
      {"solution_prefix": "1+1?", "mc_value": 0.5},
      {"solution_prefix": "1+1?\n\nSo 3.", "mc_value": 0.25},
    ],
    "question_id": 3,
  },
  "math_aps_tree": {
    "question": "1+1?",
    "final_answer": "2",
    "reasoning_steps": {
      "text": "1+1?",
      "mc_value": 0.5,
      "children": [{"text": "So 3.", "mc_value": 0.25, "children": []}],
    },
    "question_id": 3,
  },
  "math": {
    "problem": "1+1?",
    "solution": "We add.\n\nIt is $\\boxed{2}$.",
    "answer": "2",
    "subject": "Arithmetic",
    "level": 1,
    "unique_id": "test/arithmetic/1.json",
  },
  "rlhflow": {
    "conversations": [
      {"role": "user", "content": "1+1? Step 1: 1+1=2"},
      {"role": "assistant", "content": "+"},
      {"role": "user", "content": "Step 2: So 3. The answer is: 3"},
      {"role": "assistant", "content": "-"},
    ],
  },
  "chat": {
    "id": "a",
    "messages": CHAT,
    "tools": [{"name": "add", "parameters": {"type": "dict"}}],
    "labels": [1.0, None],
    "outcome": False,
    "source": "me",
  },
  "atif": {
    "schema_version": "ATIF-v1.7",
    "agent": {"name": "calculator", "version": "1"},
    "steps": [
      {"step_id": 1, "source": "user", "message": "1+1?"},
      {"step_id": 2, "source": "agent", "message": "So 3."},
    ],
  },
  "agent_process_bench": {
    "messages": CHAT,
    "step_labels": {"1": 0, "3": -1},
    "final_label": -1,
    "data_source": "sums",
    "question": "1+1?",
  },
  "label_studio": {
    "data": {"id": "a", "problem": "1+1?", "text": "1+1=2\n\nSo 3."},
    "annotations": [
      {
        "completed_by": 7,
        "result": [
          {
            "id": f"a/7/{i}",
            "from_name": "label",
            "to_name": "text",
            "type": "labels",
            "value": {
              "start": start,
              "end": start + 5,
              "text": text,
              "labels": [label],
            },
          }
          for i, (start, text, label) in enumerate(
            [(0, "1+1=2", "right"), (7, "So 3.", "wrong")]
          )
        ],
      }
    ],
  },
}
# A raw row of PRM800K says more than we keep; its own tests write it.
WRITABLE = [n for n in formats.FORMATS if n != "prm800k"]
# Where a solution comes back as several, one for each label.
PREFIXES = ("math_aps", "math_aps_tree")


def _solution(**changes):
  values = {
    "id": "x",
    "problem": "1+1?",
    "steps": ("a", "b"),
    "labels": (1.0, 0.0),
  }
  return schema.Solution(**(values | changes))


# --- What holds for every form -----------------------------------------------


@pytest.mark.parametrize("name", formats.FORMATS)
def test_a_gzipped_file_reads_the_same(name, folder):
  text = json.dumps(ROWS[name])
  plain, zipped = folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz"
  plain.write_text(text)
  zipped.write_bytes(gzip.compress(text.encode()))
  module = formats.FORMATS[name]
  assert list(module.read(zipped)) == list(module.read(plain)) != []


@pytest.mark.parametrize("name", formats.FORMATS)
def test_ids_differ_and_only_one_problem_makes_one_group(name, write_rows):
  row = json.dumps(ROWS[name]).replace(', "group": "sums"', "")
  other = row.replace("1+1?", "2+2?").replace("Half", "A third")
  path = write_rows(
    *(
      re.sub(r'"(id|idx|unique_id)": "[^"]*"', rf'"\1": "{i}"', text)
      for i, text in enumerate((row, row, other))
    )
  )
  a, b, c = formats.FORMATS[name].read(path)
  assert len({a.id, b.id, c.id}) == 3
  assert a.extra["group"] == b.extra["group"] != c.extra["group"]
  assert a.source


def test_the_group_of_a_problem_is_the_same_in_every_form(read_row):
  groups = {
    read_row(name, row).extra["group"]
    for name, row in ROWS.items()
    if name not in ("jsonl", "gsm8k")
  }
  assert len(groups) == 1


@pytest.mark.parametrize("name", WRITABLE)
def test_a_row_that_is_read_is_written_back(name, folder, write_rows):
  path = write_rows(ROWS[name])
  module = formats.FORMATS[name]
  options = {"keep_marks": True} if name == "gsm8k" else {}
  assert module.write(folder / "out.jsonl", module.read(path, **options)) == 1
  assert json.loads((folder / "out.jsonl").read_text()) == ROWS[name]


# These have a field "outcome", which isn't beyond them.
WITH_OUTCOME = ("jsonl", "chat")


@pytest.mark.parametrize("name", [n for n in WRITABLE if n not in WITH_OUTCOME])
def test_fields_beyond_the_form_survive_and_cannot_pass_for_ours(
  name, folder, write_rows
):
  row = ROWS[name] | {"outcome": "no", "index": 4}
  path = write_rows(row)
  module = formats.FORMATS[name]
  options = {"keep_marks": True} if name == "gsm8k" else {}
  (solution,) = module.read(path, **options)
  jsonl.write(folder / "ours.jsonl", [solution])
  (same,) = jsonl.read(folder / "ours.jsonl")
  assert same == solution
  module.write(folder / "out.jsonl", [same])
  assert json.loads((folder / "out.jsonl").read_text()) == row


@pytest.mark.parametrize(
  "name", [n for n in WRITABLE if n not in ("jsonl", "prm800k")]
)
def test_a_field_of_another_form_never_replaces_our_own(name, folder, read_row):
  good = read_row(name, ROWS[name])
  for field in ROWS[name].keys() - good.extra.get("fields", {}).keys():
    bad = dataclasses.replace(
      good, extra=dict(good.extra) | {"fields": {field: "other"}}
    )
    with pytest.raises(errors.InputError, match=f'"fields" holds {field},'):
      formats.FORMATS[name].write(folder / "no.jsonl", [bad])


@pytest.mark.parametrize("name", formats.FORMATS)
def test_a_write_that_fails_leaves_the_old_file(name, read_row, tmp_path):
  path = tmp_path / "out.jsonl"
  path.write_text("old")
  good = read_row(name, ROWS[name])

  def stream():
    yield good
    raise errors.InputError("the source broke")

  with pytest.raises(errors.InputError, match="the source broke"):
    formats.FORMATS[name].write(path, stream())
  assert path.read_text() == "old"
  assert [p.name for p in tmp_path.iterdir()] == ["out.jsonl"]


def _prm800k(**changes):
  step = ROWS["prm800k"]["label"]["steps"][0] | changes
  return ROWS["prm800k"] | {"label": {"steps": [step]}}


def _prm800k_rated(**changes):
  return _prm800k(completions=[{"text": "So 2.", "rating": 1} | changes])


def _aps(prefix, value=0.5):
  entry = {"solution_prefix": prefix, "mc_value": value}
  return {"reasoning_steps": [entry]}


def _tree(children):
  return {"reasoning_steps": {"text": "1+1?", "children": children}}


def _chat(text, sign, role="user"):
  """Returns one turn, and the sign as a turn that should be the assistant's."""
  turns = [{"role": role, "content": text}]
  if sign:
    turns.append({"role": "assistant", "content": text})
  return {"conversations": turns}


def _step(**changes):
  """Returns a document whose second step, the agent's, has these changes."""
  user, agent = ROWS["atif"]["steps"]
  return {"steps": [user, agent | changes]}


def _called(**changes):
  call = {"tool_call_id": "a", "function_name": "add", "arguments": {}}
  return _step(tool_calls=[call | changes])


BAD_ATIF = [
  ({"schema_version": "ATIF-v1.8"}, "'ATIF-v1.8'; expected ATIF-v1.0 to"),
  ({"schema_version": None}, '"schema_version" is null'),
  ({"agent": {"version": "1"}}, 'agent: field "name" is missing'),
  ({"steps": []}, '"steps" is empty'),
  ({"steps": [1]}, "steps[0] must be an object"),
  (_step(step_id=3), 'steps[1]: "step_id" is 3; count'),
  (_step(step_id=None), 'steps[1]: "step_id" is None; count'),
  (_step(source="tool"), "steps[1]: \"source\" is 'tool'; expected one of agent"),
  (_step(message=None), 'steps[1]: field "message" is null'),
  (_step(message=" "), "steps[1]: an empty turn"),
  (_step(message=[{"type": "image", "source": {}}]), "steps[1]: content[0] is"),
  (_step(reasoning_content=[1]), "steps[1]: thinking is [1]"),
  (_called(arguments="{}"), 'tool_calls[0]: field "arguments" must be dict'),
  (_called(tool_call_id=None), '"tool_call_id" is null'),
  (_step(source="user", tool_calls=[1]), "tool_calls[0] must be an object"),
  (_called(function_name='a"'), "steps[1]: tool_calls[0]: the name"),
  (_step(observation={"results": [1]}), "observation.results[0] must be an"),
  (_step(observation={"results": [{"source_call_id": "b", "content": ""}]}),
   "steps[1].observation.results[0]: a tool's result without a tool call"),
  (_step(extra={"prm_jax": {"label": 2}}), '"labels"[0] is 2'),
  ({"extra": {"prm_jax": 1}}, "extra.prm_jax must be an object"),
  ({"steps": ROWS["atif"]["steps"] + [{"step_id": 3, "source": "agent", "message": "So 2."}]},
   "steps[2]: two assistant messages in a row"),
]  # fmt: skip
BAD_ROWS = [
  *((name, "{", "not JSON") for name in formats.FORMATS),
  *((name, "[1]" if name != "processbench" else "7", "expected a JSON object")
    for name in formats.FORMATS),
  ("jsonl", {"labels": [1.0, 2]}, '"labels"[1] is 2'),
  ("jsonl", {"id": "a"}, "'a' was used at"),
  ("prm800k", {"question": None}, '"question" is null'),
  ("prm800k", {"question": {}}, 'question: field "problem" is missing'),
  ("prm800k", {"label": {"steps": 3}}, 'label: field "steps" must be list'),
  ("prm800k", {"label": {"steps": [3]}}, "label.steps[0] must be an object"),
  ("prm800k", _prm800k(chosen_completion=1), '"chosen_completion" is 1 of 1'),
  ("prm800k", _prm800k(chosen_completion=-1), '"chosen_completion" is -1'),
  ("prm800k", _prm800k(chosen_completion=True), "must be int, found bool"),
  ("prm800k", _prm800k(completions=[None]), "completions[0] must be an object"),
  ("prm800k", _prm800k_rated(rating=2), '"rating" is 2; expected -1, 0, 1'),
  ("prm800k", _prm800k_rated(rating=0.5), "must be int, found float"),
  ("prm800k", _prm800k_rated(text=None), '"text" is null'),
  ("processbench", {"label": 3}, '"label" is 3 for 3 steps'),
  ("processbench", {"label": -2}, '"label" is -2'),
  ("processbench", {"label": True}, "must be int, found bool"),
  ("processbench", {"steps": ["a", 1]}, '"steps"[1] must be str, found int'),
  ("processbench", {"id": "gsm8k-7"}, "'gsm8k-7' was used at"),
  ("processbench", {"final_answer_correct": 1}, "must be bool, found int"),
  ("gsm8k", {"answer": "4"}, 'must end in a line "#### GOLD"'),
  ("gsm8k", {"answer": "four\n####  "}, 'must end in a line "#### GOLD"'),
  ("gsm8k", {"question": 4}, '"question" must be str, found int'),
  ("math_shepherd", {"label": "1+1? -"}, '"label" differs from "input"'),
  ("math_shepherd", {"input": "a ки", "label": "a *"}, "neither + nor -"),
  ("math_shepherd", {"input": "a ки", "label": "a +b"}, '"label" is longer'),
  ("math_shepherd", {"input": "a", "label": "a"}, 'no tag "ки"'),
  ("math_shepherd", {"input": "a ки", "label": "a +"}, "the question ends"),
  ("stepwise", {"labels": [True]}, '1 "labels" for 2 "completions"'),
  ("stepwise", {"labels": [True, 1.5]}, '"labels"[1] is 1.5'),
  ("stepwise", {"labels": [True, None]}, '"labels"[1] is None'),
  ("stepwise", {"labels": [True, 2]}, '"labels"[1] is 2'),
  ("stepwise", '{"prompt":"","completions":["a"],"labels":[NaN]}', "NaN is no number"),
  ("stepwise", {"completions": "abc"}, '"completions" must be list'),
  ("stepwise", {"prompt": [{"role": "user"}]}, '"prompt" must be str'),
  ("prmbench", {"idx": "prm_test_p1_0"}, "'prmbench/circular/prm_test_p1_0' was"),
  ("prmbench", {"idx": 3}, '"idx" must be str'),
  ("prmbench", {"classification": "redundancy"}, "expected one of redundency, circular"),
  ("prmbench", {"error_steps": [0]}, '"error_steps"[0] is 0 of 2 steps'),
  ("prmbench", {"error_steps": [2, 3]}, '"error_steps"[1] is 3 of 2 steps'),
  ("prmbench", {"error_steps": [True]}, '"error_steps"[0] must be int'),
  ("prmbench", {"original_process": None}, '"original_process" is null'),
  ("prmbench", {"modified_process": [["a"]]}, '"modified_process"[0] must be str'),
  ("math_aps", {"reasoning_steps": 3}, '"reasoning_steps" must be list or dict'),
  ("math_aps", {"reasoning_steps": [3]}, "reasoning_steps[0] must be an object"),
  ("math_aps", _aps("1+1? 2"), "must begin with the question"),
  ("math_aps", _aps("1+1?\n\n2", 1.5), '"mc_value" is 1.5'),
  ("math_aps", _aps("1+1?\n\n2", True), '"mc_value" must be int or float'),
  ("math_aps", _aps("1+1?\n\n2", None), '"mc_value" is null'),
  ("math_aps", {"reasoning_steps": _aps("1+1?")["reasoning_steps"] * 2}, "2 values"),
  ("math_aps", {"final_answer": 2}, '"final_answer" must be str'),
  ("math_aps_tree", {"question": "2?"}, "root must be the question"),
  ("math_aps_tree", _tree([4]), "reasoning_steps.children[0] must be an object"),
  ("math_aps_tree", _tree([{"text": 1}]), "reasoning_steps.children[0]: field"),
  ("math_aps_tree", _tree([{"text": "", "mc_value": -1}]), '"mc_value" is -1'),
  ("math", {"unique_id": "test/arithmetic/1.json"}, "1.json' was used at"),
  ("math", {"solution": "a\n\n\n\nb"}, "blank paragraph"),
  ("math", {"solution": ""}, "blank paragraph"),
  ("math", {"level": 2.5}, '"level" must be str or int'),
  ("rlhflow", {"conversations": []}, "is empty"),
  ("rlhflow", {"conversations": ["a"]}, '"conversations"[0] must be an object'),
  ("rlhflow", _chat("a", "+"), '"content" is \'a\'; expected "+"'),
  ("rlhflow", _chat("a? b", None, role="system"), "is 'system'; expected 'user'"),
  ("rlhflow", _chat("Add. One.", None), "where the question ends"),
  ("rlhflow", _chat("Add? One? Two.", None), "where the question ends"),
  ("rlhflow", _chat("Add?", None), "where the question ends"),
  ("chat", {"messages": None}, '"messages" is null; give a list'),
  ("chat", {"messages": None, "conversations": []}, '"conversations" isn\'t read'),
  ("chat", {"messages": None, "prompt": "a"}, "prompt and completion, or"),
  ("chat", {"functions": [{"name": "f"}]}, '"functions" isn\'t read; write it as'),
  ("chat", {"labels": []}, '"labels" has 0 entries for 2 steps'),
  ("chat", {"labels": ""}, '"labels" must be list, found str'),
  ("chat", {"labels": [1, 0], "ratings": [1, None]}, '"labels"[1] is 0, but "ratings"[1] is null'),
  ("chat", {"ratings": [1, 1], "labels": [None, 0.2]}, '"labels"[1] is 0.2, but "ratings"[1] is 1'),
  ("jsonl", {"tools": [{"name": "f"}]}, "'b': tools without messages"),
  ("chat", {"messages": "[{"}, "is a text that isn't JSON"),
  ("chat", {"messages": "hello"}, '"messages" is a text that isn\'t JSON'),
  ("chat", {"messages": '"hello"'}, '"messages" must be list, found str'),
  ("chat", {"messages": CHAT[:1] + CHAT[2:]}, "messages[1]: a tool's result"),
  ("chat", {"messages": CHAT[:2] + CHAT[3:]}, "'add' before it has no result"),
  ("chat", {"messages": [*CHAT, CHAT[3]]}, "two assistant messages in a row"),
  ("chat", {"messages": [{"role": "assistant"}]}, "an empty turn"),
  ("chat", {"tools": [1]}, "tools is [1]; give a list of objects"),
  ("chat", {"labels": [1.0]}, '"labels" has 1 entries for 2 steps'),
  ("chat", {"ratings": [1, 2]}, '"ratings"[1] is 2; expected -1, 0, 1'),
  ("chat", {"outcome": "no"}, '"outcome" must be bool, found str'),
  ("chat", {"id": "a"}, "'a' was used at"),
  ("chat", {"id": 0.5}, '"id" must be str or int, found float'),
  *(("atif", *bad) for bad in BAD_ATIF),
  ("agent_process_bench", {"step_labels": {"0": 1}}, "has '0', which isn't the index of an assistant's message; these are [1, 3]"),
  ("agent_process_bench", {"step_labels": {"4": 1}}, "has '4', which isn't"),
  ("agent_process_bench", {"step_labels": {"3": 2}}, '"step_labels"[3] is 2'),
  ("agent_process_bench", {"step_labels": {"3": True}}, "is True; expected -1"),
  ("agent_process_bench", {"step_labels": [1, 1]}, '"step_labels" must be an object'),
  ("agent_process_bench", {"final_label": 2}, '"final_label" is 2; expected'),
  ("agent_process_bench", {"final_label": True}, "must be int, found bool"),
  ("agent_process_bench", {"messages": CHAT[2:]}, "messages[0]: a tool's result"),
]  # fmt: skip


@pytest.mark.parametrize("name, change, message", BAD_ROWS)
def test_a_bad_row_is_one_line_that_names_file_and_line(
  name, change, message, write_rows
):
  bad = change
  if isinstance(change, dict):
    names = ROWS[name].keys() & {"id", "idx", "unique_id"}
    bad = ROWS[name] | dict.fromkeys(names, "b") | change
  path = write_rows(ROWS[name], "", bad)
  with pytest.raises(errors.InputError) as caught:
    list(formats.FORMATS[name].read(path))
  line = str(caught.value)
  assert line.startswith(f"{path}:3: ") and message in line
  assert "\n" not in line


# --- Round trips -------------------------------------------------------------

# Texts made of what the forms use as marks.
TEXT = st.lists(
  st.sampled_from(
    [
      "ки",
      "к",
      "+",
      "-",
      "Step 1:",
      "Step 2: ",
      "step 1:",
      "\n",
      " ",
      "?",
      "<<1=1>>",
      "#### 3",
      "a",
      "\r",
      "The answer is ",
      "The answer is: 5",
    ]
  )
  | st.text(st.characters(codec="utf-8"), max_size=3),
  max_size=5,
).map("".join)
LABEL = st.sampled_from([0.0, 1.0]) | st.floats(0, 1) | st.none()


@st.composite
def solutions(draw):
  steps = draw(st.lists(TEXT, max_size=4).map(tuple))
  n = len(steps)
  first_error = draw(st.integers(0, n))
  by_error = [1.0] * first_error + [0.0] + [None] * n
  labels = draw(
    st.sampled_from([tuple(by_error[:n]), (1.0,) * n])
    | st.lists(LABEL, min_size=n, max_size=n).map(tuple)
    | st.none()
  )
  answer = draw(st.none() | TEXT)
  if answer is not None and draw(st.booleans()):
    steps += (f"The answer is {answer}",)
    labels = labels if labels is None else (*labels, 1.0)
  return schema.Solution(
    id=draw(TEXT),
    problem=draw(TEXT),
    steps=steps,
    labels=labels,
    answer=answer,
    outcome=draw(st.none() | st.booleans()),
    source=draw(TEXT),
  )


HELD = {
  "jsonl": ("id", "answer", "outcome", "source"),
  "processbench": ("id", "outcome"),
  "gsm8k": ("answer", "outcome"),
  "math_shepherd": (),
  "stepwise": (),
  "math": ("id", "answer", "outcome"),
  "rlhflow": (),
}


@pytest.mark.parametrize("name", HELD)
@settings(max_examples=50, deadline=None)
@given(solution=solutions())
def test_what_is_written_reads_back_the_same_or_is_refused(
  name, solution, folder
):
  path = folder / f"round-trip-{name}.jsonl"
  module = formats.FORMATS[name]
  try:
    module.write(path, [solution])
  except errors.InputError as e:
    assert name != "jsonl" and "\n" not in str(e)
    return
  options = {"keep_marks": True} if name == "gsm8k" else {}
  (same,) = module.read(path, **options)
  for field in ("problem", "steps", "labels", *HELD[name]):
    assert getattr(same, field) == getattr(solution, field), field


@pytest.mark.parametrize("name", PREFIXES)
@settings(max_examples=50, deadline=None)
@given(found=st.lists(solutions(), max_size=4))
def test_every_labelled_prefix_comes_back_once_or_is_refused(
  name, found, folder
):
  path = folder / f"prefixes-{name}.jsonl"
  module = formats.FORMATS[name]
  try:
    module.write(path, found)
  except errors.InputError as e:
    assert "\n" not in str(e)
    return
  again = list(module.read(path))
  assert _labelled_prefixes(again) == _labelled_prefixes(found)
  assert all(x is None for s in again for x in s.labels[:-1])


def _labelled_prefixes(solutions_):
  return collections.Counter(
    (s.problem, s.steps[:i], label)
    for s in solutions_
    for i, label in enumerate(s.labels or (), 1)
    if label is not None
  )


# In these a solution's neighbours say what is missing in itself.
BY_NEIGHBOURS = ("prm800k", "math_aps")


@pytest.mark.parametrize(
  "name", [n for n in formats.FORMATS if n not in BY_NEIGHBOURS]
)
@settings(max_examples=50, deadline=None)
@given(solution=solutions())
def test_check_refuses_what_write_refuses(name, solution, folder):
  module = formats.FORMATS[name]

  def refusal(call):
    try:
      call()
    except errors.InputError as e:
      return str(e)
    return None

  path = folder / f"check-{name}.jsonl"
  assert refusal(lambda: module.check(solution)) == refusal(
    lambda: module.write(path, [solution])
  )


BENCH = {
  "classification": "circular",
  "problem_id": "p",
  "original": {"problem": "1+1?", "steps": ["a"]},
}
RIGHT = {"outcome": True, "labels": (1.0, 1.0)}
CUT = dict(
  labels=None,
  steps=("So", "3."),
  messages=(schema.Message("assistant", "So 3."),),
  raw_text="So 3.",
  spans=((0, 2), (3, 5)),
)
CALLED = dict(
  labels=None,
  steps=("add({})",),
  messages=(schema.Message("assistant", "", calls=(schema.Call("add", {}),)),),
)
CANNOT_HOLD = [
  *((x, {}, "no messages") for x in ("chat", "atif", "agent_process_bench")),
  *(
    (x, CUT, "its turns are cut into steps")
    for x in ("chat", "atif", "agent_process_bench")
  ),
  ("atif", CALLED, "a tool call has no id"),
  ("atif", dict(steps=(), labels=None, messages=()), "no message;"),
  (
    "agent_process_bench",
    CALLED | dict(labels=(0.5,)),
    "needs labels that are 0 or 1",
  ),
  ("processbench", {"labels": None}, "no labels"),
  ("processbench", {"labels": (0.9, 0.0)}, "can only say 1 up to"),
  ("processbench", {"labels": (None, 0.0)}, "can only say 1 up to"),
  ("processbench", {"labels": (0.0, 0.0)}, "null after it"),
  ("gsm8k", {"outcome": True}, "every label 1"),
  ("gsm8k", {"labels": (1.0, 1.0)}, "outcome true"),
  (
    "gsm8k",
    {"outcome": True, "labels": (1.0, 1.0), "answer": "2"},
    "last step",
  ),
  ("math_shepherd", {"labels": None}, "no labels"),
  ("math_shepherd", {"labels": (1.0, 0.5)}, "0 or 1"),
  ("math_shepherd", {"labels": (1.0, None)}, "0 or 1"),
  ("math_shepherd", {"steps": (), "labels": ()}, "needs a step"),
  ("math_shepherd", {"steps": ("a ки b", "c")}, "read as a tag"),
  ("math_shepherd", {"problem": "Step 1: what?"}, "would end it"),
  ("stepwise", {"labels": None}, "a step has no label"),
  ("stepwise", {"labels": (1.0, None)}, "a step has no label"),
  ("stepwise", {"extra": {"fields": 3}}, "must be an object"),
  ("prm800k", {}, "no ratings"),
  ("prm800k", {"steps": (), "labels": None, "ratings": ()}, "no step"),
  ("prm800k", {"ratings": (None, 1), "steps": (" ", "b")}, "a step is blank"),
  ("prm800k", {"ratings": (1, 1), "id": "x/1.0"}, "as its id says"),
  ("prmbench", {}, "only its own rows"),
  ("prmbench", {"extra": BENCH, "labels": None}, "0 or 1"),
  ("prmbench", {"extra": BENCH, "labels": (1.0, 0.5)}, "0 or 1"),
  ("prmbench", {"extra": BENCH | {"original": "a"}}, "only its own rows"),
  ("math_aps", {"labels": (1.0, None)}, "last step has no label"),
  ("math_aps", {"labels": (None, 1.0)}, "write math_aps_tree"),
  ("math_aps", {"steps": (), "labels": ()}, "last step has no label"),
  ("math_aps_tree", {"steps": (), "labels": ()}, "no step or more than 200"),
  ("math_aps_tree", {"steps": ("a",) * 201, "labels": None}, "more than 200"),
  ("math", {"outcome": True}, "every label 1"),
  ("math", RIGHT | {"steps": ("a\n\nb", "c")}, "a blank line"),
  ("math", RIGHT | {"steps": ("a\n", "b")}, "a line break"),
  ("math", RIGHT | {"steps": ("a", " ")}, "is blank"),
  ("math", RIGHT | {"steps": ("a", "#### 3")}, "states an answer"),
  ("rlhflow", {"labels": None}, "no labels"),
  ("rlhflow", {"labels": (None, 1.0)}, "0 or 1"),
  ("rlhflow", {"labels": (0.5, 1.0)}, "0 or 1"),
  ("rlhflow", {"problem": "Step 1: what?"}, "would be misread"),
  ("rlhflow", {"steps": ("a", "b ")}, "would be misread"),
]


@pytest.mark.parametrize("name, changes, message", CANNOT_HOLD)
def test_a_form_refuses_what_it_cannot_hold(name, changes, message, folder):
  with pytest.raises(errors.InputError, match="solution 'x") as caught:
    formats.FORMATS[name].write(folder / "no.jsonl", [_solution(**changes)])
  assert message in str(caught.value)
  assert not (folder / "no.jsonl").exists()


# --- stepwise ----------------------------------------------------------------


def test_soft_labels_are_never_rounded(folder, read_row):
  row = ROWS["stepwise"] | {"labels": [0.9, 0]}
  solution = read_row("stepwise", row)
  assert solution.labels == (0.9, 0.0)
  trl_stepwise.write(folder / "soft.jsonl", [solution])
  assert json.loads((folder / "soft.jsonl").read_text())["labels"] == [0.9, 0.0]


def test_one_soft_label_makes_the_whole_column_float(folder):
  path = folder / "column.jsonl"
  trl_stepwise.write(path, [_solution(), _solution(labels=(1.0, 0.5))])
  values = [x for _, r in files.read_records(path) for x in r["labels"]]
  assert {type(x) for x in values} == {float}
  trl_stepwise.write(path, [_solution(), _solution(labels=(1.0, 1.0))])
  values = [x for _, r in files.read_records(path) for x in r["labels"]]
  assert {type(x) for x in values} == {bool}
