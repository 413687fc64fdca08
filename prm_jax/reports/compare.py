"""`prm_jax.Compare`: the accuracy and the cost of several searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import logging
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import verbs

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class CompareJob(verbs.Value):
  """Which searches are compared, and where the comparison is written.

  Args:
    input: NAME=FILE, what `prm-jax search` wrote, or FILE; give the option for
      each search; the others are compared with the first.
    output: The JSON file to write.
    plot: The picture to write, NAME.svg or NAME.png: accuracy against sampled
      tokens; needs the extra plot (pip install -e '.[plot]' in a checkout).
  """

  input: tuple[str, ...]
  output: verbs.Output
  plot: verbs.Plot | None = None

  def __post_init__(self):
    super().__post_init__()
    self.named()

  def named(self) -> dict[str, str]:
    """Finds the names of the searches.

    Returns:
      The file of each search by its name.

    Raises:
      InputError: Two have the same name.
    """
    named: dict[str, str] = {}
    for text in self.input:
      name, equals, path = text.partition("=")
      if not equals:
        name, path = pathlib.Path(text).name.partition(".")[0], text
      if name in named:
        raise errors.InputError(
          f"`input={text}`: the name {name!r} comes twice; give NAME=FILE with"
          " another name"
        )
      named[name] = path
    return named


@dataclasses.dataclass(frozen=True)
class Compare(verbs.Verb):
  """Compares searches of the same problems: accuracy, cost, differences.

  Args:
    seed: The seed of the bootstrap confidence intervals.

  Example:
    prm-jax search compare --input=beam.jsonl --input=best_of_n.jsonl \\
      --output=compared.json
  """

  seed: verbs.Seed = 0

  def __call__(
    self, searches: Mapping[str, Sequence[schema.Solution]]
  ) -> dict[str, Any]:
    """Compares the results of searches.

    Args:
      searches: The results of each search, by its name.

    Returns:
      What search_curves.compare says.

    Raises:
      InputError: There is no search, or one has other problems or unknown
        outcomes.
    """
    from prm_jax.evaluation import search_curves

    if not searches:
      raise errors.InputError("no search to compare; give one or more")
    return search_curves.compare(searches, seed=self.seed)

  def run(self, job: CompareJob) -> None:
    """Compares the searches of several files.

    Args:
      job: The files.
    """
    from prm_jax.evaluation import search_curves
    from prm_jax.reports import figure_files
    from prm_jax.reports import search_plot
    from prm_jax.runtime import environment
    from prm_jax.search import search_results

    named = job.named()
    outputs.check(dict(output=job.output, plot=job.plot), named.values())
    if job.plot is not None:
      figure_files.check()
    compared = self(
      {name: search_results.read(path) for name, path in named.items()}
    )
    verbs.log_text(_logger, search_curves.table(compared))
    details = dict(
      command=environment.command(),
      versions=environment.versions(),
      machine=environment.machine(),
    )
    files.write_json(job.output, compared | dict(run=details))
    _logger.info(f"results: {job.output}")
    if job.plot is not None:
      figure_files.write(job.plot, search_plot.figure(compared))
      _logger.info(f"plot: {job.plot}")
