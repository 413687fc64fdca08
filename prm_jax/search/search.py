"""`prm_jax.Search`: better answers of a policy, found with a reward model.

A batch of problems is one line of the journal, as in labelling: a run that was
killed resumes after the last batch, and writes the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import time
from typing import Any, TYPE_CHECKING

from prm_jax import errors
from prm_jax import schema
from prm_jax.grading import pool
from prm_jax.jobs import job_inputs
from prm_jax.jobs import journal
from prm_jax.jobs import journaled
from prm_jax.jobs import policies as policies_lib
from prm_jax.jobs import references
from prm_jax.jobs import report
from prm_jax.jobs import workers
from prm_jax.policy import sampling as sampling_lib
from prm_jax.records import fields
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import progress
from prm_jax.runtime import verbs
from prm_jax.search import adaptive
from prm_jax.search import bill
from prm_jax.search import choice
from prm_jax.search import mcts
from prm_jax.search import particles
from prm_jax.search import rules
from prm_jax.search import search_limits
from prm_jax.search import tree as tree_lib

if TYPE_CHECKING:
  from prm_jax.scoring import cached_scorer
  from prm_jax.search import search_models

_logger = logging.getLogger(__name__)

_FIRST = "in the first batch"
# The strategies, each a command.
RULES: tuple[type[rules.Rule], ...] = (
  *(rules.BestOfN, rules.Beam, rules.DiverseTrees, rules.Rebase),
  *(particles.ParticleFilter, mcts.MCTS, rules.RejectResample),
  *(rules.Speculate, adaptive.AdaptiveBestOfN, rules.ChunkGuidance),
)


@dataclasses.dataclass(frozen=True)
class SearchJob(journaled.EngineJob):
  """Which problems are searched, and where the results go.

  Args:
    input: The problems to search.
    output: The JSON Lines file to write, one line for each problem: the chosen
      solution with answers, candidates, bill and tree (docs/search.md).
    batch: The most problems that are searched together and saved together.
  """

  input: job_inputs.Problems
  output: verbs.Output
  batch: verbs.Count = dataclasses.field(default=16, kw_only=True)

  @property
  def timing(self) -> pathlib.Path:
    """The file of seconds and of what the machine did."""
    return self._beside("timing.jsonl")

  def replies(self, policy: str) -> pathlib.Path | None:
    """Returns the journal of a server's replies; each policy has its own.

    Args:
      policy: The policy's name.

    Returns:
      Its path; None if the output is the standard output.
    """
    is_draft = policy == rules.DRAFT
    output = self._beside("draft") if is_draft else self.output
    return policies_lib.replies_path(output)

  def _beside(self, what: str) -> pathlib.Path:
    output = pathlib.Path(self.output)
    return output.with_name(f"{output.name}.{what}")


@dataclasses.dataclass(frozen=True)
class Models:
  """What a search runs with.

  Args:
    policies: The policies, by their names.
    verifier: What scores.
    depends_on: What their texts and scores depend on, as plain data.
    verify: Grades solutions.
    work: What the machine does, as counts.
  """

  policies: Mapping[str, search_models.Policy]
  verifier: search_models.Verifier
  depends_on: dict[str, Any]
  verify: schema.Verify
  work: Counter[str]

  @property
  def costs(self) -> dict[str, Any]:
    """The cost of a token of each model."""
    costs = {name: policy.cost for name, policy in self.policies.items()}
    return costs | {bill.SCORER: self.verifier.cost}

  @property
  def compute_dtype(self) -> dict[str, str | None]:
    """The type that each model computes in."""
    types = {name: x.compute_dtype for name, x in self.policies.items()}
    return types | {bill.SCORER: self.verifier.compute_dtype}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Searching(pool.Graded, verbs.Verb):
  """A search by some rule.

  Args:
    policy: The model that writes.
    scorer: What scores steps: the checkpoint folder of a reward model,
      FILE.py:FUNCTION or MODULE:FUNCTION (of solutions, to a list of scores for
      each), or a server's address up to and including /v1; for chunk_guidance
      the checkpoint folder of the larger policy.
    sampling: How the policy samples.
    aggregate: How the scores of a solution's steps become one score (default:
      last where a threshold is for single steps, else what the checkpoint names,
      else product).
    cache_tokens: The most tokens whose keys and values the scorer keeps, in
      memory that it takes as they come; more are computed again.
    select: How the answer is chosen among the candidates: best (the highest
      score), weighted (the answer whose scores have the highest sum) or majority
      (the most frequent answer); --output has all three.
    limits: Where the search of a problem ends.
    max_step_tokens: The most tokens of a step (default: --max_tokens, which is
      of the whole solution).
    seed: The seed of all random numbers.
  """

  policy: policies_lib.Policy | files.PathLike
  scorer: verbs.Named
  sampling: sampling_lib.Sampling = dataclasses.field(
    default_factory=sampling_lib.Sampling
  )
  aggregate: schema.Aggregate | None = None
  cache_tokens: int = 65_536
  select: choice.Selection = "best"
  limits: search_limits.Limits = dataclasses.field(
    default_factory=search_limits.Limits
  )
  max_step_tokens: int | None = None
  seed: verbs.Seed = 0

  compiles = True
  writes_new = False

  @property
  def _rule(self) -> rules.Rule:
    raise NotImplementedError

  def __call__(
    self, problems: Iterable[schema.Problem]
  ) -> list[schema.Solution]:
    """Returns the solution that is chosen for each problem.

    Args:
      problems: The problems, each with an id of its own.

    Returns:
      The solutions, in the order of the problems. Their `extra` has answers,
      candidates, bill and tree (docs/search.md).

    Raises:
      InputError: Two problems have one id or one text and different answers, or
        a model can't be used.
    """
    problems, seen = list(problems), dict[str, str]()
    for i, problem in enumerate(problems):
      fields.unique_id(seen, problem.id, f"problem {i}")
    starts, found = job_inputs.starts(problems), dict[str, schema.Solution]()
    right = references.of(references.claimed(starts, "problem"))
    with (
      self._opened(right) as models,
      progress.showing(
        "search", len(starts), "problem", first=_FIRST
      ) as update,
    ):
      for batch in journal.batches(starts, SearchJob.batch):
        results, _ = self._searched(batch, models)
        found.update((s.id, s) for s in results)
        update(len(found))
    return [found[s.id] for s in starts]

  def run(self, job: SearchJob) -> None:
    """Searches what the journal of a file lacks, and writes the results.

    Args:
      job: The files.
    """
    self._run(job)

  def _run(self, job: SearchJob) -> list[schema.Solution]:
    """Returns all results, and writes them."""
    from prm_jax.search import solutions

    self._check_outputs(job)
    problems = _read(job)
    claim = self._claim(job)
    if not job.fresh:
      journal.check(job.output, problems, claim | self._asked())
    # Two answers to one problem, in whichever batches they are.
    references.of(references.claimed(problems, f"{job.input.path}: problem"))
    with job.opened(self, self.working(job)) as worker:
      done = journaled.run(
        *(job, job.output, problems, claim, worker),
        doing="search",
        unit="problem",
        first=_FIRST,
        so_far=_so_far,
        # The seconds in it are those of another run.
        on_new=lambda: job.timing.unlink(missing_ok=True),
      )
    # A shard without problems has no batch, and so no counts.
    counts = {**solutions.counts([]), **done.work}
    _report(
      job, len(done.solutions), counts, worker.compute_dtype(), self._rule
    )
    return done.solutions

  @contextlib.contextmanager
  def working(self, job: SearchJob | None = None) -> Iterator[workers.Worker]:
    """Searches batches of problems in this process.

    Args:
      job: The files, for replies of servers and the seconds that a batch takes;
        None keeps neither.

    Yields:
      What does it.
    """
    from prm_jax.search import solutions

    right: dict[str, str] = {}
    with self._opened(right, job) as found:

      def work_on(batch, tell):
        del tell
        right.clear()
        right.update(references.of(references.claimed(batch, "problem")))
        results, timing = self._searched(batch, found)
        if job is not None:
          # Not in the output: no two runs take the same time.
          with open(job.timing, "a", encoding="utf-8") as f:
            f.write(json.dumps(timing) + "\n")
        return results, solutions.counts(results)

      yield workers.here(lambda: found.depends_on, work_on, found.compute_dtype)

  def _searched(
    self, batch: Sequence[schema.Solution], found: Models
  ) -> tuple[list[schema.Solution], dict[str, Any]]:
    """Returns the results of a batch, and what it took."""
    from prm_jax.search import engine
    from prm_jax.search import solutions

    start = time.perf_counter()
    found.work.clear()
    trees = engine.search(
      *(batch, self._rule, found.policies, found.verifier, self._limits),
      seed=self.seed,
    )
    searched_s = time.perf_counter() - start
    results = solutions.results(
      trees,
      found.costs,
      select=self.select,
      compute_dtype=found.compute_dtype,
      verify=found.verify,
    )
    return results, dict(
      problems=[s.id for s in batch],
      search_s=round(searched_s, 4),
      all_s=round(time.perf_counter() - start, 4),
      machine=dict(found.work),
      unused={
        name: sum(t.unused[name].sampled for t in trees if name in t.unused)
        for name in found.policies
      },
    )

  @property
  def _limits(self) -> search_limits.Limits:
    most = self.limits.max_tokens or self.sampling.max_tokens
    return dataclasses.replace(self.limits, max_tokens=most)

  # --- What the results depend on -----------------------------------------------

  def _claim(self, job: SearchJob) -> dict[str, Any]:
    """Returns what results depend on, but for the models."""
    rule, limits = self._rule, self._limits
    flops = limits.budget_flops
    return dict(
      kind=f"search {rule.name}",
      shard=job.shard,
      rule=rule.record(),
      limits=dataclasses.asdict(limits)
      | dict(budget_flops=None if flops is None else int(flops)),
      max_step_tokens=self.max_step_tokens,
      select=self.select,
      grader=self.grader,
      seed=self.seed,
    )

  def _asked(self) -> dict[str, Any]:
    """Returns what is known of the models before they are loaded."""
    from prm_jax.jobs import opened_policies

    aggregate = self._aggregate
    return dict(
      policies={
        name: opened_policies.asked(policy, self.sampling)
        for name, policy in self._policies().items()
      },
      scorer=policies_lib.dtype_asked(self._scorer, self._policy.dtype),
    ) | ({} if aggregate is None else dict(aggregate=aggregate))

  def _check_models(self, found: Models) -> None:
    """Refuses models that don't fit the options; any does here."""

  # --- The models ---------------------------------------------------------------

  @property
  def _policy(self) -> policies_lib.Policy:
    return verbs.made(policies_lib.Policy, self.policy)

  @property
  def _scorer(self) -> str:
    return os.fspath(self.scorer)

  @property
  def _aggregate(self) -> str | None:
    """How step scores become one score; None is as the scorer says."""
    rule = self._rule
    if "aggregate" in rule.ignores:
      return None
    return self.aggregate or rule.aggregate

  def _policies(self) -> dict[str, policies_lib.Policy]:
    """Returns the policies that the rule names; refuses wrong options."""
    from prm_jax.scoring import score_sources

    score_sources.check(self._scorer)
    loads_scorer = score_sources.is_checkpoint(self._scorer)
    policies = self._named_policies()
    for policy in policies.values():
      policy.check(loads_scorer=loads_scorer)
    return policies

  def _named_policies(self) -> dict[str, policies_lib.Policy]:
    rule, policy = self._rule, self._policy
    if not isinstance(rule, rules.Speculate):
      return {tree_lib.POLICY: policy}
    if rule.draft is None:
      raise errors.InputError("`draft`: give the policy that writes drafts")
    server = dataclasses.replace(
      policy.server, model=rule.draft_model, replica=()
    )
    source = os.fspath(rule.draft)
    draft = dataclasses.replace(policy, source=source, server=server)
    return {rules.DRAFT: draft, rules.TARGET: policy}

  @contextlib.contextmanager
  def _opened(
    self, right: Mapping[str, str], job: SearchJob | None = None
  ) -> Iterator[Models]:
    """Yields the models; a job keeps replies of servers.

    Args:
      right: The right answer to each problem's text.
      job: The files.
    """
    from prm_jax.search import writers

    rule, work = self._rule, Counter[str]()
    how = writers.How(
      *(self.sampling, self.seed, self.max_step_tokens),
      rule.chunk_tokens if isinstance(rule, rules.ChunkGuidance) else None,
    )
    policies, known = {}, {}
    with contextlib.ExitStack() as stack:
      for name, policy in self._policies().items():
        replies = None if job is None else job.replies(name)
        opened = writers.opened(policy, how, replies, work)
        policies[name], known[name] = stack.enter_context(opened)
      verifier, scores = self._verifier(work)
      depends_on = dict(
        policies=known, scorer=scores, aggregate=verifier.aggregate
      )
      grader = stack.enter_context(pool.Grader(self.grader))
      verify = pool.verifier(grader, right, Counter())
      found = Models(policies, verifier, depends_on, verify, work)
      self._check_models(found)
      yield found

  def _verifier(
    self, work: Counter[str]
  ) -> tuple[search_models.Verifier, dict[str, Any]]:
    """Returns what scores, and what the scores depend on."""
    from prm_jax.scoring import score_sources
    from prm_jax.search import chunks
    from prm_jax.search import own_models
    from prm_jax.search import search_models

    rule, name, dtype = self._rule, self._scorer, self._policy.dtype
    if isinstance(rule, rules.ChunkGuidance):
      # --step is the small policy's.
      large = policies_lib.Policy(name, dtype=dtype).load()
      known = policies_lib.depends_on("guide", name, dtype, large)
      return chunks.of_policy(large, guidance=rule.guidance), known
    # Its own type isn't asked for: see dtype_asked.
    dtype = policies_lib.dtype_asked(name, dtype).get("compute_dtype")
    loaded = score_sources.load(name, compute_dtype=dtype)
    if loaded.scorer is None:
      verifier = search_models.Verifier(
        loaded.score, self._aggregate or "product"
      )
      return verifier, dict(loaded.identity)

    def watch(done: cached_scorer.Work) -> None:
      work.update(
        {f"scorer_{name}": n for name, n in dataclasses.asdict(done).items()}
      )

    verifier = own_models.of_scorer(
      loaded.scorer,
      aggregate=self._aggregate,
      cache_tokens=self.cache_tokens,
      watch=watch,
    )
    return verifier, dict(loaded.identity)

  # --- Files --------------------------------------------------------------------

  def _reads(self) -> list[files.PathLike]:
    """Returns what it reads besides the problems."""
    from prm_jax.scoring import score_sources

    scorer = score_sources.path_of(self._scorer)
    found: list[files.PathLike] = [self._policy.source]
    return found if scorer is None else [*found, scorer]

  def _check_outputs(self, job: SearchJob) -> None:
    read = [job.input.path, *self._reads()]
    for path in (
      job.output,
      journal.path_of(job.output),
      job.timing,
      job.replies(rules.TARGET),
      job.replies(rules.DRAFT),
    ):
      outputs.check(dict(output=path), read)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search(Searching):
  """Searches for better solutions with a policy and a reward model.

  Args:
    rule: The strategy, which says what is written next.

  Example:
    prm-jax search best_of_n --policy=runs/demo/policy --scorer=runs/demo/prm \\
      --input=problems.jsonl --output=found.jsonl
  """

  rule: rules.Rule = dataclasses.field(default_factory=rules.BestOfN)

  @property
  def _rule(self) -> rules.Rule:
    return self.rule

  def _reads(self) -> list[files.PathLike]:
    return [*super()._reads(), *self.rule.reads]


def by(rule: type[rules.Rule]) -> type[Search]:
  """Returns the Search of which a rule's command is made.

  Args:
    rule: The rule's class; its docstring is that of the command.

  Returns:
    The class of a verb.
  """
  field = dataclasses.field(
    default_factory=rule, metadata=dict(group="the strategy")
  )
  return dataclasses.make_dataclass(
    f"{rule.__name__}Search",
    [("rule", rule, field)],
    bases=(Search,),
    namespace=dict(__doc__=rule.__doc__, without=rule.ignores),
    frozen=True,
    kw_only=True,
  )


def _read(job: SearchJob) -> list[schema.Solution]:
  """Returns the problems of a shard, as solutions without steps."""
  from prm_jax.search import solutions

  part = job.part
  problems = job.input.read((*solutions.FIELDS, *schema.STATISTICS))
  if not problems:
    raise errors.InputError(
      f"{job.input.path}: holds no problem; there is no work"
    )
  return job_inputs.starts([p for p in problems if part.holds(p.problem)])


# --- What is said -----------------------------------------------------------------


def _so_far(counts: Mapping[str, int]) -> str:
  """Returns the cost and the accuracy so far, in a few words."""
  tokens = sum(n for name, n in counts.items() if name.endswith("_sampled"))
  words = f"{tokens:,} tokens"
  if counts.get("graded"):
    words += f", {counts['right_best'] / counts['graded']:.1%} right (best)"
  return words


def _report(
  job: SearchJob,
  num: int,
  counts: Mapping[str, int],
  compute_dtype: Mapping[str, str | None],
  rule: rules.Rule,
) -> None:
  _logger.info(f"{job.output}: {num:,} problems")
  report.counted(counts)
  report.computed(compute_dtype)
  graded = counts["graded"]
  for how in choice.SELECTIONS if graded else ():
    right = counts[f"right_{how}"]
    _logger.info(f"{how}: {right / graded:.1%} of {graded:,} right")
  unfinished = counts["without_candidate"] == num
  if num and unfinished and not isinstance(rule, rules.AcceptFirst):
    _logger.info(
      "no problem has a finished solution: give a larger budget, `max_steps` or"
      " `max_tokens`"
    )
  if not job.engine.is_ray:
    _logger.info(f"seconds, and what the machine computed: {job.timing}")
