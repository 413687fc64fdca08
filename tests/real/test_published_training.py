"""A published model becomes a PRM that transformers reads, serves, and rewards.

`make real` runs these. A few updates on sums that are made here: what is trained
is no good PRM, but every stage holds real weights.
"""

import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import published
import pytest

import prm_jax
from prm_jax import schema
from prm_jax.checkpoints import integrity
from prm_jax.huggingface import rounding
from prm_jax.records import jsonl
from prm_jax.runtime import checked_lines

pytestmark = [pytest.mark.real_weights, pytest.mark.timeout(900)]
pytest.importorskip("transformers")

_PRM = """
from prm_jax.runtime import config_files

def get_config():
  c = config_files.read({base!r})
  c.init_from = {init_from!r}
  c.data.update(
    train=("jsonl:{data}",), evaluation=(), exclude=(), holdout=0.1
  )
  c.encoding.max_tokens = 128
  c.packing.update(batch_size=1, sequence_length=512)
  c.eval_rows = 1
  c.optimizer.update(peak_lr=2e-4, warmup_steps=2)
  c.fit.update(
    steps=20, log_every=1, eval_every=10, checkpoint_every=10, keep_last=2,
    tensorboard=False,
  )
  return c
"""
_RL = """
from prm_jax.runtime import config_files

def get_config():
  c = config_files.read({base!r})
  c.init_from, c.prm = {init_from!r}, {prm!r}
  c.model = dict(compute_dtype={dtype!r})
  c.problems.update(
    train="problems:{data}", evaluation="problems:{held_out}", num_evaluation=2
  )
  c.rollout.update(problems=2, samples=4, max_tokens=64, slots=8)
  c.rewards = dict(verifier=1.0, prm=1.0)
  c.packing.update(batch_size=1, sequence_length=1024)
  c.optimizer.update(peak_lr=1e-6, warmup_steps=0)
  c.fit.update(
    steps=1, log_every=1, eval_every=1, checkpoint_every=1, keep_last=1,
    tensorboard=False,
  )
  return c
"""


def _sums(num):
  """Returns solutions of two steps, of which a fifth have a wrong second one.

  All have the same length, or rows of one length would have one kind of label.
  """
  rng = np.random.default_rng(0)
  for i in range(num):
    a, b, c = (int(x) for x in rng.integers(10, 30, 3))
    is_wrong = bool(rng.random() < 0.2)
    total = a + b + c + is_wrong
    yield schema.Solution(
      id=str(i),
      problem=f"What is {a} + {b} + {c}?",
      steps=(f"{a} + {b} = {a + b}.", f"{a + b} + {c} = {total}."),
      labels=(1.0, float(not is_wrong)),
    )


@pytest.fixture(scope="module")
def trained(imported, tmp_path_factory):
  """Returns the run of 20 updates that the other tests start from."""
  folder = tmp_path_factory.mktemp("trained")
  ours, _ = imported(published.SMOL)
  jsonl.write_solutions(folder / "sums.jsonl", _sums(400))
  (folder / "prm.py").write_text(
    _PRM.format(
      base=str(published.ROOT / "experiments/bring_your_own.py"),
      init_from=str(ours),
      data=folder / "sums.jsonl",
    )
  )
  return folder, _train(folder, "prm")


def _train(folder, workdir, config="prm"):
  words = ("train", f"--config={folder / config}.py")
  return published.command(*words, f"--workdir={folder / workdir}")


def _metrics(workdir):
  lines = checked_lines.read_metrics(workdir / "metrics.jsonl")
  return [record for _, record in lines if record["kind"] == "train"]


def test_the_loss_of_twenty_updates_is_finite_and_falls(trained):
  folder, _ = trained
  losses = [x["loss_nats"] for x in _metrics(folder / "prm")]
  print("loss, nats:", " ".join(f"{x:.3f}" for x in losses))
  assert len(losses) == 20 and all(map(math.isfinite, losses))
  assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_a_run_that_resumes_ends_with_the_same_bits(trained):
  folder, _ = trained
  shutil.copytree(folder / "prm", folder / "resumed", copy_function=_linked)
  shutil.rmtree(folder / "resumed/checkpoints/20")
  _train(folder, "resumed")
  whole, resumed = (
    integrity.read_meta(folder / x / "checkpoints/20")["fingerprints"]
    for x in ("prm", "resumed")
  )
  assert whole == resumed and any(x.startswith("params/") for x in whole)
  shutil.rmtree(folder / "resumed")


def _linked(source, target):
  """Copies a file; the large ones, which nobody changes, as links."""
  if "checkpoints" in str(source):
    return os.link(source, target)
  return shutil.copy2(source, target)


def test_an_export_has_the_scores_that_were_evaluated_in_transformers(trained):
  folder, _ = trained
  words = ["export", f"--checkpoint={folder / 'prm'}"]
  done = published.command(*words, f"--to={folder / 'exported'}")
  assert "LlamaForTokenClassification, float32" in done.out
  done = published.command(
    *("import", f"--from={folder / 'exported'}", f"--to={folder / 'back'}"),
    "--verify",
  )
  print(done.out)
  largest = re.search(r"scores differ from transformers' by (\S+)", done.out)
  assert float(largest[1]) <= 1e-4
  before, after = (_scores(folder, x) for x in ("prm", "back"))
  np.testing.assert_allclose(after, before, atol=1e-5)


def test_an_export_in_fewer_bits_says_how_far_scores_move(trained):
  folder, _ = trained
  done = published.command(
    *("export", f"--checkpoint={folder / 'prm'}", "--dtype=bfloat16"),
    f"--to={folder / 'rounded'}",
  )
  print(done.out)
  assert "rounded to bfloat16: the scores of 46 steps" in done.out
  assert "computed in float32" in done.out
  shutil.rmtree(folder / "rounded")


def _scores(folder, checkpoint):
  output = folder / f"{checkpoint}.scores.jsonl"
  published.command(
    *("score", f"--checkpoint={folder / checkpoint}", "--dtype=float32"),
    *(f"--input={rounding.SAMPLE}", f"--output={output}"),
  )
  rows = map(json.loads, output.read_text().splitlines())
  return np.concatenate([x["step_scores"] for x in rows])


@contextlib.contextmanager
def _served(checkpoint):
  """Yields the address of a server, when it is ready."""
  process = subprocess.Popen(
    [
      *(sys.executable, "-m", "prm_jax", "serve", "--port=0"),
      f"--checkpoint={checkpoint}",
      *("--max_tokens=512", "--max_batch_tokens=1024"),
    ],
    stdout=subprocess.PIPE,
    text=True,
    env=published.ENVIRONMENT,
    cwd=published.ROOT,
  )
  try:
    for line in process.stdout:
      if line.rstrip().endswith(": ready"):
        yield line.partition(": ")[0]
        break
    else:
      pytest.fail(f"the server ended with {process.wait()}")
  finally:
    process.terminate()
    process.wait()


def test_a_server_gives_the_scores_of_the_command(trained):
  folder, _ = trained
  solution = next(jsonl.read(rounding.SAMPLE))
  jsonl.write_solutions(folder / "one.jsonl", [solution])
  published.command(
    *("score", f"--checkpoint={folder / 'prm'}"),
    *(f"--input={folder / 'one.jsonl'}", f"--output={folder / 'one.out'}"),
  )
  expected = json.loads((folder / "one.out").read_text())["step_scores"]
  with _served(folder / "prm") as address, prm_jax.Client(address) as served:
    scores = served.score(solution.problem, solution.steps).scores
  # bfloat16 rounds otherwise in rows of another length.
  np.testing.assert_allclose(scores, expected, atol=0.01)


def test_an_rl_update_is_rewarded_by_a_prm_of_published_weights(
  trained, imported
):
  folder, _ = trained
  ours, _ = imported(published.SMOL)
  rows = [
    json.dumps(dict(id=x.id, problem=x.problem, answer="60")) + "\n"
    for x in _sums(6)
  ]
  (folder / "problems.jsonl").write_text("".join(rows[:4]))
  (folder / "held_out.jsonl").write_text("".join(rows[4:]))
  (folder / "rl.py").write_text(
    _RL.format(
      base=str(published.ROOT / "experiments/rl_gsm8k_small.py"),
      init_from=str(ours),
      prm=str(folder / "prm"),
      data=folder / "problems.jsonl",
      held_out=folder / "held_out.jsonl",
      dtype="float32",
    )
  )
  _train(folder, "rl", "rl")
  (update,) = _metrics(folder / "rl")
  print({k: v for k, v in update.items() if isinstance(v, float)})
  assert update["solutions"] == 8 and 0 < update["prm_score"] < 1
  assert update["grad_norm"] > 0 and update["empty_updates"] == 0
  # The engine's log-probabilities are those that the update computes: within
  # 2.8e-5 nats in float32. In bfloat16, the default of this policy, the two
  # round differently and are 0.17 nats apart.
  assert update["max_log_ratio"] <= 1e-3
  assert (folder / "rl/checkpoints/1").is_dir()
