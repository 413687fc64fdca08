"""The pages of the demo, of an RL run and of an experiment, as they are seen."""

import pages
import pytest
import test_demo_page
import test_rl_run_page
import test_rl_sweep

from prm_jax.reports import demo_page
from prm_jax.reports import rl_page
from prm_jax.reports import rl_sweep

pytestmark = pytest.mark.browser

VARIANTS = ("clip-delta, outcome", "PRM sum, solution", "PRM soft min")


def demo():
  return demo_page.render(*test_demo_page.made_up("Say 3 + 4 = 7"))


def run():
  samples = [test_rl_run_page.sample(step) for step in (0, 99)]
  return rl_page.render(test_rl_run_page.run(), samples, {})


def sweep():
  said = "Each step is rewarded by its own score.", "docs/rl.md"
  about = dict.fromkeys(VARIANTS, said)
  return rl_sweep.render("Why?", test_rl_sweep.runs(*VARIANTS), about=about)


@pytest.mark.parametrize("make", [demo, run, sweep])
@pytest.mark.parametrize("width, dark", [(400, True), (1280, False)])
def test_a_report_fits_and_can_be_read(opened, tmp_path, make, width, dark):
  path = tmp_path / "page.html"
  path.write_text(make())
  page = opened(path.as_uri(), width=width, dark=dark)
  pages.check_fits(page)
  pages.check_reads(page)


@pytest.mark.parametrize("width", [400, 1280])
def test_hostile_texts_in_a_report_are_texts(opened, tmp_path, width):
  results, _, *others = test_demo_page.made_up(pages.HOSTILE[3])
  cards = [x for t in pages.HOSTILE for x in test_demo_page.made_up(t)[1]]
  path = tmp_path / "page.html"
  path.write_text(demo_page.render(results, cards, *others))
  page = opened(path.as_uri(), width=width)
  pages.check_unhacked(page)
  pages.check_fits(page)
