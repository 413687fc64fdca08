"""Several annotators' labels of one solution: found, and made one.

Each annotator's labels are a solution of their own, whose extra has the name in
schema.ANNOTATOR. Such solutions are one if their problem and steps, and in a
conversation everything that is said, are the same to the letter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import hashlib
import json
from typing import Any, Literal

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import agreement
from prm_jax.records import identity
from prm_jax.text import messages

Merge = Literal["each", "vote", "mean"]

# What merging counts.
_TWICE = "second judgements of a solution by one annotator"
_OPEN = "steps without a majority"
_LATER = "steps after the majority's first error, or where it is open"
_OUTCOMES = "outcomes on which annotators differ"


def key(solution: schema.Solution) -> bytes:
  """Returns a digest that is the same for all annotators of a solution.

  Args:
    solution: The solution.
  """
  texts: list[Any] = [solution.problem, solution.steps]
  if solution.messages is not None:
    texts.append(messages.heard(solution))
  return hashlib.sha256(json.dumps(texts).encode()).digest()[:16]


def judgement(solution: schema.Solution) -> agreement.Judgement | None:
  """Returns what an annotator says of a solution without a word of others.

  Args:
    solution: The solution.

  Returns:
    None if no annotator is named, or one who decided between others.
  """
  name = solution.extra.get(schema.ANNOTATOR)
  given_for = solution.extra.get(schema.GIVEN_FOR)
  if name is None or given_for == schema.ADJUDICATION:
    return None
  return agreement.Judgement(
    str(name),
    key(solution),
    identity.problem_digest(solution.problem),
    agreement.values_of(solution),
  )


def grouped(
  solutions: Iterable[schema.Solution],
) -> list[list[schema.Solution]]:
  """Returns the solutions of each group, in the order of their first ones.

  Args:
    solutions: The solutions; one that names no annotator is a group.
  """
  groups: dict[bytes, list[schema.Solution]] = {}
  for i, solution in enumerate(solutions):
    named = solution.extra.get(schema.ANNOTATOR) is not None
    groups.setdefault(key(solution) if named else b"%d" % i, []).append(
      solution
    )
  return list(groups.values())


def merged(
  solutions: Iterable[schema.Solution], how: Merge, left_out: Counter[str]
) -> Iterator[schema.Solution]:
  """Yields one solution for each group of annotators.

  Its extra has `annotators`, their names, and the fields that are the same in
  all of the group: others are of one annotator's own. Everything else is of the
  first one, and its id without "/ANNOTATOR" at the end, unless another has this
  id.

    vote: a step has the label, or rating, that more than half of those give
      who label it, and none if there is no such label. A label is 1 or 0, by its
      side of 0.5.
    mean: a step has the mean of its labels.

  If no annotator labels a step after an error of theirs, all looked for the
  first error. Then the steps after it count as not right. A vote ends at the
  step that more than half call the first error, or where neither has more than
  half. A mean is the share that finds no error up to a step; there is none
  after the last annotator's error.

  Args:
    solutions: The solutions; those that name no annotator are unchanged.
    how: vote or mean; each leaves all as they are.
    left_out: Counts what the merged solutions lack.

  Raises:
    InputError: No solution names an annotator, annotators of one solution give
      labels and ratings, or ratings are to be averaged.
  """
  if how == "each":
    yield from solutions
    return
  groups = grouped(solutions)
  named = [g for g in groups if schema.ANNOTATOR in g[0].extra]
  if groups and not named:
    raise errors.InputError(
      f"`annotators={how}`: no solution says who labelled it; give each the"
      f' name as "{schema.ANNOTATOR}"'
    )
  used = {s.id for g in groups for s in g}
  for group in groups:
    if schema.ANNOTATOR not in group[0].extra:
      yield group[0]
      continue
    yield _one(_by_annotator(group, left_out), how, used, left_out)


def _by_annotator(
  group: Sequence[schema.Solution], left_out: Counter[str]
) -> list[schema.Solution]:
  """Returns each annotator's first judgement; counts the others."""
  first: dict[str, schema.Solution] = {}
  for solution in group:
    name = str(solution.extra[schema.ANNOTATOR])
    if name in first:
      left_out[_TWICE] += 1
    first.setdefault(name, solution)
  return list(first.values())


def _one(
  group: list[schema.Solution],
  how: Merge,
  used: set[str],
  left_out: Counter[str],
) -> schema.Solution:
  first = group[0]
  rated = [s.ratings is not None for s in group]
  if any(rated) and (how == "mean" or not all(rated)):
    what = "a mean is of labels" if all(rated) else "others have labels"
    at = group[rated.index(True)]
    raise errors.InputError(
      f"solution {at.id!r}: has ratings, and {what}; say what a rating of 0 is:"
      " `neutral=good`, bad or ignore"
    )
  names = [str(s.extra[schema.ANNOTATOR]) for s in group]
  outcomes = {s.outcome for s in group} - {None}
  if len(outcomes) > 1:
    left_out[_OUTCOMES] += 1
  changes: dict[str, Any] = dict(
    id=_id(first, names[0], used),
    outcome=first.outcome if len(group) == 1 else None,
    extra=_shared(group) | dict(annotators=names),
  )
  if len(outcomes) == 1:
    changes["outcome"] = outcomes.pop()
  if all(rated):
    values: Any = [s.ratings for s in group]
    changes["ratings"] = _voted(values, lambda x: x >= 0, left_out)
  elif any(s.labels is not None for s in group):
    values = [s.labels or (None,) * len(s.steps) for s in group]
    if how == "mean":
      changes["labels"] = _mean(values)
    else:
      sides = [
        [None if x is None else float(_is_right(x)) for x in labels]
        for labels in values
      ]
      changes["labels"] = _voted(sides, _is_right, left_out)
  return dataclasses.replace(first, **changes)


def _shared(group: list[schema.Solution]) -> dict[str, Any]:
  return {
    name: value
    for name, value in group[0].extra.items()
    if name != schema.ANNOTATOR
    and all(name in s.extra and s.extra[name] == value for s in group)
  }


def _id(solution: schema.Solution, name: str, used: set[str]) -> str:
  bare = solution.id.removesuffix(f"/{name}")
  if bare in used:
    return solution.id
  used.add(bare)
  return bare


def _is_right(label: float) -> bool:
  return label >= schema.THRESHOLD


def _ends(values, is_right) -> list[int] | None:
  """Returns where each annotator stopped; None if one went on after an error.

  That is after the first error, or after the last step.
  """
  ends = []
  for row in values:
    wrong = (i for i, x in enumerate(row) if x is not None and not is_right(x))
    end = next(wrong, len(row) - 1) + 1
    if any(x is not None for x in row[end:]):
      return None
    ends.append(end)
  return ends


def _voted(values, is_right, left_out: Counter[str]) -> tuple[Any, ...]:
  """Returns the majority's value of each step."""
  ends = _ends(values, is_right)
  voted: list[Any] = []
  is_over = False
  for i in range(len(values[0])):
    given = [row[i] for row in values if row[i] is not None]
    # Who found an error before says that the step isn't right, nor the first
    # error.
    num_voters = len(given)
    if ends is not None:
      num_voters += sum(end <= i for end in ends)
    value, votes = Counter(given).most_common(1)[0] if given else (None, 0)
    has_majority = not is_over and 2 * votes > num_voters
    voted.append(value if has_majority else None)
    if given and not has_majority:
      left_out[_LATER if is_over else _OPEN] += 1
    if ends is not None and num_voters:
      is_over = is_over or 2 * sum(map(is_right, given)) <= num_voters
  return tuple(voted)


def _mean(values) -> tuple[float | None, ...]:
  """Returns the mean label of each step."""
  ends = _ends(values, _is_right)
  means: list[float | None] = []
  for i in range(len(values[0])):
    given = [row[i] for row in values if row[i] is not None]
    num_voters = len(given)
    if ends is not None:
      num_voters += sum(end <= i for end in ends)
    means.append(sum(given) / num_voters if given else None)
  return tuple(means)
