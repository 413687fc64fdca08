"""How a Hugging Face folder's model is read: by its architecture, or by name."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax import huggingface
from prm_jax.huggingface import heads
from prm_jax.huggingface import how_read
from prm_jax.huggingface import import_policy
from prm_jax.huggingface import outcome_chat
from prm_jax.runtime import foreign_files
from prm_jax.text import encoding
from prm_jax.text import own_form
from prm_jax.text import policy_text
from prm_jax.text import segmenters
from prm_jax.text import templates
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text import tokenizer_files

# How the step scores of the published models are made one (peers' own code).
_AGGREGATES = dict(math_shepherd="min", rlhflow="mean")
# How their texts are cut, as their cards say; and whether all steps had labels.
SEGMENTERS = dict(qwen_prm=segmenters.PARAGRAPH)
_JUDGED = dict(math_shepherd="all", rlhflow="all")


def how_of(
  config: huggingface.Source,
  tensors: huggingface.Tensors,
  template: str | None,
  system: str | None,
  source: pathlib.Path,
) -> tuple[how_read.How, tokenizer_lib.Tokenizer]:
  """Returns how a model is read, by an export of ours, architecture or user."""
  if foreign_files.find(source, how_read.ENCODING_FILE) and system is None:
    how = how_read.of_export(config, tensors, source)
    # A policy of ours may be read as a PRM, as any language model may.
    if not how.kind.writes or template is None:
      name = how.encoding.template.name
      if template not in (None, name):
        raise errors.InputError(
          f"{source}: `template={template}` isn't how it is read:"
          f" {how_read.ENCODING_FILE} says {name}; leave the option out"
        )
      return how, how_read.tokenizer_of_export(source)
  tokenizer = tokenizer_files.from_folder(source)
  encoding_config = _unread(config)
  head = heads.kind_of(config.architecture, tensors.names)
  if head is not None and heads.KINDS[head].is_outcome:
    return _outcome(
      config, head, tokenizer, template=template, system=system, source=source
    ), tokenizer
  chosen = _template_name(config.architecture, head, template, source)
  if chosen is None:
    if system is not None:
      raise errors.InputError(
        f"`system={system!r}`: only a chat has one; give `role=policy` too if it"
        " is a policy's"
      )
    return how_read.How("sft", encoding_config, "product", None, {}), tokenizer
  written = templates.published(chosen, system=system).fitted(tokenizer)
  encoding_config = dataclasses.replace(encoding_config, template=written)
  fields = heads.KINDS[head].fields if head else _signs(chosen, tokenizer)
  aggregate = _AGGREGATES.get(chosen, "product")
  judged = _JUDGED.get(chosen)
  how = how_read.How("prm", encoding_config, aggregate, head, fields, judged)
  return how, tokenizer


def how_of_policy(
  config: huggingface.Source,
  tensors: huggingface.Tensors,
  template: str | None,
  options: import_policy.Options,
  source: pathlib.Path,
) -> tuple[how_read.How, tokenizer_lib.Tokenizer]:
  """Returns how a language model is prompted."""
  if template is not None:
    raise errors.InputError(
      f"`template={template}` reads a model as a PRM, and `role=policy` doesn't;"
      " give one"
    )
  head = heads.kind_of(config.architecture, tensors.names)
  if head is not None:
    raise errors.InputError(
      f"{source}: has a score head, so it isn't a policy; leave `role` out"
    )
  _template_name(config.architecture, head, None, source)
  if foreign_files.find(source, how_read.ENCODING_FILE):
    saved = how_read.of_export(config, tensors, source)
    own = saved.encoding.template
    if not isinstance(own, policy_text.PolicyTemplate) or (
      not saved.kind.writes
    ):
      raise errors.InputError(
        f"{source}: {how_read.ENCODING_FILE} says how it is read; leave `role` out"
      )
    kept = import_policy.read_saved(source, own, saved.sampling, options)
    if kept is not None:
      return _prompted(saved, kept), how_read.tokenizer_of_export(source)
  tokenizer = tokenizer_files.from_folder(source)
  policy = import_policy.read(source, tokenizer, options)
  how = how_read.How("sft", _unread(config), "product", None, {})
  return _prompted(how, policy), tokenizer


def _outcome(
  config: huggingface.Source,
  head: str,
  tokenizer: tokenizer_lib.Tokenizer,
  *,
  template: str | None,
  system: str | None,
  source: pathlib.Path,
) -> how_read.How:
  """Returns how an outcome reward model is read: in the folder's own chat."""
  if template is not None:
    raise errors.InputError(
      f"{source}: `template={template}` isn't how {config.architecture} is read:"
      " the chat template of its folder is; leave the option out"
    )
  pad = config.raw.get("pad_token_id")
  written = outcome_chat.template(
    source, tokenizer, pad=pad if isinstance(pad, int) else None, system=system
  )
  return how_read.How(
    "orm",
    dataclasses.replace(_unread(config), template=written),
    "last",
    head,
    heads.KINDS[head].fields,
    # It was trained at the end of whole solutions alone.
    "last",
    segmenter=written.segmenter,
  )


def _unread(config: huggingface.Source) -> encoding.EncodingConfig:
  """Returns the encoding of a model of which only its length is known."""
  length = config.raw.get("max_position_embeddings")
  is_known = isinstance(length, int) and length > 0
  return encoding.EncodingConfig(
    max_tokens=length if is_known else 4096, template=own_form.OWN
  )


def _prompted(how: how_read.How, policy: import_policy.Policy) -> how_read.How:
  """Returns how a model is read that is prompted and sampled as a policy."""
  return dataclasses.replace(
    how,
    encoding=dataclasses.replace(how.encoding, template=policy.template),
    sampling=policy.sampling,
    ignored=policy.ignored,
  )


def _template_name(
  architecture: str, head: str | None, wanted: str | None, source: pathlib.Path
) -> str | None:
  """Returns the template's name, or None for a language model as it is."""
  known = heads.KINDS[head].template if head else None
  if head is None and not architecture.endswith("ForCausalLM"):
    name = architecture or "config.json names no architecture"
    raise errors.InputError(
      f"{source}: {name}: expected a model ForCausalLM,"
      " ForTokenClassification, ForProcessRewardModel,"
      " ForSequenceClassification or ForRewardModel"
    )
  by_tokens = wanted in ("math_shepherd", "rlhflow")
  if wanted in (None, known) or (known is None and by_tokens):
    return wanted or known
  raise errors.InputError(
    f"{source}: `template={wanted}` isn't how {architecture} is read:"
    f" {known or 'math_shepherd, rlhflow or none'} is"
  )


def _signs(name: str, tokenizer: tokenizer_lib.Tokenizer) -> dict[str, Any]:
  """Returns the fields of a step head that is the LM's + against its -."""
  # Math-Shepherd's code encodes both as one text, which gives "_+" and "_-".
  ids = tokenizer.encode("+ -")
  if name == "rlhflow":
    ids = [tokenizer.encode(sign)[-1] for sign in "+-"]
  if len(ids) != 2 or ids[0] == ids[1]:
    raise errors.InputError(
      f"template {name!r}: this tokenizer has no token for + or for -; it isn't"
      " the tokenizer of such a model"
    )
  return dict(step_head="tokens", step_tokens=tuple(ids))
