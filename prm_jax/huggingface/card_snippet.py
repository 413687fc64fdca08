"""The Python in a model card that scores the reader's own text.

It reads texts as the model does, for texts without the names of control tokens.
Two forms are enough for all templates: texts that are encoded one by one, and
one text whose steps are found by their places in it. The lines that make the ids
are run before they are written: they give those of the example, or the card has
none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import json
import pathlib
from typing import Any, NamedTuple

from prm_jax import schema
from prm_jax.huggingface import card_scoring
from prm_jax.models import model_config
from prm_jax.text import encoding
from prm_jax.text import own_form
from prm_jax.text import policy_text
from prm_jax.text import templates
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text import tokenizer_files

_Parts = Sequence[templates.TemplatePart]
_LOAD = 'tokenizer = tokenizers.Tokenizer.from_file("HERE/tokenizer.json")'
_ENCODE = "tokens = tokenizer.encode(text, add_special_tokens=False)"


class Snippet(NamedTuple):
  """Python, and how many of the last steps' scores it prints."""

  code: str
  num_scores: int


class Form(NamedTuple):
  """How a template is read, as lines of Python.

  Args:
    package: The package that the lines need; "" for none.
    lines: Lines that set `ids` and `places`, given `problem` and `steps`.
  """

  package: str
  lines: list[str]


def write(
  folder: pathlib.Path,
  architecture: str,
  model: model_config.ModelConfig,
  encoding_config: encoding.EncodingConfig,
  tokenizer: tokenizer_lib.Tokenizer,
  example: schema.Solution,
  expected: encoding.EncodedSolution,
  *,
  adapts: card_scoring.Adapts | None = None,
) -> Snippet | None:
  """Returns Python that prints the scores of a text, None if there is none.

  Args:
    folder: The exported folder, without its card.
    architecture: The class that loads it.
    model: The shape of the model.
    encoding_config: How the model is read.
    tokenizer: The tokenizer.
    example: The problem and the steps in the code.
    expected: How the model reads them.
    adapts: What the folder adapts, if it has adapters alone.
  """
  form = _form(folder, encoding_config, tokenizer)
  scoring = card_scoring.scoring(folder, architecture, model, adapts)
  if form is None or scoring is None:
    return None
  places = _places(folder, form, example, expected.tokens.tolist())
  if not places or places != expected.step_end[-len(places) :].tolist():
    return None
  packages = {"torch", "transformers", form.package, *scoring.imports} - {""}
  code = "\n".join(
    [
      *(f"import {name}" for name in sorted(packages)),
      "",
      f"problem = {_literal(example.problem)}",
      "steps = [",
      *(f"  {_literal(step)}," for step in example.steps),
      "]",
      *scoring.loads,
      *form.lines,
      "with torch.no_grad():",
      *(f"  {line}" for line in scoring.computes),
      "print(scores.tolist())",
    ]
  )
  return Snippet(code, 1 if scoring.of_whole else len(places))


def _places(
  folder: pathlib.Path, form: Form, example: schema.Solution, ids: list[int]
) -> list[int]:
  """Runs a form's lines; returns their places, none if they give other ids."""
  imports = [f"import {form.package}"] if form.package else []
  code = "\n".join([*imports, *form.lines])
  here = _literal(f"{folder}/")[:-1]
  names: dict[str, Any] = dict(
    problem=example.problem, steps=list(example.steps)
  )
  try:
    exec(code.replace('"HERE/', here), names)
  except Exception:  # as of a tokenizer that lacks a character
    return []
  return names["places"] if names["ids"] == ids else []


# --- From texts to ids ------------------------------------------------------


def _form(
  folder: pathlib.Path,
  encoding_config: encoding.EncodingConfig,
  tokenizer: tokenizer_lib.Tokenizer,
) -> Form | None:
  """Returns how the template is read; None if no form fits it."""
  template = encoding_config.template
  if template == own_form.OWN:
    separator = ("id", str(tokenizer.separator))
    opening = (("id", str(tokenizer.bos)), templates.PROBLEM, separator)
    step = [templates.STEP, templates.READ, separator]
    if encoding_config.score_position == "separator":
      step = [templates.STEP, separator, templates.READ]
    return _one_by_one(opening, step, tokenizer)
  has_file = (folder / "tokenizer.json").is_file()
  if isinstance(template, policy_text.PolicyTemplate):
    return _one_chat(template) if has_file else None
  assert isinstance(template, templates.PromptTemplate)
  if templates.CONTEXT in template.step:
    return None
  if templates.CUT in template.step:
    return _one_by_one(template.opening, template.step, tokenizer)
  return _one_text(template) if has_file else None


def _one_by_one(
  opening: _Parts, step: _Parts, tokenizer: tokenizer_lib.Tokenizer
) -> Form:
  """Returns the form in which each text is encoded on its own."""
  at = step.index(templates.READ)
  before, after = step[:at], step[at + 1 :]
  package, encodes = _encoder(tokenizer)
  lines = [
    *encodes,
    f"ids, places = {_ids_code(opening, tokenizer)}, []",
    "for step in steps:",
  ]
  following = list(_runs(after))
  if all(kind == "id" for kind, _ in following):
    lines += [
      f"  ids += {_ids_code((*before, *after), tokenizer)}",
      f"  places.append(len(ids) - {1 + len(following)})",
    ]
  else:
    lines += [
      f"  ids += {_ids_code(before, tokenizer)}",
      "  places.append(len(ids) - 1)",
      f"  ids += {_ids_code(after, tokenizer)}",
    ]
  return Form(package, lines)


def _encoder(tokenizer: tokenizer_lib.Tokenizer) -> tuple[str, list[str]]:
  """Returns the package and the lines that define `encode`."""
  package, load = "tokenizers", [_LOAD]
  value = "tokenizer.encode(text, add_special_tokens=False).ids"
  if isinstance(tokenizer, tokenizer_lib.Bytes):
    package, load = "", []
    value = 'list(text.encode("utf-8", "replace"))'
  elif isinstance(tokenizer, tokenizer_files.SentencePiece):
    package, value = "sentencepiece", "tokenizer.encode(text)"
    loader = 'sentencepiece.SentencePieceProcessor("HERE/tokenizer.model")'
    load = [f"tokenizer = {loader}"]
  return package, [*load, f"encode = lambda text: {value}"]


def _runs(parts: _Parts) -> Iterable[tuple[str, list[templates.TemplatePart]]]:
  """Yields ("id", its part) and ("texts", those that are encoded as one)."""
  texts: list[templates.TemplatePart] = []
  for part in (*parts, templates.CUT):
    if part[0] not in ("id", "control", "cut"):
      texts.append(part)
      continue
    if texts:
      yield "texts", texts
    texts = []
    if part[0] != "cut":
      yield "id", [part]


def _ids_code(parts: _Parts, tokenizer: tokenizer_lib.Tokenizer) -> str:
  def of_id(part: templates.TemplatePart) -> str:
    kind, content = part
    if kind == "id":
      return content
    return str(templates.control_id("", tokenizer, content))

  return " + ".join(
    f"[{of_id(run[0])}]" if kind == "id" else f"encode({_code(run)})"
    for kind, run in _runs(parts)
  )


def _one_text(template: templates.PromptTemplate) -> Form | None:
  """Returns the form in which all is one text; controls have their names."""
  at = template.step.index(templates.READ)
  before, after = template.step[:at], template.step[at + 1 :]
  lines = []
  if template.first_step:
    # It differs by the problem before its step.
    index = template.first_step.index(templates.PROBLEM)
    stop = template.first_step.index(templates.STEP)
    added = template.first_step[index:stop]
    if (
      template.first_step[:index] + template.first_step[stop:] != template.step
    ):
      return None
    lines.append(f"steps[0] = {_code((*added, ('text', '')))} + steps[0]")
  lines += [
    *_joined(_code(template.opening), _code(before), _code(after)),
    "ids, starts = tokens.ids, [start for start, _ in tokens.offsets]",
    "places = [max(i for i, x in enumerate(starts) if x < end) for end in ends]",
  ]
  return Form("tokenizers", lines)


def _one_chat(template: policy_text.PolicyTemplate) -> Form:
  """Returns the form of a policy's template, as one text."""
  lines = ["problem = problem.strip()"] if template.strips else []
  opening, between = _code(template.opening), _literal(template.separator)
  if template.closing:
    closing = _code(template.closing)
    lines += [
      f"text = {opening} + {between}.join(steps)",
      *([f"text += {closing}"] if closing != '""' else []),
      *(_LOAD, _ENCODE),
      "ids, places = tokens.ids, [len(tokens.ids) - 1]",
    ]
    return Form("tokenizers", lines)
  lines += [
    *_joined(opening, f"({between} if ends else '') + step"),
    "ids, stops = tokens.ids, [stop for _, stop in tokens.offsets]",
    "places = [min(i for i, x in enumerate(stops) if x >= end) for end in ends]",
  ]
  return Form("tokenizers", lines)


def _joined(opening: str, step: str, after: str = '""') -> list[str]:
  """Returns lines that set `tokens`, and `ends` of steps in characters."""
  return [
    f"text, ends = {opening}, []",
    "for step in steps:",
    f"  text += {step}",
    "  ends.append(len(text))",
    *([f"  text += {after}"] if after != '""' else []),
    *(_LOAD, _ENCODE),
  ]


def _code(parts: _Parts) -> str:
  """Returns Python whose value is the text of parts.

  A control has its name, and a cut nothing.
  """
  pieces: list[str] = []
  literal = ""
  for kind, content in (*parts, ("problem", "")):
    if kind in ("cut", "read"):
      continue
    if kind in ("problem", "step"):
      pieces += [_literal(literal)] if literal else []
      pieces.append(kind)
      literal = ""
    else:
      literal += content
  return " + ".join(pieces[:-1]) or '""'


def _literal(text: str) -> str:
  return json.dumps(text, ensure_ascii=False)
