"""The whole demo, tiny: its files, its numbers, and going on after a stop."""

import contextlib
import json
import pathlib

import jax
import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.cli import main
from prm_jax.demo import default_config
from prm_jax.demo import demo
from prm_jax.demo import demo_run
from prm_jax.demo import demo_run_config
from prm_jax.demo import quick_config
from prm_jax.policy import sampler
from prm_jax.records import jsonl
from prm_jax.runtime import config_files
from prm_jax.runtime import progress
from prm_jax.runtime import verbs
from prm_jax.testbed import arithmetic
from prm_jax.training import train_run

pytestmark = pytest.mark.usefixtures(
  "one_device", "equal_programs", "printed_log"
)

CONFIG = pathlib.Path(__file__).parents[2] / "experiments" / "arithmetic.py"
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
    for run in demo_run.RUNS
    for field in (
      "packing.batch_size=8",
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
  return main.main(
    ["demo", f"--config={CONFIG}", f"--workdir={workdir}", *overrides, *more]
  )


@pytest.fixture(scope="module")
def told():
  """Returns what the demo said of its progress: (what, total, [done, ...])."""
  return []


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, told):
  """Returns the folder of a demo that was never stopped."""
  folder = tmp_path_factory.mktemp("demo") / "run"

  @contextlib.contextmanager
  def showing(what, total, unit="solution", *, first="starting"):
    counts = []
    told.append((what, total, counts))
    yield counts.append

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(progress, "showing", showing)
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
  stood_on = json.loads((workdir / "environment.json").read_text())
  assert stood_on["config"]["top_p"] == 0.95 and stood_on["versions"]
  data = workdir / demo_run.REPORT / "data"
  shown = "".join(x.read_text() for x in sorted(data.glob("[er]*.js")))
  for words in ("Monte-Carlo PRM", "sample test solutions", '"loss_nats"'):
    assert words in shown
  assert "Only their numbers" not in shown


@pytest.mark.slow
def test_the_long_phases_say_how_far_they_are(workdir, told):
  tested = NUM_PROBLEMS * NUM_SAMPLES
  long = [(w, total) for w, total, _ in told if w in ("sample", "score")]
  assert long == [
    ("sample", 10 * 4),
    ("sample", tested),
    ("score", tested * len(demo_run.REWARD_MODELS)),
  ]
  assert [what for what, _, _ in told].count("roll out") == 1
  for what, total, counts in told:
    if what in ("sample", "score", "roll out"):
      assert counts == sorted(counts) and counts[-1] == total


def _rank(s, name):
  """Returns what orders samples: the least log-odds, which round to no 1."""
  if name not in demo_run.REWARD_MODELS:
    return s.extra["solution_scores"][name]
  return min(s.extra["step_logits"][name], default=-np.inf)


@pytest.mark.slow
def test_the_results_are_those_of_the_samples_that_are_kept(workdir):
  """Each model's pick, chosen by hand from samples.jsonl."""
  results = _results(workdir)
  samples = jsonl.read_solutions(workdir / "samples.jsonl")
  assert len(samples) == NUM_PROBLEMS * NUM_SAMPLES
  by_problem: dict[str, list[schema.Solution]] = {}
  for s in samples:
    by_problem.setdefault(s.problem, []).append(s)
    assert s == arithmetic.judge(s)
  problems = jsonl.read_problems(workdir / "problems.jsonl")
  assert list(by_problem) == [p.problem for p in problems]
  right = np.mean([s.outcome for s in samples])
  for name in ("prm", "prm_mc", "orm", "logprob"):
    picks = []
    for row in by_problem.values():
      scores = [_rank(s, name) for s in row]
      top = [s.outcome for s, x in zip(row, scores) if x == max(scores)]
      picks.append(np.mean(top))
    curve = results["accuracy"][name]
    assert curve[0] == pytest.approx(right)
    assert curve[-1] == pytest.approx(np.mean(picks))
  solved = [any(s.outcome for s in row) for row in by_problem.values()]
  assert results["accuracy"]["oracle"][-1] == pytest.approx(np.mean(solved))


@pytest.mark.slow
def test_test_and_training_problems_are_disjoint(workdir):
  test = jsonl.read_problems(workdir / "problems.jsonl")
  train = jsonl.read_solutions(workdir / "solutions.jsonl")
  assert len(test) == NUM_PROBLEMS and train
  assert all(p.answer == arithmetic.answer(p.problem) for p in test)
  assert all(s.labels is not None for s in train)

  def turns(problem):
    return repr(arithmetic.parse(problem))

  assert not {turns(p.problem) for p in test} & {
    turns(s.problem) for s in train
  }
  inputs = demo_run.draw_inputs(
    demo_run_config.from_config(config_files.load(CONFIG, TINY)), seed=0
  )
  assert inputs.test == test
  seen = {turns(s.problem) for s in (*inputs.base, *inputs.annotated)}
  assert not {turns(p.problem) for p in test} & seen


@pytest.mark.slow
def test_each_models_judged_steps_are_those_of_its_training(workdir):
  """The Monte-Carlo PRM learns all steps, the ORM the last one."""
  samples = jsonl.read_solutions(workdir / "samples.jsonl")
  judged = dict(prm="until_first_error", prm_mc="all", orm="last")
  for s in samples:
    for name, which in judged.items():
      scores = s.extra["step_scores"][name]
      expected = schema.judged_steps(scores, which)
      assert s.extra["judged"][name] == list(expected)


@pytest.mark.slow
def test_its_folders_are_what_score_and_sample_take(workdir, tmp_path):
  samples = jsonl.read_solutions(workdir / "samples.jsonl")
  for name in demo_run.REWARD_MODELS:
    output = tmp_path / f"{name}.jsonl"
    arguments = [f"--input={workdir / 'samples.jsonl'}", f"--output={output}"]
    assert (
      main.main(["score", f"--checkpoint={workdir / name}", *arguments]) == 0
    )
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    own = model_json.read_description(workdir / name).aggregate
    assert own == ("last" if name == "orm" else "min")
    for row, s in zip(rows, samples, strict=True):
      np.testing.assert_allclose(
        row["step_scores"], s.extra["step_scores"][name], rtol=1e-5
      )
      assert row["min"] == pytest.approx(
        s.extra["solution_scores"][name], rel=1e-5
      )
  output = tmp_path / "solutions.jsonl"
  code = main.main(
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
  assert len(jsonl.read_solutions(output)) == 2 * NUM_PROBLEMS


@pytest.mark.slow
def test_a_demo_stopped_twice_ends_as_one_that_wasnt(
  workdir, tmp_path, monkeypatch, capsys
):
  stopped = tmp_path / "run"
  train = train_run.train
  for name in ("base", "prm_mc"):

    def interrupted(config, solutions, tokenizer, folder, *, at=name, **more):
      if folder.name == at:
        raise KeyboardInterrupt
      return train(config, solutions, tokenizer, folder, **more)

    monkeypatch.setattr(train_run, "train", interrupted)
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


def test_a_phase_that_goes_on_adds_its_seconds_and_one_begun_anew_does_not(
  tmp_path, monkeypatch
):
  now = iter([0, 5, 5, 7, 10, 13, 20, 24])
  monkeypatch.setattr(demo_run.time, "perf_counter", lambda: next(now))
  phase = demo_run.Phases(tmp_path / "seconds.json")
  with pytest.raises(KeyboardInterrupt), phase("train", resumes=True):
    raise KeyboardInterrupt
  with phase("train", resumes=True):
    pass
  for _ in range(2):
    with phase("score"):
      pass
  assert phase.seconds() == dict(train=7.0, score=4.0)


def test_no_round_of_rollouts_has_the_luck_of_another(monkeypatch):
  """Request 0 of every round would draw the same numbers under one key."""
  config = demo_run_config.from_config(config_files.load(CONFIG, TINY))
  inputs = demo_run.draw_inputs(config, 0)
  keys = []

  def generate(policy, prefixes, n, sampling, key):
    keys.append(tuple(jax.random.key_data(key).tolist()))
    return [[inputs.base[0]] * n for _ in prefixes]  # a right solution

  monkeypatch.setattr(sampler.Sampler, "generate", generate)
  policy = object.__new__(sampler.Sampler)
  demo_run.monte_carlo_labels(
    config, policy, inputs.base[:5], jax.random.key(0)
  )
  assert len(keys) == len(set(keys)) >= 3


def test_the_seed_decides_what_is_drawn():
  config = demo_run_config.from_config(config_files.load(CONFIG, TINY))
  first, again, other = (
    demo_run.draw_inputs(config, seed) for seed in (0, 0, 1)
  )
  assert first.test == again.test and first.base == again.base
  assert first.test != other.test
  ids = first.tokenizer.encode(first.test[0].problem)
  assert ids == again.tokenizer.encode(first.test[0].problem)


def test_the_test_problems_are_the_same_whatever_the_training_sizes():
  sizes = ["base_problems=30", "annotated_problems=7", "train_problems=3"]
  one, other = (
    demo_run.draw_inputs(
      demo_run_config.from_config(config_files.load(CONFIG, fields)), seed=0
    )
    for fields in (TINY, [*TINY, *sizes])
  )
  assert len(one.base) != len(other.base)
  assert one.test == other.test


def test_samples_that_dont_divide_among_the_temperatures_are_refused():
  config = config_files.load(
    CONFIG, ["train_samples=5", "train_temperatures=(0.5, 1.5)"]
  )
  with pytest.raises(errors.InputError, match="train_samples=5"):
    demo_run_config.from_config(config)


@pytest.mark.parametrize(
  ("override", "word"),
  [
    ("train_temperatures=()", "train_temperatures is empty"),
    ("train_temperatures=(1.0, -1.0)", "temperature must be"),
    ("temperature=-0.5", "temperature must be"),
    ("top_p=0.0", "top_p in"),
    ("max_new_tokens=0", "max_new_tokens=0"),
    ("completions=0", "completions=0"),
    ("num_samples=0", "num_samples=0"),
    ("test_problems=0", "test_problems=0"),
    ("monte_carlo_solutions=-1", "monte_carlo_solutions=-1"),
    ("test_split=dev", "test_split='dev': expected one of train"),
    ("task.slip_shift=1.5", r"task\.slip_shift=1\.5"),
    ("runs.prm.model.d_ff=0", r"model\.d_ff=0"),
  ],
)
def test_a_demo_that_makes_no_sense_is_refused_in_one_line(override, word):
  config = config_files.load(CONFIG, [override])
  with pytest.raises(errors.InputError, match=word) as e:
    demo_run_config.from_config(config)
  assert "\n" not in str(e.value)


@pytest.mark.parametrize(
  ("override", "word"),
  [
    ("test_problems=200", "problems are wanted"),
    ("runs.orm.mesh=(2, 2, 2)", "mesh="),
    ("runs.prm.model.d_model=8", "init_from"),
  ],
)
def test_a_demo_that_cant_begin_is_refused_before_it_begins(override, word):
  few = ["task.max_turns=3", "task.times=(2,)", "task.shifts=(1,)"]
  config = demo_run_config.from_config(
    config_files.load(CONFIG, [*TINY, *few, override])
  )
  with pytest.raises(errors.InputError, match=word):
    demo_run.check(config, seed=0)


def test_clearing_takes_what_a_demo_writes_and_nothing_else(tmp_path):
  for name in (*demo_run.RUNS, "mine"):
    (tmp_path / name / "checkpoints").mkdir(parents=True)
    (tmp_path / name / "metrics.jsonl").write_text("x")
  for name in (*demo_run.FILES, "notes.txt"):
    (tmp_path / name).write_text("x")
  demo_run.clear(tmp_path)
  assert sorted(x.name for x in tmp_path.iterdir()) == ["mine", "notes.txt"]
  assert (tmp_path / "mine" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_a_demo_writes_nothing_but_what_it_would_clear(workdir):
  found = {x.name for x in workdir.iterdir()}
  assert found == {*demo_run.RUNS, *demo_run.FILES, demo_run.REPORT}


@pytest.mark.parametrize("config", [default_config, quick_config])
def test_the_packages_own_configs_have_only_fields_that_are_read(config):
  loaded = config_files.load(config.__file__, (), demo_run_config.form())
  assert demo_run_config.from_config(loaded).runs.keys() == set(demo_run.RUNS)


def test_the_experiment_is_the_config_that_an_installed_package_runs():
  assert config_files.read(CONFIG) == default_config.get_config()


def test_two_configs_at_once_are_refused(capsys):
  assert main.main(["demo", "--quick", f"--config={CONFIG}"]) == 1
  assert "leave out --config" in capsys.readouterr().err
  with pytest.raises(errors.InputError, match="leave out `config`"):
    demo.Demo(quick=True, config=default_config.get_config())


def test_a_config_in_python_is_the_demo_of_its_file(tmp_path, monkeypatch):
  """As what get_config() returns, with other values; and the quick one."""
  begun = []
  monkeypatch.setattr(demo_run, "run", lambda *args: begun.append(args) or {})
  config = verbs.Config(default_config.get_config(), ("completions=3",))
  for given in (
    dict(config=config),
    dict(quick=True, fresh=True),
    dict(config=verbs.Config(demo.Demo().config.file, ("completions=3",))),
  ):
    folder = tmp_path / str(len(begun))
    assert demo.Demo(folder, 1, **given)() == {}
  made, quick, again = (config for config, *_ in begun)
  assert made == again and made.completions == 3
  assert quick.base_problems == quick_config.get_config().base_problems
  for _, folder, seed, details in begun:
    saved = json.loads((folder / "config.json").read_text())
    assert saved == details["config"] | dict(seed=1) and seed == 1
