"""The evaluations as values: on records in memory, and as commands on files."""

import json

import pytest

import prm_jax
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.evaluation import evaluate
from prm_jax.evaluation import evaluate_processbench
from prm_jax.records import jsonl
from prm_jax.runtime import files

SOLUTIONS = [
  schema.Solution(
    f"s{i}",
    f"{i // 2} + 1?",
    ("a", "b"),
    labels=(float(i % 3 > 0), float(i % 2)),
    answer=str(i % 3),
    outcome=i % 2 == 1,
    extra=dict(classification="circular", reference_answer="1"),
  )
  for i in range(24)
]
# Each kind of `eval`, its class, and options of both.
KINDS = {
  "steps": (prm_jax.EvaluateSteps, dict(neutral="bad", seed=3)),
  "best_of_n": (prm_jax.EvaluateBestOfN, dict(aggregate="min", grader="rules")),
  "prmbench": (prm_jax.EvaluatePRMBench, dict(seed=1)),
  "turns": (prm_jax.EvaluateTurns, dict(seed=2)),
  "processbench": (prm_jax.EvaluateProcessBench, dict(tune_on="math")),
}


def _score(solutions):
  return [
    schema.StepScores(
      tuple(1 / (1 + (i + int(s.id[1:])) % 7) for i, _ in enumerate("ab"))
    )
    for s in solutions
  ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """The current folder, with the solutions in files, and their scores."""
  monkeypatch.chdir(tmp_path)
  jsonl.write_solutions("in.jsonl", SOLUTIONS)
  rows = [
    dict(id=s.id, problem=s.problem, steps=s.steps, label=i % 3 - 1)
    for i, s in enumerate(SOLUTIONS)
  ]
  (tmp_path / "gsm8k.json").write_text(json.dumps(rows[:2]))
  (tmp_path / "math.json").write_text(json.dumps(rows[2:]))
  files.write_records(
    "scores.jsonl",
    (
      dict(id=s.id, step_scores=list(row.scores))
      for s, row in zip(SOLUTIONS, _score(SOLUTIONS))
    ),
  )
  return tmp_path


def _read(kind):
  """Returns what a kind is called with, and the words that name its files."""
  if kind != "processbench":
    return SOLUTIONS, ["--input=in.jsonl", "--format=jsonl"]
  job = evaluate_processbench.ProcessBenchJob(
    ("gsm8k=gsm8k.json", "math=math.json")
  )
  subsets = {
    name: evaluate.read("processbench", path)
    for name, path in job.files.items()
  }
  return subsets, [f"--input={x}" for x in job.input]


@pytest.mark.parametrize("kind", KINDS)
def test_records_in_memory_have_the_results_of_the_commands_files(kind, folder):
  verb, options = KINDS[kind]
  records, words = _read(kind)
  words += [f"--{name}={value}" for name, value in options.items()]
  assert main.main(["eval", kind, *words, "--scores=scores.jsonl"]) == 0
  written = files.read_json("results.json")
  assert written.pop("run")["command"]
  samples = [record for _, record in files.read_records("samples.jsonl")]
  for found in (
    verb(scores="scores.jsonl", **options)(records),
    verb(**options)(records, _score),
  ):
    by = found.results.pop("scored_by")
    assert by in (written["scored_by"], {})
    results = json.loads(json.dumps(found.results))
    assert results == {k: x for k, x in written.items() if k != "scored_by"}
    assert json.loads(json.dumps(found.samples)) == samples


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_needs_solutions_and_a_score_of_each_step(kind, folder):
  verb, options = KINDS[kind]
  records, _ = _read(kind)
  with pytest.raises(prm_jax.InputError, match="`checkpoint` or `scores`"):
    verb(**options)(records)
  with pytest.raises(prm_jax.InputError, match="1 scores for the 2 steps"):
    verb(**options)(records, lambda rows: [[0.5] for _ in rows])
  nothing = [] if kind != "processbench" else dict(math=[])
  with pytest.raises(prm_jax.InputError, match="no s"):
    verb(**options)(nothing, _score)


@pytest.mark.parametrize(
  ("make", "words"),
  [
    (lambda: prm_jax.EvaluateSteps(neutral="nice"), "`neutral='nice'`: expect"),
    (lambda: prm_jax.EvaluateSteps(seed=-1), "`seed=-1`"),
    (lambda: prm_jax.EvaluateSteps("runs/prm", "s.jsonl"), "either"),
    (lambda: prm_jax.EvaluateBestOfN(aggregate="sum"), "`aggregate='sum'`"),
    (lambda: prm_jax.EvaluateBestOfN(grader="sympy"), "`grader='sympy'`"),
    (lambda: evaluate_processbench.ProcessBenchJob(("a",)), "SUBSET=FILE"),
    (
      lambda: evaluate_processbench.ProcessBenchJob(("a=b", "a=c")),
      "'a' is given twice",
    ),
    (
      lambda: evaluate.SolutionsJob("in.jsonl", limit=-1),
      "`limit=-1`",
    ),
    (
      lambda: prm_jax.EvaluateProcessBench()(dict(math=[])),
      "no subset gsm8k, on which the threshold would be tuned; give `tune_on`,"
      " one of math",
    ),
  ],
)
def test_a_wrong_value_is_refused_in_words(make, words):
  with pytest.raises(prm_jax.InputError) as caught:
    make()
  assert words in str(caught.value)
