"""What a labelling job would take: nothing is asked, loaded or written.

Counts are exact where the labeller's own work is; what a policy will write isn't
known, so tokens are an estimate and a most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import logging
import math

from prm_jax import schema
from prm_jax.jobs import policies
from prm_jax.jobs import report
from prm_jax.labelling import cpmi as cpmi_lib
from prm_jax.labelling import judge_prompts
from prm_jax.labelling import monte_carlo as monte_carlo_lib
from prm_jax.labelling import omega_tree
from prm_jax.labelling import prefix_rollouts
from prm_jax.runtime import files
from prm_jax.runtime import verbs

_logger = logging.getLogger(__name__)

_CHARACTERS = 4  # of a token, if a server has the tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned(verbs.Value):
  """A job that may be planned before it is begun.

  Args:
    plan: Say what there is to do, such as how many completions and tokens, and
      end: no server is asked, no weights are loaded, and nothing is written.
    tokens_per_s: With --plan, also say how long it takes at this rate; a run
      says its own at its end.
  """

  plan: bool = False
  tokens_per_s: verbs.Positive | None = None

  def _faults(self) -> Iterator[str]:
    yield from super()._faults()
    if self.tokens_per_s is not None and not self.plan:
      yield (
        f"`tokens_per_s={self.tokens_per_s:g}`: is for `plan`, which isn't"
        " given; take it out"
      )


@dataclasses.dataclass(frozen=True)
class Lengths:
  """How many tokens a policy's texts have.

  Args:
    of_prompt: Returns those of a problem as it is sent, before the first step.
    of_text: Returns those of a step, or of another text after the prompt.
    how: How they are counted, in words.
    is_server: Whether each completion is a request, whose prompt is read; else
      a prompt is read once for all its completions.
    spells: Whether the policy's vocabulary can write a text.
    check_begun: Raises InputError if the policy doesn't continue a solution
      that has steps.
  """

  of_prompt: Callable[[str], float]
  of_text: Callable[[str], float]
  how: str
  is_server: bool
  spells: policies.Spells = lambda text: True
  check_begun: Callable[[schema.Solution], None] = lambda prefix: None

  def of_steps(self, steps: Sequence[str]) -> float:
    """Returns the tokens of steps together."""
    return sum(map(self.of_text, steps))


@dataclasses.dataclass(frozen=True)
class Work:
  """What is left to do.

  Args:
    counts: What is said of it, by name.
    completions: The completions to draw, at most.
    written: An estimate of the tokens of these; None if there is none.
    read: An estimate of the tokens of the prompts.
    means: What these estimates are, in words.
  """

  counts: Mapping[str, int]
  completions: int
  written: float | None
  read: float
  means: str = "about"


# --- The work of each labeller ------------------------------------------------


def monte_carlo(
  solutions: Sequence[schema.Solution],
  options: monte_carlo_lib.Options,
  lengths: Lengths,
) -> Work:
  """Returns the work of label monte_carlo: completions of each prefix.

  Args:
    solutions: What is left to label.
    options: How many rollouts are drawn.
    lengths: The policy's.
  """
  written = read = 0.0
  first = monte_carlo_lib.distinct_prefixes(solutions)
  # The engine computes a prompt that begins another one with that one.
  inner = {key[:-1] for key in first}
  for key, s in [*first.items()][:1]:  # the others have begun, too
    lengths.check_begun(prefix_rollouts.prefix(s, len(key) - 1))
  for key, s in first.items():
    so_far = len(key) - 1
    written += options.completions * lengths.of_steps(s.steps[so_far:])
    prompt = lengths.of_prompt(s.problem) + lengths.of_steps(s.steps[:so_far])
    if lengths.is_server:
      read += options.completions * prompt
    elif key not in inner:
      read += prompt
  completions = options.completions * len(first)
  may_stop = options.stops or options.stop_at_zero
  name = "completions, at most" if may_stop else "completions"
  counts = {"distinct prefixes": len(first), name: completions}
  return Work(counts, completions, written, read)


def omega_prm(
  solutions: Sequence[schema.Solution],
  options: omega_tree.Options,
  max_tokens: int,
  lengths: Lengths,
) -> Work:
  """Returns the most work of label omega_prm; see omega_tree.search.

  A binary search among n steps tries ceil(log2(n)) of them at most, and a step
  has a token. How many searches there are depends on what rollouts turn out to
  be: mostly far fewer. How long these are is taken from the input's solutions.

  Args:
    solutions: The problems and solutions that are left.
    options: How a problem is searched.
    max_tokens: The most tokens of a completion.
    lengths: The policy's.
  """
  given: dict[str, list[schema.Solution]] = {}
  for s in solutions:
    lengths.check_begun(schema.Solution(s.id, s.problem, ("a step",)))
    given.setdefault(s.problem, [])
    if s.steps:
      given[s.problem].append(s)
  whole = [lengths.of_steps(s.steps) for same in given.values() for s in same]
  mean = sum(whole) / len(whole) if whole else None
  completions, read = 0, 0.0
  for problem, same in given.items():
    missing = max(options.root_rollouts - len(same), 0)
    longest = max(max_tokens, *(len(s.steps) for s in same), 2)
    of_search = options.completions * (longest - 1).bit_length()
    most = missing + options.searches * of_search
    if options.max_rollouts is not None:  # after so many no search begins
      most = min(most, max(missing, options.max_rollouts - 1 + of_search))
    completions += most
    prompts = most
    if not lengths.is_server:
      prompts = bool(missing) + -(-(most - missing) // options.completions)
    # Half a solution is before the middle state of a search.
    read += prompts * (lengths.of_prompt(problem) + (mean or 0) / 2)
  written = None if mean is None else completions * mean
  counts = {"completions, at most": completions}
  means = "at most, with texts as long as the input's"
  if mean is None:
    means = "of the problems, at most"
  return Work(counts, completions, written, read, means)


def judge(
  solutions: Sequence[schema.Solution],
  template: judge_prompts.Template,
  votes: int,
  by_words: bool,
  lengths: Lengths,
) -> Work:
  """Returns the work of label judge: votes on each distinct solution.

  Args:
    solutions: What is left to label.
    template: How the judge is asked.
    votes: The number of answers about each.
    by_words: Whether the verdicts' words are weighed, too.
    lengths: The judge's.
  """
  asked = {judge_prompts.ask(template, s): s for s in solutions if s.steps}
  completions = votes * len(asked)
  prompts = votes if lengths.is_server else 1
  read = prompts * sum(map(lengths.of_prompt, asked))
  written = votes * sum(lengths.of_steps(s.steps) for s in asked.values())
  counts = {"distinct solutions": len(asked), "judge requests": completions}
  if by_words:
    words = len(template.step_words or ()), len(template.whole_words or ())
    counts["weighed words, at most"] = votes * sum(
      words[0] * len(s.steps) + words[1] for s in asked.values()
    )
  return Work(counts, completions, written, read)


def cpmi(
  solutions: Sequence[schema.Solution],
  references: Mapping[str, str],
  options: cpmi_lib.Options,
  lengths: Lengths,
) -> Work:
  """Returns the work of label cpmi: texts that are read.

  Args:
    solutions: What is left to label.
    references: The right answer to each problem's text.
    options: What a reward is.
    lengths: The policy's.
  """
  asked, without = cpmi_lib.questions(
    solutions, lengths.spells, references, options
  )
  num_texts, read = 0, 0.0
  for prefixes, texts in asked:
    num_texts += len(prefixes) * len(texts)
    shown = [prefix.steps[:-1] for prefix in prefixes]
    prompt, ends = (
      lengths.of_prompt(prefixes[0].problem),
      lengths.of_steps(texts),
    )
    if lengths.is_server:
      begun = sum(prompt + lengths.of_steps(steps) for steps in shown)
      read += len(texts) * begun + len(shown) * ends
      continue
    # What several begin with is computed once.
    ends -= (len(texts) - 1) * lengths.of_text(options.force)
    nodes = {steps[:k] for steps in shown for k in range(1, len(steps) + 1)}
    own = sum(lengths.of_text(steps[-1]) for steps in nodes)
    read += prompt + own + len(shown) * ends
  counts = {"texts weighed": num_texts}
  if without:
    counts["without labels: no wrong answer"] = without
  return Work(counts, 0, 0.0, read)


# --- What a policy's texts have as tokens -------------------------------------


def lengths_of(policy: policies.Policy) -> Lengths:
  """Returns how a policy counts tokens, without loading its weights.

  Args:
    policy: The policy.

  Raises:
    InputError: The folder holds no policy or lacks the step, there is no such
      dtype, an option of a server is wrong, or its key isn't there.
  """
  return _at_server(policy) if policy.is_server else _of_folder(policy)


def _of_folder(policy: policies.Policy) -> Lengths:
  from prm_jax.checkpoints import model_json
  from prm_jax.checkpoints import saves
  from prm_jax.jobs import opened_policies
  from prm_jax.models import model_config
  from prm_jax.policy import sampler

  folder = files.local_path(policy.source)
  description = model_json.read_description(folder)
  model_config.computing_in(description.model, policy.dtype)
  loaded = sampler.of_description(folder, description)
  saves.chosen(folder, policy.step)

  @functools.cache
  def of_prompt(problem: str) -> float:
    return len(loaded.codec.prompt(schema.Solution("", problem, ())).tokens)

  @functools.cache
  def of_text(text: str) -> float:
    return len(loaded.tokenizer.encode(text)) + 1

  how = "tokens are the policy's"
  spells = opened_policies.spelling(loaded.tokenizer)
  return Lengths(of_prompt, of_text, how, False, spells)


def _at_server(policy: policies.Policy) -> Lengths:
  from prm_jax.jobs import opened_policies
  from prm_jax.remote import texts

  with opened_policies.asking(policy, None) as (client, _):
    endpoint, template = client.endpoint, client.template

  @functools.cache
  def of_prompt(problem: str) -> float:
    body = texts.prompt(schema.Solution("", problem, ()), template, endpoint)
    sent = [x["content"] for x in body.get("messages", ())]
    return sum(map(len, sent or [body["prompt"]])) / _CHARACTERS

  def of_text(text: str) -> float:
    return len(text + template.separator) / _CHARACTERS

  how = f"a token is taken to have {_CHARACTERS} characters"

  def check_begun(prefix: schema.Solution) -> None:
    texts.check_begun([prefix], template, endpoint)

  return Lengths(of_prompt, of_text, how, True, check_begun=check_begun)


# --- What is said -------------------------------------------------------------


def tell(
  solutions: Sequence[schema.Solution],
  unable: Mapping[str, str],
  kept: frozenset[str],
  work: Work,
  *,
  max_tokens: int,
  how: str,
  tokens_per_s: float | None,
) -> None:
  """Logs what is to be done, and how long it takes at a rate.

  Args:
    solutions: What the job labels.
    unable: Why a solution can't be labelled, by id.
    kept: Those that the journal has.
    work: What is left.
    max_tokens: The most tokens of a completion.
    how: How tokens are counted.
    tokens_per_s: The rate; None says no time.
  """
  _logger.info("a plan: nothing is asked, and nothing is written")
  report.counted(
    dict(
      solutions=len(solutions),
      problems=len({s.problem for s in solutions}),
      steps=sum(len(s.steps) for s in solutions),
    )
    | {f"without labels: {x}": n for x, n in Counter(unable.values()).items()}
    | {"in the journal already": len({s.id for s in solutions} & kept)}
    | dict(work.counts)
  )
  tokens: dict[str, int] = {}
  most = work.completions * max_tokens
  if work.completions and work.written is not None:
    # A text of the input may be longer than a completion may be.
    tokens[f"tokens to write, {work.means}"] = min(
      math.ceil(work.written), most
    )
  if work.completions:
    tokens["tokens to write, at most"] = most
  tokens[f"tokens to read, {work.means}"] = math.ceil(work.read)
  report.counted(tokens)
  _logger.info(how)
  if tokens_per_s is None:
    return
  # A job that writes nothing reads.
  named = "read" if not work.completions else "write"
  times = "; ".join(
    f"{name.partition(', ')[2]}: {_duration(n / tokens_per_s)}"
    for name, n in tokens.items()
    if name.startswith(f"tokens to {named}")
  )
  _logger.info(f"at {tokens_per_s:,g} tokens/s: {times}")


def _duration(seconds: float) -> str:
  """Returns a time in words, of two or three digits."""
  for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
    if seconds >= 2 * size:
      return f"{seconds / size:,.1f} {unit}"
  return f"{seconds:,.0f} s"
