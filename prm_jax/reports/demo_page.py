"""The demo's results as a page: the PRM against the ORM and against votes."""

from __future__ import annotations

from collections.abc import Mapping
import itertools
from typing import Any

from prm_jax import schema
from prm_jax.evaluation import figures
from prm_jax.evaluation import result_figures
from prm_jax.evaluation import result_rows
from prm_jax.evaluation import tables
from prm_jax.reports import result_page

# The kind of evaluation that its results name.
KIND = "Demo"

# In the order of the tables; pictures draw the first on top.
_LABELS = {
  "prm": "PRM",
  "prm_mc": "Monte-Carlo PRM",
  "orm": "ORM",
  "majority": "Majority vote",
  "weighted_prm": "PRM-weighted vote",
  "weighted_orm": "ORM-weighted vote",
  "logprob": "Log-probability",
  "logprob_min": "Least likely token",
  "oracle": "Oracle (pass@N)",
}
_TILES = ("prm", "weighted_prm", "prm_mc", "orm", "majority")
_TERMS = {
  "PRM": "process reward model, learns whether each step is right.",
  "Monte-Carlo PRM": "the same, its labels guessed from rollouts.",
  "ORM": "outcome reward model, learns whether the final answer is right.",
  "Majority vote": "the most frequent answer; no model.",
  "Weighted votes": "each sample votes with its PRM or ORM score.",
  "Log-probability, least likely token": "the policy's own confidence over a"
  " sample's tokens; it knows no arithmetic.",
  "Oracle": "right if any of the N samples is: the ceiling.",
}
# What the columns of step metrics are called.
_MEASURES = dict(
  auroc="AUROC",
  auprc_error="AUPRC of errors",
  brier="Brier",
  ece="ECE",
  counted="steps",
  not_judged="left out: not judged",
  after_error="after a wrong step",
)
# What the samples show of the PRM, and where they stand in the table of all.
_SAMPLES = {
  "missed": ("fooled", "the PRM misses the first error"),
  "false_alarm": ("wrong", "the PRM doubts a right step"),
  "right": ("right", "it finds the first error, or rightly doubts nothing"),
  "lucky": ("luck", "the answer is right after a wrong step"),
}


def page(results: Mapping[str, Any]) -> result_page.Page:
  """Returns the page.

  Args:
    results: The content of results.json. A further mapping `step_METRIC:
      {model: value}` is one more column.
  """
  top = results["n"][-1]
  curves = _labelled(results["accuracy"])
  ranges = _labelled(results["interval"])
  named = dict(n=results["n"], accuracy=curves, interval=ranges, paired={})
  return result_page.Page(
    f"Best of {top}: judging the steps against judging the answer",
    summary(results),
    [
      result_page.Tile(
        _LABELS[name],
        f"{_percent(results['accuracy'][name][-1])} %",
        " to ".join(map(_percent, results["interval"][name][-1])),
      )
      for name in _TILES
      if name in results["accuracy"]
    ],
    [
      result_page.Section(
        "Best of N",
        "Each method chooses one of N samples, or one answer; bands are 95 %"
        " intervals over the problems, for this one training. Another seed or"
        " processor trains other models. The PRM's best of N may then fall at"
        " large N, where one wrong sample that it scores high is enough; its"
        " weighted vote is wrong only if many such samples share an answer"
        " (eight seeds: experiments/README.md).",
        [result_figures.best_of_n(results["n"], curves, ranges, "")],
        result_rows.of_best_of_n(named),
        [result_page.Fact(*x) for x in _TERMS.items()],
      ),
      result_page.Section(
        "Differences on the same problems",
        "Of accuracies, with paired 95 % intervals. If the interval"
        " includes 0, no difference is shown.",
        table=tables.Table(
          dict(points=tables.Column("difference", unit="points")),
          [
            (
              _paired_label(name),
              dict(points=tables.Number(x["mean"], x["low"], x["high"])),
            )
            for name, x in results["paired"].items()
          ],
        ),
      ),
      _step_scores(results),
      result_page.Section(
        "Right answer, wrong step",
        "Of the solutions that each model picks and whose answer is right, the"
        " share with at least one wrong step.",
        table=tables.Table(
          dict(share=tables.Column("with a wrong step")),
          [
            (name, dict(share=tables.Number(share)))
            for name, share in _labelled(
              results["false_positive_share"]
            ).items()
          ],
        ),
      ),
      result_page.Section(
        "Solutions, step by step",
        "Each name leads to samples with the scores of their steps.",
        facts=[
          result_page.Fact(name, text, f"#samples?model=prm&show={kind}")
          for kind, (name, text) in _SAMPLES.items()
        ],
        note="Of the samples that these pages hold; of a kind there may be none.",
      ),
      result_page.made(results["run"], _seconds(results)),
    ],
  )


# --- Sentences --------------------------------------------------------------


def summary(results: Mapping[str, Any]) -> str:
  """Returns two plain sentences: PRM against ORM, and against majority.

  The PRM wins only if the paired 95 % interval lies above 0.

  Args:
    results: The content of results.json.
  """
  ns, accuracy = results["n"], results["accuracy"]
  best, best_n = max(zip(accuracy["prm"], ns, strict=True), key=lambda x: x[0])
  fall = ""
  if best > results["interval"]["prm"][-1][1]:
    fall = (
      "; and more samples do not always help the PRM, which was at"
      f" {_percent(best)} % with {best_n}"
    )
  prm, orm, majority = (
    _percent(accuracy[name][-1]) for name in ("prm", "orm", "majority")
  )
  return (
    f"With {ns[-1]} samples to choose from, the PRM picks a right answer for"
    f" {prm} % of the problems and the ORM for {orm} %:"
    f" {_compared(results, 'orm')}. Majority vote over the same samples gets"
    f" {majority} %: {_compared(results, 'majority')}{fall}."
  )


def _compared(results: Mapping[str, Any], other: str) -> str:
  """Returns which is ahead at the largest N, with the paired interval."""
  pair = results["paired"][f"prm_minus_{other}_at_{results['n'][-1]}"]
  mean, low, high = (_points(pair[k]) for k in ("mean", "low", "high"))
  ends, size = f"(95 % interval {low} to {high})", _percent(abs(pair["mean"]))
  if pair["low"] > 0:
    return f"the PRM is ahead by {size} points {ends}"
  if pair["high"] < 0:
    return f"the PRM does not win, it is behind by {size} points {ends}"
  return (
    f"the PRM does not win, its difference of {mean} points can't be told from"
    f" 0 {ends}"
  )


def _percent(share: float) -> str:
  return f"{100 * share:.1f}"


def _points(share: float) -> str:
  """Returns a difference of shares in percentage points, with its sign."""
  text = f"{100 * share:+.1f}"
  return "0.0" if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


# --- Sections ---------------------------------------------------------------


def _label(name: str) -> str:
  return _LABELS.get(name, name.replace("_", " "))


def _labelled(values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns values by labels instead of names, the known ones first."""
  names = [*(x for x in _LABELS if x in values), *values]
  return {_label(name): values[name] for name in names}


def _paired_label(name: str) -> str:
  """Returns "PRM - ORM, N = 4" for "prm_minus_orm_at_4"."""
  sides = [side.partition("_at_")[::2] for side in name.split("_minus_")]
  minus = " \N{MINUS SIGN} "
  if len(sides) == 2 and sides[1][1] and not sides[0][1]:
    models = minus.join(_label(model) for model, _ in sides)
    return f"{models}, N = {sides[1][1]}"
  return minus.join(_label(m) + f" at N = {n}" * bool(n) for m, n in sides)


def _step_scores(results: Mapping[str, Any]) -> result_page.Section:
  """Returns pictures of reliability, and a table of metrics."""
  measured = {
    key.removeprefix("step_"): _labelled(values)
    for key, values in results.items()
    if key.startswith("step_")
  }
  for name, counts in results["calibration_steps"].items():
    for kind, num in counts.items():
      measured.setdefault(kind, {})[_label(name)] = num
  columns = {
    name: tables.Column(_MEASURES.get(name, name), is_share=False)
    for name in measured
  }
  models = dict.fromkeys(itertools.chain(*measured.values()))
  rows = [
    (
      model,
      {
        name: tables.Number(values[model])
        for name, values in measured.items()
        if model in values
      },
    )
    for model in models
  ]
  return result_page.Section(
    "Can the step scores be believed?",
    "A score is the probability that the solution is right so far. That holds"
    " for judged steps only: most PRMs learn nothing about the steps after a"
    " first error, so they judge no step after their own first score below"
    f" {schema.THRESHOLD}. Each point is a bin of judged steps; on the dashed"
    " line the score means what it says: of steps scored 0.8, eight in ten are"
    " right.",
    [
      figures.Panel(
        *(name, "mean score of the bin", "share of right steps, %"),
        result_figures.reliability(name, bins),
        holds=(0, 1),
        has_diagonal=True,
      )
      for name, bins in _labelled(results["reliability"]).items()
    ],
    tables.Table(columns, rows),
    note="The curves, Brier and ECE count the judged steps up to the first wrong"
    " one. Left out are the steps that the model was not trained to judge, and"
    " those after a wrong step, of which nobody can say whether they are right."
    " AUROC counts all steps up to the first wrong one: it is the chance that a"
    " right step scores above a wrong one (1 is best, 0.5 is a coin). Brier: mean"
    " squared error of the score; ECE: mean gap between score and share (0 is"
    " best for both).",
  )


def _seconds(results: Mapping[str, Any]) -> list[result_page.Fact]:
  """Returns the time of each phase, their sum and the peak memory."""
  seconds = results["seconds"]
  seconds = seconds | dict(total=sum(seconds.values()))
  facts = [
    result_page.Fact(_label(k), _duration(v)) for k, v in seconds.items()
  ]
  memory = f"{results['peak_rss_gib']:.2f} GiB"
  return [*facts, result_page.Fact("peak memory", memory)]


def _duration(seconds: float) -> str:
  minutes, rest = divmod(round(seconds), 60)
  return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"
