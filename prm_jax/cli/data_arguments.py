"""The arguments of `prm-jax data`."""

from __future__ import annotations

from prm_jax.cli import arguments

_CHECKPOINT = "the checkpoint folder whose tokenizer and encoding are used"


def add(commands: arguments.Parser) -> None:
  """Adds `data` and its kinds."""
  data = commands.add_command(
    "data", "show, check, convert, split and build data sets of solutions"
  )
  data.add_commands("KIND")
  for what, text in dict(
    inspect="print the first solutions: tokens, score positions and labels",
    stats="count the solutions, steps and labels, and show their lengths",
  ).items():
    look = _add_kind(data, what, text, "data.look_at_data", is_printed=True)
    look.set_defaults(what=what)
    look.add_path("--checkpoint", f"{_CHECKPOINT} (default: bytes as tokens)")
    if what == "inspect":
      look.add_natural("--limit", "the number of solutions to print", default=3)
    look.add_option(
      "--score_position",
      "the token at which a step's score is read, if --checkpoint isn't given:"
      " last_token (of the step's text) or separator (the token after it)",
      default="last_token",
    )
    _add_labels(look)
  _add_build(data)
  _add_convert(data)
  _add_doctor(data)
  _add_split(data)


def _add_kind(
  kinds: arguments.Parser,
  name: str,
  text: str,
  run: str,
  *,
  is_printed: bool = False,
) -> arguments.Parser:
  kind = kinds.add_command(name, text, run, is_printed=is_printed)
  kind.add_argument(
    "file",
    metavar="FILE",
    help="the file or folder to read; - is the standard input",
    type=arguments.readable,
  )
  kind.add_option(
    "--format", f"the format of FILE; {arguments.FORMATS}", default="jsonl"
  )
  kind.add_option(
    "--map",
    "where FILE, of any other form, has the fields of a solution: problem and"
    " steps, and if it has them id, labels, ratings, first_error (from 0) or"
    " first_error_from_1, answer, outcome, source; separator is what stands"
    " between the steps of one text, none what a first error says if no step is"
    " wrong; docs/data.md explains it. For other"
    " commands write --format='map(...)'",
    metavar="problem=FIELD,steps=FIELD,..",
  )
  return kind


def _add_labels(kind: arguments.Parser) -> None:
  kind.add_option("--neutral", arguments.NEUTRAL, default="good")
  kind.add_option(
    "--after_first_error", arguments.AFTER_FIRST_ERROR, default="ignore"
  )


def _add_against(kind: arguments.Parser, text: str) -> None:
  kind.add_option(
    "--against",
    f"{text}; repeat the option for each test set",
    action="append",
    default=[],
    metavar="FORMAT:FILE",
  )


def _add_build(kinds: arguments.Parser) -> None:
  build = kinds.add_command(
    "build",
    "write a data set as ArrayRecord files, from which training reads records"
    " without loading all of them",
    "data.build",
  )
  build.add_argument(
    "name",
    metavar="NAME",
    help="a published data set (prm800k, math_shepherd, processbench or gsm8k),"
    f" or the format of --input; {arguments.FORMATS}",
  )
  build.add_path(
    "--input",
    "a folder with the files of the published data set, or one file in the"
    " format NAME; needed if NAME is a format (default: the published files are"
    " downloaded)",
  )
  build.add_output(
    "--output", "the folder in which the data set is written", required=True
  )


def _add_convert(kinds: arguments.Parser) -> None:
  convert = _add_kind(
    kinds, "convert", "write a file in another format", "data.convert"
  )
  convert.add_option(
    "--to", f"the format to write; {arguments.FORMATS}", required=True
  )
  convert.add_output(
    "--output", "the file to write", stdout=True, required=True
  )
  convert.add_option(
    "--neutral",
    f"turn ratings into labels; the value says {arguments.NEUTRAL}. Needed if"
    " the file has ratings and --to is neither jsonl nor prm800k (default:"
    " ratings stay ratings)",
  )
  convert.add_option(
    "--after_first_error",
    f"with --neutral, {arguments.AFTER_FIRST_ERROR} (default: keep)",
  )
  convert.add_switch(
    "--fill",
    "cut off the steps after a solution's last label, and label earlier steps"
    " without a label as right",
  )
  convert.add_switch(
    "--skip",
    "leave out solutions that the new format can't hold, and count them",
  )
  convert.add_switch(
    "--controls",
    "with --format=prmbench and --to=jsonl, also write the right solutions that"
    " `eval prmbench` scores as controls, so that another scorer scores them",
  )


def _add_doctor(kinds: arguments.Parser) -> None:
  doctor = _add_kind(
    kinds,
    "doctor",
    "find errors in a file that make training or its evaluation wrong",
    "data.examine",
    is_printed=True,
  )
  _add_against(
    doctor, "a test set; problems of FILE that it also holds are an error"
  )
  doctor.add_path(
    "--checkpoint",
    f"{_CHECKPOINT} (default: none; with --max_tokens a byte then counts as a"
    " token, else lengths aren't checked)",
  )
  doctor.add_natural(
    "--max_tokens",
    "the longest solution that training takes, in tokens of --checkpoint, or"
    " in bytes without it (default: the checkpoint's; no limit without it)",
  )
  doctor.add_option(
    "--truncation",
    "what training does with a longer solution: drop (leave it out) or truncate"
    " (cut off its last steps); needs --checkpoint or --max_tokens (default:"
    " the checkpoint's, or drop without one)",
  )
  _add_labels(doctor)
  doctor.add_option(
    "--allow",
    "a check whose failure is only a warning: contamination, conflicts,"
    " outcome_conflicts, blank_steps, blank_problems, no_steps or no_targets;"
    " repeat the option for each check",
    action="append",
    default=[],
    metavar="CHECK",
  )
  doctor.add_output(
    "--output", "the JSON file to write the results to", stdout=True
  )


def _add_split(kinds: arguments.Parser) -> None:
  split = _add_kind(
    kinds,
    "split",
    "split a file into a training set and a test set, with all solutions of a"
    " problem in one of them",
    "data.split",
  )
  _add_against(
    split,
    "a test set; the command is refused if --train would hold one of its"
    " problems, see --skip",
  )
  split.add_option(
    "--to", f"the format to write; {arguments.FORMATS}", default="jsonl"
  )
  split.add_output("--train", "the training set to write", required=True)
  split.add_output("--test", "the test set to write", required=True)
  split.add_option(
    "--share", "the share of the problems that go to --test", default=0.1
  )
  split.add_switch(
    "--skip",
    "leave problems that --against holds out of --train, instead of refusing"
    " the file; those in --test stay",
  )
