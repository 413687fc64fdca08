"""Runs and evaluations as pages of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import figures
from prm_jax.evaluation import results as results_lib
from prm_jax.evaluation import views
from prm_jax.people import people_quality
from prm_jax.probes import faithfulness
from prm_jax.reports import curves
from prm_jax.reports import demo_page
from prm_jax.reports import probe_page
from prm_jax.reports import result_page
from prm_jax.reports import rl_page

# A curve has no more points: means of successive records, if needed.
MAX_POINTS = 200
# What comes of a file that a command of another version wrote, or a person.
_NOT_OURS = (LookupError, TypeError, ValueError, AttributeError)


def of_run(
  records: Sequence[Mapping[str, Any]], details: Mapping[str, Any]
) -> result_page.Page:
  """Returns the page of a run: what its kind has to say, and all metrics.

  Args:
    records: The records of metrics.jsonl.
    details: What environment.json says of the run, or nothing.
  """
  made = result_page.made(details)
  page = result_page.Page(sections=[made])
  if rl_page.is_rl(records):
    try:
      page = rl_page.page(records, details)
    except (errors.InputError, *_NOT_OURS) as e:
      # A record of another version, which has its metrics all the same.
      lead = f"Only its metrics are shown: {_why(e)}."
      page = dataclasses.replace(page, lead=lead)
  size = curves.bin_size(len(records), MAX_POINTS)
  means = (
    f"A point is the mean of up to {size} records; bands reach from the least to"
    " the most of them."
  )
  metrics = result_page.Section(
    "All metrics",
    means * (size > 1),
    _metrics(records),
    is_folded=bool(page.title),
  )
  if metrics.is_empty and not page.lead:
    lead = "This run has recorded no number yet."
    page = dataclasses.replace(page, lead=lead)
  sections = [*page.sections, metrics] if page.title else [metrics, made]
  return dataclasses.replace(page, sections=sections)


def _why(e: Exception) -> str:
  """Returns in words why results can't be read."""
  if isinstance(e, KeyError):
    return f"they lack {e}"
  if isinstance(e, errors.InputError):
    return str(e)
  return "their values aren't those that this version writes"


def _metrics(records: Sequence[Mapping[str, Any]]) -> list[figures.Panel]:
  """Returns a picture of each metric, with a line for each kind of record."""
  names = dict.fromkeys(name for record in records for name in record)
  kinds = dict.fromkeys(str(record.get("kind")) for record in records)
  panels = []
  for name in names:
    if name in ("step", "kind"):
      continue
    lines = []
    for kind in kinds:
      pairs = [
        (record.get("step"), record[name])
        for record in records
        if str(record.get("kind")) == kind and name in record
      ]
      size = curves.bin_size(len(pairs), MAX_POINTS)
      lines += curves.lines(kind, curves.bins(pairs, size, has_gaps=True))
    panels.append(figures.Panel(name, "step", "", lines, is_share=False))
  return panels


def of_evaluation(evaluation: results_lib.Evaluation) -> result_page.Page:
  """Returns the page of an evaluation, or of a demo.

  Results of a kind that isn't known are shown as their numbers.

  Args:
    evaluation: Its results, and its samples if they are there.
  """
  results = evaluation.results
  numbers = {k: x for k, x in results.items() if k not in ("run", "scored_by")}
  run = {
    **_mapping(results.get("scored_by")),
    **_mapping(results.get("run")),
  }
  kind = _mapping(run.get("evaluated")).get("kind")
  every, made = result_page.flat(numbers), result_page.made(run)
  try:
    if not numbers or results.get("n") == []:
      lead = "They hold no result: nothing was evaluated."
      page = result_page.Page(lead=lead, sections=[made])
    elif kind == demo_page.KIND:
      page = demo_page.page(results)
    elif kind in views.OF_KIND:
      shown = _section(evaluation, views.OF_KIND[kind])
      page = result_page.Page(sections=[shown, made])
    else:
      lead = (
        "Only their numbers are shown: they name no evaluation of this version."
      )
      page = result_page.Page(lead=lead, sections=[made])
  except _NOT_OURS as e:
    lead = f"Only their numbers are shown: {_why(e)}."
    page = result_page.Page(lead=lead, sections=[made])
  section = result_page.Section(
    "All numbers", facts=every, is_folded=not page.lead or bool(page.title)
  )
  return dataclasses.replace(page, sections=[*page.sections, section])


def of_probed(solutions: Sequence[schema.Solution]) -> result_page.Page:
  """Returns the page of what probes found.

  Args:
    solutions: The solutions that were probed.
  """
  return probe_page.page(
    [s.extra[faithfulness.FIELD] for s in solutions],
    [s.problem for s in solutions],
  )


def of_people(told: Mapping[str, Any]) -> result_page.Page:
  """Returns the page of how well people judge.

  Args:
    told: What people_quality.report returned.
  """
  section = result_page.Section(
    "People and pairs",
    table=people_quality.table(told),
    note="Of gold items the first error, with Wilson's 95 % interval; a pair's"
    " numbers are of the items that both judged.",
  )
  lead = "" if told["people"] else "Nobody has ended an item yet."
  return result_page.Page("How people judge", lead, sections=[section])


def _mapping(value: Any) -> Mapping[str, Any]:
  return value if isinstance(value, Mapping) else {}


def _section(
  evaluation: results_lib.Evaluation, view: views.View
) -> result_page.Section:
  """Returns the pictures and the table of an evaluation."""
  note = ""
  panels: Sequence[figures.Panel] = ()
  if evaluation.samples or view is views.BEST_OF_N:
    panels = view.figure(evaluation).panels
  else:
    note = (
      "Its samples, which the pictures are drawn of, aren't beside it as they"
      " were written."
    )
  table = view.table(evaluation.results)
  return result_page.Section("Results", panels=panels, table=table, note=note)
