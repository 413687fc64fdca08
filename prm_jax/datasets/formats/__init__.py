"""The published formats, one file each; a new one is a file and a line here.

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

from types import ModuleType

from prm_jax.datasets.formats import agent_process_bench
from prm_jax.datasets.formats import atif
from prm_jax.datasets.formats import chat
from prm_jax.datasets.formats import gsm8k
from prm_jax.datasets.formats import label_studio
from prm_jax.datasets.formats import math
from prm_jax.datasets.formats import math_aps
from prm_jax.datasets.formats import math_aps_tree
from prm_jax.datasets.formats import math_shepherd
from prm_jax.datasets.formats import prm800k
from prm_jax.datasets.formats import prmbench
from prm_jax.datasets.formats import processbench
from prm_jax.datasets.formats import rlhflow
from prm_jax.datasets.formats import trl_stepwise
from prm_jax.records import jsonl

FORMATS: dict[str, ModuleType] = {
  "jsonl": jsonl,
  "prm800k": prm800k,
  "processbench": processbench,
  "gsm8k": gsm8k,
  "math_shepherd": math_shepherd,
  "stepwise": trl_stepwise,
  "prmbench": prmbench,
  "math_aps": math_aps,
  "math_aps_tree": math_aps_tree,
  "math": math,
  "rlhflow": rlhflow,
  "chat": chat,
  "atif": atif,
  "agent_process_bench": agent_process_bench,
  "label_studio": label_studio,
}
# These hold conversations; in the others a trajectory would lose its context.
OF_TRAJECTORIES = ("jsonl", "chat", "atif", "agent_process_bench")
