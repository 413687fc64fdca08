"""`prm-jax sample` and `prm-jax score`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
import dataclasses

import jax

from prm_jax import errors
from prm_jax import schema
from prm_jax.cli import model_arguments
from prm_jax.cli import models
from prm_jax.cli import output
from prm_jax.cli import policies
from prm_jax.cli import policy_arguments
from prm_jax.data.formats import jsonl
from prm_jax.evaluation import tables
from prm_jax.grading import answers
from prm_jax.grading import pool
from prm_jax.inference import engine as engine_lib
from prm_jax.jobs import problems as problems_lib
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import progress


def sample(args: argparse.Namespace) -> None:
  """Samples solutions from a checkpoint's policy or from a server's."""
  if (args.checkpoint is None) == (args.policy is None):
    raise errors.InputError(
      "give --policy, a checkpoint folder or a server's address, or"
      " --checkpoint, a folder; one of them"
    )
  args.policy = args.policy or str(args.checkpoint)
  policy_arguments.check(args)
  is_server = policy_arguments.is_server(args.policy)
  read = [args.input, *([] if is_server else [files.local_path(args.policy)])]
  outputs.check(dict(output=args.output), read)
  if is_server:
    outputs.check(dict(output=policies.replies_path(args.output)), read)
  pool.check(args.grader)
  problems = problems_lib.read(args.input, args.limit, schema.STATISTICS)
  if args.n < 1:
    raise errors.InputError(f"--n={args.n}: give 1 or more")
  starts = [
    schema.Solution(p.id, p.problem, (), extra=dict(p.extra)) for p in problems
  ]
  counts: Counter[str] = Counter()
  rows = _asked(args, starts, counts) if is_server else _drawn(args, starts)
  references = [p.answer for p in problems for _ in range(args.n)]
  solutions, grades = _graded(
    [s for row in rows for s in row], references, args.grader
  )
  count = jsonl.write_solutions(args.output, solutions)
  ended = sum(s.extra["ended"] for s in solutions)
  unanswered = sum(s.answer is None for s in solutions)
  print(
    f"{args.output}: {count} solutions, {ended} ended by themselves,"
    f" {unanswered} without an answer"
  )
  output.print_counts(counts)
  if grades:
    print(tables.graded(dict(grader=args.grader) | pool.count(grades)))


def _drawn(
  args: argparse.Namespace, starts: Sequence[schema.Solution]
) -> list[list[schema.Solution]]:
  """Returns the solutions that a checkpoint's policy writes."""
  how = model_arguments.of(args)
  policy = models.policy(args.policy, how)
  output.print_computed(dict(policy=policy.config.compute_dtype))
  sampling = policies.sampling_of(policy, args)
  key, total = jax.random.key(args.seed), args.n * len(starts)
  if policy.template is None:
    if how.slots is not None:
      policy = dataclasses.replace(policy, batch_samples=how.slots)
    # It tells of whole batches alone.
    first = "compiling and sampling"
    with progress.showing("sample", total, first=first) as update:
      return policy.generate(starts, args.n, sampling, key, update)
  # Texts of a published policy differ in length, which slots are for.
  engine = engine_lib.of(policy, slots=policies.slots(args))
  with progress.showing("sample", total, first=progress.COMPILING) as update:

    def tell(done: int, tokens: int) -> None:
      update(done, f"{tokens:,} tokens")

    return engine.generate(starts, args.n, sampling, key, tell)[0]


def _asked(
  args: argparse.Namespace,
  starts: Sequence[schema.Solution],
  counts: Counter[str],
) -> list[list[schema.Solution]]:
  """Returns the solutions that a server's model writes; counts the work."""
  with (
    policies.policy(args, counts) as policy,
    progress.showing("sample", args.n * len(starts)) as update,
  ):
    rows = policy.complete(starts, args.n, update)
  # As from a folder: raw_text has what `text` has.
  return [
    [
      dataclasses.replace(
        s,
        extra={**start.extra, **{k: s.extra[k] for k in schema.STATISTICS}},
      )
      for s in row
    ]
    for start, row in zip(starts, rows, strict=True)
  ]


def _graded(
  solutions: Sequence[schema.Solution],
  references: Sequence[str | None],
  grader: str,
) -> tuple[list[schema.Solution], list[pool.Grade]]:
  """Returns the solutions with answer, reference and outcome where known."""
  given = [answers.of_solution(s) for s in solutions]
  known = [i for i, reference in enumerate(references) if reference is not None]
  with (
    pool.Grader(grader) as of_answers,
    progress.showing("grade", len(known)) as update,
  ):
    grades = of_answers.grade(
      [(given[i], str(references[i])) for i in known], update
    )
  graded = [
    dataclasses.replace(s, answer=answer) for s, answer in zip(solutions, given)
  ]
  for i, grade in zip(known, grades, strict=True):
    graded[i] = dataclasses.replace(
      graded[i],
      outcome=pool.outcome(grade),
      extra={**graded[i].extra, schema.REFERENCE: references[i]},
    )
  return graded, grades
