"""What a run records: metrics.jsonl, other writers and a progress line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
import functools
import io
import json
import logging
import math
import os
import pathlib
import time
from typing import Any

import tqdm

from prm_jax.runtime import checked_lines
from prm_jax.runtime import distributed
from prm_jax.runtime import files
from prm_jax.runtime import inputs
from prm_jax.runtime import progress
from prm_jax.runtime import terminal
from prm_jax.training import metric_writers

_logger = logging.getLogger(__name__)


class Log:
  """metrics.jsonl, what copies it, and one progress line."""

  def __init__(
    self,
    workdir: pathlib.Path,
    *,
    first: int,
    steps: int,
    every: int = 0,
    tensorboard: bool,
    name: str,
    shown: Sequence[str],
    trackers: Sequence[str] = (),
  ):
    """Opens the files of a run; drops records of steps that are made again.

    Damaged records are set aside and reported, and so are missing ones.

    Args:
      workdir: The folder of metrics.jsonl.
      first: The step that the run resumes from; later records are dropped.
      steps: The number of updates of the whole run.
      every: How often updates are recorded; 0 is never.
      tensorboard: Whether to write TensorBoard files.
      name: The name of the run in the progress line.
      shown: The metrics that the progress line shows; None shows all.
      trackers: Where metrics are also sent, some of metric_writers.TRACKERS.

    Raises:
      InputError: A new run's tracker can't be opened.
    """
    self.tokens, self.name = 0, name
    self._steps, self._first = steps, first
    self._shown = shown
    self._path = path = workdir / "metrics.jsonl"
    kept, dropped = keep_records(
      path, lambda r: r["step"] <= first and (first or r["step"])
    )
    self.records = [r for r in kept if r.get("kind") == "train"]
    self._evaluated = {r["step"] for r in kept if r.get("kind") == "eval"}
    if dropped and not first:
      _logger.warning(
        f"{name}: {workdir} holds {dropped} records but no checkpoint:"
        " training starts again at step 0; fit.checkpoint_every saves more"
        " often",
      )
    recorded = {r["step"] for r in self.records}
    due = range(every, first + 1, every) if every else ()
    missing = [step for step in due if step not in recorded]
    if missing:
      _logger.warning(
        f"{name}: WARNING: {path} lacks the records of updates"
        f" {checked_lines.named(missing)}"
      )
    writes = distributed.is_first()
    paths = (checked_lines.digests_of(path), path)
    self._files = [
      open(x if writes else os.devnull, "a", encoding="utf-8")  # noqa: SIM115
      for x in paths
    ]
    if self._files[0].tell():
      # It ends the digest that a killed process may have left unfinished.
      self._files[0].write("\n")
    self._writers: list[metric_writers.Writer] = []
    if tensorboard and writes:
      board = metric_writers.TensorBoard(workdir / "tensorboard")
      self._writers.append(board)

    def track():
      self._writers += metric_writers.trackers(trackers, workdir)

    distributed.on_first(track)
    self._bar = tqdm.tqdm(
      total=steps,
      initial=first,
      desc=terminal.visible(name, one_line=True),
      unit="step",
      disable=not (writes and progress.has_bar(_logger)),
      leave=False,
    )

  def __enter__(self):
    self._start = time.perf_counter()
    self._since: tuple[int, float] | None = None  # step and time, first update
    return self

  def __exit__(self, error, *_):
    # What couldn't be written before can't be now; that was said.
    for file in self._files:
      with contextlib.suppress(OSError):
        file.close()
    self._bar.close()
    for writer in self._writers:
      writer.close(failed=error is not None)

  def advance(self, step: int) -> None:
    """Notes that an update is made; the first one was compiled before."""
    if self._since is None:
      self._since = step, time.perf_counter()
      progress.restart(self._bar, step)
    else:
      self._bar.update()

  def evaluated(self, step: int) -> bool:
    """Returns whether an evaluation of that step was already recorded."""
    return step in self._evaluated

  def write(self, step: int, kind: str, metrics: Mapping[str, Any]) -> None:
    """Writes a record and reports it.

    A number that isn't finite, such as a metric that this step doesn't define,
    becomes null in the record. Other writers don't get it.

    Raises:
      InputError: The record couldn't be written, by any of the processes.
    """
    values = {k: float(v) for k, v in metrics.items()}
    seconds = time.perf_counter() - self._start
    numbers = dict(step=step, **values)
    if kind == "train":
      numbers["time_s"] = round(seconds, 3)
      numbers["tokens_per_s"] = round(self.tokens / max(seconds, 1e-9), 1)
    finite = {k: v if math.isfinite(v) else None for k, v in numbers.items()}
    record = finite | dict(kind=kind)
    if kind == "train":
      self.records.append(record)
    distributed.on_first(functools.partial(self._append, record))
    named = {f"{kind}/{k}": v for k, v in values.items() if math.isfinite(v)}
    for writer in self._writers:
      writer.write(step, named)
    some = self._shown if kind == "train" and self._shown else values
    # What was skipped is worth a word only where something was.
    shown = " ".join(
      f"{k} {_text(values[k], kind)}"
      for k in some
      if k in values and (values[k] or not k.startswith("skipped_"))
    )
    if self._bar.disable:
      _logger.info(
        f"{self.name} {kind} step {step}/{self._steps} {shown} {self._rate(step)}"
      )
    elif not self._shown:
      loss = checked_lines.metric(values, "loss_nats") or 0
      self._bar.set_postfix_str(f"loss {loss:.4f}")
    elif kind == "train":
      # What fits behind a bar.
      self._bar.set_postfix_str(" ".join(shown.split(" ")[:6]))

  def _rate(self, step: int) -> str:
    """Returns updates per second and the remaining time, in words."""
    first, start = self._since or (step, 0.0)
    if step <= first:
      return "eta unknown" if step < self._steps else "eta 0s"
    rate = (step - first) / max(time.perf_counter() - start, 1e-9)
    return f"{rate:.2f} steps/s eta {(self._steps - step) / rate:.0f}s"

  def _append(self, record: Mapping[str, Any]) -> None:
    text = json.dumps(record)
    # The digest first: a line without one is damaged.
    lines = checked_lines.digest_of(text.encode()), text
    try:
      for file, line in zip(self._files, lines):
        file.write(f"{line}\n")
        file.flush()
    except OSError as e:
      remedy = "make room, and give the same command again"
      raise files.unwritable(self._path, e, remedy) from None


def _text(value: float, kind: str) -> str:
  """Returns a metric as text; in an evaluation nan is one that isn't defined.

  In an update it may also be a loss that isn't finite.
  """
  if kind == "eval" and math.isnan(value):
    return "undefined"
  return f"{value:.4g}"


def keep_records(
  path: pathlib.Path, holds: Callable[[dict[str, Any]], Any]
) -> tuple[list[dict[str, Any]], int]:
  """Drops the records of a file that don't hold, and a torn last line.

  Damaged lines, and records of metrics that `checked_lines.read_metrics` would
  refuse, are appended to NAME.damaged.jsonl. Both are reported.

  Returns:
    The records that are kept, and the number of those that were dropped.
  """
  inputs.check_regular(path)  # to open a pipe would wait for ever
  # One of several processes may already see what the first has begun.
  if not distributed.any_of(path.exists()):
    return [], 0
  kept: list[dict[str, Any]] = []
  content, damaged, lacking = [], [], []
  keys: set[tuple[str, int]] = set()
  last = -math.inf
  dropped = 0
  read = path.read_bytes() if path.exists() else b""
  digests = checked_lines.read_digests(path)
  for line in checked_lines.scan(io.BytesIO(read), digests):
    wanted = _holds(holds, line.record)
    if line.is_torn:
      _logger.warning(
        f"{path}:{line.number}: an unfinished last line is dropped"
      )
    elif line.record is None or wanted is None:
      damaged.append(line)
    elif wanted:
      key = checked_lines.metrics_key(line.record)
      if key is not None:
        if key in keys or key[1] < last:
          damaged.append(line)
          continue
        keys.add(key)
        last = key[1]
      kept.append(line.record)
      content.append(line.content)
      if not line.is_checked:
        lacking.append(checked_lines.digest_of(line.content))
    else:
      dropped += 1
  if damaged:
    _report(path, damaged)

  def rewrite():
    if damaged:
      _set_aside(path, damaged)
    if lacking:  # of a version before digests
      with files.replacing(checked_lines.digests_of(path)) as f:
        f.write("".join(f"{x}\n" for x in lacking))
    # The same bytes as before: a resumed run ends with those of another.
    with files.replacing(path, "wb") as f:
      f.write(b"".join(content))

  distributed.on_first(rewrite)
  return kept, dropped


def _holds(
  holds: Callable[[dict[str, Any]], Any], record: dict[str, Any] | None
) -> bool | None:
  """Returns whether a record holds; None if it lacks what that depends on."""
  try:
    return None if record is None else bool(holds(record))
  except (KeyError, TypeError):
    return None


def _aside(path: pathlib.Path) -> pathlib.Path:
  return path.with_name(f"{path.stem}.damaged{path.suffix}")


def _report(path: pathlib.Path, damaged: Sequence[checked_lines.Line]) -> None:
  numbers = checked_lines.named([line.number for line in damaged])
  _logger.warning(
    f"{path}:{numbers}: WARNING: damaged; put into {_aside(path).name}, and the"
    " other records are kept"
  )


def _set_aside(
  path: pathlib.Path, damaged: Sequence[checked_lines.Line]
) -> None:
  """Appends damaged lines to a file beside theirs."""
  aside = _aside(path)
  try:
    with open(aside, "ab") as f:
      for line in damaged:
        f.write(line.content.rstrip(b"\n") + b"\n")
      f.flush()
      os.fsync(f.fileno())
  except OSError as e:
    raise files.unwritable(aside, e) from None
