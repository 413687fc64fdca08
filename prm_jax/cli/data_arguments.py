"""The arguments of `prm-jax data`."""

from __future__ import annotations

from prm_jax.cli import arguments


def add(commands: arguments.Parser) -> None:
  """Adds `data` and what it can do."""
  data = commands.add_command("data", "look at data, convert and split it")
  data.add_commands("WHAT")
  for what, text in dict(
    inspect="print tokens, read positions and labels, line by line",
    stats="count solutions, steps, labels and lengths",
  ).items():
    look = _add_kind(data, what, text, "data.look_at_data")
    look.set_defaults(what=what)
    look.add_path("--checkpoint", "tokenizer and reading of this")
    look.add_natural("--limit", "print so many", default=3)
    look.add_option(
      "--score_position", "where it is read", default="last_token"
    )
    _add_labels(look)
  _add_build(data)
  _add_convert(data)
  _add_doctor(data)
  _add_split(data)


def _add_kind(
  kinds: arguments.Parser, name: str, text: str, run: str
) -> arguments.Parser:
  kind = kinds.add_command(name, text, run)
  kind.add_argument("file", metavar="FILE")
  kind.add_option("--format", "of FILE", default="jsonl")
  return kind


def _add_labels(kind: arguments.Parser) -> None:
  kind.add_option("--neutral", "label policy", default="good")
  kind.add_option("--after_first_error", default="ignore")


def _add_against(kind: arguments.Parser) -> None:
  kind.add_option(
    "--against",
    "a test set whose problems must not be trained on",
    action="append",
    default=[],
    metavar="FORMAT:FILE",
  )


def _add_build(kinds: arguments.Parser) -> None:
  build = kinds.add_command(
    "build", "write ArrayRecord, which training reads by number", "data.build"
  )
  build.add_argument(
    "name", metavar="NAME", help="a published dataset, a format"
  )
  build.add_path(
    "--input",
    "a folder of the published files, which are downloaded otherwise; or"
    " one file in the format NAME",
  )
  build.add_path("--output", "a folder", required=True)


def _add_convert(kinds: arguments.Parser) -> None:
  convert = _add_kind(
    kinds, "convert", "write a set in another form", "data.convert"
  )
  convert.add_option("--to", "form to write", required=True)
  convert.add_path("--output", required=True)
  convert.add_option(
    "--neutral", "turn ratings into labels; what 0 is: good, bad, ignore"
  )
  convert.add_option("--after_first_error", "with --neutral; keep by default")
  convert.add_switch(
    "--fill",
    "cut steps after the last label; earlier ones without one are right",
  )
  convert.add_switch("--skip", "leave out and count what can't be held")


def _add_doctor(kinds: arguments.Parser) -> None:
  doctor = _add_kind(
    kinds, "doctor", "look for what corrupts training", "data.examine"
  )
  _add_against(doctor)
  doctor.add_path("--checkpoint", "tokenizer and reading of this")
  doctor.add_natural("--max_tokens", "of a solution; in bytes by default")
  doctor.add_option(
    "--truncation",
    "what a longer one loses: drop, truncate; the"
    " checkpoint's own, or the former, by default",
  )
  _add_labels(doctor)
  doctor.add_option(
    "--allow", "a check that may fail", action="append", default=[]
  )
  doctor.add_path("--output", "results.json")


def _add_split(kinds: arguments.Parser) -> None:
  split = _add_kind(
    kinds, "split", "split a set, no problem twice", "data.split"
  )
  _add_against(split)
  split.add_option("--to", "form to write", default="jsonl")
  split.add_path("--train", "file to write", required=True)
  split.add_path("--test", "file to write", required=True)
  split.add_option("--share", "of problems to --test", default=0.1)
  split.add_switch("--skip", "leave out problems of --against")
