"""Pages of results as they are seen: the demo's, a run's, an experiment's."""

import dataclasses
import itertools

import pages
import pytest
import test_demo_page
import test_rl_run_page
import test_rl_sweep

from prm_jax.evaluation import figures
from prm_jax.evaluation import tables
from prm_jax.reports import demo_page
from prm_jax.reports import result_page
from prm_jax.reports import rl_page
from prm_jax.reports import rl_sweep
from prm_jax.view import site
from prm_jax.view import view_inputs

pytestmark = pytest.mark.browser

VARIANTS = ("clip-delta, outcome", "PRM sum, solution", "PRM soft min")
KEYS = ("demo", "run", "sweep")


def made(**more):
  return site.pages(view_inputs.Inputs(), more)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
  said = "Each step is rewarded by its own score.", "../../rl.md#rewards"
  shown = made(
    demo=demo_page.page(test_demo_page.results()),
    run=rl_page.page(
      test_rl_run_page.run(heldout_prm=0.5), test_rl_run_page.details(seed=1)
    ),
    sweep=rl_sweep.page(
      "Why?",
      test_rl_sweep.runs(*VARIANTS),
      about=dict.fromkeys(VARIANTS, said),
    ),
  )
  into = tmp_path_factory.mktemp("reports") / "pages"
  with pages.serving(shown, into) as address:
    yield address


@pytest.mark.parametrize("width, dark", [(400, True), (1280, False)])
def test_a_report_fits_and_can_be_read(opened, url, width, dark):
  page = opened(url, width=width, dark=dark)
  for key in KEYS:
    page.goto(f"{url}#evaluations/{key}")
    pages.until(page, f"document.querySelector('h2').textContent === '{key}'")
    for folded in page.locator("details > summary").all():
      folded.click()
    pages.check_fits(page)
    pages.check_reads(page)


def test_by_keyboard_a_person_walks_from_page_to_page(opened, url):
  page = opened(url)
  pages.until(page, "document.querySelector('h2').textContent === 'demo'")
  page.get_by_role("link", name="sweep").focus()
  page.keyboard.press("Enter")
  pages.until(page, "document.querySelector('h2').textContent === 'sweep'")
  link = page.get_by_role("link", name=VARIANTS[0])
  assert link.get_attribute("href") == "../../rl.md#rewards"
  summary = page.locator("details > summary")
  assert summary.count() == 0  # nothing is known of how it was made


def test_a_picture_is_read_as_its_lines_from_end_to_end(opened, url):
  page = opened(f"{url}#evaluations/run")
  picture = page.get_by_role("img", name="greedy answers").first
  said = picture.get_attribute("aria-label")
  assert "Right answers: 0: 63 %; 100: 23 %" in said


@pytest.mark.parametrize("width", [400, 1280])
def test_hostile_texts_in_a_report_are_texts(opened, tmp_path, width):
  hostile = {}
  for i, text in enumerate(pages.HOSTILE):
    line = figures.Line(text, (0, 1), (0.5, 1.0))
    panel = figures.Panel(text, text, text, [line, line], x_names=(text, text))
    panel = dataclasses.replace(panel, x_ticks=(0, 1))
    number = dict(a=tables.Number(0.5))
    table = tables.Table(dict(a=tables.Column(text)), [(text, number)])
    fact = result_page.Fact(text, text)
    hostile[f"{i} {text}"] = result_page.Page(
      *(text, text, [result_page.Tile(text, text, text)]),
      [result_page.Section(text, text, [panel], table, [fact], text)],
    )
  site.write(tmp_path / "pages", made(**hostile))
  page = opened((tmp_path / "pages" / "index.html").as_uri(), width=width)
  for i in range(len(hostile)):
    page.get_by_role("combobox").select_option(index=i)
    pages.until(
      page, f"document.querySelector('h2').textContent.startsWith('{i} ')"
    )
    pages.check_unhacked(page)
    pages.check_fits(page)


# --- Pictures ---------------------------------------------------------------


def panel(lines, **fields):
  """Returns a panel as the pages have it, of {name: [x, y, low, high]}."""
  drawn = [
    dict(label=name, x=x, y=y, low=low, high=high, is_joined=True)
    for name, (x, y, low, high) in lines.items()
  ]
  known = dict(
    title="t",
    x_label="x",
    y_label="y",
    lines=drawn,
    x_ticks=[],
    x_names=[],
    x_is_log=False,
    is_share=False,
    holds=[],
    has_diagonal=False,
    marks=[],
  )
  return known | fields


def drawn(page, given):
  """Returns what a picture is made of: its texts, lines, bands and markers."""
  return page.evaluate(
    """(panel) => {
      const found = view.chart(panel, false);
      const at = (x, name) => x.getAttribute(name);
      const all = (css) => [...found.querySelector("svg").querySelectorAll(css)];
      return {
        texts: all("text").map((x) => [x.textContent, +at(x, "x"), +at(x, "y"), at(x, "text-anchor")]),
        lines: all("g .line").map((x) => [at(x.parentNode, "class"), at(x, "d"), at(x, "stroke-dasharray")]),
        bands: all(".band").map((x) => at(x, "d")),
        markers: all("g .marker").map((x) => [at(x.parentNode, "class"), at(x, "d"), at(x, "transform"), x.textContent]),
        marks: all(".diagonal").map((x) => at(x, "d")),
        names: [...found.querySelectorAll("li")].map((x) => x.textContent.trim()),
      };
    }""",
    given,
  )


def places(path):
  return [tuple(map(float, x.split())) for x in path.strip("Mz").split("L")]


@pytest.mark.parametrize(
  "low, high",
  [
    *((0, 1), (0, 0), (0, 3e-4), (-2, 5), (0.62, 0.68), (0, 2.5e9), (-7, -3)),
    *((0, 15_000), (0, 1_234_567)),
  ],
)
def test_an_axis_holds_its_values_between_round_numbers(opened, url, low, high):
  page = opened(url)
  shown = drawn(page, panel({"a": [[1, 2], [low, high], [], []]}))
  heights = [x for x in shown["texts"] if x[3] == "end"]
  units = dict(k=1e3, M=1e6, G=1e9)
  numbers = [
    float(x[0].rstrip("kMG")) * units.get(x[0][-1], 1) for x in heights
  ]
  assert max(len(x[0]) for x in heights) <= 6
  assert numbers == sorted(numbers) and 2 <= len(numbers) <= 9
  assert numbers[0] <= low and high <= numbers[-1]
  # The place of a value is on one scale with the numbers.
  top, bottom = heights[-1][2] - 4, heights[0][2] - 4
  ((_, path, _),) = shown["lines"]
  for (_, y), value in zip(places(path), (low, high), strict=True):
    share = (value - numbers[0]) / (numbers[-1] - numbers[0])
    assert y == pytest.approx(bottom + share * (top - bottom), abs=0.2)


def test_n_is_on_a_log_axis_and_a_share_in_percent(opened, url):
  given = panel(
    {"a": [[1, 2, 4, 8], [0.1, 0.2, 0.3, 0.4], [0.0] * 4, [0.5] * 4]},
    x_ticks=[1, 2, 4, 8],
    x_is_log=True,
    is_share=True,
    holds=[0, 1],
  )
  shown = drawn(opened(url), given)
  ((_, path, _),) = shown["lines"]
  x = [at for at, _ in places(path)]
  steps = [b - a for a, b in itertools.pairwise(x)]
  assert max(steps) - min(steps) <= 0.2
  assert [x[0] for x in shown["texts"] if x[3] == "end"] == [
    *("0", "20", "40", "60", "80", "100"),
  ]
  (band,) = map(places, shown["bands"])
  assert [at for at, _ in band] == x + x[::-1]
  assert shown["markers"][1][3] == "a, 2: 20 % [0 %, 50 %]"


def test_a_line_has_a_gap_where_nothing_is_known_and_whiskers_without_a_band(
  opened, url
):
  values = [0.5, 1.0, None, 2.0, 3.0], [0.2, *[None] * 4], [0.7, *[None] * 4]
  shown = drawn(opened(url), panel({"a": [[1, 2, 3, 4, 5], *values]}))
  assert [len(places(path)) for _, path, _ in shown["lines"]] == [2, 2, 2]
  assert shown["lines"][0][2] is None and not shown["bands"]
  assert len(shown["markers"]) == 4


def test_no_two_lines_differ_by_colour_alone(opened, url):
  lines = {f"line {i}": [[0, 1], [i, i], [], []] for i in range(30)}
  shown = drawn(opened(url), panel(lines))
  assert shown["names"] == [*lines]
  shapes = {x[3].partition(",")[0]: x[1] for x in shown["markers"]}
  dashes = [dash for _, _, dash in shown["lines"]][::-1]
  looks = list(zip(dashes, (shapes[name] for name in lines), strict=True))
  assert len({*looks}) == 30
  for i in range(25):
    assert len({dash for dash, _ in looks[i : i + 6]}) == 6
    assert len({shape for _, shape in looks[i : i + 6]}) == 6


def test_a_long_line_has_all_points_and_few_markers(opened, url):
  x = list(range(100))
  shown = drawn(opened(url), panel({"a": [x, x, [], []]}, marks=[50]))
  ((_, path, _),) = shown["lines"]
  assert len(places(path)) == 100 and 7 <= len(shown["markers"]) <= 12
  (mark,) = shown["marks"]
  assert mark.startswith(f"M{places(path)[50][0]:g}".rstrip("0"))


def test_names_in_place_of_numbers_are_all_drawn_and_read(opened, url):
  names = [f"class {i}" for i in range(12)]
  at = list(range(12))
  given = panel({"a": [at, [x / 12 for x in at], [], []]}, is_share=True)
  given["lines"][0]["is_joined"] = False
  given |= dict(x_ticks=at, x_names=names, x_label="")
  page = opened(url)
  shown = drawn(page, given)
  assert [x[0] for x in shown["texts"] if x[0].startswith("class")] == names
  label = page.evaluate(
    """(panel) => view.chart(panel, false).querySelector("svg")
      .getAttribute("aria-label")""",
    given,
  )
  assert all(f"{name}: " in label for name in names) and "against" not in label


def test_whole_numbers_are_said_as_they_are_and_steps_are_whole(opened, url):
  given = panel({"a": [[1, 2], [0, 1_234_567], [], []]})
  shown = drawn(opened(url), given)
  assert shown["markers"][1][3] == "a, 2: 1,234,567"
  steps = [
    float(x[0]) for x in shown["texts"] if x[3] == "middle" and x[0] != "x"
  ]
  assert steps == [1, 2]


def test_of_many_pages_the_names_are_in_a_list(opened, tmp_path):
  many = {f"run {i}": result_page.Page(lead=f"Of {i}.") for i in range(40)}
  with pages.serving(made(**many), tmp_path / "pages") as address:
    page = opened(address)
    page.get_by_role("combobox", name="40 evaluations").select_option("run 33")
    pages.until(page, "document.querySelector('h2').textContent === 'run 33'")
    assert "Of 33." in page.inner_text("main")
    assert page.url.endswith("#evaluations/run%2033")
