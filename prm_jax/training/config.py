"""A training run as plain data, and the program that it names."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any

import ml_collections

from prm_jax import errors
from prm_jax import voting
from prm_jax.data import encoding
from prm_jax.models import config as model_config
from prm_jax.runtime import checks
from prm_jax.training import implicit_prm
from prm_jax.training import loop
from prm_jax.training import optimizer as optimizer_lib
from prm_jax.training import orm
from prm_jax.training import prm
from prm_jax.training import program as program_lib
from prm_jax.training import programs
from prm_jax.training import sft

PROGRAMS = ("sft", "prm", "orm", "implicit")
# Fields that a config may leave out: those of single objectives.
OPTIONAL = (
  *(f.name for f in dataclasses.fields(programs.Options)),
  "trainable",
)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """A whole training run but for its data.

  model: the fields of ModelConfig without vocab_size, which the tokenizer
  knows. rows, row_tokens: the shape of a batch. forest: solutions of one
  problem share their prefixes. loss, error_weight, labels: see training.prm.
  margin, pairs, beta, step_score: see training.programs.
  outcome_target: see encoding.orm_examples. aggregate: how scores of the
  trained model become one per solution. trainable: see
  trainable.chosen.
  """

  program: str
  seed: int
  model: dict[str, Any]
  reading: encoding.Reading
  rows: int
  row_tokens: int
  optimizer: optimizer_lib.OptimizerConfig
  fit: loop.FitConfig
  forest: bool = False
  labels: encoding.LabelPolicy = dataclasses.field(
    default_factory=encoding.LabelPolicy
  )
  loss: str = "bce"
  error_weight: float = 1.0
  margin: float | None = None
  pairs: str | None = None
  beta: float | None = None
  step_score: str | None = None
  outcome_target: str = "every_token"
  microbatches: int = 1
  eval_rows: int = 256
  aggregate: str = "product"
  mesh: tuple[int, ...] = (-1, 1, 1)
  trainable: str = "all"

  def __post_init__(self):
    checks.check_choice("program", self.program, PROGRAMS)
    if self.reading.max_tokens > self.row_tokens:
      raise errors.InputError(
        f"reading.max_tokens={self.reading.max_tokens} is more than"
        f" row_tokens={self.row_tokens}; a solution must fit a row"
      )
    if self.program == "sft" and self.reading.dialect is not None:
      raise errors.InputError(
        f"reading.dialect={self.reading.dialect!r}: a policy writes and is"
        " sampled in the native form; set it to None"
      )
    if self.seed < 0:
      raise errors.InputError(f"seed={self.seed}: give 0, 1, 2, ...")
    counts = ("rows", "row_tokens", "microbatches", "eval_rows")
    checks.check_counts(self, counts)
    if self.rows % self.microbatches:
      raise errors.InputError(
        f"rows={self.rows} isn't a multiple of microbatches={self.microbatches}"
      )
    for name, allowed in (
      ("aggregate", voting.AGGREGATES),
      ("outcome_target", encoding.OUTCOME_TARGETS),
    ):
      checks.check_choice(name, getattr(self, name), allowed)
    self._check_loss()
    if self.forest:
      kind = self.model.get("attention", "auto")
      model_config.check_forests(kind, "forest=True")
    # It refuses what no model can be; the vocabulary isn't known yet.
    unknown = 1 << 30
    make_program(self, model_config.ModelConfig(unknown, **self.model))

  def _check_loss(self) -> None:
    checks.check_positive(self, ("error_weight",))
    if self.error_weight != 1 and (self.program, self.loss) != ("prm", "bce"):
      raise errors.InputError(
        f"error_weight={self.error_weight}: only a prm with loss='bce' weighs"
        " errors; set it to 1"
      )
    programs.check(self.program, self.loss, self.options)
    programs.check_data(
      self.program,
      self.loss,
      self.options,
      forest=self.forest,
      outcome_target=self.outcome_target,
      neutral=self.labels.neutral,
    )

  @property
  def options(self) -> programs.Options:
    """The objective's own options."""
    return programs.Options(self.margin, self.pairs, self.beta, self.step_score)


def from_config(c: ml_collections.ConfigDict) -> TrainConfig:
  """Returns the run that a config's fields describe."""
  return TrainConfig(
    program=c.program,
    seed=c.seed,
    model={
      k: tuple(v) if isinstance(v, list) else v
      for k, v in c.model.to_dict().items()
    },
    reading=encoding.Reading(**c.reading),
    rows=c.rows,
    row_tokens=c.row_tokens,
    forest=c.forest,
    optimizer=optimizer_lib.OptimizerConfig(**c.optimizer),
    fit=loop.FitConfig(**c.fit),
    labels=encoding.LabelPolicy(**c.labels),
    loss=c.loss,
    error_weight=c.error_weight,
    **{name: c[name] for name in OPTIONAL if name in c},
    outcome_target=c.outcome_target,
    microbatches=c.microbatches,
    eval_rows=c.eval_rows,
    aggregate=c.aggregate,
    mesh=tuple(c.mesh),
  )


def make_program(
  config: TrainConfig,
  model: model_config.ModelConfig,
  sources: Sequence[str] = (),
) -> program_lib.Program:
  """Returns the program that the config names; sources: see prm.make."""
  optimizer = optimizer_lib.make(config.optimizer, config.fit.steps)
  if config.program == "prm":
    return prm.make(
      model,
      optimizer,
      loss=config.loss,
      error_weight=config.error_weight,
      margin=config.margin,
      microbatches=config.microbatches,
      trainable=config.trainable,
      sources=sources,
    )
  if config.program == "orm":
    return orm.make(
      model,
      optimizer,
      loss=config.loss,
      margin=config.margin,
      microbatches=config.microbatches,
      trainable=config.trainable,
      sources=sources,
    )
  if config.program == "implicit":
    return implicit_prm.make(
      model,
      optimizer,
      loss=config.loss,
      beta=float(programs.scoring(config.options)["beta"]),
      microbatches=config.microbatches,
      trainable=config.trainable,
      sources=sources,
    )
  return sft.make(
    model,
    optimizer,
    microbatches=config.microbatches,
    trainable=config.trainable,
    sources=sources,
  )
