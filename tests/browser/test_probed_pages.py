"""Pages of probed solutions: the weight of a step stands beside its score."""

import json

import pages
import probed_files
import pytest

from prm_jax.view import site
from prm_jax.view import view_inputs

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def url(tmp_path_factory):
  written = tmp_path_factory.mktemp("probed")
  made = site.pages(view_inputs.read([probed_files.folder(written / "files")]))
  with pages.serving(made, written / "pages") as address:
    yield address


def test_each_step_has_its_score_its_weight_and_its_nldd(opened, url):
  page = opened(f"{url}#samples")
  page.locator("a[data-row]").first.click()
  page.wait_for_selector(".step")
  third = page.locator(".step").nth(2)
  assert "0.700" in third.locator(".chips").inner_text()
  assert third.locator(".notes .mark").all_inner_texts() == [
    *("weight +3.00 nats", "NLDD +150 %")
  ]
  assert page.locator("figure").count() == 1
  folded = page.get_by_text("The steps with a number changed")
  folded.focus()
  page.keyboard.press("Enter")
  assert page.get_by_text("2 + 3 = 9").is_visible()


@pytest.mark.parametrize("width, dark", [(400, True), (1280, False)])
def test_the_pages_fit_and_can_be_read(opened, url, width, dark):
  page = opened(f"{url}#evaluations", width=width, dark=dark)
  for place in ("evaluations", "sample/p%2F0", "sample/r%2F0"):
    page.goto(f"{url}#{place}")
    page.wait_for_selector("h2")
    page.wait_for_timeout(100)
    pages.check_fits(page)
    pages.check_reads(page)


def test_hostile_records_are_texts(opened, tmp_path):
  texts = [*pages.HOSTILE]
  folder = tmp_path / "files"
  folder.mkdir()
  (folder / "probed.jsonl").write_text(
    "".join(
      json.dumps(
        probed_files.record(
          f"s{i}",
          answer=text,
          whole_answer=text,
          corrupted=[text, None, text],
          early=probed_files.FOUND["early"] | dict(answers=[text] * 4),
          cue=probed_files.FOUND["cue"] | dict(wrong=text, answer=text),
        )
      )
      + "\n"
      for i, text in enumerate(texts)
    )
  )
  made = site.pages(view_inputs.read([folder]))
  with pages.serving(made, tmp_path / "pages") as address:
    for i in range(len(texts)):
      page = opened(f"{address}#sample/s{i}", width=400)
      page.wait_for_selector(".step")
      page.get_by_text("The steps with a number changed").click()
      pages.check_unhacked(page)
      pages.check_fits(page)
