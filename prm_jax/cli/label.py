"""Runs `prm-jax label` with its parsed arguments.

Each kind of labeller is one function here. It names what its labels depend on
and binds the labeller to a policy, a grader and options. The run itself, with
its journal, progress bar and counts, is the same for all (_label).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import time
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.cli import label_inputs
from prm_jax.cli import model_arguments
from prm_jax.cli import models
from prm_jax.cli import output
from prm_jax.cli import policies
from prm_jax.data.formats import jsonl
from prm_jax.grading import pool
from prm_jax.inference import policy as policy_lib
from prm_jax.jobs import journal
from prm_jax.jobs import shards
from prm_jax.labelling import active_selection
from prm_jax.labelling import consensus as consensus_lib
from prm_jax.labelling import llm_judge
from prm_jax.labelling import monte_carlo as monte_carlo_lib
from prm_jax.labelling import omega_prm as omega_prm_lib
from prm_jax.labelling import omega_tree
from prm_jax.runtime import progress
from prm_jax.testbed import judge as testbed_judge


def monte_carlo(args: argparse.Namespace) -> None:
  options = _options(monte_carlo_lib.Options, args)

  def label(solutions, generate, verify, model):
    del model
    return monte_carlo_lib.label(solutions, generate, verify, options)

  _by_rollouts(args, options, label)


def omega_prm(args: argparse.Namespace) -> None:
  options = _options(omega_tree.Options, args)

  def label(solutions, generate, verify, model):
    return omega_prm_lib.label(
      solutions, generate, verify, options, count_tokens=model.count_tokens
    )

  work = _by_rollouts(args, options, label, are_new=True)
  ratio = omega_prm_lib.ratio(work)
  if ratio == ratio:
    print(f"brute force would take {ratio:.1f} times the rollouts")


def _options(kind: type, args: argparse.Namespace) -> Any:
  """Returns a labeller's options: the arguments that have the fields' names."""
  names = {field.name for field in dataclasses.fields(kind)}
  return kind(**{k: v for k, v in vars(args).items() if k in names})


def _by_rollouts(
  args: argparse.Namespace, options: Any, label: Callable, *, are_new=False
) -> dict[str, int]:
  """Runs a labeller that grades rollouts of the policy; returns the work.

  label: of solutions, a Generate, a Verify and the policy_lib.Writer.
  are_new: see _label; it takes problems, too.
  """
  counts: Counter[str] = Counter()
  with pool.Grader(args.grader) as grader:
    task = label_inputs.read(args, takes_problems=are_new)
    verify = pool.verifier(grader, task.references, counts)
    claim = _claim(args) | dict(grader=args.grader)
    claim |= dataclasses.asdict(options)
    _check_journal(args, task, claim)
    with policies.policy(args, counts) as model:

      def bind(tell: policy_lib.Tell) -> journal.Label:
        generate = model.bind(tell)
        return lambda s: label(s, generate, verify, model)

      claim |= model.depends_on
      return _label(args, task, bind, claim, model, counts, are_new=are_new)


def _claim(args: argparse.Namespace) -> dict[str, Any]:
  """Returns what the labels of every kind depend on."""
  return dict(kind=args.kind, shard=str(shards.parse(args.shard)))


def _check_journal(
  args: argparse.Namespace, task: label_inputs.Task, claim: Mapping[str, Any]
) -> None:
  """Refuses another run's output before the policy is loaded."""
  known = policies.asked(args, args.policy)
  if not args.fresh:
    known |= dict(claim) | dict(seed=args.seed)
    journal.check(args.output, task.solutions, known)


def judge(args: argparse.Namespace) -> None:
  template = testbed_judge.TEMPLATES[args.template]
  names = ("votes", "min_votes", "vote", "keep_texts")
  options = {name: vars(args)[name] for name in names}
  counts: Counter[str] = Counter()
  task = label_inputs.read(args, needs_reference=False)
  claim = _claim(args) | dict(template=args.template) | options
  _check_journal(args, task, claim)
  with policies.policy(args, counts) as model:
    log_likelihoods = (
      model.log_likelihoods if args.vote == "log_likelihood" else None
    )

    def bind(tell: policy_lib.Tell) -> journal.Label:
      return functools.partial(
        llm_judge.label,
        generate=model.bind(tell),
        template=template,
        log_likelihoods=log_likelihoods,
        **options,
      )

    # Refuses options that make no sense together.
    bind(lambda done, tokens=0: None)([])
    _label(args, task, bind, claim | model.depends_on, model, counts)


def consensus(args: argparse.Namespace) -> None:
  if len(args.input) != 2:
    raise errors.InputError(
      f"{len(args.input)} x --input: give two, the same solutions as two"
      " labellers label them"
    )
  sets, left_out = [], Counter[str]()
  for path in args.input:
    solutions, more = label_inputs.solutions_of(path, args)
    sets.append(solutions)
    left_out.update(more)
  a, b = args.input
  kept, counts = consensus_lib.agree(
    *sets,
    above_a=args.above_a,
    above_b=args.above_b,
    labels=args.labels,
    names=(a, b),
  )
  jsonl.write_solutions(args.output, kept)
  print(f"{args.output}: {len(kept):,} solutions on which a and b agree")
  print(f"a: {a}\nb: {b}")
  output.print_counts(counts)
  _print_left_out(left_out)


def select(args: argparse.Namespace) -> None:
  shard = shards.parse(args.shard)
  if args.budget is not None and shard.count > 1:
    raise errors.InputError(
      f"--budget={args.budget} is of all problems and --shard={shard} sees some;"
      " give --per_problem alone"
    )
  solutions, left_out = label_inputs.solutions_of(args.input, args)
  if not args.random and all(s.outcome is None for s in solutions):
    raise errors.InputError(
      f'{args.input}: no solution has an "outcome", so none is known to be'
      " wrong; prm-jax sample finds them where problems have answers"
    )
  solutions = [s for s in solutions if shard.holds(s.problem)]
  try:
    budget = active_selection.Budget(args.budget, args.per_problem)
  except errors.InputError:
    raise errors.InputError(
      "give --budget (solutions in all), --per_problem or both, 1 or more"
    ) from None
  exclude = {s.id for s in solutions if _is_labelled(s)}
  for path in args.labelled:
    exclude |= {s.id for s in jsonl.read_solutions(path)}
  aggregate = args.aggregate
  if args.checkpoint is not None and aggregate is None and not args.random:
    aggregate = model_json.read_description(args.checkpoint).aggregate

  def score(chosen: Sequence[schema.Solution]) -> list[schema.StepScores]:
    how = model_arguments.of(args)
    source = models.source(args.checkpoint, args.scores, how)
    scored = source.step_scores(chosen)
    output.print_computed(dict(scorer=scored.by.get("compute_dtype")))
    return scored.rows

  if args.random:
    chosen, counts = active_selection.at_random(
      solutions, budget, exclude=exclude, seed=args.seed
    )
  else:
    chosen, counts = active_selection.most_convincing(
      solutions,
      score,
      budget,
      wrong_share=args.wrong_share,
      aggregate=aggregate or "product",
      exclude=exclude,
      seed=args.seed,
    )
  jsonl.write_solutions(args.output, chosen)
  print(f"{args.output}: {len(chosen):,} of {len(solutions):,} solutions")
  output.print_counts(counts)
  _print_left_out(left_out)


# --- A run ----------------------------------------------------------------------


def _label(
  args: argparse.Namespace,
  task: label_inputs.Task,
  bind: Callable[[policy_lib.Tell], journal.Label],
  claim: Mapping[str, Any],
  model: policy_lib.Writer,
  counts: Counter[str],
  *,
  are_new: bool = False,
) -> dict[str, int]:
  """Labels what the journal lacks, says what was done, returns the work.

  bind: returns the labeller, given whom to tell of completions; it gets the
    solutions that can be labelled. claim: what the labels depend on. model:
    the policy. counts: what policy and grader did since these were last set to
    0. are_new: it returns other solutions.
  """
  with journal.opened(
    args.output, task.solutions, claim, fresh=args.fresh
  ) as log:
    if log.ids:
      print(f"{log.path}: resumes after {len(log.ids):,} solutions")
    output.print_computed(dict(policy=model.compute_dtype))
    total = len(task.solutions) - len(log.ids)
    start = time.perf_counter()
    compiles = not policies.of(args)[0].is_server
    first = progress.COMPILING if compiles else "starting"
    with progress.showing("label", total, first=first) as update:
      done, cost = 0, _cost(log.work)

      def after_batch(num: int, work: Mapping[str, int]) -> None:
        nonlocal done, cost
        done, cost = num, _cost(work)
        update(done, cost)

      def in_batch(drawn: int, tokens: int = 0) -> None:
        first = _cost(dict(tokens=tokens) if tokens else dict(rollouts=drawn))
        update(done, f"{cost} + {drawn:,}" if cost else first)

      work = journal.run(
        log,
        task.solutions,
        functools.partial(
          _label_batch,
          bind(in_batch),
          unable=task.unable,
          counts=counts,
          are_new=are_new,
        ),
        batch_size=args.batch,
        are_new=are_new,
        progress=after_batch,
      )
    tokens = work.get("tokens", 0) - log.work.get("tokens", 0)
    speed = tokens / (time.perf_counter() - start)
    labelled = journal.finish(log, task.solutions, args.output)
  unable = Counter(task.unable.values())
  if not are_new:
    unable["no step could be told"] = sum(
      not _is_labelled(s) and s.id not in task.unable for s in labelled
    )
  _report(args, task, labelled, unable, work)
  if tokens:
    print(f"{speed:,.0f} tokens/s since this start")
  return work


def _label_batch(
  label: journal.Label,
  batch: Sequence[schema.Solution],
  *,
  unable: Mapping[str, str],
  counts: Counter[str],
  are_new: bool,
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns a batch's solutions, labelled if they can be, and the work.

  unable: see label_inputs.Task. counts, are_new: see _label.
  """
  counts.update({name: -n for name, n in counts.items()})  # to 0
  labelled, work = label([s for s in batch if s.id not in unable])
  # Labels of another kind would pass for this one's.
  blank = (
    dataclasses.replace(s, labels=None, ratings=None)
    for s in batch
    if s.id in unable and not are_new
  )
  by_id = {s.id: s for s in (*labelled, *blank)}
  ids = by_id if are_new else [s.id for s in batch]
  return [by_id[id_] for id_ in ids], {**work, **counts}


def _cost(work: Mapping[str, int]) -> str:
  names = ("tokens", "rollouts")
  return ", ".join(f"{work[n]:,} {n}" for n in names if n in work)


def _is_labelled(s: schema.Solution) -> bool:
  values = (*(s.labels or ()), *(s.ratings or ()))
  return any(value is not None for value in values)


def _report(args, task, labelled, unable, work) -> None:
  """Prints one block: what was labelled, what wasn't and why, what it took."""
  steps = sum(len(s.steps) for s in labelled)
  known = [x for s in labelled for x in s.labels or () if x is not None]
  print(f"{args.output}: {len(labelled):,} solutions, {steps:,} steps")
  output.print_counts(
    dict(
      solutions_labelled=sum(map(_is_labelled, labelled)),
      steps_labelled=len(known),
    )
    | {f"without labels: {why}": n for why, n in unable.items() if n}
  )
  before = sum(map(_is_labelled, task.solutions))
  if before:
    output.print_counts({"had labels already, which these replace": before})
  _print_left_out(task.left_out)
  output.print_counts(work)
  if work.get("slot_steps"):
    print(f"slots in use: {work['tokens'] / work['slot_steps']:.0%}")
  rollouts = work.get("rollouts", 0)
  if rollouts and work.get("unended") == rollouts:
    print(
      f"no rollout ended within --max_tokens={policies.of(args)[1].max_tokens}: give more, or"
      " another policy; these labels say little"
    )


def _print_left_out(left_out: Mapping[str, int]) -> None:
  output.print_counts({f"left out: {name}": n for name, n in left_out.items()})
