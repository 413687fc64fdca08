"""What the forms of the command line are made of."""

from __future__ import annotations

import argparse
from collections.abc import Callable
import importlib
import math
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax.labelling import judge_prompts
from prm_jax.runtime import files

# Names of voting.AGGREGATES and judge.TEMPLATES: these modules load numpy, and
# every start would wait for it.
AGGREGATES = ("product", "min", "last", "mean")
TEMPLATES = tuple(sorted((*judge_prompts.TEMPLATES, "dial")))


class Parser(argparse.ArgumentParser):
  """argparse, but a wrong word is the user's error: exit code 1."""

  def error(self, message: str) -> Any:
    raise errors.InputError(f"{message}; see {self.prog} --help")


def natural(text: str) -> int:
  """Returns a number that isn't negative."""
  try:
    value = int(text)
  except ValueError:
    value = -1
  if value < 0:
    raise argparse.ArgumentTypeError(f"{text!r} isn't 0, 1, 2, ...")
  return value


def positive(text: str) -> float:
  """Returns a finite number above 0."""
  try:
    value = float(text)
  except ValueError:
    value = math.nan
  if not 0 < value < math.inf:
    raise argparse.ArgumentTypeError(f"{text!r} isn't a number above 0")
  return value


def local(text: str) -> pathlib.Path:
  """Returns a path on this machine."""
  try:
    return files.local_path(text)
  except errors.InputError as e:
    raise argparse.ArgumentTypeError(str(e)) from None


def workdir(text: str) -> pathlib.Path | str:
  """Returns a path on this machine, or the text of one in a bucket."""
  bucket, _, folder = text.removeprefix("gs://").partition("/")
  if not text.startswith("gs://"):
    return local(text)
  if not bucket or not folder.strip("/"):
    raise argparse.ArgumentTypeError(f"{text}: give gs://BUCKET/FOLDER")
  return text.rstrip("/")


def lazily(name: str, module: str) -> Callable[[argparse.Namespace], None]:
  """Returns a function of that module; jax and the rest load when it runs."""

  def run(args: argparse.Namespace) -> None:
    getattr(importlib.import_module(f"prm_jax.cli.{module}"), name)(args)

  return run
