"""What `prm-jax label` reads: solutions, and the right answers to them.

A reference answer is the `reference_answer` of a solution, as `prm-jax sample`
writes it, or the answer of its problem in the file --problems.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import dataclasses

from prm_jax import errors
from prm_jax import schema
from prm_jax.data import sources
from prm_jax.data.formats import fields
from prm_jax.data.formats import jsonl
from prm_jax.inference import policy as policy_lib
from prm_jax.jobs import journal
from prm_jax.jobs import references as references_lib
from prm_jax.jobs import shards
from prm_jax.runtime import files
from prm_jax.runtime import outputs


@dataclasses.dataclass(frozen=True)
class Task:
  """What is to be labelled.

  Args:
    solutions: The solutions of this shard.
    references: The reference answer to each problem's text.
    unable: Why a solution can't be labelled, by id.
    left_out: What the reader left out, by reason.
  """

  solutions: list[schema.Solution]
  references: Mapping[str, str]
  unable: Mapping[str, str]
  left_out: Mapping[str, int]


def solutions_of(
  name: files.PathLike,
  args: argparse.Namespace,
  *,
  takes_problems: bool = False,
) -> tuple[list[schema.Solution], Mapping[str, int]]:
  """Returns an input's solutions, and what its reader left out.

  Args:
    name: The file.
    args: The parsed arguments.
    takes_problems: Whether a row of our own format may be a problem, without
      "steps"; it becomes a solution without steps.
  """
  _check_outputs(args)
  path = sources.find(name)
  left_out: Mapping[str, int] = {}
  if takes_problems and args.format == "jsonl":
    solutions = sources.first(_with_problems(path), args.limit, path)
  else:
    solutions, left_out = sources.read(args.format, path, args.limit)
  if not solutions:
    raise errors.InputError(f"{path}: holds no solution; there is no work")
  return solutions, left_out


def _check_outputs(args: argparse.Namespace) -> None:
  """Refuses an output, or what is written beside it, that harms an input."""
  given = vars(args)
  names = args.input if isinstance(args.input, list) else [args.input]
  read = [sources.stored_at(name) for name in names]
  read += [
    given[name]
    for name in ("problems", "checkpoint", "scores", "policy")
    if given.get(name) is not None
  ]
  read += given.get("labelled", [])
  written = [args.output]
  if "policy" in given:
    replies = policy_lib.replies_path(args.output)
    written += [journal.path_of(args.output), replies]
  for path in written:
    outputs.check(dict(output=path), read)


def _with_problems(path: files.PathLike) -> list[schema.Solution]:
  out, seen = [], dict[str, str]()
  for where, record in files.read_records(path):
    if "steps" in record:
      s = jsonl.solution_from_record(record, where)
    else:
      problem = jsonl.problem_from_record(record, where)
      extra = {**problem.extra, schema.REFERENCE: problem.answer}
      s = schema.Solution(problem.id, problem.problem, (), extra=extra)
    fields.unique_id(seen, s.id, where)
    out.append(s)
  return out


def read(
  args: argparse.Namespace,
  *,
  needs_reference: bool = True,
  takes_problems: bool = False,
) -> Task:
  """Returns what is to be labelled; refuses bad input before any work.

  Args:
    args: The parsed arguments.
    needs_reference: Whether a solution needs a right answer to be labelled.
    takes_problems: Whether a problem without steps can be labelled.
  """
  shard = shards.parse(args.shard)
  if args.batch < 1:
    raise errors.InputError(f"--batch={args.batch}: give 1 or more")
  solutions, left_out = solutions_of(
    args.input, args, takes_problems=takes_problems
  )
  references = _references(args, solutions) if needs_reference else {}
  # With the whole input, so that no shard is refused that others aren't.
  if needs_reference and not any(s.problem in references for s in solutions):
    raise errors.InputError(
      f'{args.input}: no solution has a "{schema.REFERENCE}"; prm-jax sample writes'
      " them, or give --problems=FILE with answers"
    )
  mine, unable = [], {}
  for s in solutions:
    if not shard.holds(s.problem):
      continue
    if not s.steps and not takes_problems:
      unable[s.id] = "no steps"
    elif needs_reference and s.problem not in references:
      unable[s.id] = "no reference answer"
    elif needs_reference and s.extra.get(schema.REFERENCE) is None:
      # It stays with the solution: its labels depend on it.
      extra = {**s.extra, schema.REFERENCE: references[s.problem]}
      s = dataclasses.replace(s, extra=extra)
    mine.append(s)
  return Task(mine, references, unable, left_out)


def _references(
  args: argparse.Namespace, solutions: Sequence[schema.Solution]
) -> dict[str, str]:
  """Returns the reference answers by the problem's text, from both places."""
  claims: list[references_lib.Claim] = []
  if args.problems is not None:
    for where, record in files.read_records(args.problems):
      problem = jsonl.problem_from_record(record, where)
      if problem.answer is not None:
        claims.append(
          references_lib.Claim(problem.problem, problem.answer, where)
        )
  claims += references_lib.claimed(solutions, f"{args.input}: solution")
  return references_lib.of(claims)
