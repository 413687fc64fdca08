"""Compares an imported model with transformers, on a few texts of our own.

transformers computes the trunk and the LM head in float32; the score heads of
published PRMs, which it has no class for, are applied here. PEFT adds an adapter
to its base. Both get our ids; whether transformers makes the same of a text is
compared by verify_ids. No code of the model's folder is run.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import importlib
import itertools
import pathlib
from typing import Any

import jax
import numpy as np

from prm_jax import errors
from prm_jax import huggingface
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import parameters
from prm_jax.huggingface import heads
from prm_jax.huggingface import import_model
from prm_jax.huggingface import model_card
from prm_jax.huggingface import peft_adapters
from prm_jax.huggingface import verify_ids
from prm_jax.models import kinds
from prm_jax.models import transformer
from prm_jax.rows import packing
from prm_jax.scoring import saved

SOLUTIONS = (
  model_card.EXAMPLE,
  schema.Solution("square", "Solve x^2 = 16.", ("So x = 4", "or x = -4.")),
  schema.Solution("short", "What is 17 * 3?", ("17 * 3 = 51",)),
)
# Float32 sums in another order differ by about 1e-5 at most in small models,
# and by more the deeper a model is. A wrong RoPE, norm or template differs by
# far more.
TOLERANCES = {"scores": 1e-3, "log-probabilities": 1e-2}

_Ids = np.ndarray


@dataclasses.dataclass(frozen=True)
class Comparison:
  """How far a model's numbers are from those of transformers.

  Args:
    what: What was compared: scores in [0, 1], or log-probabilities in nats.
    num_values: The number of values.
    largest: The largest difference.
    ids: Of which texts the ids differ; None if the tokenizer has no file.
  """

  what: str
  num_values: int
  largest: float
  ids: verify_ids.Ids | None = None

  @property
  def tolerance(self) -> float:
    return TOLERANCES[self.what]


def compare(
  source: pathlib.Path,
  checkpoint: pathlib.Path,
  base: pathlib.Path | None = None,
) -> Comparison:
  """Returns the largest difference of an import from transformers.

  Args:
    source: The Hugging Face folder.
    checkpoint: The checkpoint folder that was imported from it.
    base: The Hugging Face folder of the model that an adapter in `source`
      adapts; None if there is none.

  Raises:
    InputError: transformers, torch or peft isn't installed, or can't load the
      model.
  """
  _require(*["peft"] * (base is not None))
  description = model_json.read_description(checkpoint)
  if kinds.KINDS[description.program].writes:
    texts = _texts(checkpoint, description)
    ours = _our_log_probs(checkpoint, description, texts)
    theirs = _their_log_probs(source, base, texts)
    what = "log-probabilities"
  else:
    texts, places, ours = _our_scores(checkpoint)
    theirs = _their_scores(source, base, description, texts, places)
    what = "scores"
  differences = np.abs(np.concatenate(ours) - np.concatenate(theirs))
  # A NaN is no agreement.
  largest = float(np.nan_to_num(differences, nan=np.inf).max())
  folder = import_model.tokenizer_folder(source, base)
  tokenizer = model_json.read_tokenizer(checkpoint, description)
  plain = [_plain(x) for x in SOLUTIONS]
  ids = verify_ids.compare(folder, tokenizer, plain)
  return Comparison(what, len(differences), largest, ids)


def _require(*more: str) -> None:
  for name in ("torch", "transformers", *more):
    try:
      importlib.import_module(name)
    except ImportError as e:
      raise errors.InputError(
        f"{e.name} isn't installed, so nothing was compared; install"
        f" {', '.join(('torch', *more))} and transformers, for instance by the"
        " extra `parity`"
      ) from None


# --- Ours -------------------------------------------------------------------


def _our_scores(
  checkpoint: pathlib.Path,
) -> tuple[list[_Ids], list[_Ids], list[np.ndarray]]:
  """Returns the ids of texts, the places of their steps, and all scores."""
  scorer = saved.load(checkpoint, compute_dtype="float32")
  texts, places = [], []
  for solution in SOLUTIONS:
    encoded = scorer.encode(solution)
    # Steps that are read apart are as many texts.
    bounds = (*(encoded.starts or (0,)), len(encoded.tokens))
    for start, end in itertools.pairwise(bounds):
      at = encoded.step_end
      texts.append(encoded.tokens[start:end])
      places.append(at[(start <= at) & (at < end)] - start)
  with jax.default_matmul_precision("highest"):
    scored = scorer.score(SOLUTIONS)
  return texts, places, [np.asarray(x.scores) for x in scored]


def _texts(
  checkpoint: pathlib.Path, description: model_json.Description
) -> list[_Ids]:
  """Returns the ids of each solution's text, without controls of ours."""
  tokenizer = model_json.read_tokenizer(checkpoint, description)
  return [np.asarray(tokenizer.encode(_plain(x)), np.int32) for x in SOLUTIONS]


def _plain(solution: schema.Solution) -> str:
  return " ".join((solution.problem, *solution.steps))


def _our_log_probs(
  checkpoint: pathlib.Path,
  description: model_json.Description,
  texts: list[_Ids],
) -> list[np.ndarray]:
  """Returns the log-probability of every id but the first, in nats."""
  params = parameters.load_params(checkpoint, description, dtype="float32")
  plain = dataclasses.replace(description.model, compute_dtype="float32")
  width = packing.padded_length(max(map(len, texts)))
  batch = packing.fill([[packing.branches(x, [])] for x in texts], width)
  compute = jax.jit(lambda p, b: transformer.token_log_probs(plain, p, b))
  with jax.default_matmul_precision("highest"):
    log_probs = np.asarray(compute(params, batch))
  return [row[1 : len(x)] for row, x in zip(log_probs, texts, strict=True)]


# --- Theirs -----------------------------------------------------------------


def _their_log_probs(
  source: pathlib.Path, base: pathlib.Path | None, texts: list[_Ids]
) -> list[np.ndarray]:
  import torch

  model = _load("CausalLM", source, base)
  out = []
  for ids in texts:
    with torch.no_grad():
      logits = model(torch.tensor(ids[None].astype(np.int64))).logits[0]
    chosen = torch.tensor(ids[1:, None].astype(np.int64))
    log_probs = logits[:-1].log_softmax(-1).gather(-1, chosen)[:, 0]
    out.append(log_probs.numpy())
  return out


def _their_scores(
  source: pathlib.Path,
  base: pathlib.Path | None,
  description: model_json.Description,
  texts: list[_Ids],
  places: list[_Ids],
) -> list[np.ndarray]:
  import torch

  opened = peft_adapters.opened(source, base)
  config, tensors = opened.config, opened.tensors
  kind = heads.kind_of(config.architecture, tensors.names)
  has_class = kind in (None, "TokenClassification", "SequenceClassification")
  layers: list[str] = []
  order: tuple[int, ...]
  if kind is None:
    good, bad = description.model.step_tokens
    order, model = (bad, good), _load("CausalLM", source, base)
  else:
    kernels = [p for p in heads.KINDS[kind].names if p[-1] == "kernel"]
    layers = [heads.KINDS[kind].names[path] for path in kernels]
    num = tensors.entries[layers[-1]].shape[0]
    order = heads.order_of(kind, config, num, source)
    if has_class:
      model = _load(kind, source, base, num_labels=num)
    elif base is None:
      model = _load(None, source, base)
    else:
      model = _load("CausalLM", source, base).model
  out = []
  for ids, at in zip(texts, places, strict=True):
    batch = torch.tensor(ids[None].astype(np.int64))
    with torch.no_grad():
      if kind == "SequenceClassification":
        # The class itself says the last one alone, of the whole text.
        hidden = model.model(batch).last_hidden_state[0, at].numpy()
        logits = _head(tensors, layers, hidden)
        logits[-1] = model(batch).logits[0].numpy()
      elif has_class:
        logits = model(batch).logits[0, at].numpy()
      else:
        hidden = model(batch).last_hidden_state[0, at].numpy()
        logits = _head(tensors, layers, hidden)
    out.append(_good(logits[:, [*order]]))
  return out


def _head(
  tensors: huggingface.Tensors, layers: Sequence[str], x: np.ndarray
) -> np.ndarray:
  """Returns the logits of a published head, given the names of its weights.

  x: What the trunk computes.
  """
  for k, name in enumerate(layers):
    x = np.maximum(x, 0) if k else x
    x = x @ tensors.read(name).astype(np.float32).T
    bias = f"{name.removesuffix('.weight')}.bias"
    if bias in tensors.names:
      x += tensors.read(bias).astype(np.float32)
  return x


def _good(logits: np.ndarray) -> np.ndarray:
  """Returns the probability of all classes but the first, which is bad.

  Of one logit, that of an outcome, it is the sigmoid.
  """
  if logits.shape[-1] == 1:
    logits = np.concatenate([np.zeros_like(logits), logits], axis=-1)
  powers = np.exp(logits - logits.max(-1, keepdims=True))
  return powers[:, 1:].sum(-1) / powers.sum(-1)


def _load(
  kind: str | None,
  source: pathlib.Path,
  base: pathlib.Path | None,
  **fields: Any,
) -> Any:
  """Returns a model of transformers in float32, from safetensors alone.

  Args:
    kind: What the model is for, as transformers' classes are named; None is the
      trunk alone.
    source: The Hugging Face folder of the model, or of an adapter.
    base: The folder of what the adapter adapts, which PEFT then adds to it;
      None if `source` is no adapter.
    **fields: Further fields of the model's config.
  """
  import torch
  import transformers

  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  name = "AutoModel" if kind is None else f"AutoModelFor{kind}"
  adapting = False
  try:
    model = getattr(transformers, name).from_pretrained(
      str(base or source),
      dtype=torch.float32,
      trust_remote_code=False,
      use_safetensors=True,
      local_files_only=True,
      **fields,
    )
    adapting = base is not None
    if base is not None:
      import peft

      model = peft.PeftModel.from_pretrained(
        model, str(source), torch_device="cpu", use_safetensors=True
      ).merge_and_unload()
  except Exception as e:  # whatever is in such a folder
    reason = (str(e).strip() or type(e).__name__).splitlines()[0]
    library, folder = "transformers", base or source
    if adapting:
      library, folder = "PEFT", source
    raise errors.InputError(
      f"{folder}: {library} can't load it: {reason[:200]}"
    ) from None
  return model.eval()
