"""The whole demo, tiny: its files, its numbers, and going on after a stop."""

import json
import pathlib

import numpy as np
import pytest

from prm_jax import arithmetic
from prm_jax import checkpoint
from prm_jax import cli
from prm_jax import configs
from prm_jax import demo
from prm_jax import schema
from prm_jax.train import experiment

pytestmark = pytest.mark.usefixtures("one_device")

CONFIG = pathlib.Path(__file__).parents[1] / "experiments" / "arithmetic.py"
NUM_PROBLEMS, NUM_SAMPLES = 12, 8
TINY = [
  "base_problems=60",
  "annotated_problems=40",
  "train_problems=10",
  "train_samples=4",
  "train_temperatures=(1.0, 1.4)",
  "completions=4",
  f"test_problems={NUM_PROBLEMS}",
  f"num_samples={NUM_SAMPLES}",
  "max_new_tokens=24",
  *(
    f"runs.{run}.{field}"
    for run in demo.RUNS
    for field in (
      "rows=8",
      "fit.steps=8",
      "model.d_model=16",
      "model.num_layers=1",
      "model.num_heads=1",
      "model.num_kv_heads=1",
      "model.head_dim=16",
      "model.d_ff=16",
    )
  ),
]


def _demo(workdir, *more: str) -> int:
  overrides = [f"--config.{field}" for field in TINY]
  return cli.main(
    ["demo", f"--config={CONFIG}", f"--workdir={workdir}", *overrides, *more]
  )


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  """Returns the folder of a demo that was never stopped."""
  folder = tmp_path_factory.mktemp("demo") / "run"
  assert _demo(folder) == 0
  return folder


def _results(workdir):
  return json.loads((workdir / "results.json").read_text())


@pytest.mark.slow
def test_the_results_have_every_promised_number(workdir):
  results = _results(workdir)
  assert results["seed"] == 0
  assert results["n"] == [1, 2, 4, 8]
  names = {"prm", "prm_mc", "orm", "majority", "weighted_prm", "logprob"}
  assert names | {"oracle"} <= set(results["accuracy"])
  assert set(results["interval"]) == set(results["accuracy"])
  for name, curve in results["accuracy"].items():
    assert len(curve) == len(results["interval"][name]) == 4
    for value, (low, high) in zip(curve, results["interval"][name]):
      assert 0 <= low <= value <= high <= 1
  for name in (
    "prm_minus_orm_at_8",
    "prm_minus_majority_at_8",
    "prm_minus_orm_at_4",
  ):
    assert set(results["paired"][name]) == {"mean", "low", "high"}
  assert set(results["false_positive_share"]) >= {"prm", "orm"}
  assert set(results["step_auroc"]) == {"prm", "prm_mc"}
  assert set(results["seconds"]) >= {"base", "policy", "score", "evaluate"}
  assert results["peak_rss_gib"] > 0
  report = (workdir / "report.html").read_text()
  assert "Monte-Carlo PRM" in report and "sample test solutions" in report
  assert (workdir / "best_of_n.svg").read_bytes().startswith(b"<svg")


@pytest.mark.slow
def test_the_results_are_those_of_the_samples_that_are_kept(workdir):
  """Each model's pick, chosen by hand from samples.jsonl."""
  results = _results(workdir)
  samples = schema.read_solutions(workdir / "samples.jsonl")
  assert len(samples) == NUM_PROBLEMS * NUM_SAMPLES
  by_problem: dict[str, list[schema.Solution]] = {}
  for s in samples:
    by_problem.setdefault(s.problem, []).append(s)
    assert s == arithmetic.judge(s)
  problems = schema.read_problems(workdir / "problems.jsonl")
  assert list(by_problem) == [p.problem for p in problems]
  right = np.mean([s.outcome for s in samples])
  for name in ("prm", "prm_mc", "orm", "logprob"):
    picks = []
    for row in by_problem.values():
      scores = [s.extra["scores"][name] for s in row]
      top = [s.outcome for s, x in zip(row, scores) if x == max(scores)]
      picks.append(np.mean(top))
    curve = results["accuracy"][name]
    assert curve[0] == pytest.approx(right)
    assert curve[-1] == pytest.approx(np.mean(picks))
  solved = [any(s.outcome for s in row) for row in by_problem.values()]
  assert results["accuracy"]["oracle"][-1] == pytest.approx(np.mean(solved))


@pytest.mark.slow
def test_test_and_training_problems_are_disjoint(workdir):
  test = schema.read_problems(workdir / "problems.jsonl")
  train = schema.read_solutions(workdir / "solutions.jsonl")
  assert len(test) == NUM_PROBLEMS and train
  assert all(p.answer == arithmetic.answer(p.problem) for p in test)
  assert all(s.labels is not None for s in train)

  def turns(problem):
    return repr(arithmetic.parse(problem))

  assert not {turns(p.problem) for p in test} & {
    turns(s.problem) for s in train
  }
  inputs = demo.draw_inputs(
    demo.from_config(configs.load(CONFIG, TINY)), seed=0
  )
  assert inputs.test == test
  seen = {turns(s.problem) for s in (*inputs.base, *inputs.annotated)}
  assert not {turns(p.problem) for p in test} & seen


@pytest.mark.slow
def test_its_folders_are_what_score_and_sample_take(workdir, tmp_path):
  samples = schema.read_solutions(workdir / "samples.jsonl")
  for name in demo.REWARD_MODELS:
    output = tmp_path / f"{name}.jsonl"
    arguments = [f"--input={workdir / 'samples.jsonl'}", f"--output={output}"]
    assert (
      cli.main(["score", f"--checkpoint={workdir / name}", *arguments]) == 0
    )
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    how = checkpoint.read_description(workdir / name).aggregate
    for row, s in zip(rows, samples, strict=True):
      np.testing.assert_allclose(
        row["step_scores"], s.extra["step_scores"][name], rtol=1e-5
      )
      assert row[how] == pytest.approx(s.extra["scores"][name], rel=1e-5)
  output = tmp_path / "solutions.jsonl"
  code = cli.main(
    [
      "sample",
      f"--checkpoint={workdir / 'policy'}",
      f"--input={workdir / 'problems.jsonl'}",
      f"--output={output}",
      "--n=2",
      "--max_tokens=8",
    ]
  )
  assert code == 0
  assert len(schema.read_solutions(output)) == 2 * NUM_PROBLEMS


@pytest.mark.slow
def test_a_demo_stopped_twice_ends_as_one_that_wasnt(
  workdir, tmp_path, monkeypatch, capsys
):
  stopped = tmp_path / "run"
  train = experiment.train
  for name in ("base", "prm_mc"):

    def interrupted(config, solutions, tokenizer, folder, *, at=name, **more):
      if folder.name == at:
        raise KeyboardInterrupt
      return train(config, solutions, tokenizer, folder, **more)

    monkeypatch.setattr(experiment, "train", interrupted)
    assert _demo(stopped) == 130
    assert not (stopped / "results.json").exists()
  monkeypatch.undo()
  assert _demo(stopped) == 0
  for name in ("problems", "solutions", "solutions_mc", "samples"):
    file = f"{name}.jsonl"
    assert (stopped / file).read_bytes() == (workdir / file).read_bytes(), file
  found, expected = _results(stopped), _results(workdir)
  for key in ("seconds", "peak_rss_gib"):
    assert found.pop(key) and expected.pop(key)
  assert found == expected
  # Another seed or config would mix two demos in one folder.
  capsys.readouterr()
  assert _demo(stopped, "--seed=1") == 1
  assert "other values of seed;" in capsys.readouterr().err
  assert _demo(stopped, "--config.completions=2") == 1
  assert "other values of completions;" in capsys.readouterr().err
  assert _results(stopped)["seed"] == 0


def test_the_seed_decides_what_is_drawn():
  config = demo.from_config(configs.load(CONFIG, TINY))
  first, again, other = (demo.draw_inputs(config, seed) for seed in (0, 0, 1))
  assert first.test == again.test and first.base == again.base
  assert first.test != other.test
  ids = first.tokenizer.encode(first.test[0].problem)
  assert ids == again.tokenizer.encode(first.test[0].problem)


def test_the_test_problems_are_the_same_whatever_the_training_sizes():
  sizes = ["base_problems=30", "annotated_problems=7", "train_problems=3"]
  one, other = (
    demo.draw_inputs(demo.from_config(configs.load(CONFIG, fields)), seed=0)
    for fields in (TINY, [*TINY, *sizes])
  )
  assert len(one.base) != len(other.base)
  assert one.test == other.test


def test_samples_that_dont_divide_among_the_temperatures_are_refused():
  config = configs.load(
    CONFIG, ["train_samples=5", "train_temperatures=(0.5, 1.5)"]
  )
  with pytest.raises(schema.InputError, match="train_samples=5"):
    demo.from_config(config)
