"""Statistics of a rollout's texts, which show a policy's tricks.

Known tricks are more tokens or steps, repetition, one giant step, and empty
solutions (Gao et al. 2024, arXiv 2410.15115; PURE, arXiv 2504.15275).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prm_jax import schema

NGRAM_WORDS = 4


def of_rollout(solutions: Sequence[schema.Solution]) -> dict[str, float]:
  """Returns a rollout's statistics, all of them for any rollout.

  nan stands for what isn't known: the mean of no solutions, tokens that
  nobody counted, steps that nobody labelled. A metrics file has null there.

    solutions        their number
    tokens           new tokens per solution (extra["num_tokens"])
    steps            steps per solution
    tokens_per_step  all tokens over all steps of those solutions
    repetition       share of repeated n-grams of words within a solution
    repeated_steps   share of steps whose text the solution had before
    distinct         share of different solutions to a problem
    without_answer   share of solutions whose answer is None
    cut              share that the token budget ended (extra["stopped"])
    empty            share without a step that has text
    steps_right      share of right steps, of solutions all of whose steps
                     have a label: 1/2 or more

  The shares within a solution or a problem's group are averaged over
  solutions or groups.

  Args:
    solutions: with their answers and, if known, exact labels.
  """
  counted = [s for s in solutions if s.extra.get("num_tokens") is not None]
  labelled = [
    s for s in solutions if s.labels is not None and None not in s.labels
  ]
  labels = [x for s in labelled for x in s.labels or () if x is not None]
  num_tokens = [float(s.extra["num_tokens"]) for s in counted]
  return dict(
    solutions=float(len(solutions)),
    tokens=_mean(num_tokens),
    steps=_mean(len(s.steps) for s in solutions),
    tokens_per_step=_ratio(sum(num_tokens), sum(len(s.steps) for s in counted)),
    repetition=_mean(repetition(s.steps) for s in solutions),
    repeated_steps=_mean(_repeated(s.steps) for s in solutions),
    distinct=distinct(solutions),
    without_answer=_mean(s.answer is None for s in solutions),
    cut=_mean(s.extra.get("stopped") == "length" for s in solutions),
    empty=_mean(not any(map(str.strip, s.steps)) for s in solutions),
    steps_right=_mean(x >= 0.5 for x in labels),
  )


def repetition(steps: Sequence[str], ngram: int = NGRAM_WORDS) -> float:
  """Returns 1 - distinct / all n-grams of words, across steps; 0 if none."""
  words = [word for step in steps for word in step.split()]
  return _repeated(
    [tuple(words[i : i + ngram]) for i in range(len(words) - ngram + 1)]
  )


def distinct(solutions: Iterable[schema.Solution]) -> float:
  """Returns the mean share of different solutions to the same problem."""
  groups: dict[str, list[tuple[str, ...]]] = {}
  for s in solutions:
    groups.setdefault(s.problem, []).append(s.steps)
  return _mean(1 - _repeated(group) for group in groups.values())


def _repeated(values: Sequence[object]) -> float:
  return 1 - len(set(values)) / len(values) if values else 0.0


def _mean(values: Iterable[float]) -> float:
  values = [float(x) for x in values]
  return _ratio(sum(values), len(values))


def _ratio(total: float, count: int) -> float:
  return total / count if count else float("nan")
