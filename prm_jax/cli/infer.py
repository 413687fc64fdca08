"""`prm-jax sample` and `prm-jax score`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import dataclasses
import sys

import jax

from prm_jax import errors
from prm_jax import schema
from prm_jax import voting
from prm_jax.cli import arguments
from prm_jax.cli import output
from prm_jax.data import sources as sources_lib
from prm_jax.data.formats import fields
from prm_jax.data.formats import jsonl
from prm_jax.evaluation import scores as scores_lib
from prm_jax.evaluation import tables
from prm_jax.grading import answers
from prm_jax.grading import pool
from prm_jax.inference import sampler
from prm_jax.inference import scorer as scorer_lib
from prm_jax.labelling import shards
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import progress


def sample(args: argparse.Namespace) -> None:
  outputs.check(dict(output=args.output), [args.input, args.checkpoint])
  pool.check(args.grader)
  problems = []
  seen: dict[str, str] = {}
  own = {f.name for f in dataclasses.fields(schema.Solution)} - {"extra"}
  for where, record in files.read_records(args.input):
    problem = jsonl.problem_from_record(record, where)
    clash = problem.extra.keys() & {*own, *schema.STATISTICS, schema.REFERENCE}
    if clash:
      raise errors.InputError(
        f"{where}: {', '.join(sorted(clash))}: a sampled solution has such a"
        " field of its own; give the problem's another name"
      )
    fields.unique_id(seen, problem.id, where)
    problems.append(problem)
  problems = sources_lib.first(problems, args.limit, args.input)
  sampling = sampler.sampling_of({}, **arguments.sampling(args))
  if args.n < 1:
    raise errors.InputError(f"--n={args.n}: give 1 or more")
  policy = sampler.load(args.checkpoint, args.step, compute_dtype=args.dtype)
  starts = [
    schema.Solution(p.id, p.problem, (), extra=dict(p.extra)) for p in problems
  ]
  key = jax.random.key(args.seed)
  with progress.showing(
    "sample", args.n * len(starts), first=progress.COMPILING
  ) as update:
    rows = policy.generate(starts, args.n, sampling, key, update)
  references = [p.answer for p in problems for _ in range(args.n)]
  solutions, grades = _graded(
    [s for row in rows for s in row], references, args.grader
  )
  count = jsonl.write_solutions(args.output, solutions)
  ended = sum(s.extra["ended"] for s in solutions)
  print(f"{args.output}: {count} solutions, {ended} ended by themselves")
  if grades:
    print(tables.graded(dict(grader=args.grader) | pool.count(grades)))


def _graded(
  solutions: Sequence[schema.Solution],
  references: Sequence[str | None],
  grader: str,
) -> tuple[list[schema.Solution], list[pool.Grade]]:
  """Returns the solutions with answer, reference and outcome where known."""
  given = [answers.extract(list(s.steps)) for s in solutions]
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


def score(args: argparse.Namespace) -> None:
  checks.check_choice("--layout", args.layout, scorer_lib.LAYOUTS)
  read = [sources_lib.stored_at(args.input), args.checkpoint]
  outputs.check(dict(output=args.output), read)
  shard = shards.parse(args.shard)
  solutions, left_out = sources_lib.read(args.format, args.input, args.limit)
  solutions = [s for s in solutions if shard.holds(s.problem)]
  scorer = scorer_lib.load(
    args.checkpoint,
    args.step,
    layout=args.layout,
    compute_dtype=args.dtype,
    batch_tokens=args.batch_tokens,
  )
  longer = scorer.longer_than_trained(solutions)
  if longer:
    print(
      f"{longer} solutions are longer than the {scorer.encoding.max_tokens}"
      " tokens that the model was trained with; they are scored whole",
      file=sys.stderr,
    )
  with progress.showing(
    "score", len(solutions), first=progress.COMPILING
  ) as update:
    scores = scorer.score(solutions, progress=update)
  count = files.write_records(
    args.output,
    (
      dict(
        id=solution.id,
        **scores_lib.fields_of(steps),
        **{
          how: voting.aggregate(steps.scores, how) for how in voting.AGGREGATES
        },
      )
      for solution, steps in zip(solutions, scores, strict=True)
    ),
  )
  print(f"{args.output}: {count} solutions")
  unjudged = sum(not all(steps.judged) for steps in scores)
  if unjudged:
    print(
      f"{unjudged} solutions have steps that the model wasn't trained to judge;"
      ' "judged" marks them (docs/evaluation.md)'
    )
  output.print_left_out(left_out)
