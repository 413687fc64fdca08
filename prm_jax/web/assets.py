"""The files that pages are made of, and what a browser may do with them.

All pages share static/base.css and static/steps.js, which shows steps with their
scores and formulas. KaTeX is the published one; its licence is beside it, and
its style sheet names only the fonts that are here.
"""

from __future__ import annotations

import functools
import pathlib
import types

_FOLDER = pathlib.Path(__file__).parent / "static"
TYPES = {
  ".css": "text/css; charset=utf-8",
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".woff2": "font/woff2",
}
NAMES = tuple(
  sorted(
    path.relative_to(_FOLDER).as_posix()
    for path in _FOLDER.rglob("*")
    if path.suffix in TYPES
  )
)
# Nothing from elsewhere, and no script in the page. Of files that are opened
# without a server, the page itself says so.
POLICY = (
  "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self';"
  " img-src data:; base-uri 'none'; form-action 'none'"
)
# A page of a server asks that server, and no page is around it.
_SERVED = f"{POLICY}; connect-src 'self'; frame-ancestors 'none'"
HEADERS = types.MappingProxyType(
  {
    "Content-Security-Policy": _SERVED,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
  }
)


@functools.cache
def read(name: str) -> tuple[bytes, str]:
  """Returns a file's content and its media type.

  Args:
    name: One of NAMES.
  """
  path = _FOLDER / name
  return path.read_bytes(), TYPES[path.suffix]
