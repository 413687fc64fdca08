"""`prm-jax search page`: the trees of a search as one HTML page."""

from __future__ import annotations

import argparse
import reprlib

from prm_jax import errors
from prm_jax.cli import search_results
from prm_jax.reports import search as search_page
from prm_jax.runtime import outputs


def page(args: argparse.Namespace) -> None:
  """Writes the page.

  Args:
    args: The parsed arguments: input, output, problem (ids, or None for all
      problems) and limit.
  """
  outputs.check(dict(output=args.output), [args.input])
  results = search_results.read_results(args.input)
  if args.problem:
    known = {result.id: result for result in results}
    for id_ in args.problem:
      if id_ not in known:
        raise errors.InputError(
          f"--problem={id_}: {args.input} has no such problem; it has"
          f" {reprlib.repr([*known])}"
        )
    results = [known[id_] for id_ in dict.fromkeys(args.problem)]
  search_page.write(args.output, results, most=args.limit)
  num = min(len(results), args.limit)
  print(f"{args.output}: the trees of {num} of {len(results)} problems")
