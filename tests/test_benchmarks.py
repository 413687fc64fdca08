"""What the benchmarks measure is what they say they measure."""

import dataclasses
import importlib
import pathlib
import sys

import numpy as np

from prm_jax import configs
from prm_jax import demo
from prm_jax import schema
from prm_jax.data import encode
from prm_jax.data import packing

FOLDER = pathlib.Path(__file__).parents[1] / "benchmarks"


def test_the_sampling_benchmark_samples_as_the_demo_unless_told_otherwise(
  monkeypatch,
):
  monkeypatch.syspath_prepend(str(FOLDER))
  sample = importlib.import_module("sample")
  monkeypatch.delitem(sys.modules, "sample")
  config = demo.from_config(configs.load(sample.CONFIG))

  def found(*words):
    sampling = sample.sampling(sample.arguments().parse_args(words), config)
    return sampling.max_tokens, sampling.temperature, sampling.top_p

  assert found() == (config.max_new_tokens, config.temperature, config.top_p)
  assert config.top_p < 1
  told = found("--temperature=0", "--top_p=1")
  assert told == (config.max_new_tokens, 0.0, 1.0)


def test_the_import_benchmark_counts_all_of_its_checkpoint(
  monkeypatch, tmp_path
):
  monkeypatch.syspath_prepend(str(FOLDER))
  load = importlib.import_module("load_checkpoint")
  monkeypatch.delitem(sys.modules, "load_checkpoint")
  small = dict(vocab_size=512, d_model=64, num_layers=3, d_ff=96)
  monkeypatch.setattr(load, "MODEL", dataclasses.replace(load.MODEL, **small))
  load.make_checkpoint(tmp_path, 0)
  counts = load.measure(tmp_path, 1)["counts"]["checkpoint"]
  table, query, key = 512 * 64, 64 * 32 * 64, 64 * 8 * 64
  layer = 2 * query + 2 * key + 3 * 64 * 96 + 2 * 64
  weights = table + 3 * layer + 64
  assert counts == {
    "bytes": 2 * weights,
    "bytes of the largest tensor": 2 * query,
    "tensors": 2 + 3 * 9,
    "bytes as float32 parameters": 4 * weights,
  }


def test_blocks_of_attention_are_counted_as_by_hand(monkeypatch):
  monkeypatch.syspath_prepend(str(FOLDER))
  count = importlib.import_module("attention_blocks")
  for name in ("attention_blocks", "train_step"):
    monkeypatch.delitem(sys.modules, name)
  # Solutions of 4 and 2 tokens, and 2 of padding.
  row = [packing.chain(_example(n)) for n in (4, 2)]
  found = count.shares([row], 8, (1, 2, 4, 8))
  assert found == {
    "pairs": (10 + 3 + 2) / 64,
    "blocks_1": (10 + 3 + 2) / 64,
    "blocks_2": (3 + 1 + 1) * 4 / 64,
    "blocks_4": 2 * 16 / 64,
    "blocks_8": 1.0,
  }


def _example(tokens):
  zeros = np.zeros(tokens, np.float32)
  return encode.Example(
    np.arange(tokens, dtype=np.int32), zeros, zeros, zeros.astype(bool)
  )


def test_the_streaming_benchmark_trains_on_distinct_labelled_solutions(
  monkeypatch,
):
  monkeypatch.syspath_prepend(str(FOLDER))
  stream = importlib.import_module("stream")
  monkeypatch.delitem(sys.modules, "stream")
  found = list(stream.solutions(3_000))
  # Deduplication would leave out what comes twice.
  assert len({(s.problem, s.steps) for s in found}) == 3_000
  for s in found:
    first, second = (step.rpartition("= ")[2] for step in s.steps[1:])
    a, b = (int(x) for x in s.problem[13:-1].split(" + "))
    right = (1.0, float(int(first) == 17 * a))
    assert s.labels[:2] == right
    assert s.outcome == (int(second) == 17 * a + b) == (s.labels[2] == 1)


def test_the_label_benchmark_counts_labels_once_and_up_to_the_first_wrong_one(
  monkeypatch,
):
  monkeypatch.syspath_prepend(str(FOLDER))
  rollouts = importlib.import_module("label_rollouts")
  monkeypatch.delitem(sys.modules, "label_rollouts")
  problem = "Ann dials 2 up 1 times 2 ."
  right = ("so 2 + 1 = 3", "so 3 * 2 = 6", "answer 6")
  wrong = (right[0], "so 3 * 2 = 5", "answer 5")
  labelled = [
    schema.Solution("a", problem, right, (1.0, 1.0, None)),
    schema.Solution("b", problem, wrong, (1.0, 1.0, 0.0)),
    schema.Solution("c", problem, wrong[:2], (0.0, 1.0)),
  ]
  assert rollouts.count(labelled, 7) == dict(rollouts=7, labels=4, agreeing=2)
  found = rollouts.measure(0, (3, 4), 4, None)
  for counts in found.values():
    assert counts["agreeing"] == counts["labels"] > 5
