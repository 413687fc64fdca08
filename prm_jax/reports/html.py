"""HTML pages and SVG pictures from the templates of this folder.

Python makes numbers, sentences and positions. A template makes the markup, and
escapes all text that comes from data.
"""

from __future__ import annotations

from collections.abc import Mapping
import functools
import itertools
from typing import Any

import jinja2
import markupsafe

from prm_jax.runtime import files


def fill(template: str, **values: Any) -> str:
  """Returns a template's page; it must be given all of its values."""
  return _text(_environment().get_template(template).render(**values))


def part(macro: str, *values: Any) -> markupsafe.Markup:
  """Returns the markup of one macro of parts.html."""
  parts = _environment().get_template("parts.html").module
  return markupsafe.Markup(_text(getattr(parts, macro)(*values)))


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


def duration(seconds: float) -> str:
  minutes, rest = divmod(round(seconds), 60)
  return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"


def flatten(value: Any, prefix: str = "") -> list[tuple[str, str]]:
  """Returns [("a.b", text), ...] of a nested mapping."""
  if not isinstance(value, Mapping):
    return [(prefix, str(value))]
  dot = "." if prefix else ""
  rows = (flatten(v, f"{prefix}{dot}{k}") for k, v in value.items())
  return list(itertools.chain(*rows))


@functools.cache
def _environment() -> jinja2.Environment:
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader("prm_jax.reports"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    # Control characters, which no markup may hold, are shown as symbols.
    finalize=lambda x: x.translate(_CONTROLS) if type(x) is str else x,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  filters = (percent, points, duration, flatten)
  environment.filters |= {f.__name__: f for f in filters}
  return environment


def _text(rendered: Any) -> str:
  # A lone surrogate has no UTF-8 form: show its code instead.
  text = str(rendered).strip()
  return text.encode("utf-8", "backslashreplace").decode() + "\n"


_CONTROLS = {c: 0x2400 + c for c in range(32) if chr(c) not in "\t\n\r"}
