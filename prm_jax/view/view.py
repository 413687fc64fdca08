"""`prm_jax.View`: results as pages in a browser, or in a folder."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import tempfile
from typing import Annotated, TYPE_CHECKING

from prm_jax.runtime import outputs
from prm_jax.runtime import verbs

if TYPE_CHECKING:
  from prm_jax.view import view_inputs

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class View(verbs.Verb):
  """Shows results in a browser: samples, searches, runs and evaluations.

  Args:
    path: The files to show, and folders with such files: solutions with labels
      or scores or what probes found, step scores, the results of searches and
      evaluations, metrics.jsonl.
    static: Write the pages into this folder instead of showing them; they work
      without a server. It must be empty, new, or hold such pages, which are
      replaced.
    host: The address to listen at, one of this machine's alone.
    port: The port to listen at; 0 is any that is free.

  Example:
    prm-jax view runs/demo
  """

  path: tuple[Annotated[str, verbs.named], ...] = dataclasses.field(
    metadata=dict(is_positional=True)
  )
  static: verbs.Output | None = None
  host: str = "127.0.0.1"
  port: int = 8080

  def run(self) -> None:
    """Shows the pages until SIGINT or SIGTERM, or writes them.

    Raises:
      InputError: A file is damaged, there is nothing to show, the folder holds
        something else, or the port is taken.
    """
    from prm_jax.runtime import listening
    from prm_jax.view import page_server
    from prm_jax.view import site
    from prm_jax.view import view_inputs

    outputs.check(dict(static=self.static), self.path, are_folders=True)
    if self.static is not None:
      site.check(self.static)
    inputs = view_inputs.read(self.path)
    made = site.pages(inputs)
    if self.static is not None:
      site.write(self.static, made)
      _logger.info(f"{self.static}: {_counts(inputs)}; open index.html")
      return
    with tempfile.TemporaryDirectory(prefix="prm_jax_view_") as folder:
      pages = pathlib.Path(folder, "pages")
      site.write(pages, made)
      server = page_server.PageServer(pages, self.host, self.port)
      listening.run(
        server,
        lambda: _logger.info(
          f"{server.url}: {_counts(inputs)}; Ctrl-C ends the command"
        ),
      )


def _counts(inputs: view_inputs.Inputs) -> str:
  """Returns how much of each kind there is, in words."""
  num = dict(
    solutions=sum(map(len, inputs.solutions.values())),
    scores=sum(map(len, inputs.scores.values())),
    searches=sum(map(len, inputs.searches.values())),
    runs=len(inputs.runs),
    evaluations=len(inputs.evaluations),
  )
  return ", ".join(f"{name} {x:,}" for name, x in num.items() if x)
