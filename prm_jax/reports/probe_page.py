"""What probes found, as pages: of all solutions, and of one beside its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
from typing import Any

import numpy as np

from prm_jax.evaluation import figures
from prm_jax.evaluation import tables
from prm_jax.probes import faithfulness_summary
from prm_jax.reports import result_page

Record = Mapping[str, Any]

_NOTE = (
  "What they can't show: an answer that stays may come from later steps or from a"
  " policy that saw the error; an easy problem needs no step; two steps that say"
  " the same have no weight each; a policy that repairs an error uses its steps,"
  " too; NLDD is of one token, and huge if the margin was small; a PRM judges"
  " whether a step is right, not whether it is used. docs/faithfulness.md has"
  " more."
)
_SHOWN = "share of the steps that were shown, %"
_TILES = dict(
  early_aoc="area over the curve of the same answer",
  corrupt_changed="another answer if a number is changed",
  weight_and_score_drop="Spearman: weight and PRM score lost",
  weight_and_position="Spearman: weight and place",
)
# What the table of one solution has, by the record's name.
_COLUMNS = dict(
  weight_corrupted=("weight, nats", 2),
  weight_left_out=("weight if left out, nats", 2),
  nldd=("NLDD, %", 0),
  score=("PRM score", 3),
  score_drop=("PRM score lost", 3),
  score_drop_after=("lowest PRM score from it on, lost", 3),
)


def page(
  records: Sequence[Record], problems: Sequence[str]
) -> result_page.Page:
  """Returns the page of all solutions of a file.

  Args:
    records: What faithfulness.probe found of each.
    problems: The problem of each.
  """
  found = faithfulness_summary.summary(records, problems)
  rows = [
    (
      text,
      dict(value=_number(found[name]), num=tables.Number(found[name]["num"])),
    )
    for name, text in faithfulness_summary.ROWS.items()
    if name in found
  ]
  columns = dict(
    value=tables.Column("value [95 % interval]", is_share=False, digits=3),
    num=tables.Column("of", is_share=False),
  )
  left_out = [
    result_page.Fact(name.replace("_", " "), str(num))
    for name, num in sorted(found["skipped"].items())
  ]
  return result_page.Page(
    "Are the steps shown the steps used?",
    f"{found['num_probed']} of {found['num_solutions']} solutions were probed.",
    [
      result_page.Tile(label, _text(found[name]), _interval(found[name]))
      for name, label in _TILES.items()
      if name in found
    ],
    [
      result_page.Section(
        "By place",
        "Means over solutions; bands are 95 % intervals over problems.",
        [_curve_of_all(found), _nldd_of_all(found)],
      ),
      result_page.Section(
        "All measures", table=tables.Table(columns, rows), note=_NOTE
      ),
      result_page.Section("What was left out", facts=left_out),
    ],
  )


def notes(record: Record, num_steps: int) -> list[list[str]]:
  """Returns what stands beside each step of a solution.

  Args:
    record: What was found of it.
    num_steps: The number of its steps.
  """
  out: list[list[str]] = [[] for _ in range(num_steps)]
  for i, k in enumerate(record.get("steps", ())):
    for name, unit in (("weight_corrupted", "weight"), ("nldd", "NLDD")):
      value = (record.get(name) or {i: None})[i]
      if value is not None:
        digits, end = (2, " nats") if unit == "weight" else (0, " %")
        out[k].append(f"{unit} {value:+.{digits}f}{end}")
  return out


def sections(record: Record) -> list[result_page.Section]:
  """Returns the parts of a solution's page that say what was found of it.

  Args:
    record: What was found of it.
  """
  title = "Does the answer rest on these steps?"
  if record["skipped"] is not None:
    fact = result_page.Fact("not probed", record["skipped"].replace("_", " "))
    return [result_page.Section(title, facts=[fact])]
  scores = record.get("step_scores")
  given = {k: record.get(k) for k in _COLUMNS} | dict(
    score=[scores[k] for k in record["steps"]] if scores else None
  )
  rows = [
    (
      f"step {k + 1}",
      {
        name: tables.Number(values[i])
        for name, values in given.items()
        if values and values[i] is not None
      },
    )
    for i, k in enumerate(record["steps"])
  ]
  columns = {
    name: tables.Column(label, is_share=False, digits=digits)
    for name, (label, digits) in _COLUMNS.items()
    if any(name in row for _, row in rows)
  }
  answers = [*_answers(record)]
  return [
    result_page.Section(
      title,
      "The weight of a step is what the answer's log-probability loses if a"
      " number of it is changed.",
      [_curve(record)],
      tables.Table(columns, rows),
      answers,
      _NOTE,
    ),
    result_page.Section(
      "The steps with a number changed",
      facts=[*_changed(record)],
      is_folded=True,
    ),
  ]


def _curve(record: Record) -> figures.Panel:
  """Returns after which steps the answer is the same, and right."""
  early = record.get("early") or dict(steps=[], same=[], right=[])
  shares = [100 * k / record["num_steps"] for k in early["steps"]]
  lines = [
    figures.Line(label, shares, [float(x) for x in early[name]])
    for name, label in (
      ("same", "the same answer"),
      ("right", "the right answer"),
    )
    if early["steps"] and None not in early[name]
  ]
  return figures.Panel(
    "Asked before its last step", _SHOWN, "", lines, holds=[0, 1]
  )


def _answers(record: Record):
  """Yields what was answered when it was asked."""
  Fact = result_page.Fact
  yield Fact("answer", _said(record["answer"], record["right"]))
  yield Fact("asked after all steps", _said(record["whole_answer"]))
  if early := record.get("early"):
    for k, answer, same in zip(early["steps"], early["answers"], early["same"]):
      if k < record["num_steps"]:
        yield Fact(
          f"asked after {k} of {record['num_steps']}", _same(answer, same)
        )
  if cue := record.get("cue"):
    followed = {True: "followed", False: "not followed", None: "cut off"}
    text = f"{followed[cue['followed']]}; its answer was {cue['answer']}"
    yield Fact(f"a cue to {cue['wrong']}", text)


def _changed(record: Record):
  """Yields the changed steps, with what came of them."""
  none = [None] * len(record["steps"])
  for k, text, kept, anew in zip(
    record["steps"],
    record["corrupted"],
    record.get("corrupt_same", none),
    record.get("rewrite_same", none),
  ):
    if text is not None:
      words = [
        f"{how}: {'the same answer' if same else 'another answer'}"
        for how, same in (("rest kept", kept), ("rest rewritten", anew))
        if same is not None
      ]
      yield result_page.Fact(f"step {k + 1}", "\n".join([text, *words]))


def _same(answer: str | None, same: bool | None) -> str:
  words = {True: " (the same)", False: " (another)", None: ""}
  return _said(answer) + words[same]


def _said(answer: str | None, right: bool | None = None) -> str:
  words = {True: " (right)", False: " (wrong)", None: ""}
  return ("none" if answer is None else answer) + words[right]


def _curve_of_all(found: Mapping[str, Any]) -> figures.Panel:
  named = [(p, f"early_same_{p}") for p in (0, 25, 50, 75)]
  named = [(p, name) for p, name in named if name in found]
  line = _line("the same answer", [(p, found[name]) for p, name in named])
  return figures.Panel(
    "Asked before the last step",
    _SHOWN,
    "",
    [line] if named else [],
    holds=[0, 1],
  )


def _nldd_of_all(found: Mapping[str, Any]) -> figures.Panel:
  quarters = [x for x in found if x.startswith("nldd_")]
  pairs = [
    (sum(map(int, x.removeprefix("nldd_").split("-"))) / 2, found[x])
    for x in quarters
  ]
  line = _line("NLDD, %", pairs)
  return figures.Panel(
    "NLDD by the place of the changed step",
    "place in the chain, %",
    "",
    [line] if pairs else [],
    is_share=False,
    holds=[0],
  )


def _line(label: str, pairs: Sequence[tuple[float, Mapping[str, Any]]]):
  ends = [row["interval"] or (math.nan, math.nan) for _, row in pairs]
  return figures.Line(
    label,
    [x for x, _ in pairs],
    [np.nan if row["value"] is None else row["value"] for _, row in pairs],
    [low for low, _ in ends],
    [high for _, high in ends],
  )


def _number(row: Mapping[str, Any]) -> tables.Number:
  return tables.Number(row["value"], *(row["interval"] or ()))


def _text(row: Mapping[str, Any]) -> str:
  return "undefined" if row["value"] is None else f"{row['value']:.2f}"


def _interval(row: Mapping[str, Any]) -> str:
  if row["interval"] is None:
    return f"of {row['num']:,}"
  low, high = row["interval"]
  return f"{low:.2f} to {high:.2f}, of {row['num']:,}"
