"""`prm_jax.SearchPage`: the trees of a search, for a person to walk."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import logging
import reprlib

from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import outputs
from prm_jax.runtime import verbs

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SearchPageJob(verbs.Value):
  """Of which search the page is, and where it is written.

  Args:
    input: What `prm-jax search` wrote; - is the standard input.
    output: The HTML file to write.
  """

  input: verbs.Input
  output: verbs.Output


@dataclasses.dataclass(frozen=True)
class SearchPage(verbs.Verb):
  """Writes a page on which a person walks the trees of a search.

  Args:
    problem: The id of a problem to show; repeat the option for each (default:
      all).
    limit: The most problems whose trees are shown.

  Example:
    prm-jax search page --input=beam.jsonl --output=beam.html
  """

  problem: tuple[str, ...] = ()
  limit: int = 20

  def __call__(self, results: Sequence[schema.Solution]) -> str:
    """Makes the page.

    Args:
      results: What a search returned.

    Returns:
      HTML.

    Raises:
      InputError: There is no result, or none of a problem.
    """
    from prm_jax.reports import search_trees

    return search_trees.render(self._shown(results), most=self.limit)

  def run(self, job: SearchPageJob) -> None:
    """Writes the page of a file.

    Args:
      job: The files.
    """
    from prm_jax.reports import html
    from prm_jax.search import search_results

    outputs.check(dict(output=job.output), [job.input])
    results = search_results.read(job.input)
    html.write(job.output, self(results))
    of = len(self._shown(results))
    num = min(of, self.limit)
    _logger.info(f"{job.output}: the trees of {num} of {of} problems")

  def _shown(
    self, results: Sequence[schema.Solution]
  ) -> Sequence[schema.Solution]:
    """Returns the results of the problems that were asked for."""
    if not self.problem:
      return results
    known = {result.id: result for result in results}
    for id_ in self.problem:
      if id_ not in known:
        raise errors.InputError(
          f"`problem={id_}`: no such problem was searched; there are"
          f" {reprlib.repr([*known])}"
        )
    return [known[id_] for id_ in dict.fromkeys(self.problem)]
