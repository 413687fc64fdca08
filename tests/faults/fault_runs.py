"""Runs of the real commands, in processes of their own, for faults to hit.

A tiny PRM on solutions of the arithmetic testbed; every process finds the
programs that an earlier one has compiled.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
from typing import Any

import flat_config
from flax.core import meta
import jax
import ml_collections
import numpy as np
import small_config
import xla_flags

from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.models import model_config as model_config
from prm_jax.models import transformer
from prm_jax.records import jsonl
from prm_jax.records import sources
from prm_jax.rows import loader
from prm_jax.runtime import files as files_lib
from prm_jax.testbed import arithmetic
from prm_jax.text import encoding
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.training import programs
from prm_jax.training import train_run_config

ROOT = pathlib.Path(__file__).parents[2]
# A token of an account, which nothing that is written may repeat.
SECRET = "canary-of-the-environment"
# As a user's: what is printed is held back until there is much of it.
_ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}

CONFIG = small_config.text(
  data=dict(
    train=("jsonl:train.jsonl",),
    evaluation=("jsonl:evaluation.jsonl",),
    holdout=0.0,
  ),
  model=dict(d_model=32, head_dim=16, d_ff=64, compute_dtype="float32"),
  eval_rows=512,
  fit=dict(steps=60, log_every=1, eval_every=20, checkpoint_every=10),
)


@dataclasses.dataclass(frozen=True)
class Stage:
  """A folder with data and configs, where commands are run."""

  folder: pathlib.Path

  def train(self, name: str, *overrides: str, config="config.py") -> list[str]:
    """Returns the words of a training run into the workdir of that name."""
    return [
      *("train", f"--config={config}", f"--workdir={name}"),
      *(f"--config.{x}" for x in overrides),
    ]

  def start(
    self,
    arguments: list[str],
    *,
    devices: int = 1,
    before: tuple[str, ...] = (),
    **environment: str,
  ) -> subprocess.Popen:
    """Starts a command, on so many simulated devices; before: what runs it."""
    given = dict(
      PYTHONPATH=str(ROOT),
      XLA_FLAGS=xla_flags.devices(devices),
      JAX_PLATFORMS="cpu",
      HF_TOKEN=SECRET,
      PYTHONWARNINGS="ignore",
    )
    return subprocess.Popen(
      [*before, *COMMAND, *arguments],
      cwd=self.folder,
      env=_ENVIRONMENT | given | environment,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  def run(self, arguments: list[str], **options: Any) -> "Ended":
    return ended(self.start(arguments, **options))


COMMAND = (
  sys.executable,
  "-c",
  "import sys; from prm_jax.cli import main; sys.exit(main.command())",
)


@dataclasses.dataclass(frozen=True)
class Ended:
  """How a command ended and what it said."""

  code: int
  out: str
  err: str

  @property
  def refusal(self) -> str:
    """The one line of ours on stderr that says why.

    Libraries may speak before it, and after it of writes that nobody waits for.
    """
    (line,) = [x for x in self.err.splitlines() if x.startswith("prm-jax: ")]
    return line


def ended(process: subprocess.Popen, seconds: float = 120) -> Ended:
  """Returns how a process ends, which it must within so many seconds."""
  try:
    out, err = process.communicate(timeout=seconds)
  except subprocess.TimeoutExpired:
    process.kill()
    out, err = process.communicate()
    raise AssertionError(
      f"still runs after {seconds} s:\n{out}\n{err}"
    ) from None
  return Ended(process.returncode, out, err)


HEARTBEAT_S = 10
# So long a process may wait for others; a busy machine takes its time.
LIMIT_S = 150


def start_all(
  stage: Stage,
  arguments: list[str],
  *,
  devices: int = 1,
  before: tuple[str, ...] = (),
  delays: Sequence[float] = (0, 0),
) -> list[subprocess.Popen]:
  """Starts the processes of a run, each after so many seconds, in order."""
  with socket.socket() as s:
    s.bind(("localhost", 0))
    port = s.getsockname()[1]
  begin, started = time.monotonic(), {}
  for own in sorted(range(len(delays)), key=delays.__getitem__):
    time.sleep(max(0, begin + delays[own] - time.monotonic()))
    started[own] = stage.start(
      arguments,
      devices=devices,
      before=before,
      JAX_COORDINATOR_ADDRESS=f"localhost:{port}",
      JAX_NUM_PROCESSES=str(len(delays)),
      JAX_PROCESS_ID=str(own),
      PRM_JAX_HEARTBEAT_S=str(HEARTBEAT_S),
    )
  return [started[own] for own in range(len(delays))]


def until(
  condition: Callable[[], Any], process: subprocess.Popen, seconds: float = 120
) -> None:
  """Returns when it is so; the process must not end before that."""
  deadline = time.monotonic() + seconds
  while not condition():
    if process.poll() is not None:
      raise AssertionError(f"ended before: {process.communicate()}")
    assert time.monotonic() < deadline
    time.sleep(0.005)


def solutions(count: int = 40, seed: int = 0) -> list[schema.Solution]:
  random = np.random.default_rng(seed)
  task = arithmetic.Task(max_turns=4)
  problems = arithmetic.problems(count, "train", task, random)
  return [arithmetic.judge(arithmetic.solve(p, random, task)) for p in problems]


def furnish(folder: pathlib.Path) -> Stage:
  """Writes data and config; returns where commands find them."""
  folder.mkdir(parents=True, exist_ok=True)
  some = solutions(400)
  jsonl.write_solutions(folder / "train.jsonl", some[:40])
  jsonl.write_solutions(folder / "evaluation.jsonl", some[40:])
  (folder / "config.py").write_text(CONFIG)
  return Stage(folder)


RL = """
import ml_collections

def get_config():
  c = ml_collections.ConfigDict()
  c.program, c.seed, c.init_from = "rl", 0, "policy"
  c.problems = dict(
    train="arithmetic:train:12", evaluation="arithmetic:test:4", num_evaluation=4,
    grader="arithmetic",
  )
  c.rollout = dict(problems=4, samples=2, max_tokens=24, slots=8)
  c.rewards = dict(verifier=1.0, format=0.5)
  c.credit = dict(baseline="leave_one_out", returns="sum")
  c.loss = dict(kind="ppo")
  c.packing = dict(batch_size=4, sequence_length=256, share_prefixes=True)
  c.optimizer = dict(peak_lr=1e-3, warmup_steps=0)
  c.fit = dict(steps=6, log_every=1, checkpoint_every=2, tensorboard=False)
  c.monitor = dict(action="warn")
  c.mesh = (1, 1, 1)
  return c
"""


def furnish_policy(stage: Stage) -> None:
  """Writes a policy, never trained, solutions to label, and an RL config."""
  tokenizer = tokenizer_lib.Bytes()
  made = model_config.ModelConfig(
    vocab_size=tokenizer.vocab_size,
    d_model=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    d_ff=24,
  )
  init = functools.partial(transformer.init, config=made, heads=("lm",))
  params = meta.unbox(jax.jit(init)(jax.random.key(0)))
  folder = stage.folder / "policy"
  folder.mkdir()
  model_json.write_description(
    folder,
    model_json.Description(
      "sft",
      made,
      dataclasses.asdict(encoding.EncodingConfig(max_tokens=256)),
      tokenizer.save(folder),
    ),
  )
  saves.save_params(folder, params)
  (stage.folder / "rl.py").write_text(RL)
  jsonl.write_solutions(
    stage.folder / "unlabelled.jsonl",
    (
      dataclasses.replace(
        s,
        labels=None,
        extra={schema.REFERENCE: arithmetic.answer(s.problem)},
      )
      for s in solutions(24, seed=1)
    ),
  )


def records(workdir: pathlib.Path, kind: str = "train") -> list[dict[str, Any]]:
  """Returns the records of a run without its times; each line must be whole."""
  lines = (workdir / "metrics.jsonl").read_bytes().splitlines()
  return [
    # The digest is of the times, too.
    {k: v for k, v in x.items() if not k.endswith(("_s", "crc32"))}
    for x in map(json.loads, lines)
    if x["kind"] == kind
  ]


def rows_of(
  workdir: pathlib.Path, solutions: Sequence[schema.Solution]
) -> loader.PackedDataset:
  """Returns the rows that a run in this workdir makes of these solutions."""
  config = ml_collections.ConfigDict(
    files_lib.read_json(workdir / "config.json")
  )
  run = train_run_config.from_config(config)
  tokenizer = sources.make_tokenizer(
    sources.TokenizerConfig(**config.tokenizer), solutions
  )
  rows, _ = flat_config.encode_rows(run, solutions, tokenizer, run.seed)
  return rows


def num_records(workdir: pathlib.Path) -> int:
  """Returns how many lines there are yet; none before there is a file."""
  path = workdir / "metrics.jsonl"
  return path.read_bytes().count(b"\n") if path.exists() else 0


def saved(workdir: pathlib.Path) -> list[int]:
  return saves.saved_steps(workdir)


def model(workdir: pathlib.Path, step: int | None = None) -> str:
  """Returns the digest of a saved model, to the bit."""
  params = programs.load_params(workdir, step=step)
  return model_json.fingerprint(workdir, params)


def assert_close(actual: pathlib.Path, expected: pathlib.Path) -> None:
  """The same steps, and the same losses but for rounding."""
  for kind in ("train", "eval"):
    a, b = (records(x, kind) for x in (actual, expected))
    assert [x["step"] for x in a] == [x["step"] for x in b]
    losses = ([x["loss_nats"] for x in y] for y in (a, b))
    np.testing.assert_allclose(*losses, rtol=1e-5)


def assert_same_run(actual: pathlib.Path, expected: pathlib.Path) -> None:
  """The same steps once each, the same losses and the same last parameters."""
  for kind in ("train", "eval"):
    assert records(actual, kind) == records(expected, kind)
  steps = [x["step"] for x in records(actual)]
  assert steps == list(range(1, len(steps) + 1))
  assert model(actual) == model(expected)


def files(folder: pathlib.Path) -> dict[str, bytes]:
  """Returns the content of every file below a folder, by name."""
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in sorted(folder.rglob("*"))
    if path.is_file()
  }
