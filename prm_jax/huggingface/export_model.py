"""From a checkpoint folder to a Hugging Face folder with a model card.

Others must read the model as training did: so the template of an export is the
one that the checkpoint has, and the weights are those that were evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import itertools
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax import huggingface
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import parameters
from prm_jax.checkpoints import saves
from prm_jax.huggingface import card_fields
from prm_jax.huggingface import card_scoring
from prm_jax.huggingface import card_snippet
from prm_jax.huggingface import class_names
from prm_jax.huggingface import heads
from prm_jax.huggingface import how_read
from prm_jax.huggingface import import_model
from prm_jax.huggingface import model_card
from prm_jax.huggingface import origin_digests
from prm_jax.huggingface import peft_export
from prm_jax.huggingface import rounding
from prm_jax.models import kinds
from prm_jax.models import lora
from prm_jax.models import model_config
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.runtime import foreign_files
from prm_jax.runtime import forks
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import own_form
from prm_jax.text import policy_text
from prm_jax.text import segmenters
from prm_jax.text import templates
from prm_jax.text import tokenizer as tokenizer_lib

_CARD = card_fields.NAME


def export_folder(
  source: pathlib.Path,
  target: pathlib.Path,
  *,
  template: str | None = None,
  dtype: str | None = None,
  step: saves.Step = None,
  max_shard_bytes: int = 5 * 10**9,
  card: card_fields.Fields | None = None,
  base: pathlib.Path | None = None,
  sample: Sequence[schema.Solution] | None = None,
) -> model_card.Facts:
  """Makes a Hugging Face folder of a checkpoint folder, with a model card.

  Args:
    source: The checkpoint folder.
    target: The folder to make.
    template: How others must read the model: None is the checkpoint's own
      template, `native` our own form.
    dtype: One of DTYPES; None is the imported model's if it holds every number
      as it is, so of what wasn't trained, else float32.
    step: The training step; see saves.chosen.
    max_shard_bytes: The largest size of a file.
    card: Fields of the card; what isn't given, and all of them by None, is that
      of the imported model.
    base: The Hugging Face folder of the model that was adapted. The export then
      has the adapters and the head alone, in PEFT's form; None merges them.
    sample: If the dtype rounds, the solutions whose scores, or
      log-probabilities, are computed before and after; None is rounding.SAMPLE.

  Returns:
    What the model card says, in `rounding` how far the sample's numbers move.

  Raises:
    InputError: The checkpoint is read otherwise, its head or trunk has no place
      in a published architecture, a number doesn't fit the dtype, the sample
      has no steps, or the target isn't empty.
  """
  forks.check()
  import_model.check_new(target)
  origin = source / import_model.ORIGIN
  origin_digests.check(origin)
  description = model_json.read_description(source)
  step = saves.chosen(source, step)
  encoding_config, name = _encoding(source, description, template)
  raw = foreign_files.read_json(origin, "config.json")
  imported = raw.get("dtype") or raw.get("torch_dtype") or "float32"
  if base is not None:
    dtype = dtype or "float32"
  checks.check_choice("dtype", dtype or imported, huggingface.DTYPES)
  fields = card_fields.merged(
    card or card_fields.Fields(), card_fields.fields_of(origin, raw)
  )
  saved = parameters.load_params(source, description, step=step, dtype=None)
  model, params = lora.merge(description.model, saved)
  tokenizer = model_json.read_tokenizer(source, description)
  if dtype is None:
    dtype = imported if rounding.is_exact(params, imported) else "float32"
  moved: tuple[rounding.Moved, ...] = ()
  if base is None:
    evaluated = params
    params = rounding.rounded(evaluated, dtype)
    if not rounding.is_exact(evaluated, dtype):
      moved = rounding.moved(
        *(description, model, evaluated, params, tokenizer, encoding_config),
        sample,
      )
    del evaluated
  family = raw.get("model_type") or _family(model, source)
  program = kinds.KINDS[description.program]
  kind, head = heads.tensors(program, name, model, params, source)
  architecture = _architecture(family, kind, source)
  more, adapts = _labels(kind, head, raw), None
  if base is None:
    trunk = huggingface.export_tensors(family, model, params)
    huggingface.save(
      target,
      family,
      model,
      itertools.chain(trunk, head.items()),
      dtype=dtype,
      max_shard_bytes=max_shard_bytes,
      architecture=architecture,
      extra=raw | more,
    )
  else:
    base_model = fields.base_model or "BASE"
    adapts = card_scoring.Adapts(base_model, more.get("num_labels", 0))
    peft_export.save(
      *(target, base, source, family, description.model, saved, kind, head),
      base_model=fields.base_model or base.as_posix(),
      dtype=dtype,
    )
  _write_encoding(source, target, description, tokenizer)
  config, metrics = model_card.facts_of_run(source, step)
  facts = model_card.Facts(
    name=target.name,
    architecture=architecture,
    template=name,
    dtype=dtype,
    aggregate=description.aggregate,
    is_outcome=program.heads == ("outcome",),
    config=config,
    metrics=metrics,
    fields=fields,
    is_adapter=base is not None,
    judged=description.judged or program.judged,
    rounding=moved,
  )
  if not program.writes:
    plain = dataclasses.replace(model, compute_dtype="float32")
    scorer = scorer_lib.Scorer(
      *(description.program, plain, params, tokenizer, encoding_config),
      judged=facts.judged,
    )
    facts = _with_example(facts, target, scorer, adapts)
  with files.replacing(target / _CARD) as f:
    f.write(model_card.write(facts))
  return facts


def _encoding(
  source: pathlib.Path,
  description: model_json.Description,
  template: str | None,
) -> tuple[encoding.EncodingConfig, str]:
  """Returns how a checkpoint is read, and its template's name: `template`'s."""
  where = source / model_json.DESCRIPTION
  encoding_config = encoding_records.from_record(description.encoding, where)
  name = encoding_config.template.name
  if template not in (None, name):
    raise errors.InputError(
      f"{source}: is read as {name!r}; read as {template!r} its scores would be"
      f" others. Train with encoding.template={template!r}, or export it as"
      f" {name!r}"
    )
  return encoding_config, name


def _labels(
  kind: str, head: dict[str, Any], raw: dict[str, Any]
) -> dict[str, Any]:
  """Returns what config.json says of a head's classes, beside what was imported."""
  if kind in ("CausalLM", "RewardModel"):
    return {}
  if kind == "SequenceClassification" and len(raw.get("id2label") or ()) == 1:
    return {}
  return class_names.names_of(list(head.values())[-1].shape[0])


def _write_encoding(
  source: pathlib.Path,
  target: pathlib.Path,
  description: model_json.Description,
  tokenizer: tokenizer_lib.Tokenizer,
) -> None:
  """Writes the tokenizer, and how the model is read, for an import of ours."""
  origin = source / import_model.ORIGIN
  import_model.copy_small_files(origin, target, but=("config.json", _CARD))
  saved = tokenizer.save(target)
  if saved["kind"] == "huggingface" and not origin.is_dir():
    names = {f"{role}_token": saved[role] for role in ("bos", "eos")}
    files.write_json(target / "tokenizer_config.json", names)
  record = dict(
    program=description.program,
    tokenizer=saved,
    encoding=description.encoding,
    aggregate=description.aggregate,
    judged=description.judged,
    step_classes=description.model.step_classes,
    step_tokens=list(description.model.step_tokens),
  )
  if description.segmenter is not None:
    record["segmenter"] = segmenters.record_of(description.segmenter)
  if description.sampling:
    record["sampling"] = dict(description.sampling)
  files.write_json(target / how_read.ENCODING_FILE, record)


def _family(model: model_config.ModelConfig, source: pathlib.Path) -> str:
  """Returns the family that a model of ours, never imported, belongs to."""
  able = huggingface.families_of(model)
  if not able:
    raise errors.InputError(
      f"{source}: no published family has such a model; train one that"
      f" {', '.join(huggingface.FAMILIES)} could be"
    )
  return able[0]


def _architecture(family: str, kind: str, source: pathlib.Path) -> str:
  """Returns the class's name on the other side."""
  own = huggingface.FAMILIES[family].classes
  if kind not in own:
    able = [x.name for x in huggingface.FAMILIES.values() if kind in x.classes]
    raise errors.InputError(
      f"{source}: For{kind} is an architecture of {', '.join(able)}, and this"
      f" is {family}; train with {heads.KINDS[kind].instead}"
    )
  return own[kind]


def _with_example(
  facts: model_card.Facts,
  folder: pathlib.Path,
  scorer: scorer_lib.Scorer,
  adapts: card_scoring.Adapts | None,
) -> model_card.Facts:
  """Returns what the card says with an example, scored by exported numbers."""
  solution, tokenizer = model_card.EXAMPLE, scorer.tokenizer
  encoded = encoding.encode_whole(solution, tokenizer, scorer.encoding)
  scored = scorer.score(solution.problem, solution.steps)
  facts = dataclasses.replace(
    facts,
    example=model_card.Example(
      encoded.tokens.tolist(),
      encoded.step_end.tolist(),
      list(scored.scores),
      list(scored.judged),
    ),
    snippet=card_snippet.write(
      *(folder, facts.architecture, scorer.config, scorer.encoding, tokenizer),
      *(solution, encoded),
      adapts=adapts,
    ),
  )
  own = scorer.encoding.template
  if isinstance(own, policy_text.PolicyTemplate):
    facts = dataclasses.replace(
      facts, strips=own.strips, thinking=own.thinking, refuses=own.refuses
    )
    own = _as_parts(own)
  elif not isinstance(own, templates.PromptTemplate):
    own = _native(tokenizer, scorer.encoding)
  parts = {part: getattr(own, part) for part in templates.PARTS}
  return dataclasses.replace(facts, parts=parts)


def _as_parts(
  template: policy_text.PolicyTemplate,
) -> templates.PromptTemplate:
  """Returns a policy's template as parts, for a reader of the card."""
  first_step = (templates.STEP, templates.READ)
  step = (("text", template.separator), *first_step)
  closing: tuple[templates.TemplatePart, ...]
  closing = (("control", template.ends[0]),)
  if template.closing:
    closing = (*template.closing, templates.READ)
  cut = () if template.one_text else (templates.CUT,)
  return templates.PromptTemplate(
    template.name, (*template.opening, *cut), step, closing, first_step
  )


def _native(
  tokenizer: tokenizer_lib.Tokenizer, encoding_config: encoding.EncodingConfig
) -> templates.PromptTemplate:
  """Returns our own form as parts, for a reader of the card."""

  def control(role: str) -> templates.TemplatePart:
    return ("control", f"{role} (id {getattr(tokenizer, role)})")

  separator = control("separator")
  step = (templates.STEP, templates.READ, separator)
  if encoding_config.score_position == "separator":
    step = (templates.STEP, separator, templates.READ)
  opening = (control("bos"), templates.PROBLEM, separator)
  name = own_form.OWN.name
  return templates.PromptTemplate(name, opening, step, (control("eos"),))
