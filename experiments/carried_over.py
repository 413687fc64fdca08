"""What from_trl.py and from_axolotl.py share: a config of theirs made ours.

Each reads its file into a written_config.Recipe by Fields, which refuses whatever nobody has
read. The number of updates and the size of a packed row need the data and the
tokenizer: both are read, the latter from the imported base.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
import math
import pathlib
from typing import Any

import written_config
import yaml

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.records import sources
from prm_jax.runtime import files
from prm_jax.text import encoding

# So many solutions are encoded to learn how long they are.
MAX_ENCODED = 4_000
# An update may hold so many more or fewer solutions than theirs, as a share.
TOLERANCE = 0.1
# PEFT's names of the matrices of a layer, and ours.
LORA_TARGETS = dict(
  q_proj="query",
  k_proj="key",
  v_proj="value",
  o_proj="output",
  gate_proj="gate",
  up_proj="up",
  down_proj="down",
)
ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_apex_fused")
NO_LIMIT = 1e9


class Fields:
  """The fields of their file; each is read, left out by name, or refused.

  Args:
    path: Their file, for messages.
    values: What it holds. A field that is null is as one that is missing.
  """

  def __init__(self, path: str, values: Mapping[str, Any]):
    self.path = path
    self.values = {k: v for k, v in values.items() if v is not None}
    self.null = {*values} - {*self.values}

  def take(self, key: str, default: Any = None, kind: Callable = str) -> Any:
    """Returns a field's value, as `kind` reads it."""
    if key not in self.values:
      return default
    value = self.values.pop(key)
    try:
      return kind(value)
    except (TypeError, ValueError):
      raise self.error(f"{key}={value!r}: expected {kind.__name__}") from None

  def only(self, key: str, allowed: Sequence[Any], why: str) -> None:
    """Refuses a field unless it is missing or has one of the values."""
    value = self.values.pop(key, allowed[0])
    if value not in allowed:
      raise self.error(f"{key}={value!r}: {why}")

  def drop(self, names: Sequence[str]) -> None:
    """Forgets the fields that another field switches off."""
    self.values = {k: v for k, v in self.values.items() if not _is_of(k, names)}

  def left_out(self, harmless: Sequence[str]) -> tuple[str, ...]:
    """Returns the fields that change nothing; refuses what nobody has read.

    Args:
      harmless: What such fields are called, or begin with if it ends in "_".
    """
    for key, value in sorted(self.values.items()):
      if not _is_of(key, harmless) and value not in (False, [], {}, ""):
        raise self.error(
          f"{key}={value!r}: has no counterpart here; take it out if you can do"
          " without"
        )
    return tuple(sorted(self.values))

  def error(self, problem: str) -> errors.InputError:
    return errors.InputError(f"{self.path}: {problem}")


def _is_of(key: str, names: Sequence[str]) -> bool:
  """Returns whether a key is one of the names, or begins with one in "_"."""
  return any(key == x or (x.endswith("_") and key.startswith(x)) for x in names)


def boolean(value: Any) -> bool:
  if not isinstance(value, bool):
    raise ValueError
  return value


def decay(
  fields: Fields, name: str, kinds: Mapping[str, str]
) -> dict[str, str]:
  """Returns our decay for the name of their schedule, or refuses it."""
  if name not in kinds:
    raise fields.error(
      f"the schedule {name!r} has no counterpart here; expected one of"
      f" {', '.join(kinds)}"
    )
  return dict(decay=kinds[name])


def adamw(fields: Fields) -> dict[str, float]:
  """Returns AdamW's numbers, which both have from transformers."""
  clip_norm = fields.take("max_grad_norm", 1.0, float)
  return dict(
    beta1=fields.take("adam_beta1", 0.9, float),
    beta2=fields.take("adam_beta2", 0.999, float),
    epsilon=fields.take("adam_epsilon", 1e-8, float),
    weight_decay=fields.take("weight_decay", 0.0, float),
    clip_norm=clip_norm or NO_LIMIT,
  )


def adapters(
  fields: Fields, rank: int, alpha: float, targets: Any
) -> dict[str, Any]:
  """Returns the model's fields for LoRA of the matrices with PEFT's names."""
  names = [targets] if isinstance(targets, str) else list(targets)
  if names == ["all-linear"]:
    names = [*LORA_TARGETS]
  unknown = sorted({*names} - {*LORA_TARGETS})
  if unknown:
    raise fields.error(
      f"lora_target_modules: {unknown[0]!r} can't have an adapter here; expected"
      f" some of {', '.join(LORA_TARGETS)}"
    )
  ours = tuple(LORA_TARGETS[name] for name in names)
  return dict(lora_rank=rank, lora_alpha=float(alpha), lora_targets=ours)


def check_separator(fields: Fields, separator: str) -> None:
  if separator != "\n":
    raise fields.error(
      f"step_separator={separator!r}: the template token_classification ends"
      ' each step with "\\n"; there is no other'
    )


def check_last_step_only(fields: Fields, last_only: bool) -> None:
  if last_only:
    raise fields.error(
      "train_on_last_step_only=true: here the data says which steps have a"
      " label; write null for all but the last (docs/from_trl.md has the lines)"
      " and take this out"
    )


def main(
  description: str,
  read: Callable[[Fields, int], written_config.Recipe],
  words: Sequence[str] | None = None,
) -> None:
  """Reads their file and writes ours.

  Args:
    description: The script's docstring.
    read: Returns the recipe of their fields and their number of devices.
    words: The arguments; None are those of the process.
  """
  parser = argparse.ArgumentParser(
    description=description,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add("theirs", help="their YAML file")
  add("ours", help="the Python file to write; it must not be there")
  add(
    "--data",
    required=True,
    action="append",
    help="a stepwise file to train"
    " on, or its folder; may be repeated. jsonl:FILE is of our own form",
  )
  add(
    "--evaluation",
    action="append",
    default=[],
    help="the same to evaluate on; may be repeated",
  )
  add("--init_from", required=True, help="the folder of the imported base")
  add("--devices", type=int, default=1, help="the number of their devices")
  args = parser.parse_args(words)
  try:
    _carry_over(read, args)
  except errors.InputError as e:
    parser.exit(1, f"{parser.prog}: {e}\n")


def _carry_over(
  read: Callable[[Fields, int], written_config.Recipe], args: argparse.Namespace
) -> None:
  if pathlib.Path(args.ours).exists():
    raise errors.InputError(f"{args.ours}: is there already; give a new name")
  fields = Fields(args.theirs, _yaml(args.theirs))
  recipe = read(fields, args.devices)
  if min(recipe.batch, recipe.max_tokens) < 1:
    raise fields.error(
      f"an update of {recipe.batch} solutions of at most {recipe.max_tokens}"
      " tokens: expected at least 1 of each"
    )
  train, evaluation = (
    tuple(x if _is_source(x) else f"stepwise:{x}" for x in given)
    for given in (args.data, args.evaluation)
  )
  solutions = sources.read_sources(train)
  held_out = recipe.held_out
  num_held_out = math.ceil(
    held_out if held_out >= 1 else held_out * len(solutions)
  )
  if num_held_out >= len(solutions):
    raise fields.error(
      f"{num_held_out} of {len(solutions)} solutions are held out, and none is"
      " left to train on"
    )
  steps = recipe.updates(len(solutions) - num_held_out)
  if steps < 1:
    raise fields.error("no update is made; raise the number of epochs")
  warmup = recipe.warmup(steps)
  if warmup > steps // 5:
    raise fields.error(
      f"a warm-up of {warmup} of {steps} updates: here it is a fifth of a run at"
      " most; make it shorter"
    )
  rows = _rows(fields, recipe, solutions, files.local_path(args.init_from))
  config = written_config.fields_of(
    recipe, train, evaluation, args.init_from, rows, steps
  )
  config["data"]["holdout"] = round(num_held_out / len(solutions), 6)
  config["optimizer"]["warmup_steps"] = warmup
  if any(x not in (0, 1, None) for s in solutions for x in s.labels or ()):
    # int(0.9) is 0 there.
    config["objective"]["labels"]["harden_above"] = 1 - 1e-6
  with files.replacing(args.ours) as file:
    file.write(written_config.text_of(recipe, config, args.theirs))
  print(
    f"{args.ours}: {steps} updates of some {recipe.batch} of"
    f" {len(solutions) - num_held_out} solutions, in"
    f" {rows['batch_size']} rows of {rows['sequence_length']} tokens"
  )


def _is_source(given: str) -> bool:
  return given.partition(":")[0] in sources.format_names()


def _yaml(path: str) -> dict[str, Any]:
  try:
    values = yaml.safe_load(pathlib.Path(path).read_text("utf-8"))
  except (OSError, UnicodeError, yaml.YAMLError) as e:
    problem = " ".join(str(e).split())
    raise errors.InputError(
      f"{path}: can't be read as YAML: {problem}"
    ) from None
  if not isinstance(values, dict):
    raise errors.InputError(f"{path}: expected fields with values, as in YAML")
  return values


def _rows(
  fields: Fields,
  recipe: written_config.Recipe,
  solutions: Sequence[schema.Solution],
  base: pathlib.Path,
) -> dict[str, int]:
  """Returns rows that hold as many solutions, on average, as their batch."""
  described = model_json.read_description(base)
  tokenizer = model_json.read_tokenizer(base, described)
  form = encoding.with_template(
    encoding.EncodingConfig(
      max_tokens=recipe.max_tokens,
      truncation="truncate",
      template="token_classification",
    ),
    tokenizer,
  )
  some = solutions[:: -(-len(solutions) // MAX_ENCODED)]
  policy = encoding.LabelPolicy(after_first_error="keep")
  examples, _ = encoding.prm_examples(some, tokenizer, form, policy)
  if not examples:
    raise fields.error(
      f"no solution fits into {recipe.max_tokens} tokens; see `prm-jax data"
      " doctor`"
    )
  # The rows of an update are full but for a percent or two.
  tokens = recipe.batch * sum(map(len, examples)) / len(some)
  if recipe.max_tokens > (1 + TOLERANCE) * tokens:
    raise fields.error(
      f"an update of {recipe.batch} solutions has some {tokens:.0f} tokens, and"
      f" here it has at least one row of {recipe.max_tokens}, the longest"
      " solution allowed: it would hold more of them; allow shorter ones (the"
      f" longest here has {max(map(len, examples))} tokens), or take a larger"
      " batch"
    )
  num_rows = max(1, int(tokens / recipe.max_tokens))
  length = max(recipe.max_tokens, round(tokens / num_rows))
  return dict(batch_size=num_rows, sequence_length=length)
