"""What is made of the results of searches: comparisons, thresholds, chances."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import acceptance
from prm_jax.evaluation import search_curves
from prm_jax.jobs import journal
from prm_jax.jobs import journal_head
from prm_jax.reports import search_plot
from prm_jax.runtime import checks
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.search import adaptive
from prm_jax.search import results


def read_results(path: files.PathLike) -> list[schema.Solution]:
  """Returns what `prm-jax search` wrote.

  Args:
    path: The file.

  Raises:
    InputError: A line isn't the result of a search, or there is none.
  """
  found = results.read(path)
  if not found:
    raise errors.InputError(
      f"{path}: holds no result; give a file that `prm-jax search` wrote"
    )
  return found


def compare(args: argparse.Namespace) -> None:
  named: dict[str, str] = {}
  for text in args.input:
    name, equals, path = text.partition("=")
    if not equals:
      name, path = pathlib.Path(text).name.partition(".")[0], text
    if name in named:
      raise errors.InputError(
        f"--input={text}: the name {name!r} comes twice; give NAME=FILE with"
        " another name"
      )
    named[name] = path
  outputs.check(dict(output=args.output, plot=args.plot), named.values())
  searches = {name: read_results(path) for name, path in named.items()}
  compared = search_curves.compare(searches, seed=args.seed)
  print(search_curves.table(compared))
  details = dict(
    command=environment.command(),
    versions=environment.versions(),
    machine=environment.machine(),
  )
  files.write_json(args.output, compared | dict(run=details))
  print(f"results: {args.output}")
  if args.plot is not None:
    with files.replacing(args.plot, "wb") as f:
      f.write(search_plot.draw(compared))
    print(f"plot: {args.plot}")


# --- Chances and thresholds -------------------------------------------------


def calibrate(args: argparse.Namespace) -> None:
  outputs.check(dict(output=args.output), [args.input])
  scores, right = _samples(args.input, read_results(args.input), "log_odds")
  fewest = min(map(len, scores))
  if not 1 <= args.pilot < fewest:
    raise errors.InputError(
      f"--pilot={args.pilot}: a problem has {fewest} samples; give 1 or more,"
      " and fewer than that"
    )
  shares = [sum(row[args.pilot :]) / len(row[args.pilot :]) for row in right]
  fitted = adaptive.fit(
    [row[: args.pilot] for row in scores], shares, quantile=args.quantile
  )
  record = dict(
    calibration=dataclasses.asdict(fitted),
    problems=len(scores),
    pilot=args.pilot,
    run=dict(command=environment.command()),
  )
  files.write_json(args.output, record)
  print(
    f"{args.output}: chance of success = sigmoid({fitted.intercept:.3f} +"
    f" {fitted.slope:.3f} * mean log-odds), the {fitted.quantile:g} quantile of"
    f" {len(scores):,} problems"
  )


def read_calibration(path: files.PathLike) -> adaptive.Calibration:
  """Returns what `prm-jax search calibrate` wrote.

  Args:
    path: The file.

  Raises:
    InputError: It isn't such a file.
  """
  values = files.read_json(path).get("calibration")
  names = {field.name for field in dataclasses.fields(adaptive.Calibration)}
  if (
    not isinstance(values, Mapping)
    or set(values) != names
    or not all(checks.is_a(x, float) for x in values.values())
  ):
    raise errors.InputError(
      f"{path}: holds no calibration; give a file that `prm-jax search"
      " calibrate` wrote"
    )
  return adaptive.Calibration(**values)


@dataclasses.dataclass(frozen=True)
class Threshold:
  """The score from which a solution is accepted.

  Args:
    value: The score.
    attempts: The attempts that it was chosen for; None isn't known.
    models: What it was chosen with, as `models_of` says; None isn't known.
  """

  value: float
  attempts: int | None = None
  models: Mapping[str, Any] | None = None


def choose(args: argparse.Namespace) -> None:
  outputs.check(dict(output=args.output), [args.input])
  found = read_results(args.input)
  scores, right = _samples(args.input, found, "score", needs_answer=True)
  points = acceptance.curve(
    *(scores, right, args.attempts), confidence=args.confidence, seed=args.seed
  )
  chosen = acceptance.choose(points, args.precision)
  if chosen is None:
    best = max((p.lower for p in points if p.lower is not None), default=0.0)
    raise errors.InputError(
      f"--precision={args.precision:g}: no threshold reaches it with a"
      f" confidence of {args.confidence:g} on {len(scores):,} problems (the best"
      f" lower bound is {best:.3f}); give a lower one, more problems, or a"
      " better scorer"
    )
  files.write_json(
    args.output,
    dict(
      threshold=chosen.threshold,
      attempts=args.attempts,
      precision=args.precision,
      confidence=args.confidence,
      problems=len(scores),
      models=_models_of_samples(args.input, found),
      chosen=dataclasses.asdict(chosen),
      curve=[dataclasses.asdict(point) for point in points],
      run=dict(command=environment.command()),
    ),
  )
  print(
    f"{'threshold':>10}{'coverage':>10}{'precision':>11}{'lower':>8}{'samples':>9}"
  )
  step = max(1, len(points) // 12)
  shown = [*points[::step], points[-1]]
  for point in dict.fromkeys([*shown, chosen]):
    mark = "  <- chosen" if point is chosen else ""
    lower = 0.0 if point.lower is None else point.lower
    print(
      f"{point.threshold:>10.4f}{point.coverage:>10.1%}"
      f"{point.precision or 0:>11.1%}{lower:>8.1%}{point.samples:>9.2f}{mark}"
    )
  print(f"results: {args.output}")


def _models_of_samples(
  path: files.PathLike, samples: Sequence[schema.Solution]
) -> dict[str, Any] | None:
  """Returns `models_of` what drew and scored samples; None if unknown.

  What else than the types is known is in the journal beside them.
  """
  types = [s.extra["bill"].get("compute_dtype") for s in samples]
  if any(x != types[0] for x in types):
    raise errors.InputError(
      f"{path}: holds samples of models that computed in different types; give"
      " those of one search"
    )
  claim = journal.claim_of(path, samples, "tree")
  if claim is None or not claim.keys() >= {"policies", "scorer", "aggregate"}:
    claim = None
    compared = "only the types of models are" if types[0] else "no model is"
    print(
      f"{path}: no journal of these samples is beside it: {compared} compared by"
      " verify run"
    )
  return models_of(types[0] or {}, claim) or None


def models_of(
  types: Mapping[str, str | None], claim: Mapping[str, Any] | None
) -> dict[str, Any]:
  """Returns by which models samples were drawn and scored, as plain data.

  Args:
    types: The type that each model computes in, of those of which it is known.
    claim: What the search depends on; None isn't known. The seed of samples
      makes them no others.
  """
  of = dict(claim["policies"], scorer=claim["scorer"]) if claim else {}
  models: dict[str, Any] = {
    name: {k: v for k, v in of.get(name, {}).items() if k != "seed"}
    | ({"compute_dtype": types[name]} if name in types else {})
    for name in dict(types) | of
  }
  return models | (dict(aggregate=claim["aggregate"]) if claim else {})


def check_models(
  threshold: Threshold,
  path: str,
  types: Mapping[str, str | None],
  claim: Mapping[str, Any],
) -> None:
  """Refuses a threshold that was chosen with other models, if that is known.

  Args:
    threshold: The threshold.
    path: Its file.
    types: See models_of.
    claim: See models_of.

  Raises:
    InputError: A model is another one, is sampled in another way, or computes
      in another type.
  """
  if threshold.attempts is not None and threshold.models is None:
    print(f"{path}: it isn't known with which models it was chosen")
  before = threshold.models or {}
  known = claim if "aggregate" in before else None
  # Samples of earlier versions don't say it.
  typed = {
    name: computed
    for name, computed in types.items()
    if isinstance(of := before.get(name), Mapping) and "compute_dtype" in of
  }
  different = before and journal_head.differences(
    before, models_of(typed, known)
  )
  if different:
    raise errors.InputError(
      f"--threshold={path}: was chosen with other models: {'; '.join(different)};"
      " choose it again with these, or give the number alone,"
      f" --threshold={threshold.value!r}"
    )


def read_threshold(text: str) -> Threshold:
  """Returns a threshold.

  Args:
    text: A number, or the file that `prm-jax verify choose` wrote.

  Raises:
    InputError: It is neither.
  """
  try:
    return Threshold(float(text))
  except ValueError:
    record = files.read_json(text)
  threshold, attempts = record.get("threshold"), record.get("attempts")
  models = record.get("models")
  if not (
    isinstance(threshold, float | int)
    and isinstance(attempts, int)
    and isinstance(models, Mapping | None)
    and checks.is_a(threshold, float)
  ):
    raise errors.InputError(
      f"{text}: holds no threshold; give a number, or a file that `prm-jax"
      " verify choose` wrote"
    )
  return Threshold(float(threshold), int(attempts), models)


def _samples(
  path: files.PathLike,
  found: Sequence[schema.Solution],
  field: str,
  *,
  needs_answer: bool = False,
) -> tuple[list[list[float]], list[list[bool]]]:
  """Returns a field of each problem's samples, and whether each is right.

  needs_answer: Whether the field is -1 for a sample that states no answer.
  """
  values: list[list[float]] = []
  right: list[list[bool]] = []
  for s in found:
    nodes, rounds = s.extra["tree"]["nodes"], s.extra["tree"]["rounds"]
    # The first round draws, the second has the candidates.
    if len(rounds) != 2 or any(node["parent"] for node in nodes):
      raise errors.InputError(
        f"{path}: problem {s.id!r} was searched step by step, or its samples"
        " were chosen by their scores; give what `prm-jax search best_of_n`"
        " wrote"
      )
    candidates = s.extra["candidates"]
    outcomes: Sequence[Any] = [c["outcome"] for c in candidates]
    if None in outcomes or not outcomes:
      raise errors.InputError(
        f"{path}: problem {s.id!r} has samples of unknown outcome; give problems"
        " with answers"
      )
    values.append(
      [
        -1.0
        if needs_answer and c["answer"] is None
        else nodes[c["node"] - 1][field]
        for c in candidates
      ]
    )
    right.append([outcome is True for outcome in outcomes])
  return values, right
