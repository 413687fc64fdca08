"""Writes docs/commands.md from the verbs: their fields and docstrings.

tests/docs/test_commands.py fails if the page isn't what this writes.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
import pathlib
import re
from typing import NamedTuple

from prm_jax.cli import commands
from prm_jax.cli import flags
from prm_jax.runtime import verbs

PAGE = pathlib.Path(__file__).resolve().parent / "commands.md"

_HEAD = """\
# The commands

<!-- docs/make_commands.py writes this page; don't edit it. -->

All commands with their options, as `prm-jax COMMAND --help` shows them. In Python each command is a value with the same names, such as `prm_jax.Score` ([api.md](api.md)). [faults.md](faults.md) has the exit codes.

- `--debug` shows an error's traceback.
- A command with `--config` takes `--config.FIELD=VALUE` for any field of the config; `--config=FILE --help` lists the fields.
"""
_PAGE = re.compile(r"docs/(\w+\.md)")
_TABLE = ("| option | default | |", "|---|---|---|")


class _Option(NamedTuple):
  """What the page says of an option."""

  words: str
  default: str
  text: str

  @property
  def row(self) -> str:
    return f"| {self.words} | {self.default} | {self.text} |"


# The title of a group of options, and what is in it.
_Group = tuple[str, tuple[_Option, ...]]


def page() -> str:
  """Returns the text of the page."""
  whole = {x: commands.VERBS[x] for x in commands.VERBS}
  for command, (_, kinds) in commands.KINDS.items():
    whole |= {f"{command} {name}": verb for name, verb in kinds.items()}
  times = Counter(x for verb in whole.values() for x in _groups(verb) if x[0])
  shared = [x for x, n in times.items() if n > 1 and x[0] != "files"]
  lines = [_HEAD]
  for name, verb in commands.VERBS.items():
    lines += [f"## prm-jax {name}", "", *_command(verb, shared)]
  for command, (does, kinds) in commands.KINDS.items():
    lines += [f"## prm-jax {command}", "", _sentence(does), ""]
    common = _common(kinds.values(), shared)
    if common:
      lines += ["Options of several kinds:", "", *_TABLE]
      lines += [*(x.row for x in common), ""]
    for name, verb in kinds.items():
      lines += [f"### prm-jax {command} {name}", ""]
      lines += _command(verb, shared, common)
  lines += ["## Options of several commands", ""]
  for title, options in shared:
    lines += [f"### {_sentence(title)[:-1]}", "", *_TABLE]
    lines += [*(x.row for x in options), ""]
  return "\n".join(lines).rstrip("\n") + "\n"


def _command(
  verb: type[verbs.Verb],
  shared: Collection[_Group],
  common: Collection[_Option] = (),
) -> Iterator[str]:
  """Yields what a command does, an example, and its options."""
  yield from (verbs.summary(verb), "")
  yield from ("<!-- not run: an example -->", "```", verbs.example(verb), "```")
  yield ""
  groups = _groups(verb)
  options = [x for group in groups if group not in shared for x in group[1]]
  own = [x for x in options if x not in common]
  if own:
    yield from (*_TABLE, *(x.row for x in own), "")
  also = [x.words for x in options if x in common]
  if also:
    yield from (f"And those of several kinds: {', '.join(also)}.", "")
  links = [
    f"[{title}](#{title.replace(' ', '-')})"
    for title, _ in (x for x in groups if x in shared)
  ]
  if links:
    yield from (f"And those of {', '.join(links)}.", "")


def _groups(verb: type[verbs.Verb]) -> list[_Group]:
  """Returns the options of a command by group; what must be given comes first."""
  groups: dict[str, list[_Option]] = {}
  found = flags.options(verb).values()
  for option in sorted(found, key=lambda x: not x.is_required):
    groups.setdefault(option.group, []).append(_told(option))
  return [(title, tuple(x)) for title, x in groups.items()]


def _common(
  kinds: Iterable[type[verbs.Verb]], shared: Collection[_Group]
) -> list[_Option]:
  """Returns the options that three kinds of a command or more have alike."""
  groups = (x for verb in kinds for x in _groups(verb) if x not in shared)
  times = Counter(option for _, options in groups for option in options)
  return [option for option, n in times.items() if n > 2]


def _told(option: flags.Option) -> _Option:
  words = ", ".join(f"`{word}`" for word in option.words)
  text = _sentence(option.text)
  choices = option.field.choices or ()
  if not set(choices) <= set(re.findall(r"\w+", text)):
    text += f" One of {', '.join(f'`{x}`' for x in choices)}."
  text = _PAGE.sub(r"[\1](\1)", text.replace("|", "\\|"))
  default = flags.default_of(option)
  told = "required" if option.is_required else default and f"`{default}`"
  return _Option(words, told, text)


def _sentence(text: str) -> str:
  return f"{text[:1].upper()}{text[1:].rstrip('.')}."


if __name__ == "__main__":
  PAGE.write_text(page())
