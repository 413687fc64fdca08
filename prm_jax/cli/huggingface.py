"""`prm-jax import` and `prm-jax export`."""

from __future__ import annotations

import argparse

from prm_jax.huggingface import export_model as export_model_lib
from prm_jax.huggingface import import_model as import_model_lib
from prm_jax.runtime import environment
from prm_jax.runtime import outputs
from prm_jax.training import programs


def import_model(args: argparse.Namespace) -> None:
  outputs.check(dict(to=args.to), [args.source], are_folders=True)
  with environment.remove_if_refused(args.to):
    imported = import_model_lib.import_folder(
      args.source, args.to, template=args.template, system=args.system
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
