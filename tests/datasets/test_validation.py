"""Laws of the data doctor: it finds what is wrong, all of it, and no more."""

import collections
import json

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from prm_jax import schema
from prm_jax.datasets import decontamination
from prm_jax.datasets import validation
from prm_jax.records import sources
from prm_jax.runtime import files
from prm_jax.text import encoding
from prm_jax.text import messages
from prm_jax.text import tokenizer as tokenizer_lib

POLICY = encoding.LabelPolicy()
KEEP = encoding.LabelPolicy(after_first_error="keep")


def _solution(problem="1+1?", steps=("a", "b"), labels=(1.0, 0.0), **changes):
  return schema.Solution("x", problem, steps, labels=labels, **changes)


GOOD = [_solution(), _solution(steps=("a", "c"), labels=(1.0, 1.0))]
OUTCOMES = [_solution(labels=None, outcome=x) for x in (True, False)]
CONFLICT = [_solution(labels=(1.0, 1.0)), _solution(steps=("c", "d"))]


def _levels(solutions, policy=POLICY, **options):
  # One pass: what is read once must be enough.
  results = validation.examine(iter(solutions), policy, **options)
  return {
    c["check"]: c["level"]
    for c in results["checks"]
    if c["level"] not in ("ok", "skipped")
  }


def _counts(solutions, policy=POLICY, **options):
  results = validation.examine(iter(solutions), policy, **options)
  return {c["check"]: c["count"] for c in results["checks"] if c["count"]}


def _trajectory(result, labels=(1.0, 0.0), answer="One.", thought="", **fields):
  call = dict(function=dict(name="sql", arguments={}))
  said = [
    dict(role="user", content="How many?"),
    dict(role="assistant", content="", tool_calls=[call], thinking=thought),
    dict(role="tool", content=result),
    dict(role="assistant", content=answer),
  ]
  return messages.trajectory(said, labels=labels, **fields)


def test_a_turn_is_in_conflict_only_after_the_same_context():
  first = _trajectory("1", (1.0, 1.0))
  assert _levels([first, _trajectory("2")]) == {}
  assert _levels([first, _trajectory("1")]) == {"conflicts": "error"}
  assert _levels([first, _trajectory("1", thought="Hm.")]) == {}
  assert _levels([first, _trajectory("1", tools=[{"name": "sql"}])]) == {}
  # Before the results differ, it is the same turn.
  earlier = _trajectory("2", (0.0, None))
  assert _levels([first, earlier]) == {"conflicts": "error"}


def test_trajectories_are_counted_by_what_is_said_in_them():
  results = validation.examine([_trajectory("1"), *GOOD], POLICY)
  assert results["messages"] == dict(
    trajectories=1, user=1, assistant=2, tool=1, calls=1
  )
  assert "\n1 trajectories: 2 turns with 1 calls" in validation.table(results)
  results = validation.examine(GOOD, POLICY)
  assert "trajectories" not in validation.table(results)


def _by(name, labels=(1.0, 0.0)):
  return _solution(labels=labels, extra=dict(annotator=name))


def test_agreement_is_that_of_solutions_that_several_annotators_labelled():
  given_ = [_by("a"), _by("b"), _by("c", (1.0, 1.0)), *GOOD]
  results = validation.examine(iter(given_), POLICY)
  pairs = results["agreement"]["pairs"]
  same = {x["a"] + x["b"]: x["first_error_same"]["value"] for x in pairs}
  assert same == {"ab": 1, "ac": 0, "bc": 0}
  text = validation.table(json.loads(json.dumps(results)))
  assert "\nagreement of 3 annotators on 1 solutions" in text
  assert "--annotators=vote" in text
  for alone in (GOOD, [_by("a"), *GOOD]):
    results = validation.examine(iter(alone), POLICY)
    assert results["agreement"] is None
    assert "agreement" not in validation.table(results)


def test_agreement_is_of_what_people_said_and_not_of_targets():
  # As targets both would have no second label.
  given_ = [_by("a", (0.0, 0.0)), _by("b", (0.0, 1.0))]
  results = validation.examine(iter(given_), POLICY)
  (pair,) = results["agreement"]["pairs"]
  assert [pair["kappa"][x]["steps"] for x in ("until_first_error", "all")] == [
    1,
    2,
  ]


def test_a_sound_set_has_no_findings():
  index = decontamination.index([_solution("2+2?")])
  options = dict(
    against=index,
    tokenizer=tokenizer_lib.Bytes(),
    encoding_config=encoding.EncodingConfig(max_tokens=100),
  )
  results = validation.examine(iter(GOOD), POLICY, **options)
  assert {c["level"] for c in results["checks"]} == {"ok"}
  assert [c["check"] for c in results["checks"]] == list(validation.CHECKS)
  assert validation.errors(results) == []


@pytest.mark.parametrize(
  "check, level, more, options",
  [
    ("contamination", "error", [_solution("2 + 2")], {}),
    ("near_contamination", "warning", [_solution(" ".join("abcdefghijklmn"))], {}),
    ("conflicts", "error", CONFLICT, {}),
    ("outcome_conflicts", "error", OUTCOMES, {}),
    ("blank_steps", "error", [_solution(steps=("a", " \n"))], {}),
    ("blank_problems", "error", [_solution(" ")], {}),
    ("no_steps", "error", [_solution(steps=(), labels=())], {}),
    ("equal_solutions", "warning", [_solution()], {}),
    ("separators_in_text", "warning", [_solution("Q ки")], {}),
    ("mark_steps", "warning", [_solution(steps=("---", "**"))], {}),
    ("numbered_steps", "warning", [_solution(steps=("Step 1: a", "2. b"))], {}),
    (
      "wrong_without_error",
      "warning",
      [_solution("3", labels=(1.0, 0.9), outcome=False)],
      {},
    ),
    ("truncated_targets", "warning", [_solution(steps=("a", "b" * 99))], {}),
  ],
)  # fmt: skip
def test_each_fault_is_found_and_only_that_one(check, level, more, options):
  tests = [_solution("2+2"), _solution(" ".join("abcdefghijklmno"))]
  options = options | dict(
    against=decontamination.index(tests),
    tokenizer=tokenizer_lib.Bytes(),
    encoding_config=encoding.EncodingConfig(max_tokens=100),
  )
  assert _levels([*GOOD, *more], **options) == {check: level}


def test_an_outcome_may_be_wrong_if_a_step_is_or_may_be():
  for labels in ((1.0, 0.0), (1.0, None), None):
    assert "wrong_without_error" not in _counts(
      [*GOOD, _solution("2", labels=labels, outcome=False)]
    )


def test_a_step_of_one_sign_may_say_something():
  steps = ("√", "x", "=", "1", "∎")
  labels = (1.0,) * len(steps)
  assert _levels([*GOOD, _solution(steps=steps, labels=labels)]) == {}


def test_a_blank_step_without_a_label_does_no_harm():
  more = _solution(steps=("a", " "), labels=(1.0, None))
  assert _levels([*GOOD, more]) == {}


def test_a_set_of_one_side_or_none_is_told():
  assert _levels([_solution(labels=(1.0, 0.5))]) == {"one_sided": "warning"}
  assert _levels([_solution(labels=(0.0, 0.4))]) == {"one_sided": "warning"}
  assert _levels([_solution(labels=None)]) == {"no_targets": "error"}
  assert _levels([]) == {"no_targets": "error"}
  # Outcomes are enough for an ORM.
  assert _levels([_solution(labels=None, outcome=True)]) == {}


def test_a_few_conflicts_are_peoples_many_are_a_fault():
  many = [_solution(f"{i}?", ("a",), (float(i % 2),)) for i in range(100)]
  few = [_solution("0?", ("a",), (1.0,))]
  assert _levels([*many, *few]) == {"conflicts": "warning"}
  few.append(_solution("2?", ("a",), (1.0,)))
  assert _levels([*many, *few]) == {"conflicts": "error"}
  assert _levels([*many, *few], allow=["conflicts"]) == {"conflicts": "warning"}


def test_what_can_be_allowed_is_still_told():
  more = [_solution(steps=(), labels=())]
  assert _levels([*GOOD, *more], allow=["no_steps"]) == {"no_steps": "warning"}


def test_targets_are_those_of_the_policy():
  """What training doesn't learn can't be in conflict."""
  rated = [
    _solution(labels=None, ratings=(1, 0)),
    _solution(labels=None, ratings=(1, -1)),
  ]
  assert _counts(rated) == {"conflicts": 1}
  assert _counts(rated, encoding.LabelPolicy("bad")) == {}
  assert _counts(rated, encoding.LabelPolicy("ignore")) == {}
  behind = [_solution(labels=(0.0, 1.0)), _solution(labels=(0.0, 0.0))]
  assert _counts(behind, KEEP)["conflicts"] == 1
  assert "conflicts" not in _counts(behind)


def test_separators_are_counted_by_name():
  texts = ("a<extra_0>", "b ки\n\n", "c<sep></s>", "d\n")
  solutions = [_solution(steps=(text, "b")) for text in texts]
  results = validation.examine(solutions, POLICY)
  assert results["separators"] == {
    "<extra_0>": 1, "ки": 1, "\n\n": 1, "<sep>": 1, "</s>": 1,
  }  # fmt: skip
  (check,) = [c for c in results["checks"] if c["check"].startswith("sep")]
  assert check["count"] == 3 and check["of"] == 4


def test_checks_without_what_they_need_are_skipped_not_passed():
  results = validation.examine(GOOD, POLICY)
  skipped = {c["check"] for c in results["checks"] if c["level"] == "skipped"}
  assert skipped == {
    "contamination", "near_contamination", "truncated_targets",
  }  # fmt: skip


@st.composite
def sets(draw):
  return [
    _solution(
      draw(st.sampled_from(["p", "q"])),
      steps := tuple(draw(st.lists(st.sampled_from("ab"), max_size=4))),
      tuple(draw(st.sampled_from([0.0, 0.5, 1.0, None])) for _ in steps),
    )
    for _ in range(draw(st.integers(0, 8)))
  ]


@settings(max_examples=200, deadline=None)
@given(solutions=sets())
def test_conflicts_and_balance_are_those_of_a_plain_count(solutions):
  sides = collections.defaultdict(set)
  balance = collections.Counter()
  for s in solutions:
    for i, label in enumerate(s.labels):
      side = "none" if label is None else "wrong" if label < 0.5 else "right"
      balance[i, side] += 1
      if label is not None:
        sides[s.problem, s.steps[: i + 1]].add(side)
  results = validation.examine(iter(solutions), KEEP)
  (found,) = [c for c in results["checks"] if c["check"] == "conflicts"]
  assert found["count"] == sum(len(x) == 2 for x in sides.values())
  assert found["of"] == len(sides)
  counted = {
    (row["step"], side): row[side]
    for row in results["by_step"]
    for side in ("right", "wrong", "none")
  }
  assert +collections.Counter(counted) == balance


@settings(max_examples=100, deadline=None)
@given(
  solutions=sets(),
  max_tokens=st.integers(3, 12),
  truncation=st.sampled_from(encoding.TRUNCATIONS),
)
def test_lost_targets_are_those_that_training_leaves_out(
  solutions, max_tokens, truncation
):
  tokenizer = tokenizer_lib.Bytes()

  def targets(limit):
    encoding_config = encoding.EncodingConfig(
      max_tokens=limit, truncation=truncation
    )
    _, counts = encoding.prm_examples(
      solutions, tokenizer, encoding_config, KEEP
    )
    return counts["targets"]

  encoding_config = encoding.EncodingConfig(
    max_tokens=max_tokens, truncation=truncation
  )
  results = validation.examine(
    solutions, KEEP, tokenizer=tokenizer, encoding_config=encoding_config
  )
  lost = results["lost_targets"]
  assert sum(lost.values()) == targets(10_000) - targets(max_tokens)


def test_the_table_says_all_of_it_and_results_are_json(tmp_path):
  solutions = [_solution(steps=("a",) * 12, labels=(1.0,) * 12)]
  solutions += [*GOOD, *CONFLICT]
  results = validation.examine(solutions, POLICY)
  files.write_json(tmp_path / "results.json", results)
  assert json.loads((tmp_path / "results.json").read_text()) == results
  lines = validation.table(results).splitlines()
  assert lines[0] == (
    "5 solutions of 1 problems, 20 steps; targets: 18 right, 2 wrong, 0 none"
  )
  rows = [line.split() for line in lines]
  assert rows[4] == ["1", "3", "2", "0", "40.0%"]
  assert rows[13] == [">=10", "2", "0", "0", "0.0%"]
  assert ["error", "conflicts", "1", "6.25%", "x"] in rows
  assert ["skipped", "contamination", "0", "0.00%"] in rows


@pytest.mark.real_data
def test_the_doctor_of_the_public_sets(public_data):
  """People's conflicts are few; ProcessBench's problems are in phase 2."""
  bench = public_data("processbench", "math.json.gz")
  source = public_data("prm800k", "phase2_sample.jsonl.gz")
  solutions, _ = sources.read("prm800k", source)
  tests, _ = sources.read("processbench", bench)
  results = validation.examine(
    solutions, POLICY, against=decontamination.index(tests)
  )
  assert results["targets"] == dict(right=8_267, wrong=1_110, none=0)
  found = {c["check"]: (c["level"], c["count"]) for c in results["checks"]}
  assert found["contamination"] == ("error", 16)
  assert found["near_contamination"] == ("warning", 3)
  assert found["conflicts"] == ("warning", 30)
  assert found["equal_solutions"] == ("ok", 0)
  assert validation.errors(results) == ["contamination"]
  problems = {s.problem for s in tests}
  equal = sum(s.problem in problems for s in solutions)
  # And one whose problem writes 4^a as 4^{a}.
  assert results["contaminated_solutions"] == equal + 1 == 81
