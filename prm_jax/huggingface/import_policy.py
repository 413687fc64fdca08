"""How a published language model is prompted and sampled, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib

from prm_jax import errors
from prm_jax.huggingface import chat_templates
from prm_jax.huggingface import conversations
from prm_jax.huggingface import generation_config
from prm_jax.huggingface import token_names
from prm_jax.runtime import checks
from prm_jax.text import policy_templates
from prm_jax.text import policy_text
from prm_jax.text import segmenters
from prm_jax.text import tokenizer as tokenizer_lib

AUTO = "auto"


@dataclasses.dataclass(frozen=True)
class Options:
  """What a user says of a policy.

  Args:
    policy_template: One of policy_templates.NAMES, or AUTO: the folder's chat
      template, and without one the problem and a line break. None is the
      template that an export of ours has saved, else AUTO.
    system: The system turn; None is the template's own.
    thinking: Whether the model may think; None is the template's own.
    prompt: A text with {problem} in it, which replaces the template.
    segmenter: How a text is cut into steps, as segmenters.parse takes it; None
      is the template's own.
  """

  policy_template: str | None = None
  system: str | None = None
  thinking: bool | None = None
  prompt: str | None = None
  segmenter: str | None = None

  def __post_init__(self):
    if self.policy_template is not None:
      names = (AUTO, *policy_templates.NAMES)
      checks.check_choice("policy_template", self.policy_template, names)
    if self.segmenter is not None:
      segmenters.parse(self.segmenter)
    if self.prompt is None:
      return
    for name in ("system", "thinking"):
      if getattr(self, name) is not None:
        raise errors.InputError(
          f"`{name}` is of a chat, and `prompt_file` is plain text; give one"
        )
    if self.policy_template not in (None, AUTO, "plain"):
      raise errors.InputError(
        f"`policy_template={self.policy_template}` and `prompt_file`: give one"
      )


@dataclasses.dataclass(frozen=True)
class Policy:
  """How a policy is prompted and sampled.

  Args:
    template: How it is prompted.
    sampling: How it is sampled if nobody says otherwise; see
      sampling_defaults.
    ignored: What generation_config.json asks for that isn't done, as
      "name=value".
  """

  template: policy_text.PolicyTemplate
  sampling: Mapping[str, float]
  ignored: tuple[str, ...]


def read(
  folder: pathlib.Path, tokenizer: tokenizer_lib.Tokenizer, options: Options
) -> Policy:
  """Returns how a Hugging Face folder's model is prompted and sampled.

  Args:
    folder: The folder.
    tokenizer: Its tokenizer.
    options: What the user says.

  Raises:
    InputError: The chat template isn't of a supported form, the tokenizer lacks
      a control of the template, or no token ends a solution.
  """
  config = generation_config.read(folder)
  names = token_names.by_id(folder, tokenizer)
  template = _template(folder, tokenizer, options, _ends(folder, config, names))
  template.fitted(tokenizer)  # it refuses
  if options.segmenter is not None:
    template = cut_by(template, segmenters.parse(options.segmenter))
  return Policy(template, config.sampling, config.ignored)


def read_saved(
  folder: pathlib.Path,
  template: policy_text.PolicyTemplate,
  sampling: Mapping[str, float],
  options: Options,
) -> Policy | None:
  """Returns how an export's policy is prompted and sampled, as it has saved it.

  Args:
    folder: The export's folder.
    template: The template that it has saved.
    sampling: The sampling that it has saved.
    options: What the user says.

  Returns:
    The policy; None if the user gives another template.

  Raises:
    InputError: An option is given that the saved template can't have.
  """
  if options.policy_template is not None or options.prompt is not None:
    return None
  for name in ("system", "thinking"):
    if getattr(options, name) is not None:
      raise errors.InputError(
        f"`{name}`: {folder} has a saved template, {template.name}, which"
        " doesn't change; leave it out, or give `policy_template=auto` too, which"
        " reads the chat template instead"
      )
  if options.segmenter is not None:
    template = cut_by(template, segmenters.parse(options.segmenter))
  return Policy(template, sampling, generation_config.read(folder).ignored)


def cut_by(
  template: policy_text.PolicyTemplate, segmenter: segmenters.Segmenter
) -> policy_text.PolicyTemplate:
  """Returns a template whose texts are cut into steps by a segmenter."""
  between = segmenters.between(segmenter)
  return dataclasses.replace(template, segmenter=segmenter, separator=between)


def _template(
  folder: pathlib.Path,
  tokenizer: tokenizer_lib.Tokenizer,
  options: Options,
  ends: Sequence[str],
) -> policy_text.PolicyTemplate:
  """Returns the template that was named, or that of the folder."""
  name = options.policy_template or AUTO
  is_chat = name in policy_templates.CHATS
  if name == AUTO and options.prompt is None:
    is_chat = chat_templates.source(folder) is not None
    name = AUTO if is_chat else "plain"
  if name == AUTO and is_chat:
    template = chat_templates.policy_template(
      folder, tokenizer, system=options.system, thinking=options.thinking
    )
    learned = conversations.of_folder(
      folder, tokenizer, template.ends[0], options.thinking
    )
    template = dataclasses.replace(
      template, conversation=learned.template, no_conversation=learned.reason
    )
    return policy_templates.with_ends(template, ends)
  if not ends and not is_chat:
    raise errors.InputError(
      f"{folder}: neither {generation_config.NAME} nor {token_names.CONFIG}"
      " names a token that ends a text; add an eos_token"
    )
  bos = None if is_chat else _first(folder, tokenizer)
  if options.prompt is not None:
    return policy_templates.plain(ends, options.prompt, bos=bos)
  return policy_templates.published(
    name, system=options.system, thinking=options.thinking, ends=ends, bos=bos
  )


def _ends(
  folder: pathlib.Path,
  config: generation_config.GenerationConfig,
  names: Mapping[int, str],
) -> tuple[str, ...]:
  """Returns the names of the tokens that the folder says end a text."""
  unnamed = [i for i in config.ends if i not in names]
  if unnamed:
    raise errors.InputError(
      f"{folder / generation_config.NAME}: eos_token_id {unnamed[0]} is no"
      " control token of the tokenizer, so a text could end a solution; correct"
      " the file"
    )
  eos = token_names.special(folder).get("eos_token")
  if config.ends or eos not in names.values():
    return tuple(names[i] for i in config.ends)
  return (str(eos),)


def _first(
  folder: pathlib.Path, tokenizer: tokenizer_lib.Tokenizer
) -> str | None:
  """Returns the name of the token that the tokenizer puts before a text."""
  whole = token_names.as_published(folder)
  if whole is None:
    return tokenizer.bos_name
  first = token_names.published_ids(
    folder, whole, "x", add_special_tokens=True
  )[:1]
  names = token_names.by_id(folder, tokenizer)
  return names.get(first[0]) if first else None
