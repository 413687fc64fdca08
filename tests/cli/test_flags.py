"""Options are made of fields: none is declared twice, and none is lost."""

import dataclasses
import re

import command_options
import pytest

from prm_jax.cli import flags
from prm_jax.cli import main
from prm_jax.cli import parser as parser_lib
from prm_jax.demo import demo
from prm_jax.jobs import sample
from prm_jax.jobs import score
from prm_jax.runtime import verbs

COMMANDS = command_options.commands()
VERBS = {
  name: parser.get_default("verb")
  for name, parser in COMMANDS.items()
  if parser.get_default("verb")
}
# Two with a policy or a reward model, and a job.
WITH_MODEL = {"sample": sample.Sample, "score": score.Score}


def test_most_commands_are_made_of_verbs():
  assert len(VERBS) >= 20 and WITH_MODEL.items() <= VERBS.items()


@pytest.mark.parametrize("name", VERBS)
def test_every_option_of_a_verb_is_a_field_and_every_field_an_option(name):
  parser = COMMANDS[name]
  shown = {a.dest for a in parser._actions} - {"help", "debug"}
  assert shown == {*flags.options(VERBS[name])}
  without = VERBS[name].without
  assert not {*without} & {*flags.options(VERBS[name])}
  places = {
    place
    for option in flags.options(VERBS[name]).values()
    for place in option.places
  }
  job = verbs.job_of(VERBS[name])
  declared = {
    *_leaves(VERBS[name], ("verb",)),
    *(_leaves(job, ("job",)) if job else ()),
  }
  assert {*without} <= {place[-1] for place in declared}
  assert places == {x for x in declared if x[-1] not in without}


def _leaves(kind, at):
  for field in verbs.fields(kind):
    if field.metadata.get("is_option") is False:
      continue
    if field.inner is None:
      yield (*at, field.name)
    else:
      yield from _leaves(field.inner, (*at, field.name))


@pytest.mark.parametrize("name", WITH_MODEL)
def test_what_is_given_reaches_its_fields_and_the_rest_has_their_defaults(name):
  needed = {
    x.name: "x" for x in flags.options(VERBS[name]).values() if x.is_required
  }
  verb, job = flags.value(VERBS[name], needed | dict(limit=7, dtype="float32"))
  assert job.input.limit == 7 and str(job.output) == "x"
  model = verb.policy if name == "sample" else verb.checkpoint
  assert model.dtype == "float32" and model.step is None
  for field in verbs.fields(VERBS[name]):
    if field.inner is None and field.name not in needed:
      assert getattr(verb, field.name) == field.default


@pytest.mark.parametrize("name", VERBS)
def test_a_help_begins_with_the_shortest_call_and_ends_with_an_example(name):
  text = COMMANDS[name].format_help()
  usage, *_, example = text.split("\n\n")
  assert usage.endswith("[options]") and len(usage.splitlines()) == 1
  needed = [x for x in flags.options(VERBS[name]).values() if x.is_required]
  words = [x.words[0] for x in needed if x.words[0].startswith("--")]
  assert re.findall(r"--\w+", usage) == words
  named = re.findall(r"\b[A-Z]+\b", usage)
  assert len(named) == len(needed) - len(words)
  assert example.startswith(f"example:\n  prm-jax {name}")
  assert {*re.findall(r"--\w+", example)} >= {*words}


@pytest.mark.parametrize(
  ("words", "hint"),
  [
    ("scor --input=x", "'scor': expected one of"),
    ("scor --input=x", "; did you mean score?; see prm-jax --help"),
    ("label monte_carl", "; did you mean monte_carlo?; see prm-jax label"),
    (
      "score --checkpoint=a --input=b --output=c --layout=pack",
      "--layout='pack': expected one of padded, packed, tree; did you mean"
      " packed?",
    ),
  ],
)
def test_a_misspelt_command_or_value_has_a_hint(words, hint, capsys):
  assert main.main(words.split()) == 1
  assert hint in capsys.readouterr().err


def test_other_values_change_the_config_that_a_verb_has_without_one(capsys):
  verb, _ = flags.value(demo.Demo, dict(overrides=("completions=3",)))
  assert verb.config.file == demo.Demo().config.file
  assert demo.Demo.filled(verb.config).completions == 3
  assert main.main(["plan", "--check=x", "--config.seed=3"]) == 1
  assert "--config.seed=3: give --config with it" in capsys.readouterr().err


def test_two_names_of_an_option_are_not_both_given(capsys):
  words = "sample --policy=a --checkpoint=b --input=c --output=d"
  assert main.main(words.split()) == 1
  assert "give one of --policy, --checkpoint" in capsys.readouterr().err
  words = ["--policy=a", "--input=c", "--output=d", "--policy=b"]
  assert COMMANDS["sample"].parse(words).policy == "b"


def test_what_two_values_have_is_one_option_of_both():
  @dataclasses.dataclass(frozen=True)
  class One(verbs.Value):
    """One.

    Args:
      a: A text.
      shared: A number.
    """

    a: str
    shared: int = 1

  @dataclasses.dataclass(frozen=True)
  class Two(verbs.Verb):
    """Two.

    Args:
      first: The first.
      second: The second.
    """

    first: One
    second: One

  globals().update(One=One, Two=Two)
  verb, _ = flags.value(Two, dict(first="x", second="y", shared=5))
  assert verb == Two(One("x", 5), One("y", 5))


@dataclasses.dataclass(frozen=True)
class _File(verbs.Value):
  """A file.

  Args:
    path: A path.
    form: A form.
  """

  path: verbs.Input
  form: str = "jsonl"


@dataclasses.dataclass(frozen=True)
class _Job(verbs.Value):
  """What is read.

  Args:
    file: What is counted.
  """

  file: _File = dataclasses.field(metadata=dict(is_positional=True))


@dataclasses.dataclass(frozen=True)
class _Base(verbs.Verb):
  """Counts.

  Args:
    source: Where it comes from.
  """

  source: str = dataclasses.field(
    default="", metadata=dict(flag="from", metavar="PLACE")
  )


@dataclasses.dataclass(frozen=True)
class _Count(_Base):
  """Counts the words of a file.

  Args:
    most: The most words.
  """

  most: verbs.Natural = 3

  def run(self, job: _Job) -> None:
    _runs.append((self, job))


@dataclasses.dataclass(frozen=True)
class _Go(_Base):
  """Goes without a job."""

  def run(self) -> None:
    _runs.append((self, None))


_runs: list[tuple[verbs.Verb, _Job | None]] = []


def test_metadata_make_positional_words_and_flags_of_other_names():
  parser = parser_lib.Parser(prog="x")
  parser.add_commands("COMMAND")
  flags.add(parser, "count", _Count)
  flags.add(parser, "go", _Go)
  for words in (["count", "f", "--from=a", "--form=b", "--most=0"], ["go"]):
    parsed = parser.parse(words)
    parsed.run(parsed)
  assert _runs == [
    (_Count("a", 0), _Job(_File("f", "b"))),
    (_Go(), None),
  ]
  shown = parser._commands.choices["count"].format_help()
  assert "--from PLACE" in shown and "Where it comes from" in shown
  assert "FILE" in shown and "What is counted: a path" in shown
