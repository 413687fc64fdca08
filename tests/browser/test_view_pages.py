"""The pages of `prm-jax view`, as a person uses them: by keyboard, at any width."""

import dataclasses
import json

import pages
import pytest
import searches
import view_files

from prm_jax.evaluation import figures
from prm_jax.records import jsonl
from prm_jax.search import solutions
from prm_jax.view import site
from prm_jax.view import view_inputs

pytestmark = pytest.mark.browser

COSTS = dict(policy=searches.COST, scorer=searches.COST)


def folder(path, name="prm"):
  """Writes a folder with each kind of file, and scores of two models."""
  view_files.folder(path)
  view_files.write(
    path / f"{name}.jsonl",
    *(dict(id=x, step_scores=[0.9, 0.2, 0.9]) for x in view_files.SCORES),
  )
  trees = searches.search(searches.RULES["beam"], searches.PROBLEMS[:2])
  results = solutions.results(
    trees, COSTS, verify=lambda chosen: [len(s.steps) > 1 for s in chosen]
  )
  jsonl.write_solutions(path / "beam.jsonl", results)
  (path / "results.json").write_text(
    json.dumps(dict(auroc=0.75, run=dict(evaluated={}), by=dict(f1=[0.5, 1])))
  )
  return path


@pytest.fixture(scope="module")
def written(tmp_path_factory):
  return tmp_path_factory.mktemp("view")


@pytest.fixture(scope="module")
def url(written):
  made = site.pages(view_inputs.read([folder(written / "files")]))
  with pages.serving(made, written / "pages") as address:
    yield address


def ids_of(page):
  return page.locator("a[data-row]").all_inner_texts()


def test_by_keyboard_a_person_finds_a_sample_and_walks_on(opened, url):
  page = opened(f"{url}#samples")
  page.wait_for_selector("a[data-row]")
  page.keyboard.press("/")
  page.keyboard.insert_text("of missed")
  pages.until(page, "document.querySelectorAll('a[data-row]').length === 1")
  assert ids_of(page) == ["missed"]
  for _ in range(len("of missed")):
    page.keyboard.press("Backspace")
  page.keyboard.press("Escape")
  page.keyboard.press("ArrowDown")
  page.keyboard.press("ArrowDown")
  second = page.evaluate("document.activeElement.textContent")
  page.keyboard.press("Enter")
  page.wait_for_selector("h2")
  pages.until(page, "document.querySelector('h2').textContent !== 'Samples'")
  assert page.inner_text("h2") == second
  page.keyboard.press("ArrowRight")
  pages.until(page, f"document.querySelector('h2').textContent !== {second!r}")
  page.keyboard.press("ArrowLeft")
  pages.until(page, f"document.querySelector('h2').textContent === {second!r}")
  page.keyboard.press("Escape")
  pages.until(page, "document.querySelector('h2').textContent === 'Samples'")


@pytest.mark.parametrize(
  "show, model, ids",
  [
    ("missed", "a_scores", {"missed", "late_alarm"}),
    ("false_alarm", "a_scores", {"early_alarm"}),
    ("right", "prm", {*view_files.SCORES}),
    ("lucky", "prm", {"missed"}),
    ("models", "prm", {*view_files.SCORES}),
  ],
)
def test_samples_of_a_kind_are_one_choice_away_and_have_an_address(
  opened, url, show, model, ids
):
  page = opened(f"{url}#samples")
  page.wait_for_selector("a[data-row]")
  page.get_by_role("combobox", name="Show").select_option(show)
  page.get_by_role("combobox", name="Model").select_option(model)
  pages.until(
    page, f"document.querySelectorAll('a[data-row]').length === {len(ids)}"
  )
  assert {*ids_of(page)} == ids
  again = opened(page.url)
  again.wait_for_selector("a[data-row]")
  assert {*ids_of(again)} == ids


def test_a_table_is_sorted_by_its_head(opened, url):
  page = opened(f"{url}#samples")
  button = page.locator("[data-sort=id]")
  button.focus()
  page.keyboard.press("Enter")
  ascending = ids_of(page)
  page.keyboard.press("Enter")
  assert ids_of(page) == ascending[::-1]
  head = page.locator("th", has=page.locator("[data-sort=id]"))
  assert head.get_attribute("aria-sort") == "descending"
  assert page.evaluate("document.activeElement.dataset.sort") == "id"


def test_two_models_stand_side_by_side(opened, url):
  page = opened(f"{url}#sample/missed?model=a_scores")
  page.get_by_role("combobox", name="Beside it").select_option("prm")
  pages.until(page, "document.querySelectorAll('.sides section').length === 2")
  left, right = page.locator(".sides section").all()
  assert left.locator(".chip").all_text_contents() == [
    "a_scores 0.900, log-odds +2.20",
    "a_scores 0.800, log-odds +1.39",
    "a_scores 0.900, log-odds +2.20",
  ]
  assert [
    x.split()[1].rstrip(",") for x in right.locator(".chip").all_text_contents()
  ] == [*("0.900", "0.200", "0.900")]
  assert "finds the first error, step 2" in right.inner_text()


def test_a_search_shows_steps_first_and_its_bookkeeping_on_demand(opened, url):
  page = opened(f"{url}#searches")
  page.locator("a[data-row]").first.focus()
  page.keyboard.press("Enter")
  page.wait_for_selector(".tree")
  assert page.locator(".tree .node.path").count() > 0
  books = page.locator(".tree details").first
  assert books.get_attribute("open") is None
  books.locator("summary").focus()
  page.keyboard.press("Enter")
  assert "tokens" in books.inner_text()
  page.get_by_role("button", name="open all").click()
  num = page.evaluate("window.prmIndex.searches.nodes[0]")
  assert page.locator(".tree .node").count() == num


def test_pages_in_a_folder_work_without_a_server(opened, url, written):
  page = opened((written / "pages" / "index.html").as_uri() + "#samples")
  page.wait_for_selector("a[data-row]")
  page.locator("a[data-row]").first.click()
  page.wait_for_selector(".step")
  for kind in ("searches", "runs", "evaluations"):
    page.locator(f"#kinds a[href='#{kind}']").click()
    page.wait_for_selector("h2")
  broken = opened(f"{page.url.split('#')[0]}#sample/none")
  broken.wait_for_selector("[role=alert]")
  assert "no sample none" in broken.inner_text("[role=alert]")


@pytest.mark.parametrize("width, dark", [(400, True), (1280, False)])
def test_every_page_fits_and_can_be_read(opened, url, width, dark):
  page = opened(f"{url}#samples", width=width, dark=dark)
  page.wait_for_selector("a[data-row]")
  places = ["samples", "sample/missed?beside=prm", "searches", "runs"]
  places.append("evaluations")
  for place in places:
    page.goto(f"{url}#{place}")
    page.wait_for_selector("h2")
    page.wait_for_timeout(100)
    pages.check_fits(page)
    pages.check_reads(page)
    if place == "searches":
      page.locator("a[data-row]").first.click()
      page.wait_for_selector(".tree")
      page.get_by_role("button", name="open all").click()
      pages.check_fits(page)
      pages.check_reads(page)


@pytest.mark.parametrize("width", [400, 1280])
def test_hostile_texts_are_texts(opened, tmp_path, width):
  records = [
    view_files.solution(
      f"{i} {text}"[:200],
      problem=text,
      steps=[text, *pages.HOSTILE[:3]],
      answer=text,
      labels=[1.0, 0.0, None, None],
      source=text,
    )
    for i, text in enumerate(pages.HOSTILE)
  ]
  view_files.write(tmp_path / "files" / "hostile.jsonl", *records)
  view_files.write(
    tmp_path / "files" / "<b onclick=hacked=1>.jsonl",
    *(dict(id=x["id"], step_scores=[0.9, 0.1, 0.5, 0.2]) for x in records),
  )
  made = site.pages(view_inputs.read([tmp_path / "files"]))
  with pages.serving(made, tmp_path / "pages") as address:
    page = opened(address, width=width)
    page.wait_for_selector("a[data-row]")
    pages.check_unhacked(page)
    pages.check_fits(page)
    page.locator("a[data-row]").first.click()
    for _ in records:
      page.wait_for_selector(".step")
      pages.check_unhacked(page)
      pages.check_fits(page)
      page.keyboard.press("ArrowRight")
      page.wait_for_timeout(50)


def test_a_score_is_read_with_its_step(opened, url):
  page = opened(f"{url}#sample/missed?model=prm")
  page.wait_for_selector(".step")
  read = pages.spoken(page)
  second = read.index("step", read.index("step") + 1)
  assert read[second : second + 3] == ["step", "2", "then"]
  assert "0.200" in read[second : second + 8]


def test_log_odds_are_the_models_own_where_a_score_rounds_to_1(
  opened, tmp_path
):
  view_files.write(
    tmp_path / "files" / "s.jsonl",
    view_files.solution(
      "a",
      steps=["so", "then"],
      step_scores=dict(prm=[0.5, 1.0], other=[0.5, 1.0]),
      step_logits=dict(prm=[0.0, 18.25]),
    ),
  )
  made = site.pages(view_inputs.read([tmp_path / "files"]))
  with pages.serving(made, tmp_path / "pages") as address:
    for model, odds in dict(prm="+18.25", other="+\N{INFINITY}").items():
      page = opened(f"{address}#sample/a?model={model}")
      page.locator(".step").nth(1).focus()
      assert f"score 1.000, log-odds {odds}" in page.inner_text("main")


def test_a_curve_has_a_gap_where_its_metric_isnt_known(opened, tmp_path):
  view_files.write(
    tmp_path / "run" / "metrics.jsonl",
    *(
      dict(step=i, kind="train", loss_nats=y)
      for i, y in enumerate([5, 4, None, 3, None, 2, 1])
    ),
  )
  made = site.pages(view_inputs.read([tmp_path / "run"]))
  with pages.serving(made, tmp_path / "pages") as address:
    page = opened(address)
    page.wait_for_selector("figure svg")
    # A point between two gaps has no line, but its marker.
    assert page.locator("figure svg > g path.line").count() == 2
    assert page.locator("figure svg > g path.marker").count() == 5


def test_a_picture_rounds_as_tables_do_and_says_if_nothing_is_known(
  opened, url
):
  page = opened(url)
  page.wait_for_selector("h2")
  ties = [0.0625, 12.25, 12.75, 0.5, 1.5, 2.5, -0.125, 0.3, 99.95, 2.675]
  for digits in range(4):
    shown = page.evaluate(f"xs => xs.map((x) => prm.fixed(x, {digits}))", ties)
    assert shown == [f"{x:.{digits}f}" for x in ties]
  line = figures.Line("a", [1, 2], [0.12250, 0.5])
  panel = dataclasses.asdict(figures.Panel("Shares", "N", "", [line]))
  drawn = "panel => view.chart(panel, true).outerHTML"
  assert "1: 12.2 %; 2: 50 %" in page.evaluate(drawn, panel)
  panel["lines"][0]["y"] = [None, None]
  assert "No value is known" in page.evaluate(drawn, panel)


def test_back_and_escape_lead_to_where_one_was_in_the_table(opened, url):
  page = opened(f"{url}#samples")
  page.set_viewport_size(dict(width=1280, height=250))
  last = page.locator("a[data-row]").last
  last.scroll_into_view_if_needed()
  was = page.evaluate("scrollY")
  assert was > 0
  last.click()
  page.wait_for_selector(".step")
  assert page.evaluate("scrollY") == 0
  for leave in (page.go_back, lambda: page.keyboard.press("Escape")):
    leave()
    page.wait_for_selector("a[data-row]")
    pages.until(page, f"scrollY === {was}")
    assert page.evaluate("document.activeElement.dataset.row") == (
      page.locator("a[data-row]").last.get_attribute("data-row")
    )
    page.keyboard.press("Enter")
    page.wait_for_selector(".step")
