"""The forms of files by name: what reads and writes each is loaded when named.

A form is a module; but for our own, jsonl, they stand in datasets/formats, and a
new one is a file there and a name here:

  read(path) -> Iterator[Solution]    every module; also *.gz
  write(path, solutions) -> int       where the form can hold a solution
  check(solution)                     with write: raises what write would

Readers are lazy and raise `errors.InputError`, one line with file:line and
the fix, at the first bad row. Every solution has an id that is unique in its
file, a source, and extra["group"], equal for all solutions of one problem
text. Fields that a form doesn't define are kept in extra["fields"].

Writers write all or nothing. What a form can say comes back the same from
`read`; what it has no place for (mostly id, answer and source) its docstring
names; a label that it can't express raises rather than be bent. Forms of
trees (prm800k, math_aps, math_aps_tree) put neighbours into one row, so there
`check` sees only what a solution lacks by itself.

Two forms hold more than a list: see prm800k.read_trees and gsm8k.read_pool.
"""

from collections.abc import Iterator, Mapping
import importlib
from types import ModuleType

_FOLDER = "prm_jax.datasets.formats"


def load(name: str) -> ModuleType:
  """Returns a module of datasets/formats, or that of people's judgements.

  Args:
    name: The module's name there; people_folder for judgements.
  """
  folder = "prm_jax.people" if name == "people_folder" else _FOLDER
  return importlib.import_module(f"{folder}.{name}")


class _Modules(Mapping[str, ModuleType]):
  """Modules by the names of their forms, loaded when they are asked for."""

  def __init__(self, *places: str, **renamed: str):
    self._places = {place: f"{_FOLDER}.{place}" for place in places} | renamed

  def __getitem__(self, name: str) -> ModuleType:
    return importlib.import_module(self._places[name])

  def __iter__(self) -> Iterator[str]:
    return iter(self._places)

  def __len__(self) -> int:
    return len(self._places)


FORMATS = _Modules(
  *("prm800k", "processbench", "gsm8k", "math_shepherd", "prmbench"),
  *("math_aps", "math_aps_tree", "math", "rlhflow", "chat", "atif"),
  *("agent_process_bench", "label_studio"),
  jsonl="prm_jax.records.jsonl",
  stepwise=f"{_FOLDER}.trl_stepwise",
)
# Their `read` also takes a Counter of what the form can't say, and leaves that
# out; the others refuse it.
COUNTING = (
  *("prm800k", "math_shepherd", "prmbench", "rlhflow", "agent_process_bench"),
  "label_studio",
)
# These hold conversations; in the others a trajectory would lose its context.
OF_TRAJECTORIES = ("jsonl", "chat", "atif", "agent_process_bench")
