"""Whether each step follows from the premises, by an SMT solver (z3).

A step is a formula (logic_reader). It is right if it is true wherever all
premises are, which also makes it follow from premises and steps before it; else
the reason has a case in which the premises are true and the step isn't. So a
step is judged by itself, and one that follows only from a wrong one is wrong. A
step that can't be read, or that the solver can't decide in its time, has no
label; nor have all if the premises can't be true together, or one can't be read.
A right step may still be of no use.

`extra` of the record has `premises`, a list of formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools
import importlib.util
import math
import operator
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.verifiers import logic_reader
from prm_jax.verifiers.logic_reader import Formula
from prm_jax.verifiers.verdicts import Verdict

VERSION = 2
_MOST_PREMISES, _MOST_SHOWN = 200, 12


def check() -> None:
  """Refuses if the solver isn't installed.

  Raises:
    InputError: It isn't.
  """
  if importlib.util.find_spec("z3") is None:
    raise errors.InputError(
      f"`verifier=logic` needs z3: {errors.to_install('logic')}"
    )


def verify(
  solution: schema.Solution, *, time_s: float = 5.0, memory_mib: int = 512
) -> list[Verdict]:
  """Returns whether each step follows from the premises; see above.

  Args:
    solution: The solution.
    time_s: The longest that the solver may take for a step, in seconds.
    memory_mib: The most memory of the solver, in MiB.
  """
  num = len(solution.steps)
  try:
    premises = _premises_of(solution)
  except logic_reader.UnreadError as e:
    return [Verdict(None, str(e))] * num
  solver = _Solver(premises, time_s, memory_mib)
  if why := solver.why_useless():
    return [Verdict(None, why)] * num
  return [_judged(step, solver) for step in solution.steps]


def _premises_of(solution: schema.Solution) -> list[logic_reader.Read]:
  given = solution.extra.get("premises")
  if not isinstance(given, list | tuple) or not all(
    isinstance(x, str) for x in given
  ):
    raise logic_reader.UnreadError('no list of formulas "premises"')
  if len(given) > _MOST_PREMISES:
    raise logic_reader.UnreadError(f"more than {_MOST_PREMISES} premises")
  found = []
  for i, text in enumerate(given):
    try:
      found.append(logic_reader.read(text))
      _merged(found)
    except logic_reader.UnreadError as e:
      raise logic_reader.UnreadError(f"premise {i + 1}: {e}") from None
  return found


def _merged(read: Sequence[logic_reader.Read]) -> dict[str, bool]:
  """Returns of all names whether each is a number's.

  Raises:
    UnreadError: One is both.
  """
  names: dict[str, bool] = {}
  for x in read:
    for name, is_number in x.are_numbers.items():
      if names.setdefault(name, is_number) != is_number:
        raise logic_reader.UnreadError(f"{name} is a number and a statement")
  return names


def _judged(step: str, solver: _Solver) -> Verdict:
  try:
    read = logic_reader.read_step(step)
    names = _merged([*solver.premises, read])
  except logic_reader.UnreadError as e:
    return Verdict(None, f"not read: {e}")
  case = solver.case(Formula("not", (read.formula,)), names)
  if case is None:
    return Verdict(1, "follows from the premises")
  if isinstance(case, str):
    return Verdict(None, case)
  if solver.case(read.formula, names) is None:
    return Verdict(0, "contradicts the premises")
  shown = ", ".join(f"{k}={v}" for k, v in [*case.items()][:_MOST_SHOWN])
  return Verdict(0, f"doesn't follow: false with {shown}")


class _Solver:
  """Looks for cases in which the premises are true."""

  def __init__(
    self,
    premises: Sequence[logic_reader.Read],
    time_s: float,
    memory_mib: int,
  ):
    import z3

    self.premises = premises
    z3.set_param("memory_max_size", memory_mib)
    self._z3, self._time_s = z3, time_s
    # What the solver finds depends on all that its context has had.
    self._context = z3.Context()
    self._solver = z3.Solver(ctx=self._context)
    self._solver.set("timeout", math.ceil(1_000 * time_s))
    names = _merged(premises)
    for x in premises:
      self._solver.add(_made(self._context, x.formula, names))

  def why_useless(self) -> str | None:
    """Returns why nothing can be told from the premises, None if it can."""
    found = self.case(Formula("true", ()), _merged(self.premises))
    if found is None:
      return "the premises contradict each other"
    return found if isinstance(found, str) else None

  def case(
    self, formula: Formula, names: Mapping[str, bool]
  ) -> dict[str, int] | str | None:
    """Returns a case in which premises and a formula are true.

    Args:
      formula: The formula.
      names: Of each name whether it is a number's.

    Returns:
      The value of each name, sorted, 1 for a true statement; None if there is no
      such case, or why that isn't known.
    """
    z3, solver = self._z3, self._solver
    solver.push()
    try:
      solver.add(_made(self._context, formula, names))
      answer = solver.check()
      if answer == z3.unsat:
        return None
      if answer == z3.unknown:
        return f"not decided ({solver.reason_unknown()[:80]})"
      model, case = solver.model(), {}
      for name, is_number in sorted(names.items()):
        value = model.eval(_variable(self._context, name, is_number), True)
        case[name] = value.as_long() if is_number else int(z3.is_true(value))
      return case
    except (z3.Z3Exception, RecursionError) as e:
      return f"not decided ({' '.join(str(e).split())[:80]})"
    finally:
      solver.pop()


def _made(context: Any, formula: Formula, names: Mapping[str, bool]) -> Any:
  """Returns a formula as z3 has it."""
  import z3

  kind = formula.kind
  if kind == "number":
    return z3.IntVal(formula.parts[0], context)
  if kind == "name":
    return _variable(context, formula.parts[0], names[formula.parts[0]])
  if kind in ("true", "false"):
    return z3.BoolVal(kind == "true", context)
  parts = [_made(context, part, names) for part in formula.parts]
  if kind in ("and", "or"):
    return (z3.And if kind == "and" else z3.Or)(*parts)
  if kind == "not":
    return z3.Not(parts[0])
  if kind == "->":
    return z3.Implies(*parts)
  return functools.reduce(_OPERATIONS[kind], parts)


_OPERATIONS = {
  "<->": operator.eq,
  "=": operator.eq,
  "!=": operator.ne,
  "<": operator.lt,
  ">": operator.gt,
  "<=": operator.le,
  ">=": operator.ge,
  "+": operator.add,
  "*": operator.mul,
}


def _variable(context: Any, name: str, is_number: bool) -> Any:
  import z3

  return (z3.Int if is_number else z3.Bool)(name, context)
