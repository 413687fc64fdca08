"""Draws figures with matplotlib, the extra `plot`, as SVG and PNG files.

The same figure gives the same bytes. A file has its own paper, so that it can be
read on a light page and on a dark one, and its texts are texts. Names come from
files: none is read as a formula, and the SVG escapes them.
"""

from __future__ import annotations

import io
import itertools
import math
from typing import Any
import warnings

from prm_jax import errors
from prm_jax.evaluation import figures
from prm_jax.runtime import files
from prm_jax.runtime import terminal

ENDINGS = (".svg", ".png")
# What a file says that it was made by; see is_figure.
_CREATOR = "prm_jax"
_INK, _SOFT, _GRID, _PAPER = "#23272e", "#5d6470", "#e4e6ea", "#ffffff"
# Every line has one of each, in turn: no two near ones differ by colour alone.
_COLOURS = (
  *("#0067b1", "#c04400", "#00745a", "#9c3f88", "#806000"),
  *("#23272e", "#006e86", "#a8123e", "#7a4b2a", "#5d6470"),
)
_MARKERS = ("o", "^", "D", "s", "v", "X", "P")
_DASHES = ("-", (0, (6, 2)), (0, (7, 2, 2, 2)), (0, (4, 2)), (0, (1.5, 2)))
# Without parse_math a $ is a dollar.
_STYLE: Any = {
  "svg.fonttype": "none",
  "svg.hashsalt": _CREATOR,
  "font.sans-serif": ["DejaVu Sans"],
  "font.size": 10,
  "text.parse_math": False,
  "text.color": _INK,
  "axes.edgecolor": _SOFT,
  "axes.labelcolor": _SOFT,
  "axes.titlesize": 10.5,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.axisbelow": True,
  "axes.grid": True,
  "axes.grid.axis": "y",
  "grid.color": _GRID,
  "xtick.color": _SOFT,
  "ytick.color": _SOFT,
  "legend.frameon": False,
  "legend.fontsize": 9,
  "legend.handlelength": 3.2,
}
_MOST_MARKERS, _LONGEST_NAME = 16, 40


def check() -> None:
  """Refuses to draw without matplotlib.

  Raises:
    InputError: It isn't installed.
  """
  try:
    import matplotlib.figure  # noqa: F401
  except ImportError as e:
    raise errors.InputError(
      f"a plot needs matplotlib ({e}): {errors.to_install('plot')}"
    ) from None


def write(path: files.PathLike, figure: figures.Figure) -> None:
  """Draws a figure into a file.

  Args:
    path: The file, NAME.svg or NAME.png.
    figure: The figure.

  Raises:
    InputError: The figure is empty.
  """
  if not figure.panels:
    raise errors.InputError(
      f"{path}: not written, as there is nothing to draw; leave out `plot`"
    )
  content = drawn(figure, str(path)[-3:])
  with files.replacing(path, "wb") as f:
    f.write(content)


def is_figure(path: files.PathLike) -> bool:
  """Returns whether `write` wrote a file.

  Args:
    path: The file.
  """
  with open(path, "rb") as f:
    return _CREATOR.encode() in f.read(4_000)


def drawn(figure: figures.Figure, form: str) -> bytes:
  """Returns the bytes of a file.

  Args:
    figure: The figure.
    form: svg or png.

  Raises:
    InputError: matplotlib isn't installed.
  """
  check()
  import matplotlib
  from matplotlib import figure as figure_lib

  title = _text(figure.title, 90)
  metadata = dict(Title=title, Creator=_CREATOR, Date=None)
  if form == "png":
    metadata = dict(Title=title, Software=_CREATOR)
  content = io.BytesIO()
  with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
    # A name may have letters that the font of the PNG lacks.
    warnings.filterwarnings("ignore", "Glyph")
    num = len(figure.panels)
    rows, columns = math.ceil(num / 2), min(2, num)
    made = figure_lib.Figure(
      (9.6, 4.4 if num == 1 else 4.3 * rows),
      facecolor=_PAPER,
      layout="constrained",
    )
    made.suptitle(title, fontsize=12)
    for i, panel in enumerate(figure.panels, 1):
      _draw(made.add_subplot(rows, columns, i), panel, is_alone=num == 1)
    made.savefig(content, format=form, dpi=144, metadata=metadata)
  if form == "png":
    return content.getvalue()
  # Without the type of document, which has an address.
  return b'<svg role="img" ' + content.getvalue().partition(b"<svg ")[2]


def _draw(axes: Any, panel: figures.Panel, *, is_alone: bool) -> None:
  """Draws a panel on matplotlib's axes."""
  from matplotlib import ticker

  axes.set_title(_text(panel.title, 60))
  axes.set_xlabel(_text(panel.x_label, 80))
  axes.set_ylabel(_text(panel.y_label, 60))
  if panel.has_diagonal:
    axes.plot((0, 1), (0, 1), color=_SOFT, linewidth=1, linestyle=(0, (3, 3)))
  for x in panel.marks:
    axes.axvline(x, color=_SOFT, linewidth=1, linestyle=(0, (2, 3)))
  looks = zip(*map(itertools.cycle, (_COLOURS, _MARKERS, _DASHES)))
  handles = [
    (line.y[-1], _draw_line(axes, line, *look), line.label)
    for line, look in zip(panel.lines, looks)
  ]
  if panel.x_is_log:
    axes.set_xscale("log", base=2)
  if len(panel.x_ticks):
    names = panel.x_names or [f"{x:,g}" for x in panel.x_ticks]
    axes.set_xticks(panel.x_ticks, [_text(x, 16) for x in names])
    axes.xaxis.set_minor_locator(ticker.NullLocator())
  if panel.is_share:
    axes.yaxis.set_major_formatter(ticker.PercentFormatter(1, symbol=""))
  low, high = axes.get_ylim()
  axes.set_ylim(min((low, *panel.holds)), max((high, *panel.holds)))
  place: dict[str, Any] = dict(loc="upper center", bbox_to_anchor=(0.5, -0.16))
  if is_alone:
    # As high as the lines end.
    handles.sort(key=lambda x: x[0], reverse=True)
    place = dict(loc="center left", bbox_to_anchor=(1.01, 0.5))
  names = [_text(label, _LONGEST_NAME) for _, _, label in handles]
  axes.legend([handle for _, handle, _ in handles], names, **place)


def _draw_line(
  axes: Any, line: figures.Line, colour: str, marker: str, dash: Any
) -> Any:
  """Draws a line with its band or whiskers; returns what stands for it."""
  (handle,) = axes.plot(
    line.x,
    line.y,
    color=colour,
    marker=marker,
    markersize=5,
    markevery=math.ceil(len(line.x) / _MOST_MARKERS),
    linestyle=dash if line.is_joined else "none",
    linewidth=1.8,
  )
  known = [
    i
    for i, ends in enumerate(zip(line.low, line.high))
    if not any(map(math.isnan, ends))
  ]
  if line.is_joined and len(known) == len(line.x) > 1:
    axes.fill_between(
      line.x, line.low, line.high, color=colour, alpha=0.11, linewidth=0
    )
  elif known:
    x, low, high = (
      [of[i] for i in known] for of in (line.x, line.low, line.high)
    )
    axes.vlines(x, low, high, color=colour, linewidth=1.6)
  return handle


def _text(text: str, longest: int) -> str:
  """Returns a text that a picture can hold: one line, not too long."""
  text = terminal.visible(text, one_line=True)
  return text if len(text) <= longest else f"{text[: longest - 1]}…"
