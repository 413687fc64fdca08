"""Pictures as files: the same bytes, texts as texts, and names that do nothing."""

import dataclasses
import re
import sys
from xml.etree import ElementTree

import pytest

from prm_jax import errors
from prm_jax.evaluation import figures
from prm_jax.reports import figure_files

SVG = "{http://www.w3.org/2000/svg}"
NAN = float("nan")
HOSTILE = [
  "</svg><script>alert(1)</script>",
  "$\\frac{1}{$ $x_1$",
  "_hidden",
  "a&b<c>\"'",
  "x\ny\x1b[31m\u202e\x00",
  "题 \N{PILE OF POO}",
]


def _line(label, **fields):
  return figures.Line(label, (1, 2, 4), (0.25, 0.5, 0.75), **fields)


def _figure(*lines, title="A title", **fields):
  panel = figures.Panel("A panel", "x of it", "y of it", lines, **fields)
  return figures.Figure(title, [panel])


def _texts(svg):
  root = ElementTree.fromstring(svg)
  return [x.text for x in root.iter(f"{SVG}text")]


def _shapes(figure):
  """Returns how many filled shapes and lines an SVG has."""
  svg = figure_files.drawn(figure, "svg").decode()
  return svg.count("opacity: 0.11"), svg.count('id="LineCollection')


@pytest.mark.parametrize("form", ["svg", "png"])
def test_a_figure_gives_the_same_bytes_each_time(form):
  figure = _figure(_line("a"), _line("b", low=(0, 0, 0), high=(1, 1, 1)))
  first = figure_files.drawn(figure, form)
  assert first == figure_files.drawn(figure, form)
  assert first.startswith(dict(svg=b"<svg ", png=b"\x89PNG")[form])
  other = dataclasses.replace(figure, title="Another")
  assert first != figure_files.drawn(other, form)


def test_an_svg_has_texts_a_title_a_paper_and_no_date_or_address():
  svg = figure_files.drawn(_figure(_line("a name")), "svg").decode()
  assert {"A title", "A panel", "x of it", "y of it", "a name"} <= {
    *_texts(svg)
  }
  root = ElementTree.fromstring(svg)
  assert root.get("role") == "img"
  assert root[0].tag == f"{SVG}title" and root[0].text == "A title"
  assert root.find(f".//{SVG}path").get("style") == "fill: #ffffff"
  assert "date" not in svg and "DOCTYPE" not in svg
  references = re.findall(r'(?:href|src)="([^"]*)"|url\(([^)]*)\)', svg)
  assert references and all((a or b).startswith("#") for a, b in references)


def test_ticks_and_shares_are_those_of_the_panel():
  svg = figure_files.drawn(
    _figure(_line("a"), x_ticks=(1, 2, 4), x_is_log=True, holds=(0, 1)), "svg"
  )
  texts = _texts(svg)
  assert texts[:3] == ["1", "2", "4"]
  assert {"0", "20", "100"} <= {*texts}
  named = _figure(_line("a"), x_ticks=(1, 2), x_names=("one", "<two>"))
  assert {"one", "<two>"} <= {*_texts(figure_files.drawn(named, "svg"))}
  counts = _figure(_line("a"), is_share=False, holds=(0, 1))
  assert "0.2" in _texts(figure_files.drawn(counts, "svg"))


def test_a_band_needs_all_intervals_and_what_is_known_has_whiskers():
  band = dict(low=(0, 0, 0), high=(1, 1, 1))
  some = dict(low=(NAN, 0, NAN), high=(NAN, 1, NAN))
  assert _shapes(_figure(_line("a", **band))) == (1, 0)
  assert _shapes(_figure(_line("a", **some))) == (0, 1)
  assert _shapes(_figure(_line("a", is_joined=False, **band))) == (0, 1)
  assert _shapes(_figure(_line("a"))) == (0, 0)
  one = figures.Line("a", (1,), (0.5,), (0.25,), (0.75,))
  assert _shapes(_figure(one)) == (0, 1)


@pytest.mark.parametrize("form", ["svg", "png"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_drawn_as_it_is_and_does_nothing(name, form, recwarn):
  figure = _figure(_line(name), title=name, x_ticks=(1,), x_names=(name,))
  content = figure_files.drawn(figure, form)
  # What other tests left open is closed at any time.
  told = [x for x in recwarn if not issubclass(x.category, ResourceWarning)]
  assert not told
  if form == "png":
    return
  tags = {
    x.tag.partition("}")[2] for x in ElementTree.fromstring(content).iter()
  }
  assert "script" not in tags
  shown = name.replace("\n", "\\n").replace("\x1b", "\\x1b")
  shown = shown.replace("\u202e", "\\u202e").replace("\x00", "\\x00")
  assert _texts(content).count(shown) == 2 + (len(shown) <= 16)


def test_a_long_name_is_cut():
  (shown,) = [
    x
    for x in _texts(figure_files.drawn(_figure(_line("n" * 99)), "svg"))
    if x.startswith("nnn")
  ]
  assert shown == "n" * 39 + "…"


def test_panels_without_a_line_are_left_out():
  empty = figures.Panel("Empty", "", "", ())
  full = _figure(_line("a")).panels[0]
  figure = figures.Figure("Both", [empty, full])
  assert figure.panels == (full,)


def test_an_empty_figure_is_no_file(tmp_path):
  path = tmp_path / "a.svg"
  with pytest.raises(errors.InputError, match=r"a\.svg: not written, as there"):
    figure_files.write(path, figures.Figure("Empty", []))
  assert not path.exists()


def test_a_file_is_that_of_the_figure_and_knows_it(tmp_path):
  for form in ("svg", "png"):
    path = tmp_path / f"a.{form}"
    path.write_bytes(b"<svg></svg>")
    assert not figure_files.is_figure(path)
    figure_files.write(path, _figure(_line("a")))
    assert path.read_bytes() == figure_files.drawn(_figure(_line("a")), form)
    assert figure_files.is_figure(path)


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
  for call in (
    figure_files.check,
    lambda: figure_files.drawn(_figure(), "svg"),
  ):
    with pytest.raises(errors.InputError) as caught:
      call()
    assert "pip install -e '.[plot]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_of_matplotlib_is_changed_for_others():
  import matplotlib

  before = dict(matplotlib.rcParams)
  figure_files.drawn(_figure(_line("a")), "svg")
  assert dict(matplotlib.rcParams) == before
