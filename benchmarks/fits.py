"""What fits one chip: each task of 0.5B, 1.5B and 7B models, compiled.

  python benchmarks/fits.py --output=FILE.json [--chips="h100:1;v5e:1x1"]
      [--models=0.5B] [--tasks="score;search"] [--minutes=10]
  python benchmarks/fits.py --output=FILE.json --table

Nothing is run: the programs of each command are compiled for chips that aren't
here, as `prm-jax plan` does, and the compiler says what they need. Each result is
written as its compilation ends, and the same command compiles what is missing.
--table prints the table of docs/what_fits.md.

A task needs what the largest of its programs needs, with everything else that
is in memory at that time. An update's rows are doubled until it doesn't fit: with
the least rematerialisation with which one row fits, and with the most.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import multiprocessing
from multiprocessing import connection
import pathlib
import re
import time
from typing import Any

import fit_programs
import fit_updates
import jax
import results

from prm_jax.models import model_config as model_config
from prm_jax.plan import topologies
from prm_jax.runtime import files

# The columns of the table, and the chip that each is compiled for.
CHIPS = {
  "24 GB": "l4:1",
  "40 GB": "a100-40:1",
  "80 GB": "h100:1",
  "141 GB": "h200:1",
  "v5e": "v5e:1x1",
  "v6e": "v6e:1x1",
  "v5p": "v5p:1x1x1",
}
# A program needs about the same on chips of one maker: a column without results
# of its own takes these; on TPUs those of training only with a MARGIN.
LIKE = {
  "a100-40:1": "h200:1",
  "h100:1": "h200:1",
  "v6e:1x1": "v5e:1x1",
  "v5p:1x1x1": "v5e:1x1",
}
# A TPU's updates need at most this much more or less than a GPU's, as far as both
# were compiled.
MARGIN = 1.1
INFERENCE = {
  "score": fit_programs.score,
  "sample, label": fit_programs.sample,
  "search": fit_programs.search,
}
TRAINING = {"LoRA": True, "whole": False}
RL = {"RL, LoRA": True, "RL, whole": False}
TASKS = (*INFERENCE, *TRAINING, *RL)
REMAT = ("none", "dots", "full")
MOST_ROWS = 64

Record = dict[str, Any]
# Returns the record of a part, which it compiles if that isn't known.
Measure = Callable[[fit_programs.Part], Record]


def fits(records: Iterable[Record], memory: int) -> bool:
  """Returns whether all programs are compiled and need no more than a chip has."""
  most = need(records)
  return most is not None and most <= memory


def need(records: Iterable[Record]) -> int | None:
  """Returns the bytes that some programs need; None if one isn't known."""
  needs = [record["need"] for record in records]
  return None if None in needs or not needs else max(needs)


def record_of(part: fit_programs.Part) -> Record:
  """Compiles a part and returns what it needs."""
  begun = time.monotonic()
  found = part.compile()
  refused = re.search(r"needs ([\d.]+) ([KMGT])iB", found.refused)
  peak = found.peak
  if refused is not None:
    peak = int(float(refused[1]) * 1024 ** (1 + "KMGT".index(refused[2])))
  return dict(
    need=None if peak is None else peak + part.held,
    held=part.held,
    arguments=found.arguments,
    refused=found.refused,
    rows=part.rows,
    remat=part.remat,
    compile_s=round(time.monotonic() - begun, 1),
  )


def compile_task(
  task: str,
  target: fit_programs.Target,
  model: model_config.ModelConfig,
  measure: Measure,
  most_rows: int = MOST_ROWS,
) -> None:
  """Measures the programs of a task on a chip, as many as tell what fits.

  Args:
    task: One of TASKS.
    target: The chip.
    model: The model.
    measure: Measures a program.
    most_rows: The most rows of an update.
  """
  memory = target.topology.chip.memory
  if task in INFERENCE:
    for part in INFERENCE[task](target, model):
      measure(part)
  elif task in RL:
    for remat in REMAT:
      parts = fit_updates.rl(target, model, lora=RL[task], remat=remat)
      if fits([measure(part) for part in parts], memory):
        return
  else:
    is_found = False
    for remat in REMAT:
      if is_found and remat != REMAT[-1]:
        continue
      rows = 1
      while rows <= most_rows:
        part = fit_updates.train(
          target, model, lora=TRAINING[task], rows=rows, remat=remat
        )
        if not fits([measure(part)], memory):
          break
        is_found = True
        rows *= 2


# --- Compiling in a process of its own ---------------------------


def _work(
  pipe: connection.Connection,
  task: str,
  chip: str,
  model: str,
  known: Mapping[str, Record],
  memory_gib: float | None,
  most_rows: int,
) -> None:
  """Sends (name, record) of each program that isn't known."""
  jax.config.update("jax_platforms", "cpu")
  topology = topologies.parse(chip)
  if memory_gib is not None:
    memory = int(memory_gib * topologies.GIB)
    smaller = dataclasses.replace(topology.chip, memory=memory)
    topology = dataclasses.replace(topology, chip=smaller)
  target = fit_programs.Target(topology, tuple(topologies.devices(topology)))
  records = dict(known)

  def measure(part: fit_programs.Part) -> Record:
    if part.name not in records:
      pipe.send((part.name, None))
      records[part.name] = record_of(part)
      pipe.send((part.name, records[part.name]))
    return records[part.name]

  compile_task(task, target, fit_programs.MODELS[model], measure, most_rows)


def compiled_apart(
  task: str,
  chip: str,
  model: str,
  known: Mapping[str, Record],
  keep: Callable[[str, Record], None],
  limit_s: float,
  memory_gib: float | None = None,
  most_rows: int = MOST_ROWS,
) -> None:
  """Compiles a task's programs in a process that may crash or take too long.

  Args:
    task: One of TASKS.
    chip: The topology.
    model: The name of the model.
    known: The records that are known, by their programs.
    keep: Is called with each further one.
    limit_s: The most seconds of a program.
    memory_gib: The GiB to compare with; None is what the chip has.
    most_rows: The most rows of an update.
  """
  context = multiprocessing.get_context("spawn")
  ours, theirs = context.Pipe(duplex=False)
  words = (theirs, task, chip, model, known, memory_gib, most_rows)
  process = context.Process(target=_work, args=words)
  process.start()
  theirs.close()
  name, why = "", f"not compiled in {limit_s:.0f} s"
  try:
    while ours.poll(limit_s):
      name, record = ours.recv()
      if record is not None:
        keep(name, record)
        name = ""
  except EOFError:
    why = "the compiler's process crashed"
  process.kill()
  process.join()
  if name:
    keep(name, dict(need=None, refused=why, rows=0, remat=""))


# --- The table ---------------------------------------------------


def cell(task: str, records: Sequence[Record], memory: int) -> str:
  """Returns what a table says of a task on a chip.

  Args:
    task: One of TASKS.
    records: Those of its programs.
    memory: The bytes that a program can have there.
  """
  if not records:
    return ""
  if task in INFERENCE:
    return _gib(need(records), memory)
  if task in RL:
    return _rl_cell(records, memory)
  rows = {
    remat: {r["rows"]: r for r in records if r["remat"] == remat}
    for remat in REMAT
  }
  able = [x for x in REMAT if 1 in rows[x] and fits([rows[x][1]], memory)]
  if not able:
    one = rows[REMAT[-1]].get(1)
    return _gib(need([one] if one else []), memory)
  shown = [x for x in (able[0], REMAT[-1]) if rows[x]]
  return ", ".join(
    f"{remat} {_most_rows(rows[remat], memory)}"
    for remat in dict.fromkeys(shown)
  )


def _most_rows(records: Mapping[int, Record], memory: int) -> str:
  """Returns how many rows fit, with a plus if more weren't tried."""
  most = max(n for n, record in records.items() if fits([record], memory))
  return f"{most}" if 2 * most in records else f"{most}+"


def _rl_cell(records: Sequence[Record], memory: int) -> str:
  rest = [r for r in records if not r["remat"]]
  for remat in REMAT:
    update = [r for r in records if r["remat"] == remat]
    if update and fits([*rest, *update], memory):
      return f"{remat}: {_gib(need([*rest, *update]), memory)}"
  if not update:
    return "not compiled"
  return _gib(need([*rest, *update]), memory)


def _gib(bytes_: int | None, memory: int) -> str:
  if bytes_ is None:
    return "not compiled"
  text = f"{bytes_ / topologies.GIB:.1f}"
  return text if bytes_ <= memory else f"no: {text}"


def table(programs: Mapping[str, Record]) -> str:
  """Returns the table of records in Markdown.

  Args:
    programs: The records by task, model, topology and program.
  """
  lines = ["| | " + " | ".join(CHIPS) + " |", "|---" * (len(CHIPS) + 1) + "|"]
  for task in TASKS:
    for model in fit_programs.MODELS:
      cells = []
      for chip in CHIPS.values():
        cells.append(_cell_of(programs, task, model, chip))
      lines.append(f"| {task}, {model} | " + " | ".join(cells) + " |")
  return "\n".join(lines)


def _cell_of(
  programs: Mapping[str, Record], task: str, model: str, chip: str
) -> str:
  found = topologies.parse(chip).chip
  records = _of(programs, task, model, chip)
  is_like = task in INFERENCE or found.gpu is not None
  if not records and chip in LIKE and is_like:
    records = _of(programs, task, model, LIKE[chip])
  if records:
    return cell(task, records, found.memory)
  # By what the largest GPU's program needs, where that is clear.
  other = _of(programs, task, model, CHIPS["141 GB"])
  less, more = int(found.memory / MARGIN), int(found.memory * MARGIN)
  text = cell(task, other, less) if other else ""
  if not text.startswith("no:"):
    return text or "not compiled"
  is_clear = cell(task, other, more).startswith("no:")
  return "no" if is_clear else "not compiled"


def _of(
  programs: Mapping[str, Record], task: str, model: str, chip: str
) -> list[Record]:
  start = f"{task}/{model}/{chip}/"
  return [r for key, r in programs.items() if key.startswith(start)]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--output", type=pathlib.Path, required=True)
  parser.add_argument("--table", action="store_true", help="print the table")
  parser.add_argument("--chips", default=";".join(CHIPS.values()))
  parser.add_argument("--models", default=";".join(fit_programs.MODELS))
  parser.add_argument("--tasks", default=";".join(TASKS))
  parser.add_argument(
    "--minutes", type=float, default=10, help="the most for one program"
  )
  parser.add_argument(
    "--memory_gib",
    type=float,
    help="compile what tells what fits into less memory than the chip has",
  )
  parser.add_argument("--most_rows", type=int, default=MOST_ROWS)
  args = parser.parse_args()
  jax.config.update("jax_platforms", "cpu")  # nothing runs here but compilers
  result = results.provenance("fits.py", args)
  before = files.read_json(args.output) if args.output.exists() else {}
  commands = [*before.get("commands", ()), result.pop("command")]
  result["commands"] = list(dict.fromkeys(commands))
  result["programs"] = before.get("programs", {})
  programs = result["programs"]
  if args.table:
    print(table(programs))
    return
  for chip in args.chips.split(";"):
    for task in args.tasks.split(";"):
      for model in args.models.split(";"):
        start = f"{task}/{model}/{chip}/"
        known = {
          key.removeprefix(start): record
          for key, record in programs.items()
          if key.startswith(start)
        }

        def keep(name: str, record: Record, start: str = start) -> None:
          programs[start + name] = record
          files.write_json(args.output, result)
          gib = (record["need"] or 0) / topologies.GIB
          print(f"{start}{name}: {gib:.2f} {record['refused']}", flush=True)

        limit_s = 60 * args.minutes
        compiled_apart(
          *(task, chip, model, known, keep, limit_s),
          *(args.memory_gib, args.most_rows),
        )
  results.finish(result, args.output)


if __name__ == "__main__":
  results.run(main)
