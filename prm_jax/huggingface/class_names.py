"""What config.json calls the classes of a score head, and so their order.

Ours run from bad to good. Others name theirs in `id2label`, in either order.
"""

from __future__ import annotations

from collections.abc import Mapping
import json
import pathlib
import re
import reprlib
from typing import Any

from prm_jax import errors

_BAD = frozenset(
  [
    *("bad", "incorrect", "wrong", "negative", "neg", "false", "no", "invalid"),
    *("error", "incorrect step", "step incorrect", "not correct"),
    *("-", "-1", "0"),
  ]
)
_GOOD = frozenset(
  [
    *("good", "correct", "right", "positive", "pos", "true", "yes", "valid"),
    *("ok", "no error", "correct step", "step correct", "+", "+1", "1"),
  ]
)
# Of a head of three classes. "0" is the bad one of two, and between -1 and 1.
_BETWEEN = "neutral"


def names_of(num: int) -> dict[str, Any]:
  """Returns what config.json says of our classes: bad first, good last.

  One class is a score of the whole; transformers knows the number of classes by
  their names.
  """
  names = {1: ["LABEL_0"], 2: ["bad", "good"]}.get(num)
  names = names or ["bad", _BETWEEN, "good"]
  return dict(
    num_labels=num,
    id2label={str(i): name for i, name in enumerate(names)},
    label2id={name: i for i, name in enumerate(names)},
  )


def order(
  raw: Mapping[str, Any], num: int, source: pathlib.Path
) -> tuple[int, ...]:
  """Returns the indices of a published head's classes, from bad to good.

  Without names, or with those that transformers gives classes without any
  (LABEL_0, LABEL_1, ...), they are in our order, as in TRL's PRMTrainer, whose
  labels are False and True.

  Args:
    raw: The content of config.json.
    num: The number of classes.
    source: The folder, for messages.

  Raises:
    InputError: The names can't be read, contradict each other, or are of
      another number of classes.
  """
  names = _names(raw, source)
  usual = tuple(range(num))
  if not names:
    return usual
  if len(names) != num:
    raise _refused(
      source, f"names {len(names)} classes, and the score head has {num}", num
    )
  said = f"calls the classes {', '.join(map(reprlib.repr, names))}"
  ranks = [_rank(name, num) for name in names]
  if num == 1:
    if ranks[0] == -1:
      raise _refused(source, f"{said}: a high score would be a bad one", num)
    return usual
  wanted = {-1, 1} if num == 2 else {-1, 0, 1}
  if {*ranks} != wanted or len(ranks) != len(wanted):
    raise _refused(source, f"{said}, which doesn't say which is right", num)
  return tuple(sorted(usual, key=lambda i: ranks[i] or 0))


def _rank(name: str, num: int) -> int | None:
  """Returns -1 for a bad class of so many, 1 for a good one; else None."""
  plain = re.sub(r"(?<=\w)-(?=\w)", " ", name.lower().replace("_", " "))
  plain = " ".join(plain.split()).removesuffix(".0").rstrip(".")
  if num == 3 and plain == "0":
    return 0
  if plain in _BAD:
    return -1
  if plain in _GOOD:
    return 1
  return 0 if plain == _BETWEEN else None


def _names(raw: Mapping[str, Any], source: pathlib.Path) -> list[str]:
  """Returns the names of the classes in order, [] if they have none.

  Raises:
    InputError: id2label or label2id isn't of its form, or they differ.
  """
  given = [_in_order(raw, x, source) for x in ("id2label", "label2id")]
  given = [x for x in given if x != [f"LABEL_{i}" for i in range(len(x))]]
  if len(given) == 2 and given[0] != given[1]:
    raise errors.InputError(
      f"{source}: config.json: label2id and id2label contradict each other;"
      " correct the one that is wrong"
    )
  return given[0] if given else []


def _in_order(
  raw: Mapping[str, Any], field: str, source: pathlib.Path
) -> list[str]:
  """Returns the names that a field has for the classes, in order."""
  labels = raw.get(field)
  if labels is None or labels == {}:
    return []
  names = labels if isinstance(labels, Mapping) else {}
  if field == "label2id":
    names = {str(i): name for name, i in names.items()}
  # JSON's own false and true, 0 and 1 are as their texts, which keys are.
  names = {
    i: json.dumps(name) if isinstance(name, (bool, int, float)) else name
    for i, name in names.items()
  }
  wanted = [str(i) for i in range(len(labels))] if names else []
  listed: list[Any] = [names.get(i) for i in wanted]
  if len(names) != len(listed) or not all(isinstance(x, str) for x in listed):
    listed = []
  if not listed:
    raise errors.InputError(
      f"{source}: config.json: {field} is {reprlib.repr(labels)}; expected the"
      " names of the classes and their indices, from 0"
    )
  return listed


def _refused(source: pathlib.Path, reason: str, num: int) -> errors.InputError:
  ours = ", ".join(names_of(num)["id2label"].values())
  return errors.InputError(
    f"{source}: config.json: id2label {reason}; call them {ours} there and in"
    " label2id, each at the index of its class"
  )
