r"""Every verdict on real answers, and which of them a change moves.

    python benchmarks/grades.py --output=before.jsonl
    python benchmarks/grades.py --output=after.jsonl --against=before.jsonl

The pairs: the `pred` and the stated answer of each candidate of the GSM8K pool
against its gold answer (data/best_of_n), and MATH-500's answers against
themselves in three spellings. With `--against`, each verdict that differs is
printed: grader, verdict before and after, the answer, the reference. Read them
all: none may have been right.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
import gzip
import json
import os
import pathlib
import re
import time

from prm_jax.grading import pool
from prm_jax.text import answers

_PLAIN = (
  (r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"(\1)/(\2)"),
  (r"\\[dt]?frac\s*(\w)\s*\{?(\w+)\}?", r"(\1)/(\2)"),
  (r"\\sqrt\s*\{([^{}]*)\}", r"sqrt(\1)"),
  (r"\\sqrt\s*(\w)", r"sqrt(\1)"),
  (r"\^\{?\\circ\}?", " degrees"),
  (r"\\(?:text|mbox)\{([^{}]*)\}", r"\1"),
  (r"\\(?:left|right|[!,;$])", ""),
  (r"\\(pi|infty|cup|pm|cot|in)\b", r"\1"),
)


def spellings(answer: str) -> Iterator[tuple[str, str]]:
  """Yields names of spellings and the answer in each."""
  tex = re.sub(r"\\frac(?=[{ \d])", r"\\dfrac", answer)
  tex = re.sub(r"(?<=[0-9a-z}]) *([+]) *", r"\\, \1 ", tex)
  yield "tex", rf"\( \boxed{{{tex}}} \)"
  plain = answer
  for pattern, new in _PLAIN * 2:
    plain = re.sub(pattern, new, plain)
  yield "plain", plain
  yield "moved", _moved(answer)


def _moved(answer: str) -> str:
  r"""Returns 2/3 as 4/6, 12 as 12.0, a + b as b + a, others within \text{}."""
  if match := re.fullmatch(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}", answer):
    sign, top, bottom = match.groups()
    return rf"{sign}\frac{{{2 * int(top)}}}{{{2 * int(bottom)}}}"
  if re.fullmatch(r"-?\d+", answer):
    return f"{answer}.0"
  if match := re.fullmatch(r"([^-+{}()]+) ?\+ ?([^-+{}()]+)", answer):
    return f"{match[2]} + {match[1]}"
  if re.fullmatch(r"-?\d+,-?\d+", answer):
    return ", ".join(reversed(answer.split(",")))
  return rf"{answer} \text{{ }}"


def pairs(data: pathlib.Path) -> Iterator[tuple[str, str, str]]:
  """Yields where a pair is from, the given answer, the reference."""
  with gzip.open(data / "best_of_n/gsm8k_pool_0000_0999.jsonl.gz", "rt") as f:
    for problem in map(json.loads, f):
      for candidate in problem["candidates"]:
        if candidate["pred"] is not None:
          yield "pred", candidate["pred"], problem["gold"]
        if (stated := answers.extract(candidate["text"])) is not None:
          yield "stated", stated, problem["gold"]
  with gzip.open(data / "math500/math500.jsonl.gz", "rt") as f:
    for answer in [json.loads(line)["answer"] for line in f]:
      for name, spelling in spellings(answer):
        yield name, spelling, answer


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--output", required=True)
  parser.add_argument("--against", help="the output of another revision")
  parser.add_argument(
    "--data", default=os.environ.get("PRM_JAX_DATA", "../shared/data")
  )
  args = parser.parse_args()
  found = list(dict.fromkeys(pairs(pathlib.Path(args.data))))
  verdicts = {}
  for name in pool.GRADERS:
    start = time.perf_counter()
    with pool.Grader(name) as grader:
      grades = grader.grade([(given, gold) for _, given, gold in found])
    for key, grade in zip(found, grades, strict=True):
      verdicts[name, *key] = grade.verdict
    counts = dict(Counter(grade.verdict for grade in grades))
    print(f"{name}: {counts} in {time.perf_counter() - start:.1f} s")
  with open(args.output, "w") as f:
    for key, verdict in verdicts.items():
      print(json.dumps([*key, verdict]), file=f)
  if args.against:
    with open(args.against) as f:
      before = {tuple(key): old for *key, old in map(json.loads, f)}
    changed = {k: v for k, v in verdicts.items() if before.get(k, v) != v}
    print(
      f"{len(changed)} verdicts changed, {len(before.keys() - verdicts)}"
      f" pairs are gone, {len(verdicts.keys() - before)} new"
    )
    for key, verdict in changed.items():
      print(f"{key[0]} {before[key]} -> {verdict}: {key[2]!r} for {key[3]!r}")


if __name__ == "__main__":
  main()
