"""What a picture shows, as plain values: panels of lines.

reports/figure_files.py draws them.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses


@dataclasses.dataclass(frozen=True)
class Line:
  """Points of a panel.

  Args:
    label: What it is called.
    x: The place of each point.
    y: Its value; NaN where there is none.
    low: The lower end of each value's interval, NaN where it isn't known; empty
      if none is. If those of all values are, a line has a band, else whiskers.
    high: The upper end.
    is_joined: Whether a line goes through the points.
  """

  label: str
  x: Sequence[float]
  y: Sequence[float]
  low: Sequence[float] = ()
  high: Sequence[float] = ()
  is_joined: bool = True


@dataclasses.dataclass(frozen=True)
class Panel:
  """Lines that share axes.

  Args:
    title: What it shows.
    x_label: The label of x.
    y_label: The label of y.
    lines: The lines.
    x_ticks: The values of x that are named; empty takes round ones.
    x_names: Their names; empty takes the numbers.
    x_is_log: Whether x has a logarithmic scale, of base 2.
    is_share: Whether y is a share, which is shown in %.
    holds: Values that the axis of y includes.
    has_diagonal: Whether the line from (0, 0) to (1, 1) is drawn.
    marks: Values of x with a vertical line.
  """

  title: str
  x_label: str
  y_label: str
  lines: Sequence[Line]
  x_ticks: Sequence[float] = ()
  x_names: Sequence[str] = ()
  x_is_log: bool = False
  is_share: bool = True
  holds: Sequence[float] = ()
  has_diagonal: bool = False
  marks: Sequence[float] = ()


@dataclasses.dataclass(frozen=True)
class Figure:
  """Panels under a title.

  Args:
    title: What they show together.
    panels: The panels; those without a line are left out.
  """

  title: str
  panels: Sequence[Panel]

  def __post_init__(self):
    drawn = tuple(p for p in self.panels if p.lines)
    object.__setattr__(self, "panels", drawn)
