"""The documentation site, which `make docs` builds, as it is seen."""

import functools
import http.server
import threading

import build_site
import pages
import pytest

pytestmark = pytest.mark.browser

NAMES = [
  str(path.relative_to(build_site.ROOT).with_suffix(".html")).replace(
    "README", "index"
  )
  for path in build_site.pages()
]
# Blocks of code of which a part is out of sight.
CUT = """[...document.querySelectorAll('pre, pre > code')]
  .filter((x) => x.scrollWidth > x.clientWidth)
  .map((x) => x.textContent.slice(0, 80))"""
# Words of names, tables and headings that are on two lines, and names whose
# comma is on the next.
BROKEN = r"""() => {
  const broken = new Set();
  const range = document.createRange();
  const lines = (node, from, to) => {
    range.setStart(node, from);
    range.setEnd(node, to);
    return [...range.getClientRects()].filter((x) => x.width > 0.5);
  };
  const kept = ':not(pre) > code, td, th, h1, h2, h3, h4';
  for (const part of document.querySelectorAll(`article :is(${kept})`)) {
    const texts = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const text = texts.currentNode;
      for (const word of text.data.matchAll(/\S+/g)) {
        const end = word.index + word[0].length;
        const tops = lines(text, word.index, end).map((x) => x.top);
        if (Math.max(...tops) - Math.min(...tops) > 4) broken.add(word[0]);
      }
    }
    const next = part.nextSibling;
    if (part.tagName !== 'CODE' || !/^[,.;:)]/.test(next?.data)) continue;
    const [mark] = lines(next, 0, 1);
    if (mark.top > [...part.getClientRects()].pop().bottom) {
      broken.add(part.textContent + next.data[0]);
    }
  }
  return [...broken];
}"""


class Handler(http.server.SimpleHTTPRequestHandler):
  def log_message(self, format, *args):
    del format, args


@pytest.fixture(scope="module")
def url():
  handler = functools.partial(Handler, directory=build_site.SITE)
  with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
    threading.Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize("part", [0, 1])
def test_a_page_fits_shows_all_code_and_breaks_no_name(opened, url, part):
  page = opened(url)
  for name in NAMES[part::2]:
    page.goto(f"{url}/{name}")
    for width, scheme in ((1280, "light"), (400, "dark")):
      page.set_viewport_size(dict(width=width, height=800))
      page.emulate_media(color_scheme=scheme)
      pages.check_fits(page)
      assert not page.evaluate(CUT), name
      # In a narrow window a name may be longer than a line.
      assert width == 400 or not page.evaluate(BROKEN), name
    drawn = "[...document.images].every((x) => x.naturalWidth)"
    assert page.evaluate(drawn), name


@pytest.mark.parametrize("width, dark", [(400, True), (1280, False)])
@pytest.mark.parametrize(
  "name", ["index.html", "docs/quickstart.html", "docs/evaluation.html"]
)
def test_a_page_can_be_read(opened, url, name, width, dark):
  page = opened(f"{url}/{name}", width=width, dark=dark)
  pages.check_reads(page)


def test_the_home_page_shows_five_lines_of_python_and_a_picture(opened, url):
  page = opened(f"{url}/index.html")
  code = page.locator("article pre").first.inner_text().strip()
  assert code.startswith("import prm_jax\n") and code.count("\n") == 4
  # Without scrolling.
  assert page.locator("article img").first.bounding_box()["y"] < 600


def test_the_notebook_has_its_outputs(opened, url):
  page = opened(f"{url}/docs/quickstart.html")
  link = page.get_by_role("link", name="quickstart.ipynb").first
  notebook = page.request.get(link.evaluate("(x) => x.href"))
  cells = notebook.json()["cells"]
  printing = [x for x in cells if "print(" in "".join(x["source"])]
  assert printing and all(x["outputs"] for x in printing)
