"""A reward model of a checkpoint folder, as a Scorer."""

from __future__ import annotations

import pathlib

from prm_jax import errors
from prm_jax.checkpoints import held
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.models import kinds
from prm_jax.models import model_config
from prm_jax.runtime import files
from prm_jax.scoring import scorer
from prm_jax.text import encoding_records


def load(
  folder: files.PathLike,
  step: saves.Step = None,
  layout: str = "padded",
  *,
  compute_dtype: str | None = None,
  batch_tokens: int | None = None,
) -> scorer.Scorer:
  """Returns the scorer of a checkpoint folder.

  Args:
    folder: The checkpoint folder.
    step: The training step whose parameters are loaded; None is the latest one
      that was saved, "best" that of the run's fit.best_metric.
    layout: How solutions are put into rows: padded, packed or tree; see
      scorer.Scorer.
    compute_dtype: The type of matmuls and activations, float32, bfloat16 or
      float16; None is that of the checkpoint.
    batch_tokens: The most tokens in a batch; None is Scorer's default.

  Returns:
    The scorer.

  Raises:
    InputError: The folder can't be read, holds a policy or lacks the step, the
      layout is unknown or doesn't fit the model, or the type is unknown.
  """
  folder = pathlib.Path(folder)
  description = model_json.read_description(folder)
  where = folder / model_json.DESCRIPTION
  if kinds.named(description.program, where).scores is None:
    raise errors.InputError(
      f"{folder}: holds {kinds.with_article(description.program)} model,"
      " which has no scores;"
      " give the folder of an implicit prm, a prm or an orm"
    )
  encoding_config = encoding_records.from_record(description.encoding, where)
  model = model_config.computing_in(description.model, compute_dtype)
  return scorer.Scorer(
    description.program,
    model,
    held.load(folder, description, model, step),
    model_json.read_tokenizer(folder, description),
    encoding_config,
    scoring=description.scoring,
    layout=layout,
    batch_tokens=scorer.BATCH_TOKENS if batch_tokens is None else batch_tokens,
    aggregate=description.aggregate,
    judged=description.judged,
    segmenter=description.segmenter,
  )
