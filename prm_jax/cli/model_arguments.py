"""The options of how models are loaded: each is declared here, once.

`cli/models.py` loads what they describe.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import dataclasses
from typing import Any, Literal

from prm_jax.cli import arguments
from prm_jax.runtime import checks


@dataclasses.dataclass(frozen=True)
class Models:
  """How the models of a command are loaded; None is the default.

  Args:
    step: The update whose saved parameters are used, or "best".
    dtype: The type of matmuls and activations of all models.
    batch_tokens: The most tokens of a batch that is scored.
    slots: The most completions that are sampled at the same time.
  """

  step: int | Literal["best"] | None = None
  dtype: str | None = None
  batch_tokens: int | None = None
  slots: int | None = None

  def __post_init__(self):
    if self.slots is not None:
      checks.check_counts(self, ("slots",), "--")


# Of each field its help and its type.
_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = dict(
  step=(
    "the update whose saved parameters are used; best is the saved one with the"
    " best fit.best_metric of its run (default: the latest one that was saved)",
    arguments.step,
  ),
  dtype=(
    "the type that each checkpoint folder's model computes in: float32, bfloat16"
    " or float16; with float32 its weights are held so, too (default: what the"
    " folder's model.json names, which import takes from the weights)",
    str,
  ),
  batch_tokens=(
    "the most tokens in a batch, which bounds the memory of the device; a longer"
    " solution is a batch of its own (default: 16384)",
    arguments.natural,
  ),
  slots=(
    "the number of completions that are sampled at the same time, which bounds"
    " the memory of the device (checkpoint folders only; default: 64)",
    arguments.whole,
  ),
)


def add(parser: arguments.Parser, *names: str) -> None:
  """Adds some of the options.

  Args:
    parser: The parser of a command that loads models.
    *names: The names of fields of Models.
  """
  for name in names:
    text, kind = _OPTIONS[name]
    parser.add_option(f"--{name}", text, type=kind)


def add_scorer(parser: arguments.Parser) -> None:
  """Adds what scores steps: a checkpoint, or a file of scores."""
  parser.add_path(
    "--checkpoint",
    "the checkpoint folder of the reward model that scores the steps; give"
    " either this or --scores",
  )
  add(parser, "step", "dtype", "batch_tokens")
  parser.add_option(
    "--scores",
    "a file of step scores that `prm-jax score` wrote, instead of --checkpoint",
  )


def of(args: argparse.Namespace) -> Models:
  """Returns what parsed arguments say of models.

  Args:
    args: The parsed arguments; what a command lacks is the default.

  Raises:
    InputError: `slots` is less than 1.
  """
  given = vars(args)
  return Models(**{name: given.get(name) for name in _OPTIONS})
