"""model.json: what a checkpoint folder says about its model."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import hashlib
import json
import pathlib
import sys
from typing import Any

import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import integrity
from prm_jax.data import segmenters
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.models import config as model_config
from prm_jax.runtime import files

FORMAT = 1


DESCRIPTION = "model.json"


@dataclasses.dataclass(frozen=True)
class Description:
  """What a checkpoint folder says about its model.

  program: sft, rl, prm, orm or implicit. encoding: the fields of
  encoding.EncodingConfig.
  tokenizer: what tokenizer.load takes. aggregate: how its step scores become
  one. scoring: beta and step_score of an implicit PRM. judged: which steps its
  scores are trained for, one of schema.JUDGED; None in older checkpoints.
  segmenter: how a text is cut into steps, one of data.segmenters.NAMES; None if
  that isn't known.
  """

  program: str
  model: model_config.ModelConfig
  encoding: Mapping[str, Any]
  tokenizer: Mapping[str, Any]
  aggregate: str = "product"
  scoring: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  judged: str | None = None
  segmenter: str | None = None


def write_description(folder: pathlib.Path, description: Description) -> None:
  record = dataclasses.asdict(description) | dict(format=FORMAT)
  for name in ("scoring", "judged", "segmenter"):
    if not record[name]:
      del record[name]  # so that folders without it stay as they were
  files.write_json(folder / DESCRIPTION, record)


def read_description(folder: pathlib.Path) -> Description:
  """Returns a folder's description, its model with attention "auto".

  What computed attention in training says nothing of the machine and the rows
  here: it may be a kernel for other devices, or one that knows no trees.

  Raises:
    InputError: this isn't a checkpoint folder, or one of a later format.
  """
  path = pathlib.Path(folder) / DESCRIPTION
  try:
    record = json.loads(path.read_bytes())
    if record.pop("format") != FORMAT:
      raise errors.InputError(f"{path}: a newer format; update prm_jax")
    model = dict(record["model"], attention="auto")
    record["model"] = model_config.from_record(model)
    record.setdefault("scoring", {})
    if "reading" in record:  # its name in checkpoints of before
      record["encoding"] = record.pop("reading")
    for name in ("encoding", "tokenizer", "scoring"):
      if not isinstance(record[name], dict):
        raise TypeError(f"{name} is {record[name]!r}; expected an object")
    for name, choices in (
      ("judged", schema.JUDGED),
      ("segmenter", segmenters.NAMES),
    ):
      if record.get(name) not in (None, *choices):
        raise ValueError(f"{name} is {record[name]!r}")
    return Description(**record)
  except FileNotFoundError:
    remedy = "give the `workdir` of a training run"
    if next(path.parent.glob("*.safetensors*"), None):
      remedy = "prm-jax import makes one of a Hugging Face folder"
    raise errors.InputError(
      f"{folder}: not a checkpoint folder: it has no {DESCRIPTION}; {remedy}"
    ) from None
  except OSError as e:
    raise errors.InputError(f"{path}: can't be read: {e.strerror}") from None
  except errors.InputError:
    raise
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise errors.InputError(f"{path}: damaged: {integrity.reason(e)}") from None


def read_tokenizer(
  folder: pathlib.Path, description: Description
) -> tokenizer_lib.Tokenizer:
  """Returns a folder's tokenizer.

  Raises:
    InputError: its file is another one, or the description of it is damaged.
  """
  try:
    return tokenizer_lib.load(pathlib.Path(folder), description.tokenizer)
  except errors.InputError:
    raise
  except (KeyError, TypeError, ValueError) as e:
    raise errors.InputError(
      f"{pathlib.Path(folder) / DESCRIPTION}: damaged tokenizer: {integrity.reason(e)};"
      " restore the original file"
    ) from None


def fingerprint(folder: pathlib.Path, params: Any) -> str:
  """Returns "sha256:" and the digest of a model: description and parameters.

  It goes through the description as it is saved (in the order of its names)
  and then, in the order of their paths, each parameter's path, type, shape and
  little-endian bytes. So it is the same on every machine and mesh, and another
  one for any other weight, step, encoding or tokenizer.
  """
  read_description(folder)  # refuses what isn't one
  record = json.loads((pathlib.Path(folder) / DESCRIPTION).read_bytes())
  digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
  for name, x in sorted(integrity.by_path(params).items()):
    array = np.ascontiguousarray(x)
    if sys.byteorder != "little":
      array = array.byteswap()
    digest.update(f"\n{name} {array.dtype} {np.shape(x)}\n".encode())
    digest.update(array.reshape(-1).view(np.uint8).data)
  return f"sha256:{digest.hexdigest()}"
