"""The decoder: shared layers and several heads, each of which is a method.

A program traces only the head that it calls: a PRM or an ORM never builds an
array over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import math
from typing import Any, NamedTuple

from flax import linen as nn
import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from prm_jax import batch as batch_lib
from prm_jax.models import attention
from prm_jax.models import kv_cache
from prm_jax.models import layers
from prm_jax.models import matmul
from prm_jax.models import model_config

Params = Any
# A window that is longer than any path: that of the layers without a window in
# a model whose other layers have one.
_WHOLE_PATH = 1 << 30


class Places(NamedTuple):
  """The places of a row's tokens on their paths, as depths and as angles.

  Args:
    positions: The number of tokens before each token on its path.
    rope: cos and sin.
    local_rope: cos and sin of layers with a window, if these have another base.
  """

  positions: Int[Array, "B T"]
  rope: tuple[Array, Array]
  local_rope: tuple[Array, Array] | None

  def of_layer(
    self, size: int | None, windowed: Bool[Array, ""] | None
  ) -> tuple[tuple[Array, Array], attention.Window | None]:
    """Returns the RoPE tables and the window of one layer."""
    if size is None or windowed is None:
      return self.rope, None
    rope = self.rope
    if self.local_rope is not None:
      rope = jax.tree.map(
        lambda near, far: jnp.where(windowed, near, far), self.local_rope, rope
      )
    sizes = jnp.where(windowed, size, _WHOLE_PATH)
    return rope, attention.Window(self.positions, sizes)


def _places(
  c: model_config.ModelConfig, positions: Int[Array, "B T"]
) -> Places:
  local = None
  if c.rope_local_theta is not None:
    local = layers.rope_tables(positions, layers.rope_frequencies(c, True))
  rope = layers.rope_tables(positions, layers.rope_frequencies(c))
  return Places(positions, rope, local)


def _windowed(c: model_config.ModelConfig) -> Bool[Array, " L"] | None:
  """Returns which layers have the window, where there's one at all."""
  return None if c.window is None else jnp.asarray(c.windowed)


class Block(nn.Module):
  """One pre-norm layer. Returns its output and attention's (k, v)."""

  config: model_config.ModelConfig

  @nn.compact
  def __call__(self, x, places, visible_until, past, windowed):
    c = self.config
    norm = functools.partial(layers.RMSNorm, c.norm_epsilon, c.norm_offset)
    rope, window = places.of_layer(c.window, windowed)
    attended, kv = attention.Attention(c, name="attention")(
      norm(name="attention_norm")(x), rope, visible_until, past, window
    )
    if c.post_norms:
      attended = norm(name="attention_post_norm")(attended)
    x = x + attended
    out = layers.GatedMLP(c, name="mlp")(norm(name="mlp_norm")(x))
    if c.post_norms:
      out = norm(name="mlp_post_norm")(out)
    x = x + out
    return nn.with_logical_constraint(x, ("batch", "length", "embed_act")), kv


def _outcome_head(kind: str) -> nn.Module:
  """Returns the head of a kind, one of model_config.OUTCOME_HEADS."""
  if kind == "mlp":
    return layers.MLPScoreHead()
  return layers.ScoreHead(use_bias=kind == "linear")


def _is_kept(rank: int, primitive: Any, *avals: Any, **params: Any) -> bool:
  """Returns whether a result is kept for the backward pass with remat="dots".

  Those of matmuls are, but not what an adapter adds: it is as large as what its
  kernel gives, and of so small a rank that it is cheap to compute again.
  """
  dots = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
  if not dots(primitive, *avals, **params):
    return False
  ((summed, _), _) = params["dimension_numbers"]
  return math.prod(avals[0].shape[i] for i in summed) != rank


def _stacked_blocks(c: model_config.ModelConfig) -> Any:
  """Returns the layers as one module with a leading L axis."""
  block = Block
  if c.remat != "none":
    policy = None
    if c.remat == "dots":
      policy = functools.partial(_is_kept, c.lora_rank)
    block = nn.remat(Block, policy=policy, prevent_cse=not c.scan)
  return nn.scan(
    block,
    variable_axes={"params": 0},
    split_rngs={"params": True},
    in_axes=(nn.broadcast, nn.broadcast, nn.broadcast, 0),
    length=c.num_layers,
    unroll=1 if c.scan else c.num_layers,
    metadata_params={nn.PARTITION_NAME: "layers"},
  )(c)


class Transformer(nn.Module):
  """A decoder over packed rows or trees (batch.Batch)."""

  config: model_config.ModelConfig

  def setup(self):
    c = self.config
    self.embedding = layers.Embedding(c)
    self.layers = _stacked_blocks(c)
    self.final_norm = layers.RMSNorm(c.norm_epsilon, c.norm_offset)
    if c.step_head != "tokens":
      head = dict(linear=layers.ScoreHead, mlp=layers.MLPScoreHead)
      self.step_head = head[c.step_head](c.step_classes)
    self.outcome_head = _outcome_head(c.outcome_head)
    self.value_head = layers.ScoreHead()
    if not c.tie_embedding:
      axes, dtype = ("embed", "vocab"), c.compute_dtype
      self.lm_head = layers.Dense(
        c.vocab_size, axes, dtype, out_dtype="float32"
      )

  def _trunk(self, tokens, positions, visible_until):
    c = self.config
    places = _places(c, positions)
    x = self.embedding(tokens)
    x = nn.with_logical_constraint(x, ("batch", "length", "embed_act"))
    if not self.is_initializing() and is_unstacked(self.variables["params"]):
      own = self.variables["params"]["layers"]
      x, of_layers = _one_by_one(c, own, x, places, visible_until)
      kv = _stacked(of_layers)
    else:
      x, kv = self.layers(x, places, visible_until, None, _windowed(c))
    return self.final_norm(x), kv

  def hidden(self, batch: batch_lib.Batch) -> Float[Array, "B T D"]:
    x, _ = self._trunk(batch.tokens, batch.positions, batch.visible_until)
    return x

  def step_logits(self, batch: batch_lib.Batch) -> Float[Array, "B T ..."]:
    """Returns a logit of P(correct so far) per token; read it at step_end.

    Of three classes it returns the logits of all: [B, T, 3].
    """
    return self.step_logits_at(self.hidden(batch))

  def step_logits_at(self, x: Float[Array, "B T D"]) -> Float[Array, "B T ..."]:
    """Returns the result of step_logits for hidden states."""
    c = self.config
    if c.step_head == "tokens":
      # The good id's logit less the bad one's: no other column is computed.
      columns = self._vocabulary_columns(c.step_tokens).astype(jnp.float32)
      logits = jnp.einsum("BTD,Dk->BTk", x.astype(jnp.float32), columns)
      logits = layers.softcap(logits, c.final_softcap)
      return logits[..., 0] - logits[..., 1]
    logits = self.step_head(x)
    return logits[..., 1] - logits[..., 0] if c.step_classes == 2 else logits

  def _vocabulary_columns(self, ids: Sequence[int]) -> Float[Array, "D k"]:
    """Returns the columns of the LM head for some ids."""
    index = jnp.asarray(ids)
    if self.config.tie_embedding:
      return jnp.asarray(self.embedding.table)[index].T
    own = self.lm_head.variables["params"]
    if matmul.TRANSPOSED in own:
      return own[matmul.TRANSPOSED][index].T
    return own["kernel"][:, index]

  def outcome_logits(self, batch: batch_lib.Batch) -> Float[Array, "B T"]:
    """Returns a logit of P(the final answer is right) per token."""
    return self.outcome_logits_at(self.hidden(batch))

  def outcome_logits_at(self, x: Float[Array, "B T D"]) -> Float[Array, "B T"]:
    """Returns the result of outcome_logits for hidden states."""
    return self.outcome_head(x)

  def value(self, x: Float[Array, "B T D"]) -> Float[Array, "B T"]:
    """Returns a scalar for each hidden state."""
    return self.value_head(x)

  def lm_logits(self, batch: batch_lib.Batch) -> Float[Array, "B T V"]:
    """Returns the logits that predict each token, read at its parent.

    At a root, which nothing predicts, they mean nothing.
    """
    return self.vocabulary(self.before(batch))

  def before(self, batch: batch_lib.Batch) -> Float[Array, "B T D"]:
    """Returns the hidden state of each token's parent."""
    parent = jnp.maximum(batch.parent, 0)[..., None]
    return jnp.take_along_axis(self.hidden(batch), parent, axis=1)

  def vocabulary(self, x: Float[Array, "... D"]) -> Float[Array, "... V"]:
    """Returns float32 logits over the vocabulary."""
    tied = self.config.tie_embedding
    logits = self.embedding.attend(x) if tied else self.lm_head(x)
    return layers.softcap(logits, self.config.final_softcap)

  def prefill(
    self, tokens: Int[Array, "B T"], lengths: Int[Array, B]
  ) -> tuple[Float[Array, "B V"], tuple[Array, Array]]:
    """Returns the next token's logits after each prompt, and the cache.

    The cache is (k, v), each [L, B, K, T, C], with RoPE applied.

    Args:
      tokens: Prompts, padded on the right.
      lengths: The number of tokens of each prompt.
    """
    index = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    until = jnp.broadcast_to(lengths[:, None], tokens.shape)
    x, (k, v) = self._trunk(tokens, index, jnp.maximum(until, index + 1))
    last = jnp.take_along_axis(x, (lengths - 1)[:, None, None], axis=1)[:, 0]
    return self.vocabulary(last), _by_head(k, v)

  def cache(
    self,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    visible_until: Int[Array, "B T"],
  ) -> tuple[Array, Array]:
    """Returns (k, v) of packed rows, each [L, B, K, T, C], RoPE applied."""
    _, (k, v) = self._trunk(tokens, positions, visible_until)
    return _by_head(k, v)

  def touch(self, batch: batch_lib.Batch, heads: Sequence[str]) -> None:
    """Calls every named head once, so that `init` makes its parameters."""
    has_step_head = self.config.step_head != "tokens"
    modules = dict(
      lm=self.vocabulary,
      step=self.step_head if has_step_head else self.vocabulary,
      outcome=self.outcome_head,
      value=self.value_head,
    )
    x = self.hidden(batch)
    for name in heads:
      modules[name](x)

  def embed(self, tokens):
    return self.embedding(tokens)

  def finish(self, x):
    return self.vocabulary(self.final_norm(x))

  def normalise(self, x):
    return self.final_norm(x)


def _by_head(k: Array, v: Array) -> tuple[Array, Array]:
  """Returns keys and values [L, B, T, K, C] as [L, B, K, T, C]."""
  order = (0, 1, 3, 2, 4)
  return k.transpose(order), v.transpose(order)


def init(
  key: Array, config: model_config.ModelConfig, heads: Sequence[str]
) -> Params:
  """Returns parameters, boxed with the names of their logical axes."""
  return _init(key, config, tuple(heads))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _init(key, config, heads):
  # Compiled as a whole: by itself flax runs, and compiles, one operation after
  # another. Whoever only asks for shapes traces it once.
  row = jax.tree.map(jnp.asarray, batch_lib.empty(1, 2))
  variables = Transformer(config).init(key, row, heads, method="touch")
  return variables["params"]


def apply(
  config: model_config.ModelConfig, params: Params, *args, method: str
) -> Any:
  """Returns what a method of Transformer returns."""
  return Transformer(config).apply({"params": params}, *args, method=method)


class TokenOutputs(NamedTuple):
  """A policy's outputs for each token on its path; 0 at roots.

  Args:
    log_probs: The log-probability of the token, in nats.
    entropies: The entropy of the distribution it was sampled from, in nats.
    values: The value head's value of the path before the token.
  """

  log_probs: Float[Array, "B T"]
  entropies: Float[Array, "B T"]
  values: Float[Array, "B T"] | None = None


def summary(config: model_config.ModelConfig, params: Params) -> str:
  """Returns a model's size in a few words, for the repr of what holds it."""
  count = sum(x.size for x in jax.tree.leaves(params))
  return (
    f"{config.num_layers} layers of width {config.d_model}, {count:,}"
    " parameters"
  )


def token_log_probs(
  config: model_config.ModelConfig,
  params: Params,
  batch: batch_lib.Batch,
  *,
  temperature: float = 1.0,
  block: int = 128,
) -> Float[Array, "B T"]:
  """Returns each token's log-probability in nats given its path; 0 at roots.

  The array over the vocabulary is built for `block` tokens of a row at a
  time, and again for the gradient: [B, T, V] never is.
  """
  x = apply(config, params, batch, method="before")

  def of_block(hidden, tokens):
    return _log_probs(config, params, hidden, tokens, temperature)[0]

  log_probs = _by_blocks(of_block, (x, batch.tokens), block)
  return jnp.where(batch.parent >= 0, log_probs, 0)


def token_outputs(
  config: model_config.ModelConfig,
  params: Params,
  batch: batch_lib.Batch,
  *,
  values: bool,
  temperature: float = 1.0,
  block: int = 128,
) -> TokenOutputs:
  """Returns a policy's outputs for each token, from one forward pass.

  Args:
    config: The shape of the model.
    params: Its parameters.
    batch: The rows.
    values: Whether to compute values.
    temperature: The temperature at which the tokens were sampled.
    block: The number of tokens of a row whose logits are held at a time.
  """
  x = apply(config, params, batch, method="before")

  def of_block(hidden, tokens):
    chosen, log_p = _log_probs(config, params, hidden, tokens, temperature)
    return chosen, -(jnp.exp(log_p) * log_p).sum(-1)

  outputs = [*_by_blocks(of_block, (x, batch.tokens), block)]
  if values:
    outputs.append(apply(config, params, x, method="value"))
  drawn = batch.parent >= 0
  return TokenOutputs(*(jnp.where(drawn, output, 0) for output in outputs))


class TokenMargins(NamedTuple):
  """What a policy finds of each token, given its path; all 0 at roots.

  Args:
    log_prob: The token's log-probability in nats.
    best_other: That of the most likely other token.
    logit_std: The standard deviation of the logits over the vocabulary.
  """

  log_prob: Float[Array, "B T"]
  best_other: Float[Array, "B T"]
  logit_std: Float[Array, "B T"]


def token_margins(
  config: model_config.ModelConfig,
  params: Params,
  batch: batch_lib.Batch,
  *,
  block: int = 128,
) -> TokenMargins:
  """Returns how each token stands among all others, by one forward pass.

  Args:
    config: The shape of the model.
    params: Its parameters.
    batch: The rows.
    block: The number of tokens of a row whose logits are held at a time.
  """
  x = apply(config, params, batch, method="before")

  def of_block(hidden, tokens):
    chosen, log_p = _log_probs(config, params, hidden, tokens, 1.0)
    is_chosen = tokens[..., None] == jnp.arange(log_p.shape[-1])
    others = jnp.where(is_chosen, -jnp.inf, log_p).max(-1)
    return chosen, others, log_p.std(-1)

  outputs = _by_blocks(of_block, (x, batch.tokens), block)
  drawn = batch.parent >= 0
  return TokenMargins(*(jnp.where(drawn, output, 0) for output in outputs))


def token_values(
  config: model_config.ModelConfig, params: Params, batch: batch_lib.Batch
) -> Float[Array, "B T"]:
  """Returns the value of the path before each token; 0 at roots."""
  x = apply(config, params, batch, method="before")
  values = apply(config, params, x, method="value")
  return jnp.where(batch.parent >= 0, values, 0)


def _log_probs(config, params, hidden, tokens, temperature):
  """Returns log-probabilities of the tokens and of the whole vocabulary."""
  logits = apply(config, params, hidden, method="vocabulary")
  if temperature != 1:
    logits = logits / temperature
  log_z = jax.nn.logsumexp(logits, axis=-1)
  chosen = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
  return chosen - log_z, logits - log_z[..., None]


def _by_blocks(of_block, arrays, block: int):
  """Returns of_block's arrays [B, T] from stretches of the rows in turn."""
  of_block = jax.checkpoint(of_block)
  rows, length = arrays[-1].shape
  num_blocks = -(-length // block)
  if num_blocks == 1:
    return of_block(*arrays)
  extra = num_blocks * block - length

  def split(array):
    after = ((0, 0), (0, extra)) + ((0, 0),) * (array.ndim - 2)
    shape = (rows, num_blocks, block, *array.shape[2:])
    return jnp.pad(array, after).reshape(shape).swapaxes(0, 1)

  parts = jax.lax.map(
    lambda part: of_block(*part), tuple(split(x) for x in arrays)
  )
  return jax.tree.map(
    lambda x: x.swapaxes(0, 1).reshape(rows, -1)[:, :length], parts
  )


def is_unstacked(params: Params) -> bool:
  """Returns whether each layer's parameters are arrays of their own."""
  return isinstance(params["layers"], tuple)


def for_decoding(config: model_config.ModelConfig, params: Params) -> Params:
  """Returns parameters as `decode` reads them at every token.

  Each layer has a tree of its own: slices, if of a stack. A matrix has the type
  of the matmuls, if that is narrower: it would be converted at every token.
  """
  if not is_unstacked(params):
    layers_ = tuple(
      jax.tree.map(lambda x, i=i: x[i], params["layers"])
      for i in range(config.num_layers)
    )
    params = {**params, "layers": layers_}
  read = {x: params[x] for x in ("layers", "lm_head") if x in params}
  if config.tie_embedding and not config.scale_embedding:
    read["embedding"] = params["embedding"]
  return {**params, **_narrowed(read, jnp.dtype(config.compute_dtype))}


_MATRICES = ("kernel", matmul.TRANSPOSED, "lora_a", "lora_b", "table")


def _narrowed(tree: Params, dtype: jnp.dtype) -> Params:
  """Returns the tree with its matrices in a type, if that is narrower."""

  def narrowed(path, x):
    wide = x.dtype.itemsize > dtype.itemsize
    return x.astype(dtype) if wide and path[-1].key in _MATRICES else x

  return jax.tree_util.tree_map_with_path(narrowed, tree)


def _one_by_one(
  config: model_config.ModelConfig,
  layer_params: Sequence[Params],
  x: Float[Array, "B T D"],
  places: Places,
  visible_until: Int[Array, "B T"] | None,
  pasts: Sequence[kv_cache.Past | kv_cache.Branches | None] | None = None,
) -> tuple[Float[Array, "B T D"], list[tuple[Array, Array]]]:
  """Returns what the layers make of x, and the keys and values of each.

  A plain loop: a scan would copy every cache at every token, and XLA's CPU
  backend would convert a whole stack of bfloat16 parameters at every call.
  """
  windowed = _windowed(config)
  of_layers = []
  for i, layer in enumerate(layer_params):
    x, kv = _layer(
      *(config, layer, x, places, visible_until),
      None if pasts is None else pasts[i],
      None if windowed is None else windowed[i],
    )
    of_layers.append(kv)
  return x, of_layers


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _layer(config, layer, x, places, visible_until, past, windowed):
  """Returns what one layer makes of x, and its keys and values.

  Layers of equal shapes are traced once. Inlined, the program is the same.
  """
  return Block(config, parent=None).apply(
    {"params": layer}, x, places, visible_until, past, windowed
  )


def _stacked(of_layers: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
  """Returns the keys and values of all layers with a leading L axis."""
  k, v = zip(*of_layers, strict=True)
  return jnp.stack(k), jnp.stack(v)


def decode(
  config: model_config.ModelConfig,
  params: Params,
  tokens: Int[Array, "B N"],
  positions: Int[Array, "B N"],
  pasts: Sequence[kv_cache.Past],
) -> tuple[Float[Array, "B N V"], list[tuple[Array, Array]]]:
  """Returns the next token's logits and every layer's tails with the token.

  Args:
    config: The shape of the model.
    params: Its parameters in `for_decoding`'s form: slices of a stack made here
      would be copied at every token.
    tokens: The newest token of each sample.
    positions: The number of tokens before it.
    pasts: What it sees, for each layer.
  """
  places = _places(config, positions)
  x = apply(config, params, tokens, method="embed")
  x, tails = _one_by_one(config, params["layers"], x, places, None, pasts)
  return apply(config, params, x, method="finish"), tails


def extend(
  config: model_config.ModelConfig,
  params: Params,
  tokens: Int[Array, "B T"],
  positions: Int[Array, "B T"],
  past: kv_cache.Branches,
) -> tuple[Float[Array, "B T D"], tuple[Array, Array]]:
  """Returns new tokens' hidden states, and their keys and values.

  Args:
    config: The shape of the model.
    params: Its parameters.
    tokens: The ids.
    positions: The number of tokens before each on its path.
    past: What the tokens see; `first` is set for each layer.

  Returns:
    Hidden states as `hidden` has them; k and v, each [L, B, T, K, C].
  """
  places = _places(config, positions)
  pages = past.k.shape[0] // config.num_layers
  firsts = pages * jnp.arange(config.num_layers)

  def layer(x, scanned):
    layer_params, first, windowed = scanned
    return Block(config).apply(
      {"params": layer_params},
      *(x, places, None, past._replace(first=first), windowed),
    )

  x = apply(config, params, tokens, method="embed")
  if is_unstacked(params):
    pasts = [past._replace(first=first) for first in firsts]
    own = params["layers"]
    x, of_layers = _one_by_one(config, own, x, places, None, pasts)
    kv = _stacked(of_layers)
  else:
    scanned = (params["layers"], firsts, _windowed(config))
    unroll = 1 if config.scan else config.num_layers
    x, kv = jax.lax.scan(layer, x, scanned, unroll=unroll)
  return apply(config, params, x, method="normalise"), kv
