"""What `prm-jax data convert`, `doctor`, `split` and `build` do with their arguments."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
import dataclasses
import pathlib
import sys

from prm_jax import checkpoint
from prm_jax import environment
from prm_jax import schema
from prm_jax import tokenizer as tokenizer_lib
from prm_jax.data import builders
from prm_jax.data import convert as convert_lib
from prm_jax.data import corpus
from prm_jax.data import doctor
from prm_jax.data import encode
from prm_jax.data import overlap
from prm_jax.data import records


def convert(args: argparse.Namespace) -> None:
  environment.check_output(args.output)
  policy = None
  if args.neutral is not None:
    policy = encode.LabelPolicy(args.neutral, args.after_first_error or "keep")
  elif args.after_first_error is not None:
    raise schema.InputError(
      f"--after_first_error={args.after_first_error}: is a part of the label"
      " policy; give --neutral with it"
    )
  done = convert_lib.convert(
    (args.format, args.file),
    args.to,
    args.output,
    policy=policy,
    fill=args.fill,
    skip=args.skip,
  )
  print("\n".join(convert_lib.texts(done, args.file, args.output, args.to)))


def examine(args: argparse.Namespace) -> None:
  environment.check_output(args.output)
  unknown = sorted(set(args.allow) - set(doctor.CHECKS))
  if unknown:
    raise schema.InputError(
      f"--allow={unknown[0]}: expected one of {', '.join(doctor.CHECKS)}"
    )
  tokenizer: tokenizer_lib.Tokenizer | None = None
  reading = None
  if args.checkpoint is not None:
    description = checkpoint.read_description(args.checkpoint)
    tokenizer = checkpoint.read_tokenizer(args.checkpoint, description)
    where = args.checkpoint / checkpoint.DESCRIPTION
    reading = encode.saved_reading(description.reading, where)
  if args.max_tokens is not None:
    tokenizer = tokenizer or tokenizer_lib.Bytes()
    reading = dataclasses.replace(
      reading or encode.Reading(), max_tokens=args.max_tokens
    )
  if args.too_long is not None:
    if reading is None:
      raise schema.InputError(
        f"--too_long={args.too_long}: give --max_tokens or --checkpoint with it"
      )
    reading = dataclasses.replace(reading, too_long=args.too_long)
  left_out: Counter[str] = Counter()
  results = doctor.examine(
    corpus.stream(args.format, args.file, left_out),
    encode.LabelPolicy(args.neutral, args.after_first_error),
    tokenizer=tokenizer,
    reading=reading,
    against=_index(args.against),
    allow=args.allow,
  )
  results["left_out"] = dict(left_out)
  print(doctor.table(results))
  if args.output is not None:
    details = dict(
      command=environment.command(), versions=environment.versions()
    )
    schema.write_json(
      args.output,
      dict(file=args.file, format=args.format) | results | dict(run=details),
    )
    print(f"\nresults: {args.output}")
  failed = doctor.errors(results)
  if failed:
    raise schema.InputError(
      f"{args.file}: {', '.join(failed)}: mend as the table says, or accept"
      f" with --allow={failed[0]}"
    )


def _index(sources: Sequence[str]) -> overlap.Index | None:
  """Returns the problems of test sets, or None without any."""
  return overlap.index(corpus.read_sources(sources)) if sources else None


def split(args: argparse.Namespace) -> None:
  environment.check_output(args.train)
  environment.check_output(args.test)
  done = convert_lib.split(
    (args.format, args.file),
    args.to,
    args.train,
    args.test,
    args.share,
    against=_index(args.against),
    skip=args.skip,
  )
  print("\n".join(convert_lib.split_texts(done, args.train, args.test)))


def build(args: argparse.Namespace) -> None:
  records.quiet(sys.stderr.isatty())
  given = None if args.input is None else corpus.find(args.input)
  published = args.name in builders.BUILDERS
  if published and (given is None or given.is_dir()):
    folders = builders.build(args.name, args.output, manual=given)
  elif given is not None:
    left_out: Counter[str] = Counter()
    rows = corpus.reader(args.name)(given, left_out)
    name = pathlib.Path(given.name.removesuffix(".gz")).stem
    folders = [records.write(args.output, name, dict(train=rows), left_out)]
  else:
    raise schema.InputError(
      f"{args.name}: give --input=FILE in that format, or one of"
      f" {', '.join(builders.BUILDERS)}"
    )
  for folder in folders:
    print(f"dataset: {folder}")
