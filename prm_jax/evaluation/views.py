"""How the results of each evaluation are shown: as text, table and picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from prm_jax.evaluation import figures
from prm_jax.evaluation import result_figures
from prm_jax.evaluation import result_rows
from prm_jax.evaluation import result_tables
from prm_jax.evaluation import results as results_lib
from prm_jax.evaluation import tables


class View(NamedTuple):
  """What shows an evaluation.

  Args:
    text: Returns the table that is printed.
    table: Returns the table that is written.
    figure: Returns what is drawn.
  """

  text: Callable[[dict[str, Any]], str]
  table: Callable[[dict[str, Any]], tables.Table]
  figure: Callable[[results_lib.Evaluation], figures.Figure]


STEPS = View(
  result_tables.plain_table, result_rows.of_steps, result_figures.of_steps
)
PROCESSBENCH = View(
  result_tables.processbench_table,
  result_rows.of_processbench,
  result_figures.of_processbench,
)
PRMBENCH = View(
  result_tables.prmbench_table,
  result_rows.of_prmbench,
  result_figures.of_prmbench,
)
TURNS = View(
  result_tables.turns_table, result_rows.of_turns, result_figures.of_turns
)
BEST_OF_N = View(
  result_tables.best_of_n_table,
  result_rows.of_best_of_n,
  result_figures.of_best_of_n,
)
# By the kind that the results name.
OF_KIND = dict(
  Steps=STEPS,
  ProcessBench=PROCESSBENCH,
  PRMBench=PRMBENCH,
  Turns=TURNS,
  BestOfN=BEST_OF_N,
)
