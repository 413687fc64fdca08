"""What the benchmarks measure is what they say they measure."""

import importlib
import pathlib
import sys

from prm_jax import configs
from prm_jax import demo

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
