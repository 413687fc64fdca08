"""A folder of pages over HTTP, for the browsers of this machine alone."""

from __future__ import annotations

import pathlib

from prm_jax import errors
from prm_jax.runtime import listening
from prm_jax.web import assets
from prm_jax.web import page_http


class Handler(page_http.Handler):
  """Answers GET of the files that a folder held when it was served."""

  server: PageServer

  def do_GET(self) -> None:
    """Sends a file, or says that there is none."""
    name = self.path.partition("?")[0].removeprefix("/") or "index.html"
    path = self.server.files.get(name)
    if path is None:
      self.send(404, b"no such page\n")
      return
    self.send(200, path.read_bytes(), assets.TYPES[path.suffix])


class PageServer(page_http.Server):
  """Serves the files of a folder.

  Args:
    folder: The folder.
    host: The address to listen at, one of this machine's alone.
    port: The port; 0 is any that is free.

  Raises:
    InputError: The address isn't one of this machine alone, or the port is
      taken.
  """

  def __init__(self, folder: pathlib.Path, host: str, port: int):
    if not listening.is_loopback(host):
      raise errors.InputError(
        f"`host={host}`: other machines could read the pages; give 127.0.0.1,"
        " or write them by `static` and serve the folder yourself"
      )
    self.files = {
      x.relative_to(folder).as_posix(): x
      for x in folder.rglob("*")
      if x.suffix in assets.TYPES
    }
    super().__init__(Handler, host, port)
