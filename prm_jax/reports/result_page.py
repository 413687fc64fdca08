"""A page of results as plain values: sentences, pictures, tables and facts.

`prm-jax view` draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import math
from typing import Any

from prm_jax.evaluation import figures
from prm_jax.evaluation import tables


@dataclasses.dataclass(frozen=True)
class Tile:
  """One number that counts most.

  Args:
    label: What it is.
    value: The number.
    small: What stands below it, such as an interval.
  """

  label: str
  value: str
  small: str = ""


@dataclasses.dataclass(frozen=True)
class Fact:
  """A name with a text.

  Args:
    name: The name.
    text: The text.
    address: Where the name leads to among the pages; empty leads nowhere.
  """

  name: str
  text: str
  address: str = ""


@dataclasses.dataclass(frozen=True)
class Section:
  """A part of a page.

  Args:
    title: Its title.
    text: What it shows, in sentences.
    panels: Its pictures.
    table: Its table.
    facts: Its facts.
    note: What is to be known of it, below all.
    is_folded: Whether it is shown on demand.
  """

  title: str
  text: str = ""
  panels: Sequence[figures.Panel] = ()
  table: tables.Table | None = None
  facts: Sequence[Fact] = ()
  note: str = ""
  is_folded: bool = False

  @property
  def is_empty(self) -> bool:
    """Whether it has nothing but texts."""
    drawn = any(panel.lines for panel in self.panels)
    table = self.table
    has_rows = table is not None and table.columns and table.rows
    return not (drawn or has_rows or self.facts)


@dataclasses.dataclass(frozen=True)
class Page:
  """A page of results.

  Args:
    title: What it shows; empty is its name alone.
    lead: What is to be read first.
    tiles: The numbers that count most.
    sections: Its parts; those that are empty are left out.
  """

  title: str = ""
  lead: str = ""
  tiles: Sequence[Tile] = ()
  sections: Sequence[Section] = ()

  def __post_init__(self):
    kept = tuple(x for x in self.sections if not x.is_empty)
    object.__setattr__(self, "sections", kept)


def plain(page: Page) -> dict[str, Any]:
  """Returns a page as JSON has it: a table's cells are texts, NaN is None.

  Args:
    page: The page.
  """
  made = dataclasses.asdict(page)
  for section, shown in zip(page.sections, made["sections"], strict=True):
    shown["panels"] = [_plain(x) for x in shown["panels"] if x["lines"]]
    if section.table is not None:
      shown["table"] = tables.texts(section.table)
  return made


def _plain(value: Any) -> Any:
  if isinstance(value, Mapping):
    return {k: _plain(x) for k, x in value.items()}
  if isinstance(value, list | tuple | range):
    return [_plain(x) for x in value]
  is_unknown = isinstance(value, float) and not math.isfinite(value)
  return None if is_unknown else value


def made(run: Mapping[str, Any], facts: Sequence[Fact] = ()) -> Section:
  """Returns how results were made.

  Args:
    run: What environment.describe returns, as far as it is known.
    facts: What else is known of it.
  """
  known = {k: x for k, x in run.items() if x}
  return Section(
    "How it was made", facts=[*facts, *flat(known)], is_folded=True
  )


def flat(value: Mapping[str, Any], prefix: str = "") -> list[Fact]:
  """Returns the values of nested results as facts named a.b.

  Args:
    value: The results.
    prefix: What their names begin with.
  """
  facts = (
    flat(x, f"{prefix}{name}.")
    if isinstance(x, Mapping) and x
    else [Fact(f"{prefix}{name}", _text(x))]
    for name, x in value.items()
  )
  return list(itertools.chain(*facts))


def _text(value: Any) -> str:
  if isinstance(value, list | tuple):
    return ", ".join(
      f"({_text(x)})" if isinstance(x, list) else _text(x) for x in value
    )
  if isinstance(value, float):
    return f"{value:.6g}"
  return "–" if value is None else str(value)
