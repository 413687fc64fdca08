"""Runs `prm-jax plan` with its parsed arguments."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import dataclasses
import sys
from typing import Any

import jax

from prm_jax import errors
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.models import config as model_config
from prm_jax.plan import budgets
from prm_jax.plan import compile as plan_compile
from prm_jax.plan import suggest
from prm_jax.plan import tables as plan_tables
from prm_jax.plan import topologies
from prm_jax.runtime import config_files
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.training import config as training_config
from prm_jax.training import program as program_lib
from prm_jax.training import run_config
from prm_jax.training import trainable


def plan(args: argparse.Namespace) -> None:
  outputs.check(dict(output=args.output), [args.config, args.check])
  # Nothing runs here but compilers, also where a chip is at hand.
  jax.config.update("jax_platforms", "cpu")
  if args.check is not None:
    _check(args)
    return
  if args.config is None or args.topology is None:
    raise errors.InputError(
      "plan: give --config=FILE and --topology=v5e:16x16, or --check=FILE"
    )
  overrides = [*args.overrides]
  if args.mesh is not None:
    overrides.append(f"mesh={args.mesh}")
  update = update_of(*_read(args.config, overrides, args.vocab_size))
  topology = topologies.parse(args.topology)
  devices = topologies.devices(topology)

  def compiled(changed: plan_compile.Update) -> plan_compile.Plan:
    return plan_compile.of_update(changed, topology, devices)

  planned = compiled(update)
  print(plan_tables.table(planned), flush=True)
  record: dict[str, Any] = plan_tables.record(planned)
  fits = planned.fits
  if not fits and args.suggest:
    better = suggest.search(update, topology, compiled, _say)
    record["fits_with"] = None
    if better is not None:
      changes, planned = better
      record["fits_with"] = dict(
        overrides=changes, plan=plan_tables.record(planned)
      )
      print(f"\nIt fits with {changes}\n\n{plan_tables.table(planned)}")
    else:
      print("\nNothing that was tried fits; take more chips")
  if args.output is not None:
    files.write_json(args.output, record)
  if not fits:
    raise errors.InputError(
      f"{args.config}: doesn't fit {args.topology} as it is"
    )


def update_of(
  run: training_config.TrainConfig,
  vocab_size: int,
  types: Mapping[tuple[str, ...], Any] | None = None,
) -> plan_compile.Update:
  """Returns the update of a run.

  Args:
    run: The run.
    vocab_size: The number of its tokenizer's ids.
    types: The types of the parameters that it starts from, by their paths, in
      which it holds what isn't trained; None is float32.
  """
  given = dict(types or {})
  given |= {(trainable.REFERENCE, *path): x for path, x in given.items()}

  def make(model, microbatches):
    changed = dataclasses.replace(run, microbatches=microbatches)
    program = training_config.make_program(changed, model)
    return program_lib.holding(program, given)

  return plan_compile.Update(
    make,
    model_config.ModelConfig(vocab_size=vocab_size, **run.model),
    batch_size=run.packing.batch_size,
    sequence_length=run.packing.sequence_length,
    microbatches=run.microbatches,
    mesh=run.mesh,
    pairs=run.objective.compares is not None,
  )


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


def _read(
  path: str, overrides: Sequence[str], vocab_size: int | None
) -> tuple[
  training_config.TrainConfig, int, Mapping[tuple[str, ...], Any] | None
]:
  """Returns a run, the size of its vocabulary, and the types it starts from.

  Raises:
    InputError: it can't be read, or nothing says the vocabulary's size.
  """
  read = config_files.read(path)
  if run_config.names_rl(read):
    raise errors.InputError(
      f"{path}: reinforcement learning runs in one process; plan knows the"
      " programs sft, prm, orm and implicit"
    )
  config = run_config.supervised(read, path, overrides)
  if config.init_from and not vocab_size:
    start = files.local_path(config.init_from)
    vocab_size = model_json.read_description(start).model.vocab_size
  vocab_size = vocab_size or config.tokenizer.vocab_size
  if not vocab_size:
    raise errors.InputError(
      f"{path}: tokenizer.vocab_size=0: give --vocab_size, or the size there"
    )
  types = None
  if config.init_from:
    types = saves.types(files.local_path(config.init_from))
  return run_config.from_config(config), vocab_size, types


def _check(args: argparse.Namespace) -> None:
  """Compiles every run of a file of budgets, and names those that exceed."""
  bad = 0
  all_budgets = budgets.read(args.check)
  for budget in all_budgets:
    read = _read(budget.config, budget.overrides, None)
    topology = topologies.parse(budget.topology)
    needs = plan_compile.of_update(
      update_of(*read), topology, topologies.devices(topology)
    )
    exceeded = budgets.exceeded(budget, needs)
    bad += bool(exceeded)
    print(f"{'EXCEEDED' if exceeded else 'within'}  {budget.name}")
    print(plan_tables.table(needs), *exceeded, "", sep="\n", flush=True)
  if bad:
    raise errors.InputError(
      f"{args.check}: {bad} of {len(all_budgets)} runs need more than their budget;"
      " see above"
    )
