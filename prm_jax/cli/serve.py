"""`prm-jax serve`."""

from __future__ import annotations

import argparse
import os

from prm_jax import errors

try:
  from prm_jax.serving import app as app_lib
  from prm_jax.serving import server as server_lib
except ModuleNotFoundError as e:
  raise errors.InputError(
    f"serve needs {e.name}; pip install 'prm_jax[serve]'"
  ) from e
from prm_jax.serving import limits as limits_lib
from prm_jax.serving import models as models_lib

# The options that are limits.
_LIMITS = (
  *("max_tokens", "max_batch_tokens", "max_wait_ms", "max_queue"),
  *("deadline_s", "reload_s"),
)


def serve(args: argparse.Namespace) -> None:
  """Serves models until SIGTERM."""
  limits = limits_lib.Limits(**{name: getattr(args, name) for name in _LIMITS})
  keys = _keys(args.key_variable)
  if not (keys or args.insecure or server_lib.is_loopback(args.host)):
    raise errors.InputError(
      f"--host={args.host}: other machines could use the server without a key;"
      " give --key_variable, or --insecure if the network is closed"
    )
  models = _models(args.checkpoint, limits)
  with server_lib.listen(args.host, args.port) as listening:
    host, port = listening.getsockname()[:2]
    where = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
    print(
      f"{where}: {', '.join(models)}, {'with' if keys else 'without'} a key;"
      " compiling",
      flush=True,
    )
    server_lib.run(
      app_lib.Server(models, limits, keys),
      listening,
      lambda: print(f"{where}: ready", flush=True),
    )
  print(f"{where}: ended")


def _models(
  text: str, limits: limits_lib.Limits
) -> dict[str, models_lib.Model]:
  """Returns the models of --checkpoint, by their names."""
  models: dict[str, models_lib.Model] = {}
  for entry in text.split(","):
    name, _, folder = entry.rpartition("=")
    if not folder.strip():
      raise errors.InputError(
        f"--checkpoint={text}: an entry is empty; give FOLDER or NAME=FOLDER"
      )
    model = models_lib.load(folder.strip(), limits, name=name.strip() or None)
    if model.name in models:
      raise errors.InputError(
        f"--checkpoint={text}: two models are named {model.name!r}; name one"
        " with NAME=FOLDER"
      )
    models[model.name] = model
  return models


def _keys(variable: str | None) -> list[str]:
  """Returns the keys that an environment variable holds."""
  if variable is None:
    return []
  keys = [key.strip() for key in os.environ.get(variable, "").split(",")]
  if not all(keys):
    raise errors.InputError(
      f"--key_variable={variable}: the environment variable holds no key, or an"
      " empty one; set it to a key, or to several with commas between them"
    )
  return keys
