"""Config files: load one, override its fields, list them, write them out."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import copy
import dataclasses
import difflib
import json
import math
import pathlib
import sys
import types
import typing
from typing import Any

import ml_collections

from prm_jax import errors
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.runtime import user_functions


def load(
  path: files.PathLike,
  overrides: Sequence[str] = (),
  expected: FormOf | None = None,
) -> ml_collections.ConfigDict:
  """Returns the `get_config()` of a Python file, with fields overridden.

  Raises:
    InputError: There is no such file or function, a field isn't read by
      anything, or an override doesn't fit.
  """
  return filled(read(path), path, overrides, expected)


def read(path: files.PathLike) -> ml_collections.ConfigDict:
  """Returns the `get_config()` of a Python file, unchanged.

  Raises:
    InputError: There is no such file or function, or it fails.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise errors.InputError(
      f"`config={path}`: no such file; the repository's experiments/ has configs"
    )
  return _run(path)


def copied(given: Any) -> ml_collections.ConfigDict:
  """Returns a copy of a config, which may be a dict of fields."""
  if isinstance(given, ml_collections.ConfigDict):
    return given.copy_and_resolve_references().unlock()
  return ml_collections.ConfigDict(copy.deepcopy(dict(given)))


def filled(
  config: ml_collections.ConfigDict,
  path: files.PathLike,
  overrides: Sequence[str] = (),
  expected: FormOf | None = None,
  prepare: Callable[[ml_collections.ConfigDict, pathlib.Path], None]
  | None = None,
) -> ml_collections.ConfigDict:
  """Returns a config that was read, completed and overridden.

  Args:
    config: what the file returns.
    path: of the file, for errors.
    overrides: "field.of.config=value" each; null or None where the field's
      type has None. Either makes another text empty.
    expected: what the config is checked against; fields that it leaves out get
      their defaults, so that they can be listed, overridden and saved like the
      others.
    prepare: fills in what depends on other fields, before groups are overridden
      and after plain fields are.
  """
  path = pathlib.Path(path)
  if expected is not None:
    check(config, expected, path)
    complete(config, expected)
  named = config.get("program")
  of_root = [x for x in overrides if "." not in x.partition("=")[0]]
  known = types_of(config, expected)
  for override in of_root:
    _override(config, override, path, known)
  if config.get("program") != named:
    raise errors.InputError(
      f"`config.program={config.program}`: {path} is of program={named!r}, and"
      " another one has other fields; change program and objective there"
    )
  if prepare is not None:
    with config.unlocked():
      prepare(config, path)
  known = types_of(config, expected)
  for override in overrides:
    if override not in of_root:
      _override(config, override, path, known)
  return config.lock()


def _run(path: pathlib.Path) -> ml_collections.ConfigDict:
  """Returns what the file's get_config() does; any failure names its line.

  As in a script that is run, its folder is the first in which modules are
  looked for.
  """
  module = types.ModuleType(f"prm_jax_config_{path.stem}")
  module.__file__ = str(path)
  # Where dataclasses look for it.
  sys.modules[module.__name__] = module
  with (
    user_functions.refusing(str(path)),
    _first_on_path(path.parent),
  ):
    # Not by an import, which would leave a __pycache__ beside the file.
    exec(compile(files.read_bytes(path), str(path), "exec"), vars(module))
    make = getattr(module, "get_config", None)
    config = None if make is None else make()
  if not isinstance(config, ml_collections.ConfigDict):
    raise errors.InputError(
      f"{path}: has no get_config() that returns a ConfigDict; write one"
    )
  return config


@contextlib.contextmanager
def _first_on_path(folder: pathlib.Path) -> Iterator[None]:
  before = sys.path
  sys.path = [str(folder.absolute()), *before]
  try:
    yield
  finally:
    sys.path = before


@dataclasses.dataclass(frozen=True)
class Form:
  """The fields that a config may have, and those that it must have.

  Args:
    fields: name -> None for a value, or the form of a group of fields; or a
      function from the group to its form, if that depends on its content.
    required: The names of the required fields.
    defaults: name -> value of the optional fields; None has the type X | None.
    types: name -> the type of a value. Types other than bool, int, float, str,
      tuples of them and X | None aren't checked.
  """

  fields: Mapping[str, Any]
  required: frozenset[str]
  defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  types: Mapping[str, Any] = dataclasses.field(default_factory=dict)


FormOf = Form | Callable[[ml_collections.ConfigDict], Form]


def form(
  kind: type,
  *,
  complete: bool = False,
  optional: Sequence[str] = (),
  without: Sequence[str] = (),
  nested: Mapping[str, Any] | None = None,
) -> Form:
  """Returns the form of a dataclass's fields; those with defaults are optional.

  Args:
    kind: The dataclass.
    complete: Whether all fields but the optional ones are required.
    optional: The names of optional fields.
    without: The names of fields that a config doesn't have.
    nested: The forms of fields that are groups, and forms or types of required
      fields that the dataclass doesn't have.
  """
  own = [f for f in dataclasses.fields(kind) if f.name not in without]
  missing = dataclasses.MISSING
  required = {
    f.name
    for f in own
    if (complete and f.name not in optional)
    or (f.default is missing and f.default_factory is missing)
  }
  more = dict(nested or {})
  groups = {k: None if isinstance(v, type) else v for k, v in more.items()}
  hints = typing.get_type_hints(kind)
  defaults = {
    f.name: hints[f.name] if f.default is None else f.default
    for f in own
    if f.name not in required | more.keys() and f.default is not missing
  }
  return Form(
    {f.name: None for f in own} | groups,
    frozenset(required | (more.keys() - {f.name for f in own})),
    defaults,
    {f.name: hints[f.name] for f in own}
    | {name: kind for name, kind in more.items() if isinstance(kind, type)},
  )


def check(
  config: ml_collections.ConfigDict,
  expected: FormOf,
  path: files.PathLike,
  prefix: str = "",
) -> None:
  """Refuses unknown fields, missing ones and values of a wrong type."""
  errors.raise_first(_faults(config, expected, prefix), f"{path}: ")


def _faults(
  config: ml_collections.ConfigDict, expected: FormOf, prefix: str
) -> Iterator[str]:
  """Yields fields that are unknown, missing or of a wrong type."""
  if callable(expected):
    expected = expected(config)
  for name, value in config.items():
    if name not in expected.fields:
      near = difflib.get_close_matches(name, expected.fields, n=1, cutoff=0.5)
      hint = f"; did you mean {prefix}{near[0]}?" if near else "; remove it"
      yield f"no such field: {prefix}{name}{hint}"
    group = expected.fields[name]
    if group is None:
      kind = expected.types.get(name)
      if not checks.is_a(value, kind):
        text = " ".join(repr(value).split())
        yield f"{prefix}{name} must be {checks.type_name(kind)}, found {text}"
    elif isinstance(value, ml_collections.ConfigDict):
      yield from _faults(value, group, f"{prefix}{name}.")
    else:
      yield f"{prefix}{name} must be a dict of fields, found {value!r}"
  for name in sorted(expected.required - set(config)):
    yield f"missing field {prefix}{name}; add it"


def complete(config: ml_collections.ConfigDict, expected: FormOf) -> None:
  """Gives every field that a config leaves out its default."""
  if callable(expected):
    expected = expected(config)
  with config.unlocked():
    for name, default in expected.defaults.items():
      if name not in config:
        if isinstance(default, types.UnionType):  # X | None, and None now
          kind = typing.get_args(default)[0]
          default = ml_collections.config_dict.placeholder(kind)
        config[name] = default
  for name, group in expected.fields.items():
    if group is not None and name in config:
      complete(config[name], group)


def fields(
  config: ml_collections.ConfigDict, prefix: str = ""
) -> dict[str, Any]:
  """Returns every value by its dotted name, which begins with the prefix."""
  leaves: dict[str, Any] = {}
  for name, value in config.items():
    if isinstance(value, ml_collections.ConfigDict):
      leaves |= fields(value, f"{prefix}{name}.")
    else:
      leaves[prefix + name] = value
  return leaves


def types_of(
  config: ml_collections.ConfigDict,
  expected: FormOf | None,
  prefix: str = "",
) -> dict[str, Any]:
  """Returns the type of every field that a form has one of, by dotted name.

  Args:
    config: The config, whose groups decide which forms apply.
    expected: The form; None has no types.
    prefix: What the names begin with.
  """
  if callable(expected):
    expected = expected(config)
  if expected is None:
    return {}
  found = {prefix + name: kind for name, kind in expected.types.items()}
  for name, group in expected.fields.items():
    if group is not None and name in config:
      found |= types_of(config[name], group, f"{prefix}{name}.")
  return found


def _override(
  config: ml_collections.ConfigDict,
  override: str,
  file: pathlib.Path,
  expected: Mapping[str, Any],
) -> None:
  name, equals, text = override.partition("=")
  known = fields(config)
  where = f"config.{name}"
  if not equals:
    raise errors.InputError(f"`{where}`: give a value: `{where}=VALUE`")
  *path, leaf = name.split(".")
  # A field of a group whose fields may be left out has a type and no value.
  is_unset = bool(path) and name in expected and name not in known
  if name not in known and not is_unset:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    last = {full.rpartition(".")[2]: full for full in known}
    near = near or [last[x] for x in difflib.get_close_matches(name, last, n=1)]
    hint = f"`config={file}` `help=True` lists the fields"
    if near:
      hint = f"did you mean `config.{near[0]}`?"
    raise errors.InputError(f"`{where}`: no such field; {hint}")
  for part in path:
    config = config[part]
  annotation: Any = expected.get(name)
  parts = typing.get_args(annotation)
  if is_unset:
    kind = typing.get_origin(annotation) or annotation
    old = () if kind is tuple else None
  else:
    kind, old = config.get_type(leaf), known[name]
  if kind in (types.NoneType, types.UnionType) and types.NoneType in parts:
    kind = parts[0]  # the config says None where the type is X | None
  is_optional = types.NoneType in parts or (old is None and not is_unset)
  with config.ignore_type(), config.unlocked():
    config[leaf] = _parse(text, old, kind, where, is_optional)


def _parse(
  text: str, old: Any, kind: type, where: str, is_optional: bool
) -> Any:
  """Returns the text as a value of the field's type."""
  if is_optional and text.lower() in ("none", "null"):
    return None
  # "none" is a value of some fields.
  if kind is str and (text.lower() == "null" or text == "None"):
    return ""
  try:
    if kind is bool:
      return {"true": True, "false": False}[text.lower()]
    if kind is float and not math.isfinite(float(text)):
      raise ValueError("JSON, and so the saved config, has no such number")
    if kind in (int, float, str):
      return kind(text)
    value = ast.literal_eval(text)
    if kind in (tuple, list) and isinstance(value, list | tuple):
      entries = {type(x) for x in old}
      if entries == {float}:  # as a lone 1 is
        value = [float(x) if type(x) is int else x for x in value]
      if not entries or {type(x) for x in value} <= entries:
        return kind(value)
  except (ValueError, KeyError, SyntaxError, TypeError, RecursionError):
    pass
  raise errors.InputError(
    f"`{where}={text}`: expected {kind.__name__}{' or null' * is_optional}"
    + (f", as in {old!r}" if old is not None else "")
  )


def plain(group: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns a group's fields for a dataclass: its lists as tuples."""
  return {
    name: tuple(value) if isinstance(value, list) else value
    for name, value in group.to_dict().items()
  }


def resolved(config: ml_collections.ConfigDict) -> Mapping[str, Any]:
  """Returns the config as plain data for JSON."""
  return json.loads(json.dumps(config.to_dict(), default=str))
