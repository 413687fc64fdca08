"""rewards.json: what scored the samples of a run, so that nothing else does.

A run that resumes with another reward would be neither the one nor the other.
"""

from __future__ import annotations

from collections.abc import Mapping
import json
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax.runtime import files

RECORD = "rewards.json"
Record = dict[str, Any]


def of(
  identities: Mapping[str, Mapping[str, Any]], verifier: Mapping[str, Any]
) -> Record:
  """Returns what scores a run's samples, as plain data.

  Args:
    identities: What scores them, by the field of the config that names it.
    verifier: What the verifier is; empty for a grader of ours.
  """
  record = {name: dict(identity) for name, identity in identities.items()}
  if verifier:
    record["problems.grader"] = dict(verifier)
  return json.loads(json.dumps(record))


def write(workdir: pathlib.Path, record: Record) -> None:
  files.write_json(workdir / RECORD, record)


def check_same(workdir: pathlib.Path, record: Record) -> None:
  """Refuses to resume a run whose samples other things scored.

  Raises:
    InputError: They differ; the message names each field.
  """
  saved = files.read_json(workdir / RECORD)
  changed = sorted(files.differences(saved, record))
  if changed:
    raise errors.InputError(
      f"{workdir}: {', '.join(changed)} differ from {RECORD}, which says what"
      " scored its samples; put that back, start a new run from this one"
      " (init_from), or give `fresh=True`"
    )
