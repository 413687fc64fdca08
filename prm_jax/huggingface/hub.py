"""Models of the Hugging Face Hub, by their names there.

`huggingface_hub` downloads them and keeps them in its cache; `HF_HUB_OFFLINE=1`
keeps it from the network. Weights are fetched as safetensors only: neither
pickles nor code is downloaded.
"""

from __future__ import annotations

import pathlib
import re
import shlex

import huggingface_hub

from prm_jax import errors
from prm_jax.runtime import files

# What is fetched, of the files directly in the repository. Some have the same
# weights in another form beside these ("consolidated", "original/", "onnx/").
PATTERNS = (
  *("model*.safetensors", "model.safetensors.index.json", "config.json"),
  *("tokenizer*", "vocab.json", "merges.txt", "special_tokens_map.json"),
  *("added_tokens.json", "chat_template.jinja", "generation_config.json"),
  *("prm_jax.json", "README.md", "adapter_config.json"),
  "adapter_model.safetensors",
)
_SUBFOLDERS = "*/*"
NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def local_folder(
  source: files.PathLike, revision: str | None = None
) -> pathlib.Path:
  """Returns a model's folder on this machine; fetches it if it is a Hub's name.

  Args:
    source: A folder, or ORG/NAME if there is neither a folder of that name nor
      one named ORG.
    revision: A branch, tag or commit of a model on the Hub; None is its main
      branch.

  Raises:
    InputError: There is no such folder, the model can't be fetched, or a folder
      is given a revision.
  """
  folder = pathlib.Path(source)
  if not is_name(source):
    if revision is not None:
      raise errors.InputError(
        f"`revision={revision}`: {folder} isn't a model on the Hugging Face"
        " Hub, and a folder has no revisions; leave it out"
      )
    if not folder.is_dir():
      raise errors.InputError(
        f"{folder}: no such folder; give a model's folder, or its name on the"
        " Hugging Face Hub (OWNER/MODEL)"
      )
    return folder
  return _fetched(folder.as_posix(), revision)


def is_name(source: files.PathLike) -> bool:
  """Returns whether something names a model on the Hub, and no local folder."""
  path = pathlib.Path(source)
  if NAME.fullmatch(path.as_posix()) is None:
    return False
  # runs/mine, mistyped, is a mistake and no model of "runs".
  return not path.exists() and not path.parent.exists()


def _fetched(name: str, revision: str | None) -> pathlib.Path:
  """Returns the folder of a model in the Hub's cache."""
  try:
    return pathlib.Path(
      huggingface_hub.snapshot_download(
        name,
        revision=revision,
        allow_patterns=list(PATTERNS),
        ignore_patterns=[_SUBFOLDERS],
      )
    )
  except Exception as e:  # whatever the network, the Hub or its cache raises
    # The rest of such a message is advice for users of that library.
    reason = (str(e).strip() or type(e).__name__).splitlines()[0].strip()
    words = ["hf", "download", name]
    words += [] if revision is None else ["--revision", revision]
    words += [x for pattern in PATTERNS for x in ("--include", pattern)]
    own = name.partition("/")[2]
    words += ["--exclude", _SUBFOLDERS, "--local-dir", own]
    raise errors.InputError(
      f"{name}: no such folder, and it can't be fetched from the Hugging Face"
      f" Hub: {reason[:200].rstrip('.')}; or download it elsewhere, with"
      f" `{shlex.join(words)}`, and give {own}"
    ) from None
