"""Runs `prm-jax search STRATEGY` and `prm-jax verify run`.

A batch of problems is one line of the journal, as in labelling: a run that was
killed resumes after the last batch, and writes the same bytes.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import json
import pathlib
import time
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.cli import model_arguments
from prm_jax.cli import models as models_lib
from prm_jax.cli import output
from prm_jax.cli import policies
from prm_jax.cli import search_arguments
from prm_jax.data import sources
from prm_jax.grading import pool
from prm_jax.inference import cached_scorer
from prm_jax.inference import policy as policy_lib
from prm_jax.inference import score_sources
from prm_jax.jobs import journal
from prm_jax.jobs import problems as problems_lib
from prm_jax.jobs import references as references_lib
from prm_jax.jobs import shards
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import progress
from prm_jax.search import adaptive
from prm_jax.search import bill
from prm_jax.search import calibrate
from prm_jax.search import chunks
from prm_jax.search import engine
from prm_jax.search import mcts
from prm_jax.search import models
from prm_jax.search import particles
from prm_jax.search import rules
from prm_jax.search import solutions
from prm_jax.search import thresholds
from prm_jax.search import tree as tree_lib


def _chunk_guidance(
  expand: int, chunk_tokens: int, guidance: str
) -> engine.Rule:
  """Returns the rule of chunk guidance; the models have the other options."""
  del chunk_tokens, guidance
  return rules.Beam(1, expand)


# A strategy's rule; its fields are options.
_RULES: dict[str, Callable[..., engine.Rule]] = dict(
  best_of_n=rules.BestOfN,
  beam=rules.Beam,
  dvts=rules.DiverseTrees,
  rebase=rules.Rebase,
  particle_filter=particles.ParticleFilter,
  mcts=mcts.MCTS,
  reject_resample=rules.RejectResample,
  speculate=rules.Speculate,
  adaptive_best_of_n=adaptive.AdaptiveBestOfN,
  accept_first=rules.AcceptFirst,
  chunk_guidance=_chunk_guidance,
)
# Their thresholds are for the newest step.
_BY_STEP = ("reject_resample", "speculate")


@dataclasses.dataclass(frozen=True)
class _Search:
  """All that a search of some problems needs."""

  rule: engine.Rule
  policies: Mapping[str, models.Policy]
  verifier: models.Verifier
  limits: engine.Limits
  select: str
  verify: schema.Verify
  seed: int

  @property
  def costs(self) -> dict[str, Any]:
    costs = {name: policy.cost for name, policy in self.policies.items()}
    return costs | dict(scorer=self.verifier.cost)

  @property
  def compute_dtype(self) -> dict[str, str | None]:
    types = {name: x.compute_dtype for name, x in self.policies.items()}
    return types | {bill.SCORER: self.verifier.compute_dtype}


def search(args: argparse.Namespace) -> None:
  _check_outputs(args)
  fields = {
    name: vars(args)[name] for name in search_arguments.FIELDS[args.kind]
  }
  if "calibration" in fields:
    fields["calibration"] = calibrate.read_calibration(args.calibration)
  _run(args, _RULES[args.kind](**fields), fields)


def verify(args: argparse.Namespace) -> None:
  _check_outputs(args)
  threshold = thresholds.read_threshold(args.threshold)
  attempts = args.attempts or threshold.attempts or rules.AcceptFirst.attempts
  rule = rules.AcceptFirst(threshold.value, attempts)
  fields = dict(threshold=rule.threshold, attempts=rule.attempts)
  found = _run(args, rule, fields, threshold)
  accepted = [s for s in found if s.extra["candidates"]]
  print(
    f"verified: {len(accepted):,} of {len(found):,} problems; not verified:"
    f" {len(found) - len(accepted):,}, whose answer is null"
  )
  known = [s.outcome for s in accepted if s.outcome is not None]
  if known:
    print(
      f"right among those verified: {sum(known):,} of {len(known):,}"
      f" ({sum(known) / len(known):.1%})"
    )


def _run(
  args: argparse.Namespace,
  rule: engine.Rule,
  fields: Mapping[str, Any],
  threshold: thresholds.Threshold | None = None,
) -> list[schema.Solution]:
  """Searches what the journal lacks, and returns all results."""
  limits = _limits(args)
  args.max_step_tokens = vars(args).get("max_step_tokens")
  if args.batch < 1:
    raise errors.InputError(f"--batch={args.batch}: give 1 or more")
  problems = _problems(args)
  claim = dict(
    kind=f"search {args.kind}",
    shard=args.shard,
    rule={k: _plain(x) for k, x in fields.items()},
    limits=dataclasses.asdict(limits),
    max_step_tokens=args.max_step_tokens,
    select=args.select,
    grader=args.grader,
    seed=args.seed,
  )
  if not args.fresh:
    journal.check(args.output, problems, claim | _asked(args))
  work: Counter[str] = Counter()  # what the machine does
  graded: Counter[str] = Counter()
  with contextlib.ExitStack() as stack:
    grader = stack.enter_context(pool.Grader(args.grader))
    writers, writes = _policies(args, work, stack)
    verifier, scores = _verifier(args, work)
    references = references_lib.of(
      references_lib.claimed(problems, f"{args.input}: problem")
    )
    found = _Search(
      *(rule, writers, verifier, limits, args.select),
      verify=pool.verifier(grader, references, graded),
      seed=args.seed,
    )
    claim |= dict(policies=writes, scorer=scores, aggregate=verifier.aggregate)
    if threshold is not None:
      thresholds.check_models(
        threshold, args.threshold, found.compute_dtype, claim
      )
    return _journaled(args, problems, found, claim, work)


def _asked(args: argparse.Namespace) -> dict[str, Any]:
  """Returns what is known of the models before they are loaded."""
  names = {tree_lib.POLICY: args.policy}
  if args.kind == "speculate":
    names = {rules.DRAFT: args.draft, rules.TARGET: args.policy}
  return dict(
    policies={k: policies.asked(args, x) for k, x in names.items()},
    scorer=policy_lib.dtype_asked(args.scorer, model_arguments.of(args).dtype),
  ) | ({} if (given := _aggregate(args)) is None else dict(aggregate=given))


def _aggregate(args: argparse.Namespace) -> str | None:
  """Returns how step scores become one score; None is as the scorer says."""
  if args.kind == "chunk_guidance":
    return None
  return args.aggregate or ("last" if args.kind in _BY_STEP else None)


def _plain(value: Any) -> Any:
  """Returns an option as plain data."""
  if isinstance(value, adaptive.Calibration):
    return dataclasses.asdict(value)
  return value


def _limits(args: argparse.Namespace) -> engine.Limits:
  names = {field.name for field in dataclasses.fields(engine.Limits)}
  given = {name: x for name, x in vars(args).items() if name in names}
  if args.budget_flops is not None:
    given["budget_flops"] = int(args.budget_flops)
  return engine.Limits(**given)


def timing_path(args: argparse.Namespace) -> pathlib.Path:
  """Returns the file of seconds and of what the machine did."""
  return args.output.with_name(f"{args.output.name}.timing.jsonl")


def _draft_output(args: argparse.Namespace) -> pathlib.Path:
  """Returns the path beside which the replies of a draft's server are."""
  return args.output.with_name(f"{args.output.name}.draft")


def _check_outputs(args: argparse.Namespace) -> None:
  given = vars(args)
  read = [sources.stored_at(args.input), score_sources.path_of(args.scorer)]
  for name in ("policy", "draft", "calibration", "threshold"):
    if isinstance(given.get(name), str):  # a threshold may be a number
      read.append(given[name])
  for path in (
    args.output,
    journal.path_of(args.output),
    timing_path(args),
    policy_lib.replies_path(args.output),
    policy_lib.replies_path(_draft_output(args)),
  ):
    outputs.check(dict(output=path), read)


def _problems(args: argparse.Namespace) -> list[schema.Solution]:
  """Returns the problems of this shard, as solutions without steps."""
  taken = (*solutions.FIELDS, *schema.STATISTICS)
  shard = shards.parse(args.shard)
  problems = problems_lib.read(args.input, args.limit, taken)
  if not problems:
    raise errors.InputError(f"{args.input}: holds no problem; there is no work")
  return [
    schema.Solution(
      *(p.id, p.problem, ()),
      extra=dict(p.extra)
      | ({} if p.answer is None else {schema.REFERENCE: p.answer}),
    )
    for p in problems
    if shard.holds(p.problem)
  ]


def _policies(
  args: argparse.Namespace, work: Counter[str], stack: contextlib.ExitStack
) -> tuple[dict[str, models.Policy], dict[str, Any]]:
  """Returns the policies by their names, and what they depend on."""
  policy, depends_on = stack.enter_context(policies.searched(args, work))
  if args.kind != "speculate":
    return {tree_lib.POLICY: policy}, {tree_lib.POLICY: depends_on}
  of_draft = argparse.Namespace(**vars(args))
  of_draft.policy, of_draft.model = args.draft, args.draft_model
  # Each has the replies of its own server.
  of_draft.output = _draft_output(args)
  draft, on = stack.enter_context(policies.searched(of_draft, work))
  return (
    {rules.DRAFT: draft, rules.TARGET: policy},
    {rules.DRAFT: on, rules.TARGET: depends_on},
  )


def _verifier(
  args: argparse.Namespace, work: Counter[str]
) -> tuple[models.Verifier, dict[str, Any]]:
  """Returns what scores, and what the scores depend on."""
  if args.kind == "chunk_guidance":
    # --step is the small policy's.
    dtype = model_arguments.of(args).dtype
    large = policy_lib.Policy(args.scorer, dtype=dtype).load()
    verifier = chunks.of_policy(large, guidance=args.guidance)
    return verifier, policy_lib.depends_on("guide", args.scorer, dtype, large)
  loaded = models_lib.score(args.scorer, model_arguments.of(args))
  aggregate = _aggregate(args)
  if loaded.scorer is None:
    verifier = models.Verifier(loaded.score, aggregate or "product")
    return verifier, dict(loaded.identity)

  def watch(done: cached_scorer.Work) -> None:
    work.update(
      {f"scorer_{name}": n for name, n in dataclasses.asdict(done).items()}
    )

  verifier = models.of_scorer(
    loaded.scorer,
    aggregate=aggregate,
    cache_tokens=args.cache_tokens,
    watch=watch,
  )
  return verifier, dict(loaded.identity)


# --- A run ------------------------------------------------------------------


def _journaled(
  args: argparse.Namespace,
  problems: Sequence[schema.Solution],
  found: _Search,
  depends_on: Mapping[str, Any],
  work: Counter[str],
) -> list[schema.Solution]:
  with journal.opened(
    args.output, problems, depends_on, fresh=args.fresh
  ) as log:
    if log.ids:
      print(f"{log.path}: resumes after {len(log.ids):,} problems")
    else:  # the seconds in it are those of another run
      timing_path(args).unlink(missing_ok=True)
    left = len(problems) - len(log.ids)
    first = "in the first batch"
    with progress.showing("search", left, "problem", first=first) as update:

      def after_batch(done: int, counts: Mapping[str, int]) -> None:
        update(done, _so_far(counts))

      counts = journal.run(
        log,
        problems,
        functools.partial(
          _search_batch, found=found, path=timing_path(args), work=work
        ),
        batch_size=args.batch,
        progress=after_batch,
      )
    results = journal.finish(log, problems, args.output)
  # A shard without problems has no batch, and so no counts.
  _report(args, results, solutions.counts([]) | counts, found.compute_dtype)
  return results


def _search_batch(
  batch: Sequence[schema.Solution],
  *,
  found: _Search,
  path: files.PathLike,
  work: Counter[str],
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns the results of a batch, and its counts; writes what it took."""
  start = time.perf_counter()
  work.clear()
  trees = engine.search(
    batch,
    found.rule,
    found.policies,
    found.verifier,
    found.limits,
    seed=found.seed,
  )
  searched_s = time.perf_counter() - start
  results = solutions.results(
    trees,
    found.costs,
    select=found.select,
    compute_dtype=found.compute_dtype,
    verify=found.verify,
  )
  # Not in the output: no two runs take the same time.
  line = dict(
    problems=[s.id for s in batch],
    search_s=round(searched_s, 4),
    all_s=round(time.perf_counter() - start, 4),
    machine=dict(work),
    unused={
      name: sum(t.unused[name].sampled for t in trees if name in t.unused)
      for name in found.policies
    },
  )
  with open(path, "a", encoding="utf-8") as f:
    f.write(json.dumps(line) + "\n")
  return results, solutions.counts(results)


def _so_far(counts: Mapping[str, int]) -> str:
  """Returns the cost and the accuracy so far, in a few words."""
  tokens = sum(n for name, n in counts.items() if name.endswith("_sampled"))
  words = f"{tokens:,} tokens"
  if counts.get("graded"):
    words += f", {counts['right_best'] / counts['graded']:.1%} right (best)"
  return words


def _report(
  args: argparse.Namespace,
  results: Sequence[schema.Solution],
  counts: Mapping[str, int],
  compute_dtype: Mapping[str, str | None],
) -> None:
  print(f"{args.output}: {len(results):,} problems")
  output.print_counts(counts)
  output.print_computed(compute_dtype)
  graded = counts["graded"]
  for how in search_arguments.SELECTIONS if graded else ():
    right = counts[f"right_{how}"]
    print(f"{how}: {right / graded:.1%} of {graded:,} right")
  unfinished = counts["without_candidate"]
  if results and unfinished == len(results) and args.kind != "accept_first":
    print(
      "no problem has a finished solution: give a larger budget, --max_steps or"
      " --max_tokens"
    )
  print(f"seconds, and what the machine computed: {timing_path(args)}")
