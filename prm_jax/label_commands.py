"""What `prm-jax label` does with its parsed arguments.

Each kind of labeller is one function here. It names what its labels depend on
and binds the labeller to a policy, a grader and options; the run itself, with
its journal, its bar and its counts, is the same for all (_label).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
from typing import Any

import jax

from prm_jax import answers
from prm_jax import checkpoint
from prm_jax import commands
from prm_jax import label_inputs
from prm_jax import progress
from prm_jax import sampler
from prm_jax import schema
from prm_jax.data import corpus
from prm_jax.data import encode
from prm_jax.evaluation import scored
from prm_jax.grading import pool
from prm_jax.labelling import active_selection
from prm_jax.labelling import consensus as consensus_lib
from prm_jax.labelling import journal
from prm_jax.labelling import monte_carlo as monte_carlo_lib

# Is told how many completions a call has drawn so far.
Tell = Callable[[int], None]
# A schema.Generate that tells how far it is.
Complete = Callable[
  [Sequence[schema.Solution], int, Tell], list[list[schema.Solution]]
]


def monte_carlo(args: argparse.Namespace) -> None:
  options = monte_carlo_lib.Options(
    completions=args.completions,
    hard=args.hard,
    threshold=args.threshold,
    stop_early=args.stop_early,
    max_width=args.max_width,
    confidence=args.confidence,
    stop_at_zero=args.stop_at_zero,
  )
  verdicts: Counter[str] = Counter()
  with pool.Grader(args.grader) as grader:
    task = label_inputs.read(args, needs_reference=True)
    complete, by = policy(args)
    verify = _verifier(grader, task.references, verdicts)

    def bind(tell: Tell) -> journal.Label:
      def generate(prefixes, n):
        return complete(prefixes, n, tell)

      return lambda s: monte_carlo_lib.label(s, generate, verify, options)

    depends_on = by | dict(grader=args.grader) | dataclasses.asdict(options)
    _label(args, task, bind, depends_on, verdicts)


def consensus(args: argparse.Namespace) -> None:
  of_a, left_out = label_inputs.solutions_of(args)
  path = corpus.find(args.second)
  if path.resolve() == args.output.resolve():
    raise schema.InputError(
      f"{args.output}: is read by this command; give another --output"
    )
  of_b, more = corpus.read(args.format, path)
  kept, counts = consensus_lib.agree(
    of_a,
    of_b,
    above_a=args.above_a,
    above_b=args.above_b,
    labels=args.labels,
    names=(args.input, args.second),
  )
  schema.write_solutions(args.output, kept)
  print(f"{args.output}: {len(kept):,} solutions; a {args.input}, b {path}")
  _print_counts(counts)
  _print_left_out(Counter(left_out) + Counter(more))


def select(args: argparse.Namespace) -> None:
  shard = journal.parse_shard(args.shard)
  if args.budget is not None and shard.count > 1:
    raise schema.InputError(
      f"--budget={args.budget} is of all problems and --shard={shard} sees some;"
      " give --per_problem alone"
    )
  solutions, left_out = label_inputs.solutions_of(args)
  if not args.random and all(s.outcome is None for s in solutions):
    raise schema.InputError(
      f'{args.input}: no solution has an "outcome", so none is known to be'
      " wrong; prm-jax sample finds them where problems have answers"
    )
  solutions = [s for s in solutions if shard.holds(s.problem)]
  budget = active_selection.Budget(args.budget, args.per_problem)
  exclude = {s.id for s in solutions if _is_labelled(s)}
  for path in args.labelled:
    exclude |= {s.id for s in schema.read_solutions(path)}
  choose = active_selection.most_convincing
  aggregate = args.aggregate
  if args.random:
    choose = active_selection.at_random
  elif args.checkpoint is not None and aggregate is None:
    aggregate = checkpoint.read_description(args.checkpoint).aggregate

  def score(chosen: Sequence[schema.Solution]) -> list[list[float]]:
    return scored.step_scores(
      chosen, args.checkpoint, args.scores, args.step
    ).step_scores

  chosen, counts = choose(
    solutions,
    score,
    budget,
    wrong_share=args.wrong_share,
    aggregate=aggregate or "product",
    exclude=exclude,
    seed=args.seed,
  )
  schema.write_solutions(args.output, chosen)
  print(f"{args.output}: {len(chosen):,} of {len(solutions):,} solutions")
  _print_counts(counts)
  _print_left_out(left_out)


# --- A policy, a grader ---------------------------------------------------------


def policy(args: argparse.Namespace) -> tuple[Complete, dict[str, Any]]:
  """Returns what completes solutions, and what its completions depend on."""
  sampling = sampler.Sampling(args.max_tokens, args.temperature, args.top_p)
  folder = schema.local_path(args.policy)
  model = commands.load_policy(folder, args.step)
  key = jax.random.key(args.seed)

  def complete(
    prefixes: Sequence[schema.Solution], n: int, tell: Tell
  ) -> list[list[schema.Solution]]:
    # One at a time: the sampler's luck goes by a request's place, ours by id.
    rows = []
    for prefix in prefixes:
      rows.append(_complete(model, prefix, n, sampling, key))
      tell(n * len(rows))
    return rows

  return complete, dict(
    policy=checkpoint.fingerprint(folder, model.params),
    seed=args.seed,
    **dataclasses.asdict(sampling),
  )


def _complete(
  model: sampler.Sampler,
  prefix: schema.Solution,
  n: int,
  sampling: sampler.Sampling,
  key: jax.Array,
) -> list[schema.Solution]:
  """Returns n completions that depend on key, id, text and index alone."""
  found = encode.ledger(
    prefix.problem,
    prefix.steps,
    model.tokenizer,
    encode.Reading(max_tokens=1 << 30),
  )
  assert found is not None
  text = json.dumps([prefix.id, prefix.problem, *prefix.steps])
  luck = hashlib.sha256(text.encode()).digest()
  key = jax.random.fold_in(key, int.from_bytes(luck[:4], "big"))
  (row,) = model.complete([found.tokens], n, sampling, key)
  out = []
  for i, completion in enumerate(row):
    steps, ended = encode.split_steps(completion.tokens, model.tokenizer)
    out.append(
      schema.Solution(
        id=f"{prefix.id}/{i}",
        problem=prefix.problem,
        steps=(*prefix.steps, *steps),
        source="policy",
        extra=dict(prefix.extra)
        | dict(
          stopped="end" if ended else "length",
          ended=ended,
          num_tokens=len(completion.tokens),
          log_prob_mean=float(completion.log_probs.mean()),
          log_prob_min=float(completion.log_probs.min()),
        ),
      )
    )
  return out


def _verifier(
  grader: pool.Grader, references: Mapping[str, str], verdicts: Counter[str]
) -> schema.Verify:
  """Returns the grader as a Verify that adds to the verdicts it gave."""
  verdicts.update({f"graded_{name}": 0 for name in pool.VERDICTS})

  def verify(solutions: Sequence[schema.Solution]) -> list[bool | None]:
    given = [answers.extract(list(s.steps)) for s in solutions]
    known = [i for i, s in enumerate(solutions) if s.problem in references]
    grades = grader.grade(
      [(given[i], references[solutions[i].problem]) for i in known]
    )
    found: list[bool | None] = [None] * len(solutions)
    for i, grade in zip(known, grades, strict=True):
      found[i] = pool.outcome(grade)
      verdicts[f"graded_{grade.verdict}"] += 1
    return found

  return verify


# --- A run ----------------------------------------------------------------------


def _label(
  args: argparse.Namespace,
  task: label_inputs.Task,
  bind: Callable[[Tell], journal.Label],
  depends_on: Mapping[str, Any],
  verdicts: Counter[str],
) -> None:
  """Labels what the journal lacks, writes the output and says what was done.

  bind: returns the labeller, given whom to tell of completions; it gets the
    solutions that can be labelled. verdicts: what the grader said since it was
    last set to 0.
  """

  def of_batch(
    label: journal.Label, batch: Sequence[schema.Solution]
  ) -> tuple[list[schema.Solution], dict[str, int]]:
    verdicts.update({name: -n for name, n in verdicts.items()})  # to 0
    able = [s for s in batch if s.id not in task.unable]
    found, work = label(able)
    # Those of another kind would pass for this one's.
    blank = (
      dataclasses.replace(s, labels=None, ratings=None)
      for s in batch
      if s.id in task.unable
    )
    by_id = {s.id: s for s in (*found, *blank)}
    return [by_id[s.id] for s in batch], {**work, **verdicts}

  claim = dict(
    kind=args.kind, shard=str(journal.parse_shard(args.shard))
  ) | dict(depends_on)
  with journal.opened(
    args.output, task.solutions, claim, fresh=args.fresh
  ) as log:
    if log.torn_bytes:
      print(
        f"{log.path}: cut off an unfinished last line of {log.torn_bytes:,}"
        " bytes; its batch is labelled again"
      )
    if log.ids:
      print(f"{log.path}: goes on behind {len(log.ids):,} solutions")
    total = len(task.solutions) - len(log.ids)
    with progress.showing("label", total) as update:
      done, cost = 0, _cost(log.work)

      def after_batch(num: int, work: Mapping[str, int]) -> None:
        nonlocal done, cost
        done, cost = num, _cost(work)
        update(done, cost)

      def in_batch(drawn: int) -> None:
        update(done, f"{cost} + {drawn:,}" if cost else f"{drawn:,} rollouts")

      work = journal.run(
        log,
        task.solutions,
        functools.partial(of_batch, bind(in_batch)),
        batch_size=args.batch,
        progress=after_batch,
      )
    labelled = journal.finish(log, task.solutions, args.output)
  _report(args, task, labelled, work)


def _cost(work: Mapping[str, int]) -> str:
  names = ("tokens", "rollouts")
  return ", ".join(f"{work[n]:,} {n}" for n in names if n in work)


def _is_labelled(s: schema.Solution) -> bool:
  values = (*(s.labels or ()), *(s.ratings or ()))
  return any(value is not None for value in values)


def _report(args, task, labelled, work) -> None:
  """Prints one block: what was labelled, what wasn't and why, what it took."""
  steps = sum(len(s.steps) for s in labelled)
  known = [sum(x is not None for x in s.labels or ()) for s in labelled]
  print(f"{args.output}: {len(labelled):,} solutions, {steps:,} steps")
  why = Counter(
    f"without labels: {task.unable.get(s.id, 'no step could be told')}"
    for s, num in zip(labelled, known, strict=True)
    if not num
  )
  _print_counts(
    dict(
      solutions_labelled=sum(map(bool, known)),
      steps_labelled=sum(known),
      **why,
    )
  )
  before = sum(map(_is_labelled, task.solutions))
  if before:
    _print_counts({"had labels already, which these replace": before})
  _print_left_out(task.left_out)
  _print_counts(work)
  rollouts = work.get("rollouts", 0)
  if rollouts and work.get("unended") == rollouts:
    print(
      f"no rollout ended within --max_tokens={args.max_tokens}: give more, or"
      " another policy; these labels say little"
    )


def _print_left_out(left_out: Mapping[str, int]) -> None:
  _print_counts({f"left out: {name}": n for name, n in left_out.items()})


def _print_counts(counts: Mapping[str, int]) -> None:
  for name, count in counts.items():
    print(f"{count:>12,}  {name.replace('_', ' ')}")
