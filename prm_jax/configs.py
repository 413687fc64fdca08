"""Config files: load one, override its fields, list them, write them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import difflib
import importlib.util
import json
import pathlib
from typing import Any

import ml_collections

from prm_jax import schema


def load(
  path: schema.PathLike, overrides: Sequence[str] = ()
) -> ml_collections.ConfigDict:
  """Returns the `get_config()` of a Python file, with fields overridden.

  overrides: "field.of.config=value" each.

  Raises:
    InputError: no such file or function, or an override that doesn't fit.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise schema.InputError(
      f"--config={path}: no such file; experiments/ holds the configs"
    )
  spec = importlib.util.spec_from_file_location(path.stem, path)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
    config = module.get_config()
  except SyntaxError as e:
    raise schema.InputError(f"{path}:{e.lineno}: not Python: {e.msg}") from None
  except AttributeError as e:
    if "get_config" not in str(e):
      raise
    raise schema.InputError(
      f"{path}: has no get_config(); write one that returns a ConfigDict"
    ) from None
  for override in overrides:
    _override(config, override)
  return config.lock()


def fields(
  config: ml_collections.ConfigDict, prefix: str = ""
) -> dict[str, Any]:
  """Returns every leaf by its dotted name."""
  found: dict[str, Any] = {}
  for name, value in config.items():
    if isinstance(value, ml_collections.ConfigDict):
      found |= fields(value, f"{prefix}{name}.")
    else:
      found[prefix + name] = value
  return found


def _override(config: ml_collections.ConfigDict, override: str) -> None:
  name, equals, text = override.partition("=")
  known = fields(config)
  where = f"--config.{name}"
  if not equals:
    raise schema.InputError(f"{where}: give a value: --config.{name}=VALUE")
  if name not in known:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    last = {full.rpartition(".")[2]: full for full in known}
    near = near or [last[x] for x in difflib.get_close_matches(name, last, n=1)]
    hint = f"; did you mean --config.{near[0]}?" if near else ""
    raise schema.InputError(f"{where}: no such field{hint}")
  old = known[name]
  *path, leaf = name.split(".")
  for part in path:
    config = config[part]
  kind = config.get_type(leaf)
  with config.ignore_type(), config.unlocked():
    config[leaf] = _parse(text, old, kind, where)


def _parse(text: str, old: Any, kind: type, where: str) -> Any:
  """Returns the text as a value of the field's type."""
  if text == "None" and old is None:
    return None
  try:
    if kind is bool:
      return {"true": True, "false": False}[text.lower()]
    if kind in (int, float, str):
      return kind(text)
    value = json.loads(text.replace("(", "[").replace(")", "]"))
    if kind is tuple and isinstance(value, list):
      return tuple(value)
    if kind is list and isinstance(value, list):
      return value
  except (ValueError, KeyError):
    pass
  raise schema.InputError(
    f"{where}={text}: expected {kind.__name__}, as in {old!r}"
  )


def resolved(config: ml_collections.ConfigDict) -> Mapping[str, Any]:
  """Returns the config as plain data for JSON."""
  return json.loads(json.dumps(config.to_dict(), default=str))
