"""A training run on stored solutions as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import logging
from typing import Any

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax import voting
from prm_jax.models import kinds
from prm_jax.models import model_config
from prm_jax.runtime import checks
from prm_jax.runtime import limits
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import segmenters
from prm_jax.training import batches
from prm_jax.training import loop
from prm_jax.training import optimizer as optimizer_lib
from prm_jax.training import program as program_lib
from prm_jax.training import programs

_logger = logging.getLogger(__name__)

# The template of the one published architecture whose step head is an mlp.
_MLP_TEMPLATE = "qwen_prm"


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """A whole training run except its data: one config for each stage.

  Args:
    objective: The config of the program; its class says which program runs.
    seed: The seed of the initial parameters and of the order of the data.
    model: The fields of ModelConfig, except vocab_size, which the tokenizer
      determines.
    encoding: How solutions become tokens.
    packing: How tokens become rows.
    optimizer: The optimizer and its schedule.
    fit: How long to train, and when to evaluate and save.
    microbatches: The number of parts that a batch is divided into; their
      gradients are added.
    eval_rows: The most held-out rows that are evaluated.
    aggregate: How the trained model's step scores become a solution's score.
    mesh: The number of devices on the axes data, fsdp and tensor.
    trainable: Which parameters are trained; see trainable.chosen.
    segmenter: How a text is cut into steps, as segmenters.parse takes it, for
      score_text; "" if that isn't known, or is as a policy's template says.
  """

  objective: program_lib.Objective
  seed: int
  model: dict[str, Any]
  encoding: encoding.EncodingConfig
  packing: batches.PackingConfig
  optimizer: optimizer_lib.OptimizerConfig
  fit: loop.FitConfig
  microbatches: int = 1
  eval_rows: int = 256
  aggregate: str = "product"
  mesh: tuple[int, ...] = (-1, 1, 1)
  trainable: str = "all"
  segmenter: str = ""

  def __post_init__(self):
    errors.raise_first(self._faults())

  def _faults(self) -> Iterator[str]:
    """Yields what is wrong, as messages."""
    if self.segmenter:
      segmenters.parse(self.segmenter)
      if self.kind.writes:
        yield (
          f"segmenter={self.segmenter!r}: a policy's is in its template; leave"
          " it out"
        )
    packing = self.packing
    limit = self.encoding.max_tokens
    if limit is None or limit > packing.sequence_length:
      yield (
        f"encoding.max_tokens={self.encoding.max_tokens} is more than"
        f" packing.sequence_length={packing.sequence_length}; a solution must"
        " fit a row"
      )
    name = encoding_records.config_name(self.encoding.template)
    if self.kind.writes and name not in (None, encoding_records.OF_POLICY):
      yield (
        f"encoding.template={name!r}: a policy is sampled in the native form or"
        f" in its own template; set it to None or {encoding_records.OF_POLICY!r}"
      )
    if self.encoding.template.apart:
      if self.objective.whole_solutions:
        yield (
          f"encoding.template={name!r}: it reads steps apart, and the objective"
          " is of whole solutions; choose another loss or template"
        )
      if packing.share_prefixes:
        yield (
          f"encoding.template={name!r}: it reads steps apart, so that solutions"
          " share no prefixes; set packing.share_prefixes to False"
        )
    checks.check_seed(self.seed)
    checks.check_counts(self, ("microbatches", "eval_rows"))
    if packing.batch_size % self.microbatches:
      yield (
        f"packing.batch_size={packing.batch_size} isn't a multiple of"
        f" microbatches={self.microbatches}"
      )
    checks.check_choice("aggregate", self.aggregate, voting.AGGREGATES)
    if packing.share_prefixes:
      if self.objective.whole_solutions:
        yield (
          "packing.share_prefixes=True: the objective is of whole solutions,"
          " and a shared step belongs to several; set it to False"
        )
      kind = self.model.get("attention", "auto")
      model_config.check_trees(kind, "packing.share_prefixes=True")
    # It refuses what no model can be; the vocabulary isn't known yet.
    unknown = limits.MODEL_SIZE
    make_program(self, model_config.ModelConfig(unknown, **self.model))

  @property
  def program(self) -> str:
    return programs.name_of(self.objective)

  @property
  def kind(self) -> kinds.Kind:
    return kinds.KINDS[self.program]


def make_program(
  config: TrainConfig,
  model: model_config.ModelConfig,
  sources: Sequence[str] = (),
) -> program_lib.Program[batch_lib.Batch]:
  """Returns the program of a config.

  Args:
    config: The config.
    model: The shape of the model.
    sources: The names of the data's sources; see programs.make.
  """
  return programs.make(
    config.objective,
    model,
    optimizer_lib.make(config.optimizer, config.fit.steps),
    microbatches=config.microbatches,
    trainable=config.trainable,
    sources=sources,
  )


def warn(config: TrainConfig) -> None:
  """Logs what the trained model will be worse at.

  Its aggregate may read steps that training ignores, or no published format may
  have a place for its head.

  Args:
    config: The whole run.
  """
  ignores = config.objective.judged == "until_first_error"
  if ignores and config.aggregate in voting.READS_UNJUDGED:
    _logger.warning(
      f"warning: aggregate={config.aggregate!r} reads the steps after a first"
      " error, from which this model doesn't learn; use min or product, or set"
      " objective.labels.after_first_error='bad' (docs/prm.md)"
    )
  if config.objective.judged == "last" and config.aggregate != "last":
    _logger.warning(
      f"warning: aggregate={config.aggregate!r} reads the steps before the last,"
      " from which this model doesn't learn; use last (docs/evaluation.md)"
    )
  name = encoding_records.config_name(config.encoding.template)
  is_mlp = (
    config.model.get("step_head") == "mlp" and "step" in config.kind.heads
  )
  if is_mlp and name != _MLP_TEMPLATE:
    _logger.warning(
      f"warning: encoding.template={name!r} and model.step_head='mlp': the model"
      f" can't be exported, as an mlp has a place in {_MLP_TEMPLATE} alone; set"
      " model.step_head='linear' if it is to be (docs/checkpoints.md)"
    )
