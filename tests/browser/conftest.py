"""A browser for tests of pages; pages.py has what they ask of a page.

Nothing here is imported without `make browser`, which installs it.
"""

from collections.abc import Iterator
import shutil
from typing import Any, Protocol
import urllib.parse

import pytest

# Its assertions say what they found, too.
pytest.register_assert_rewrite("pages")

NARROW, WIDE = 400, 1280


class Opened(Protocol):
  """Opens an address in a page of its own, and returns the page."""

  def __call__(
    self, url: str, *, width: int = WIDE, dark: bool = False
  ) -> Any: ...


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
  from playwright import sync_api

  path = shutil.which("chromium")
  assert path is not None, "no chromium; `make browser` installs it"
  with sync_api.sync_playwright() as playwright:
    # Root has no sandbox of chromium's own.
    started = playwright.chromium.launch(
      executable_path=path, args=["--no-sandbox"]
    )
    yield started
    started.close()


@pytest.fixture
def opened(browser) -> Iterator[Opened]:
  """Opens pages, which may say no error and ask no other place for anything."""
  wrong: list[str] = []
  contexts = []

  def open_one(url: str, *, width: int = WIDE, dark: bool = False) -> Any:
    context = browser.new_context(
      viewport=dict(width=width, height=800),
      color_scheme="dark" if dark else "light",
    )
    contexts.append(context)
    context.set_default_timeout(10_000)
    page = context.new_page()
    own = urllib.parse.urlsplit(url)

    def asked(request):
      to = urllib.parse.urlsplit(request.url)
      if to.scheme != "data" and (to.scheme, to.netloc) != own[:2]:
        wrong.append(f"asks {request.url}")

    def said(message):
      # A refusal by the server is an error of the browser's, too.
      refused = "Failed to load resource" in message.text
      if message.type == "error" and not refused:
        wrong.append(f"says {message.text}")

    page.on("request", asked)
    page.on("console", said)
    page.on("pageerror", lambda error: wrong.append(f"fails: {error}"))
    page.on("dialog", lambda dialog: wrong.append(f"asks {dialog.message}"))
    page.goto(url)
    return page

  yield open_one
  for context in contexts:
    context.close()
  assert not wrong
