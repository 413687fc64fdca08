"""The kernels of a compiled program, and the bytes that each moves.

XLA's own count (`xla_bytes`) has one number for a program and counts the body
of a loop once. Here a loop that says how often it runs counts so often, and the
operation that a kernel comes from says which part of the model it belongs to.
A kernel reads each operand once, and of one that it slices only the slice.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import functools
import math
import re
from typing import Any, NamedTuple

import jax
from jaxlib import _jax

_BYTES = dict(pred=1, s8=1, u8=1, bf16=2, f16=2, s16=2, u16=2, s32=4, u32=4)
_BYTES |= dict(f32=4, s64=8, u64=8, f64=8)
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_LINE = re.compile(r"\s*(ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
# These move nothing.
_FREE = frozenset(
  ("parameter", "get-tuple-element", "tuple", "bitcast", "constant")
)


class Kernel(NamedTuple):
  """One kernel, or one call of a library.

  Args:
    name: Its name in the program.
    opcode: What it is: fusion, sort, copy, custom-call.
    source: The operation that it comes from.
    bytes: What it reads and writes each time.
    times: How often it runs.
  """

  name: str
  opcode: str
  source: str
  bytes: int
  times: int


class _Instruction(NamedTuple):
  shape: str
  opcode: str
  operands: list[str]
  line: str
  is_root: bool


_Computation = dict[str, _Instruction]


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
  """A compiled program, by the names of its computations."""

  computations: dict[str, _Computation]
  entry: _Computation

  def once(self) -> list[Kernel]:
    """Returns the kernels outside of the program's loop."""
    return [*self._kernels(self.entry, 1, loops=False)]

  def body(self) -> list[Kernel]:
    """Returns the kernels of one pass of the program's only outer loop."""
    (loop,) = (x for x in self.entry.values() if x.opcode == "while")
    return [*self._kernels(self._called(loop, "body"), 1)]

  def _called(self, instruction: _Instruction, role: str) -> _Computation:
    match = re.search(rf"\b{role}=%([\w.\-]+)", instruction.line)
    assert match is not None, instruction.line
    return self.computations[match[1]]

  def _kernels(
    self, computation: _Computation, times: int, loops: bool = True
  ) -> Iterator[Kernel]:
    for name, x in computation.items():
      if x.opcode == "while":
        if loops:
          count = re.search(r'known_trip_count":\{"n":"(\d+)"', x.line)
          more = times * int(count[1]) if count else times
          yield from self._kernels(self._called(x, "body"), more)
      elif x.opcode not in _FREE:
        source = re.search(r'op_name="([^"]*)"', x.line)
        moved = self._moved(computation, x)
        path = source[1] if source else ""
        yield Kernel(name, self._kind(x), path, moved, times)

  def _kind(self, x: _Instruction) -> str:
    """Returns the opcode; of a fusion that sorts it is sort."""
    if x.opcode != "fusion":
      return x.opcode
    inner = {y.opcode for y in self._called(x, "calls").values()}
    return "sort" if "sort" in inner else x.opcode

  def _moved(self, computation: _Computation, x: _Instruction) -> int:
    operands = [_size(computation[name].shape) for name in x.operands]
    if x.opcode != "fusion":
      return sum(operands) + _size(x.shape)
    inside = self._called(x, "calls")
    (root,) = (name for name, y in inside.items() if y.is_root)
    shares = _shares(inside)
    read = sum(size * shares[i] for i, size in enumerate(operands))
    return round(read) + _written(inside, root)


def read(text: str) -> Program:
  """Returns the program of a compiled module's text."""
  computations, entry = {}, {}
  for part in re.split(r"\n(?=(?:ENTRY )?%[\w.\-]+ \()", text):
    head = re.match(r"(ENTRY )?%([\w.\-]+) \(", part)
    if head is None:
      continue
    found = computations[head[2]] = _instructions(part)
    if head[1]:
      entry = found
  return Program(computations, entry)


def xla_bytes(compiled: jax.stages.Compiled) -> int:
  """Returns the bytes that XLA's own analysis counts for a program.

  A program that was compiled for a GPU that isn't here doesn't answer itself.
  """
  (module,) = compiled.runtime_executable().hlo_modules()
  cpu: Any = jax.devices("cpu")[0].client
  return int(_jax.hlo_module_cost_analysis(cpu, module)["bytes accessed"])


def _instructions(part: str) -> _Computation:
  found = {}
  for line in part.split("\n")[1:]:
    match = _LINE.match(re.sub(r"/\*index=\d+\*/", "", line))
    if match is None:
      continue
    root, name, shape, opcode, rest = match.groups()
    operands = re.findall(r"%([\w.\-]+)", rest.split(")")[0])
    found[name] = _Instruction(shape, opcode, operands, line, bool(root))
  return found


def _count(shape: str) -> int:
  """Returns how many numbers the first array of a shape has."""
  match = _ARRAY.search(shape)
  assert match is not None, shape
  return _product(match[2])


def _product(sizes: str) -> int:
  return math.prod(map(int, filter(None, sizes.split(","))))


def _size(shape: str) -> int:
  """Returns the bytes of the arrays of a shape."""
  return sum(
    _product(sizes) * _BYTES[kind]
    for kind, sizes in _ARRAY.findall(shape)
    if kind in _BYTES
  )


def _written(inside: _Computation, name: str) -> int:
  """Returns the bytes of a fusion's result; of an update in place its own."""
  x = inside[name]
  if x.opcode == "bitcast":
    return _written(inside, x.operands[0])
  if x.opcode == "tuple":
    return sum(_written(inside, each) for each in x.operands)
  if x.opcode == "dynamic-update-slice":
    return _size(inside[x.operands[1]].shape)
  return _size(x.shape)


def _shares(inside: _Computation) -> dict[int, float]:
  """Returns which share of each parameter a fusion reads."""
  users: dict[str, list[_Instruction]] = {name: [] for name in inside}
  names = {id(x): name for name, x in inside.items()}
  for x in inside.values():
    for name in x.operands:
      users[name].append(x)

  @functools.cache
  def needed(name: str) -> float:
    x = inside[name]
    if x.is_root:
      return 1.0
    return min(1.0, sum(by(user, name) for user in users[name]))

  def by(user: _Instruction, name: str) -> float:
    if user.operands[0] == name:
      if user.opcode == "dynamic-update-slice":
        return 0.0
      if user.opcode in ("slice", "dynamic-slice", "gather"):
        part = _count(user.shape) / _count(inside[name].shape)
        return part * needed(names[id(user)])
    return needed(names[id(user)])

  shares = {}
  for name, x in inside.items():
    if x.opcode == "parameter":
      number = re.search(r"parameter\((\d+)\)", x.line)
      assert number is not None
      shares[int(number[1])] = needed(name)
  return shares
