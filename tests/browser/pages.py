"""What every page must do: fit, be read aloud, and run no text of others."""

from collections.abc import Iterator, Mapping
import contextlib
import pathlib
import threading
import time
from typing import Any

from prm_jax.view import page_server
from prm_jax.view import site

# Texts that would do something if a page took them for more than texts.
HOSTILE = (
  "<script>window.hacked = 1</script>",
  "</script><script>window.hacked = 1</script>",
  "<img src=x onerror='window.hacked = 1'>",
  "\"><svg onload='window.hacked = 1'>",
  "javascript:window.hacked=1",
  "<a href='javascript:window.hacked=1'>here</a>",
  "<style>* { display: none }</style>",
  "{{7*7}} ${7*7} <%= 7*7 %>",
  "&lt;b&gt; &amp;amp; &#x3C;",
  "<!-- <template><iframe srcdoc='<script>parent.hacked=1</script>'>",
  "$\\href{javascript:window.hacked=1}{here}$",
  "$\\def\\a{\\a\\a}\\a$ and $\\rule{9999em}{9999em}$",
  "\u202eright to left\u202c and \u2066isolated\u2069",
  "nothing\u0000\u0007\u001b[31m seen",
  "W" * 400,
  "\u0e01" * 400,
  "a\u0301\u0302\u0303\u0304\u0305\u0306\u0307\u0308" * 60,
)


@contextlib.contextmanager
def serving(made: Mapping[str, bytes], into: pathlib.Path) -> Iterator[str]:
  """Serves the pages of a site, which it writes; yields their address."""
  site.write(into, dict(made))
  server = page_server.PageServer(into, "127.0.0.1", 0)
  thread = threading.Thread(target=server.serve_forever)
  thread.start()
  try:
    yield f"http://127.0.0.1:{server.server_address[1]}/"
  finally:
    server.shutdown()
    server.server_close()
    thread.join()


def until(page: Any, expression: str) -> None:
  """Waits until an expression of JavaScript is true.

  The pages allow no `eval`, by which the driver itself would wait.
  """
  end = time.monotonic() + 10
  while not page.evaluate(expression):
    assert time.monotonic() < end, f"never true: {expression}"
    page.wait_for_timeout(20)


def check_fits(page: Any) -> None:
  """Refuses a page that is wider than its window."""
  wide = page.evaluate(
    """() => {
      const most = document.documentElement.clientWidth;
      if (document.documentElement.scrollWidth <= most) return [];
      return [...document.querySelectorAll('body *')]
        .filter((x) => x.getBoundingClientRect().right > most + 1)
        .slice(0, 5)
        .map((x) => `${x.tagName} ${x.id} ${x.className} ${x.textContent.slice(0, 40)}`);
    }"""
  )
  assert not wide, page.url
  assert page.evaluate(
    "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
  ), page.url


def check_reads(page: Any) -> None:
  """Refuses a page that axe-core finds seriously hard for someone."""
  from axe_playwright_python import sync_playwright

  found = sync_playwright.Axe().run(page).response["violations"]
  serious = [
    (x["id"], x["help"], [node["html"][:150] for node in x["nodes"][:3]])
    for x in found
    if x["impact"] in ("serious", "critical")
  ]
  assert not serious


def check_unhacked(page: Any) -> None:
  """Refuses a page in which a text was more than a text."""
  assert page.evaluate("window.hacked") is None
  assert not page.evaluate(
    "document.querySelectorAll('main script, main iframe, main style,"
    " main img, main a[href^=javascript]').length"
  )


def spoken(page: Any) -> list[str]:
  """Returns what a screen reader reads of a page, a part after the other."""
  session = page.context.new_cdp_session(page)
  nodes = session.send("Accessibility.getFullAXTree")["nodes"]
  known = {node["nodeId"]: node for node in nodes}
  read, left = [], [nodes[0]["nodeId"]]
  while left:
    node = known.get(left.pop())
    if node is None:
      continue
    if node.get("role", {}).get("value") == "StaticText":
      read.append(node["name"]["value"].strip())
    else:
      left += reversed(node.get("childIds", []))
  return read
