"""The Hub's fields of a model card: where a model comes from, and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import pathlib
import re
from typing import Any

import huggingface_hub

from prm_jax import errors
from prm_jax.huggingface import hub
from prm_jax.runtime import files
from prm_jax.runtime import foreign_files

NAME = "README.md"
_TASKS = dict(
  ForTokenClassification="token-classification",
  ForSequenceClassification="text-classification",
)
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
  """Returns the YAML of a card, without its lines of dashes.

  Args:
    fields: Where the model comes from.
    metrics: What it was measured by on held-out solutions.
    name: The name of the model.
    architecture: The class that loads it.
    kind: process or outcome, for a reward model; None for a policy.
    is_adapter: Whether it has adapters alone, in PEFT's form.
  """
  tags = ["prm_jax"]
  task: str | None = "text-generation"
  if kind is not None:
    own = ["prm"] if kind == "process" else []
    tags, task = [*own, "reward-model", f"{kind}-reward-model", *tags], None
  for end, what in _TASKS.items():
    task = what if architecture.endswith(end) else task
  results = [
    huggingface_hub.EvalResult(
      task or "token-classification",
      (*fields.datasets, "held-out")[0],
      "held-out solutions of its training run",
      metric,
      float(f"{value:.6g}"),
    )
    for metric, value in sorted(metrics.items())
    if isinstance(value, float | int)
    and metric not in ("step", "time_s")
    and re.fullmatch(r"\w+", metric)
  ]
  data = huggingface_hub.ModelCardData(
    library_name="peft" if is_adapter else "transformers",
    tags=tags,
    pipeline_tag=task,
    metrics=[x.metric_type for x in results] or None,
    model_name=name if results else None,
    eval_results=results or None,
    **{**vars(fields), "datasets": [*fields.datasets] or None},
  )
  return data.to_yaml()
