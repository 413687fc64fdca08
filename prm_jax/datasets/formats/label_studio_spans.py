"""The spans of a Label Studio annotation, and the text that they are of."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import html.parser
import itertools
from typing import Any

from prm_jax import errors
from prm_jax.records import fields

_TYPES = ("labels", "hypertextlabels")
# Where the text is looked for first.
_TEXTS = ("text", "html")


@dataclasses.dataclass(frozen=True)
class Region:
  """A span of the text.

  Args:
    start: Its first character.
    end: The one after its last.
    labels: The labels that it has.
    quote: What the tool showed there, or None; blanks may differ.
    is_html: Whether the text is that of HTML.
    at: Its place in the file.
  """

  start: int
  end: int
  labels: tuple[str, ...]
  quote: str | None
  is_html: bool
  at: str


def records(
  task: dict[str, Any], where: str, name: str
) -> list[dict[str, Any]]:
  """Returns a field that must be a list of objects; [] if it is missing.

  Args:
    task: The object that has the field.
    where: Its place.
    name: The field.
  """
  values = fields.field(task, where, name, list, default=[])
  return [
    fields.record(value, f"{where}: {name}[{i}]")
    for i, value in enumerate(values)
  ]


def regions(
  annotation: dict[str, Any], at: str
) -> tuple[list[Region], list[dict[str, Any]]]:
  """Returns the spans in the order of the text, and the results that are none.

  Args:
    annotation: The annotation.
    at: Its place.

  Raises:
    InputError: Two spans overlap, or one isn't of this form.
  """
  found, others = [], []
  for i, result in enumerate(records(annotation, at, "result")):
    here = f"{at}.result[{i}]"
    kind = fields.field(result, here, "type", str)
    if kind not in _TYPES:
      others.append(result)
      continue
    value = fields.field(result, here, "value", dict)
    place = value
    if kind == "hypertextlabels":
      place = fields.field(value, f"{here}: value", "globalOffsets", dict)
    labels = value.get(kind)
    found.append(
      Region(
        start=fields.field(place, here, "start", int),
        end=fields.field(place, here, "end", int),
        labels=() if labels is None else fields.texts(value, here, kind),
        quote=fields.field(value, here, "text", str, default=None),
        is_html=kind == "hypertextlabels",
        at=here,
      )
    )
  found.sort(key=lambda r: (r.start, r.end))
  _check_order(found)
  return found, others


def _check_order(regions: list[Region]) -> None:
  for a, b in itertools.pairwise(regions):
    if b.start < a.end:
      raise errors.InputError(
        f"{b.at}: span {b.start}..{b.end} overlaps with {a.start}..{a.end};"
        " make each step one span"
      )


def text_of(
  data: dict[str, Any],
  spans: Sequence[Region],
  where: str,
  others: Sequence[str],
) -> tuple[str, str]:
  """Returns the field of the data that the spans are of, and its text.

  Args:
    data: The task's data.
    spans: The spans.
    where: The task's place.
    others: Fields that hold something else.

  Raises:
    InputError: No field holds each span's text in its place.
  """
  names = [x for x in (*_TEXTS, *data) if isinstance(data.get(x), str)]
  names = [x for x in dict.fromkeys(names) if x not in others]
  wrong = None
  for name in names:
    is_html = any(r.is_html for r in spans)
    text = _text_of_html(data[name]) if is_html else data[name]
    bad = next((r for r in spans if not _is_at(r, text)), None)
    if bad is None:
      return name, text
    wrong = wrong or (bad, name)
  if wrong is None:
    raise errors.InputError(
      f'{where}: "data" has no text; give it in data.text'
    )
  region, name = wrong
  raise errors.InputError(
    f"{region.at}: span {region.start}..{region.end} isn't in data.{name}, or"
    " its text differs; export the tasks with the data that was annotated"
  )


def _is_at(region: Region, text: str) -> bool:
  """Returns whether a span is in the text; blanks are shown in other ways."""
  if not 0 <= region.start < region.end <= len(text):
    return False
  if region.quote is None:
    return True
  there = text[region.start : region.end]
  return _without_blanks(there) == _without_blanks(region.quote)


def _without_blanks(text: str) -> str:
  # The tool quotes HTML as the browser shows it, a line break as "\\n".
  return "".join(text.replace("\\n", "").split())


class _Parser(html.parser.HTMLParser):
  """Collects the text as Label Studio counts it: a <br> is one character."""

  def __init__(self):
    super().__init__(convert_charrefs=True)
    self.texts: list[str] = []

  def handle_data(self, data):
    self.texts.append(data)

  def handle_starttag(self, tag, attrs):
    if tag == "br":
      self.texts.append("\n")


def _text_of_html(text: str) -> str:
  parser = _Parser()
  parser.feed(text)
  parser.close()
  return "".join(parser.texts)
