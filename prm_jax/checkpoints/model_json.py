"""model.json: how a checkpoint folder describes its model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import dataclasses
import hashlib
import json
import pathlib
import reprlib
from typing import Any

import jax
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax import voting
from prm_jax.checkpoints import integrity
from prm_jax.checkpoints import sampling_defaults
from prm_jax.models import matmul
from prm_jax.models import model_config
from prm_jax.runtime import files
from prm_jax.text import encoding_records
from prm_jax.text import segmenters
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text import tokenizer_files

FORMAT = 1


DESCRIPTION = "model.json"
# How a model is computed, which may change on the way; losses and scores then
# differ by rounding.
_COMPUTED = ("remat", "scan", "attention")


@dataclasses.dataclass(frozen=True)
class Description:
  """How a checkpoint folder describes its model.

  Args:
    program: sft, rl, prm, orm or implicit.
    model: The shape of the model.
    encoding: The fields of encoding.EncodingConfig.
    tokenizer: The argument of tokenizer_files.load.
    aggregate: How step scores become a solution's score.
    scoring: beta and step_score of an implicit PRM.
    judged: Which steps the scores are trained for, one of schema.JUDGED; None
      if that isn't known.
    segmenter: How a text is cut into steps; None if that isn't known.
    sampling: How an imported policy is sampled if nobody says otherwise; see
      sampling_defaults.
  """

  program: str
  model: model_config.ModelConfig
  encoding: Mapping[str, Any]
  tokenizer: Mapping[str, Any]
  aggregate: str = "product"
  scoring: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  judged: str | None = None
  segmenter: segmenters.Segmenter | None = None
  sampling: Mapping[str, float] = dataclasses.field(default_factory=dict)


def record_of(description: Description) -> dict[str, Any]:
  """Returns the content of a folder's model.json."""
  record = dataclasses.asdict(description) | dict(format=FORMAT)
  for name in ("scoring", "judged", "segmenter", "sampling"):
    if not record[name]:
      del record[name]  # so that folders without it stay as they were
  return record


def write_description(folder: pathlib.Path, description: Description) -> None:
  files.write_json(folder / DESCRIPTION, record_of(description))


def read_description(folder: pathlib.Path) -> Description:
  """Returns a folder's description, with attention "auto".

  The kind of attention in training doesn't fit this machine and these rows: it
  may be a kernel for other devices, or one that doesn't support trees.

  Raises:
    InputError: This isn't a checkpoint folder, or it has a later format.
  """
  path = pathlib.Path(folder) / DESCRIPTION
  if not path.exists():
    remedy = "give the `workdir` of a training run"
    if next(path.parent.glob("*.safetensors*"), None):
      remedy = "prm-jax import makes one of a Hugging Face folder"
    raise errors.InputError(
      f"{folder}: not a checkpoint folder: it has no {DESCRIPTION}; {remedy}"
    )
  record = files.read_json(path)
  try:
    return _from_record(record, path)
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    if str(e).startswith(f"{path}:"):
      raise
    is_ours = isinstance(e, errors.InputError)
    reason = e if is_ours else integrity.reason(e)
    raise errors.InputError(f"{path}: damaged: {reason}") from None


def read_record(folder: pathlib.Path) -> dict[str, Any] | None:
  """Returns what a folder's model.json holds; None if it has none."""
  path = folder / DESCRIPTION
  return files.read_json(path) if path.exists() else None


def check_saved(
  folder: pathlib.Path,
  description: Description,
  saved: Mapping[str, Any] | None,
  step: int,
) -> None:
  """Refuses a model.json other than that with which parameters were saved.

  All that changes a step's score is compared. What isn't: how the model is
  computed (_COMPUTED), and aggregate, judged, segmenter and sampling, which say
  what is done with texts and scores.

  Args:
    folder: The checkpoint folder.
    description: What its model.json holds.
    saved: The content of model.json when the parameters were saved; None, of
      parameters that were saved without one, isn't compared.
    step: The step of the parameters.

  Raises:
    InputError: They differ; the message names the fields.
  """
  if saved is None:
    return
  path = pathlib.Path(folder) / DESCRIPTION
  now = _deciding(description, path)
  where = f"{path.parent / 'checkpoints' / str(step)}: meta"
  before = _deciding(_from_record(dict(saved), where), where)
  names = sorted(files.differences(before, now))
  if names:
    changes = "; ".join(
      f"{name} is {_short(_value(now, name))} and was"
      f" {_short(_value(before, name))}"
      for name in names[:3]
    )
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    raise errors.InputError(
      f"{path}: isn't what step {step} was saved with: {changes}{more}; put"
      " the original back"
    )


def differences(
  one: Description, other: Description, where: object
) -> list[str]:
  """Returns the fields, as "model.rope_theta", that give other step scores."""
  return sorted(
    files.differences(_deciding(one, where), _deciding(other, where))
  )


def _from_record(record: dict[str, Any], where: object) -> Description:
  """Returns the description in a record; raises many errors if it isn't one."""
  record.setdefault("scoring", {})
  errors.raise_first(_faults(record, where))
  del record["format"]
  model = dict(record["model"], attention="auto")
  record["model"] = model_config.from_record(model)
  if record.get("segmenter") is not None:
    record["segmenter"] = segmenters.from_record(record["segmenter"])
  return Description(**record)


def _faults(record: Mapping[str, Any], where: object) -> Iterator[str]:
  """Yields what is wrong with the fields of a description."""
  if record["format"] != FORMAT:
    yield f"{where}: a newer format; update prm_jax"
  for name, kind in (
    ("program", str),
    ("encoding", dict),
    ("tokenizer", dict),
    ("scoring", dict),
  ):
    if not isinstance(record[name], kind):
      yield f"{name} is {reprlib.repr(record[name])}; expected {kind.__name__}"
  for name, choices in (
    ("judged", (*schema.JUDGED, None)),
    ("aggregate", voting.AGGREGATES),
  ):
    if name in record and record[name] not in choices:
      yield f"{name} is {reprlib.repr(record[name])}"
  yield from sampling_defaults.faults(record.get("sampling", {}), where)


def _deciding(description: Description, where: object) -> dict[str, Any]:
  """Returns what decides the scores of steps, as plain data."""
  model = dataclasses.asdict(description.model)
  read = encoding_records.from_record(description.encoding, where)
  fields = dict(
    program=description.program,
    model={k: v for k, v in model.items() if k not in _COMPUTED},
    encoding=encoding_records.record_of(read),
    tokenizer=dict(description.tokenizer),
    scoring=dict(description.scoring),
  )
  # As JSON has it: a list and a tuple are the same.
  return json.loads(json.dumps(fields))


def _value(fields: Any, name: str) -> Any:
  """Returns the value of a dotted name, as "model.rope_theta"."""
  for part in name.split("."):
    fields = fields.get(part) if isinstance(fields, Mapping) else None
  return fields


_SHORT = reprlib.Repr()
_SHORT.maxstring = 40


def _short(value: Any) -> str:
  return "not there" if value is None else _SHORT.repr(value)


def read_tokenizer(
  folder: pathlib.Path, description: Description
) -> tokenizer_lib.Tokenizer:
  """Returns a folder's tokenizer.

  Raises:
    InputError: Its file is another one, or its description is damaged.
  """
  try:
    return tokenizer_files.load(pathlib.Path(folder), description.tokenizer)
  except errors.InputError:
    raise
  except (KeyError, TypeError, ValueError) as e:
    raise errors.InputError(
      f"{pathlib.Path(folder) / DESCRIPTION}: damaged tokenizer: {integrity.reason(e)};"
      " restore the original file"
    ) from None


def fingerprint(folder: pathlib.Path, params: Any) -> str:
  """Returns "sha256:" and the digest of a model: description and parameters.

  The digest covers the description as it is saved (in the order of its names)
  and then, in the order of their paths, each parameter's path, shape and
  little-endian bytes as float32, which holds every type's numbers. So it is the
  same on every machine and mesh, in whatever type and layout the parameters are
  held, and differs for any other weight, step, encoding or tokenizer.
  """
  read_description(folder)  # refuses what isn't one
  record = files.read_json(pathlib.Path(folder) / DESCRIPTION)
  digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
  params = matmul.as_saved(params)
  stacked = integrity.by_path(params)
  for name, layers in sorted(_by_layer(params).items()):
    shape = np.shape(layers[0])
    shape = shape if name in stacked else (len(layers), *shape)
    digest.update(f"\n{name} float32 {shape}\n".encode())
    for part in layers:
      array = np.asarray(part).astype("<f4", order="C", copy=False)
      digest.update(array.reshape(-1).view(np.uint8).data)
  return f"sha256:{digest.hexdigest()}"


def _by_layer(params: Any) -> dict[str, list[Any]]:
  """Returns the arrays of each path, several where each layer has its own.

  The path is that of the stack of all layers.
  """
  found: dict[str, list[Any]] = {}
  for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
    _, name = integrity.own_place(path)
    found.setdefault(name, []).append(leaf)
  return found
