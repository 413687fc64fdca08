"""`prm-jax serve`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
import os
import time

from prm_jax import errors

try:
  from prm_jax.serving import app as app_lib
  from prm_jax.serving import server as server_lib
except ModuleNotFoundError as e:
  raise errors.InputError(
    f"serve needs {e.name}; pip install 'prm_jax[serve]'"
  ) from e
from prm_jax.cli import model_arguments
from prm_jax.data import segmenters
from prm_jax.inference import score_sources
from prm_jax.serving import limits as limits_lib
from prm_jax.serving import models as models_lib
from prm_jax.serving import sources

# The options that are limits.
_LIMITS = (
  *("max_tokens", "max_batch_tokens", "max_batch_solutions", "cache_tokens"),
  *("max_wait_ms", "max_queue", "deadline_s", "reload_s"),
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
  models = _models(args, limits)
  num_programs = sum(
    len(model.programs())
    for model in models.values()
    if isinstance(model, models_lib.Model)
  )
  with server_lib.listen(args.host, args.port) as listening:
    host, port = listening.getsockname()[:2]
    where = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
    print(
      f"{where}: {_shown(models)}, {'with' if keys else 'without'} a key;"
      f" compiling {num_programs:,} programs",
      flush=True,
    )
    start = time.monotonic()

    def print_ready() -> None:
      took = time.monotonic() - start
      print(f"{where}: compiled in {took:,.0f} s: ready", flush=True)

    server_lib.run(app_lib.Server(models, limits, keys), listening, print_ready)
  print(f"{where}: ended")


def _shown(models: Mapping[str, sources.Served]) -> str:
  """Returns the models' names, of checkpoints with the type they compute in."""
  return ", ".join(
    f"{name} ({model.scorer.config.compute_dtype})"
    if isinstance(model, models_lib.Model)
    else name
    for name, model in models.items()
  )


def _models(
  args: argparse.Namespace, limits: limits_lib.Limits
) -> dict[str, sources.Served]:
  """Returns the models of --checkpoint, by their names."""
  text = args.checkpoint
  segmenter = args.segmenter and segmenters.parse(args.segmenter)
  key = score_sources.Key(args.upstream_key_variable, args.insecure_key)
  how = model_arguments.of(args)
  entries = [_entry(entry.strip()) for entry in text.split(",")]
  _check_kinds(args, [sources.is_source(where) for _, where in entries])
  models: dict[str, sources.Served] = {}
  for name, where in entries:
    if not where:
      raise errors.InputError(
        f"--checkpoint={text}: an entry is empty; give FOLDER or NAME=FOLDER"
      )
    model: sources.Served
    if sources.is_source(where):
      model = sources.load(
        where, limits, name=name, segmenter=segmenter, key=key
      )
    else:
      model = models_lib.load(
        where,
        limits,
        name=name,
        segmenter=segmenter,
        compute_dtype=how.dtype,
      )
    if model.name in models:
      raise errors.InputError(
        f"--checkpoint={text}: two models are named {model.name!r}; name one"
        " with NAME=FOLDER"
      )
    models[model.name] = model
  cuts = {x.name: x.segmenter for x in models.values() if x.segmenter}
  if segmenter and segmenter not in cuts.values():
    name, own = next(iter(cuts.items()))
    raise errors.InputError(
      f"--segmenter={args.segmenter}: the checkpoint of {name!r} says that texts"
      f" are cut by {segmenters.name_of(own)!r}; take it out"
    )
  return models


def _entry(text: str) -> tuple[str | None, str]:
  """Returns the name in an entry of --checkpoint, if any, and what it names.

  A folder, a file and an address may hold a "=", too: a name ends at the first
  one, unless all of the entry is an address, or is there without a name.

  Args:
    text: The entry.
  """
  name, equals, where = text.partition("=")
  if not equals or "://" in name:
    return None, text
  path = score_sources.path_of(text)
  # Unlike path.exists(), it takes any text.
  if path is not None and os.path.exists(path):
    return None, text
  return name.strip() or None, where.strip()


def _check_kinds(args: argparse.Namespace, are_sources: list[bool]) -> None:
  """Refuses options of checkpoints, or of others, if there are none of them."""
  for name in ("upstream_key_variable", "insecure_key"):
    if getattr(args, name) and not any(are_sources):
      raise errors.InputError(
        f"--{name} is for what isn't a checkpoint, and --checkpoint="
        f"{args.checkpoint} has only checkpoints; take it out"
      )
  if args.dtype and all(are_sources):
    raise errors.InputError(
      f"--dtype={args.dtype} is for checkpoints, and --checkpoint="
      f"{args.checkpoint} has none; take it out"
    )


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
