"""`prm_jax.LabelVerify`: exact labels by a verifier, with a reason for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import logging
import pathlib
import reprlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import journal
from prm_jax.jobs import journaled
from prm_jax.jobs import report
from prm_jax.jobs import workers
from prm_jax.labelling import label_job
from prm_jax.runtime import outputs
from prm_jax.runtime import user_functions
from prm_jax.runtime import verbs
from prm_jax.verifiers import verdicts

_logger = logging.getLogger(__name__)

# Where a solution's extra holds what the verifier said: `verifier`, `version`,
# and `labels` and `reasons`, one of each step by itself.
VERIFIED = "verified"
NAMES = ("arithmetic", "code", "logic", "coq", "lean")
# A day, which every clock here can count; and what Python starts with.
_MOST_S, _LEAST_MIB = 86_400, 32


def _untold(found: Sequence[verdicts.Verdict]) -> None:
  return None


@dataclasses.dataclass(frozen=True)
class _Opened:
  """A verifier, ready for use.

  Args:
    verify: The verifier.
    identity: What its verdicts depend on, as plain data.
    outcome: Its verdicts on the steps -> whether the solution is right, None if
      they don't tell.
  """

  verify: verdicts.Verifier
  identity: Mapping[str, Any]
  outcome: Callable[[Sequence[verdicts.Verdict]], bool | None] = _untold


@dataclasses.dataclass(frozen=True)
class LabelVerify(verbs.Verb):
  """Labels each step by an exact verifier, and says why.

  Args:
    verifier: What checks steps: arithmetic (every equation), code (Python, by
      the tests in the record), logic (formulas, by the premises in the record;
      it needs the extra logic), coq (a proof of the theorem that is the
      problem; it needs the program coqtop), lean (the same by the program repl,
      without a sandbox; written from its documentation and not run), or a
      function of your own, FILE.py:FUNCTION or MODULE:FUNCTION, which takes a
      Solution and returns a Verdict for each step; docs/verifiers.md says what
      each checks.
    time_s: The longest that the code up to a step may run, that the solver of
      logic or Lean may take for one, or Coq for a sentence, in seconds.
    memory_mib: The most memory of a process of code, of the solver, or of Coq
      beside its libraries, in MiB.
    unsafe_code: Run code and proofs also where the kernel allows no sandbox:
      code can then read your files and use the network.

  Example:
    prm-jax label verify --verifier=arithmetic --input=solutions.jsonl \\
      --output=labels.jsonl
  """

  verifier: str
  time_s: verbs.Positive = 5.0
  memory_mib: verbs.Count = 512
  unsafe_code: bool = False

  writes_new = False

  def _faults(self) -> Iterator[str]:
    if self.verifier not in NAMES and not user_functions.parse(self.verifier):
      names = ", ".join(NAMES)
      yield (
        f"`verifier={self.verifier}`: expected {names}, FILE.py:FUNCTION or"
        " MODULE:FUNCTION"
      )
    if self.time_s > _MOST_S:
      yield f"`time_s={self.time_s:g}`: expected at most {_MOST_S}"
    if self.memory_mib < _LEAST_MIB:
      yield f"`memory_mib={self.memory_mib}`: expected {_LEAST_MIB} or more"

  def __call__(
    self, solutions: Iterable[schema.Solution]
  ) -> list[schema.Solution]:
    """Returns the solutions with labels of their steps.

    A label is P(correct so far): 0 from the first wrong step on, None where the
    verifier can't tell. `extra` gets `verified`: the verifier, its version, and
    the label and the reason of each step by itself. Ratings are removed.

    Args:
      solutions: The solutions.

    Raises:
      InputError: There is no such function, or it fails or returns something
        else than a Verdict for each step.
    """
    with self._opened() as opened:
      return [self._labelled(solution, opened) for solution in solutions]

  def run(self, job: label_job.LabelJob) -> None:
    """Labels the solutions of a file.

    Args:
      job: The files.
    """
    self._check_outputs(job)
    solutions, left_out = job.input.read_some()
    solutions = [s for s in solutions if job.part.holds(s.problem)]
    with job.opened(self) as worker:
      done = journaled.run(
        *(job, job.output, solutions),
        dict(kind="verify", shard=str(job.part)),
        worker,
        doing="verify",
        first="verifying",
        so_far=lambda work: "",
      )
    _logger.info(f"{job.output}: {len(done.solutions):,} solutions")
    report.counted(_counts(done.solutions))
    report.left_out(left_out)

  @contextlib.contextmanager
  def working(self) -> Iterator[workers.Worker]:
    """Verifies batches in this process.

    Yields:
      What does it.
    """
    with self._opened() as opened:

      def work_on(
        batch: Sequence[schema.Solution], tell: workers.Tell
      ) -> tuple[list[schema.Solution], dict[str, int]]:
        done = []
        for solution in batch:
          done.append(self._labelled(solution, opened))
          tell(f"{len(done)} of a batch")
        return done, {}

      yield workers.here(lambda: opened.identity, work_on)

  @contextlib.contextmanager
  def _opened(self) -> Iterator[_Opened]:
    """Yields the verifier; with the block its processes end."""
    identity: dict[str, Any] = dict(verifier=self.verifier)
    limits: dict[str, Any] = dict(
      time_s=self.time_s, memory_mib=self.memory_mib
    )
    if self.verifier == "arithmetic":
      from prm_jax.verifiers import equations

      yield _Opened(
        equations.verify, identity | dict(version=equations.VERSION)
      )
    elif self.verifier == "code":
      from prm_jax.verifiers import sandbox
      from prm_jax.verifiers import solution_code

      sandbox.check(unsafe=self.unsafe_code)
      identity |= dict(version=solution_code.VERSION, **limits)
      with solution_code.Checker(**limits) as checker:
        yield _Opened(checker.verify, identity, solution_code.outcome)
    elif self.verifier == "logic":
      from prm_jax.verifiers import derivations

      derivations.check()
      identity |= dict(version=derivations.VERSION, **limits)
      yield _Opened(functools.partial(derivations.verify, **limits), identity)
    elif self.verifier == "coq":
      from prm_jax.verifiers import coq_proofs
      from prm_jax.verifiers import coq_session
      from prm_jax.verifiers import sandbox

      coqtop = coq_session.installed()
      sandbox.check(unsafe=self.unsafe_code)
      identity |= dict(version=coq_proofs.VERSION, coq=coqtop.version, **limits)
      verify = functools.partial(coq_proofs.verify, coqtop=coqtop, **limits)
      yield _Opened(verify, identity, coq_proofs.outcome)
    elif self.verifier == "lean":
      from prm_jax.verifiers import lean_proofs

      program = lean_proofs.installed(unsafe=self.unsafe_code)
      identity |= dict(version=lean_proofs.VERSION, time_s=self.time_s)
      yield _Opened(
        functools.partial(
          lean_proofs.verify, program=program, time_s=self.time_s
        ),
        identity,
      )
    else:
      name = user_functions.parse(self.verifier)
      assert name is not None  # or it would have been refused
      loaded = user_functions.load(name)
      yield _Opened(loaded, identity | dict(version=loaded.identity))

  def _labelled(
    self, solution: schema.Solution, opened: _Opened
  ) -> schema.Solution:
    try:
      found = opened.verify(solution)
    except errors.InputError as e:
      raise errors.InputError(
        f"solution {reprlib.repr(solution.id)}: {e}"
      ) from e
    found = _checked(found, solution, self.verifier)
    own = [x.label if x.label is None else float(x.label) for x in found]
    verified = dict(
      opened.identity, labels=own, reasons=[x.reason for x in found]
    )
    outcome = opened.outcome(found)
    if outcome is None:
      outcome = solution.outcome
    return dataclasses.replace(
      solution,
      labels=verdicts.labels(found) if found else None,
      ratings=None,
      outcome=outcome,
      extra={**solution.extra, VERIFIED: verified},
    )

  def _check_outputs(self, job: label_job.LabelJob) -> None:
    """Refuses an output, or the journal beside it, that harms an input."""
    name = user_functions.parse(self.verifier)
    code = pathlib.Path(name.place) if name and name.is_file else None
    for path in (job.output, journal.path_of(job.output)):
      outputs.check(dict(output=path), [job.input.stored_at, code])


def _checked(
  found: Any, solution: schema.Solution, name: str
) -> Sequence[verdicts.Verdict]:
  """Returns verdicts; refuses what isn't one for each step."""
  where = f"{name}: solution {reprlib.repr(solution.id)}"
  if not isinstance(found, list | tuple):
    raise errors.InputError(
      f"{where}: returned {reprlib.repr(found)}; expected a list with a"
      " prm_jax.Verdict for each step"
    )
  if len(found) != len(solution.steps):
    raise errors.InputError(
      f"{where}: {len(found)} verdicts for {len(solution.steps)} steps; return"
      " one for each step"
    )
  for i, value in enumerate(found):
    if not isinstance(value, verdicts.Verdict):
      raise errors.InputError(
        f"{where}: the verdict on step {i} (from 0) is {reprlib.repr(value)};"
        " expected a prm_jax.Verdict"
      )
  return found


def _counts(solutions: Sequence[schema.Solution]) -> dict[str, int]:
  """Returns how many steps were found right, wrong and neither."""
  words = {1.0: "right", 0.0: "wrong", None: "not_told"}
  counts = Counter(dict.fromkeys((f"steps_{x}" for x in words.values()), 0))
  counts["solutions_with_an_error"] = 0
  for s in solutions:
    own = s.extra[VERIFIED]["labels"]
    counts.update(f"steps_{words[x]}" for x in own)
    counts["solutions_with_an_error"] += 0.0 in own
  return dict(counts)
