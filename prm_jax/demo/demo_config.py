"""The config of the main job on the embedded testbed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import dataclasses

from prm_jax import errors
from prm_jax import voting
from prm_jax.policy import sampler as sampler_lib
from prm_jax.runtime import checks
from prm_jax.testbed import arithmetic
from prm_jax.training import train_config


@dataclasses.dataclass(frozen=True)
class DemoConfig:
  """The demo's sizes and its five training runs; see default_config.py.

  train_samples solutions are drawn of each training problem, as many at each
  of train_temperatures; the first monte_carlo_solutions of them are labelled
  by rollouts too, completions of each prefix. Rollouts and test samples have
  one temperature. All samples are drawn from the top_p nucleus. The comparison
  ranks them by the `aggregate` of each model's step scores.
  """

  task: arithmetic.Task
  vocabulary: int
  base_problems: int
  annotated_problems: int
  train_problems: int
  train_samples: int
  train_temperatures: tuple[float, ...]
  monte_carlo_solutions: int
  completions: int
  temperature: float
  top_p: float
  test_split: str
  test_problems: int
  num_samples: int
  max_new_tokens: int
  aggregate: str
  runs: Mapping[str, train_config.TrainConfig]

  def __post_init__(self):
    errors.raise_first(self._faults())

  def _faults(self) -> Iterator[str]:
    """Yields what is wrong, as messages."""
    problems = ("base_problems", "annotated_problems", "train_problems")
    solutions = ("train_samples", "monte_carlo_solutions", "completions")
    tests = ("test_problems", "num_samples", "max_new_tokens")
    checks.check_counts(self, ("vocabulary", *problems, *solutions, *tests))
    checks.check_choice("test_split", self.test_split, arithmetic.SPLITS)
    checks.check_choice("aggregate", self.aggregate, voting.AGGREGATES)
    if not self.train_temperatures:
      yield "train_temperatures is empty; give one or more"
    for temperature in (self.temperature, *self.train_temperatures):
      self.sampling(temperature)
    if self.train_samples % len(self.train_temperatures):
      yield (
        f"train_samples={self.train_samples} isn't a multiple of the"
        f" {len(self.train_temperatures)} train_temperatures"
      )

  def sampling(self, temperature: float) -> sampler_lib.Sampling:
    """Returns how all samples are drawn; it refuses what can't be drawn."""
    return sampler_lib.Sampling(self.max_new_tokens, temperature, self.top_p)
