"""How an imported model is read, and what an export of ours says of it."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax import huggingface
from prm_jax import schema
from prm_jax.checkpoints import sampling_defaults
from prm_jax.huggingface import heads
from prm_jax.huggingface import import_policy
from prm_jax.models import kinds
from prm_jax.runtime import files
from prm_jax.runtime import foreign_files
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import foreign_tokenizers
from prm_jax.text import policy_text
from prm_jax.text import segmenters
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text import tokenizer_files

# Beside an export of ours: how it is read.
ENCODING_FILE = "prm_jax.json"


@dataclasses.dataclass(frozen=True)
class How:
  """How a model is read.

  Args:
    program: The name of its program.
    encoding: How a solution is encoded.
    aggregate: How step scores become a solution's score.
    head: The kind of its score head, as heads.kind_of returns it; None for the
      LM's own.
    head_fields: The fields of ModelConfig that say what the head is.
    judged: Which steps it judges, one of schema.JUDGED; None if unknown.
    sampling: See model_json.Description.
    ignored: What generation_config.json asks for that isn't done; see
      import_policy.Policy.
    segmenter: How a text is cut into steps; None if unknown, or if a policy's
      template says it.
  """

  program: str
  encoding: encoding.EncodingConfig
  aggregate: str
  head: str | None
  head_fields: Mapping[str, Any]
  judged: str | None = None
  sampling: Mapping[str, float] = dataclasses.field(default_factory=dict)
  ignored: tuple[str, ...] = ()
  segmenter: segmenters.Segmenter | None = None

  @property
  def kind(self) -> kinds.Kind:
    return kinds.KINDS[self.program]


def of_export(
  config: huggingface.Source, tensors: huggingface.Tensors, source: pathlib.Path
) -> How:
  """Returns how the model is read, as an export of ours has saved it."""
  where = source / ENCODING_FILE
  record = files.read_json(where)
  sampling = record.get("sampling", {})
  errors.raise_first(sampling_defaults.faults(sampling, where))
  try:
    head = heads.kind_of(config.architecture, tensors.names)
    about = heads.KINDS[head] if head else None
    fields = dict(about.fields) if about else {}
    kind = kinds.named(str(record["program"]), where)
    if "step" not in kind.heads:
      fields = fields if about and about.is_outcome else {}
    elif record["step_classes"] == 3:
      fields["step_classes"] = 3
    if record["step_tokens"]:
      tokens = tuple(int(x) for x in record["step_tokens"])
      fields = dict(step_head="tokens", step_tokens=tokens)
    judged, cut = record.get("judged"), record.get("segmenter")
    if judged not in (None, *schema.JUDGED):
      raise ValueError(f"judged is {judged!r}")
    return How(
      str(record["program"]),
      encoding_records.from_record(record["encoding"], where),
      str(record["aggregate"]),
      head,
      fields,
      judged,
      sampling,
      segmenter=None if cut is None else segmenters.from_record(cut),
    )
  except (KeyError, TypeError, ValueError) as e:
    raise _damaged(where, e) from None


def tokenizer_of_export(source: pathlib.Path) -> tokenizer_lib.Tokenizer:
  """Returns the tokenizer of an export of ours, control ids and all."""
  where = source / ENCODING_FILE
  try:
    described = files.read_json(where)["tokenizer"]
    if described["kind"] != "bytes":
      path = foreign_files.find(source, described["file"])
      if path is not None:
        foreign_tokenizers.check(path)
    return tokenizer_files.load(source, described)
  except (KeyError, TypeError) as e:
    raise _damaged(where, e) from None


def cut_by(
  how: How, segmenter: segmenters.Segmenter, source: pathlib.Path
) -> How:
  """Returns how a model is read if a segmenter cuts its texts into steps.

  Args:
    how: How it is read otherwise.
    segmenter: The segmenter.
    source: The Hugging Face folder.

  Raises:
    InputError: The model is a policy whose texts no segmenter cuts, or a
      language model of which that isn't decided.
  """
  template = how.encoding.template
  if isinstance(template, policy_text.PolicyTemplate) and (
    how.kind.writes or template.closing
  ):
    template = import_policy.cut_by(template, segmenter)
    encoding_config = dataclasses.replace(how.encoding, template=template)
    how = dataclasses.replace(how, encoding=encoding_config)
    if how.kind.writes:
      return how
  if not how.kind.writes:
    return dataclasses.replace(how, segmenter=segmenter)
  given = f"`segmenter={segmenters.name_of(segmenter)}`"
  if foreign_files.find(source, ENCODING_FILE):
    raise errors.InputError(
      f"{given}: {source} is a policy in our own form, whose steps end at a"
      " token of their own; leave it out"
    )
  raise errors.InputError(
    f"{given}: {source} is a language model whose format training decides, so"
    " nothing cuts its texts; give `role=policy` too, or leave it out"
  )


def _damaged(where: pathlib.Path, error: Exception) -> errors.InputError:
  return errors.InputError(
    f"{where}: damaged: {type(error).__name__}: {error}; copy the file again"
  )
