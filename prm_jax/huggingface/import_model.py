"""From a Hugging Face folder to a checkpoint folder.

An imported model keeps how it is read: a PRM's template is recognised by its
architecture, or named, and saved with the checkpoint. The small files of the
Hugging Face folder are kept in ORIGIN: an export begins from them, and has the
dtype of the imported tensors. The model computes in this dtype, too.
"""

from __future__ import annotations

from collections.abc import Collection
import dataclasses
import pathlib
import shutil

from prm_jax import errors
from prm_jax import huggingface
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.huggingface import heads
from prm_jax.huggingface import how_read
from prm_jax.huggingface import import_policy
from prm_jax.huggingface import origin_digests
from prm_jax.huggingface import peft_adapters
from prm_jax.huggingface import recognise
from prm_jax.models import model_config as model_config
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.runtime import foreign_files
from prm_jax.runtime import forks
from prm_jax.text import encoding
from prm_jax.text import segmenters

ORIGIN = "origin"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "prm_jax.json")
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
    how: How it is read, which `description` holds as plain data.
    left_out: The names of tensors that nothing reads.
    source: The Hugging Face folder.
    base: That of the model which an adapter in `source` adapts, or None.
  """

  family: str
  description: model_json.Description
  how: how_read.How
  left_out: tuple[str, ...]
  source: pathlib.Path
  base: pathlib.Path | None


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
  base: pathlib.Path | None = None,
) -> Imported:
  """Makes a checkpoint folder of a Hugging Face folder.

  Args:
    source: The Hugging Face folder.
    target: The folder to make.
    template: One of templates.NAMES, for a language model that is read as a PRM
      (math_shepherd, rlhflow); other PRMs are recognised. Without a template a
      language model is a policy, or what a training run starts from.
    system: Another system turn, if the template is a chat.
    dtype: "float32" saves all parameters so, and computes in it; None keeps the
      dtype of the tensors, and computes in that (in float32 if they have
      several). What is trained from them is float32 in either case.
    policy: How a language model is prompted, which is saved; None saves
      nothing of it, unless the folder is our export of a policy.
    segmenter: How the texts of a reward model, or of a policy that we exported,
      are cut into steps, as segmenters.parse takes it; None is as its template
      says or its authors do, if that is known.
    name: The model's name on the Hub, which the cards of exports give as their
      base model; None is what its config.json says.
    base: The Hugging Face folder of the model that an adapter in `source`
      adapts; None if there is none. The checkpoint has both, not merged.

  Raises:
    InputError: A file is missing or damaged, a number isn't finite, the model
      or its head isn't supported, or the target isn't empty.
  """
  forks.check()
  check_new(target)
  if dtype is not None:
    checks.check_choice("dtype", dtype, ("float32",))
  opened = peft_adapters.opened(source, base)
  config, tensors = opened.config, opened.tensors
  texts = tokenizer_folder(source, base)
  if policy is None:
    how, tokenizer = recognise.how_of(config, tensors, template, system, texts)
  else:
    how, tokenizer = recognise.how_of_policy(
      config, tensors, template, policy, texts
    )
  if segmenter is not None:
    how = how_read.cut_by(how, segmenters.parse(segmenter), texts)
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
    tensors, config.family, config.model, lm_head=how.head is None, dtype=dtype
  )
  model = dataclasses.replace(config.model, **how.head_fields)
  used: list[str] = []
  if how.head is not None:
    head, used = heads.read(
      *(how.head, config, tensors, unused, model, how.kind, source), dtype=dtype
    )
    params[f"{how.kind.heads[0]}_head"] = head
  left_out = sorted({*unused} - {*used})
  unknown = [name for name in left_out if name != "lm_head.weight"]
  if unknown:
    raise errors.InputError(
      f"{source}: tensors that this model has no place for:"
      f" {', '.join(unknown[:4])}; is {config.architecture} the right one?"
    )
  if opened.adapter is not None:
    params = peft_adapters.add_params(params, opened, dtype)
    model = dataclasses.replace(model, **opened.fields)
  trunk = huggingface.tensor_shapes(
    config.family, config.model, how.head is None
  )
  stored = tensors.common_dtype([*trunk, *used])
  model = model_config.computing_in(model, dtype or stored)
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
    segmenter=how.segmenter
    or recognise.SEGMENTERS.get(how_read.template_name(how.encoding)),
    sampling=how.sampling,
  )
  copy_small_files(base or source, target / ORIGIN)
  if texts != (base or source):
    copy_small_files(texts, target / ORIGIN, but=("config.json", "README.md"))
  # The dtype in config.json may be another than the tensors', and an export
  # would round to it.
  record = {**config.raw, **(dict(_name_or_path=name) if name else {})}
  if (record.get("dtype") or record.get("torch_dtype")) != stored:
    record.pop("dtype", None)
    record["torch_dtype"] = stored
  if record != config.raw:
    files.write_json(target / ORIGIN / "config.json", record)
  origin_digests.write(target / ORIGIN)
  saves.save_params(target, params, description)
  # The description comes last: a folder that has one is whole.
  model_json.write_description(target, description)
  return Imported(
    config.family, description, how, tuple(left_out), source, base
  )


def tokenizer_folder(
  source: pathlib.Path, base: pathlib.Path | None
) -> pathlib.Path:
  """Returns the folder of the tokenizer and chat: an adapter's own or its base's.

  Args:
    source: The Hugging Face folder of a model or an adapter.
    base: That of the adapter's base; None if there is none.
  """
  own = any(foreign_files.find(source, name) for name in _TOKENIZERS)
  return source if own or base is None else base


def check_new(target: pathlib.Path) -> None:
  """Raises InputError unless a target is new or empty."""
  if target.exists() and not target.is_dir():
    raise errors.InputError(f"{target}: is a file; give a new folder")
  if target.exists() and any(target.iterdir()):
    raise errors.InputError(f"{target}: isn't empty; give a new folder")


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
