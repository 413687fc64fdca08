"""Results that are there already: the same evaluation alone replaces them."""

import dataclasses
import json

import pytest

import prm_jax
from prm_jax import schema
from prm_jax.evaluation import evaluate
from prm_jax.evaluation import evaluate_best_of_n
from prm_jax.evaluation import evaluate_processbench
from prm_jax.jobs import step_scores as step_scores_lib
from prm_jax.records import jsonl
from prm_jax.runtime import files

pytestmark = pytest.mark.usefixtures("printed_log")

SOLUTIONS = [
  schema.Solution(
    f"s{i}",
    f"{i // 2} + 1?",
    ("a", "b"),
    labels=(1.0, float(i % 2)),
    answer=str(i % 2),
    outcome=i % 2 == 1,
  )
  for i in range(4)
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
  """The current folder, with solutions and their scores in files."""
  monkeypatch.chdir(tmp_path)
  jsonl.write_solutions("in.jsonl", SOLUTIONS)
  _write_scores(0.75)
  return tmp_path


def _write_scores(last):
  rows = [dict(id=s.id, step_scores=[0.9, last]) for s in SOLUTIONS]
  files.write_records("scores.jsonl", rows)


def _evaluate(scores="scores.jsonl", job=None, **options):
  verb = prm_jax.EvaluateSteps(scores=scores, **options)
  verb.run(evaluate.SolutionsJob("in.jsonl", **(job or {})))


def _evaluate_best_of_n():
  verb = prm_jax.EvaluateBestOfN(scores="scores.jsonl")
  verb.run(evaluate_best_of_n.PoolJob("in.jsonl"))


def _content():
  return files.read_text("results.json"), files.read_text("samples.jsonl")


def test_the_same_evaluation_replaces_its_own_files(folder):
  _evaluate()
  before = _content()
  # The same scores and solutions in files of other names.
  (folder / "scores.jsonl").rename(folder / "moved.jsonl")
  _evaluate(scores="moved.jsonl")
  results = files.read_json("results.json")
  assert results["scored_by"]["scores"] == "moved.jsonl"
  assert _content()[1] == before[1]


@pytest.mark.parametrize(
  ("change", "words"),
  [
    (lambda: _evaluate(seed=1), "seed was 0 and is 1"),
    (lambda: _evaluate(neutral="bad"), "neutral was 'good' and is 'bad'"),
    (lambda: _evaluate(job=dict(limit=2)), "solutions was 4 and is 2"),
    (_evaluate_best_of_n, "kind was 'Steps' and is 'BestOfN'; give"),
  ],
)
def test_another_evaluation_replaces_nothing_and_says_what_differs(
  change, words
):
  _evaluate()
  before = _content()
  with pytest.raises(prm_jax.InputError) as caught:
    change()
  assert str(caught.value).startswith(
    "results.json: holds the results of another evaluation, by scores.jsonl: "
  )
  assert words in str(caught.value) and "fresh=True" in str(caught.value)
  assert "\n" not in str(caught.value)
  assert _content() == before


def test_other_scores_or_labels_are_another_evaluation():
  _evaluate()
  _write_scores(0.25)
  with pytest.raises(prm_jax.InputError, match=r"scored_by\.scores was '"):
    _evaluate()
  _write_scores(0.75)
  other = dataclasses.replace(SOLUTIONS[0], labels=(1.0, 1.0))
  jsonl.write_solutions("in.jsonl", [other, *SOLUTIONS[1:]])
  with pytest.raises(prm_jax.InputError, match="input was 'sha256:"):
    _evaluate()
  assert files.read_json("results.json")["auroc"] is not None
  _evaluate(job=dict(fresh=True))
  _evaluate()  # which are its own now


def test_other_subsets_of_the_same_solutions_are_another_evaluation(folder):
  rows = [
    dict(id=s.id, problem=s.problem, steps=s.steps, label=i % 2 - 1)
    for i, s in enumerate(SOLUTIONS)
  ]
  for name, part in dict(a=rows[:2], b=rows[2:]).items():
    (folder / f"{name}.json").write_text(json.dumps(part))
  verb = prm_jax.EvaluateProcessBench(scores="scores.jsonl")
  job = evaluate_processbench.ProcessBenchJob
  verb.run(job(("gsm8k=a.json", "math=b.json")))
  with pytest.raises(
    prm_jax.InputError, match=r"subsets\.math was 2 and is not"
  ):
    verb.run(job(("gsm8k=a.json", "omnimath=b.json")))


def test_a_model_is_known_by_its_fingerprint_and_type_wherever_it_stands(
  monkeypatch,
):
  by = dict(program="prm", step=3, fingerprint="sha256:a", compute_dtype="f")

  def evaluated(**origin):
    monkeypatch.setattr(step_scores_lib.Source, "origin", by | origin)
    return prm_jax.EvaluateSteps(seed=2).evaluated(SOLUTIONS)

  first = evaluated(checkpoint="runs/a")
  assert first == evaluated(checkpoint="runs/b", program="other")
  for changed in (dict(fingerprint="sha256:b"), dict(compute_dtype="g")):
    assert first != evaluated(checkpoint="runs/a", **changed)


def test_samples_that_arent_those_of_the_results_are_kept(folder):
  _evaluate()
  # As another evaluation's: its results may have been moved.
  kept = (folder / "samples.jsonl").rename(folder / "kept.jsonl")
  content = kept.read_text()
  for job in (
    dict(output="other.json", samples="kept.jsonl"),
    dict(output=files.STDOUT, samples="kept.jsonl"),
  ):
    with pytest.raises(prm_jax.InputError, match=r"kept\.jsonl: holds samples"):
      _evaluate(job=job)
  assert kept.read_text() == content
  (folder / "samples.jsonl").write_text(content.replace("0.75", "0.5"))
  with pytest.raises(prm_jax.InputError, match="aren't those of the results"):
    _evaluate()
  _evaluate(job=dict(fresh=True))
  assert (folder / "samples.jsonl").read_text() == content


def test_fresh_replaces_nothing_that_no_evaluation_wrote(folder):
  (folder / "results.json").write_text("{}")
  with pytest.raises(prm_jax.InputError, match="wasn't written by an eval"):
    _evaluate(job=dict(fresh=True))
