"""`prm_jax.CheckDevice`: what this machine computes, and how fast."""

from __future__ import annotations

import dataclasses
import logging
import pathlib

from prm_jax import errors
from prm_jax.device_check import check_results
from prm_jax.device_check import check_run as run_lib
from prm_jax.device_check import verdict
from prm_jax.runtime import outputs
from prm_jax.runtime import verbs

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class CheckDevice(verbs.Verb):
  """Checks that this machine computes the right numbers, and how fast.

  Args:
    output: The JSON file of results; checks whose result it already holds aren't
      run again; delete the file to run all.
    only: The checks or groups of checks to run, separated by commas, such as
      attention,model (default: all; give an unknown name to see the groups).
    minutes: Start no further check after this many minutes; a check that is
      running then may take 45 s longer.
    quick: Run few cases with small shapes; without --quick and --full, a medium
      set of cases runs.
    full: Run every combination of options of attention; not with --quick.
    against: An older file of results; differences are printed and don't change
      the exit code.

  Example:
    prm-jax check-device --quick
  """

  output: verbs.Output = pathlib.Path("check.json")
  only: str | None = None
  minutes: verbs.Positive = run_lib.Options.minutes
  quick: bool = False
  full: bool = False
  against: verbs.Local | None = None

  def __post_init__(self):
    super().__post_init__()
    if self.quick and self.full:
      raise errors.InputError(
        "`full=True`: not allowed with `quick=True`; give one of them"
      )
    if not all(self._wanted):
      raise errors.InputError(f"`only={self.only}`: give names or groups")

  def __call__(self) -> check_results.Record:
    """Runs the checks whose result the output lacks.

    Returns:
      All results that are known then.

    Raises:
      InputError: The output is of another machine, code or mode, or in use; or
        jax finds no device.
    """
    from prm_jax.runtime import environment

    mode = "quick" if self.quick else "full" if self.full else "standard"
    options = run_lib.Options(
      pathlib.Path(self.output), mode, self._wanted, self.minutes
    )
    about = dict(
      command=environment.command(),
      versions=environment.versions(),
      revision=environment.revision(),
    )
    return run_lib.check(options, about, _logger.info)

  def run(self) -> None:
    """Runs the checks, and says what they come to.

    Raises:
      InputError: Something is wrong here, crashed or didn't run, or the output
        can't be used; a speed below its goal is no error.
    """
    outputs.check(dict(output=self.output), [self.against])
    old = self.against and check_results.read(pathlib.Path(self.against))
    record = self()
    verbs.log_text(_logger, verdict.table(record))
    if old:
      changes = verdict.compared(record, old) or ["nothing that counts"]
      verbs.log_text(
        _logger, "\n".join(["", f"against {self.against}:", *changes])
      )
    _logger.info(f"results: {self.output}")
    self._check_right(record)

  @property
  def _wanted(self) -> tuple[str, ...]:
    return () if self.only is None else tuple(self.only.split(","))

  def _check_right(self, record: check_results.Record) -> None:
    """Raises InputError unless all that was asked for is done and right."""
    asked = [
      r for r in record.results if check_results.is_asked(r.name, self._wanted)
    ]
    wrong = [r.name for r in asked if r.required and r.status == "fail"]
    broken = [r.name for r in asked if r.status == "fail" and r.number is None]
    missing = [
      r.name
      for r in asked
      if r.status == "not run" and (r.required or not r.reached)
    ]
    for names, text in (
      (wrong, "wrong here: {} required checks failed, the first is {}"),
      (broken, "{} checks crashed, the first is {}"),
      (
        missing,
        "{} checks didn't run, the first is {}; call it again to resume",
      ),
    ):
      if names:
        raise errors.InputError(
          f"{self.output}: {text.format(len(names), names[0])};"
          " see docs/accelerators.md"
        )
