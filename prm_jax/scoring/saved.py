"""A reward model of a checkpoint folder, as a Scorer."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax.checkpoints import held
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.models import kinds
from prm_jax.models import lora
from prm_jax.models import model_config
from prm_jax.runtime import files
from prm_jax.scoring import scorer
from prm_jax.text import encoding_records
from prm_jax.text import tokenizer as tokenizer_lib


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


def load_pair(
  folder: files.PathLike,
  reference: files.PathLike,
  step: saves.Step = None,
  layout: str = "padded",
  *,
  compute_dtype: str | None = None,
  batch_tokens: int | None = None,
  beta: float = 1.0,
  step_score: str = "increment",
) -> scorer.Scorer:
  """Returns two policies as a scorer: an implicit PRM that nobody trained.

  A step's score is sigmoid(beta log(policy / reference)) of its tokens. With a
  policy trained by RL and the one that it was trained from, that log-ratio is
  the progress advantage (Oh et al. 2026, arXiv 2606.26080).

  Args:
    folder: The checkpoint folder of the policy.
    reference: That of the other one; its latest parameters are loaded.
    step: See load, of the policy.
    layout: padded or packed; see load.
    compute_dtype: See load, of both.
    batch_tokens: See load.
    beta: The scale of the log-ratio.
    step_score: How the tokens of a step make its score: increment (their sum),
      mean, or cumulative (the sum of all up to its end).

  Returns:
    The scorer, which judges every step.

  Raises:
    InputError: A folder can't be read or holds no policy, or the two differ in
      more than their weights and whether they have adapters.
  """
  folder, reference = pathlib.Path(folder), pathlib.Path(reference)
  description = _policy(folder)
  other = _policy(reference)
  tokenizer = model_json.read_tokenizer(folder, description)
  pair = description.model, other.model
  adapted = next((x for x in pair if x.lora_rank), description.model)
  adapters = {name: getattr(adapted, name) for name in lora.FIELDS}
  alike: dict[str, Any] = dict(
    remat="none", scan=False, compute_dtype="float32"
  )
  shapes = [
    dataclasses.replace(x, **alike, **({} if x.lora_rank else adapters))
    for x in pair
  ]
  for what, is_same in (
    ("shape", shapes[0] == shapes[1]),
    ("encoding", description.encoding == other.encoding),
    (
      "tokenizer",
      tokenizer_lib.same_ids(
        tokenizer, model_json.read_tokenizer(reference, other)
      ),
    ),
  ):
    if not is_same:
      raise errors.InputError(
        f"{reference}: has another {what} than {folder}; give the policy that"
        " this one was trained from"
      )
  model = dataclasses.replace(description.model, **adapters)
  model = model_config.computing_in(model, compute_dtype)
  params = held.load(folder, description, model, step)
  params = {k: v for k, v in params.items() if k != kinds.REFERENCE}
  reference_params = held.load(reference, other, model)
  return scorer.Scorer(
    "implicit",
    model,
    {
      **lora.with_none(params, reference_params),
      kinds.REFERENCE: lora.with_none(reference_params, params),
    },
    tokenizer,
    encoding_records.from_record(
      description.encoding, folder / model_json.DESCRIPTION
    ),
    scoring=dict(beta=beta, step_score=step_score),
    layout=layout,
    batch_tokens=scorer.BATCH_TOKENS if batch_tokens is None else batch_tokens,
    aggregate=description.aggregate,
    judged="all",
    segmenter=description.segmenter,
  )


def _policy(folder: pathlib.Path) -> model_json.Description:
  """Returns the description of a policy's folder; refuses another's."""
  description = model_json.read_description(folder)
  where = folder / model_json.DESCRIPTION
  if not kinds.named(description.program, where).writes:
    raise errors.InputError(
      f"{folder}: holds {kinds.with_article(description.program)} model; two"
      " policies are compared: give the folder of an sft or rl run, or of an"
      " imported policy"
    )
  return description
