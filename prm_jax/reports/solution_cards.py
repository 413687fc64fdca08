"""Solutions on a page, step by step, with their labels and the PRM's scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prm_jax import schema
from prm_jax.evaluation import judgement
from prm_jax.reports import html

# A step whose score is below this is doubted (ProcessBench's threshold).
THRESHOLD = 0.5
# Of a step's exact label, and of an answer.
_MARKS = {
  None: html.Cell("–", title="no exact label"),
  True: html.Cell("✓", css="right", title="right"),
  False: html.Cell("✗", css="wrong", title="wrong"),
}
# The background of a step that the PRM doesn't judge.
_UNJUDGED = "rgb(128 134 144/.14)"
_OUTCOMES = {
  None: html.Cell("Not judged"),
  True: html.Cell("✓ right answer", css="right"),
  False: html.Cell("✗ wrong answer", css="wrong"),
}


def card(
  solution: Mapping[str, Any],
  source: str,
  facts: Sequence[str],
  names: Mapping[str, str],
) -> dict[str, Any]:
  """Returns what page.html's `cards` shows of a solution.

  Args:
    solution: "problem", "steps", "labels" (of each step or none), "outcome" and
      "step_scores" ({model: one of each step}, of the PRM under "prm"), and
      "judged" ({model: whether it was trained to judge each step}; a model that
      isn't there judges all).
    source: where it is from.
    facts: texts after its outcome.
    names: of the models.
  """
  steps, scores = solution["steps"], solution["step_scores"]
  judged = {name: [True] * len(steps) for name in scores} | solution["judged"]
  labels = solution["labels"] or [None] * len(steps)
  prm = scores.get("prm")
  others = [name for name in scores if name != "prm"]
  kind, line = "open", "The PRM did not score this solution."
  if prm is not None:
    judged_so = judgement.judge(labels, prm, solution["outcome"])
    kind, line = judged_so.kind, judged_so.text
  error = schema.first_error(labels, THRESHOLD)
  rows, fills = [], []
  for i, text in enumerate(steps):
    right = None if labels[i] is None else labels[i] >= THRESHOLD
    slip, score = "", html.Cell("–", css="bold")
    if prm is not None and not judged["prm"][i]:
      score = html.Cell(f"{prm[i]:.3f}", "not judged", "unjudged")
      fills.append(_UNJUDGED)
    elif prm is not None:
      doubted, score = (
        prm[i] < THRESHOLD,
        html.Cell(f"{prm[i]:.3f}", css="bold"),
      )
      # After the first error a label says no more about this step alone.
      if right == doubted and not 0 <= error < i:
        slip = "false alarm" if right else "missed"
      fills.append(fill(prm[i]))
    cells = [html.Cell(text, slip, "text"), _MARKS[right], score]
    cells += [_other(scores[name][i], judged[name][i]) for name in others]
    rows.append([i + 1, *cells])
  head = ["", "step", "exact", "PRM", *(names[name] for name in others)]
  return dict(
    source=source,
    problem=solution["problem"],
    kind=kind,
    comment=line,
    facts=[_OUTCOMES[solution["outcome"]], *map(html.Cell, facts)],
    table=html.table("Steps", head, rows, "", fills),
  )


def fill(score: float) -> str:
  """Returns the background of what has a score: orange below THRESHOLD.

  Args:
    score: The score, in [0, 1].

  Returns:
    The colour in CSS, the stronger the further the score is from THRESHOLD.
  """
  name, most = ("bad", 0.7) if score < THRESHOLD else ("good", 0.26)
  return f"rgb(var(--{name})/{0.05 + most * abs(score - THRESHOLD):.2f})"


def _other(score: float, judged: bool) -> html.Cell:
  """Returns the score of a model that the row isn't coloured by."""
  if judged:
    return html.Cell(f"{score:.2f}")
  return html.Cell(f"({score:.2f})", css="unjudged", title="not judged")
