"""Laws of ATIF's form, on documents as Harbor's and Tunix's programs write."""

import dataclasses
import json

import pytest

from prm_jax import errors
from prm_jax.datasets.formats import atif
from prm_jax.text import messages

CALLS = [
  {
    "tool_call_id": "c1",
    "function_name": "search",
    "arguments": {"q": "orders"},
    "extra": {"runtime": "graph"},
  },
  {"tool_call_id": "c2", "function_name": "close", "arguments": {}},
]
RESULTS = [
  {"source_call_id": "c1", "content": [{"type": "text", "text": "found"}]},
  {
    "source_call_id": "c2",
    "content": None,
    "subagent_trajectory_ref": [{"trajectory_id": "child"}],
    "extra": {"confidence": 0.9},
  },
  {"content": "$ "},
]
DOCUMENT = {
  "schema_version": "ATIF-v1.7",
  "session_id": "run",
  "trajectory_id": "t1",
  "agent": {
    "name": "clerk",
    "version": "1",
    "tool_definitions": [{"name": "search"}],
    "extra": {"temperature": 0},
  },
  "steps": [
    {"step_id": 1, "source": "system", "message": "Be brief."},
    {
      "step_id": 2,
      "source": "user",
      "message": [{"type": "text", "text": "Close the orders."}],
      "is_copied_context": True,
      "tool_calls": None,
    },
    {
      "step_id": 3,
      "timestamp": "2026-04-20T10:00:01Z",
      "source": "agent",
      "model_name": "m",
      "message": "",
      "reasoning_content": "I look first.",
      "tool_calls": CALLS,
      "observation": {"results": RESULTS},
      "metrics": {"prompt_tokens": 3},
      "llm_call_count": 1,
      "extra": {"seen": 1},
    },
    {
      "step_id": 4,
      "source": "system",
      "message": "Compaction.",
      "observation": {"results": [{"content": "All so far."}, {}]},
      "extra": {"context_management": {"boundary": "replace"}},
    },
    {"step_id": 5, "source": "agent", "message": "ls", "llm_call_count": 0,
     "observation": {"results": [{"content": "a.txt"}]}},
    {"step_id": 6, "source": "agent", "message": "Done.", "observation": {"results": []}},
  ],
  "notes": None,
  "final_metrics": {"total_steps": 6},
  "subagent_trajectories": [{"trajectory_id": "child"}],
  "extra": {"environment": "test"},
}  # fmt: skip


def _written(folder, *documents, name="written.json"):
  path = folder / "in.json"
  path.write_text(
    json.dumps(documents[0] if len(documents) == 1 else documents)
  )
  atif.write(folder / name, atif.read(path))
  return (folder / name).read_text()


def _change(**changes):
  """Returns the document with changes of its third step."""
  steps = list(DOCUMENT["steps"])
  steps[2] = steps[2] | changes
  return DOCUMENT | {"steps": steps}


@pytest.mark.parametrize(
  "document",
  [
    DOCUMENT,
    {k: x for k, x in DOCUMENT.items() if k not in ("trajectory_id", "extra")},
    DOCUMENT | {"schema_version": "ATIF-v1.0", "reward": 1},
    DOCUMENT | {"steps": [x | {"step_id": i} for i, x in enumerate(DOCUMENT["steps"])]},
    DOCUMENT | {"agent": {"name": "a", "version": "1", "tool_definitions": []}},
    DOCUMENT | {"extra": {"prm_jax": {"outcome": False, "answer": "2"}}},
    _change(observation={"results": [{"content": []}, {"content": ""}]}),
    _change(extra={"prm_jax": {"label": 0.5}}),
    _change(extra={"seen": 1, "prm_jax": {"label": 0.25, "rating": -1}}),
    _change(observation={"results": [{"content": "$ "}, *RESULTS, {}], "extra": {}}),
    _change(observation={"results": [RESULTS[0], {}, RESULTS[1], {"extra": {}}]}),
    _change(reasoning_content="", tool_calls=[], observation=None, message="I look."),
  ],
)  # fmt: skip
def test_a_document_comes_back_with_every_field(document, folder):
  assert json.loads(_written(folder, document)) == document
  (solution,) = atif.read(folder / "in.json")
  for _ in range(2):
    atif.write(folder / "again.json", [solution])
  assert json.loads((folder / "again.json").read_text()) == document


def test_a_list_and_lines_hold_several_documents(folder):
  second = DOCUMENT | {"trajectory_id": "t2"}
  assert json.loads(_written(folder, DOCUMENT, second)) == [DOCUMENT, second]
  lines = _written(folder, DOCUMENT, second, name="written.jsonl").splitlines()
  assert [json.loads(x) for x in lines] == [DOCUMENT, second]


def test_a_turn_is_an_agents_step_and_an_observation_context(read_row):
  found = read_row("atif", DOCUMENT)
  assert found.steps == (
    'search({"q": "orders"})\nclose({})',
    *("ls", "Done."),
  )
  assert [(x.role, x.text) for x in found.messages] == [
    ("system", "Be brief."),
    ("user", "Close the orders."),
    ("assistant", ""),
    ("tool", "found"),
    ("tool", ""),
    ("user", "$ "),
    ("system", "Compaction."),
    ("system", "All so far."),
    ("system", ""),
    ("assistant", "ls"),
    ("user", "a.txt"),
    ("assistant", "Done."),
  ]
  assert found.messages[2].thinking == "I look first."
  assert [x.answers for x in found.messages[3:6]] == ["c1", "c2", None]
  assert (found.id, found.source) == ("t1", "clerk")
  assert found.tools == ({"name": "search"},)


def test_results_without_an_id_answer_the_calls_in_their_order(read_row):
  results = [{"content": "found"}, {"content": "closed"}, {"content": "$ "}]
  found = read_row("atif", _change(observation={"results": results}))
  roles = [x.role for x in found.messages[3:6]]
  assert roles == ["tool", "tool", "user"]


def test_a_result_without_an_id_leaves_the_call_to_the_one_that_names_it(
  read_row,
):
  results = [{"content": "$ "}, RESULTS[1], {"content": "found"}, {}]
  found = read_row("atif", _change(observation={"results": results}))
  said = [(x.role, x.text, x.answers) for x in found.messages[3:7]]
  assert said[0] == ("tool", "$ ", None) and said[1][::2] == ("tool", "c2")
  assert [x[0] for x in said[2:]] == ["user", "user"]
  found = read_row("atif", _change(observation={"results": RESULTS[::-1]}))
  said = [(x.role, x.answers) for x in found.messages[3:6]]
  assert said == [("tool", "c2"), ("tool", "c1"), ("user", None)]


BAD = [
  (_change(extra={"prm_jax": {"labels": 1}}), "steps[2]: extra.prm_jax has 'labels'; expected label or rating"),
  (DOCUMENT | {"extra": {"prm_jax": {"label": 1}}}, "extra.prm_jax has 'label'; expected answer or outcome"),
  (
    DOCUMENT | {"steps": [DOCUMENT["steps"][0] | {"extra": {"prm_jax": {"label": 1}}}]},
    "steps[0]: extra.prm_jax has 'label'; expected nothing",
  ),
  (_change(extra={"prm_jax": {"label": 1, "rating": -1}}), '"labels"[0] is 1, but "ratings"[0] is -1'),
  (
    _change(observation={"results": [{"source_call_id": "x"}]}),
    "steps[2].observation.results[0]: source_call_id is 'x', but",
  ),
  (_change(observation=None), "steps[3] is of role system, but the call"),
]  # fmt: skip


@pytest.mark.parametrize("document, message", BAD)
def test_what_is_no_document_is_refused_by_its_place(
  document, message, read_row
):
  with pytest.raises(errors.InputError) as caught:
    read_row("atif", document)
  assert f":1: {message}" in str(caught.value)
  assert "\n" not in str(caught.value)


def test_an_id_of_a_document_comes_once_and_is_named_as_in_it(write_rows):
  path = write_rows(DOCUMENT, DOCUMENT)
  with pytest.raises(errors.InputError, match=":2: \"trajectory_id\" 't1' was"):
    list(atif.read(path))


@pytest.mark.parametrize(
  "rest",
  [
    *("x", [1], {"result": 1}, {"extra": [1]}, {"at": "1"}, {"step_id": "a"}),
    {"observation": 1},
  ],
)
def test_a_field_of_another_form_under_atifs_name_is_refused(rest, folder):
  said = [dict(role="user", content="1+1?"), dict(role="user", content="")]
  for i in range(2):
    records = [*said]
    records[i] = records[i] | dict(atif=rest)
    with pytest.raises(errors.InputError, match="'0': a message has a field"):
      atif.check(messages.trajectory(records))


def test_labels_of_turns_are_in_the_steps_extra(read_row):
  found = read_row("atif", _change(extra={"prm_jax": {"label": 0.5}}))
  assert found.labels == (0.5, None, None) and found.ratings is None


def test_fields_of_another_form_are_where_atif_allows_them(folder):
  said = [dict(role="user", content="1+1?", name="ann")]
  solution = messages.trajectory(
    said,
    id="a",
    outcome=True,
    tools=[{"name": "add"}],
    extra=dict(fields=dict(split="test", schema_version="mine")),
  )
  with pytest.raises(errors.InputError, match='"fields" holds schema_version'):
    atif.check(solution)
  extra = dict(fields=dict(split="test"))
  atif.write(folder / "a.json", [dataclasses.replace(solution, extra=extra)])
  assert json.loads((folder / "a.json").read_text()) == {
    "schema_version": "ATIF-v1.7",
    "agent": {
      "name": "unknown",
      "version": "unknown",
      "tool_definitions": [{"name": "add"}],
    },
    "extra": {"split": "test", "prm_jax": {"outcome": True}},
    "trajectory_id": "a",
    "steps": [{"step_id": 1, "source": "user", "message": "1+1?"}],
  }
