"""The experiment on transfer: exact labels, no giveaway, its small path."""

import importlib
import json
import pathlib
import sys
import types

import pytest

from prm_jax import schema
from prm_jax.evaluation import step_metrics
from prm_jax.labelling import label_verify
from prm_jax.verifiers import sandbox

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"
DOMAINS = ("arithmetic", "logic", "code")


@pytest.fixture
def load(monkeypatch):
  monkeypatch.syspath_prepend(EXPERIMENTS)
  return importlib.import_module


def _drawn(load, domain, num, seed=0):
  return load("transfer_problems").solutions(domain, num, [seed])


def _verified(name, solutions):
  """Yields each solution, its error and each step's own verdict."""
  for s, found in zip(solutions, label_verify.LabelVerify(name)(solutions)):
    verdicts = found.extra["verified"]["labels"]
    yield s, schema.first_error(s.labels), verdicts, found.outcome


def _kind(solution):
  return solution.extra.get("kind")


def test_a_sum_is_wrong_by_itself_only_where_its_error_is_within_it(load):
  solutions = _drawn(load, "arithmetic", 60)
  for s, error, verdicts, _ in _verified("arithmetic", solutions):
    expected = [
      float(i != error or _kind(s) != "within") for i in range(len(s.steps))
    ]
    assert verdicts == expected


def test_an_inference_is_wrong_exactly_from_its_planted_error_on(load):
  pytest.importorskip("z3")
  for _s, error, verdicts, _ in _verified("logic", _drawn(load, "logic", 40)):
    assert schema.first_error(verdicts) == error


@pytest.mark.skipif(
  sandbox.why_none() is not None, reason="the kernel allows no sandbox"
)
def test_code_fails_its_tests_exactly_if_an_error_is_planted(load):
  for s, error, verdicts, outcome in _verified(
    "code", _drawn(load, "code", 12)
  ):
    assert outcome == (error < 0)
    if _kind(s) == "within":
      assert schema.first_error(verdicts) == error
    if outcome:
      assert verdicts == [1.0] * len(s.steps)


@pytest.mark.parametrize("domain", DOMAINS)
def test_neither_length_nor_place_gives_an_error_away(load, domain):
  solutions = _drawn(load, domain, 2_000)
  for raw in (len, None):
    steps = step_metrics.judged_steps(
      [
        [1 / (1 + (raw(x) if raw else i)) for i, x in enumerate(s.steps)]
        for s in solutions
      ],
      [s.labels for s in solutions],
    )
    assert abs(step_metrics.auroc(steps.scores, steps.correct) - 0.5) < 0.125


@pytest.mark.parametrize("domain", DOMAINS)
def test_two_of_three_have_an_error_of_each_kind_as_often(load, domain):
  kinds = [_kind(s) for s in _drawn(load, domain, 2_000)]
  for kind in load("transfer_problems").KINDS:
    assert abs(kinds.count(kind) / len(kinds) - 2 / 9) < 0.03


def test_another_seed_draws_others_and_the_same_the_same(load):
  assert _drawn(load, "code", 5) == _drawn(load, "code", 5)
  assert _drawn(load, "code", 5) != _drawn(load, "code", 5, seed=1)


def test_a_judge_that_knows_one_kind_of_error_is_right_about_that_alone(load):
  module = load("transfer")
  solutions = _drawn(load, "logic", 300)
  scores = [
    schema.StepScores(
      tuple(0.9 if _kind(s) != "link" or x else 0.1 for x in s.labels)
    )
    for s in solutions
  ]
  found = module.measure(scores, solutions, 0.5)
  of_kind = found["auroc_of_kind"]
  assert of_kind["link"] == 1
  assert of_kind["within"] == of_kind["premise"] == 0.5
  located = [
    schema.first_error(x.scores) == schema.first_error(s.labels)
    for x, s in zip(scores, solutions, strict=True)
  ]
  share = sum(located) / len(located)
  assert found["first_error_accuracy"] == pytest.approx(share)


def test_a_baseline_points_as_its_training_domain_says(load):
  module = load("transfer")
  steps = ("a", "bbb")
  longer_is_wrong = schema.Solution("s", "", steps, (1.0, 0.0))
  shorter_is_wrong = schema.Solution("s", "", steps[::-1], (1.0, 0.0))
  for train, expected in ((longer_is_wrong, True), (shorter_is_wrong, False)):
    (found,) = module.baseline("length", [train])([longer_is_wrong])
    assert (found.scores[0] > found.scores[1]) == expected


def test_the_small_path_resumes_and_prints_its_tables(
  load, tmp_path, monkeypatch, capsys
):
  module = load("transfer")
  output = tmp_path / "transfer.json"
  name = "scratch/step_pairs/logic"
  settings = module.settings

  def tiny(small=False):
    c = settings(small)
    for run in c.runs.values():
      run.model.update(d_model=8, num_layers=1, num_heads=1, num_kv_heads=1)
      run.model.update(head_dim=8, d_ff=8)
    return c

  monkeypatch.setattr(module, "settings", tiny)
  # As many rows as simulated devices.
  math = types.SimpleNamespace(ceil=lambda rows: 8)
  monkeypatch.setattr(module, "math", math)

  def run(*more):
    words = ["--small", "--seeds=0", f"--only=length/code,{name}", *more]
    words += [f"--output={output}", f"--workdir={tmp_path / 'work'}"]
    monkeypatch.setattr(sys, "argv", ["experiments/transfer.py", *words])
    module.main()
    return capsys.readouterr().out

  said = run()
  saved = json.loads(output.read_text())
  assert [x["name"] for x in saved["points"]] == ["length/code", name]
  assert set(saved["points"][1]["on"]) == set(DOMAINS)
  assert said.count(f"| {name.rpartition('/')[0]} | logic |") == 2
  before = output.read_bytes()
  again = run()
  assert output.read_bytes() == before and "0 length" not in again
  assert run("--table") == again


def test_training_and_test_solutions_of_a_seed_are_apart(load):
  module = load("transfer")
  bed = module.Seed(module.settings(), 0, pathlib.Path("unused"))
  train = {(s.problem, s.steps) for s in bed.drawn("logic", module.TRAIN, 500)}
  test = {(s.problem, s.steps) for s in bed.drawn("logic", module.TEST, 500)}
  assert not train & test
  mixed = bed.drawn("mixed", module.TRAIN, 30)
  assert sorted({s.source for s in mixed}) == sorted(DOMAINS)
  assert len(mixed) == 30
