"""Builds the documentation site; `make docs` runs it in its own environment.

The site's sources are a copy of the repository's pages at the paths that they
have here, with the files that they link to. So a relative link that works in
the repository works in the site. A warning or a broken link is an error.
"""

import html.parser
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCES = ROOT / "build/site_sources"
SITE = ROOT / "site"
PAGES = (
  "README.md",
  "CONTRIBUTING.md",
  "CHANGELOG.md",
  "benchmarks/README.md",
  "experiments/README.md",
  "docs/*.md",
)
STYLE = ROOT / "docs/site.css"
_LINK = re.compile(r"\]\(([^)\s#]+)")
_TO_PAGE = re.compile(r'(href="[^":]+)\.md(?=["#])')
_KEPT = re.compile(r"<(code|td|th)\b.*?</\1>", re.DOTALL)
# Outside of tags.
_WORD = re.compile(r"([^\s<>]*[-/|\\][^\s<>]*)(?![^<]*>)")
_PROBLEM = re.compile(r"\b(WARNING|ERROR|Warning|Error|Traceback)\b")


def pages() -> list[pathlib.Path]:
  """Returns the repository's pages that are part of the site."""
  return [path for glob in PAGES for path in sorted(ROOT.glob(glob))]


def copy_sources() -> None:
  """Copies the pages and the files that they link to.

  Raises:
    SystemExit: a page links to a file that doesn't exist.
  """
  shutil.rmtree(SOURCES, ignore_errors=True)
  _copy(STYLE)
  for page in pages():
    _copy(page)
    for link in _LINK.findall(page.read_text()):
      if urllib.parse.urlsplit(link).scheme:
        continue
      file = (page.parent / urllib.parse.unquote(link)).resolve()
      if not file.is_file():
        sys.exit(f"{page.relative_to(ROOT)}: links to {link}: no such file")
      if file.suffix != ".md":
        _copy(file)
      elif file not in pages():
        sys.exit(
          f"{page.relative_to(ROOT)}: links to {link}, which isn't in PAGES of"
          f" {pathlib.Path(__file__).relative_to(ROOT)}; add it"
        )


def _copy(path: pathlib.Path) -> None:
  copy = SOURCES / path.relative_to(ROOT)
  copy.parent.mkdir(parents=True, exist_ok=True)
  shutil.copyfile(path, copy)


def build() -> None:
  """Runs zensical; a warning is an error.

  Its --strict counts its own warnings only, not those of mkdocstrings.

  Raises:
    SystemExit: the build failed or warned.
  """
  command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
  done = subprocess.run(
    command,
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )
  output = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
  lines = [line[:200] for line in output.splitlines()]
  if done.returncode or any(_PROBLEM.search(line) for line in lines):
    sys.exit("\n".join([*lines, "the site has warnings, see above"]))


def mark_words(page: str) -> str:
  r"""Returns a built page whose breakable words of code and tables are elements.

  A browser breaks lines at "-", "/", "|" and "\", and only elements can be kept
  whole.
  """

  def marked(part):
    return _WORD.sub(r'<span class="word">\1</span>', part[0])

  return _KEPT.sub(marked, page)


class _Links(html.parser.HTMLParser):
  """Collects a page's links and the anchors that can be linked to."""

  def __init__(self, text: str):
    super().__init__()
    self.links: list[str] = []
    self.anchors: set[str] = set()
    self.unresolved: list[str] = []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    values = dict(attrs)
    self.anchors |= {values[k] for k in ("id", "name") if values.get(k)}
    self.links += [values[k] for k in ("href", "src") if values.get(k)]
    if tag == "autoref":
      self.unresolved.append(str(values.get("identifier")))


def broken_links(site: pathlib.Path) -> list[str]:
  """Returns a line for each link of a built page that leads nowhere."""
  parsed = {
    path.resolve(): _Links(path.read_text()) for path in site.rglob("*.html")
  }
  lines = []
  for path, page in sorted(parsed.items()):
    name = path.relative_to(site.resolve())
    if name.name == "404.html":  # its links are those of a server
      continue
    lines += [f"{name}: no page describes {x}" for x in page.unresolved]
    for link in page.links:
      parts = urllib.parse.urlsplit(link)
      if parts.scheme or parts.netloc:
        continue
      target = path
      if parts.path:
        target = (path.parent / urllib.parse.unquote(parts.path)).resolve()
      if target.is_dir():
        target /= "index.html"
      anchor = urllib.parse.unquote(parts.fragment)
      known = parsed[target].anchors if target in parsed else {anchor}
      if not target.exists() or (anchor and anchor not in known):
        lines.append(f"{name}: {link} leads nowhere")
  return lines


def main() -> None:
  copy_sources()
  build()
  for path in SITE.rglob("*.html"):
    # Our own pages link to sources, as they lie next to them.
    page = _TO_PAGE.sub(r"\1.html", path.read_text())
    path.write_text(mark_words(page))
  if lines := broken_links(SITE):
    sys.exit("\n".join(lines))
  print(f"site: {SITE / 'index.html'}")


if __name__ == "__main__":
  main()
