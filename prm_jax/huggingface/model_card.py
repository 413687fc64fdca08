"""The README of an exported model: what it is, how to score with it.

It holds a worked example, ids and scores included, so that whoever loads the
model elsewhere can see whether they read it as it was trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.huggingface import card_fields
from prm_jax.huggingface import card_snippet
from prm_jax.huggingface import rounding
from prm_jax.runtime import checked_lines
from prm_jax.runtime import files

NAME = card_fields.NAME

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
    parts: The parts of the template.
    example: An example with scores; None for a policy.
    snippet: Python that scores the reader's own text; None if there is none.
    is_outcome: Whether it scores outcomes, as an ORM.
    config: The config of the training run, if known.
    metrics: The metrics of the training run, if known.
    fields: What the Hub's fields say.
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
  parts: Mapping[str, Sequence[Sequence[str]]]
  example: Example | None
  snippet: card_snippet.Snippet | None
  is_outcome: bool
  config: Mapping[str, Any]
  metrics: Mapping[str, float | None]
  fields: card_fields.Fields
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
  parts = [
    card_fields.front_matter(
      facts.fields,
      facts.metrics,
      name=facts.name,
      architecture=facts.architecture,
      kind=_kind(facts),
      is_adapter=facts.is_adapter,
    ),
    f"# {facts.name}",
    _what(facts),
    _how_to_read(facts),
    _training(facts),
    _limits(facts),
  ]
  return "\n\n".join(part for part in parts if part) + "\n"


def _kind(facts: Facts) -> str | None:
  """Returns which kind of reward model it is; None for a policy."""
  if facts.example is None:
    return None
  return "outcome" if facts.is_outcome else "process"


def _what(facts: Facts) -> str:
  if facts.example is None:
    return (
      f"A language model, `{facts.architecture}`, in {facts.dtype}."
      f"{_rounding(facts)}"
    )
  what = (
    "A process reward model: for each step of a solution it says how likely"
    " everything up to that step is correct, a number from 0 to 1. A"
    f" solution's score is the {facts.aggregate} of its steps' scores."
  )
  if facts.is_outcome:
    what = (
      "An outcome reward model: it says how likely the answer of a solution is"
      " right, a number from 0 to 1, as estimated after each step. A solution's"
      f" score is the {facts.aggregate} of its steps' scores. A score is the"
      " sigmoid of the model's logit; of a model that was trained on preferences"
      " alone it is no probability, and only the order of solutions means"
      " something."
    )
  return (
    f"{what}{_masked(facts)}\n\n"
    f"Architecture `{facts.architecture}`, {facts.dtype}; read in the template"
    f" `{facts.template}`.{_rounding(facts)}"
  )


def _rounding(facts: Facts) -> str:
  """Returns a paragraph about weights that aren't those that were evaluated."""
  if not facts.rounding:
    return ""
  lines = "".join(f"\n- {moved}" for moved in facts.rounding)
  return (
    f"\n\n**The weights were rounded to {facts.dtype}**; those of the checkpoint"
    " have more bits, and its evaluation is of those. On a sample:\n"
    f"{lines}"
  )


def _masked(facts: Facts) -> str:
  """Returns a paragraph about the steps whose scores weren't trained."""
  if facts.judged == "last":
    text = (
      "\n\n**Only the last step's score was trained.** Those of the steps before"
      " it are not judgements."
    )
    if facts.aggregate != "last":
      text += f" The {facts.aggregate} includes them."
    return text
  if facts.judged != "until_first_error":
    return ""
  text = (
    "\n\n**Scores after a first error mean nothing.** The model was not trained"
    " on steps after the first wrong one. So after its own first score below"
    f" {schema.THRESHOLD} it judges no step, and may give a wrong answer a score"
    " near 1."
  )
  if facts.aggregate in ("last", "mean"):
    text += (
      f" The {facts.aggregate} includes such scores: take the minimum or the"
      " product if a step scores below that."
    )
  return text


def _how_to_read(facts: Facts) -> str:
  if facts.example is None:
    return ""
  example = facts.example
  lines = [
    "## How to score",
    *_code(facts),
    "The ids are put together from these parts, in order. `control` is the id"
    " of a special token, texts that no `control` or `cut` parts are encoded"
    " as one, and a step is read at the last token before `read`. The places"
    " follow from the lengths. Don't look for separators among the ids: a"
    " solution may contain their text.",
    "```json\n"
    + "\n".join(
      f'"{part}": {json.dumps(parts, ensure_ascii=False)}'
      for part, parts in facts.parts.items()
      if parts
    )
    + "\n```",
    *_texts(facts),
    "A problem and three steps, the second of them wrong:",
    _json_block(dict(problem=EXAMPLE.problem, steps=EXAMPLE.steps)),
  ]
  lines.append(
    f"Its ids are `{list(example.tokens)}`, read at {list(example.places)};"
    f" the scores are `{_rounded(example.scores)}`."
  )
  if not all(example.judged):
    steps = [str(i + 1) for i, x in enumerate(example.judged) if not x]
    lines.append(f"Not judged (see above): step {', '.join(steps)}.")
  lines.append("`prm-jax import --from=HERE --to=DIR` takes this folder too.")
  return "\n\n".join(lines)


def _code(facts: Facts) -> list[str]:
  """Returns the Python for the reader's own text, and what it prints."""
  if facts.snippet is None:
    return []
  assert facts.example is not None
  code, num = facts.snippet
  printed = _rounded(facts.example.scores[-num:])
  return [
    f"```python\n{code}\n```",
    f"In float32 this prints `{printed}`, with more digits."
    + (" It is the whole solution's score." if _is_last(facts) else ""),
    "`HERE` is this folder. Put in your own problem and steps. The text is read"
    " as the model was trained to, unless it holds the name of a special token.",
  ]


def _is_last(facts: Facts) -> bool:
  """Returns whether the code prints the last score of several."""
  assert facts.snippet is not None and facts.example is not None
  return facts.snippet.num_scores < len(facts.example.scores)


def _rounded(scores: Sequence[float]) -> list[float]:
  return [round(x, 4) for x in scores]


def _texts(facts: Facts) -> list[str]:
  """Returns what the parts don't say of the texts in them."""
  sentences = []
  if facts.strips:
    sentences.append("White space at both ends of the problem is left out.")
  if any(kind == "read" for kind, _ in facts.parts.get("closing", ())):
    sentences.append("The last step is read where `closing` has its `read`.")
  if facts.thinking:
    names = " and ".join(f"`{name}`" for name in facts.thinking)
    sentences.append(
      f"In a solution {names} are the ids of the tokens with these names, as a"
      " `control` is; in a problem they are text."
    )
  if facts.refuses:
    names = ", ".join(f"`{name}`" for name in facts.refuses)
    sentences.append(
      f"No problem or solution may hold {names}: the chat template, by which the"
      " model was trained, doesn't write such a text as it stands."
    )
  return [" ".join(sentences)] if sentences else []


def _json_block(value: Any) -> str:
  text = json.dumps(value, ensure_ascii=False, indent=1)
  return f"```json\n{text}\n```"


def _training(facts: Facts) -> str:
  if not facts.config and not facts.metrics:
    return ""
  lines = ["## Training"]
  data = facts.config.get("data", {})
  if isinstance(data, Mapping) and data.get("train"):
    lines.append("Data: " + ", ".join(f"`{x}`" for x in data["train"]) + ".")
  if facts.metrics:
    rows = [
      f"| {name} | {'undefined' if value is None else f'{value:.4g}'} |"
      for name, value in sorted(facts.metrics.items())
      if isinstance(value, float | int | None) and name != "step"
    ]
    step = facts.metrics.get("step")
    after = f" after {step:g} updates" if step is not None else ""
    lines.append(f"On held-out solutions{after}:")
    lines.append("\n".join(["| metric | value |", "|---|---|", *rows]))
  if facts.config:
    lines.append(
      "<details><summary>Config</summary>\n\n"
      f"{_json_block(facts.config)}\n\n</details>"
    )
  return "\n\n".join(lines)


def _limits(facts: Facts) -> str:
  if facts.example is None:
    return ""
  return (
    "## Limits\n\nThe scores are those of a model: they rank solutions like"
    " those it was trained on, and can be wrong on others. Optimising against"
    " them finds their mistakes."
  )
