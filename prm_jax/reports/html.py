"""HTML pages from data: numbers and sentences.

The macros of templates/page.html make all markup, and escape all text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import functools
import itertools
from typing import Any, NamedTuple

import jinja2
import markupsafe

from prm_jax.runtime import files

Markup = markupsafe.Markup
NOTHING = Markup()


class Cell(NamedTuple):
  """A text of a table or list: `small` is below it, `mark` before it."""

  text: Any
  small: str = ""
  css: str = ""
  title: str = ""
  mark: Markup = NOTHING


class Section(NamedTuple):
  """A part of a page, left out if it has no content.

  Args:
    name: The name of its text in page.html.
    content: Its content.
    values: The values in its text.
  """

  name: str  # of its prose in page.html
  content: Markup
  values: Mapping[str, Any] = {}


def page(
  title: str,
  eyebrow: str,
  summary: str,
  sections: Sequence[Section],
  tiles: Markup = NOTHING,
  note: str = "",
) -> str:
  """Returns the whole page; `note` is of the tiles."""
  return str(part("page", title, eyebrow, summary, tiles, note, sections))


def part(macro: str, *values: Any) -> Markup:
  """Returns the markup of one macro of page.html, which may be nothing."""
  text = str(getattr(_macros(), macro)(*values)).strip()
  # A lone surrogate has no UTF-8 form: show its code instead.
  text = text.encode("utf-8", "backslashreplace").decode()
  return Markup(text + "\n") if text else NOTHING


def sentence(name: str, values: Mapping[str, Any]) -> str:
  """Returns one of page.html's sentences with its values."""
  return _macros().sentences[name].format(**values)


def table(
  name: str,
  head: Sequence[str],
  rows: Iterable[Sequence[Any]],
  css: str = "",
  fills: Sequence[str] = (),
) -> Markup:
  """Returns a table of texts and Cells, if it has rows.

  Args:
    name: Its name for screen readers.
    head: The header.
    rows: The rows.
    css: Its class.
    fills: The background colour of each row, or none.
  """
  cells = [[_cell(c) for c in row] for row in rows]
  return part("table", name, head, cells, css, fills)


def pairs(rows: Iterable[tuple[str, Any]], css: str, title: str = "") -> Markup:
  """Returns a list, if it isn't empty, of keys with a text or Cell each."""
  return part("pairs", [(key, _cell(value)) for key, value in rows], css, title)


def made(details: Mapping[str, Any], content: Markup = NOTHING) -> Section:
  """Returns the section of what environment.describe knows, and of content."""
  names = dict(machine="Machine", versions="Versions", config="")
  machine, versions, config = (
    pairs(flatten(details.get(name) or {}), "facts", title)
    for name, title in names.items()
  )
  facts = content + machine + versions
  return Section("made", part("made", details.get("command"), facts, config))


def write(path: files.PathLike, page: str) -> None:
  """Writes a page, all or nothing."""
  with files.replacing(path) as f:
    f.write(page)


def percent(share: float) -> str:
  return f"{100 * share:.1f}"


def points(share: float) -> str:
  """Returns a difference of shares in percentage points, with its sign."""
  text = f"{100 * share:+.1f}"
  return "0.0" if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def flatten(value: Any, prefix: str = "") -> list[tuple[str, str]]:
  """Returns [("a.b", text), ...] of a nested mapping."""
  if not isinstance(value, Mapping):
    return [(prefix, str(value))]
  dot = "." if prefix else ""
  rows = (flatten(v, f"{prefix}{dot}{k}") for k, v in value.items())
  return list(itertools.chain(*rows))


def _cell(content: Any) -> Cell:
  return content if isinstance(content, Cell) else Cell(content)


@functools.cache
def _macros() -> Any:
  return (
    jinja2.Environment(
      loader=jinja2.PackageLoader("prm_jax.reports"),
      autoescape=True,
      undefined=jinja2.StrictUndefined,
      # Control characters, which no markup may hold, are shown as symbols.
      finalize=lambda x: x.translate(_CONTROLS) if type(x) is str else x,
      trim_blocks=True,
      lstrip_blocks=True,
    )
    .get_template("page.html")
    .module
  )


_CONTROLS = {c: 0x2400 + c for c in range(32) if chr(c) not in "\t\n\r"}
