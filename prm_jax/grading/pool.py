"""Verdicts on answers, by processes that are killed when they hang.

sympy, and with it Math-Verify, can take forever or all memory on an answer of
ten characters, and no clock inside the process can be trusted to stop it. So
each answer is graded by a worker process (grading.grading_worker) under a time
limit that the parent enforces: a worker that hangs is killed and replaced; if
one dies (out of memory, say), another tries its answer once more. Every answer
gets a verdict; one that takes too long gets "timeout", never "wrong".

Workers are started when the first answer needs one, by fork and exec: they
share nothing with the caller, which may have jax and its threads loaded. All
of this needs POSIX.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import importlib.util
import itertools
import json
from multiprocessing import connection
import os
import pathlib
import subprocess
import sys
import threading
import typing
from typing import Any, Literal

from prm_jax import _version
from prm_jax import errors
from prm_jax import schema
from prm_jax.grading import equality
from prm_jax.grading import formulas
from prm_jax.runtime import limited_process
from prm_jax.runtime import side_threads
from prm_jax.runtime import verbs
from prm_jax.text import answers

# rules: prm_jax.grading.equality, exact and in no time. math_verify: Math-Verify
# (github.com/huggingface/Math-Verify). prm800k: grading.prm800k_rules. both:
# Math-Verify, with PRM800K's rules as the second opinion.
GraderName = Literal["rules", "math_verify", "prm800k", "both"]
GRADERS: tuple[str, ...] = typing.get_args(GraderName)
_OPINIONS = dict(
  rules=("rules",),
  math_verify=("math_verify",),
  prm800k=("prm800k",),
  both=("math_verify", "prm800k"),
)
VERDICTS = ("right", "wrong", "timeout", "unparsable")

_START_S = 60.0  # loading sympy takes half a second, on an idle machine
_FAILED_STARTS = 3


@dataclasses.dataclass(frozen=True)
class Grade:
  """A verdict, one of VERDICTS, and the opinions that it was made of.

  timeout: no verdict within the limits of time and memory. unparsable: not
  the reference's text, and not readable as mathematics. Of two opinions the
  first counts, but "right" of the second makes it right. "wrong" of the second
  doesn't count: PRM800K's rules don't try what could hang.
  """

  verdict: str
  opinions: tuple[str, ...]


def installed() -> bool:
  """Returns whether the `verify` extra is there."""
  return importlib.util.find_spec("math_verify") is not None


def check(name: str) -> None:
  """Raises InputError if a grader is unknown or not installed."""
  if name not in GRADERS:
    raise errors.InputError(
      f"grader {name!r} is unknown; choose one of {', '.join(GRADERS)}"
    )
  if name != "rules" and not installed():
    raise errors.InputError(
      f"grader {name!r} needs Math-Verify and sympy:"
      f" {errors.to_install('verify')}, or take the grader rules"
    )


class Grader:
  """Grades answers; holds up to num_workers processes until it is closed.

  Use it in a `with` block: whatever happens in there, no process is left.
  """

  def __init__(
    self,
    name: str = "rules",
    *,
    num_workers: int = 2,
    time_s: float = 5.0,
    memory_mib: int = 2_048,
    exact_first: bool = True,
    command: Sequence[str] | None = None,
  ):
    """Raises InputError if the grader is unknown or not installed.

    time_s, memory_mib: limits of one answer. exact_first: what grading.equality
      and grading.formulas read exactly, they decide, without a process.
      command: another worker than ours.
    """
    if command is None:
      check(name)
    self.name = name
    self._num, self._time_s = max(1, num_workers), time_s
    self._exact_first = exact_first
    self._command = command or (
      # -P: no module is taken from the current folder.
      *(sys.executable, "-P", "-m", "prm_jax.grading.grading_worker"),
      *(str(time_s), str(memory_mib)),
    )
    self._workers: list[_Worker] = []
    self._stop, self._lock = threading.Event(), threading.Lock()

  def grade(
    self,
    pairs: Sequence[tuple[str | None, str]],
    progress: Callable[[int], None] = lambda done: None,
  ) -> list[Grade]:
    """Returns a grade for each (given answer, reference answer), in order.

    No answer (None) is wrong. Equal pairs are graded once.

    Args:
      pairs: The answers.
      progress: Called with the number of pairs done.
    """
    opinions = _OPINIONS[self.name]
    at_once = {pair: self._at_once(*pair) for pair in {*pairs}}
    graded = {p: _grade((x,) * len(opinions)) for p, x in at_once.items() if x}
    hard = [pair for pair in dict.fromkeys(pairs) if pair not in graded]
    jobs = [
      dict(opinion=opinion, given=str(given), reference=reference)
      for given, reference in hard
      for opinion in opinions
    ]
    share = len(pairs) / max(1, len(jobs))
    verdicts = iter(self._run(jobs, lambda done: progress(int(done * share))))
    for pair in hard:
      graded[pair] = _grade(tuple(itertools.islice(verdicts, len(opinions))))
    progress(len(pairs))
    return [graded[pair] for pair in pairs]

  def close(self) -> None:
    """Ends all workers; the next answer starts new ones."""
    with self._lock:
      while self._workers:
        self._workers.pop().end()

  def __enter__(self) -> Grader:
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def _at_once(self, given: str | None, reference: str) -> str | None:
    """Returns the verdict if it takes no process, else None."""
    same = equality.equal(given, reference)
    if given is None or self.name == "rules":
      return "right" if same else "wrong"
    if max(len(given), len(reference)) > equality.MAX_CHARS:
      return "right" if same else "unparsable"
    if not self._exact_first:
      return None
    if same:
      return "right"
    decided = formulas.same(given, reference)
    if decided and self.name == "prm800k":
      return None  # its rules ask for a form, too: 2/4 of a formula is wrong
    return None if decided is None else "right" if decided else "wrong"

  def _run(
    self, jobs: list[dict], progress: Callable[[int], None]
  ) -> list[str]:
    """Returns a verdict for each job, in order."""
    verdicts: dict[int, str] = {}

    def settle(i: int, verdict: str) -> None:
      verdicts[i] = verdict
      progress(len(verdicts))

    def work(i: int) -> str:
      return self._verdict(jobs[i])

    self._stop.clear()
    try:
      side_threads.each(range(len(jobs)), work, settle, self._num, self._stop)
    except BaseException:  # Ctrl-C too: a worker is in the middle of something
      self.close()
      raise
    return [verdicts[i] for i in range(len(jobs))]

  def _verdict(self, job: dict) -> str:
    """Returns a job's verdict, in any thread."""
    # If a worker dies, its job may not be to blame: a new one tries it again.
    for worker in (self._idle() or self._started(), None):
      worker = worker or self._started()
      reply = worker.ask(job, self._time_s)
      if reply:
        worker.is_idle = True
        return reply["verdict"]
      worker.end()
      if reply is None:
        break
    return "timeout"

  def _idle(self) -> _Worker | None:
    """Returns a running worker without a job."""
    with self._lock:
      self._workers = [x for x in self._workers if x.is_running()]
      for worker in self._workers:
        if worker.is_idle:
          worker.is_idle = False
          return worker
    return None

  def _started(self) -> _Worker:
    """Returns a new worker that has loaded its libraries."""
    for _ in range(_FAILED_STARTS):
      with self._lock:
        if self._stop.is_set():
          raise InterruptedError  # after `close`, nothing may be left
        worker = _Worker(self._command)
        self._workers.append(worker)
      if worker.reply(_START_S):
        return worker
      worker.end()
    raise RuntimeError(
      f"{_FAILED_STARTS} grading processes ended before they could start;"
      " run `python -P -m prm_jax.grading.grading_worker 5 2048` to see why"
    )


@dataclasses.dataclass(frozen=True)
class Graded(verbs.Value):
  """What compares answers with the right ones.

  Args:
    grader: What compares an answer with the right one (docs/answers.md); all
      but rules need the extra verify.
  """

  grader: GraderName = dataclasses.field(default="rules", kw_only=True)

  def __post_init__(self):
    super().__post_init__()
    check(self.grader)


def grade_solutions(
  grader: Grader,
  solutions: Sequence[schema.Solution],
  references: Sequence[str | None],
) -> list[Grade | None]:
  """Returns the grade of each solution's answer, None without a reference."""
  pairs = [
    (answers.of_solution(solution), reference)
    for solution, reference in zip(solutions, references, strict=True)
    if reference is not None
  ]
  grades = iter(grader.grade(pairs))
  return [None if x is None else next(grades) for x in references]


def verifier(
  grader: Grader, references: Mapping[str, str], counts: Counter[str]
) -> schema.Verify:
  """Returns the grader as a Verify that counts its verdicts.

  Args:
    grader: The grader.
    references: The right answer to each problem's text, where it is known.
    counts: The counts, to which `graded_` and each verdict is added.
  """
  counts.update({f"graded_{name}": 0 for name in VERDICTS})

  def verify(solutions: Sequence[schema.Solution]) -> list[bool | None]:
    known = [references.get(s.problem) for s in solutions]
    grades = grade_solutions(grader, solutions, known)
    counts.update(f"graded_{x.verdict}" for x in grades if x is not None)
    return outcomes(grades)

  return verify


def outcomes(grades: Sequence[Grade | None]) -> list[bool | None]:
  """Returns the outcome of each grade, None where there is none."""
  return [None if x is None else outcome(x) for x in grades]


def outcome(grade: Grade) -> bool | None:
  """Returns a grade as a solution's outcome: None where time ran out.

  What can't be read isn't the reference, so it is False.
  """
  return None if grade.verdict == "timeout" else grade.verdict == "right"


def told(grading: Mapping[str, Any]) -> str:
  """Returns which grader was used, and how often it said what, in words.

  Args:
    grading: The grader's name and the counts.
  """
  counts = ", ".join(
    f"{count:,} {name.replace('_', ' ')}"
    for name, count in grading.items()
    if name != "grader"
  )
  return f"graded by {grading['grader']}: {counts}"


def count(grades: Sequence[Grade]) -> dict[str, int]:
  """Returns how many there are of each verdict, and of split opinions.

  With two opinions: `first_without_verdict`, timeouts and unparsable answers of
  the first one, and `opinions_differ`, one is right and the other wrong.
  """
  verdicts = [grade.verdict for grade in grades]
  counts = {verdict: verdicts.count(verdict) for verdict in VERDICTS}
  if any(len(grade.opinions) > 1 for grade in grades):
    counts["first_without_verdict"] = sum(
      grade.opinions[0] not in ("right", "wrong") for grade in grades
    )
    counts["opinions_differ"] = sum(
      set(grade.opinions) == {"right", "wrong"} for grade in grades
    )
  return counts


def _grade(opinions: tuple[str, ...]) -> Grade:
  return Grade("right" if "right" in opinions else opinions[0], opinions)


def _module_path(given: str) -> str:
  """Returns the PYTHONPATH of a worker: this prm_jax, then the given folders.

  An empty entry, which `PYTHONPATH=$PYTHONPATH:/a` has if the variable was
  empty, would be the current folder, whose files nobody meant to run.
  """
  root = str(pathlib.Path(_version.__file__).parents[1])
  return os.pathsep.join([root, *filter(None, given.split(os.pathsep))])


class _Worker:
  """A process that grades one answer at a time."""

  def __init__(self, command: Sequence[str]):
    self._process = limited_process.popen(
      command,
      subprocess.PIPE,
      PYTHONPATH=_module_path(os.environ.get("PYTHONPATH", "")),
      PYTHONHASHSEED="0",  # the order of sympy's sets, hence its verdicts
    )
    self.is_idle = False

  def is_running(self) -> bool:
    return self._process.poll() is None

  def ask(self, job: dict, time_s: float) -> dict | None:
    """Returns the reply to a job; see reply."""
    assert self._process.stdin is not None
    try:
      os.write(self._process.stdin.fileno(), json.dumps(job).encode() + b"\n")
    except BrokenPipeError:
      return {}
    return self.reply(time_s)

  def reply(self, time_s: float) -> dict | None:
    """Returns what it says next; {} if it has ended, None if it takes longer."""
    out = self._process.stdout
    assert out is not None
    if not connection.wait([out], time_s):  # type: ignore[list-item]
      return None
    line = out.readline()
    return json.loads(line) if line else {}

  def end(self) -> None:
    limited_process.end(self._process)
