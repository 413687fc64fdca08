"""A config of theirs as a Python file of ours: the fields, and the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
import pathlib
import textwrap
from typing import Any


@dataclasses.dataclass(frozen=True)
class Recipe:
  """What both of their configs say, each with words and defaults of its own.

  Args:
    base: The model that they start from.
    data: The names of their data sets.
    max_tokens: The longest solution.
    batch: The number of solutions of an update, over all devices.
    updates: The number of updates by that of the training solutions.
    warmup: The number of updates of the warm-up by that of all updates.
    held_out: What isn't trained on but evaluated on: a share, or a number.
    optimizer: Our optimizer's fields, without warmup_steps.
    model: Our model's fields that differ from the base's.
    trainable: Which parameters are trained.
    seed: The seed.
    every: How often to log, evaluate and save, in updates: functions of the
      number of updates.
    left_out: The fields that change no result.
    notes: What is different here, a line each.
  """

  base: str
  data: tuple[str, ...]
  max_tokens: int
  batch: int
  updates: Callable[[int], int]
  warmup: Callable[[int], int]
  held_out: float
  optimizer: Mapping[str, Any]
  model: Mapping[str, Any]
  trainable: str
  seed: int
  every: Mapping[str, Callable[[int], int]]
  left_out: tuple[str, ...]
  notes: tuple[str, ...] = ()


def fields_of(
  recipe: Recipe,
  train: tuple[str, ...],
  evaluation: tuple[str, ...],
  init_from: str,
  rows: Mapping[str, int],
  steps: int,
) -> dict[str, Any]:
  """Returns our config's fields in the order in which they are written."""
  evaluates = bool(evaluation or recipe.held_out)
  every = {name: max(0, of(steps)) for name, of in recipe.every.items()}
  if not evaluates:
    every["eval_every"] = 0
  return dict(
    program="prm",
    seed=recipe.seed,
    init_from=init_from,
    # Theirs learn from equal rows as often as they come.
    data=dict(
      train=train, evaluation=evaluation, holdout=0.0, deduplicate=False
    ),
    tokenizer=dict(kind="file", vocab_size=0, model_type="bpe", path=""),
    model=dict(recipe.model),
    encoding=dict(
      score_position="separator",
      max_tokens=recipe.max_tokens,
      truncation="truncate",
      template="token_classification",
    ),
    packing=dict(rows, share_prefixes=False),
    objective=dict(
      loss="bce",
      error_weight=1.0,
      labels=dict(neutral="good", after_first_error="keep", harden_above=None),
    ),
    microbatches=1,
    eval_rows=256,
    aggregate="min",
    mesh=(-1, 1, 1),
    trainable=recipe.trainable,
    optimizer=dict(recipe.optimizer),
    fit=dict(every, steps=steps),
  )


def text_of(recipe: Recipe, config: Mapping[str, Any], theirs: str) -> str:
  """Returns the text of our file."""
  notes = [*recipe.notes]
  if recipe.optimizer["weight_decay"]:
    notes.append(
      "There the score head's weight decays, too; here no head does."
    )
  if recipe.left_out:
    names = ", ".join(recipe.left_out)
    notes.append(f"Left out, as it changes no result: {names}.")
  docstring = "\n\n".join(
    [
      f"A PRM as {pathlib.Path(theirs).name} has it.",
      f"Base:     prm-jax import --from={recipe.base} --to={config['init_from']}\n"
      "Command:  prm-jax train --config=THIS_FILE --workdir=runs/prm",
      f"Data there: {', '.join(recipe.data) or 'not named'}.",
      *(
        textwrap.fill(x, 80, break_on_hyphens=False, break_long_words=False)
        for x in notes
      ),
    ]
  )
  # What is theirs must not end the string.
  docstring = docstring.replace("\\", "\\\\").replace('"', '\\"')
  lines = [
    f'"""{docstring}\n"""\n\nimport ml_collections\n\n',
    # This file isn't a config.
    f"def {'get_config'}() -> ml_collections.ConfigDict:",
    "  c = ml_collections.ConfigDict()",
    *(f"  c.{name} = {_literal(value)}" for name, value in config.items()),
    "  return c",
  ]
  return "\n".join(lines) + "\n"


def _literal(value: Any, indent: int = 2) -> str:
  """Returns a value as Python, a dict in several lines if it is long."""
  if value is None:
    return "ml_collections.config_dict.placeholder(float)"
  if not isinstance(value, Mapping):
    text = repr(value)
    return text if '"' in text else text.replace("'", '"')
  inner = [f"{k}={_literal(x, indent + 2)}" for k, x in value.items()]
  line = f"dict({', '.join(inner)})"
  if len(line) < 60 and "\n" not in line:
    return line
  space = " " * (indent + 2)
  return f"dict(\n{space}{f',{chr(10)}{space}'.join(inner)},\n{' ' * indent})"
