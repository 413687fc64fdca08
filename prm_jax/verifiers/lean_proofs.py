"""Whether Lean accepts each step of a proof, by the program repl. NOT RUN.

It was written from the documentation and the expected outputs of
github.com/leanprover-community/repl, for Lean 4.33, and never asked a Lean.

The problem is Lean's text that ends with `:= by`; each step is a whole tactic.
There is no sandbox: a tactic can run programs, and write what passes for a
reply. So there is no outcome, and what is said of a proof is worth as much as
its author is trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import json
import re
import shutil
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import limited_process
from prm_jax.verifiers import asked_program
from prm_jax.verifiers.asked_program import UntoldError
from prm_jax.verifiers.verdicts import Verdict

VERSION = 1
# Mathlib is read from the disk for each problem.
_START_S, _MOST_SHOWN = 300.0, 200
_END = re.compile(rb"\n\s*\n")


def installed(*, unsafe: bool) -> str:
  """Returns the file of the program on the PATH.

  Args:
    unsafe: Whether proofs may run without a sandbox.

  Raises:
    InputError: They may not, or there is no program.
  """
  if not unsafe:
    raise errors.InputError(
      "`verifier=lean` has no sandbox, and a proof in Lean can run programs:"
      " give `unsafe_code=True` if you trust the proofs"
    )
  program = shutil.which("repl")
  if program is None:
    raise errors.InputError(
      "`verifier=lean` needs the program repl on the PATH: build"
      " github.com/leanprover-community/repl, and start this by `lake env` in"
      " the project whose libraries the problems import"
    )
  return program


def verify(
  solution: schema.Solution, *, program: str, time_s: float = 5.0
) -> list[Verdict]:
  """Returns whether Lean accepts each step; see above.

  Args:
    solution: The solution.
    program: The file of the program repl.
    time_s: The longest that Lean may take for a step, in seconds.
  """
  found: list[Verdict] = []
  process = limited_process.popen((program,), -1)
  try:
    repl = asked_program.AskedProgram(process, "Lean")
    state = _begun(repl, solution.problem)
    for step in solution.steps:
      asked = dict(tactic=step.strip(), proofState=state)
      reply = _asked(repl, asked, time_s)
      found.append(_verdict(reply))
      if found[-1].label != 1:
        break
      state = reply.state
  except UntoldError as e:
    found.append(Verdict(None, str(e)))
  finally:
    limited_process.end(process)
  found = found[: len(solution.steps)]
  after = Verdict(None, f"not asked, after step {len(found)}")
  return found + [after] * (len(solution.steps) - len(found))


@dataclasses.dataclass(frozen=True)
class _Reply:
  """A reply of repl.

  Args:
    error: The first error, in a line; empty without one.
    sorries: The proof states of what is left out.
    is_given_up: Whether anything is left out.
    goals: The goals left.
    state: The proof state after it; none for a theorem.
  """

  error: str
  sorries: tuple[int, ...]
  is_given_up: bool
  goals: tuple[str, ...]
  state: int

  @classmethod
  def of(cls, said: Any) -> _Reply:
    """Returns that of a value of JSON; it may be anything."""
    messages = said.get("messages", [])
    found = [x["data"] for x in messages if x["severity"] == "error"]
    found += [said["message"]] if "message" in said else []
    sorries = tuple(int(x["proofState"]) for x in said.get("sorries", []))
    return cls(
      " ".join(found[0].split())[:_MOST_SHOWN] if found else "",
      sorries,
      bool(sorries) or "sorry" in said.get("proofStatus", ""),
      tuple(" ".join(x.split()) for x in said.get("goals", [])),
      -1 if "message" in said or "env" in said else int(said["proofState"]),
    )


def _begun(repl: asked_program.AskedProgram, problem: str) -> int:
  """Returns the number of the proof state in which the theorem is open."""
  if not re.search(r":=\s*by\s*$", problem):
    raise UntoldError("the problem doesn't end with := by")
  reply = _asked(repl, dict(cmd=f"{problem} sorry"), _START_S)
  if reply.error:
    raise UntoldError(f"Lean refuses the problem: {reply.error}")
  if len(reply.sorries) != 1:
    raise UntoldError(
      f"the problem leaves out {len(reply.sorries)} proofs, not one"
    )
  return reply.sorries[0]


def _asked(
  repl: asked_program.AskedProgram, asked: Mapping[str, Any], limit_s: float
) -> _Reply:
  said, _ = repl.exchange(json.dumps(asked).encode() + b"\n\n", _END, limit_s)
  try:
    return _Reply.of(json.loads(said))
  except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
    raise UntoldError("Lean's reply can't be read") from None


def _verdict(reply: _Reply) -> Verdict:
  if reply.error:
    return Verdict(0, reply.error)
  if reply.is_given_up:
    return Verdict(0, "it gives a goal up")
  num = len(reply.goals)
  said = f"accepted, {num or 'no'} goal{'s' if num > 1 else ''} left"
  if reply.goals:
    said += f": {reply.goals[0]}"
  return Verdict(1, said[:_MOST_SHOWN])
