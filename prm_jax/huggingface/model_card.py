"""The README of an exported model: what it is, how to score with it.

It holds a worked example, ids and scores included, so that whoever loads the
model elsewhere can see whether they read it as it was trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import json
import pathlib
from typing import Any

import jinja2

from prm_jax import errors
from prm_jax import schema
from prm_jax.huggingface import card_fields
from prm_jax.huggingface import card_snippet
from prm_jax.huggingface import rounding
from prm_jax.runtime import checked_lines
from prm_jax.runtime import files

_TEMPLATE = pathlib.Path(__file__).with_name("model_card.md")

EXAMPLE = schema.Solution(
  id="example",
  problem="Janet has 3 eggs and buys 12 more. How many eggs has she now?",
  steps=(
    "She starts with 3 eggs and buys 12.",
    "3 + 12 = 16, so she has 16 eggs.",
    "The answer is 16.",
  ),
)


@dataclasses.dataclass(frozen=True)
class Example:
  """EXAMPLE as the exported model reads and scores it.

  Args:
    tokens: The ids.
    places: Where each step is read.
    scores: P(correct so far) of each step, with the exported parameters, in
      float32 arithmetic.
    judged: Whether the model was trained to judge each step.
  """

  tokens: Sequence[int]
  places: Sequence[int]
  scores: Sequence[float]
  judged: Sequence[bool]


@dataclasses.dataclass(frozen=True)
class Facts:
  """What a model card says.

  Args:
    name: The name of the model.
    architecture: The class that loads it.
    template: The name of its template.
    dtype: The type of its numbers.
    aggregate: How step scores become a solution's score.
    is_outcome: Whether it scores outcomes, as an ORM.
    config: The config of the training run, if known.
    metrics: The metrics of the training run, if known.
    fields: What the Hub's fields say.
    parts: The parts of the template.
    example: An example with scores; None for a policy.
    snippet: Python that scores the reader's own text; None if there is none.
    is_adapter: Whether it has adapters alone, beside their base.
    judged: Which steps the scores were trained for, one of schema.JUDGED.
    strips: Whether white space around the problem is left out.
    thinking: The names that are tokens in a solution, those around a model's
      reasoning.
    refuses: Texts that no problem or solution may hold; see PolicyTemplate.
    rounding: How far a sample's scores, or log-probabilities, moved when the
      numbers were rounded to that type; empty if none was.
  """

  name: str
  architecture: str
  template: str
  dtype: str
  aggregate: str
  is_outcome: bool
  config: Mapping[str, Any]
  metrics: Mapping[str, float | None]
  fields: card_fields.Fields
  parts: Mapping[str, Sequence[Sequence[str]]] = dataclasses.field(
    default_factory=dict
  )
  example: Example | None = None
  snippet: card_snippet.Snippet | None = None
  is_adapter: bool = False
  judged: str = "all"
  strips: bool = False
  thinking: Sequence[str] = ()
  refuses: Sequence[str] = ()
  rounding: Sequence[rounding.Moved] = ()


def facts_of_run(
  folder: pathlib.Path, step: int
) -> tuple[Mapping[str, Any], Mapping[str, float | None]]:
  """Returns a run's config and the evaluation of a step; empty without one.

  That of another step was measured on other parameters.

  Raises:
    InputError: A file is damaged.
  """
  config = optional_json(folder / "config.json")
  details = optional_json(folder / "environment.json")
  if config and "config" in details:
    differ = files.differences(details["config"], config)
    if differ:
      raise errors.InputError(
        f"{folder / 'config.json'}: has other values of"
        f" {', '.join(sorted(differ))} than environment.json; put the original"
        " file back"
      )
  metrics: Mapping[str, float | None] = {}
  path = folder / "metrics.jsonl"
  if path.is_file():
    for _, record in checked_lines.read_metrics(path):
      if record.get("kind") == "eval" and record.get("step") == step:
        metrics = record
  return config, metrics


def optional_json(path: pathlib.Path) -> dict[str, Any]:
  """Returns the object in a JSON file, an empty one if there is no file."""
  return files.read_json(path) if path.is_file() else {}


def write(facts: Facts) -> str:
  """Returns the Markdown of a model card, with its front matter."""
  kind, unjudged = None, []
  if facts.example is not None:
    kind = "outcome" if facts.is_outcome else "process"
    unjudged = [i + 1 for i, x in enumerate(facts.example.judged) if not x]
  hub = card_fields.front_matter(
    facts.fields,
    facts.metrics,
    name=facts.name,
    architecture=facts.architecture,
    kind=kind,
    is_adapter=facts.is_adapter,
  )
  template = jinja2.Template(
    files.read_text(_TEMPLATE), trim_blocks=True, lstrip_blocks=True
  )
  text = template.render(
    vars(facts),
    hub=hub,
    solution=EXAMPLE,
    threshold=schema.THRESHOLD,
    unjudged=unjudged,
    json=functools.partial(json.dumps, ensure_ascii=False),
    rounded=lambda scores: [round(x, 4) for x in scores],
  )
  return f"{text.rstrip()}\n"
