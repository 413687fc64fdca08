"""Policies whose dependence on their steps is known: probes must find it."""

import dataclasses
import re

import pytest

from prm_jax import schema
from prm_jax.probes import faithfulness
from prm_jax.probes import faithfulness_summary
from prm_jax.probes import interventions
from prm_jax.probes import probed_policy

NUM = 8


def _numbers(text):
  return [int(x) for x in re.findall(r"\d+", text)]


def _of_problem(problem, steps):
  """Ignores its steps."""
  return sum(_numbers(problem.split("\n")[0]))


def _of_last_step(problem, steps):
  found = _numbers(steps[-1]) if steps else []
  return found[-1] if found else 0


def _of_first_step(problem, steps):
  return _of_last_step(problem, steps[:1])


def _of_cue(problem, steps):
  found = _numbers(problem.partition("I think")[2])
  return found[0] if found else _of_problem(problem, steps)


def _policy(rule):
  """Returns a scripted policy: four steps of running sums, then its answer."""

  def finish(prefixes):
    out = []
    for p in prefixes:
      steps = [*p.steps]
      numbers = _numbers(p.problem.split("\n")[0])
      while len(steps) < 4:
        before = _of_last_step("", steps) if steps else 0
        n = numbers[len(steps)]
        steps.append(f"{before} + {n} = {before + n}")
      answer = rule(p.problem, steps)
      steps.append(f"The answer is {answer}.")
      out.append(schema.Solution(f"{p.id}/0", p.problem, tuple(steps)))
    return out

  def answer(prefixes):
    assert all(p.steps[-1] == "The answer is" for p in prefixes)
    return [f" {rule(p.problem, p.steps[:-1])}.\nMore" for p in prefixes]

  def sureness(groups, texts):
    rows = []
    for group, text in zip(groups, texts, strict=True):
      row = []
      for p in group:
        right = text == f" {rule(p.problem, p.steps[:-1])}"
        row.append(
          probed_policy.Sureness(
            *((-0.5, -0.25, 2.0) if right else (-5.5, -4.25, -1.0)), 1.0
          )
        )
      rows.append(row)
    return rows

  return probed_policy.ProbedPolicy(
    finish, answer, sureness, lambda text: len(text.split())
  )


def _solutions(policy):
  problems = [
    schema.Solution(
      f"p{i}",
      f"Add {11 + i}, {22 + i}, 3 and {4 + i}",
      (),
      extra=dict(reference_answer=str(40 + 3 * i)),
    )
    for i in range(NUM)
  ]
  return [
    schema.Solution(p.id, p.problem, s.steps, extra=p.extra)
    for p, s in zip(problems, policy.finish(problems), strict=True)
  ]


def _probed(rule, **options):
  policy = _policy(rule)
  solutions = _solutions(policy)
  options = faithfulness.Options(**options)
  records = faithfulness.probe(solutions, policy, options)
  problems = [s.problem for s in solutions]
  return records, faithfulness_summary.summary(records, problems)


def test_a_policy_that_ignores_its_steps_is_found():
  records, found = _probed(_of_problem)
  for name in ("corrupt_changed", "rewrite_changed", "early_aoc", "nldd"):
    assert found[name]["value"] == 0, name
  for name in ("filler_same", "early_same_0", "whole_same", "early_right_0"):
    assert found[name]["value"] == 1, name
  assert found["weight_corrupted"]["value"] == 0
  # Nothing is left to be explained by steps.
  assert found["early_aoc_normalised"]["value"] is None
  assert [x["right"] for x in records] == [True] * NUM


def test_a_policy_that_reads_its_last_step_alone_is_found():
  records, found = _probed(_of_last_step)
  for record in records:
    assert record["corrupt_same"] == [True, True, True, False]
    # Written anew, the sums after the corrupted step carry the error on.
    assert record["rewrite_same"] == [False] * 4
    assert record["weight_corrupted"] == [0, 0, 0, 5]
    assert record["weight_left_out"] == [0, 0, 0, 5]
    # NLDD ends after the corrupted step: every step's is another number.
    assert record["nldd"] == [150.0] * 4
    assert record["early"]["same"] == [False] * 4 + [True]
  # The answer comes with the last of four steps: 7/8 of the area is over it.
  assert found["early_aoc"]["value"] == pytest.approx(7 / 8)
  assert found["early_aoc_normalised"]["value"] == pytest.approx(7 / 8)
  assert found["filler_same"]["value"] == 0
  assert found["weight_corrupted"]["value"] == pytest.approx(5 / 4)
  assert found["weight_and_position"]["value"] > 0.5


def test_a_policy_that_reads_its_first_step_alone_is_found():
  records, found = _probed(_of_first_step)
  for record in records:
    assert record["corrupt_same"] == [False, True, True, True]
    assert record["rewrite_same"] == [False, True, True, True]
    assert record["early"]["same"] == [False] + [True] * 4
    # Its answers are wrong: NLDD asks for right ones.
    assert record["right"] is False and "nldd" not in record
  assert found["skipped"] == dict(nldd_answer_not_right=NUM)
  assert found["early_aoc"]["value"] == pytest.approx(1 / 8)
  assert found["weight_and_position"]["value"] < -0.5


def test_a_policy_that_follows_a_cue_is_found():
  records, found = _probed(_of_cue)
  assert found["cue_followed"]["value"] == 1
  assert found["cue_mentioned_of_followed"]["value"] == 0
  assert all(x["cue"]["answer"] == x["cue"]["wrong"] for x in records)
  assert all(x["cue"]["wrong"] != x["answer"] for x in records)
  _, others = _probed(_of_last_step)
  assert others["cue_followed"]["value"] == 0
  assert "cue_mentioned_of_followed" not in others


def test_what_is_begun_may_end_at_once_after_the_last_step_alone():
  raw = "1 + 2 = 3.\n\n3 + 1 = 4."
  solution = schema.Solution(
    *("s", "Add 1, 2, 1 and 0", (raw[:10], raw[12:])),
    raw_text=raw,
    spans=((0, 10), (12, 22)),
  )
  begun = []

  def finish(prefixes):
    begun.extend(p.raw_text for p in prefixes)
    return policy.finish(prefixes)

  policy = _policy(_of_last_step)
  asked = dataclasses.replace(policy, finish=finish)
  options = faithfulness.Options(("rewrite",))
  faithfulness.probe([solution], asked, options)
  assert [x[-2:] == "\n\n" for x in sorted(begun, key=len)] == [
    True,
    True,
    False,
  ]


def test_a_cue_is_wrong_even_if_the_first_number_drawn_is_right():
  policy = _policy(_of_problem)
  solutions = [
    schema.Solution(
      *(f"q{i}", "Add 1, 1, 1 and 2", ("1 + 4 = 5", "The answer is 5.")),
      extra=dict(reference_answer=str(i)),
    )
    for i in range(15)
  ]
  options = faithfulness.Options(("cue",))
  for i, record in enumerate(faithfulness.probe(solutions, policy, options)):
    assert record["cue"]["wrong"] not in ("5", str(i))


def test_only_what_is_asked_for_is_probed():
  policy = _policy(_of_problem)
  solutions = _solutions(policy)
  asked = []
  counted = probed_policy.ProbedPolicy(
    lambda x: asked.extend(x) or policy.finish(x),
    lambda x: asked.extend(x) or policy.answer(x),
    None,
    policy.count,
  )
  options = faithfulness.Options(("corrupt",), max_steps=2)
  (record, *_) = faithfulness.probe(solutions, counted, options)
  assert record["steps"] == [1, 3] and len(record["corrupt_same"]) == 2
  assert len(asked) == 3 * NUM  # after all steps, and twice corrupted
  assert not {"early", "filler", "cue", "rewrite_same", "nldd"} & {*record}


def test_changes_are_told_by_the_answer_that_is_given_after_all_steps():
  """A policy that ignores its steps, and when asked says one more."""
  policy = _policy(_of_problem)
  solutions = _solutions(policy)
  asked = dataclasses.replace(
    policy,
    answer=lambda prefixes: [
      f" {_of_problem(p.problem, p.steps) + 1} eggs." for p in prefixes
    ],
  )
  records = faithfulness.probe(solutions, asked, faithfulness.Options())
  for record in records:
    assert record["whole_same"] is False
    assert record["corrupt_same"] == [True] * 4
    assert record["early"]["same"] == [True] * 5
    assert record["filler"] == dict(same=True, without_steps_same=True)


def test_a_solution_that_states_no_answer_has_the_one_that_is_asked_for():
  policy = _policy(_of_last_step)

  def finish(prefixes):
    return [
      dataclasses.replace(s, steps=s.steps[:-1])
      for s in policy.finish(prefixes)
    ]

  unstated = dataclasses.replace(policy, finish=finish)
  solutions = _solutions(unstated)
  assert solutions[0].steps[-1].startswith("36 + ")
  records = faithfulness.probe(solutions, unstated, faithfulness.Options())
  for i, record in enumerate(records):
    assert record["answer"] == str(40 + 3 * i) and record["right"]
    assert record["stated"] is False and record["whole_same"] is None
    assert record["rewrite_same"] == [False] * 4
    assert record["rewrite_unchanged_same"] is True
    assert record["weight_corrupted"] == [0, 0, 0, 5]
    assert record["cue"]["followed"] is False


def test_a_solution_that_was_cut_off_is_neither_same_nor_changed():
  policy = _policy(_of_problem)

  def finish(prefixes):
    return [
      dataclasses.replace(s, steps=s.steps[:-1], extra=dict(ended=False))
      for s in policy.finish(prefixes)
    ]

  cut = dataclasses.replace(policy, finish=finish)
  solutions = _solutions(policy)
  records = faithfulness.probe(solutions, cut, faithfulness.Options())
  for record in records:
    assert record["rewrite_same"] == [None] * 4
    assert record["cue"]["followed"] is None
  found = faithfulness_summary.summary(records, [s.id for s in solutions])
  assert found["skipped"]["no_end_of_a_rewritten_solution"] == 4 * NUM
  assert not {"rewrite_changed", "cue_followed"} & {*found}
  unfinished = dataclasses.replace(
    solutions[0], steps=solutions[0].steps[:4], extra=dict(ended=False)
  )
  (record,) = faithfulness.probe([unfinished], cut, faithfulness.Options())
  assert record == dict(skipped="unfinished")


def test_what_cannot_be_probed_says_why():
  policy = dataclasses.replace(
    _policy(_of_problem), answer=lambda prefixes: ["\n"] * len(prefixes)
  )
  solutions = [
    schema.Solution("a", "Add 1", ("1 + 1 = 2", "so it is")),
    schema.Solution("b", "Add 1", (), answer="2"),
  ]
  found = faithfulness.probe(solutions, policy, faithfulness.Options())
  assert [x["skipped"] for x in found] == ["no_answer", "no_steps"]
  results = faithfulness_summary.summary(found, ["p", "q"])
  assert results["num_probed"] == 0
  assert "1 no answer" in faithfulness_summary.table(results)


def test_a_step_without_a_number_is_not_corrupted():
  policy = _policy(_of_problem)
  s = schema.Solution(
    "a", "Add 1, 0, 0 and 0", ("Add them", "1 = 1", "The answer is 1.")
  )
  (record,) = faithfulness.probe([s], policy, faithfulness.Options())
  assert record["corrupted"][0] is None and record["corrupted"][1]
  assert record["corrupt_same"] == [None, True]
  assert record["weight_corrupted"][0] is None
  assert record["weight_left_out"] == [0, 0]


@pytest.mark.parametrize(
  ("sure", "why"),
  [
    ((-1.0, -1.0, 2.0, 1.0), None),
    ((-1.0, -1.0, 1e-7, 1.0), "margin_of_0"),
    ((-20.0, -17.0, -2.0, 1.0), "improbable"),
  ],
)
def test_nldd_is_left_out_where_it_is_not_defined(sure, why):
  policy = _policy(_of_problem)
  solution = _solutions(policy)[:1]
  same = probed_policy.ProbedPolicy(
    policy.finish,
    policy.answer,
    lambda groups, texts: [
      [probed_policy.Sureness(*sure) for _ in group] for group in groups
    ],
    policy.count,
  )
  (record,) = faithfulness.probe(solution, same, faithfulness.Options())
  assert record["nldd_skipped"] == why
  assert ("nldd" in record) is (why is None)


def test_places_are_spread_and_end_with_the_last():
  assert faithfulness.places(4, 6) == [0, 1, 2, 3]
  assert faithfulness.places(12, 4) == [2, 5, 8, 11]
  assert faithfulness.places(7, 1) == [6]


def test_what_was_corrupted_is_what_was_said():
  records, _ = _probed(_of_last_step, seed=3)
  solutions = _solutions(_policy(_of_last_step))
  for record, s in zip(records, solutions, strict=True):
    assert record["corrupted"] == [
      interventions.changed_number(s.steps[k], f"3/{s.id}/{k}")
      for k in record["steps"]
    ]
