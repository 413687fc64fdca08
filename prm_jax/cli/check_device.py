"""Runs `prm-jax check-device` with its parsed arguments."""

from __future__ import annotations

import argparse
import functools

from prm_jax import errors
from prm_jax.device_check import results
from prm_jax.device_check import run
from prm_jax.device_check import verdict
from prm_jax.runtime import environment
from prm_jax.runtime import outputs


def check_device(args: argparse.Namespace) -> None:
  outputs.check(dict(output=args.output), [args.against])
  old = None if args.against is None else results.read(args.against)
  mode = "quick" if args.quick else "full" if args.full else "standard"
  only = tuple(args.only.split(",")) if args.only is not None else ()
  if not all(only):
    raise errors.InputError(f"--only={args.only}: give names or groups")
  options = run.Options(args.output, mode, only, args.minutes)
  about = dict(
    command=environment.command(),
    versions=environment.versions(),
    revision=environment.revision(),
  )
  say = functools.partial(print, flush=True)
  record = run.check(options, about, say)
  say(verdict.table(record))
  if old is not None:
    changes = verdict.compared(record, old) or ["nothing that counts"]
    say("\n".join(["", f"against {args.against}:", *changes]))
  say(f"results: {args.output}")
  _end(args, record, only)


def _end(
  args: argparse.Namespace, record: results.Record, only: tuple[str, ...]
) -> None:
  """Raises InputError unless all that was asked for is done and right here.

  A speed below its goal is no error.
  """
  asked = [r for r in record.results if results.is_asked(r.name, only)]
  wrong = [r.name for r in asked if r.required and r.status == "fail"]
  broken = [r.name for r in asked if r.status == "fail" and r.number is None]
  missing = [
    r.name
    for r in asked
    if r.status == "not run" and (r.required or not r.reached)
  ]
  for names, text in (
    (wrong, "wrong here: {} required checks failed, the first is {}"),
    (broken, "{} checks crashed, the first is {}"),
    (missing, "{} checks didn't run, the first is {}; call it again to resume"),
  ):
    if names:
      raise errors.InputError(
        f"{args.output}: {text.format(len(names), names[0])};"
        " see docs/accelerators.md"
      )
