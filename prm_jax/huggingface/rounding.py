"""Weights in a file of fewer bits: what is lost, and how far scores move.

A run's evaluation is of the weights that it saved. Rounded to bfloat16 many
small updates are the base's weights again, so an export rounds only if it is
asked to, and then says what that does to scores.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import integrity
from prm_jax.checkpoints import model_json
from prm_jax.models import model_config as model_config
from prm_jax.policy import codecs
from prm_jax.policy import log_likelihood
from prm_jax.records import jsonl
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.text import encoding
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.training import programs

# Solutions of school mathematics, right ones and wrong ones.
SAMPLE = pathlib.Path(__file__).with_name("sample_solutions.jsonl")


@dataclasses.dataclass(frozen=True)
class Moved:
  """How far a sample's numbers move if the weights are rounded.

  Args:
    what: What was computed: scores in [0, 1], or log-probabilities in nats.
    compute_dtype: The type of the matmuls, the same for both.
    num_values: How many numbers there are: of steps, or of tokens.
    largest: The largest difference.
    mean: The mean of the absolute differences.
    lowest: The smallest number before rounding.
    highest: The largest one.
    num_crossed: How many scores are on the other side of schema.THRESHOLD
      afterwards; None for log-probabilities.
  """

  what: str
  compute_dtype: str
  num_values: int
  largest: float
  mean: float
  lowest: float
  highest: float
  num_crossed: int | None

  def __str__(self) -> str:
    unit = "steps" if self.num_crossed is not None else "tokens"
    crossed = ""
    if self.num_crossed is not None:
      crossed = (
        f"; {self.num_crossed} of {self.num_values} change side of"
        f" {schema.THRESHOLD}"
      )
    return (
      f"the {self.what} of {self.num_values} {unit}, from {self.lowest:.4g} to"
      f" {self.highest:.4g}, move by {self.largest:.2g} at most, {self.mean:.2g}"
      f" on average{crossed} (computed in {self.compute_dtype})"
    )


def is_exact(params: Any, dtype: str) -> bool:
  """Returns whether a file of that dtype holds every number as it is."""
  return all(_is_exact(x, dtype) for x in jax.tree.leaves(params))


def rounded(params: Any, dtype: str) -> Any:
  """Returns the parameters as a file of that dtype will hold them.

  Raises:
    InputError: A number isn't finite, or doesn't fit the dtype.
  """

  def of_leaf(path, x):
    small = x if x.dtype == dtype else x.astype(dtype).astype(x.dtype)
    if not jnp.isfinite(small).all():
      name = integrity.name_of(path)
      if not jnp.isfinite(x).all():
        raise errors.InputError(
          f"{name} holds numbers that aren't finite; export another `step`"
        )
      raise errors.InputError(
        f"`dtype={dtype}`: {name} holds {float(jnp.abs(x).max()):.3g}, which"
        " doesn't fit; use bfloat16"
      )
    return small

  return jax.tree_util.tree_map_with_path(of_leaf, params)


def moved(
  description: model_json.Description,
  model: model_config.ModelConfig,
  before: Any,
  after: Any,
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: encoding.EncodingConfig,
  sample: Sequence[schema.Solution] | None = None,
) -> tuple[Moved, ...]:
  """Returns how far a sample's numbers move from some weights to others.

  Args:
    description: What the checkpoint's model.json holds.
    model: The shape of the model, without adapters.
    before: Its parameters.
    after: The same, rounded.
    tokenizer: Its tokenizer.
    encoding_config: How it is read.
    sample: The solutions; None is SAMPLE.

  Returns:
    One record of float32 arithmetic, and before it one of the type in which the
    checkpoint computes, if that is another: so it was evaluated.

  Raises:
    InputError: The sample is empty, or can't be read.
  """
  solutions = list(jsonl.read(SAMPLE)) if sample is None else list(sample)
  if not any(x.steps for x in solutions):
    raise errors.InputError("`sample`: has no steps; give solutions with steps")
  plain = dataclasses.replace(encoding_config, max_tokens=None)
  writes = programs.KINDS[description.program].writes

  def numbers(params: Any, computing: model_config.ModelConfig) -> np.ndarray:
    if writes:
      ids = [_ids(x, plain, tokenizer, model.vocab_size) for x in solutions]
      log_probs = log_likelihood.of_ids(computing, params, ids)
      return np.concatenate([x[1:] for x in log_probs])
    scorer = scorer_lib.Scorer(
      *(description.program, computing, params, tokenizer, plain)
    )
    return np.concatenate([x.scores for x in scorer.score(solutions)])

  out = []
  for dtype in dict.fromkeys((model.compute_dtype, "float32")):
    computing = model_config.computing_in(model, dtype)
    old, new = numbers(before, computing), numbers(after, computing)
    crossed = (old < schema.THRESHOLD) != (new < schema.THRESHOLD)
    differences = np.abs(new - old)
    out.append(
      Moved(
        "log-probabilities" if writes else "scores",
        dtype,
        len(old),
        float(differences.max()),
        float(differences.mean()),
        float(old.min()),
        float(old.max()),
        None if writes else int(crossed.sum()),
      )
    )
  return tuple(out)


def _ids(
  solution: schema.Solution,
  encoding_config: encoding.EncodingConfig,
  tokenizer: tokenizer_lib.Tokenizer,
  vocab_size: int,
) -> np.ndarray:
  """Returns a solution's ids as a policy has them.

  A language model whose own form isn't decided, and which lacks our controls,
  has its text alone.
  """
  if encoding.num_ids(encoding_config, tokenizer) > vocab_size:
    text = "\n".join((solution.problem, *solution.steps))
    return np.asarray(tokenizer.encode(text), np.int32)
  template = codecs.template_of(encoding_config)
  return codecs.of(template, tokenizer).prompt(solution).tokens


@jax.jit
def _equal(x: jax.Array, y: jax.Array) -> jax.Array:
  return (x == y.astype(x.dtype)).all()


def _is_exact(x: jax.Array, dtype: str) -> bool:
  # Two programs: XLA may leave out a narrowing that is followed by a widening.
  return x.dtype == dtype or bool(_equal(x, jnp.asarray(x).astype(dtype)))
