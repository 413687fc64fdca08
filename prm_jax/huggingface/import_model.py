"""From a Hugging Face folder to a checkpoint folder.

An imported model keeps how it is read: a PRM's template is recognised by its
architecture, or named, and saved with the checkpoint. The small files of the
Hugging Face folder are kept in ORIGIN: an export begins from them, and has the
dtype of the imported tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import pathlib
import shutil
from typing import Any

from prm_jax import errors
from prm_jax import huggingface
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.data import encoding
from prm_jax.data import policy_templates
from prm_jax.data import segmenters
from prm_jax.data import templates
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.huggingface import heads
from prm_jax.huggingface import how_read
from prm_jax.huggingface import import_policy
from prm_jax.huggingface import origin_digests
from prm_jax.huggingface import outcome_chat
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.runtime import foreign_files

NATIVE = "native"
ORIGIN = "origin"
# How the step scores of the published models are made one (peers' own code).
_AGGREGATES = dict(math_shepherd="min", rlhflow="mean")
# How their texts are cut, as their cards say; and whether all steps had labels.
_SEGMENTERS = dict(qwen_prm=segmenters.PARAGRAPH)
_JUDGED = dict(math_shepherd="all", rlhflow="all")
_COPIED = (
  *("config.json", "tokenizer_config.json", "special_tokens_map.json"),
  *("added_tokens.json", "chat_template.jinja", "generation_config.json"),
  *("vocab.json", "merges.txt", "README.md"),
)


@dataclasses.dataclass(frozen=True)
class Imported:
  """A family's model and how it is read.

  Args:
    family: The name of the family.
    description: What model.json holds.
    left_out: The names of tensors that nothing reads.
    ignored: What generation_config.json asks for that isn't done; see
      import_policy.Policy.
  """

  family: str
  description: model_json.Description
  left_out: tuple[str, ...]
  ignored: tuple[str, ...] = ()


def import_folder(
  source: pathlib.Path,
  target: pathlib.Path,
  *,
  template: str | None = None,
  system: str | None = None,
  dtype: str | None = None,
  policy: import_policy.Options | None = None,
  segmenter: str | None = None,
  name: str | None = None,
) -> Imported:
  """Makes a checkpoint folder of a Hugging Face folder.

  Args:
    source: The Hugging Face folder.
    target: The folder to make.
    template: One of templates.NAMES, for a language model that is read as a PRM
      (math_shepherd, rlhflow); other PRMs are recognised. Without a template a
      language model is a policy, or what a training run starts from.
    system: Another system turn, if the template is a chat.
    dtype: "float32" saves all parameters so; None keeps the dtype of the
      tensors. What is trained from them is float32 in either case.
    policy: How a language model is prompted, which is saved; None saves
      nothing of it, unless the folder is our export of a policy.
    segmenter: How the texts of a reward model, or of a policy that we exported,
      are cut into steps, as segmenters.parse takes it; None is as its template
      says or its authors do, if that is known.
    name: The model's name on the Hub, which the cards of exports give as their
      base model; None is what its config.json says.

  Raises:
    InputError: A file is missing or damaged, a number isn't finite, the model
      or its head isn't supported, or the target isn't empty.
  """
  check_new(target)
  if dtype is not None:
    checks.check_choice("dtype", dtype, ("float32",))
  config = huggingface.read_config(source)
  tensors = huggingface.open_tensors(source)
  if policy is None:
    how, tokenizer = _how(config, tensors, template, system, source)
  else:
    how, tokenizer = _policy(config, tensors, template, policy, source)
  if segmenter is not None:
    how = how_read.cut_by(how, segmenters.parse(segmenter), source)
  needed = encoding.num_ids(how.encoding, tokenizer)
  # Without a template, the encoding of a language model is decided when it is
  # trained.
  is_decided = how.encoding.template is not None or not how.kind.writes
  if is_decided and needed > config.model.vocab_size:
    raise errors.InputError(
      f"{source}: the tokenizer has ids up to {needed - 1}, the model"
      f" {config.model.vocab_size} of them; copy the model's own tokenizer"
    )
  params, unused = huggingface.load_params(
    tensors,
    config.family,
    config.model,
    lm_head=how.head is None,
    dtype=dtype,
  )
  model = dataclasses.replace(config.model, **how.head_fields)
  used: list[str] = []
  if how.head is not None:
    head, used = heads.read(
      how.head, tensors, unused, model, how.kind, source, dtype=dtype
    )
    params[f"{how.kind.heads[0]}_head"] = head
  left_out = sorted({*unused} - {*used})
  unknown = [name for name in left_out if name != "lm_head.weight"]
  if unknown:
    raise errors.InputError(
      f"{source}: tensors that this model has no place for:"
      f" {', '.join(unknown[:4])}; is {config.architecture} the right one?"
    )
  try:
    target.mkdir(parents=True, exist_ok=True)
  except OSError as e:
    raise errors.InputError(
      f"{target}: can't be made: {e.strerror}; give another folder"
    ) from None
  description = model_json.Description(
    program=how.program,
    model=model,
    encoding=dataclasses.asdict(how.encoding),
    tokenizer=tokenizer.save(target),
    aggregate=how.aggregate,
    judged=how.judged,
    segmenter=how.segmenter or _SEGMENTERS.get(how.template_name),
    sampling=how.sampling,
  )
  copy_small_files(source, target / ORIGIN)
  trunk = huggingface.tensor_shapes(
    config.family, config.model, how.head is None
  )
  own = dict(_name_or_path=name) if name else {}
  _write_config(target / ORIGIN, config.raw, own, tensors, [*trunk, *used])
  origin_digests.write(target / ORIGIN)
  saves.save_params(target, params, description)
  # The description comes last: a folder that has one is whole.
  model_json.write_description(target, description)
  return Imported(config.family, description, tuple(left_out), how.ignored)


def check_new(target: pathlib.Path) -> None:
  """Raises InputError unless a target is new or empty."""
  if target.exists() and not target.is_dir():
    raise errors.InputError(f"{target}: is a file; give a new folder")
  if target.exists() and any(target.iterdir()):
    raise errors.InputError(f"{target}: isn't empty; give a new folder")


def _how(
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
      _check_template(how.encoding, template, source)
      return how, how_read.tokenizer_of_export(source)
  tokenizer = tokenizer_lib.from_folder(source)
  encoding_config = _unread(config)
  head = heads.kind_of(config.architecture, tensors.names)
  if head in heads.OUTCOME_HEADS:
    return _outcome(
      config, head, tokenizer, template=template, system=system, source=source
    ), tokenizer
  name = _template_name(config.architecture, head, template, source)
  if name is None:
    if system is not None:
      raise errors.InputError(
        f"`system={system!r}`: only a chat has one; give `role=policy` too if it"
        " is a policy's"
      )
    return how_read.How("sft", encoding_config, "product", None, {}), tokenizer
  written = templates.published(name, bos=tokenizer.bos_name, system=system)
  templates.check_tokenizer(written, tokenizer)
  encoding_config = dataclasses.replace(encoding_config, template=written)
  fields = heads.fields_of(head) if head else _signs(name, tokenizer)
  aggregate = _AGGREGATES.get(name, "product")
  judged = _JUDGED.get(name)
  how = how_read.How("prm", encoding_config, aggregate, head, fields, judged)
  return how, tokenizer


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
    source,
    tokenizer,
    pad=pad if isinstance(pad, int) else None,
    system=system,
  )
  return how_read.How(
    "orm",
    dataclasses.replace(_unread(config), template=written),
    "last",
    head,
    heads.fields_of(head),
    # It was trained at the end of whole solutions alone.
    "last",
    segmenter=written.segmenter,
  )


def _unread(config: huggingface.Source) -> encoding.EncodingConfig:
  """Returns the encoding of a model of which only its length is known."""
  length = config.raw.get("max_position_embeddings")
  is_known = isinstance(length, int) and length > 0
  return encoding.EncodingConfig(max_tokens=length if is_known else 4096)


def _policy(
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
    if not isinstance(own, policy_templates.PolicyTemplate) or (
      not saved.kind.writes
    ):
      raise errors.InputError(
        f"{source}: {how_read.ENCODING_FILE} says how it is read; leave `role` out"
      )
    kept = import_policy.read_saved(source, own, saved.sampling, options)
    if kept is not None:
      return _prompted(saved, kept), how_read.tokenizer_of_export(source)
  tokenizer = tokenizer_lib.from_folder(source)
  policy = import_policy.read(source, tokenizer, options)
  how = how_read.How("sft", _unread(config), "product", None, {})
  return _prompted(how, policy), tokenizer


def _prompted(how: how_read.How, policy: import_policy.Policy) -> how_read.How:
  """Returns how a model is read that is prompted and sampled as a policy."""
  return dataclasses.replace(
    how,
    encoding=dataclasses.replace(how.encoding, template=policy.template),
    sampling=policy.sampling,
    ignored=policy.ignored,
  )


def _write_config(
  origin: pathlib.Path,
  raw: Mapping[str, Any],
  own: Mapping[str, Any],
  tensors: huggingface.Tensors,
  names: Sequence[str],
) -> None:
  """Puts fields, and the tensors' own dtype, into the origin's config.json.

  The dtype there may be another, and an export would round to it. Several
  dtypes become float32, which holds each of them exactly.
  """
  dtypes = {tensors.dtype(name) for name in names}
  stored = dtypes.pop() if len(dtypes) == 1 else "float32"
  record = {**raw, **own}
  if (raw.get("dtype") or raw.get("torch_dtype")) != stored:
    record.pop("dtype", None)
    record["torch_dtype"] = stored
  if record != raw:
    files.write_json(origin / "config.json", record)


def template_name(encoding_config: encoding.EncodingConfig) -> str:
  """Returns the name of a saved encoding's template, NATIVE without one."""
  template = encoding_config.template
  assert not isinstance(template, str), "a checkpoint's is data"
  return NATIVE if template is None else template.name


def _check_template(
  encoding_config: encoding.EncodingConfig,
  wanted: str | None,
  source: pathlib.Path,
) -> None:
  """Refuses to read an export of ours in another template than its own."""
  name = template_name(encoding_config)
  if wanted not in (None, name):
    raise errors.InputError(
      f"{source}: `template={wanted}` isn't how it is read:"
      f" {how_read.ENCODING_FILE} says {name}; leave the option out"
    )


def _template_name(
  architecture: str, head: str | None, wanted: str | None, source: pathlib.Path
) -> str | None:
  """Returns the template's name, or None for a language model as it is."""
  known = heads.TEMPLATES[head] if head else None
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


def pass_origin_on(start: pathlib.Path, workdir: pathlib.Path) -> None:
  """Copies an imported checkpoint's origin into what was trained from it."""
  if (start / ORIGIN).is_dir() and start.resolve() != workdir.resolve():
    origin_digests.check(start / ORIGIN)
    copy_small_files(start / ORIGIN, workdir / ORIGIN)
    origin_digests.write(workdir / ORIGIN)


def copy_small_files(
  source: pathlib.Path, folder: pathlib.Path, *, but: Collection[str] = ()
) -> None:
  """Copies what an export gives back as it was, or reads; all but some names."""
  folder.mkdir(parents=True, exist_ok=True)
  for name in _COPIED:
    path = None if name in but else foreign_files.find(source, name)
    if path is not None:
      shutil.copyfile(path, folder / name)
