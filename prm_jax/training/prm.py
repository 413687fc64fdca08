"""The PRM program: P(correct so far) at the end of every step.

Only the head `step_logits` is traced; no array over the vocabulary is built.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
import dataclasses
import functools
from typing import Any, ClassVar

from jaxtyping import Array

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax import schema
from prm_jax.models import kinds
from prm_jax.rows import preference_pairs
from prm_jax.runtime import checks
from prm_jax.text import encoding
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.training import bradley_terry
from prm_jax.training import losses
from prm_jax.training import program


@dataclasses.dataclass(frozen=True)
class PRMConfig:
  """What a PRM is trained for.

  Args:
    loss: bce (hard or soft labels), mse (soft labels), three_way (the labels 0,
      0.5 and 1 as bad, neutral and good; the model needs step_classes=3), pqm
      (the order of a solution's steps; rows of separate solutions) or
      bradley_terry (pairs).
    error_weight: The weight of wrong steps in bce; see losses.step_bce.
    margin: The margin of pqm (by default losses.PQM_MARGIN) or of bradley_terry
      (by default 0).
    pairs: What bradley_terry compares: alternatives after the same prefix, by
      default, or whole solutions; see rows.preference_pairs.
    labels: How labels and ratings become targets.
  """

  loss: str = "bce"
  error_weight: float = 1.0
  margin: float | None = None
  pairs: str | None = None
  labels: encoding.LabelPolicy = dataclasses.field(
    default_factory=encoding.LabelPolicy
  )

  def __post_init__(self):
    errors.raise_first(self._faults())

  def _faults(self) -> Iterator[str]:
    """Yields what is wrong, as messages."""
    checks.check_choice("objective.loss", self.loss, tuple(LOSSES))
    checks.check_positive(self, ("error_weight",), "objective.")
    if self.error_weight != 1 and self.loss != "bce":
      yield (
        f"objective.error_weight={self.error_weight}: only loss='bce' weights"
        " errors; set it to 1"
      )
    program.check_unread(self, LOSSES)
    checks.check_margin(self.margin)
    if self.pairs is not None:
      checks.check_choice("objective.pairs", self.pairs, preference_pairs.KINDS)
    # Three classes; pairs rank the three without classes of the model.
    classes = [x == "three_way" for x in (self.loss, self.labels.neutral)]
    if classes[0] != classes[1] and not self.compares:
      yield (
        f"objective.loss={self.loss!r} with objective.labels.neutral="
        f"{self.labels.neutral!r}: set both to three_way, or neither"
      )

  @property
  def compares(self) -> str | None:
    if not LOSSES[self.loss].compares:
      return None
    return self.pairs or "alternatives"

  @property
  def whole_solutions(self) -> bool:
    return LOSSES[self.loss].whole_solutions

  scoring: ClassVar[dict[str, Any]] = {}

  @property
  def judged(self) -> str:
    if self.compares == "solutions":  # by their last steps
      return "last"
    ignores = self.labels.after_first_error == "ignore"
    return "until_first_error" if ignores else "all"


def _of_steps(
  loss: Callable[..., losses.Sums],
  options: Callable[..., dict[str, Any]] = lambda objective, batch: {},
  **fields: Any,
) -> program.LossKind:
  """Returns the kind of a loss of steps, which also counts right steps.

  Args:
    loss: Returns losses.Sums, given logits, labels and weights.
    options: Returns its other arguments, given (objective, batch).
    **fields: Fields of the kind.
  """

  def sums(
    objective: PRMConfig, logits: Array, batch: batch_lib.Batch
  ) -> program.LossSums:
    targets = logits, batch.labels, batch.weights
    total, weight = loss(*targets, **options(objective, batch))
    hit = (kinds.step_probability(logits) >= 0.5) == (batch.labels >= 0.5)
    wrong = batch.weights * (batch.labels < 0.5)
    counts = dict(
      steps=batch.weights.sum(),
      steps_right=(hit * batch.weights).sum(),
      errors=wrong.sum(),
      errors_found=(hit * wrong).sum(),
    )
    return total, weight, counts

  fields = dict(step_classes=(1, 2)) | fields
  return program.LossKind(sums, finish, **fields)


def finish(sums) -> dict[str, float]:
  """Returns accuracy and the share of wrong steps found.

  Without a wrong step errors_found isn't defined (nan), and without a wrong or
  without a right one balanced_accuracy isn't.
  """
  rights = sums["steps"] - sums["errors"]
  kept = sums["steps_right"] - sums["errors_found"]
  errors_found = program.share(sums["errors_found"], sums["errors"])
  return dict(
    accuracy=program.share(sums["steps_right"], sums["steps"]),
    balanced_accuracy=(errors_found + program.share(kept, rights)) / 2,
    errors_found=errors_found,
  )


def _pqm_options(objective, batch) -> dict[str, Any]:
  margin = objective.margin
  zeta = losses.PQM_MARGIN if margin is None else margin
  return dict(visible_until=batch.visible_until, margin=zeta)


LOSSES = dict(
  bce=_of_steps(
    losses.step_bce, lambda x, _: dict(error_weight=x.error_weight)
  ),
  mse=_of_steps(losses.step_mse, in_nats=False),
  three_way=_of_steps(losses.step_three_way, step_classes=(3,)),
  pqm=_of_steps(
    *(losses.pqm, _pqm_options),
    in_nats=False,
    reads=("margin",),
    whole_solutions=True,
  ),
  bradley_terry=bradley_terry.KIND._replace(
    reads=("margin", "pairs"), step_classes=(1, 2)
  ),
)


def encoder(objective: PRMConfig) -> program.Encoder:
  """Returns an encoder of solutions with a target at each labelled step.

  If whole solutions are compared, the target is their outcome instead. With
  three_way it refuses labels that are no class.
  """
  if objective.compares == "solutions":
    return functools.partial(encoding.orm_examples, target="last_step")
  examples = _three_way_examples
  if objective.loss != "three_way":
    examples = encoding.prm_examples
  return functools.partial(examples, policy=objective.labels)


def _three_way_examples(
  solutions: Iterable[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: encoding.EncodingConfig,
  policy: encoding.LabelPolicy,
) -> tuple[list[encoding.Example], Counter[str]]:
  """Returns the examples of encoding.prm_examples.

  Raises:
    InputError: A label is neither 0 (bad), 0.5 (neutral) nor 1 (good). A
      probability says nothing about how it is shared by neutral and good.
  """

  def checked():
    for solution in solutions:
      for i, label in enumerate(encoding.step_labels(solution, policy)):
        if label not in (None, *losses.THREE_WAY_LABELS):
          raise errors.InputError(
            f"solution {solution.id!r}: the label of step {i} (from 0) is"
            f" {label:g}, and objective.loss='three_way' has the classes 0"
            " (bad), 0.5 (neutral) and 1 (good): train on soft labels with"
            " objective.loss='bce' or 'mse', or make them 0 and 1 with"
            " objective.labels.harden_above"
          )
      yield solution

  return encoding.prm_examples(checked(), tokenizer, encoding_config, policy)
