"""How much do the demo's numbers change with its seed, and why do they fall?

Command:  python experiments/demo_seeds.py
          [--output=docs/results/demo_seeds.json] [--seeds=0,1,2,3,4,5,6,7]
          [--workdir=runs/demo_seeds] [--table]
Hardware, time and result: see experiments/README.md.

`prm-jax demo` on each seed, in a folder of its own; one that is there and whole
isn't run again. A seed draws its own problems, solutions and parameters. Its
point has the demo's curves, and its errors, by kind and by how many training
solutions have the very same wrong line first: how many test samples have it,
how many of these the PRM calls right, and how many are its wrong picks among
all samples of a problem. --table prints Markdown. Next to the output is the
picture of the curves: means over seeds, and bands from the least to the
greatest of them.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
import itertools
import json
import logging
import pathlib
import re
from typing import Any

import labelling_testbed as testbed
import numpy as np

from prm_jax import schema
from prm_jax.demo import default_config
from prm_jax.demo import demo
from prm_jax.evaluation import figures
from prm_jax.evaluation import result_figures
from prm_jax.reports import figure_files
from prm_jax.runtime import compilation_cache
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.testbed import arithmetic

OUTPUT = pathlib.Path("docs/results/demo_seeds.json")
WORKDIR = pathlib.Path("runs/demo_seeds")
SEEDS = "0,1,2,3,4,5,6,7"
METHODS = dict(
  prm="PRM, best of N",
  prm_mc="Monte-Carlo PRM, best of N",
  orm="ORM, best of N",
  majority="majority vote",
  weighted_prm="PRM-weighted vote",
  weighted_orm="ORM-weighted vote",
  logprob="highest mean log-probability of the tokens under the policy",
  logprob_min="highest minimum log-probability of a token under the policy",
)
# What a picture calls those whose names are too long for it.
SHORT = dict(
  logprob="mean log-probability", logprob_min="least log-probability"
)
SHOWN_NS = (1, 4, 16, 64, 256)
DIFFERENCES = dict(
  prm_minus_orm_at_256="PRM - ORM",
  prm_minus_majority_at_256="PRM - majority",
  prm_minus_prm_mc_at_256="PRM - Monte-Carlo PRM",
  prm_minus_orm_at_4="PRM - ORM at N = 4",
  prm_at_256_minus_prm_at_64="PRM at 256 - PRM at 64",
)
RARE_COLUMNS = dict(
  samples="test samples",
  missed="of them called right by the PRM",
  picked="its wrong picks among 256",
)
KIND_COLUMNS = dict(trained="training solutions") | RARE_COLUMNS
# From this score on, the PRM calls a solution right.
CALLED_RIGHT = 0.5
RIGHT_THROUGHOUT = "none"
# The least number of training solutions with the same wrong line -> its name.
RARE = {100: "100 or more", 10: "10 to 99", 1: "1 to 9", 0: "none"}
_LINE = re.compile(r"\w+ ([0-7]) ([-+*]) ([0-9]) = ([0-7])")


def kind_of_error(solution: schema.Solution) -> str:
  """Returns what is wrong with the first wrong step of a judged solution."""
  assert solution.labels is not None
  at = schema.first_error(solution.labels)
  value, turns = arithmetic.parse(solution.problem)
  if at < 0:
    return RIGHT_THROUGHOUT if solution.outcome else "ends before its answer"
  step = solution.steps[at]
  if at >= len(turns):
    return "a line after the last turn" if _LINE.fullmatch(step) else "answer"
  for sign, n in turns[:at]:
    value = arithmetic.turn(value, sign, n)
  sign, n = turns[at]
  line = _LINE.fullmatch(step)
  if line is None:
    early = arithmetic.stated([step]) is not None
    return "an answer before the last turn" if early else "no line of the form"
  if line.groups()[:3] != (str(value), sign, str(n)):
    return "another turn than the problem's"
  confused = arithmetic.turn(value, arithmetic.CONFUSED[sign], n)
  return "sign taken for another" if line[4] == str(confused) else "result"


def point(workdir: pathlib.Path) -> dict[str, Any]:
  """Returns what a whole demo came to, and its errors by kind."""
  results = files.read_json(workdir / "results.json")
  accuracy = {
    name: [round(x, 5) for x in curve]
    for name, curve in results["accuracy"].items()
  }
  kept = ("n", "paired", "step_auroc", "false_positive_share", "policy")
  more = ("seconds", "peak_rss_gib")
  return dict(
    seed=results["seed"],
    accuracy=accuracy,
    **{name: results[name] for name in (*kept, *more)},
    errors=errors_of(workdir),
    machine=results["run"]["machine"],
    revision=results["run"]["versions"]["revision"],
  )


def errors_of(workdir: pathlib.Path) -> dict[str, dict[str, dict[str, int]]]:
  """Returns counts of test samples with an error, by its kind and how rare.

  samples: those with the error first; missed: those of them that the PRM scores
  CALLED_RIGHT or higher by the minimum; picked: those that are the PRM's wrong
  pick among all samples of a problem, ties by their share; trained: training
  solutions of that kind.
  """
  lines: collections.Counter[str] = collections.Counter()
  by: dict[str, dict[str, collections.Counter[str]]] = {
    "kind": collections.defaultdict(collections.Counter),
    "rare": collections.defaultdict(collections.Counter),
  }
  for s in _solutions(workdir / "solutions.jsonl"):
    by["kind"][kind_of_error(s)]["trained"] += 1
    lines[wrong_line(s)] += 1
  rows = itertools.groupby(
    _solutions(workdir / "samples.jsonl"), lambda s: s.problem
  )
  for _, group in rows:
    samples = list(group)
    logits = np.array([min(s.extra["step_logits"]["prm"]) for s in samples])
    highest = logits == logits.max()
    for s, share in zip(samples, highest / highest.sum(), strict=True):
      kind = kind_of_error(s)
      if kind == RIGHT_THROUGHOUT:
        continue
      seen = lines[wrong_line(s)] if schema.first_error(s.labels) >= 0 else 0
      counts = dict(
        samples=1,
        missed=min(s.extra["step_scores"]["prm"]) >= CALLED_RIGHT,
        picked=0.0 if s.outcome else float(share),
      )
      by["kind"][kind].update(counts)
      by["rare"][next(name for n, name in RARE.items() if seen >= n)].update(
        counts
      )
  return {
    grouping: {name: dict(counts) for name, counts in of_group.items()}
    for grouping, of_group in by.items()
  }


def wrong_line(solution: schema.Solution) -> str:
  """Returns the first wrong line of a judged solution without its first word.

  The line before it is part of it: a line may be wrong by what it goes on from.
  """
  assert solution.labels is not None
  at = schema.first_error(solution.labels)
  if at < 0:
    return ""
  given = solution.problem.split()[2] if at == 0 else solution.steps[at - 1][-1]
  return f"{given}: {solution.steps[at].partition(' ')[2]}"


def _solutions(path: pathlib.Path) -> Iterator[schema.Solution]:
  """Yields judged solutions; those of samples.jsonl have scores in extra."""
  with path.open(encoding="utf-8") as f:
    for line in f:
      record = json.loads(line)
      scores = {
        k: record[k] for k in ("step_scores", "step_logits") if k in record
      }
      yield arithmetic.judge(
        schema.Solution(
          record["id"],
          record["problem"],
          tuple(record["steps"]),
          extra=scores,
        )
      )


def figure(points: Sequence[Mapping[str, Any]]) -> figures.Figure:
  """Returns the curves: means over seeds, and their range."""
  curves = {
    (METHODS | SHORT).get(name, name): np.array(
      [p["accuracy"][name] for p in points]
    )
    for name in points[0]["accuracy"]
  }
  panel = result_figures.best_of_n(
    points[0]["n"],
    {name: x.mean(0).tolist() for name, x in curves.items()},
    {
      name: np.stack([x.min(0), x.max(0)], 1).tolist()
      for name, x in curves.items()
    },
    f"means of {len(points)} seeds; bands from the least to the greatest",
  )
  return figures.Figure("Best of N on the testbed", [panel])


def table(points: Sequence[Mapping[str, Any]]) -> str:
  """Returns the curves, the differences and the errors, over seeds."""
  if not points:
    return "no points yet"
  ns = points[0]["n"]
  shown = [n for n in SHOWN_NS if n in ns]
  curves = [
    (
      name,
      *(
        _percent([p["accuracy"][key][ns.index(n)] for p in points])
        for n in shown
      ),
    )
    for key, name in METHODS.items()
  ]
  differences = [
    (
      name,
      testbed.mean([100 * p["paired"][key]["mean"] for p in points]),
      f"{sum(p['paired'][key]['low'] > 0 for p in points)},"
      f" {sum(p['paired'][key]['high'] < 0 for p in points)}",
    )
    for key, name in DIFFERENCES.items()
    if key in points[0]["paired"]
  ]
  kinds = dict.fromkeys(
    k for p in points for k in p["errors"]["kind"] if k != RIGHT_THROUGHOUT
  )
  errors = [
    [(key, *(_text(_sum(points, by, key, x)) for x in columns)) for key in keys]
    for by, keys, columns in (
      ("kind", kinds, KIND_COLUMNS),
      ("rare", RARE.values(), RARE_COLUMNS),
    )
  ]
  heads = (
    ("N", *map(str, shown)),
    ("points", "mean [least, most]", "seeds above 0, below 0, at 95 %"),
    ("first error", *KIND_COLUMNS.values()),
    ("training solutions with the same wrong line", *RARE_COLUMNS.values()),
  )
  return "\n\n".join(
    testbed.markdown([head, *rows])
    for head, rows in zip(heads, (curves, differences, *errors), strict=True)
  )


def _percent(values: Sequence[float]) -> str:
  return testbed.mean(values, 100)


def _sum(points, by: str, key: str, column: str) -> int:
  return sum(p["errors"][by].get(key, {}).get(column, 0) for p in points)


def _text(count: float) -> str:
  return f"{count:,}" if isinstance(count, int) else f"{count:.1f}"


@testbed.exit_on_input_error()
def main() -> None:
  parser = testbed.parser_of(__doc__.splitlines()[0], OUTPUT, WORKDIR, SEEDS)
  args = parser.parse_args()
  if args.table:
    print(table(files.read_json(args.output)["points"]))
    return
  outputs.check(dict(output=args.output))
  details = environment.describe(default_config.get_config())
  compilation_cache.enable()
  logging.basicConfig(format="%(message)s", force=True)
  logging.getLogger("prm_jax").setLevel(logging.INFO)
  wanted = testbed.numbers(args.seeds)
  points = [
    p
    for p in testbed.read_points(args.output, details["config"])
    if p["seed"] not in wanted
  ]
  for seed in wanted:
    workdir = args.workdir / str(seed)
    if not (workdir / "results.json").exists():
      demo.Demo(workdir, seed).run()
    points = sorted([*points, point(workdir)], key=lambda p: p["seed"])
    details["command"] = testbed.command_of(points, (), args, parser)
    files.write_json(args.output, dict(points=points, **details))
  figure_files.write(args.output.with_suffix(".svg"), figure(points))
  print(table(points))


if __name__ == "__main__":
  main()
