"""Which layers have a window, in the spellings of config.json."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import types
from typing import Any, NamedTuple

from prm_jax import errors
from prm_jax.models import model_config

TYPES = ("full_attention", "sliding_attention")
# Returns a field of config.json, given its name and types.
Get = Callable[..., Any]


class Windows(NamedTuple):
  """How config.json says which layers have a window.

  Args:
    read: Returns the window, or None, and the type of each layer, given the
      fields of config.json, the number of layers and its layer_types, or None.
    record: Returns the fields of config.json for a model.
  """

  read: Callable[[Get, int, Any], tuple[int | None, Any]]
  record: Callable[[model_config.ModelConfig], dict[str, Any]]


def _window(get: Get) -> int | None:
  return get("sliding_window", int, types.NoneType)


def _types(windowed: Sequence[bool]) -> list[str]:
  return [TYPES[x] for x in windowed]


def _read_all(get: Get, num_layers: int, listed: Any) -> tuple[int | None, Any]:
  window = _window(get)
  usual = _types([window is not None] * num_layers)
  if listed not in (None, usual):
    raise errors.InputError(f"layer_types: expected {usual[0]} for all layers")
  return window, usual


def _read_later(
  get: Get, num_layers: int, listed: Any
) -> tuple[int | None, Any]:
  window = _window(get)  # also where it isn't used, an integer or null
  if not get("use_sliding_window", bool):
    window = None
  if listed is None:
    first = num_layers if window is None else get("max_window_layers", int)
    listed = _types([i >= first for i in range(num_layers)])
  return window, listed


def _record_later(model: model_config.ModelConfig) -> dict[str, Any]:
  return dict(
    use_sliding_window=any(model.windowed),
    sliding_window=model.window,
    max_window_layers=[*model.windowed, True].index(True),
    layer_types=_types(model.windowed),
  )


def _all_but(every: int, num_layers: int) -> tuple[bool, ...]:
  return tuple((i + 1) % every > 0 for i in range(num_layers))


def _read_all_but(
  get: Get, num_layers: int, listed: Any
) -> tuple[int | None, Any]:
  if listed is None:
    every = get("sliding_window_pattern", int)
    if every < 1:
      raise errors.InputError(f"sliding_window_pattern={every}: give 1 or more")
    listed = _types(_all_but(every, num_layers))
  return _window(get), listed


def _record_all_but(model: model_config.ModelConfig) -> dict[str, Any]:
  record: dict[str, Any] = dict(
    sliding_window=4096 if model.window is None else model.window,
    layer_types=_types(model.windowed),
  )
  for every in range(1, model.num_layers + 2):
    if model.windowed == _all_but(every, model.num_layers):
      record["sliding_window_pattern"] = every
  return record


# Those of Mistral, Qwen and Gemma.
ALL_LAYERS = Windows(
  _read_all,
  lambda x: dict(sliding_window=x.window if all(x.windowed) else None),
)
LATER_LAYERS = Windows(_read_later, _record_later)
ALL_BUT_EVERY_NTH = Windows(_read_all_but, _record_all_but)
