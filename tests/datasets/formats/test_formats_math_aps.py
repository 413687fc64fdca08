"""Laws of MATH-APS's prefixes and trees."""

import collections
import json

import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets.formats import math_aps
from prm_jax.datasets.formats import math_aps_tree
from prm_jax.runtime import files


def _list(*entries, problem="P?"):
  return {
    "question": problem,
    "final_answer": "2",
    "reasoning_steps": [
      {"solution_prefix": text, "mc_value": value} for text, value in entries
    ],
  }


def _node(text, value, *children):
  return {"text": text, "mc_value": value, "children": list(children)}


def _read(write_rows, *rows):
  return list(math_aps.read(write_rows(*rows)))


def _said(solutions):
  return [(s.steps, s.labels) for s in solutions]


def test_a_step_ends_where_a_shorter_prefix_of_the_list_does(write_rows):
  found = _read(
    write_rows,
    _list(
      ("P?", 0.5),
      # Its own blank line is no end: no prefix stops there.
      ("P?\n\na\n\na", 0.25),
      ("P?\n\na\n\na\n\nb", 1),
      ("P?\n\n\nc", 0.0),
      ("P?\n\na\n\nab", 0.75),
      # An end of which the line break before it is a part.
      ("P?\n\nd\n", 1.0),
      ("P?\n\nd\n\n\ne", 0.5),
    ),
  )
  assert _said(found) == [
    (("a\n\na",), (0.25,)),
    (("a\n\na", "b"), (None, 1.0)),
    (("\nc",), (0.0,)),
    (("a\n\nab",), (0.75,)),
    (("d\n",), (1.0,)),
    (("d\n", "e"), (None, 0.5)),
  ]
  assert [s.id.rpartition("/")[2] for s in found] == list("123456")
  for s in found:
    assert s.extra["problem_value"] == 0.5
    assert s.extra["reference_answer"] == "2"


def test_a_prefix_that_was_met_twice_is_two_solutions(write_rows):
  row = _list(("P?\n\na", 0.25), ("P?\n\na\n\nb", 1.0), ("P?\n\na", 0.5))
  assert _said(_read(write_rows, row)) == [
    (("a",), (0.25,)),
    (("a", "b"), (None, 1.0)),
    (("a",), (0.5,)),
  ]


def test_what_its_neighbours_complete_is_not_refused_alone(write_rows):
  row = _list(("P?\n\na", 0.25), ("P?\n\na\n\nb", 1.0))
  for solution in _read(write_rows, row):
    math_aps.check(solution)
  with pytest.raises(errors.InputError, match="no label"):
    math_aps.check(schema.Solution("x", "P?", ("a",), labels=(None,)))


def test_a_tree_is_given_node_by_node_parents_first(write_rows):
  tree = _node(
    "P?",
    0.5,
    _node("a", 0.25, _node("b", 1.0), _node("b", 0.0)),
    _node("a", 0.75, _node("c", 0.5)),
  )
  row = {"question": "P?", "reasoning_steps": tree}
  found = _read(write_rows, row)
  assert _said(found) == [
    (("a",), (0.25,)),
    (("a", "b"), (None, 1.0)),
    (("a", "b"), (None, 0.0)),
    (("a",), (0.75,)),
    (("a", "c"), (None, 0.5)),
  ]
  # Two nodes of one text stay two, each with its own children.
  assert math_aps.tree_row(found) == row


def test_a_node_without_a_value_is_given_only_if_nothing_goes_on(write_rows):
  tree = _node("P?", None, _node("a", None, _node("b", None), _node("c", 1.0)))
  found = _read(write_rows, {"question": "P?", "reasoning_steps": tree})
  assert _said(found) == [
    (("a", "b"), (None, None)),
    (("a", "c"), (None, 1.0)),
  ]
  assert "problem_value" not in found[0].extra
  assert math_aps.tree_row(found)["reasoning_steps"] == tree


def test_solutions_with_a_label_on_every_step_become_prefixes(folder):
  solutions = [
    schema.Solution("x", "P?", ("a", "b"), labels=(1.0, 0.5)),
    schema.Solution("y", "P?", ("a", "c"), labels=(1.0, 0.0)),
    schema.Solution("z", "Q?", ("a",), labels=(1.0,)),
  ]
  for module in (math_aps, math_aps_tree):
    path = folder / "all.jsonl"
    assert module.write(path, solutions) == 2
    assert _said(module.read(path)) == [
      (("a",), (1.0,)),
      (("a", "b"), (None, 0.5)),
      (("a",), (1.0,)),
      (("a", "c"), (None, 0.0)),
      (("a",), (1.0,)),
    ]


def _nodes(node):
  yield node["mc_value"]
  for child in node["children"]:
    yield from _nodes(child)


@pytest.mark.real_data
@pytest.mark.parametrize(
  "file, module, num_values",
  [("math-aps", math_aps, 145), ("math-aps-tree", math_aps_tree, 257)],
)
def test_the_published_rows_come_back_value_for_value(
  file, module, num_values, public_data, tmp_path
):
  source = public_data("formats", f"samples_{file}.jsonl")
  rows = [row for _, row in files.read_records(source)]
  found = list(module.read(source))
  values = collections.Counter()
  for row in rows:
    steps = row["reasoning_steps"]
    values.update(
      [entry["mc_value"] for entry in steps]
      if isinstance(steps, list)
      else _nodes(steps)
    )
  assert values.total() == num_values == len(found) + len(rows)
  read = collections.Counter(s.labels[-1] for s in found)
  read.update({s.problem: s.extra["problem_value"] for s in found}.values())
  assert read == values
  module.write(tmp_path / "out.jsonl", found)
  written = (tmp_path / "out.jsonl").read_text().splitlines()
  assert [json.loads(line) for line in written] == rows


@pytest.mark.real_data
def test_published_steps_start_where_the_search_branched(public_data):
  source = public_data("formats", "samples_math-aps.jsonl")
  found = list(math_aps.read(source))
  deepest = max(found, key=lambda s: len(s.steps))
  assert len(deepest.steps) > 2
  assert deepest.extra["fields"]["question_id"]
  starts = [s for s in found if s.problem.startswith("Melinda")]
  # One start, 640 letters with the problem, that the search met twice.
  (first,) = {s.steps[0] for s in starts if len(s.steps) > 1}
  values = [s.labels[0] for s in starts if s.steps == (first,)]
  assert sorted(values) == [0.125, 0.21875]
