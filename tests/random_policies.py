"""Small policies with random weights, and a sequence by itself as a batch."""

from typing import Any

from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np
import recipes

from prm_jax import batch as batch_lib
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.policy import sampler
from prm_jax.text import own_form
from prm_jax.text import policy_templates
from prm_jax.text import tokenizer as tokenizer_lib

# A published form, and our own.
KINDS = ("template", "own")


def model(vocab_size: int, num_layers: int = 2) -> model_config.ModelConfig:
  return model_config.ModelConfig(
    vocab_size=vocab_size,
    d_model=16,
    num_layers=num_layers,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    d_ff=24,
  )


def params(
  config: model_config.ModelConfig, head: str = "lm", scale: float = 0.4
) -> Any:
  """Returns normally distributed parameters, the same in each call."""
  random = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: jnp.asarray(scale * random.normal(size=x.shape), x.dtype),
    jax.eval_shape(
      lambda: meta.unbox(transformer.init(jax.random.key(0), config, (head,)))
    ),
  )


def policy(kind: str, num_layers: int = 2) -> sampler.Sampler:
  """Returns a policy of one of KINDS."""
  if kind == "own":
    tokenizer, template = tokenizer_lib.Bytes(), own_form.OWN
    size = tokenizer.vocab_size
  else:
    tokenizer = recipes.tokenizer("qwen")
    template = policy_templates.plain(("<|im_end|>",))
    size = template.num_ids(tokenizer)
  config = model(size, num_layers)
  return sampler.Sampler(config, params(config), tokenizer, template=template)


def alone(ids: list[int], length: int = 256) -> batch_lib.Batch:
  """Returns a batch of one row, without trees: what a slow oracle reads."""
  row = batch_lib.empty(1, length)
  index = np.arange(length, dtype=np.int32)[None]
  row.tokens[0, : len(ids)] = ids
  return row.replace(
    positions=index,
    visible_until=np.full((1, length), length, np.int32),
    parent=index - 1,
  )
