"""The arguments of `import` and `export`."""

from __future__ import annotations

import argparse

from prm_jax.cli import arguments
from prm_jax.cli import model_arguments


def add_exchange(commands: arguments.Parser) -> None:
  """Adds import and export."""
  importing = commands.add_command(
    "import",
    "convert a Hugging Face model to a checkpoint folder of prm_jax",
    "huggingface.import_model",
    compiles=True,
  )
  importing.add_path(
    "--from",
    "the folder of the Hugging Face model, or its name on the Hub, ORG/NAME,"
    " which huggingface_hub downloads into its cache",
    required=True,
    dest="source",
  )
  importing.add_path(
    "--base",
    "if --from is a PEFT adapter, the folder or the Hub's name of the model that"
    " it adapts; the checkpoint has both, not merged",
  )
  importing.add_output(
    "--to", "the checkpoint folder to write; it must be new", required=True
  )
  importing.add_option(
    "--template",
    "read a language model as a PRM in this format: math_shepherd or rlhflow"
    " (default: PRMs with a score head are recognised; any other model is"
    " imported as a language model)",
  )
  importing.add_option(
    "--system",
    "for templates that are chats, the system message to use (default: the"
    " template's own)",
  )
  _add_policy(importing)
  importing.add_option(
    "--dtype",
    "float32: save the weights so, and compute in it (default: in the type that"
    " they have, as bfloat16)",
  )
  importing.add_option(
    "--revision",
    "the branch, tag or commit of a model on the Hub (default: its main branch)",
  )
  importing.add_switch(
    "--verify",
    "afterwards compare the model's scores, or the log-probabilities of a"
    " language model, with those of transformers, which must be installed (and"
    " PEFT for --base)",
  )

  export = commands.add_command(
    "export",
    "convert a checkpoint folder to a Hugging Face model with a model card",
    "huggingface.export_model",
    compiles=True,
  )
  export.add_path(
    "--checkpoint", "the checkpoint folder to convert", required=True
  )
  export.add_output(
    "--to", "the folder to write; it must be new", required=True
  )
  export.add_option(
    "--template",
    "refuse the export if the checkpoint doesn't read this format; native is"
    " prm_jax's own (default: no check)",
  )
  export.add_option(
    "--dtype",
    "the type of the saved numbers: float32, bfloat16 or float16; if it rounds"
    " them, the command prints by how much scores move (default: float32, or of"
    " an import that wasn't trained the type that it came in)",
  )
  export.add_path(
    "--sample",
    "the solutions, in JSON Lines, whose scores are computed before and after"
    " rounding, or of a policy the log-probabilities (default: 46 steps of"
    " school mathematics)",
  )
  model_arguments.add(export, "step")
  export.add_path(
    "--base",
    "write the adapters and the head alone, as a PEFT adapter of this model: its"
    " Hugging Face folder, or its name on the Hub; it must be the model that"
    " they were trained on (default: the adapters are merged)",
  )
  export.add_option(
    "--base_model",
    "for the model card, the Hub's name of the model that training started from"
    " (default: that of the imported model, if it is known)",
  )
  export.add_option(
    "--license",
    "for the model card, the licence as the Hub names it, such as apache-2.0"
    " (default: that on the imported model's card)",
  )
  export.add_option(
    "--dataset",
    "for the model card, the Hub's name of a dataset that the model was trained"
    " on; may be repeated",
    action="append",
    default=[],
  )


def _add_policy(importing: arguments.Parser) -> None:
  """Adds how an imported policy is prompted."""
  importing.add_option(
    "--role",
    "policy: also save how the model is prompted, what ends its texts and how"
    " they are cut into steps, from its chat template and"
    " generation_config.json (docs/policies.md)",
    choices=("policy",),
  )
  importing.add_option(
    "--policy_template",
    "with --role=policy, a known template: qwen2_5, qwen2_5_math, qwen3, llama3,"
    " llama3_1, mistral, gemma, plain or gsm8k_4_shot; auto renders the folder's"
    " chat template (default: the template that an export of ours has saved, or"
    " else auto)",
  )
  importing.add_argument(
    "--thinking",
    action=argparse.BooleanOptionalAction,
    help="with --role=policy, whether a model that can think does so before its"
    " solution (default: as its chat template has it)",
  )
  importing.add_path(
    "--prompt_file",
    "with --role=policy, a text file with {problem} in it, once, to write before"
    " a solution, such as solved examples (default: see --policy_template)",
  )
  importing.add_option(
    "--segmenter",
    "for a reward model, a policy that prm_jax exported, or with --role=policy,"
    f" how texts are cut into steps: {arguments.SEGMENTERS} (default: as the policy's"
    " template or the reward model's authors do; for some it isn't known)",
  )
