"""`prm-jax import` and `prm-jax export`."""

from __future__ import annotations

import argparse
import pathlib

from prm_jax import errors
from prm_jax.huggingface import export_model as export_model_lib
from prm_jax.huggingface import hub
from prm_jax.huggingface import import_model as import_model_lib
from prm_jax.huggingface import verify
from prm_jax.runtime import environment
from prm_jax.runtime import outputs
from prm_jax.training import programs


def import_model(args: argparse.Namespace) -> None:
  outputs.check(dict(to=args.to), [args.source], are_folders=True)
  import_model_lib.check_new(args.to)  # before anything is downloaded
  source = hub.local_folder(args.source, args.revision)
  with environment.remove_if_refused(args.to):
    imported = import_model_lib.import_folder(
      source,
      args.to,
      template=args.template,
      system=args.system,
      dtype=args.dtype,
    )
  described = imported.description
  encoding_config = described.encoding["template"]
  kind = "a policy, or what a training run starts from"
  if described.program not in programs.POLICIES:
    template = "native" if encoding_config is None else encoding_config["name"]
    kind = f"a {described.program}, read as {template}"
  print(f"{args.to}: {imported.family}, {kind}")
  for name in imported.left_out:
    print(f"left out: {name}, which nothing reads")
  if args.verify:
    _verify(source, args.to)


def _verify(source: pathlib.Path, target: pathlib.Path) -> None:
  """Prints how far the imported model is from transformers.

  Raises:
    InputError: It is too far, or can't be compared.
  """
  kept = f"{target} was imported, and is kept"
  try:
    compared = verify.compare(source, target)
  except errors.InputError as e:
    raise errors.InputError(f"verify: {e}; {kept}") from None
  difference = (
    f"{compared.num_values} {compared.what} differ from transformers' by"
    f" {compared.largest:.2g} at most"
  )
  if not compared.largest <= compared.tolerance:
    raise errors.InputError(
      f"verify: {difference}; up to {compared.tolerance:g} is rounding; don't"
      f" use the model: report its config.json as a bug; {kept}"
    )
  print(f"verified: {difference} (allowed: {compared.tolerance:g})")


def export_model(args: argparse.Namespace) -> None:
  outputs.check(dict(to=args.to), [args.checkpoint], are_folders=True)
  with environment.remove_if_refused(args.to):
    facts = export_model_lib.export_folder(
      args.checkpoint,
      args.to,
      template=args.template,
      dtype=args.dtype,
      step=args.step,
    )
  print(
    f"{args.to}: {facts.architecture}, {facts.dtype}, read as {facts.template};"
    " README.md says how"
  )
