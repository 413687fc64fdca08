"""A verb as an actor class of Ray Data, for pipelines of one's own.

  import ray
  import prm_jax
  from prm_jax.integrations import ray as prm_ray

  solutions = ray.data.read_json("samples/*.jsonl")  # or read_parquet, ...
  scored = prm_ray.mapped(solutions, prm_jax.Score("runs/prm"), workers=4)
  scored.write_parquet("scores")

A row is a record as the verb's command reads it, with a column for each field;
what comes back is a row for each record that the command would write. Each
worker loads the models once. Ray Data reads the blocks, limits what is in
memory, shows how far it is, and starts a worker that died again; a record that
can't be worked on ends the pipeline, as an error in any function there does.
For a job whose parts are kept on disk and whose bad records are set aside, use
--engine=ray of the commands (docs/scale.md).
"""

from __future__ import annotations

import contextlib
from typing import Any, TYPE_CHECKING

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import job_inputs
from prm_jax.jobs import workers as workers_lib
from prm_jax.records import jsonl

if TYPE_CHECKING:
  import pyarrow
  import ray.data


class Worker:
  """A verb in a process of Ray Data's, a class for map_batches.

  Args:
    verb: Score, Sample, a labeller or Search.
  """

  def __init__(self, verb: workers_lib.Works):
    self._stack = contextlib.ExitStack()
    self._worker = self._stack.enter_context(verb.working())

  def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
    """Returns what comes of a batch.

    Args:
      batch: Its records, a column for each field; an empty field is a missing
        one. batch_format="pyarrow" gives it so.

    Raises:
      InputError: A record is neither a solution nor a problem.
    """
    given = [_start(row) for row in batch.to_pylist()]
    done = self._worker.do(given)
    return _table(
      [
        jsonl.record_from_solution(x)
        if isinstance(x, schema.Solution)
        else dict(x)
        for x in done.results
      ]
    )


def _table(records: list[dict[str, Any]]) -> pyarrow.Table:
  """Returns records with a column for each field that one of them has."""
  import pyarrow

  names = dict.fromkeys(name for record in records for name in record)
  # Of a table without a schema the first record alone names the columns.
  return pyarrow.Table.from_pydict(
    {name: [record.get(name) for record in records] for name in names}
  )


def mapped(
  dataset: ray.data.Dataset,
  verb: workers_lib.Works,
  *,
  workers: int,
  batch: int = 256,
  **options: Any,
) -> ray.data.Dataset:
  """Returns what a verb makes of a data set, when it is asked for.

  Args:
    dataset: Records, as the verb's command reads them.
    verb: Score, Sample, a labeller or Search.
    workers: The number of processes.
    batch: The most records that are worked on together. Give whole problems
      in a block where a verb saves work on what solutions of a problem share.
    **options: Further options of map_batches, such as num_gpus=1.
  """
  try:
    import ray.data
  except ImportError:
    raise errors.InputError(
      f"this needs the extra ray: {errors.to_install('ray')}"
    ) from None

  return dataset.map_batches(
    Worker,
    fn_constructor_args=(verb,),
    batch_size=batch,
    batch_format="pyarrow",
    compute=ray.data.ActorPoolStrategy(size=workers),
    **options,
  )


def _start(row: dict[str, Any]) -> schema.Solution:
  """Returns a record as what is worked on."""
  record = {name: value for name, value in row.items() if value is not None}
  where = f"record {record.get('id')!r}"
  if "steps" in record or "messages" in record:
    return jsonl.grouped(jsonl.solution_from_record(record, where))
  return job_inputs.starts([jsonl.problem_from_record(record, where)])[0]
