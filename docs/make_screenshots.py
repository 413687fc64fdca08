"""Takes the pictures of pages that docs/ shows, in chromium.

  make demo && make browser        # a PRM to score with, and the browser's driver
  .venv/bin/python docs/make_screenshots.py --demo=runs/demo

The solution is one of the demo's, which the PRM hasn't seen.
"""

import argparse
import pathlib
import shutil
import tempfile
import threading
from typing import Any

from playwright import sync_api

from prm_jax import schema
from prm_jax.people import desk
from prm_jax.people import people_folder
from prm_jax.people import people_server
from prm_jax.people import work_queue
from prm_jax.runtime import listening
from prm_jax.serving import app
from prm_jax.serving import serve
from prm_jax.serving import server
from prm_jax.view import view

FOLDER = pathlib.Path(__file__).resolve().parent / "pictures"
PROBLEM = "Dee dials 4 up 3 minus 2 ."
SUM = "What is $\\frac{1}{2} + \\frac{1}{3}$?"
SUM_STEPS = (
  "Both fractions are sixths: $\\frac{3}{6}$ and $\\frac{2}{6}$.",
  "Their sum is $\\frac{3 + 2}{6 + 6} = \\frac{5}{12}$.",
  "The answer is $\\frac{5}{12}$.",
)
STEPS = ("then 4 + 3 = 7", "now 7 - 2 = 1", "answer 1")


def playground(browser: Any, demo: pathlib.Path) -> None:
  """Takes the playground with a solution that the demo's models have scored."""
  verb = serve.Serve(f"{demo}/prm,{demo}/orm")
  scoring = app.Server(verb.models(), verb.limits)
  with (
    listening.listen("127.0.0.1", 0) as listener,
    server.answering(scoring, listener),
  ):
    page = browser.new_page(viewport=dict(width=1280, height=640))
    page.goto(f"http://127.0.0.1:{listener.getsockname()[1]}/")
    page.wait_for_selector("input[name=model]")
    page.check("input[value=steps]")
    page.fill("#problem", PROBLEM)
    for i, step in enumerate(STEPS, 1):
      if i > 1:
        page.click("#add-step")
      page.get_by_label(f"Step {i}", exact=True).fill(step)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#share:not([hidden])", timeout=120_000)
    page.locator(".step").nth(1).focus()
    page.screenshot(path=FOLDER / "playground.png")


def viewer(browser: Any, demo: pathlib.Path, folder: pathlib.Path) -> None:
  """Takes a demo's page, and the table of the samples that it has scored."""
  pages = folder / "pages"
  view.View((str(demo),), static=str(pages)).run()
  page = browser.new_page(viewport=dict(width=1280, height=720))
  address = (pages / "index.html").as_uri()
  page.goto(address)
  page.wait_for_selector("figure svg")
  page.screenshot(path=FOLDER / "view_results.png")
  page.goto(f"{address}#samples")
  page.wait_for_selector("a[data-row]")
  page.screenshot(path=FOLDER / "view_samples.png")


def labelling(browser: Any, folder: pathlib.Path) -> None:
  """Takes the page on which people judge steps, in the middle of a solution."""
  solution = schema.Solution("sum", SUM, SUM_STEPS)
  design = work_queue.Design()
  work = people_folder.begin(folder, "first_error", design, [solution], [])
  items = {item.id: item for item in work.items()}
  pool = work_queue.Pool([*items])
  asked = desk.Desk(
    desk.Work("first_error", items, pool, design),
    work.store(),
    {"key": "me"},
  )
  shown = people_server.PeopleServer(asked, "127.0.0.1", 0)
  threading.Thread(target=shown.serve_forever, daemon=True).start()
  page = browser.new_page(viewport=dict(width=1280, height=640))
  page.goto(f"{shown.url}#key=key")
  page.wait_for_selector(".step.current")
  page.keyboard.press("3")
  page.wait_for_selector(".step.right")
  page.screenshot(path=FOLDER / "people.png")
  shown.shutdown()
  shown.server_close()


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--demo", type=pathlib.Path, required=True)
  demo = parser.parse_args().demo
  FOLDER.mkdir(exist_ok=True)
  with sync_api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(
      executable_path=shutil.which("chromium"), args=["--no-sandbox"]
    )
    playground(browser, demo)
    with tempfile.TemporaryDirectory() as folder:
      viewer(browser, demo, pathlib.Path(folder))
      labelling(browser, pathlib.Path(folder, "labels"))
    browser.close()


if __name__ == "__main__":
  main()
