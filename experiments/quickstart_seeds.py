"""How often docs/quickstart.md ends with a right answer.

  python experiments/quickstart_seeds.py --seeds=20 --output=seeds.json

For each seed the page's code runs up to its best of N, with data and models of
that seed, and then its last block again with other draws. A page of an earlier
commit is given by --page. The output is written after each seed; seeds that it
has aren't run again. README.md has the results.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The answer to the page's last problem, 1 + 2 + 3.
_RIGHT = "Answer: 6"


def run(blocks: list[str], seed: int, draws: int) -> dict[str, Any]:
  """Returns what the page ends with, in the current folder.

  Args:
    blocks: The page's code; the last block draws and chooses.
    seed: The seed of the data and of both models.
    draws: How often the last block runs, with seeds of its own from 1.
  """
  start, start_cpu = time.time(), time.process_time()
  names: dict[str, Any] = {}
  for block in blocks[:-1]:
    block = block.replace("random.Random(0)", f"random.Random({seed})")
    exec(block.replace("common = dict(", f"common = dict(seed={seed},"), names)
  ends = []
  for draw in range(1, draws + 1):
    exec(blocks[-1].replace("seed=1", f"seed={draw}"), names)
    ends.append((names["samples"], names["best"]))
  return dict(
    seed=seed,
    right=[best.steps[-1:] == (_RIGHT,) for _, best in ends],
    right_samples=[
      sum(x.steps[-1:] == (_RIGHT,) for x in samples) for samples, _ in ends
    ],
    wrong=[x.steps for _, x in ends if x.steps[-1:] != (_RIGHT,)],
    agree=names["agree"],
    time_s=round(time.time() - start, 1),
    cpu_s=round(time.process_time() - start_cpu, 1),
  )


def main() -> None:
  """Runs the seeds that the output lacks."""
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  page = ROOT / "docs" / "quickstart.md"
  parser.add_argument("--page", type=pathlib.Path, default=page)
  parser.add_argument("--seeds", type=int, default=20)
  parser.add_argument("--draws", type=int, default=3)
  parser.add_argument("--output", type=pathlib.Path, required=True)
  options = parser.parse_args()
  output = options.output.resolve()
  rows = json.loads(output.read_text()) if output.exists() else []
  text = options.page.read_text()
  blocks = _BLOCK.findall(text[: text.index("## Train on your own labels")])
  for seed in sorted({*range(options.seeds)} - {row["seed"] for row in rows}):
    with tempfile.TemporaryDirectory() as folder:
      os.chdir(folder)
      rows.append(run(blocks, seed, options.draws))
      os.chdir(ROOT)
    output.write_text(json.dumps(rows, indent=1) + "\n")
  right = [x for row in rows for x in row["right"]]
  print(f"{sum(right)} of {len(right)} draws of {len(rows)} seeds end right")


if __name__ == "__main__":
  main()
