"""What fields and values of configs were called once; their new names are told."""

from __future__ import annotations

from collections.abc import Iterable
import re
from typing import Any

from prm_jax import errors

# Fields of before that are in the group `objective` now.
_OF_OBJECTIVE = (
  *("labels", "labels.neutral", "labels.after_first_error"),
  *("labels.harden_above", "loss", "error_weight", "margin", "pairs"),
  *("beta", "step_score", "outcome_target"),
)
# Fields and values that configs had once -> those that they have now.
RENAMED = {name: f"objective.{name}" for name in _OF_OBJECTIVE} | {
  "rows": "packing.batch_size",
  "row_tokens": "packing.sequence_length",
  "forest": "packing.share_prefixes",
  "share_prompts": "packing.share_prefixes",
  "start_from": "init_from",
  "reading": "encoding",
  "reading.place": "encoding.score_position",
  "reading.max_tokens": "encoding.max_tokens",
  "reading.too_long": "encoding.truncation",
  "reading.dialect": "encoding.template",
  "encoding.place": "encoding.score_position",
  "encoding.too_long": "encoding.truncation",
  "encoding.dialect": "encoding.template",
  "fit.skip_spikes": "fit.skip_outliers",
  "model.attention=forest": "model.attention=tree",
  "credit.trace": "credit.gae_lambda",
  "credit.returns=min_soft": "credit.returns=soft_min",
  "credit.returns=min_strict": "credit.returns=min_to_go",
  "credit.returns=min": "credit.returns=min_to_go",
  "credit.baseline=keep": "credit.baseline=none",
  "loss.kind=imitate": "loss.kind=rejection_sampling",
  "loss.keep_above": "loss.return_threshold",
  "loss.keep_each": "loss.max_per_problem",
  "loss.normalise": "loss.loss_aggregation",
  "loss.kl_in": "loss.kl_placement",
  "problems.grader=dial": "problems.grader=arithmetic",
}


def refuse(given: Iterable[tuple[str, str, Any]]) -> None:
  """Refuses the fields and values of RENAMED.

  Args:
    given: Where a field stands, for the message; its name with its groups; its
      value.

  Raises:
    InputError: One of them has another name now.
  """
  for where, name, value in given:
    run = re.match(r"runs\.\w+\.|verifier\.", name)  # one of several
    prefix = run[0] if run else ""
    for old in (name[len(prefix) :], f"{name[len(prefix) :]}={value}"):
      # A group of reinforcement learning has the name of an older field.
      if old == "loss" and not isinstance(value, str):
        continue
      if old in RENAMED:
        new = prefix + RENAMED[old]
        raise errors.InputError(f"{where}: {old} is {new} now; write {new}")
