"""`prm-jax eval`."""

from __future__ import annotations

import argparse

from prm_jax.cli import model_arguments
from prm_jax.cli import models
from prm_jax.data import encoding
from prm_jax.data import sources as sources_lib
from prm_jax.evaluation import results as outputs
from prm_jax.evaluation import run as evaluation_run
from prm_jax.evaluation import run_best_of_n
from prm_jax.evaluation import tables
from prm_jax.runtime import environment
from prm_jax.runtime import files


def evaluate(args: argparse.Namespace) -> None:
  samples = args.samples
  if samples is None and str(args.output) != files.STDOUT:
    samples = outputs.samples_path(args.output)
  inputs = args.input if isinstance(args.input, list) else [args.input]
  if args.kind == "processbench":
    read = sources_lib.paths_of(inputs, "=")
  else:
    read = [sources_lib.stored_at(path) for path in inputs]
  outputs.check(args.output, samples, [*read, args.scores, args.checkpoint])
  how = model_arguments.of(args)
  source = models.source(args.checkpoint, args.scores, how)
  if args.kind == "processbench":
    evaluation = evaluation_run.processbench_subsets(
      args.input, source, args.tune_on, args.seed, limit=args.limit
    )
    text = tables.processbench_table(evaluation.results)
  elif args.kind == "prmbench":
    evaluation = evaluation_run.prmbench_files(
      args.format, args.input, source, args.seed, limit=args.limit
    )
    text = tables.prmbench_table(evaluation.results)
  elif args.kind == "steps":
    policy = encoding.LabelPolicy(neutral=args.neutral)
    evaluation = evaluation_run.steps(
      args.format, args.input, policy, source, args.seed, limit=args.limit
    )
    text = tables.plain_table(evaluation.results)
  else:
    evaluation = run_best_of_n.best_of_n_pool(
      *(args.format, args.input, source, args.seed, args.aggregate),
      grader=args.grader,
      limit=args.limit,
    )
    text = tables.best_of_n_table(evaluation.results)
  print(text)
  origin = ", ".join(
    f"{k} {v}"
    for k, v in evaluation.results["scored_by"].items()
    if k != "program"
  )
  print(f"\nscored by: {origin}")
  results = evaluation.results
  if args.limit is not None:
    results = results | dict(limit=args.limit)
  details = dict(
    command=environment.command(),
    versions=environment.versions(),
    machine=environment.machine(),
  )
  if samples is not None:
    files.write_records(samples, evaluation.samples)
    print(f"samples: {samples}")
  files.write_json(args.output, results | dict(run=details))
  print(f"results: {args.output}")
