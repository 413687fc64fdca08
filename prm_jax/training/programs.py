"""Which objective goes with which program, data and options of a config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
import dataclasses
import math

from prm_jax import errors
from prm_jax.data import encoding
from prm_jax.data import packing
from prm_jax.data import preference_pairs
from prm_jax.training import implicit_prm
from prm_jax.training import losses
from prm_jax.training import orm
from prm_jax.training import prm

LOSSES = dict(prm=prm.LOSSES, orm=orm.LOSSES, implicit=implicit_prm.LOSSES)
PAIRED = ("bradley_terry", "implicit_dpo")
# What only some losses read; None elsewhere, and for the published value.
_READ_BY = dict(
  margin=("pqm", "bradley_terry"),
  pairs=("bradley_terry",),
  beta=implicit_prm.LOSSES,
  step_score=implicit_prm.LOSSES,
)


@dataclasses.dataclass(frozen=True)
class Options:
  """What an objective reads besides logits and labels.

  margin: between the two sides of pqm (by default 4) or bradley_terry (0).
  pairs: what bradley_terry compares, by default alternatives at the same
    prefix in a prm, and whole solutions in an orm; see data.preference_pairs.
  beta: the scale of an implicit reward, by default 0.05. step_score: see
    training.implicit_prm.scores; by default cumulative.
  """

  margin: float | None = None
  pairs: str | None = None
  beta: float | None = None
  step_score: str | None = None


def check(program: str, loss: str, options: Options) -> None:
  """Raises InputError where a program hasn't the loss, or it an option."""
  if loss not in LOSSES.get(program, (loss,)):
    raise errors.InputError(
      f"loss={loss!r}: expected one of {', '.join(LOSSES[program])} in a"
      f" program={program!r}"
    )
  for name, readers in _READ_BY.items():
    value = getattr(options, name)
    if value is not None and (program == "sft" or loss not in readers):
      raise errors.InputError(
        f"{name}={value!r}: only {' and '.join(readers)} read it; set it to"
        " None"
      )
  margin, beta = options.margin, options.beta
  if margin is not None and not (margin >= 0 and math.isfinite(margin)):
    raise errors.InputError(f"margin={margin}: expected 0 or more")
  if beta is not None and not (beta > 0 and math.isfinite(beta)):
    raise errors.InputError(f"beta={beta}: expected more than 0")
  for name, allowed in (
    ("pairs", preference_pairs.KINDS),
    ("step_score", implicit_prm.STEP_SCORES),
  ):
    value = getattr(options, name)
    if value is not None and value not in allowed:
      raise errors.InputError(
        f"{name}={value!r}: expected one of {', '.join(allowed)}"
      )
  if program == "orm" and options.pairs == "alternatives":
    raise errors.InputError(
      "pairs='alternatives': an orm knows no steps; take pairs='solutions', or"
      " program='prm'"
    )


def check_data(
  program: str,
  loss: str,
  options: Options,
  *,
  forest: bool,
  outcome_target: str,
  neutral: str,
) -> None:
  """Raises InputError where a loss can't be had of data encoded so."""
  if forest and (loss == "pqm" or program == "implicit"):
    raise errors.InputError(
      f"forest=True: loss={loss!r} is of whole solutions, and a shared step"
      " belongs to several; set forest=False"
    )
  if (program, loss) == ("orm", "bradley_terry") and (
    outcome_target != "last_step"
  ):
    raise errors.InputError(
      f"outcome_target={outcome_target!r}: bradley_terry compares solutions by"
      " their last step; set outcome_target='last_step'"
    )
  # Three classes, or for pairs three ranks.
  ranks = program == "prm" and loss == "bradley_terry"
  classes = [x == "three_way" for x in (loss, neutral)]
  if program == "prm" and classes[0] != classes[1] and not ranks:
    raise errors.InputError(
      f"loss={loss!r} with labels.neutral={neutral!r}:"
      " three_way is a matter of both or of neither"
    )


def compares(program: str, loss: str, options: Options) -> str | None:
  """Returns what is compared, alternatives or solutions, or None."""
  if program == "sft" or loss not in PAIRED:
    return None
  default = "alternatives" if program == "prm" else "solutions"
  return options.pairs or default


def scoring(options: Options) -> dict[str, float | str]:
  """Returns what the scores of an implicit PRM need."""
  return dict(
    beta=losses.IMPLICIT_BETA if options.beta is None else options.beta,
    step_score=options.step_score or "cumulative",
  )


def paired(
  examples: Sequence[encoding.Example],
  kind: str,
  *,
  forest: bool,
  row_tokens: int,
) -> tuple[list[packing.Piece], Counter[str]]:
  """Returns pieces that keep rivals in one row, and the counts.

  Raises:
    InputError: nothing can be compared.
  """
  kept, counts = preference_pairs.group(examples, kind)
  if examples and not kept:
    raise errors.InputError(
      f"pairs={kind!r}: no two of {len(examples):,} solutions can be compared:"
      + (
        " no prefix has steps of different labels; add rated alternatives"
        if kind == "alternatives"
        else " no problem has both a right and a wrong one; add solutions"
      )
    )
  if forest:
    pieces = packing.trees(kept, row_tokens)
  else:
    pieces = [packing.chain(example) for example in kept]
  pieces = preference_pairs.together(pieces, row_tokens)
  lost = counts["pairs"] - round(preference_pairs.num_pairs(pieces))
  counts["pairs lost: their group is longer than a row"] = lost
  return pieces, counts
