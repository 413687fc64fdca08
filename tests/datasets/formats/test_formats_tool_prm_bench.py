"""Laws of ToolPRMBench's form, on rows made from its data README."""

import json

import pytest

from prm_jax import errors
from prm_jax.datasets.formats import tool_prm_bench
from prm_jax.records import sources

ROW = {
  "history": [
    {"role": "system", "content": "Tools: GetWeather."},
    {"role": "user", "content": "Is it warm in Rome?"},
    {"role": "assistant", "content": "I look."},
    {"role": "assistant", "content": 'Locate {"city": "Rome"}'},
    {"role": "tool", "content": "41.9, 12.5"},
  ],
  "action_chosen": {"name": "GetWeather", "arguments": {"at": [41.9, 12.5]}},
  "action_rejected": "It is warm.",
  "functions": [{"name": "GetWeather"}],
  "error type": "should tool but chat",
}


@pytest.fixture
def read(folder):
  """Returns a function from a row's changes to its trajectories."""

  def of(path="prmbench_GTA.json", **changes):
    (folder / path).write_text(json.dumps([ROW | changes], indent=1))
    return list(tool_prm_bench.read(folder / path))

  return of


def test_a_row_is_two_trajectories_that_differ_in_their_last_turn(read):
  chosen, rejected = read()
  assert chosen.messages[:-1] == rejected.messages[:-1]
  assert chosen.steps[-1] == 'GetWeather({"at": [41.9, 12.5]})'
  assert rejected.steps[-1] == "It is warm."
  assert (chosen.labels, rejected.labels) == ((None, 1.0), (None, 0.0))
  assert chosen.extra["pair"] == rejected.extra["pair"]
  assert [x.extra["choice"] for x in (chosen, rejected)] == [
    "chosen",
    "rejected",
  ]
  assert chosen.id != rejected.id and chosen.source == "GTA"
  assert chosen.extra["fields"] == {"error type": "should tool but chat"}


def test_rows_of_a_list_on_one_line_have_ids_of_their_own(folder):
  path = folder / "list.json"
  path.write_text(json.dumps([ROW, ROW]))
  assert len({x.id for x in tool_prm_bench.read(path)}) == 4


def test_a_history_keeps_what_was_said_in_turns_that_alternate(read):
  history = [dict(x) for x in ROW["history"]]
  history[2]["name"], history[3]["seen"] = "ann", 1
  messages = read(history=history)[0].messages
  assert (messages[2].record["name"], messages[2].record["seen"]) == ("ann", 1)
  assert [(x.role, x.text) for x in messages[2:4]] == [
    ("assistant", 'I look.\n\nLocate {"city": "Rome"}'),
    ("user", "41.9, 12.5"),
  ]


@pytest.mark.parametrize(
  "action",
  [
    {"api_name": "f", "parameters": {"x": 1}},
    {"function": {"name": "f", "parameters": {"x": 1}}},
    {"name": "f", "arguments": '{"x": 1}'},
    [{"name": "f", "arguments": {"x": 1}}],
  ],
)
def test_a_call_has_the_names_that_readers_know(action, read):
  assert read(action_chosen=action)[0].steps[-1] == 'f({"x": 1})'


BAD = [
  ({"history": None}, 'field "history" is null'),
  ({"history": [1]}, "history[0] must be an object"),
  ({"history": ROW["history"][:3]}, "history ends with a turn of the assist"),
  ({"history": [{"role": "human", "content": ""}]}, "role is 'human'"),
  ({"history": [{"content": ""}]}, 'history[0]: field "role" is missing'),
  (
    {"history": [{"role": "assistant", "tool_calls": [1]}]},
    'history[0]: has "tool_calls"',
  ),
  (
    {"history": [{"role": "assistant", "content": x} for x in ("a", None)]},
    'history[1]: field "content" is null',
  ),
  *(
    ({"history": [{"role": "assistant", "content": x} for x in texts]}, reason)
    for texts, reason in (
      (("", "a"), "history[1]: it or the turn before it is empty"),
      (("a", " "), "history[1]: it or the turn before it is empty"),
    )
  ),
  (
    {"history": [*ROW["history"][:2], *(x | {"content": "a", "thinking": str(i)} for i, x in enumerate(ROW["history"][2:4]))]},
    "history[3]: it and the turn before it differ in thinking",
  ),
  (
    {"history": [*ROW["history"], {"role": "user", "content": [1]}]},
    "history[5]: content[0] is 1",
  ),
  ({"action_rejected": {"name": "f", "arguments": "{"}}, "action_rejected: tool_calls[0]: arguments is"),
  ({"action_chosen": None}, "action_chosen is None; expected a text, or a"),
  ({"action_chosen": {"name": "f"}}, "action_chosen is {'name': 'f'}; exp"),
  ({"action_rejected": [[]]}, "action_rejected is []; expected a text"),
  ({"action_rejected": " "}, "an empty turn"),
  ({"action_chosen": []}, "an empty turn"),
  ({"functions": {"name": "f"}}, "give a list of objects"),
]  # fmt: skip


@pytest.mark.parametrize("change, message", BAD)
def test_an_unknown_form_is_refused_in_one_line(change, message, read, folder):
  with pytest.raises(errors.InputError) as caught:
    read(**change)
  line = str(caught.value)
  assert line.startswith(f"{folder / 'prmbench_GTA.json'}:") and message in line
  assert "\n" not in line


def test_it_is_read_by_its_name_and_has_no_writer(folder, read):
  found = read("prmbench_bfcl.json")
  path = folder / "prmbench_bfcl.json"
  assert sources.read("tool_prm_bench", path)[0] == found
