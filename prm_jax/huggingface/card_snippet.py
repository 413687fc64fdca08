"""The Python in a model card that scores the reader's own text.

It reads texts as the model does, for texts without the names of control tokens.
Two forms are enough for all templates: texts that are encoded one by one, and
one text whose steps are found by their places in it. Whether the lines give the
ids of the example is tried before they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import json
import pathlib
from typing import Any, NamedTuple

from prm_jax import schema
from prm_jax.huggingface import card_scoring
from prm_jax.huggingface import token_names
from prm_jax.models import model_config as model_config
from prm_jax.text import encoding
from prm_jax.text import policy_templates
from prm_jax.text import templates
from prm_jax.text import tokenizer as tokenizer_lib

_Parts = Sequence[templates.TemplatePart]


class Read(NamedTuple):
  """A text's ids, and where its steps are read."""

  ids: list[int]
  places: list[int]


class Snippet(NamedTuple):
  """Python, and how many of the last steps' scores it prints."""

  code: str
  num_scores: int


class Form(NamedTuple):
  """How a template is read, as lines of Python and as what they give.

  Args:
    imports: The further packages that the lines need.
    lines: Lines that set `ids` and `places`, given `problem` and `steps`.
    read: What they set for a solution.
  """

  imports: tuple[str, ...]
  lines: tuple[str, ...]
  read: Read


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
  form = _form(folder, encoding_config, tokenizer, example)
  scoring = card_scoring.scoring(folder, architecture, model, adapts)
  if form is None or scoring is None:
    return None
  num = len(form.read.places)
  if form.read != Read(
    expected.tokens.tolist(), expected.step_end[-num:].tolist()
  ):
    return None
  if scoring.of_whole:
    num = 1
  more = [f"import {name}" for name in scoring.imports]
  code = "\n".join(
    [
      *sorted(["import torch", "import transformers", *form.imports, *more]),
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
  return Snippet(code, num)


# --- From texts to ids ------------------------------------------------------


def _form(
  folder: pathlib.Path,
  encoding_config: encoding.EncodingConfig,
  tokenizer: tokenizer_lib.Tokenizer,
  example: schema.Solution,
) -> Form | None:
  """Returns how the template is read; None if no form fits it."""
  template = encoding_config.template
  assert not isinstance(template, str), "a checkpoint's template is data"
  if template is None:
    separator = ("id", str(tokenizer.separator))
    opening = (("id", str(tokenizer.bos)), templates.PROBLEM, separator)
    step = [templates.STEP, templates.READ, separator]
    if encoding_config.score_position == "separator":
      step = [templates.STEP, separator, templates.READ]
    return _one_by_one(opening, step, tokenizer, example)
  published = None
  if (folder / "tokenizer.json").is_file():
    published = token_names.as_published(folder)
  if isinstance(template, policy_templates.PolicyTemplate):
    return _one_chat(template, published, example) if published else None
  if templates.CUT in template.step:
    return _one_by_one(template.opening, template.step, tokenizer, example)
  return _one_text(template, published, example) if published else None


def _one_by_one(
  opening: _Parts,
  step: _Parts,
  tokenizer: tokenizer_lib.Tokenizer,
  example: schema.Solution,
) -> Form | None:
  """Returns the form in which each text is encoded on its own."""
  at = step.index(templates.READ)
  before, after = step[:at], step[at + 1 :]
  ids = _ids(opening, example.problem, "", tokenizer)
  places = []
  for text in example.steps:
    ids += _ids(before, "", text, tokenizer)
    places.append(len(ids) - 1)
    ids += _ids(after, "", text, tokenizer)
  lines = [
    f"ids, places = {_ids_code(opening, tokenizer)}, []",
    "for step in steps:",
  ]
  if all(kind == "id" for kind, _ in _runs(after)):
    num = 1 + len(_ids(after, "", "", tokenizer))
    lines += [
      f"  ids += {_ids_code((*before, *after), tokenizer)}",
      f"  places.append(len(ids) - {num})",
    ]
  else:
    lines += [
      f"  ids += {_ids_code(before, tokenizer)}",
      "  places.append(len(ids) - 1)",
      f"  ids += {_ids_code(after, tokenizer)}",
    ]
  imports, encodes = _encoder(tokenizer)
  return Form(imports, (*encodes, *lines), Read(ids, places))


def _encoder(
  tokenizer: tokenizer_lib.Tokenizer,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """Returns the imports and the lines that define `encode`."""
  if isinstance(tokenizer, tokenizer_lib.Bytes):
    return (), (_def('list(text.encode("utf-8", "replace"))'),)
  if isinstance(tokenizer, tokenizer_lib.SentencePiece):
    load = 'sentencepiece.SentencePieceProcessor("HERE/tokenizer.model")'
    lines = (f"tokenizer = {load}", _def("tokenizer.encode(text)"))
    return ("import sentencepiece",), lines
  lines = (_LOAD, _def("tokenizer.encode(text, add_special_tokens=False).ids"))
  return ("import tokenizers",), lines


_LOAD = 'tokenizer = tokenizers.Tokenizer.from_file("HERE/tokenizer.json")'


def _def(value: str) -> str:
  return f"encode = lambda text: {value}"


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


def _id(
  part: templates.TemplatePart, tokenizer: tokenizer_lib.Tokenizer
) -> int:
  kind, content = part
  if kind == "id":
    return int(content)
  return templates.control_id("", tokenizer, content)


def _ids(
  parts: _Parts,
  problem: str,
  step: str,
  tokenizer: tokenizer_lib.Tokenizer,
) -> list[int]:
  """Returns the ids that the line of `_ids_code` gives."""
  ids: list[int] = []
  for kind, run in _runs(parts):
    if kind == "id":
      ids.append(_id(run[0], tokenizer))
    else:
      ids += tokenizer.encode(_filled(run, problem, step))
  return ids


def _ids_code(parts: _Parts, tokenizer: tokenizer_lib.Tokenizer) -> str:
  return " + ".join(
    f"[{_id(run[0], tokenizer)}]" if kind == "id" else f"encode({_code(run)})"
    for kind, run in _runs(parts)
  )


def _one_text(
  template: templates.PromptTemplate, published: Any, example: schema.Solution
) -> Form | None:
  """Returns the form in which all is one text; controls have their names."""
  at = template.step.index(templates.READ)
  before, after = template.step[:at], template.step[at + 1 :]
  lines = []
  steps = list(example.steps)
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
    steps[0] = _filled(added, example.problem, "") + steps[0]
  text, ends = _filled(template.opening, example.problem, ""), []
  for step in steps:
    text += _filled(before, "", step)
    ends.append(len(text))
    text += _filled(after, "", step)
  found = published.encode(text, add_special_tokens=False)
  starts = [start for start, _ in found.offsets]
  places = [max(i for i, a in enumerate(starts) if a < end) for end in ends]
  lines += [
    f"text, ends = {_code(template.opening)}, []",
    "for step in steps:",
    f"  text += {_code(before)}",
    "  ends.append(len(text))",
    *([f"  text += {_code(after)}"] if after else []),
    _LOAD,
    "tokens = tokenizer.encode(text, add_special_tokens=False)",
    "ids, starts = tokens.ids, [start for start, _ in tokens.offsets]",
    "places = [max(i for i, x in enumerate(starts) if x < end) for end in ends]",
  ]
  return Form(("import tokenizers",), tuple(lines), Read(found.ids, places))


def _one_chat(
  template: policy_templates.PolicyTemplate,
  published: Any,
  example: schema.Solution,
) -> Form | None:
  """Returns the form of a policy's template, as one text."""
  strip = ["problem = problem.strip()"] if template.strips else []
  problem = example.problem.strip() if template.strips else example.problem
  opening = _filled(template.opening, problem, "")
  between = _literal(template.separator)
  encode = "tokens = tokenizer.encode(text, add_special_tokens=False)"
  if template.closing:
    closing = _filled(template.closing, "", "")
    text = opening + template.separator.join(example.steps) + closing
    ids = published.encode(text, add_special_tokens=False).ids
    lines = [
      *strip,
      f"text = {_code(template.opening)} + {between}.join(steps)",
      *([f"text += {_literal(closing)}"] if closing else []),
      *(_LOAD, encode),
      "ids, places = tokens.ids, [len(tokens.ids) - 1]",
    ]
    return Form(("import tokenizers",), tuple(lines), Read(ids, [len(ids) - 1]))
  text = opening
  ends: list[int] = []
  for step in example.steps:
    text += (template.separator if ends else "") + step
    ends.append(len(text))
  found = published.encode(text, add_special_tokens=False)
  stops = [stop for _, stop in found.offsets]
  places = [min(i for i, b in enumerate(stops) if b >= end) for end in ends]
  lines = [
    *strip,
    f"text, ends = {_code(template.opening)}, []",
    "for step in steps:",
    f"  text += ({between} if ends else '') + step",
    "  ends.append(len(text))",
    *(_LOAD, encode),
    "ids, stops = tokens.ids, [stop for _, stop in tokens.offsets]",
    "places = [min(i for i, x in enumerate(stops) if x >= end) for end in ends]",
  ]
  return Form(("import tokenizers",), tuple(lines), Read(found.ids, places))


def _filled(parts: _Parts, problem: str, step: str) -> str:
  """Returns the text of parts; a control has its name, and a cut nothing."""
  texts = dict(problem=problem, step=step, cut="", read="")
  return "".join(texts.get(kind, content) for kind, content in parts)


def _code(parts: _Parts) -> str:
  """Returns Python whose value is the text of `_filled`."""
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
