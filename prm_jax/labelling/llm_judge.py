"""Labels by an LLM judge, which marks the steps in one or more votes.

The judge is any `Generate`: an LLM at an endpoint, or a generative verifier of
our own (docs/judge.md). Its prompt is given as a problem without steps, and the
template's strict reader reads its answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import hashlib
import itertools
import math
from typing import Any, get_args, Literal

from prm_jax import errors as errors_lib
from prm_jax import schema
from prm_jax.labelling import judge_prompts
from prm_jax.runtime import checks

Vote = Literal["share", "majority", "log_likelihood"]


@dataclasses.dataclass(frozen=True)
class _Chain:
  """A readable answer of the judge.

  parts: its text as the judge split it. weights: P(correct so far) of each
  step, and p_yes: of the whole solution; with a LogLikelihood only.
  """

  id: str
  prompt: str
  parts: tuple[str, ...]
  verdict: judge_prompts.Verdict
  weights: tuple[float, ...] | None = None
  p_yes: float | None = None


def label(
  solutions: Sequence[schema.Solution],
  generate: schema.Generate,
  template: judge_prompts.Template,
  *,
  votes: int = 1,
  min_votes: int = 1,
  vote: str | None = None,
  log_likelihoods: schema.LogLikelihood | None = None,
  keep_texts: bool = False,
  progress: Callable[[int], None] = lambda done: None,
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns the solutions as the judge labels them, and the work it took.

  Solutions of equal problem and steps are judged once. extra gets
  `first_errors`, of each readable vote, and with a LogLikelihood `p_yes` (the
  mean over votes, Khalifa et al. 2025, arXiv 2504.16828), and with a rubric
  `graded`: the labels, scores and critiques of each principle. Without enough
  readable votes all labels are None; the work says how often and why.

  Args:
    solutions: The solutions to label.
    generate: The judge.
    template: How it is asked, and how its answer is read.
    votes: The number of answers about each solution.
    min_votes: Fewer readable answers make no label.
    vote: How votes become labels. `share`: the share of votes by which a step
      is correct so far, with a rubric the mean of their labels. `majority`: the majority's first error, 0 from there
      on; a tie makes no label. `log_likelihood`: the mean over votes of
      P(correct) / (P(correct) + P(incorrect)), the least of the steps so far.
      By default log_likelihood with a LogLikelihood, else share.
    log_likelihoods: The judge's probability of words; the template must have
      words.
    keep_texts: Whether extra gets `critiques`, all that the judge wrote.
    progress: Called with the number of solutions that are finished.

  Raises:
    InputError: Numbers or names make no sense together.
  """
  vote = vote or ("log_likelihood" if log_likelihoods else "share")
  check(template, votes, min_votes, vote, log_likelihoods is not None)
  keys = ("solutions", "labelled", "judged", "verdicts", "unparsable")
  work = Counter(dict.fromkeys((*keys, "tokens", "unended"), 0))
  prompts = [
    judge_prompts.ask(template, s) if s.steps else None for s in solutions
  ]
  num_steps = {
    prompt: len(s.steps) for prompt, s in zip(prompts, solutions) if prompt
  }
  answers = _answers(template, num_steps, generate, votes)
  chains = {
    prompt: _readable(template, row, prompt, num_steps[prompt], work)
    for prompt, row in answers.items()
  }
  if log_likelihoods is not None:
    chains = _weighted(template, chains, num_steps, log_likelihoods, work)
  labelled = []
  for prompt, s in zip(prompts, solutions, strict=True):
    row = answers.get(prompt, []) if prompt else []
    readable = chains.get(prompt, []) if prompt else []
    labels = _labels(len(s.steps), readable, vote, min_votes)
    work[labels if isinstance(labels, str) else "labelled"] += 1
    texts = row if keep_texts else None
    labelled.append(_labelled(s, labels, readable, texts, template.rubric))
  work["solutions"], work["judged"] = len(solutions), len(answers)
  progress(len(solutions))
  return labelled, dict(work)


def score(
  solutions: Sequence[schema.Solution],
  generate: schema.Generate,
  template: judge_prompts.Template,
  *,
  votes: int = 1,
  log_likelihoods: schema.LogLikelihood | None = None,
  unknown: float = 0.5,
  report: Callable[[dict[str, int]], None] = lambda work: None,
  progress: Callable[[int], None] = lambda done: None,
) -> list[schema.StepScores]:
  """Returns the judge's P(correct so far) of each step, without logits.

  With all but the solutions bound, this is a schema.Score. So a generative PRM
  can be compared with a discriminative one.

  Args:
    solutions: The solutions to score.
    generate: The judge.
    template: How it is asked, and how its answer is read.
    votes: The number of answers about each solution.
    log_likelihoods: The judge's probability of words.
    unknown: The score of steps without a readable answer, which don't count as
      judged.
    report: Called with the counts of the work, among them the number of such
      steps.
    progress: Called with the number of solutions that are finished.
  """
  labelled, work = label(
    solutions,
    generate,
    template,
    votes=votes,
    log_likelihoods=log_likelihoods,
    progress=progress,
  )
  report(work)
  return [
    schema.StepScores(
      tuple(unknown if x is None else x for x in s.labels or ()),
      judged=tuple(x is not None for x in s.labels or ()),
      graded=s.extra.get(judge_prompts.GRADED),
    )
    for s in labelled
  ]


# --- Asking and reading -----------------------------------------------------


def check(
  template: judge_prompts.Template,
  votes: int,
  min_votes: int,
  vote: str,
  weighs_words: bool,
) -> None:
  """Refuses what makes no sense together.

  Args:
    template: See `label`.
    votes: See `label`.
    min_votes: See `label`.
    vote: See `label`.
    weighs_words: Whether the judge gives log-probabilities of words.

  Raises:
    InputError: It doesn't.
  """
  checks.check_choice("vote", vote, get_args(Vote))
  errors_lib.raise_first(
    _contradictions(template, votes, min_votes, vote, weighs_words)
  )


def _contradictions(
  template: judge_prompts.Template,
  votes: int,
  min_votes: int,
  vote: str,
  weighs_words: bool,
) -> Iterator[str]:
  """Yields what makes no sense together; see check."""
  if not 1 <= min_votes <= votes:
    yield (
      f"votes={votes}, min_votes={min_votes}: expected 1 <= min_votes <= votes"
    )
  if vote == "log_likelihood" and not weighs_words:
    yield (
      "vote=log_likelihood: this judge gives no log-probabilities; use share or"
      " majority"
    )
  if weighs_words and template.step_words is None:
    yield (
      f"template {template.name}: its verdicts have no word per step to weigh;"
      " use thinkprm, or leave the log-probabilities out"
    )


def _answers(
  template: judge_prompts.Template,
  num_steps: Mapping[str, int],
  generate: schema.Generate,
  votes: int,
) -> dict[str, list[schema.Solution]]:
  """Returns what the judge writes about each prompt."""
  # An id is made of the content: equal prompts get equal samples everywhere.
  requests = [
    schema.Solution(f"{template.name}-{_digest(prompt)}", prompt, ())
    for prompt in num_steps
  ]
  rows = generate(requests, votes) if requests else []
  for request, row in zip(requests, rows, strict=True):
    if len(row) != votes:
      raise ValueError(f"{request.id}: {len(row)} answers instead of {votes}")
  return dict(zip(num_steps, rows, strict=True))


def _digest(text: str) -> str:
  # A lone surrogate has no UTF-8 form.
  return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _parts(answer: schema.Solution) -> tuple[str, ...]:
  """Returns the judge's text: raw, if that is known, or as its steps."""
  text = answer.raw_text
  if text is None:
    text = answer.extra.get("text")
  return answer.steps if text is None else (text,)


def _readable(
  template: judge_prompts.Template,
  row: Sequence[schema.Solution],
  prompt: str,
  num_steps: int,
  work: Counter[str],
) -> list[_Chain]:
  """Returns the answers that hold a verdict; counts the others by reason."""
  chains = []
  for i, answer in enumerate(row):
    parts = _parts(answer)
    work["verdicts"] += 1
    work["tokens"] += answer.extra.get("num_tokens", 0)
    if answer.extra.get("ended", True):
      verdict = template.read("\n".join(parts), num_steps)
    else:
      work["unended"] += 1
      verdict = "unended"
    if isinstance(verdict, str):
      work["unparsable"] += 1
      work[f"unparsable_{verdict}"] += 1
      continue
    name = f"{template.name}-{_digest(prompt)}#{i}"
    chains.append(_Chain(name, prompt, parts, verdict))
  return chains


# --- Probabilities of verdicts ----------------------------------------------


def _weighted(
  template: judge_prompts.Template,
  chains: Mapping[str, list[_Chain]],
  num_steps: Mapping[str, int],
  log_likelihoods: schema.LogLikelihood,
  work: Counter[str],
) -> dict[str, list[_Chain]]:
  """Returns the chains with the probabilities of their verdicts' words."""
  flat = [chain for row in chains.values() for chain in row]
  at_steps = [
    _until(chain, place, f"{chain.id}/{k}")
    for chain in flat
    for k, place in enumerate(chain.verdict.places)
  ]
  of_steps = iter(_shares(log_likelihoods, at_steps, template.step_words))
  of_wholes: list[float | None] = [None] * len(flat)
  if template.whole_words is not None:
    at_wholes = [_whole(template, chain) for chain in flat]
    of_wholes = _shares(log_likelihoods, at_wholes, template.whole_words)
    work["weighed"] += len(at_wholes)
  work["weighed"] += len(at_steps)
  weighted: dict[str, list[_Chain]] = {prompt: [] for prompt in chains}
  for chain, p_yes in zip(flat, of_wholes, strict=True):
    right = list(itertools.islice(of_steps, len(chain.verdict.places)))
    weights = None
    if None not in right:
      so_far = [*itertools.accumulate((x for x in right if x is not None), min)]
      # The form ended here: what follows is at most as right.
      more = num_steps[chain.prompt] - len(so_far)
      weights = (*so_far, *so_far[-1:] * more)
    work["unweighed"] += weights is None
    weighted[chain.prompt].append(
      dataclasses.replace(chain, weights=weights, p_yes=p_yes)
    )
  return weighted


def _until(chain: _Chain, place: int, name: str) -> schema.Solution:
  """Returns the chain up to a place in its text, within its last step."""
  steps = []
  for part in chain.parts:
    if place <= len(part):
      steps.append(part[:place])
      break
    steps.append(part)
    place -= len(part) + 1  # the line break that joins them
  return schema.Solution(name, chain.prompt, tuple(steps))


def _whole(template: judge_prompts.Template, chain: _Chain) -> schema.Solution:
  """Returns the chain up to the answer about the whole solution."""
  if chain.verdict.whole is not None:
    return _until(chain, chain.verdict.whole, f"{chain.id}/whole")
  *before, last = chain.parts
  asked = f"{last}\n{template.whole_question}"
  return schema.Solution(f"{chain.id}/whole", chain.prompt, (*before, asked))


def _shares(
  log_likelihoods: schema.LogLikelihood,
  prefixes: Sequence[schema.Solution],
  words: Sequence[str] | None,
) -> list[float | None]:
  """Returns P(first word) / P(either), None where neither has a chance."""
  assert words is not None
  rows = log_likelihoods(prefixes, words) if prefixes else []
  return [_share(right, wrong) for right, wrong in rows]


def _share(right: float, wrong: float) -> float | None:
  odds = wrong - right  # nats
  if math.isnan(odds):
    return None
  small = math.exp(-abs(odds))
  return small / (1 + small) if odds > 0 else 1 / (1 + small)


# --- Labels -----------------------------------------------------------------


def _labelled(
  solution: schema.Solution,
  labels: tuple[float | None, ...] | str,
  chains: Sequence[_Chain],
  answers: Sequence[schema.Solution] | None,
  rubric: str | None,
) -> schema.Solution:
  """Returns the solution with its labels, None where there's a reason."""
  extra = dict(solution.extra)
  if rubric is not None:
    extra.pop(judge_prompts.GRADED, None)  # of an earlier judge
    if not isinstance(labels, str):
      grades = _by_principle([x.verdict for x in chains])
      extra[judge_prompts.GRADED] = dict(rubric=rubric, principles=grades)
  if isinstance(labels, str):
    labels = (None,) * len(solution.steps)
  extra["first_errors"] = [x.verdict.first_error for x in chains]
  p_yes = [x.p_yes for x in chains if x.p_yes is not None]
  if p_yes:
    extra["p_yes"] = sum(p_yes) / len(p_yes)
  if answers is not None:
    extra["critiques"] = ["\n".join(_parts(answer)) for answer in answers]
  return dataclasses.replace(
    solution, labels=labels, ratings=None, source="judge", extra=extra
  )


def _by_principle(
  verdicts: Sequence[judge_prompts.Verdict],
) -> dict[str, dict[str, Any]]:
  """Returns labels and scores, means over the votes, and all critiques."""
  by_name = {
    name: [x.principles[name] for x in verdicts]
    for name in verdicts[0].principles
  }
  return {
    name: dict(
      labels=_means([x.labels for x in of]),
      scores=_means([x.scores for x in of]),
      critiques=[[*x.critiques] for x in of],
    )
    for name, of in by_name.items()
  }


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
  return [judge_prompts.mean(x) for x in zip(*rows, strict=True)]


def _labels(
  n: int, chains: Sequence[_Chain], vote: str, min_votes: int
) -> tuple[float | None, ...] | str:
  """Returns the labels of n steps, or the reason why there are none."""
  if not n:
    return "without_steps"
  if vote == "log_likelihood":
    weights = [x.weights for x in chains if x.weights is not None]
    if len(weights) < min_votes:
      return "too_few_votes"
    return tuple(_means(weights))
  errors = [x.verdict.first_error for x in chains]
  if len(errors) < min_votes:
    return "too_few_votes"
  if vote == "majority":
    (winner, most), *others = Counter(errors).most_common(2)
    if others and others[0][1] == most:
      return "tied"
    errors = [winner]
  graded = [x.verdict.labels for x in chains if x.verdict.labels is not None]
  if vote == "share" and graded:
    return tuple(_means(graded))
  # A vote finds right what comes before its first error.
  ends = [n if error < 0 else error for error in errors]
  return tuple(sum(k < end for end in ends) / len(ends) for k in range(n))
