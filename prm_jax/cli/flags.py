"""Makes a command of a verb: its options of fields, its help of docstrings.

Over argparse, and not by tyro: see docs/architecture.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
import dataclasses
import textwrap
from typing import Any

from prm_jax import errors
from prm_jax.cli import parser as parser_lib
from prm_jax.runtime import verbs

# Where a value goes: the class of which it is, by the names that lead there.
Place = tuple[str, ...]
# A value that wasn't given: its class knows the default.
_ABSENT = argparse.SUPPRESS


@dataclasses.dataclass(frozen=True)
class Option:
  """An option of a command.

  Args:
    name: Its name, without dashes.
    field: The field that declares it.
    places: The fields that get its value, of the verb ("verb", ...) or of the
      job ("job", ...); several values may have the same option, as `dtype`.
    group: Under which words the help shows it.
    text: What the help says of it.
    is_required: Whether it must be given.
  """

  name: str
  field: verbs.Field
  places: tuple[Place, ...]
  group: str
  text: str
  is_required: bool

  @property
  def words(self) -> tuple[str, ...]:
    """What a user types before the value; a positional word has its name."""
    known = self.field.metadata
    if known.get("is_positional"):
      return (self.name,)
    names = (known.get("flag", self.name), *known.get("also", ()))
    return tuple(f"--{name}" for name in names)


def options(kind: type[verbs.Value]) -> dict[str, Option]:
  """Returns the options of a verb, or of another value, by their names.

  Args:
    kind: The value's class.
  """
  found: dict[str, Option] = {}
  job = verbs.job_of(kind)
  for root, of in (("verb", kind), *([] if job is None else [("job", job)])):
    group = "files" if root == "job" else ""
    for option in _options(of, (root,), group):
      if option.name in getattr(kind, "without", ()):
        continue
      before = found.get(option.name)
      if before is not None:
        places = (*before.places, *option.places)
        option = dataclasses.replace(before, places=places)
      found[option.name] = option
  return found


def _options(kind: type, at: Place, group: str) -> list[Option]:
  found: list[Option] = []
  for field in verbs.fields(kind):
    if not field.metadata.get("is_option", True):
      continue
    is_required = field.default is dataclasses.MISSING
    is_required |= field.metadata.get("is_required", False)
    place = (*at, field.name)
    if field.inner is None:
      option = Option(
        *(field.name, field, (place,), group, field.text, is_required)
      )
      found.append(option)
      continue
    of_inner = group
    if at[0] != "job":
      title = verbs.summary(field.inner).rstrip(".").lower()
      of_inner = field.metadata.get("group", title)
    inner = _options(field.inner, place, of_inner)
    if not field.inner.first_is_whole:
      found += inner
      continue
    first, *rest = inner
    text = f"{field.text}: {first.text[:1].lower()}{first.text[1:]}"
    first = dataclasses.replace(
      first,
      name=field.name,
      text=text,
      group=group,
      is_required=is_required,
      field=dataclasses.replace(first.field, metadata=field.metadata),
    )
    found += [first, *rest]
  return found


def add(commands: parser_lib.Parser, name: str, kind: type[verbs.Verb]) -> None:
  """Adds the command of a verb.

  Args:
    commands: The parser of which it is a command.
    name: Its name.
    kind: The verb's class.
  """

  def run(parsed: argparse.Namespace) -> None:
    verb, job = value(kind, vars(parsed))
    verb.run(*([] if job is None else [job]))

  parser = commands.add_command(
    name,
    verbs.summary(kind).rstrip("."),
    run,
    is_printed=kind.is_printed,
    compiles=kind.compiles,
  )
  parser.set_defaults(verb=kind)
  # What must be given comes first, and of that words without a flag.
  found = sorted(
    options(kind).values(),
    key=lambda x: (not x.is_required, x.words[0].startswith("--")),
  )
  # The shortest call; of forty options a line of all says nothing.
  needed = (_needed(x) for x in found if x.is_required)
  parser.usage = " ".join(["%(prog)s", *needed, "[options]"])
  groups: dict[str, Any] = {"": parser}
  for option in found:
    if option.group not in groups:
      groups[option.group] = parser.add_argument_group(option.group)
    _add(groups[option.group], option)
  told = []
  if takes_config(kind):
    parser.set_defaults(overrides=())
    told.append(textwrap.fill(parser_lib.FIELDS, 78))
  if example := verbs.example(kind):
    told.append(textwrap.indent(f"example:\n{example}", "  ")[2:])
  parser.epilog = "\n\n".join(told)
  parser.formatter_class = argparse.RawDescriptionHelpFormatter


def takes_config(kind: Any) -> bool:
  """Returns whether a verb has a config, with --config.FIELD=VALUE.

  Args:
    kind: The verb's class.
  """
  return any(
    field.name == "config" and field.inner is verbs.Config
    for field in verbs.fields(kind)
  )


def _needed(option: Option) -> str:
  word = option.words[0]
  if word.startswith("--"):
    return f"{word}=..."
  return word.upper() + " ..." * (option.field.element is not None)


def _add(group: Any, option: Option) -> None:
  field, words = option.field, option.words
  more: dict[str, Any] = dict(default=_ABSENT)
  if "metavar" in field.metadata:
    more["metavar"] = field.metadata["metavar"]
  elif field.hint is int:
    more["metavar"] = "N"
  shown = default_of(option)
  text = f"{option.text} (default: {shown})" if shown else option.text
  more["help"] = text.replace("%", "%%")
  if not words[0].startswith("--"):
    more.setdefault("metavar", option.name.upper())
    if field.element is not None:
      more["nargs"] = "+"
    group.add_argument(option.name, type=_parse(field), **more)
    return
  more["dest"] = option.name
  if field.hint is bool and not field.is_optional:
    if field.default:
      more["action"] = argparse.BooleanOptionalAction
    else:
      more["action"] = "store_true"
    group.add_argument(*words, **more)
    return
  if field.hint is bool:
    more["action"] = argparse.BooleanOptionalAction
    group.add_argument(*words, **more)
    return
  more["required"] = option.is_required
  if field.choices:
    more["choices"] = field.choices
  elif parse := _parse(field):
    more["type"] = parse
  if field.element is not None:
    more["action"] = "append"
  elif len(words) > 1:
    more["action"] = _Once
  group.add_argument(*words, **more)


class _Once(argparse.Action):
  """Stores the value of an option that may have one of several names."""

  def __call__(self, parser, namespace, values, option_string=None):
    names = {*vars(namespace).get("names_given", ()), option_string}
    if len(names & {*self.option_strings}) > 1:
      parser.error(f"give one of {', '.join(self.option_strings)}")
    namespace.names_given = names
    setattr(namespace, self.dest, values)


def default_of(option: Option) -> str:
  """Returns an option's default in words.

  Args:
    option: The option.

  Returns:
    The default; "" if it must be given or may be left out.
  """
  default = option.field.default
  nothing = (None, False, (), "", dataclasses.MISSING)
  if option.is_required or any(default is x for x in nothing):
    return ""
  return f"--{option.field.name}" if default is True else str(default)


def _parse(field: verbs.Field) -> Callable[[str], Any] | None:
  """Returns the function from the text of an option to its value."""
  hint = field.hint if field.element is None else field.element
  of_number = {int: verbs.whole, float: verbs.number}
  parse = field.parse or (
    of_number.get(hint) if isinstance(hint, type) else None
  )
  return parse and parser_lib.told(parse)


def value(kind: type[verbs.Value], given: Mapping[str, Any]) -> tuple[Any, Any]:
  """Returns the verb, or another value, and its job that a command describes.

  Args:
    kind: The value's class; what is no verb has no job.
    given: The values of the options that were given, by name.
  """
  tree: dict[str, Any] = {"verb": {}, "job": {}}
  known = options(kind)
  for name, option in known.items():
    if name not in given:
      continue
    # An option of several values is of those that are given, if any is.
    places = [x for x in option.places if x[-2] not in known or x[-2] in given]
    for place in places or option.places:
      at = tree
      for word in place[:-1]:
        at = at.setdefault(word, {})
      at[place[-1]] = given[name]
  job = verbs.job_of(kind)
  made = _made(kind, tree["verb"])
  if overrides := given.get("overrides", ()):
    if made.config is None:
      raise errors.InputError(f"`config.{overrides[0]}`: give `config` with it")
    config = dataclasses.replace(made.config, overrides=overrides)
    made = dataclasses.replace(made, config=config)
  return made, job and _made(job, tree["job"])


def _made(kind: type, values: Mapping[str, Any]) -> Any:
  made = {}
  for field in verbs.fields(kind):
    given = values.get(field.name)
    if field.inner is not None and isinstance(given, Mapping):
      inner: Any = field.inner
      first = verbs.fields(inner)[0]
      is_needed = inner.first_is_whole and first.default is dataclasses.MISSING
      if is_needed and first.name not in given:
        name, value = next(iter(given.items()))
        raise errors.InputError(
          f"`{name}={value}`: give `{field.name}` with it"
        )
      given = _made(field.inner, given)
    elif isinstance(given, list):
      given = tuple(given)
    if field.name in values:
      made[field.name] = given
  return kind(**made)
