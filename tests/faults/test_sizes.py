"""Data sets that no number of rows or processes divides: nothing is lost."""

import collections
import itertools

import fault_runs
import flat_config
from flax.core import meta
import jax
import ml_collections
import numpy as np
import pytest

from prm_jax import schema
from prm_jax.models import model_config as model_config
from prm_jax.models import sharding
from prm_jax.records import jsonl
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.training import batches as batches_lib
from prm_jax.training import loop
from prm_jax.training import train_config
from prm_jax.training import train_run_config

ROWS, ROW = 4, 64
WORDS = tokenizer_lib.Bytes()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A config of 4 rows, on a model of bytes."""
  path = tmp_path_factory.mktemp("sizes") / "config.py"
  path.write_text(fault_runs.CONFIG)
  space: dict = {}
  exec(path.read_text(), space)
  config = space["get_config"]()
  config.packing = dict(batch_size=ROWS, sequence_length=4 * ROW)
  config.encoding.max_tokens = 4 * ROW
  return train_run_config.from_config(ml_collections.ConfigDict(config))


def _rows(run, count):
  solutions = fault_runs.solutions(17, seed=3)[:count]
  return solutions, *flat_config.encode_rows(run, solutions, WORDS, run.seed)


@pytest.mark.parametrize("count", range(1, 18))
def test_an_evaluation_counts_every_solution_once(run, count):
  """F20: rows of the last batch that run over have no weight."""
  solutions, rows, counts = _rows(run, count)
  batches = batches_lib.each_once(rows, 10_000)
  assert {x.tokens.shape for x in batches} == {(ROWS, 4 * ROW)}
  assert sum(x.weights.sum() for x in batches) == counts["targets"]
  # Behind the first error no step is told.
  first = [schema.first_error(s.labels) for s in solutions]
  labels = [
    x
    for s, error in zip(solutions, first)
    for x in s.labels[: error + 1 if error >= 0 else None]
  ]
  assert counts["targets"] == len(labels)
  total = sum((x.weights * x.labels).sum() for x in batches)
  assert total == pytest.approx(sum(labels))


@pytest.mark.parametrize("count", range(1, 18))
def test_an_epoch_of_any_size_has_every_solution_once(run, count):
  """F20: epochs may begin inside a batch."""
  _, rows, _ = _rows(run, count)
  per = rows.rows_per_epoch
  epochs = 2 * ROWS
  steps = [rows.batch_at(k) for k in range(epochs * per // ROWS)]
  tokens = np.concatenate([x.tokens for x in steps])
  segments = collections.Counter(p.tokens.tobytes() for p in rows.segments)
  of_rows = tokens.reshape(epochs, per, 4 * ROW)
  for epoch in of_rows:
    found = collections.Counter(
      content for row in epoch for content in _solutions_in(row)
    )
    assert found == segments


def _solutions_in(row):
  """Yields the ids of a row's solutions: each begins with bos."""
  starts = [*np.flatnonzero(row == WORDS.bos), len(row)]
  for start, end in itertools.pairwise(starts):
    yield np.trim_zeros(row[start:end], "b").tobytes()


@pytest.mark.faults
def test_metrics_of_any_size_are_the_same_on_four_devices(run):
  """F20: 1 to 17 solutions in batches of 4 rows."""
  model = model_config.ModelConfig(vocab_size=WORDS.vocab_size, **run.model)
  program = train_config.make_program(run, model)
  state = jax.jit(lambda key: meta.unbox(program.init(key)))(jax.random.key(0))
  random = np.random.default_rng(0)
  params = jax.tree.map(
    # A head at birth would find all steps alike.
    lambda x: np.float32(x + 0.3 * random.normal(size=x.shape)),
    state.params,
  )
  found = {}
  for devices in (1, 4):
    mesh = sharding.make_mesh((devices, 1, 1), jax.devices()[:devices])
    everywhere = sharding.replicated(mesh)
    evaluate = sharding.jit(
      program.evaluate,
      mesh,
      in_shardings=(everywhere, sharding.of_batch(mesh)),
      out_shardings=everywhere,
    )
    placed = state.replace(params=jax.device_put(params, everywhere))
    found[devices] = [
      loop.evaluate(
        program,
        evaluate,
        placed,
        batches_lib.each_once(_rows(run, count)[1], 10_000),
        mesh,
      )
      for count in range(1, 18)
    ]
  for one, four in zip(found[1], found[4], strict=True):
    assert one == pytest.approx(four, rel=1e-5, nan_ok=True)
  assert len({x["loss_nats"] for x in found[1]}) == 17


@pytest.mark.faults
@pytest.mark.parametrize("count", [1, 7])
def test_two_processes_take_data_of_any_size_as_one_does(
  stage, count, tmp_path
):
  """F20, with the real command: it doesn't hang, and counts alike."""
  folder = tmp_path / "stage"
  folder.mkdir()
  for name in ("train", "evaluation"):
    some = jsonl.read_solutions(stage.folder / f"{name}.jsonl")[:count]
    jsonl.write_solutions(folder / f"{name}.jsonl", some)
  (folder / "config.py").write_text(fault_runs.CONFIG)
  small = fault_runs.Stage(folder)
  few = (
    "fit.steps=4",
    "packing.batch_size=4",
    "tokenizer.kind=bytes",
    "packing.sequence_length=256",
  )
  more = (*few, "encoding.max_tokens=256")
  assert small.run(small.train("one", *more)).code == 0
  started = fault_runs.start_all(small, small.train("two", *more))
  ends = [fault_runs.ended(p, fault_runs.LIMIT_S) for p in started]
  assert [x.code for x in ends] == [0, 0], ends
  fault_runs.assert_close(folder / "two", folder / "one")
  weights = [x["weight"] for x in fault_runs.records(folder / "one")]
  assert weights == [x["weight"] for x in fault_runs.records(folder / "two")]
