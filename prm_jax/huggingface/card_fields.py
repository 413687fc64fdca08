"""The Hub's fields of a model card: where a model comes from, and its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib
import re
from typing import Any

from prm_jax import errors
from prm_jax.huggingface import hub
from prm_jax.runtime import files
from prm_jax.runtime import foreign_files

NAME = "README.md"
_VALUE = re.compile(r"[A-Za-z0-9][\w./:+-]{0,199}")


@dataclasses.dataclass(frozen=True)
class Fields:
  """What the Hub's fields of a card say of where a model comes from.

  Args:
    base_model: The name of the model that training started from.
    license: The licence's name as the Hub has it, as apache-2.0.
    license_name: The name of a licence that is "other".
    license_link: Where that one is.
    datasets: The names of the datasets that it was trained on.

  Raises:
    InputError: A value can't be in a card.
  """

  base_model: str | None = None
  license: str | None = None
  license_name: str | None = None
  license_link: str | None = None
  datasets: tuple[str, ...] = ()

  def __post_init__(self):
    for name in ("base_model", "license", "license_name", "license_link"):
      value = getattr(self, name)
      if value is not None and not _is_value(value):
        raise errors.InputError(
          f"`{name}={value!r}`: expected a name without white space"
        )
    for value in self.datasets:
      if not _is_value(value):
        raise errors.InputError(
          f"`dataset={value!r}`: expected a name without white space"
        )


def _is_value(value: str) -> bool:
  return _VALUE.fullmatch(value) is not None


def fields_of(origin: pathlib.Path, raw: Mapping[str, Any]) -> Fields:
  """Returns what an imported model says of itself.

  Args:
    origin: The folder with its card, which need not be there.
    raw: Its config.json.
  """
  name = raw.get("_name_or_path")
  # Others have the path of a folder there.
  is_name = isinstance(name, str) and hub.NAME.fullmatch(name) is not None
  path = foreign_files.find(origin, NAME) if origin.is_dir() else None
  front = "" if path is None else _front(files.read_text(path))
  read: dict[str, Any] = {}
  for field in ("license", "license_name", "license_link"):
    line = re.search(
      rf"^{field}:[ \t]*['\"]?([^\s'\"]+)['\"]?\s*$", front, re.M
    )
    if line and _is_value(line[1]):
      read[field] = line[1]
  return Fields(base_model=name if is_name else None, **read)


def _front(text: str) -> str:
  """Returns the YAML at the beginning of a card."""
  match = re.match(r"---\s*\n(.*?)^---\s*$", text, re.S | re.M)
  return match[1] if match else ""


def merged(given: Fields, imported: Fields) -> Fields:
  """Returns the fields that are given, else those of the imported model.

  The name and the link of a licence are those of the licence.
  """
  own = {k: v for k, v in vars(given).items() if v}
  if "license" in own:
    imported = dataclasses.replace(
      imported, license_name=None, license_link=None
    )
  return dataclasses.replace(imported, **own)


def front_matter(
  fields: Fields,
  metrics: Mapping[str, float | None],
  *,
  name: str,
  architecture: str,
  kind: str | None,
  is_adapter: bool = False,
) -> str:
  """Returns the YAML at the beginning of a card.

  Args:
    fields: Where the model comes from.
    metrics: What it was measured by on held-out solutions.
    name: The name of the model.
    architecture: The class that loads it.
    kind: process or outcome, for a reward model; None for a policy.
    is_adapter: Whether it has adapters alone, in PEFT's form.
  """
  tags, task = ["prm_jax"], "text-generation"
  if kind is not None:
    own = ["prm"] if kind == "process" else []
    tags, task = [*own, "reward-model", f"{kind}-reward-model", *tags], ""
  for end in ("token-classification", "sequence-classification"):
    words = "".join(word.capitalize() for word in end.split("-"))
    if architecture.endswith(f"For{words}"):
      task = end.replace("sequence", "text")
  library = "peft" if is_adapter else "transformers"
  lines = [f"library_name: {library}", *_listed("tags", tags)]
  lines += [f"pipeline_tag: {task}"] if task else []
  for field in ("base_model", "license", "license_name", "license_link"):
    value = getattr(fields, field)
    lines += [f"{field}: {value}"] if value else []
  lines += _listed("datasets", fields.datasets)
  lines += _measured(
    name, metrics, task or "token-classification", fields.datasets
  )
  return "\n".join(["---", *lines, "---"])


def _listed(name: str, values: Sequence[str]) -> list[str]:
  return [f"{name}:", *(f"- {value}" for value in values)] if values else []


def _measured(
  model: str,
  metrics: Mapping[str, float | None],
  task: str,
  datasets: Sequence[str],
) -> list[str]:
  """Returns the Hub's fields of metrics: their names, and their values."""
  values = {
    name: value
    for name, value in sorted(metrics.items())
    if isinstance(value, float | int)
    and name not in ("step", "time_s")
    and re.fullmatch(r"\w+", name)
  }
  if not values:
    return []
  held_out = "  - task:\n      type: {}\n    dataset:\n      name: held-out"
  lines = [
    *_listed("metrics", list(values)),
    "model-index:",
    f"- name: {json.dumps(model, ensure_ascii=False)}",
    "  results:",
    f"{held_out.format(task)} solutions of its training run",
    f"      type: {(*datasets, 'held-out')[0]}",
    "    metrics:",
  ]
  for name, value in values.items():
    lines.append(f"    - type: {name}\n      value: {float(f'{value:.6g}')}")
  return lines
