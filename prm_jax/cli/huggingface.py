"""`prm-jax import` and `prm-jax export`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
import pathlib
import sys
from typing import Any

from prm_jax import errors
from prm_jax.checkpoints import model_json
from prm_jax.cli import policies
from prm_jax.data import encoding
from prm_jax.data import policy_templates
from prm_jax.data import segmenters
from prm_jax.data.formats import jsonl
from prm_jax.huggingface import card_fields
from prm_jax.huggingface import export_model as export_model_lib
from prm_jax.huggingface import generation_config
from prm_jax.huggingface import hub
from prm_jax.huggingface import import_model as import_model_lib
from prm_jax.huggingface import import_policy
from prm_jax.huggingface import verify
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.training import programs


def import_model(args: argparse.Namespace) -> None:
  sources = [args.source, *filter(None, [args.prompt_file, args.base])]
  outputs.check(dict(to=args.to), sources, are_folders=True)
  policy = _policy_options(args)
  import_model_lib.check_new(args.to)  # before anything is downloaded
  name = args.source.as_posix() if hub.is_name(args.source) else None
  source = hub.local_folder(args.source, args.revision)
  base = None
  if args.base is not None:
    base = hub.local_folder(args.base)
    name = args.base.as_posix() if hub.is_name(args.base) else None
  with environment.remove_if_refused(args.to):
    imported = import_model_lib.import_folder(
      source,
      args.to,
      template=args.template,
      system=args.system if policy is None else None,
      dtype=args.dtype,
      policy=policy,
      segmenter=args.segmenter if policy is None else None,
      name=name,
      base=base,
    )
  described = imported.description
  template = described.encoding["template"]
  kind = "a policy, or what a training run starts from"
  if described.program not in programs.POLICIES:
    name = "native" if template is None else template["name"]
    kind = f"{programs.with_article(described.program)}, read as {name}"
  elif template is not None:
    kind = f"a policy, {_prompted(template)}"
  print(f"{args.to}: {imported.family}, {kind}")
  _warn_of_temperature(args.to, described)
  if args.prompt_file is not None and not template["stop"]:
    print(
      f"{args.prompt_file}: no text of it ends a solution, because no earlier"
      " line begins as the line with {problem} does; after examples the model"
      " may write further problems: begin each example as that line begins"
    )
  if imported.ignored:
    print(
      f"{', '.join(imported.ignored)} of generation_config.json: our sampler"
      " doesn't do this"
    )
  for name in imported.left_out:
    print(f"left out: {name}, which nothing reads")
  if args.verify:
    _verify(source, args.to, base)


# The options of a policy alone, and what each is if it isn't given.
_POLICY = ("policy_template", "thinking", "prompt_file")


def _policy_options(args: argparse.Namespace) -> import_policy.Options | None:
  """Returns how a policy is prompted; None if no policy is asked for.

  Raises:
    InputError: An option of a policy is given without --role=policy.
  """
  if args.role is None:
    for name in _POLICY:
      if getattr(args, name) is not None:
        raise errors.InputError(f"`{name}` is of a policy; give `role=policy`")
    return None
  prompt = None
  if args.prompt_file is not None:
    # Editors on Windows write a mark first.
    prompt = files.read_text(args.prompt_file).removeprefix("\ufeff")
  return import_policy.Options(
    policy_template=args.policy_template,
    system=args.system,
    thinking=args.thinking,
    prompt=prompt,
    segmenter=args.segmenter,
  )


def _warn_of_temperature(
  folder: pathlib.Path, described: model_json.Description
) -> None:
  """Prints at which temperature a chat model is sampled if nobody says it."""
  if described.program not in programs.POLICIES:
    return
  template = encoding.saved_encoding(described.encoding, folder).template
  if isinstance(
    template, policy_templates.PolicyTemplate
  ) and policies.lacks_temperature(template, described.sampling):
    print(
      f"{folder}: will be sampled at temperature 1, since"
      f" {generation_config.NAME} is missing or names none; give sample, search"
      " and label --temperature",
      file=sys.stderr,
    )


def _prompted(template: Mapping[str, Any]) -> str:
  """Returns how a policy is prompted, what ends it and how it is cut."""
  ends = ", ".join(template["ends"])
  stop = "".join(f", {text!r}" for text in template["stop"])
  cut = segmenters.name_of(segmenters.from_record(template["segmenter"]))
  return (
    f"prompted as {template['name']}; a solution ends at {ends}{stop}; steps are"
    f" cut by {cut}"
  )


def _verify(
  source: pathlib.Path, target: pathlib.Path, base: pathlib.Path | None
) -> None:
  """Prints how far the imported model is from transformers.

  base: The folder of what `source` adapts, if it is an adapter.

  Raises:
    InputError: It is too far, or can't be compared.
  """
  kept = f"{target} was imported, and is kept"
  try:
    compared = verify.compare(source, target, base)
  except errors.InputError as e:
    raise errors.InputError(f"verify: {e}; {kept}") from None
  difference = (
    f"{compared.num_values} {compared.what} differ from transformers' by"
    f" {compared.largest:.2g} at most"
  )
  if not compared.largest <= compared.tolerance:
    raise errors.InputError(
      f"verify: {difference}; up to {compared.tolerance:g} is rounding; don't"
      " use the model: report its config.json, or adapter_config.json, as a bug;"
      f" {kept}"
    )
  print(f"verified: {difference} (allowed: {compared.tolerance:g})")
  if compared.ids is None:
    return
  if compared.ids.agrees:
    print(f"verified: {compared.ids}")
  else:
    print(f"warning: verify: {compared.ids}", file=sys.stderr)


def export_model(args: argparse.Namespace) -> None:
  sources = [args.checkpoint, *filter(None, [args.base, args.sample])]
  outputs.check(dict(to=args.to), sources, are_folders=True)
  base = None if args.base is None else hub.local_folder(args.base)
  sample = None
  if args.sample is not None:
    sample = jsonl.read_solutions(args.sample)
  base_model = args.base_model
  if base_model is None and args.base is not None and hub.is_name(args.base):
    base_model = args.base.as_posix()
  with environment.remove_if_refused(args.to):
    facts = export_model_lib.export_folder(
      args.checkpoint,
      args.to,
      template=args.template,
      dtype=args.dtype,
      step=args.step,
      card=card_fields.Fields(
        base_model=base_model,
        license=args.license,
        datasets=tuple(args.dataset),
      ),
      base=base,
      sample=sample,
    )
  print(
    f"{args.to}: {facts.architecture}, {facts.dtype}, read as {facts.template};"
    " README.md says how"
  )
  for moved in facts.rounding:
    print(f"rounded to {facts.dtype}: {moved}")
  if args.sample is not None and not facts.rounding:
    print(
      f"{args.sample}: not scored: in {facts.dtype} no number of the checkpoint"
      " is rounded"
    )
