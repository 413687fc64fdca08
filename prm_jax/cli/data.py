"""`prm-jax data`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
import dataclasses
import pathlib
import sys

from prm_jax import errors
from prm_jax.checkpoints import model_json
from prm_jax.cli import output
from prm_jax.data import convert as convert_lib
from prm_jax.data import decontamination
from prm_jax.data import encoding
from prm_jax.data import preview
from prm_jax.data import sources as sources_lib
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.data import validation
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import outputs


def _format(args: argparse.Namespace) -> str:
  """Returns the name of the format that the options give."""
  if args.map is None:
    return args.format
  if args.format != "jsonl":
    raise errors.InputError(
      f"--map: says what the form is; leave out --format={args.format}"
    )
  return f"map({args.map})"


def convert(args: argparse.Namespace) -> None:
  policy = None
  if args.neutral is not None:
    policy = encoding.LabelPolicy(
      args.neutral, args.after_first_error or "keep"
    )
  elif args.after_first_error is not None:
    raise errors.InputError(
      f"--after_first_error={args.after_first_error}: is a part of the label"
      " policy; give --neutral with it"
    )
  done = convert_lib.convert(
    (_format(args), args.file),
    args.to,
    args.output,
    policy=policy,
    fill=args.fill,
    skip=args.skip,
    controls=args.controls,
  )
  print("\n".join(convert_lib.texts(done, args.file, args.output, args.to)))


def examine(args: argparse.Namespace) -> None:
  outputs.check(
    dict(output=args.output),
    [
      sources_lib.stored_at(args.file),
      args.checkpoint,
      *sources_lib.paths_of(args.against),
    ],
  )
  unknown = sorted(set(args.allow) - set(validation.CHECKS))
  if unknown:
    raise errors.InputError(
      f"--allow={unknown[0]}: expected one of {', '.join(validation.CHECKS)}"
    )
  tokenizer: tokenizer_lib.Tokenizer | None = None
  encoding_config = None
  if args.checkpoint is not None:
    tokenizer, encoding_config = _reading(args.checkpoint)
  if args.max_tokens is not None:
    tokenizer = tokenizer or tokenizer_lib.Bytes()
    encoding_config = dataclasses.replace(
      encoding_config or encoding.EncodingConfig(), max_tokens=args.max_tokens
    )
  if args.truncation is not None:
    if encoding_config is None:
      raise errors.InputError(
        f"--truncation={args.truncation}: give --max_tokens or --checkpoint with it"
      )
    encoding_config = dataclasses.replace(
      encoding_config, truncation=args.truncation
    )
  left_out: Counter[str] = Counter()
  results = validation.examine(
    sources_lib.stream(_format(args), args.file, left_out),
    encoding.LabelPolicy(args.neutral, args.after_first_error),
    tokenizer=tokenizer,
    encoding_config=encoding_config,
    against=_index(args.against),
    allow=args.allow,
  )
  results["left_out"] = dict(left_out)
  print(validation.table(results))
  if args.output is not None:
    details = dict(
      command=environment.command(), versions=environment.versions()
    )
    files.write_json(
      args.output,
      dict(file=args.file, format=_format(args)) | results | dict(run=details),
    )
    print(f"\nresults: {args.output}")
  failed = validation.errors(results)
  if failed:
    raise errors.InputError(
      f"{args.file}: {', '.join(failed)}: fix it as the table says, or accept"
      f" with --allow={failed[0]}"
    )


def _reading(
  folder: pathlib.Path,
) -> tuple[tokenizer_lib.Tokenizer, encoding.EncodingConfig]:
  """Returns how a checkpoint's model reads solutions."""
  description = model_json.read_description(folder)
  tokenizer = model_json.read_tokenizer(folder, description)
  where = folder / model_json.DESCRIPTION
  return tokenizer, encoding.saved_encoding(description.encoding, where)


def _index(sources: Sequence[str]) -> decontamination.Index | None:
  """Returns the problems of test sets, or None without any."""
  return (
    decontamination.index(sources_lib.read_sources(sources))
    if sources
    else None
  )


def split(args: argparse.Namespace) -> None:
  outputs.check(
    dict(train=args.train, test=args.test),
    [sources_lib.stored_at(args.file), *sources_lib.paths_of(args.against)],
  )
  done = convert_lib.split(
    (_format(args), args.file),
    args.to,
    args.train,
    args.test,
    args.share,
    against=_index(args.against),
    skip=args.skip,
  )
  print("\n".join(convert_lib.split_texts(done, args.train, args.test)))


def build(args: argparse.Namespace) -> None:
  # Not above: the other commands don't wait for TFDS.
  from prm_jax.data import tfds_builders
  from prm_jax.data import tfds_records

  tfds_records.quiet(sys.stderr.isatty())
  given = None if args.input is None else sources_lib.find(args.input)
  outputs.check(dict(output=args.output), [given], are_folders=True)
  published = args.name in tfds_builders.BUILDERS
  if published and (given is None or given.is_dir()):
    folders = tfds_builders.build(args.name, args.output, manual=given)
  elif given is not None:
    left_out: Counter[str] = Counter()
    rows = sources_lib.reader(args.name)(given, left_out)
    name = pathlib.Path(given.name.removesuffix(".gz")).stem
    folders = [
      tfds_records.write(args.output, name, dict(train=rows), left_out)
    ]
  else:
    raise errors.InputError(
      f"{args.name}: give --input=FILE in that format, or one of"
      f" {', '.join(tfds_builders.BUILDERS)}"
    )
  for folder in folders:
    print(f"dataset: {folder}")


def look_at_data(args: argparse.Namespace) -> None:
  policy = encoding.LabelPolicy(args.neutral, args.after_first_error)
  tokenizer: tokenizer_lib.Tokenizer = tokenizer_lib.Bytes()
  encoding_config = encoding.EncodingConfig(
    score_position=args.score_position, max_tokens=None
  )
  if args.checkpoint is not None:
    tokenizer, encoding_config = _reading(args.checkpoint)
  solutions, left_out = sources_lib.read(_format(args), args.file)
  if args.what == "inspect":
    for solution in solutions[: args.limit]:
      print(preview.show(solution, tokenizer, encoding_config, policy))
    rest = len(solutions) - args.limit
    if rest > 0:
      print(f"({rest} more solutions; --limit shows more)")
  else:
    print(preview.stats(solutions, tokenizer, encoding_config, policy))
  output.print_left_out(left_out)
