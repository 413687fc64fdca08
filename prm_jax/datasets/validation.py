"""Finds what is wrong with a set of solutions before a model is trained on it.

It makes one pass over the solutions and holds no text, only digests of what
must not come twice. An error is what makes training or its evaluation wrong in
any case. A warning depends on what the set is for, or training handles and
counts it. Every line says how to fix it. Every reader already checks that ids
are unique and that labels are in [0, 1].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import hashlib
import re
import textwrap
from typing import Any

from prm_jax import schema
from prm_jax.datasets import annotators
from prm_jax.datasets import decontamination
from prm_jax.datasets.formats import step_numbers
from prm_jax.evaluation import agreement
from prm_jax.evaluation import agreement_texts
from prm_jax.records import sources
from prm_jax.runtime import progress
from prm_jax.runtime import terminal
from prm_jax.text import encoding
from prm_jax.text import messages
from prm_jax.text import tokenizer as tokenizer_lib

# What the public recipes look for in a text: Qwen's and Math-Shepherd's step
# tags, the blank lines that Qwen's and RLHFlow's recipes split at, and names
# of control tokens, ours among them.
SEPARATORS = (
  *("<extra_0>", "ки", "\n\n", tokenizer_lib.SEPARATOR_PIECE),
  *("</s>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>"),
)

# Each check, and how to fix what it finds.
_ERRORS = {
  "contamination": "problems of the test set: name its file in data.exclude,"
  " or run prm-jax data split --against",
  "conflicts": "one step after one prefix, labelled right and wrong: keep one"
  " label of each, or their mean",
  "outcome_conflicts": "one solution with a right and a wrong outcome: check"
  " the answers",
  "blank_steps": "labelled steps without a text: drop them",
  "blank_problems": "solutions without a problem: drop them",
  "no_steps": "solutions without a step: drop them",
  "no_targets": "no step has a target and no solution an outcome: check"
  " the format and the label policy",
}
_WARNINGS = {
  "near_contamination": "problems that share most of their words with one of"
  " the test set: look at them; templates of one book are not yet leaks",
  "equal_solutions": "count once in training: data.deduplicate = True, the"
  " default",
  "mark_steps": "steps without a letter, a digit or a formula's sign, as --- or"
  " **: join them to the next step, or drop them",
  "numbered_steps": "solutions whose steps begin with their numbers, as Step 1:"
  " a mapping with numbers=remove takes them off (docs/data.md)",
  "wrong_without_error": "solutions with a wrong outcome whose steps are all"
  " labelled right: check the labels of the last steps, and the answers",
  "one_sided": "all targets are right, or all wrong: a PRM can't learn from"
  " them alone",
  "truncated_targets": "targets lost to max_tokens: raise it, or split long"
  " solutions",
  "separators_in_text": "solutions whose text holds a separator: nothing moves"
  " here, where step ends are positions; replace it before other tools scan"
  " for it",
}
CHECKS = _ERRORS | _WARNINGS
# People disagree now and then: of PRM800K's labelled prefixes .06 % (phase 1)
# and .3 % (a sample of phase 2) are in conflict. A larger share is an error.
MAX_CONFLICTS = 0.01
_SHOWN_STEPS = 10
_MAX_EXAMPLES = 20


_SIDES = ("right", "wrong", "none")
# A letter, a digit, or a sign that alone can be a step's claim.
_SAYS_SOMETHING = re.compile(r"[^\W_]|[=<>±∎□✓✗∴√∞≤≥≠]")


def examine(
  solutions: Iterable[schema.Solution],
  policy: encoding.LabelPolicy,
  *,
  tokenizer: tokenizer_lib.Tokenizer | None = None,
  encoding_config: encoding.EncodingConfig | None = None,
  against: decontamination.Index | None = None,
  allow: Sequence[str] = (),
) -> dict[str, Any]:
  """Returns the counts, and the level, count, examples and fix of each check.

  Targets are those that training would use under the policy. Conflicts are an
  error if more than MAX_CONFLICTS of the labelled prefixes, or of the solutions
  with an outcome, have one. The memory grows by some 150 bytes for each
  labelled prefix and each solution with an outcome; the labels of solutions that
  name their annotator are kept.

  Args:
    solutions: The solutions.
    policy: How labels and ratings become targets.
    tokenizer: The tokenizer of training. Without tokenizer and encoding_config,
      the check of truncation has level "skipped".
    encoding_config: The encoding of training.
    against: The problems of a test set. Without it, the checks of contamination
      have level "skipped".
    allow: The names of checks whose failure is a warning.
  """
  tally = _Tally()
  skipped = set()
  if against is None:
    skipped |= {"contamination", "near_contamination"}
  if tokenizer is None or encoding_config is None:
    skipped |= {"truncated_targets"}
  for solution in progress.through("check", solutions):
    targets = encoding.step_labels(solution, policy)
    _count(solution, targets, tally)
    _check_texts(solution, targets, tally)
    _check_problem(solution, against, tally)
    _check_labels(solution, targets, tally)
    if (judgement := annotators.judgement(solution)) is not None:
      tally.judgements.append(judgement)
    if tokenizer is not None and encoding_config is not None:
      encoded = encoding.encode_solution(solution, tokenizer, encoding_config)
      kept = 0 if encoded is None else len(encoded.step_end)
      lost = [side for side in map(_side, targets[kept:]) if side != "none"]
      tally.lost.update(lost)
      if lost:
        tally.note("truncated_targets", solution.id, len(lost))
  _check_set(tally)
  return _results(tally, skipped, allow) | dict(
    max_tokens=None if encoding_config is None else encoding_config.max_tokens
  )


@dataclasses.dataclass
class _Tally:
  """What was seen so far.

  totals: solutions, steps, outcomes, and the targets of each side. problems:
  from a problem's key to whether it is one of the test set. texts: digests of
  problems as they are written. rows: digests of
  whole solutions. sides: from the digest of a labelled prefix to the sides of
  its labels, 1 wrong, 2 right, 3 both; outcomes: the same of whole solutions.
  judgements: of the solutions that name their annotator. count and examples: by
  check.
  """

  totals: Counter[str] = dataclasses.field(default_factory=Counter)
  by_step: dict[int, Counter[str]] = dataclasses.field(default_factory=dict)
  messages: Counter[str] = dataclasses.field(default_factory=Counter)
  separators: Counter[str] = dataclasses.field(default_factory=Counter)
  lost: Counter[str] = dataclasses.field(default_factory=Counter)
  problems: dict[str, bool] = dataclasses.field(default_factory=dict)
  texts: set[bytes] = dataclasses.field(default_factory=set)
  rows: set[bytes] = dataclasses.field(default_factory=set)
  sides: dict[bytes, int] = dataclasses.field(default_factory=dict)
  outcomes: dict[bytes, int] = dataclasses.field(default_factory=dict)
  judgements: list[agreement.Judgement] = dataclasses.field(
    default_factory=list
  )
  count: Counter[str] = dataclasses.field(default_factory=Counter)
  examples: dict[str, list[str]] = dataclasses.field(default_factory=dict)

  def note(self, check: str, example: str, times: int = 1) -> None:
    self.count[check] += times
    examples = self.examples.setdefault(check, [])
    if len(examples) < _MAX_EXAMPLES:
      examples.append(example)


def _count(solution, targets, tally: _Tally) -> None:
  tally.totals["solutions"] += 1
  tally.totals["steps"] += len(targets)
  tally.totals["outcomes"] += solution.outcome is not None
  tally.messages.update(messages.counts(solution))
  for i, side in enumerate(map(_side, targets)):
    tally.totals[side] += 1
    tally.by_step.setdefault(i, Counter())[side] += 1


def _side(target: float | None) -> str:
  return "none" if target is None else "wrong" if target < 0.5 else "right"


def _check_texts(solution, targets, tally: _Tally) -> None:
  """Notes blank texts, missing steps and separators in a solution's texts."""
  if not solution.problem.strip():
    tally.note("blank_problems", solution.id)
  if not solution.steps:
    tally.note("no_steps", solution.id)
  for step, target in zip(solution.steps, targets):
    if target is not None and not step.strip():
      tally.note("blank_steps", solution.id)
    elif step.strip() and not _SAYS_SOMETHING.search(step):
      tally.note("mark_steps", solution.id)
  if len(solution.steps) > 1 and step_numbers.count(solution.steps) > 1:
    tally.note("numbered_steps", solution.id)
  texts = (solution.problem, *solution.steps)
  inside = [x for x in SEPARATORS if any(x in text for text in texts)]
  tally.separators.update(inside)
  if inside:
    tally.note("separators_in_text", solution.id)


def _check_problem(solution, against, tally: _Tally) -> None:
  """Notes a new problem that overlaps with one of the test set."""
  key = sources.problem_key(solution.problem)
  if key not in tally.problems:
    overlap = against and decontamination.find(solution.problem, against)
    tally.problems[key] = bool(overlap and overlap.is_equal)
    if overlap and overlap.is_equal:
      tally.note("contamination", f"{solution.id} = {overlap.id}")
    elif overlap:
      near = f"{solution.id} ~ {overlap.id} ({overlap.share:.2f})"
      tally.note("near_contamination", near)
  tally.totals["contaminated_solutions"] += tally.problems[key]


def _check_labels(solution, targets, tally: _Tally) -> None:
  """Notes equal solutions, and steps labelled otherwise elsewhere."""
  digest = hashlib.blake2b(digest_size=12)
  _feed(digest, solution.problem)
  tally.texts.add(digest.digest())
  contexts, after = _contexts(solution)
  for step, target, context in zip(solution.steps, targets, contexts):
    for text in (*context, step):
      _feed(digest, text)
    if target is not None:
      is_right = target >= 0.5
      if _is_conflict(tally.sides, digest.digest(), is_right):
        tally.note("conflicts", solution.id)
  for text in after:
    _feed(digest, text)
  is_right = targets and all(_side(x) == "right" for x in targets)
  if solution.outcome is False and is_right:
    tally.note("wrong_without_error", solution.id)
  if solution.outcome is not None and _is_conflict(
    tally.outcomes, digest.digest(), solution.outcome
  ):
    tally.note("outcome_conflicts", solution.id)
  row = sources.record_digest(solution)
  if row in tally.rows:
    tally.note("equal_solutions", solution.id)
  tally.rows.add(row)


def _contexts(
  solution: schema.Solution,
) -> tuple[list[list[str]], list[str]]:
  """Returns what is read between each step and the one before, and after all."""
  if solution.messages is None:
    return [[]] * len(solution.steps), []
  tools, *heard = messages.heard(solution)
  before = [[tools]]
  for message, text in zip(solution.messages, heard):
    if message.role != "assistant":
      before[-1].append(text)
    elif solution.spans is None:
      before[-1].append(text)
      before.append([])
    else:  # Of a turn that is cut, its steps don't follow all of it.
      before[-1].append(str(message.thinking))
      before.append([text])
  turns = schema.turns_of(solution)
  starts = (a != b for a, b in zip(turns, (-1, *turns)))
  contexts = [
    before[turn] if starts_turn else []
    for turn, starts_turn in zip(turns, starts)
  ]
  return contexts, before[-1]


def _is_conflict(seen: dict[bytes, int], key: bytes, is_right: bool) -> bool:
  """Notes a label; returns whether it is the first to contradict another."""
  before = seen.get(key, 0)
  seen[key] = now = before | (2 if is_right else 1)
  return now == 3 and before != 3


def _feed(digest, text: str) -> None:
  data = text.encode("utf-8", "surrogatepass")
  # The length first, so that no two sequences of texts feed the same bytes.
  digest.update(len(data).to_bytes(8, "big") + data)


def _check_set(tally: _Tally) -> None:
  """Notes what only the whole set shows."""
  totals = tally.totals
  num_targets = totals["right"] + totals["wrong"]
  if not num_targets and not totals["outcomes"]:
    tally.count["no_targets"] = 1
  if num_targets and 0 in (totals["right"], totals["wrong"]):
    tally.count["one_sided"] = 1


def _results(tally: _Tally, skipped, allow) -> dict[str, Any]:
  totals = tally.totals
  # Of what a check's count is a part; 0 where it is no share of anything.
  of = dict.fromkeys(CHECKS, totals["solutions"]) | dict(
    contamination=len(tally.problems),
    near_contamination=len(tally.problems),
    conflicts=len(tally.sides),
    outcome_conflicts=len(tally.outcomes),
    blank_steps=totals["steps"],
    mark_steps=totals["steps"],
    wrong_without_error=totals["outcomes"],
    no_targets=0,
    one_sided=0,
    truncated_targets=totals["right"] + totals["wrong"],
  )
  return dict(
    solutions=totals["solutions"],
    problems=len(tally.problems),
    problem_texts=len(tally.texts),
    steps=totals["steps"],
    targets={side: totals[side] for side in _SIDES},
    messages=dict(tally.messages),
    by_step=[
      dict(step=i, **{side: counts[side] for side in _SIDES})
      for i, counts in sorted(tally.by_step.items())
    ],
    contaminated_solutions=totals["contaminated_solutions"],
    lost_targets={side: tally.lost[side] for side in _SIDES[:2]},
    separators=dict(tally.separators),
    agreement=agreement.measured(tally.judgements),
    checks=[
      dict(
        check=check,
        level=_level(check, tally.count[check], of[check], skipped, allow),
        count=tally.count[check],
        of=of[check],
        examples=tally.examples.get(check, []),
        mend=mend,
      )
      for check, mend in CHECKS.items()
    ],
  )


def _level(check, count, of, skipped, allow) -> str:
  if check in skipped:
    return "skipped"
  if not count:
    return "ok"
  few_conflicts = check.endswith("conflicts") and count <= MAX_CONFLICTS * of
  is_error = check in _ERRORS and check not in allow and not few_conflicts
  return "error" if is_error else "warning"


def errors(results: dict[str, Any]) -> list[str]:
  """Returns the names of the checks that failed as errors."""
  return [c["check"] for c in results["checks"] if c["level"] == "error"]


def table(results: dict[str, Any]) -> str:
  """Returns the results as text: counts, labels by step index, checks.

  results may also have "left_out", counts by reason.
  """
  targets = results["targets"]
  problems = sources.problems_text(
    results["problems"], results["problem_texts"]
  )
  lines = [
    f"{results['solutions']:,} solutions of {problems},"
    f" {results['steps']:,} steps; targets: {targets['right']:,} right,"
    f" {targets['wrong']:,} wrong, {targets['none']:,} none",
    *(
      [messages.counts_text(of)] if (of := Counter(results["messages"])) else []
    ),
    "",
    f"{'step':>7}{'right':>10}{'wrong':>10}{'none':>10}  wrong share",
  ]
  for name, counts in _step_rows(results["by_step"]):
    known = counts["right"] + counts["wrong"]
    share = f"{counts['wrong'] / known:.1%}" if known else "-"
    numbers = "".join(f"{counts[side]:>10,}" for side in _SIDES)
    lines.append(f"{name:>7}{numbers}  {share:>11}")
  lines += ["", f"{'level':<9}{'check':<20}{'count':>10}{'share':>9}  example"]
  for c in results["checks"]:
    share = f"{c['count'] / c['of']:.2%}" if c["of"] else "-"
    example = c["examples"][0] if c["examples"] else ""
    example = terminal.visible(str(example), one_line=True)
    lines.append(
      f"{c['level']:<9}{c['check']:<20}{c['count']:>10,}{share:>9}"
      f"  {example}".rstrip()
    )
    if c["level"] in ("error", "warning"):
      wrapped = textwrap.wrap(c["mend"], 79 - 9, break_on_hyphens=False)
      lines += [f"{'':9}{line}" for line in wrapped]
  separators = sorted(results["separators"].items())
  if separators:
    counted = ", ".join(f"{name!r} in {n:,}" for name, n in separators)
    lines += ["", f"separators: {counted} solutions"]
  lost = results["lost_targets"]
  if any(lost.values()):
    counted = ", ".join(
      f"{lost[side]:,} of {targets[side]:,} {side} targets"
      for side in _SIDES[:2]
    )
    max_tokens = results["max_tokens"]
    lines += ["", f"lost to truncation at {max_tokens:,} tokens: {counted}"]
  if results["agreement"] is not None:
    lines += ["", *agreement_texts.texts(results["agreement"])]
    merge = (
      "one of each solution: prm-jax data convert --annotators=vote, or mean"
    )
    lines += ["", merge]
  lines += sources.left_out_texts(results.get("left_out", {}))
  return "\n".join(lines)


def _step_rows(by_step) -> Iterator[tuple[str, Counter[str]]]:
  """Yields the first steps one by one, and the later ones together."""
  rest: Counter[str] = Counter()
  for row in by_step:
    counts = Counter({side: row[side] for side in _SIDES})
    if row["step"] < _SHOWN_STEPS:
      yield str(row["step"]), counts
    else:
      rest.update(counts)
  if rest:
    yield f">={_SHOWN_STEPS}", rest
