"""What all evaluations of a reward model have: scores, files, results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import logging
import pathlib
from typing import Annotated, Any, ClassVar, TYPE_CHECKING

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import results as results_lib
from prm_jax.jobs import journal_head
from prm_jax.jobs import report
from prm_jax.jobs import step_scores as step_scores_lib
from prm_jax.records import fields
from prm_jax.runtime import files
from prm_jax.runtime import verbs

if TYPE_CHECKING:
  from prm_jax.evaluation import views

_logger = logging.getLogger(__name__)

Table = Annotated[
  files.PathLike, verbs.output, verbs.Endings((".md", ".tex", ".csv"))
]


@dataclasses.dataclass(frozen=True)
class Evaluate(step_scores_lib.Source, verbs.Verb):
  """Evaluates a reward model.

  Args:
    seed: The seed of the bootstrap confidence intervals, and of what --limit
      draws.
  """

  seed: verbs.Seed = 0

  compiles: ClassVar[bool] = True

  def step_scores(
    self,
    solutions: Sequence[schema.Solution],
    score: schema.Score | None = None,
  ) -> step_scores_lib.Scored:
    """Returns the step scores of solutions; see Source.

    Args:
      solutions: The solutions.
      score: What scores them, instead of the checkpoint or file of scores.

    Raises:
      InputError: There is no solution, or there aren't scores of each step.
    """
    if not solutions:
      raise errors.InputError("no solutions")
    return super().step_scores(solutions, score)

  def evaluated(self, solutions: Sequence[schema.Solution]) -> dict[str, Any]:
    """Returns what the results depend on, as plain data.

    Args:
      solutions: The solutions that are evaluated.

    Raises:
      InputError: The checkpoint or the file of scores can't be read.
    """
    of_source = {x.name for x in dataclasses.fields(step_scores_lib.Source)}
    options = {
      x.name: getattr(self, x.name)
      for x in dataclasses.fields(self)
      if x.name not in of_source
    }
    kind = type(self).__name__.removeprefix("Evaluate")
    by = {k: v for k, v in self.origin.items() if k not in _PLACES}
    return dict(
      kind=kind,
      scored_by={_RENAMED.get(k, k): v for k, v in by.items()},
      **options,
      **journal_head.fingerprint(solutions),
    )


# The same model or file may stand elsewhere.
_PLACES = ("checkpoint", "scores", "program")
# The name that a difference has in words.
_RENAMED = dict(compute_dtype="dtype", sha256="scores")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(verbs.Value):
  """How much of its input an evaluation reads, and where its results go.

  Args:
    limit: Use only N solutions of each --input, drawn by --seed (default: all).
    output: The JSON file of results to write; - is the standard output, and
      messages go to stderr (a file is written whole or not at all, the standard
      output isn't).
    samples: The JSON Lines file to write with one line for each solution
      (default: if --output is results.json, samples.jsonl; if it is NAME.json,
      NAME_samples.jsonl; if it is -, none).
    plot: The picture to write, NAME.svg or NAME.png; needs the extra plot (pip
      install -e '.[plot]' in a checkout).
    table: The table to write: NAME.md (Markdown), NAME.tex (LaTeX), or NAME.csv
      (a line for each number, with its interval, as precise as in --output).
    fresh: Replace --output, --samples, --plot and --table if they are of another
      evaluation: of another model, of other solutions or with other options.
  """

  limit: verbs.Natural | None = None
  output: verbs.OutputOrStdout = pathlib.Path("results.json")
  samples: verbs.Output | None = None
  plot: verbs.Plot | None = None
  table: Table | None = None
  fresh: bool = False

  @property
  def samples_at(self) -> pathlib.Path | None:
    """Where the samples go."""
    output = pathlib.Path(self.output)
    if self.samples is not None:
      return pathlib.Path(self.samples)
    return None if output == verbs.STDOUT else results_lib.samples_path(output)

  @property
  def more(self) -> dict[str, pathlib.Path]:
    """What is written besides the results, by option."""
    given = dict(samples=self.samples_at, plot=self.plot, table=self.table)
    return {k: pathlib.Path(x) for k, x in given.items() if x is not None}

  def check(
    self, inputs: Iterable[files.PathLike], source: step_scores_lib.Source
  ) -> None:
    """Refuses outputs that would replace other files, before any work.

    Args:
      inputs: The files of solutions.
      source: Where the scores come from.

    Raises:
      InputError: An output is refused, or what draws the plot isn't installed.
    """
    from prm_jax.records import sources

    read = [*map(sources.stored_at, inputs), source.stored_at]
    results_lib.check(pathlib.Path(self.output), self.more, read)
    if self.plot is not None:
      results_lib.figure_files().check()

  def evaluated(
    self,
    verb: Evaluate,
    solutions: Sequence[schema.Solution],
    **more: Any,
  ) -> dict[str, Any]:
    """Returns what the results depend on; refuses to replace other ones.

    Args:
      verb: The evaluation.
      solutions: What it will evaluate.
      **more: What else the results depend on.

    Raises:
      InputError: An output holds the results of another evaluation.
    """
    evaluated = verb.evaluated(solutions) | more
    if not self.fresh:
      output = pathlib.Path(self.output)
      results_lib.check_same(output, self.more, evaluated)
    return evaluated

  def write(
    self,
    evaluation: results_lib.Evaluation,
    view: views.View,
    evaluated: Mapping[str, Any],
  ) -> None:
    """Writes all outputs, and logs a table of the results.

    Args:
      evaluation: The results and samples.
      view: How they are shown.
      evaluated: What the results depend on.

    Raises:
      InputError: There is nothing to plot; the other outputs are written.
    """
    from prm_jax.evaluation import tables
    from prm_jax.runtime import environment

    results, more = evaluation.results, self.more
    origin = ", ".join(
      f"{k} {v}" for k, v in results["scored_by"].items() if k != "program"
    )
    verbs.log_text(_logger, f"{view.text(results)}\n\nscored by: {origin}")
    if self.limit is not None:
      results = results | dict(limit=self.limit)
    run = dict(
      command=environment.command(),
      versions=environment.versions(),
      machine=environment.machine(),
      evaluated=dict(evaluated),
    )
    figure = view.figure(evaluation) if "plot" in more else None
    is_empty = figure is not None and not figure.panels
    if is_empty:
      del more["plot"]
    for name, path in more.items():
      if name == "samples":
        files.write_records(path, evaluation.samples)
      elif name == "table":
        tables.write(path, view.table(results))
      else:
        results_lib.figure_files().write(path, figure)
      run[f"{name}_sha256"] = files.digest_of(path)
      _logger.info(f"{name}: {path}")
    files.write_json(self.output, results | dict(run=run))
    _logger.info(f"results: {self.output}")
    if is_empty:  # which is said last, as the results stand
      results_lib.figure_files().write(self.plot, figure)


@dataclasses.dataclass(frozen=True)
class SolutionsJob(Job):
  """Which solutions are evaluated, and where the results go.

  Args:
    input: The file of solutions to read; - is the standard input.
    format: The format of --input; docs/data.md lists the formats, such as jsonl
      and prm800k.
  """

  input: verbs.Input
  format: str = "jsonl"


def read(
  format_name: str,
  path: files.PathLike,
  limit: int | None = None,
  seed: int = 0,
  *,
  whole_problems: bool = False,
) -> list[schema.Solution]:
  """Returns the solutions of a file; logs how many are left out, and why.

  Args:
    format_name: The format of the file.
    path: The file.
    limit: The number of solutions to draw; None takes all.
    seed: The seed of the draw.
    whole_problems: Whether problems are drawn, with all their solutions.

  Raises:
    InputError: The file has no solution, or sources.read refuses it.
  """
  from prm_jax.records import sources

  solutions, left_out = sources.read(format_name, path)
  report.left_out(left_out)
  if not solutions:
    raise errors.InputError(f"{path}: no solutions")
  if not whole_problems:
    return sources.drawn(solutions, limit, seed, path, lambda s: s.id)
  problems = dict.fromkeys(s.problem for s in solutions)
  chosen = frozenset(sources.drawn(problems, limit, seed, path, str))
  return [s for s in solutions if s.problem in chosen]


def read_files(
  format_name: str,
  paths: Sequence[files.PathLike],
  limit: int | None,
  seed: int,
  check: Callable[[schema.Solution, str], None],
) -> list[schema.Solution]:
  """Returns the solutions of several files, in which no id comes twice.

  Args:
    format_name: See read.
    paths: The files.
    limit: The number of solutions to draw of each; None takes all.
    seed: See read.
    check: Refuses a solution that can't be evaluated; it is also given where
      the solution is, for errors.

  Raises:
    InputError: An id comes twice, `check` refuses a solution, or `read` a file.
  """
  solutions: list[schema.Solution] = []
  seen: dict[str, str] = {}
  for path in paths:
    found = read(format_name, path, limit, seed)
    check_each(found, path, check, seen)
    solutions += found
  return solutions


def check_each(
  solutions: Iterable[schema.Solution],
  where: files.PathLike,
  check: Callable[[schema.Solution, str], None],
  seen: dict[str, str],
) -> None:
  """Refuses ids that come twice, and what a check refuses.

  Args:
    solutions: The solutions.
    where: What they were read from, for errors.
    check: See read_files.
    seen: Where each id was used before; theirs are added.
  """
  for solution in solutions:
    fields.unique_id(seen, solution.id, str(where))
    check(solution, f"{where}: solution {solution.id!r}")


def baselines(
  solutions: Sequence[schema.Solution],
  measure: Callable[[list[list[float]]], dict[str, Any]],
  names: Sequence[str],
) -> dict[str, dict[str, Any]]:
  """Returns some measures of the scores that read no mathematics.

  Args:
    solutions: The solutions.
    measure: Returns the measures of step scores by their names.
    names: Which of them.
  """
  from prm_jax.evaluation import processbench_metrics

  result = {}
  for baseline, score in processbench_metrics.BASELINES.items():
    measured = measure(score(solutions))
    result[baseline] = {name: measured[name] for name in names}
  return result
