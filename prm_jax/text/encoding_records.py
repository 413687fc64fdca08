"""Encodings as configs and checkpoints have them: templates by name, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

from prm_jax import errors
from prm_jax.runtime import checks
from prm_jax.text import encoding
from prm_jax.text import own_form
from prm_jax.text import policy_templates
from prm_jax.text import template as template_lib
from prm_jax.text import templates
from prm_jax.text import tokenizer as tokenizer_lib

# In a config: the template of the policy that a run starts from.
OF_POLICY = "policy"
NAMES = (*templates.NAMES, OF_POLICY)


def named(name: Any) -> template_lib.Template:
  """Returns the template that a config names.

  Args:
    name: One of templates.NAMES; None is our own form.

  Raises:
    InputError: There is no such template, or it is OF_POLICY, which has no
      policy here.
  """
  if name is None:
    return own_form.OWN
  checks.check_choice("encoding.template", name, NAMES)
  if name == OF_POLICY:
    raise errors.InputError(
      f"encoding.template={OF_POLICY!r}: set init_from to the policy whose"
      " template it is"
    )
  return templates.published(name)


def config_name(template: template_lib.Template) -> str | None:
  """Returns what a config calls a template."""
  if template.of_policy:
    return OF_POLICY
  return None if template == own_form.OWN else template.name


def with_template(
  encoding_config: encoding.EncodingConfig, tokenizer: tokenizer_lib.Tokenizer
) -> encoding.EncodingConfig:
  """Returns the encoding with its template as a tokenizer writes it.

  Raises:
    InputError: The tokenizer can't hold the template's separators.
  """
  template = encoding_config.template.fitted(tokenizer)
  return dataclasses.replace(encoding_config, template=template)


def record_of(encoding_config: encoding.EncodingConfig) -> dict[str, Any]:
  """Returns an encoding as a checkpoint saves it."""
  record = dataclasses.asdict(encoding_config)
  # Our own form, which has no fields, is null.
  return record | dict(template=record["template"] or None)


def from_record(fields: Any, where: object) -> encoding.EncodingConfig:
  """Returns the encoding whose fields a checkpoint saved.

  Raises:
    InputError: The fields are damaged; the message names `where` they are.
  """
  if not isinstance(fields, Mapping):
    raise errors.InputError(
      f"{where}: damaged encoding: expected an object; restore the original"
      " file"
    )
  fields = dict(fields)
  try:
    template = fields.get("template")
    if isinstance(template, Mapping):
      kind = policy_templates if "ends" in template else templates
      fields["template"] = kind.from_record(template)
    else:
      fields["template"] = named(template)
    return encoding.EncodingConfig(**fields)
  except (TypeError, ValueError, KeyError) as e:
    raise errors.InputError(
      f"{where}: damaged encoding: {' '.join(str(e).split())}; restore the"
      " original file"
    ) from None
