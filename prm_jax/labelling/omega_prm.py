"""OmegaPRM labels (Luo et al. 2024, arXiv 2406.06592): trees of many problems.

Each problem has a search of its own (omega_tree). All searches advance
together, one request of each at a time, so that one call of Generate serves
all of them; a problem's tree doesn't depend on the other problems.

A label is MC(s), the share of right rollouts from the state after a step. It
estimates a value, as Monte-Carlo labels do; a step between two states of the
search has none.
"""

from __future__ import annotations

from collections import Counter
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses

from prm_jax import schema
from prm_jax.labelling import omega_tree
from prm_jax.labelling import prefix_rollouts
from prm_jax.labelling.omega_tree import Options
from prm_jax.labelling.omega_tree import Tree
from prm_jax.labelling.prefix_rollouts import Rollout
from prm_jax.text import answers


def label(
  solutions: Sequence[schema.Solution],
  generate: schema.Generate,
  verify: schema.Verify,
  options: Options,
  *,
  count_tokens: schema.CountTokens | None = None,
  find_answer: schema.FindAnswer = answers.of_solution,
  progress: Callable[[int], None] = lambda done: None,
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns labelled rollouts of the problems, and the work that they took.

  The solutions are new ones (see `paths_of`), one problem after another in the
  order given; the work is in `summary`.

  Args:
    solutions: The problems. Those with steps count as rollouts of the problem
      alone and should be the policy's; those without only name the problem. The
      ids and extra of the new solutions come from the first of each problem.
    generate: Completes prefixes.
    verify: Whether whole solutions end in the right answer.
    options: The constants.
    count_tokens: Counts tokens for completions without num_tokens, and for
      segments.
    find_answer: Returns the answer that a completion states.
    progress: Called with the number of problems that are finished.

  Raises:
    InputError: See `omega_tree.search`.
    ValueError: generate or verify returns another number than asked for.
  """
  problems: dict[str, list[schema.Solution]] = defaultdict(list)
  for s in solutions:
    problems[s.problem].append(s)
  whole = [s for s in solutions if s.steps]
  given: dict[str, list[Rollout]] = defaultdict(list)
  verdicts = prefix_rollouts.verdicts_of(whole, verify)
  for s, is_right in zip(whole, verdicts, strict=True):
    given[s.problem].append(Rollout(s, is_right))
  searches = {
    p: omega_tree.search(given[p], options, count_tokens) for p in problems
  }
  trees: dict[str, Tree] = {}
  work: Counter[str] = Counter()
  requests = dict(_advance(searches, dict.fromkeys(problems), trees))
  while requests:
    progress(len(trees))
    replies, done = _roll_out(requests, problems, generate, verify, find_answer)
    work.update(done)
    requests = dict(_advance(searches, replies, trees))
  progress(len(trees))
  labelled: list[schema.Solution] = []
  for p, same in problems.items():
    paths = paths_of(trees[p], same[0].id, options, find_answer)
    labelled += paths
    work.update(_counts(trees[p], paths, len(given[p]), options))
  return labelled, summary(work)


def paths_of(
  tree: Tree,
  name: str,
  options: Options,
  find_answer: schema.FindAnswer = answers.of_solution,
) -> list[schema.Solution]:
  """Returns the rollouts that were searched, as labelled solutions.

  labels: MC of the state after each step that has one, and 0 at the first
  wrong step; None between these and after the error. With `hard`, 1 for every
  step before the first wrong one: a right continuation of a longer prefix is
  one of each shorter prefix, too. So a shorter prefix whose rollouts all failed
  is not wrong there.

  A label is given to the first solution that has its prefix, so that every
  state counts once in training, as in the paper; the tree is that of
  datasets.formats.math_aps_tree. A solution without a new label is left out.
  extra: `values`, MC of every state on the path, also of those that an earlier
  solution has; `rollouts`, their number; `problem_value`, MC of the problem.
  ids are "NAME/INDEX". The outcome of each is False.
  """
  proven = _proven(tree) if options.hard else set()
  labelled: set[omega_tree.Steps] = set()
  solutions: list[schema.Solution] = []
  for path in tree.paths:
    whole = path.selected.rollout
    prefixes = [path.steps[:n] for n in range(1, len(path.steps) + 1)]
    values = _values(tree, path)
    labels: list[float | None] = list(values)
    if options.hard:
      labels[: path.num_right] = [1.0] * path.num_right
    for i, prefix in enumerate(prefixes):
      if prefix in labelled or (labels[i] == 0 and prefix in proven):
        labels[i] = None
      elif labels[i] is not None:
        labelled.add(prefix)
    if any(label is not None for label in labels):
      states = [tree.states.get(prefix) for prefix in prefixes]
      extra = prefix_rollouts.plain_extra(whole) | dict(
        values=values,
        rollouts=[len(state.rollouts) if state else 0 for state in states],
        problem_value=tree.states[()].value,
      )
      solutions.append(
        dataclasses.replace(
          whole,
          id=f"{name}/{len(solutions)}",
          labels=tuple(labels),
          ratings=None,
          answer=find_answer(whole),
          outcome=False,
          source="omega_prm",
          extra=extra,
        )
      )
  return solutions


def summary(work: Mapping[str, int]) -> dict[str, int]:
  """Returns the counts of the work, zeros too.

  problems, and of these dropped_none_right and dropped_all_right, by their
  first rollouts, dropped_untold, if no first rollout has a known end, and
  dropped_unsearched, without a wrong rollout that ended, or out of
  max_rollouts; given, solutions that came with them. searches; of these
  undecided, if no verdict showed on which side the error is, repeated, whose
  labels earlier solutions have, and contradicted, whose first wrong step
  (`hard`) has a right end by another path. candidates_left in the pools;
  duplicates, see omega_tree. states, without the problems; labels;
  first_errors found. The counts of prefix_rollouts.counts. And
  brute_force_rollouts, what Monte-Carlo labels would take to find the first
  errors of the same solutions: k of each of their distinct prefixes.
  """
  names = (
    *("problems", "dropped_none_right", "dropped_all_right"),
    *("dropped_untold", "dropped_unsearched", "given"),
    *("searches", "undecided", "repeated", "contradicted"),
    *("candidates_left", "duplicates", "states", "labels", "first_errors"),
  )
  return (
    {name: work.get(name, 0) for name in names}
    | prefix_rollouts.counts(work)
    | dict(brute_force_rollouts=work.get("brute_force_rollouts", 0))
  )


def ratio(work: Mapping[str, int]) -> float:
  """Returns how many times as many rollouts brute force would take.

  Both find the same first errors, and so the same hard labels. The rollouts of
  the problems alone are counted as well. NaN if nothing was searched.
  """
  if not work.get("searches") or not work.get("rollouts"):
    return float("nan")
  return work["brute_force_rollouts"] / work["rollouts"]


def _roll_out(
  requests: Mapping[str, omega_tree.Request],
  problems: Mapping[str, Sequence[schema.Solution]],
  generate: schema.Generate,
  verify: schema.Verify,
  find_answer: schema.FindAnswer,
) -> tuple[dict[str, list[Rollout]], Counter[str]]:
  """Returns the rollouts that each problem asked for, and counts of them."""
  replies: dict[str, list[Rollout]] = {}
  work: Counter[str] = Counter()
  # One call, but for problems of which some first rollouts are given.
  for num in sorted({request.num_rollouts for request in requests.values()}):
    asking = [p for p, r in requests.items() if r.num_rollouts == num]
    starts = [
      prefix_rollouts.prefix(
        requests[p].whole or problems[p][0], requests[p].num_steps
      )
      for p in asking
    ]
    rows, done = prefix_rollouts.roll_out(
      starts, num, generate, verify, find_answer
    )
    work.update(done)
    replies |= zip(asking, rows, strict=True)
  return replies, work


def _advance(
  searches: Mapping[str, omega_tree.Search],
  replies: Mapping[str, Sequence[Rollout] | None],
  trees: dict[str, Tree],
) -> Iterator[tuple[str, omega_tree.Request]]:
  """Yields the next request of each search; those that end become trees."""
  for problem, reply in replies.items():
    try:
      request = searches[problem].send(reply)
    except StopIteration as end:
      trees[problem] = end.value
    else:
      yield problem, request


def _values(tree: Tree, path: omega_tree.Path) -> list[float | None]:
  """Returns MC after each step of a path, None for those not in the tree."""
  values: list[float | None] = [None] * len(path.steps)
  for n in range(1, path.num_right + 1):
    state = tree.states.get(path.steps[:n])
    values[n - 1] = None if state is None else state.value
  if path.num_wrong is not None:
    # Rolled out from or not: at its end the answer is known to be wrong.
    values[path.num_wrong - 1] = 0.0
  return values


def _proven(tree: Tree) -> set[omega_tree.Steps]:
  """Returns the prefixes from which a right end was found."""
  return {
    path.steps[:n] for path in tree.paths for n in range(1, path.num_right + 1)
  }


def _counts(
  tree: Tree, labelled: Sequence[schema.Solution], given: int, options: Options
) -> dict[str, int]:
  value, paths = tree.states[()].value, tree.paths
  proven = _proven(tree) if options.hard else set()
  wrong = [
    path.steps[: path.num_wrong] for path in paths if path.num_wrong is not None
  ]
  prefixes = {
    path.steps[:n] for path in paths for n in range(1, len(path.steps))
  }
  return dict(
    problems=1,
    dropped_none_right=int(value == 0),
    dropped_all_right=int(value == 1),
    dropped_untold=int(value is None),
    dropped_unsearched=int(value not in (None, 0, 1) and not paths),
    given=given,
    searches=len(paths),
    undecided=len(paths) - len(wrong),
    repeated=len(paths) - len(labelled),
    contradicted=sum(steps in proven for steps in wrong),
    candidates_left=tree.left,
    duplicates=tree.duplicates,
    states=len(tree.states) - 1,
    labels=sum(x is not None for s in labelled for x in s.labels or ()),
    first_errors=len(set(wrong)),
    brute_force_rollouts=options.completions * len(prefixes),
  )
