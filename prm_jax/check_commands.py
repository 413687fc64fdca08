"""What `prm-jax check-device` does with its parsed arguments."""

from __future__ import annotations

import argparse

from prm_jax import environment
from prm_jax import schema
from prm_jax.device_check import results
from prm_jax.device_check import run
from prm_jax.device_check import verdict


def check_device(args: argparse.Namespace) -> None:
  environment.check_output(args.output)
  old = None if args.against is None else results.read(args.against)
  mode = "quick" if args.quick else "full" if args.full else "standard"
  only = tuple(x for x in args.only.split(",") if x)
  options = run.Options(args.output, mode, only, args.minutes)
  about = dict(
    command=environment.command(),
    versions=environment.versions(),
    revision=environment.revision(),
  )
  say = _Printer()
  record = run.check(options, about, say)
  say(verdict.table(record))
  if old is not None:
    changes = verdict.compared(record, old) or ["nothing that counts"]
    say("\n".join(["", f"against {args.against}:", *changes]))
  say(f"results: {args.output}")
  _end(args, record, only)


class _Printer:
  """Prints lines as long as somebody reads them: the work goes on anyway."""

  def __init__(self) -> None:
    self._open = True

  def __call__(self, text: str) -> None:
    if not self._open:
      return
    try:
      print(text, flush=True)
    except BrokenPipeError:
      self._open = False


def _end(
  args: argparse.Namespace, record: results.Record, only: tuple[str, ...]
) -> None:
  """Raises InputError unless all that was asked for is right here."""
  found = verdict.of(record)

  def asked(names: list[str]) -> list[str]:
    return [n for n in names if results.is_asked(n, only)]

  failed, missing = asked(found["failed"]), asked(found["missing"])
  if failed:
    raise schema.InputError(
      f"{args.output}: wrong here: {len(failed)} required checks failed, the"
      f" first is {failed[0]}; docs/accelerators.md says what to do"
    )
  if missing:
    raise schema.InputError(
      f"{args.output}: unknown here: {len(missing)} required checks didn't run,"
      f" the first is {missing[0]}; call it again to go on"
    )
