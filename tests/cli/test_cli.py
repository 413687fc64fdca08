"""The command line: journeys through it, and what it says to bad input."""

from collections.abc import Sequence
import dataclasses
import functools
import importlib.util
import json
import pathlib
import shlex

import numpy as np
import pytest
import small_config

import prm_jax
from prm_jax import errors
from prm_jax import schema
from prm_jax import voting
from prm_jax.checkpoints import saves
from prm_jax.cli import main
from prm_jax.datasets import inspection
from prm_jax.grading import pool
from prm_jax.jobs import shards
from prm_jax.records import jsonl
from prm_jax.runtime import progress
from prm_jax.scoring import scorer
from prm_jax.testbed import arithmetic

pytestmark = pytest.mark.usefixtures("one_device", "equal_programs")


def _write_config(path, data, program="prm", steps=2):
  text = small_config.text(
    program,
    data=dict(train=(f"jsonl:{data}",), evaluation=(), holdout=0.2),
    model=dict(d_model=16, head_dim=8, d_ff=32),
    eval_rows=8,
    fit=dict(steps=steps, log_every=2),
  )
  path.write_text(text)
  return path


def _labelled(count, seed=0):
  random = np.random.default_rng(seed)
  task = arithmetic.Task(max_turns=4)
  problems = arithmetic.problems(count, "train", task, random)
  return [arithmetic.judge(arithmetic.solve(p, random, task)) for p in problems]


def _run(*arguments: object) -> int:
  return main.main([str(a) for a in arguments])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """Returns a folder: solutions.jsonl, policy/ and prm/, a few steps old."""
  folder = tmp_path_factory.mktemp("cli")
  jsonl.write_solutions(folder / "solutions.jsonl", _labelled(40))
  for name, program, steps in (("policy", "sft", 12), ("prm", "prm", 2)):
    config = _write_config(
      folder / f"{name}.py", folder / "solutions.jsonl", program, steps
    )
    code = _run("train", f"--config={config}", f"--workdir={folder / name}")
    assert code == 0
  return folder


def _files(folder: pathlib.Path) -> dict[str, bytes]:
  """Returns all files below a folder, by name, with their content."""
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in sorted(folder.rglob("*"))
    if path.is_file()
  }


@pytest.fixture
def refused(capfd, tmp_path):
  """Returns a function that runs a command and checks how it is refused.

  Exit code 1, one line on stderr with all the words, and no file new, changed
  or left over.
  """

  def check(arguments: Sequence[object], *words: str) -> str:
    before = _files(tmp_path)
    capfd.readouterr()
    code = _run(*arguments)
    error = capfd.readouterr().err
    assert code == 1
    assert error.startswith("prm-jax: ")
    assert error.endswith("\n") and error.count("\n") == 1, error
    for word in words:
      assert word in error, error
    assert _files(tmp_path) == before
    return error

  return check


def _lines(path, *rows):
  path.write_text(
    "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows)
  )
  return path


GOOD = dict(id="a", problem="1 + 1", steps=["2"], labels=[1.0])


# --- Journeys ---------------------------------------------------------------


@pytest.mark.slow
def test_sample_score_and_eval_follow_each_other(
  trained, tmp_path, capsys, monkeypatch
):
  always = functools.partial(progress.showing, every_s=0.0)
  monkeypatch.setattr(progress, "showing", always)
  random = np.random.default_rng(1)
  problems = arithmetic.problems(3, "test", arithmetic.Task(), random)
  jsonl.write_problems(tmp_path / "problems.jsonl", problems)
  sampled, scores = tmp_path / "solutions.jsonl", tmp_path / "scores.jsonl"

  def sample(output, seed=0):
    return _run(
      "sample",
      f"--checkpoint={trained / 'policy'}",
      f"--input={tmp_path / 'problems.jsonl'}",
      f"--output={output}",
      "--n=4",
      "--max_tokens=24",
      f"--seed={seed}",
    )

  assert sample(sampled) == 0
  solutions = jsonl.read_solutions(sampled)
  assert [s.problem for s in solutions] == [
    p.problem for p in problems for _ in range(4)
  ]
  assert len({s.id for s in solutions}) == 12
  for s, p in zip(solutions, [p for p in problems for _ in range(4)]):
    assert s.outcome == (s.answer is not None and s.answer == p.answer)
    assert s.extra["reference_answer"] == p.answer
  # The same seed writes the same bytes; another one doesn't.
  assert sample(tmp_path / "again.jsonl") == 0
  assert sample(tmp_path / "other.jsonl", seed=1) == 0
  assert (tmp_path / "again.jsonl").read_bytes() == sampled.read_bytes()
  assert (tmp_path / "other.jsonl").read_bytes() != sampled.read_bytes()

  # The exact verifier labels them, so that there is something to compare with.
  jsonl.write_solutions(sampled, map(arithmetic.judge, solutions))
  arguments = [f"--input={sampled}", f"--checkpoint={trained / 'prm'}"]
  assert _run("score", *arguments, f"--output={scores}") == 0
  rows = [json.loads(line) for line in scores.read_text().splitlines()]
  assert [row["id"] for row in rows] == [s.id for s in solutions]
  for row, s in zip(rows, solutions, strict=True):
    fields = {"id", "step_scores", "step_logits", "judged"}
    assert set(row) == {*fields, *voting.AGGREGATES}
    judged = schema.judged_steps(row["step_scores"], "until_first_error")
    assert row["judged"] == list(judged)
    assert len(row["step_scores"]) == len(s.steps)
    assert all(0 < x < 1 for x in row["step_scores"])
    for how in ("product", "min", "last", "mean"):
      expected = voting.aggregate(row["step_scores"], how)
      assert row[how] == pytest.approx(expected)

  unjudged = sum(not all(row["judged"]) for row in rows)
  told = f"{unjudged} solutions have steps that the model wasn't trained"

  # By checkpoint or by the scores that it wrote: the same results.
  for kind in ("steps", "best_of_n"):
    found = []
    for by in (f"--checkpoint={trained / 'prm'}", f"--scores={scores}"):
      name = f"{kind}_{by[2:8]}"  # results of others aren't replaced
      output = tmp_path / f"{name}.json"
      command = ("eval", kind, f"--input={sampled}", by, f"--output={output}")
      assert _run(*command) == 0
      results = json.loads(output.read_text())
      assert set(results.pop("run")) == {
        *("command", "versions", "machine", "evaluated", "samples_sha256")
      }
      samples = (tmp_path / f"{name}_samples.jsonl").read_text().splitlines()
      rows = list(map(json.loads, samples))
      assert [row["id"] for row in rows] == [s.id for s in solutions]
      found_by = results.pop("scored_by")
      by_checkpoint = by.startswith("--checkpoint")
      digest = found_by["fingerprint" if by_checkpoint else "sha256"]
      assert len(digest.removeprefix("sha256:")) == 64
      computed_in = "float32" if by_checkpoint else None
      assert found_by.get("compute_dtype") == computed_in
      found.append(results)
    assert json.dumps(found[0]) == json.dumps(found[1])
  assert found[0]["n"] == [1, 2, 4]
  expected = np.mean([arithmetic.judge(s).outcome for s in solutions])
  assert found[0]["accuracy"]["model"][0] == pytest.approx(expected)
  said = capsys.readouterr()
  assert "majority" in said.out
  assert (told in said.out) == bool(unjudged)
  # Whatever takes long says how far it is, on a terminal or off it.
  assert said.err.count("sample 3/3 ") >= 3
  assert said.err.count("score 12/12 ") == 3


@pytest.fixture
def score(trained, tmp_path):
  """Returns a function that scores all solutions into the lines of a file."""

  def score(name, *options):
    output = tmp_path / name
    command = ("score", f"--checkpoint={trained / 'prm'}", f"--output={output}")
    given = f"--input={trained / 'solutions.jsonl'}"
    assert _run(*command, given, *options) == 0
    return output.read_text().splitlines()

  return score


def test_a_layout_scores_the_same_in_its_own_way(score, monkeypatch):
  found, layouts = {}, []
  plain = scorer.Scorer.score

  def watched(self, *args, **more):
    layouts.append(self.layout)
    return plain(self, *args, **more)

  monkeypatch.setattr(scorer.Scorer, "score", watched)
  for layout in scorer.LAYOUTS:
    rows = map(json.loads, score(f"{layout}.jsonl", f"--layout={layout}"))
    found[layout] = {row["id"]: row["step_scores"] for row in rows}
  assert tuple(layouts) == scorer.LAYOUTS
  for scores in found.values():
    assert list(scores) == list(found["padded"])
    for id, steps in scores.items():
      assert steps == pytest.approx(found["padded"][id], abs=1e-5)


def test_an_unknown_layout_is_refused_before_anything_is_read(tmp_path, capsys):
  absent = [f"--{x}={tmp_path / x}" for x in ("checkpoint", "input", "output")]
  assert _run("score", *absent, "--layout=star") == 1
  assert "--layout='star': expected one of" in capsys.readouterr().err


def test_the_scores_of_all_shards_are_those_of_the_whole(trained, score):
  whole = score("whole.jsonl")
  halves = [score(f"{i}.jsonl", f"--shard={i}/2") for i in range(2)]
  assert all(halves)
  ids = {json.loads(line)["id"]: line for line in whole}
  found = [json.loads(line) for half in halves for line in half]
  assert sorted(row["id"] for row in found) == sorted(ids)
  for row in found:
    expected = json.loads(ids[row["id"]])["step_scores"]
    assert row["step_scores"] == pytest.approx(expected, abs=1e-6)
  # A shard without a problem has an empty file.
  solutions = jsonl.read_solutions(trained / "solutions.jsonl")
  empty = next(
    shard
    for shard in (shards.Shard(i, 997) for i in range(997))
    if not any(shard.holds(s.problem) for s in solutions)
  )
  assert score("none.jsonl", f"--shard={empty}") == []


def test_an_evaluation_writes_results_json_here_and_says_so(
  tmp_path, capsys, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  _lines(tmp_path / "s.jsonl", GOOD, dict(GOOD, id="b", labels=[0.0]))
  _lines(
    tmp_path / "scores.jsonl",
    dict(id="a", step_scores=[0.9]),
    dict(id="b", step_scores=[0.2]),
  )
  command = ("eval", "steps", "--input=s.jsonl", "--scores=scores.jsonl")
  assert _run(*command) == 0
  assert capsys.readouterr().out.endswith("\nresults: results.json\n")
  assert json.loads((tmp_path / "results.json").read_text())["auroc"] == 1
  assert _run(*command, "--output=out/other.json") == 0
  assert json.loads((tmp_path / "out" / "other.json").read_text())["auroc"] == 1


def test_an_evaluation_replaces_its_own_files_and_no_others(
  tmp_path, capfd, monkeypatch, refused
):
  monkeypatch.chdir(tmp_path)
  wrong = dict(GOOD, id="b", labels=[0.0])
  # As `prm-jax sample --output=samples.jsonl` would have named them.
  _lines(tmp_path / "samples.jsonl", GOOD, wrong)
  _lines(
    tmp_path / "scores.jsonl",
    dict(id="a", step_scores=[0.9]),
    dict(id="b", step_scores=[0.2]),
  )
  command = ["eval", "steps", "--input=samples.jsonl", "--scores=scores.jsonl"]
  refused(command, "samples.jsonl: is read by this command", "--samples")
  refused([*command, "--output=scores.jsonl"], "scores.jsonl: is read by")
  (tmp_path / "thesis.json").write_text("{}")
  refused([*command, "--output=thesis.json"], "thesis.json: is there already")
  for _ in range(2):
    assert _run(*command, "--samples=s.jsonl") == 0
  rows = [json.loads(x) for x in (tmp_path / "s.jsonl").open()]
  assert [row["id"] for row in rows] == ["a", "b"]
  assert [(row["prediction"], row["target"]) for row in rows] == [
    *((-1, -1), (0, 0))
  ]
  assert all(row["right"] for row in rows)
  assert "samples: s.jsonl\n" in capfd.readouterr().out


def test_prmbench_is_evaluated_over_several_files(tmp_path, capsys):
  for kind in ("circular", "deception"):
    row = dict(GOOD, id=kind, steps=["1", "2"], labels=[1, 0])
    _lines(tmp_path / f"{kind}.jsonl", row | dict(classification=kind))
  scores = _lines(
    tmp_path / "scores.jsonl",
    dict(id="circular", step_scores=[0.9, 0.1]),
    dict(id="deception", step_scores=[0.9, 0.9], judged=[True, False]),
  )
  code = _run(
    *("eval", "prmbench", "--format=jsonl", f"--scores={scores}"),
    f"--input={tmp_path / 'circular.jsonl'}",
    f"--input={tmp_path / 'deception.jsonl'}",
    f"--output={tmp_path / 'results.json'}",
  )
  assert code == 0
  results = json.loads((tmp_path / "results.json").read_text())
  classes = results["classes"]
  assert results["steps_judged"] == dict(num=3, of=4)
  assert classes["circular"]["prm_score"] == 1
  assert classes["deception"]["prm_score"] == pytest.approx(1 / 3)
  said = capsys.readouterr().out
  assert "NCL circular" in said and "1 of 4 steps count though" in said
  assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 2


def _page(after: str, fence: str) -> str:
  """Returns docs/prm.md's first block of code of a kind after some words."""
  text = (pathlib.Path(__file__).parents[2] / "docs" / "prm.md").read_text()
  return text.partition(after)[2].partition(f"```{fence}\n")[2].split("```")[0]


@pytest.mark.slow
def test_the_pages_recipe_for_ones_own_data_runs_as_written(
  tmp_path, monkeypatch, capsys
):
  """Its config, by its own words from the experiment's, but tiny."""
  root = pathlib.Path(__file__).parents[2]
  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv("PRM_JAX_DATA", raising=False)
  jsonl.write_solutions("mine.jsonl", _labelled(40))
  text = (root / "experiments" / "prm800k_small.py").read_text()
  before, start, rest = text.partition("  c.data = dict(")
  after = rest.partition("\n  )\n")[2]
  assert start and after
  data = _page("## Your own data", "python")
  assert data.startswith("  c.data = dict(")
  pathlib.Path("mine.py").write_text(before + data + after)
  tiny = [
    "--config.tokenizer.vocab_size=64",
    "--config.tokenizer.model_type=word",
    "--config.encoding.max_tokens=64",
    "--config.packing.sequence_length=64",
    "--config.eval_rows=8",
    "--config.optimizer.warmup_steps=1",
    "--config.fit.steps=4",
    "--config.fit.eval_every=2",
    "--config.fit.checkpoint_every=2",
    "--config.model.d_model=16",
    "--config.model.num_layers=1",
    "--config.model.num_heads=2",
    "--config.model.head_dim=8",
    "--config.model.d_ff=32",
  ]
  lines = _page("Then run", "").splitlines()
  ran = []
  for line in lines:
    program, *words = shlex.split(line, comments=True)
    assert program == "prm-jax"
    ran.append(" ".join(words[:2]).partition(" --")[0])
    assert _run(*words, *(tiny if words[0] == "train" else ())) == 0, line
  assert ran == ["data inspect", "train", "score", "eval steps"]
  scores = prm_jax.load("runs/mine").score_text("1 + 1?", "1 + 1 = 2\n\nSo 2.")
  assert scores.spans == ((0, 9), (11, 16))
  assert "results: results.json" in capsys.readouterr().out
  assert len(saves.saved_steps(tmp_path / "runs" / "mine")) >= 1


@pytest.mark.slow
def test_train_goes_on_refuses_or_starts_over_as_it_is_told(
  trained, tmp_path, refused
):
  workdir = tmp_path / "run"
  config = _write_config(tmp_path / "c.py", trained / "solutions.jsonl")
  train = ("train", f"--config={config}", f"--workdir={workdir}")
  assert _run(*train) == 0
  saved = _files(workdir / "checkpoints")
  metrics = (workdir / "metrics.jsonl").read_text()
  description = json.loads((workdir / "environment.json").read_text())
  assert set(description) == {"config", "versions", "machine", "command"}
  assert description["config"]["model"]["d_model"] == 16

  assert _run(*train) == 0  # all is done already
  assert _files(workdir / "checkpoints") == saved
  assert (workdir / "metrics.jsonl").read_text() == metrics

  other = "--config.optimizer.peak_lr=1e-3"
  refused(
    (*train, other, "--config.packing.batch_size=16"),
    "optimizer.peak_lr, packing.batch_size",
    "--fresh",
    str(workdir),
  )
  refused((*train, "--no-resume"), str(workdir), "--fresh")

  # A fresh run that can't begin leaves the old one as it is.
  empty = _lines(tmp_path / "empty.jsonl")
  refused(
    (*train, "--fresh", f'--config.data.train=("jsonl:{empty}",)'),
    "data.train",
  )
  assert _run(*train, other, "--fresh") == 0
  changed = json.loads((workdir / "config.json").read_text())
  assert changed["optimizer"]["peak_lr"] == 1e-3
  assert saves.saved_steps(workdir) == [2]
  assert _files(workdir / "checkpoints") != saved


def test_the_first_run_that_is_refused_leaves_no_workdir(
  trained, tmp_path, refused
):
  config = _write_config(tmp_path / "c.py", trained / "solutions.jsonl")
  train = ("train", f"--config={config}", f"--workdir={tmp_path / 'run'}")
  for override, word in (
    ("data.train=('jsonl:nowhere.jsonl',)", "nowhere.jsonl: no such file"),
    ("data.train=('jsnl:x',)", "did you mean jsonl?"),
    ("data.train=('solutions.jsonl',)", "FORMAT:PATH"),
    ("data.holdout=1.5", "data.holdout=1.5"),
    ("tokenizer.kind=byte", "tokenizer.kind='byte'"),
    ("program=rm", "is of program='prm'"),
    ("objective.labels.neutral=nice", "labels.neutral='nice'"),
    ("microbatches=3", "batch_size=8 isn't a multiple of microbatches=3"),
    ("mesh=(2, 2, 2)", "mesh=(2, 2, 2)"),
    ("encoding.max_tokens=65", "sequence_length=64"),
    ("fit.steps=0", "fit.steps=0"),
    ("model.head_dim=7", "model.head_dim=7"),
    ("objective.error_weight=0.0", "error_weight=0.0"),
    ("init_from=nowhere", "nowhere: not a checkpoint folder"),
    ("trainable=heads", "trainable='heads'"),
    ("trainable=head", "init_from"),
    ("trainable=lora", "model.lora_rank=0"),
    ("model.lora_rank=4", "set trainable='lora'"),
    ("model.lora_targets=('q_proj',)", "model.lora_targets=('q_proj',)"),
  ):
    refused((*train, f"--config.{override}"), word)
    assert not (tmp_path / "run").exists()


# --- The folder that is written to ------------------------------------------


@pytest.mark.parametrize("fresh", [(), ("--fresh",)])
@pytest.mark.parametrize("command", ["train", "demo"])
def test_a_folder_with_other_files_is_never_touched(
  command, fresh, trained, tmp_path, refused
):
  folder = tmp_path / "thesis"
  (folder / "checkpoints").mkdir(parents=True)
  (folder / "checkpoints" / "chapter.txt").write_text("years of work")
  config = "experiments/arithmetic.py"
  root = pathlib.Path(__file__).parents[2]
  path = root / config
  if command == "train":
    path = _write_config(tmp_path / "c.py", trained / "solutions.jsonl")
  refused(
    (command, f"--config={path}", f"--workdir={folder}", *fresh),
    str(folder),
    "isn't empty",
  )


@pytest.mark.parametrize("fresh", [(), ("--fresh",)])
@pytest.mark.parametrize("command", ["train", "demo"])
def test_a_folder_with_anothers_config_is_never_touched(
  command, fresh, trained, tmp_path, refused
):
  folder = tmp_path / "model"
  folder.mkdir()
  (folder / "config.json").write_text('{"model_type": "qwen2"}')
  (folder / "model.safetensors").write_text("weights")
  path = pathlib.Path(__file__).parents[2] / "experiments" / "arithmetic.py"
  if command == "train":
    path = _write_config(tmp_path / "c.py", trained / "solutions.jsonl")
  refused(
    (command, f"--config={path}", f"--workdir={folder}", *fresh),
    str(folder / "config.json"),
    "--workdir",
  )


def test_a_fresh_demo_that_is_refused_leaves_the_old_one(tmp_path, refused):
  path = pathlib.Path(__file__).parents[2] / "experiments" / "arithmetic.py"
  folder = tmp_path / "run"
  (folder / "prm" / "checkpoints").mkdir(parents=True)
  for name in ("results.json", "notes.txt", "prm/metrics.jsonl"):
    (folder / name).write_text("x")
  (folder / "config.json").write_text('{"runs": {}}')
  small = [f"--config.{x}_problems=9" for x in ("base", "annotated", "train")]
  demo_run = (
    "demo",
    f"--config={path}",
    f"--workdir={folder}",
    "--fresh",
    *small,
  )
  none = ("--config.task.min_turns=0", "--config.task.max_turns=0")
  refused((*demo_run, *none), "problems are wanted")
  refused((*demo_run, "--config.runs.orm.mesh=(8, 8, 8)"), "mesh=")


def test_a_fresh_demo_leaves_a_users_own_files(tmp_path, monkeypatch):
  from prm_jax.demo import demo_run

  class _BegunError(Exception):
    pass

  def run(*_):
    raise _BegunError

  monkeypatch.setattr(demo_run, "check", lambda *_: None)
  monkeypatch.setattr(demo_run, "run", run)
  path = pathlib.Path(__file__).parents[2] / "experiments" / "arithmetic.py"
  (tmp_path / "prm").mkdir()
  for name in ("config.json", "results.json", "notes.txt", "prm/model.json"):
    (tmp_path / name).write_text('{"runs": {}}')
  with pytest.raises(_BegunError):
    _run("demo", f"--config={path}", f"--workdir={tmp_path}", "--fresh")
  assert set(_files(tmp_path)) == {"config.json", "notes.txt"}
  saved = json.loads((tmp_path / "config.json").read_text())
  assert saved["seed"] == 0 and set(saved["runs"]) == set(demo_run.RUNS)


def test_a_remote_path_is_refused_not_made_a_local_folder(
  trained, tmp_path, refused, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  away = "gs://bucket/x"
  config = _write_config(tmp_path / "c.py", trained / "solutions.jsonl")
  train = ("train", f"--config={config}")
  for command in (
    ("demo", f"--workdir={away}"),
    (*train, "--workdir=run", f"--config.init_from={away}"),
    ("sample", "--checkpoint=x", "--input=y", f"--output={away}"),
    ("sample", f"--checkpoint={away}", "--input=y", "--output=z"),
    ("score", "--checkpoint=x", "--input=y", f"--output={away}"),
    ("score", f"--checkpoint={away}", "--input=y", "--output=z"),
    ("eval", "steps", f"--checkpoint={away}", "--input=y"),
    ("eval", "steps", "--scores=x", "--input=y", f"--output={away}"),
    ("data", "stats", "y", f"--checkpoint={away}"),
  ):
    refused(command, away, "aren't supported yet")
    assert not list(tmp_path.glob("gs:*"))


def test_a_bucket_that_cant_be_used_is_one_line(
  trained, tmp_path, refused, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  config = _write_config(tmp_path / "c.py", trained / "solutions.jsonl")
  train = ("train", f"--config={config}")
  refused((*train, "--workdir=gs://bucket/"), "give gs://BUCKET/FOLDER")
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  away = "gs://bucket/runs/mine"
  refused(
    (*train, f"--workdir={away}"), away, "pip install -e '.[gcs]' in a ch"
  )
  assert not list(tmp_path.glob("gs:*"))


def test_a_workdir_that_is_a_file_is_refused(trained, tmp_path, refused):
  config = _write_config(tmp_path / "c.py", trained / "solutions.jsonl")
  (tmp_path / "file").write_text("x")
  for workdir in (tmp_path / "file", tmp_path / "file" / "below"):
    refused(("train", f"--config={config}", f"--workdir={workdir}"), "file")


# --- Bad input --------------------------------------------------------------


@pytest.mark.parametrize(
  "row, words",
  [
    ('{"id": "b", "problem": ', ["not JSON", "one JSON object per line"]),
    ("[1, 2]", ["expected a JSON object, found list"]),
    (dict(id="b", steps=["2"]), ['field "problem" is missing; give a str']),
    (dict(GOOD, id="b", steps="2"), ['"steps" must be list, found str']),
    (dict(GOOD, id="b", steps=[2]), ['"steps"[0] must be str, found int']),
    (dict(GOOD, id="b", labels=["good"]), ['"labels"[0]', "[0, 1] or null"]),
    (dict(GOOD, id="b", labels=[1.5]), ['"labels"[0] is 1.5']),
    (dict(GOOD, id="b", labels=[1, 0]), ["2 entries for 1 steps", "null"]),
    (dict(GOOD, id="b", labels=[float("nan")]), ["NaN", "write null"]),
    (dict(GOOD, id="b", outcome="yes"), ['"outcome" must be bool, found str']),
    (GOOD, ["\"id\" 'a' was used at"]),
  ],
)
@pytest.mark.parametrize("command", ["score", "steps", "inspect"])
def test_a_bad_solution_is_named_by_file_and_line(
  command, row, words, tmp_path, refused
):
  path = _lines(tmp_path / "in.jsonl", GOOD, "", row)
  output = tmp_path / "out" / "x.json"
  arguments = {
    "score": ["score", "--checkpoint=x", f"--input={path}"],
    "steps": ["eval", "steps", "--checkpoint=x", f"--input={path}"],
    "inspect": ["data", "inspect", path],
  }[command]
  if command != "inspect":
    arguments.append(f"--output={output}")
  refused(arguments, f"{path}:3: ", *words)


@pytest.mark.parametrize(
  "row, words",
  [
    ("{]", ["not JSON"]),
    (dict(id="b"), ['field "problem" is missing; give a str']),
    (dict(id=1.5, problem="x"), ['"id" must be str or int, found float']),
    (dict(id="b", problem="x", answer=3), ['"answer" must be str, found int']),
    (dict(id="a", problem="x"), ["was used at"]),
    (dict(id="b", problem="x", steps=["1"]), ["steps", "another name"]),
    (dict(id="b", problem="x", labels=None, source="me"), ["labels, source"]),
    (dict(id="b", problem="x", ended=True), ["ended", "another name"]),
  ],
)
def test_a_bad_problem_is_named_by_file_and_line(row, words, tmp_path, refused):
  path = _lines(tmp_path / "in.jsonl", dict(id="a", problem="x"), row)
  refused(
    [
      "sample",
      "--checkpoint=x",
      f"--input={path}",
      f"--output={tmp_path / 'x'}",
    ],
    f"{path}:2: ",
    *words,
  )


def test_a_file_that_cant_be_read_is_named(tmp_path, refused):
  latin = tmp_path / "latin.jsonl"
  latin.write_bytes('{"id": "é"}\n'.encode("latin-1"))
  packed = tmp_path / "broken.jsonl.gz"
  packed.write_bytes(b"no gzip")
  for path, words in (
    (tmp_path / "nowhere.jsonl", ["no such file"]),
    (tmp_path, ["can't be read"]),
    (latin, [f"{latin}:1", "UTF-8"]),
    (packed, ["broken gzip"]),
  ):
    refused(("data", "stats", path), str(path), *words)


def test_an_output_that_cant_be_written_is_refused_at_once(tmp_path, refused):
  """Before the checkpoint, which isn't there, is even looked for."""
  path = _lines(tmp_path / "in.jsonl", GOOD)
  (tmp_path / "folder").mkdir()
  for output in (tmp_path / "in.jsonl" / "out", tmp_path / "folder"):
    for command in (("score",), ("sample",), ("eval", "steps")):
      refused(
        (
          *command,
          "--checkpoint=x",
          f"--input={path}",
          f"--output={output}",
        ),
        str(output),
        "can't be written",
      )


def test_a_missing_or_unfit_checkpoint_is_named(trained, tmp_path, refused):
  problems = _lines(tmp_path / "p.jsonl", dict(id="a", problem="x"))
  solutions = _lines(tmp_path / "s.jsonl", GOOD)
  output = f"--output={tmp_path / 'out.jsonl'}"
  sample = ["sample", f"--input={problems}", output]
  score = ["score", f"--input={solutions}", output]
  for command in (sample, score):
    nowhere = tmp_path / "nowhere"
    refused(
      [*command, f"--checkpoint={nowhere}"],
      f"{nowhere}: not a checkpoint folder",
      "--workdir",
    )
  theirs = tmp_path / "theirs"
  theirs.mkdir()
  (theirs / "model.safetensors").touch()
  refused([*score, f"--checkpoint={theirs}"], "Hugging Face", "prm-jax import")
  refused([*sample, f"--checkpoint={trained / 'prm'}"], "holds a prm", "policy")
  refused(
    [*score, f"--checkpoint={trained / 'policy'}"], "sft", "prm or an orm"
  )
  refused([*score], "--checkpoint")
  for command, name, saved in ((sample, "policy", 12), (score, "prm", 2)):
    refused(
      [*command, f"--checkpoint={trained / name}", "--step=7"],
      f"no checkpoint of step 7; it has {saved}",
    )
  evaluate = ["eval", "steps", f"--input={solutions}"]
  refused(
    [*evaluate, f"--checkpoint={trained / 'prm'}", "--step=7"], "of step 7"
  )
  refused([*evaluate, "--scores=x", "--step=2"], "--step=2: give --checkpoint")
  refused(["eval", "steps", f"--input={solutions}"], "--checkpoint or --scores")
  refused(
    [*sample, f"--checkpoint={trained / 'policy'}", "--n=0"],
    "--n=0: expected 1 or more",
  )
  refused(
    [*sample, f"--checkpoint={trained / 'policy'}", "--temperature=-1"],
    "temperature",
  )


def test_solutions_and_scores_that_dont_belong_together(tmp_path, refused):
  solutions = _lines(tmp_path / "s.jsonl", GOOD)
  scores = tmp_path / "scores.jsonl"
  for row, words in (
    (dict(id="b", step_scores=[0.5]), ["no scores for solution 'a'"]),
    (dict(id="a", step_scores=[0.5, 0.5]), ["2 scores for the 1 steps"]),
    (dict(id="a", step_scores=["x"]), [":1: ", '"step_scores"[0]', "[0, 1]"]),
    (dict(id="a", step_scores=[2]), [":1: ", '"step_scores"[0] is 2']),
    (dict(id="a"), [":1: ", "prm-jax score"]),
  ):
    _lines(scores, row)
    refused(
      ("eval", "steps", f"--input={solutions}", f"--scores={scores}"),
      str(scores),
      *words,
    )
  _lines(scores, dict(id="a", step_scores=[0.5]))
  refused(
    ("eval", "best_of_n", f"--input={solutions}", f"--scores={scores}"),
    f'{solutions}: 1 solutions have no "outcome"',
  )


def test_a_word_that_isnt_known_is_refused(tmp_path, refused):
  path = _lines(tmp_path / "s.jsonl", GOOD)
  refused(["trian"], "trian", "--help")
  refused(["score", "--checkpont=x"], "--help")
  refused(["data", "stats", path, "--colour=red"], "--colour=red")
  refused(["data", "stats", path, "--format=prm80k"], "did you mean prm800k?")
  refused(
    ["data", "inspect", path, "--score_position=end"], "last_token, separator"
  )
  refused(["data", "inspect", path, "--limit=-1"], "--limit")
  refused(["data", "stats", path, "--neutral=nice"], "--neutral='nice'")
  refused(["eval"], "KIND")
  refused(
    ["eval", "processbench", f"--input={path}", "--scores=x"], "SUBSET=FILE"
  )
  refused(["eval", "steps", f"--input={path}", "--seed=-1"], "--seed")
  refused(["doctor", "--config.seed=3"], "doctor takes no config")
  refused(["eval", "best_of_n", "--grader=sympy"], "--grader", "math_verify")


def test_a_grader_that_isnt_installed_is_refused_before_any_work(
  tmp_path, refused, monkeypatch
):
  monkeypatch.setattr(pool, "installed", lambda: False)
  output = f"--output={tmp_path / 'x'}"
  sample = ("sample", "--checkpoint=x", "--input=y", output)
  refused((*sample, "--grader=math_verify"), "pip install -e '.[verify]'")
  path = _lines(tmp_path / "s.jsonl", dict(GOOD, reference_answer="2"))
  refused(
    ("eval", "best_of_n", f"--input={path}", "--scores=x", "--grader=both"),
    "pip install -e '.[verify]'",
  )


def test_a_typo_in_a_config_is_found_wherever_it_is(tmp_path, refused):
  config = _write_config(tmp_path / "c.py", "nowhere.jsonl")
  train = ["train", f"--config={config}", f"--workdir={tmp_path / 'run'}"]
  # On the command line,
  refused(
    [*train, "--config.optimizer.peek_lr=1"], "--config.optimizer.peak_lr?"
  )
  refused([*train, "--config.peak_lr=1"], "--config.optimizer.peak_lr?")
  refused([*train, "--config.zzz=1"], f"--config={config} --help lists")
  refused([*train, "--config.seed=many"], "--config.seed=many: expected int")
  refused([*train, "--config.seed"], "--config.seed=VALUE")
  # or in the file.
  good = config.read_text()
  for old, new, words in (
    ("c.aggregate", "c.agregate", ["agregate; did you mean aggregate?"]),
    ("peak_lr=", "peek_lr=", ["did you mean optimizer.peak_lr?"]),
    ("d_model=16, ", "", ["missing field model.d_model"]),
    ("c.mesh = (-1, 1, 1)", "", ["missing field mesh"]),
    ("dict(peak_lr=1e-2, warmup_steps=1)", "3", ["optimizer must be a dict"]),
    ("holdout=", "holdouts=", ["did you mean data.holdout?"]),
    ("d_model=16", "d_model=16.5", ["model.d_model must be int, found 16.5"]),
    ('c.init_from = ""', "c.init_from = 3", ["init_from must be str"]),
    ("return c", "return d", [f"{config}:", "NameError"]),
    ("return c", "", ["get_config() that returns a ConfigDict"]),
    ("c.seed = 0", "c.seed 0", [f"{config}:7: not Python"]),
    ("def get_config", "def config", ["get_config()"]),
  ):
    assert old in good
    config.write_text(good.replace(old, new))
    refused(train, str(config), *words)
  config.unlink()
  refused(train, f"{config}: no such file")


@pytest.mark.parametrize("code", [None, 0, 42, "a word"])
def test_a_command_that_something_ends_by_sys_exit_failed(
  code, tmp_path, refused, monkeypatch
):
  def run(self, job: inspection.InspectJob):
    raise SystemExit(code)

  monkeypatch.setattr("prm_jax.datasets.inspection.Stats.run", run)
  call = "sys.exit()" if code is None else f"sys.exit({code!r})"
  refused(["data", "stats", "s.jsonl"], "test_cli.py:", call, "--debug")


def test_debug_shows_where_an_error_comes_from(tmp_path):
  with pytest.raises(errors.InputError, match="no such file"):
    _run("data", "stats", tmp_path / "nowhere.jsonl", "--debug")


# --- Help, data, doctor -----------------------------------------------------


def test_help_with_a_config_lists_its_fields_and_values(tmp_path, capsys):
  config = _write_config(tmp_path / "c.py", "x.jsonl")
  for command in (["train"], ["plan"], ["score"], []):
    asks = [
      *command,
      f"--config={config}",
      "--config.packing.batch_size=32",
      "--help",
    ]
    assert _run(*asks) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  --config.optimizer.peak_lr=0.01" in lines
    assert "  --config.packing.batch_size=32" in lines
    assert "  --config.encoding.score_position=last_token" in lines
    # What the file leaves out has the value that the command would take.
    completed = "  --config.fit.eval_every=0" in lines
    assert completed == (command in (["train"], ["plan"]))


def test_help_and_version_answer(capsys, monkeypatch):
  monkeypatch.setattr("sys.argv", ["prm-jax"])
  assert _run() == 0
  listed = capsys.readouterr().out
  for command in (
    "demo",
    "train",
    "sample",
    "score",
    "label",
    "eval",
    "data",
    "doctor",
  ):
    assert command in listed
    with pytest.raises(SystemExit) as ended:
      _run(command, "--help")
    assert ended.value.code == 0
  capsys.readouterr()
  assert _run("--version") == 0
  assert capsys.readouterr().out == f"prm_jax {prm_jax.__version__}\n"


def test_data_commands_show_our_own_form(tmp_path, capsys, trained):
  path = tmp_path / "s.jsonl"
  solutions = _labelled(3)
  jsonl.write_solutions(path, solutions)
  assert _run("data", "inspect", path, "--limit=2") == 0
  shown = capsys.readouterr().out
  assert f"# {solutions[0].id}  outcome {solutions[0].outcome}" in shown
  assert "(1 more solutions; --limit shows more)" in shown
  assert solutions[2].id not in shown
  by = f"--checkpoint={trained / 'prm'}"
  assert _run("data", "inspect", path, by) == 0
  assert capsys.readouterr().out != shown  # words instead of bytes
  assert _run("data", "stats", path) == 0
  steps = sum(len(s.steps) for s in solutions)
  assert f"3 solutions of 3 problems, {steps} steps" in capsys.readouterr().out


@pytest.mark.real_data
@pytest.mark.slow
def test_data_commands_show_published_forms(public_data, capsys):
  for name, file in (
    ("prm800k", "phase1_test.jsonl.gz"),
    ("processbench", "gsm8k.json.gz"),
  ):
    path = public_data(name, file)
    assert _run("data", "stats", f"--format={name}", path) == 0
    stats = capsys.readouterr().out
    assert "solutions of" in stats and "have one" in stats
    assert _run("data", "inspect", f"--format={name}", path, "--limit=1") == 0
    shown = capsys.readouterr().out
    assert "step 0  read at" in shown and "target 1" in shown
  # ProcessBench's gsm8k: 400 rows, 207 of them with an error.
  assert stats.startswith("400 solutions of")
  assert "first error: 207 have one" in stats


def test_a_set_is_converted_and_back(tmp_path, capfd, refused):
  solutions = _labelled(3)
  path, chat = tmp_path / "s.jsonl", tmp_path / "chat.jsonl"
  jsonl.write_solutions(path, solutions)
  to = (f"--output={chat}", "--to=rlhflow")
  assert _run("data", "convert", path, *to) == 0
  said = capfd.readouterr().out
  assert f"{chat}: 3 solutions of {path}, 3 rows of rlhflow" in said
  assert "they read back the same but for: id of 3" in said
  back = tmp_path / "back.jsonl"
  to = (f"--output={back}", "--to=jsonl")
  assert _run("data", "convert", chat, "--format=rlhflow", *to) == 0
  for a, b in zip(solutions, jsonl.read_solutions(back), strict=True):
    assert (a.problem, a.steps, a.labels) == (b.problem, b.steps, b.labels)
  capfd.readouterr()
  # A form that can't hold one of them: refused, or left out and counted.
  soft = dataclasses.replace(
    solutions[0], id="soft", labels=(0.5,) * len(solutions[0].steps)
  )
  jsonl.write_solutions(path, [*solutions, soft])
  to = (f"--output={chat}", "--to=rlhflow")
  refused(["data", "convert", path, *to], "'soft'", "0 or 1", "label policy")
  policy = "--after_first_error=bad"
  refused(["data", "convert", path, *to, policy], policy, "--neutral")
  assert _run("data", "convert", path, *to, "--skip") == 0
  said = capfd.readouterr().out
  assert "3 rows of rlhflow" in said
  assert "left out: 1 solutions refused: RLHFlow's form needs labels" in said


def test_the_data_doctor_ends_with_1_where_training_would_go_wrong(
  tmp_path, capfd, refused
):
  solutions = _labelled(9)
  path, tests = tmp_path / "s.jsonl", tmp_path / "tests.jsonl"
  output = tmp_path / "out" / "results.json"
  jsonl.write_solutions(path, solutions)
  look = ["data", "doctor", path, "--max_tokens=40", f"--output={output}"]
  assert _run(*look) == 0
  said = capfd.readouterr().out
  assert "9 solutions of 9 problems" in said
  assert "skipped  contamination" in said
  assert "lost to truncation at 40 tokens" in said
  results = json.loads(output.read_text())
  assert results["file"] == str(path) and results["run"]["command"]
  assert results["lost_targets"]["right"] > 0
  jsonl.write_solutions(tests, solutions[:2])
  against = f"--against=jsonl:{tests}"
  refused([*look[:-1], against], str(path), "contamination", "--allow=")
  # The results are written all the same: they say what to mend.
  assert _run(*look, against) == 1
  assert json.loads(output.read_text())["contaminated_solutions"] == 2
  capfd.readouterr()
  assert _run(*look, against, "--allow=contamination") == 0
  assert "warning  contamination" in capfd.readouterr().out
  refused([*look, "--allow=nonsense"], "--allow=nonsense", "conflicts")
  refused([*look, "--truncation=cut"], "truncation='cut'", "drop")
  refused(["data", "doctor", path, "--truncation=drop"], "--max_tokens")
  refused([*look, "--against=tests.jsonl"], "FORMAT:PATH")


def test_the_data_doctor_takes_a_checkpoints_words(tmp_path, capsys, trained):
  path = tmp_path / "s.jsonl"
  jsonl.write_solutions(path, _labelled(3))
  look = ("data", "doctor", path)
  assert _run(*look, f"--checkpoint={trained / 'prm'}") == 0
  assert "ok       truncated_targets" in capsys.readouterr().out
  # Of a longer solution its end is lost, or all of it.
  lost = {}
  for how in ("drop", "truncate"):
    output = tmp_path / f"{how}.json"
    words = ("--max_tokens=30", f"--truncation={how}", f"--output={output}")
    assert _run(*look, f"--checkpoint={trained / 'prm'}", *words) == 0
    lost[how] = sum(json.loads(output.read_text())["lost_targets"].values())
  assert 0 < lost["truncate"] < lost["drop"]
  # The same number of bytes is too few.
  assert _run(*look, "--max_tokens=64") == 0
  assert "warning  truncated_targets" in capsys.readouterr().out


def test_a_set_is_split_by_problem(tmp_path, capfd, refused):
  solutions = _labelled(40)
  path = tmp_path / "s.jsonl"
  jsonl.write_solutions(path, solutions)
  train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
  command = ["data", "split", path, f"--train={train}", f"--test={test}"]
  assert _run(*command, "--share=0.3") == 0
  said = capfd.readouterr().out
  sides = [jsonl.read_solutions(p) for p in (train, test)]
  assert sum(map(len, sides)) == 40 and all(sides)
  for side, file in zip(sides, (train, test)):
    assert f"{file}: {len(side)} solutions of {len(side)} problems" in said
  assert not {s.problem for s in sides[0]} & {s.problem for s in sides[1]}
  ban = f"--against=jsonl:{train}"
  other = [f"--train={tmp_path / 'a'}", f"--test={tmp_path / 'b'}"]
  again = ["data", "split", path, *other, "--share=0.2", ban]
  refused(again, str(path), "add --skip")
  refused([*command, "--share=2"], "--share=2.0")
  refused([*command, "--to=csv"], "--to=csv")


def test_the_page_on_data_prints_what_its_commands_print(
  tmp_path, monkeypatch, capsys
):
  page = pathlib.Path(__file__).parents[2] / "docs" / "data.md"
  blocks = page.read_text(encoding="utf-8").split("```")[1::2]
  ben, agent, mine, tests, people = (
    b.removeprefix("json\n") for b in blocks if b[:4] == "json"
  )
  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv("PRM_JAX_DATA", raising=False)
  pathlib.Path("ben.json").write_text(ben, encoding="utf-8")
  pathlib.Path("agent.jsonl").write_text(agent, encoding="utf-8")
  pathlib.Path("mine.jsonl").write_text(mine, encoding="utf-8")
  pathlib.Path("test.jsonl").write_text(tests, encoding="utf-8")
  pathlib.Path("people.jsonl").write_text(people, encoding="utf-8")
  runs = [run for b in blocks for run in b.split("\n$ ")[1:]]
  assert [run.split()[:3] for run in runs] == [
    ["prm-jax", "data", what]
    for what in (
      *("convert", "inspect", *("convert",) * 6),
      *("doctor", "split", "convert"),
    )
  ]
  for run in runs:
    command, _, printed = run.partition("\n")
    _run(*shlex.split(command)[1:])
    said = capsys.readouterr()
    assert (said.out + said.err).strip() == printed.strip(), command


def test_doctor_names_versions_devices_and_extras(capsys):
  assert _run("doctor") == 0
  shown = capsys.readouterr().out
  assert f"{prm_jax.__version__}" in shown
  assert "8 x cpu" in shown
  assert "pip install -e '.[tpu]'" in shown


def test_an_interrupt_ends_with_130_and_no_traceback(monkeypatch, capsys):
  def interrupted(verb):
    raise KeyboardInterrupt

  monkeypatch.setattr("prm_jax.runtime.doctor.Doctor.__call__", interrupted)
  assert _run("doctor") == 130
  assert capsys.readouterr().err == "prm-jax: interrupted\n"


@pytest.mark.parametrize("name", ["prm800k_small", "gsm8k_orm_small"])
def test_our_experiments_lack_nothing_but_the_data(
  name, tmp_path, refused, monkeypatch
):
  monkeypatch.delenv("PRM_JAX_DATA", raising=False)
  config = pathlib.Path(__file__).parents[2] / "experiments" / f"{name}.py"
  refused(
    ["train", f"--config={config}", f"--workdir={tmp_path / 'run'}"],
    "jsonl.gz: no such file",
  )
