"""Policies as a `Generate`: jitted prefill and decode with explicit caches.

One prefill of a prompt serves all of its N samples: they share the prompt's
keys and values, and each has keys and values of its own for its new tokens. A
sample depends on the key, the index of its request and its own index, and not
on the other samples in its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import pathlib
from typing import Any

import jax
from jax import numpy as jnp
from jaxtyping import Array, Float, Int, Key
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.batch import ArrayLike
from prm_jax.checkpoints import held
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.models import kinds
from prm_jax.models import kv_cache
from prm_jax.models import memory
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.policy import codecs
from prm_jax.policy import drawing
from prm_jax.policy import log_likelihood
from prm_jax.policy import sampling as sampling_lib
from prm_jax.rows import packing
from prm_jax.runtime import arguments
from prm_jax.runtime import files
from prm_jax.runtime import forks
from prm_jax.text import answers
from prm_jax.text import encoding_records
from prm_jax.text import own_form
from prm_jax.text import template as template_lib
from prm_jax.text import tokenizer as tokenizer_lib

Params = Any
Sampling = drawing.Sampling


@dataclasses.dataclass(frozen=True)
class Completion:
  """Sampled ids with their log-probabilities.

  Args:
    tokens: The new ids, int32 [S].
    log_probs: The log-probability of each id in nats under the policy at
      temperature 1, or at the sampling's temperature if that is tempered, [S].
    stopped: Why the completion stopped: end (the policy wrote an id that ends
      a solution), step (it ended a step, and one step was asked for), stop (it
      wrote a stop text) or length (it reached max_tokens).
  """

  tokens: np.ndarray
  log_probs: np.ndarray
  stopped: str

  @property
  def ended(self) -> bool:
    """Whether the policy ended the solution, by an id or by a stop text."""
    return self.stopped in ("end", "stop")


@functools.partial(jax.jit, static_argnames=("config", "sampling", "ends"))
def decode(
  params: Params,
  tokens: Int[ArrayLike, "B P"],
  lengths: Int[ArrayLike, B],
  keys: Key[Array, "B N"],
  *,
  config: model_config.ModelConfig,
  sampling: Sampling,
  ends: tuple[int, ...],
) -> tuple[Int[Array, "B N S"], Float[Array, "B N S"], Int[Array, "B N"]]:
  """Returns sampled ids, their log-probabilities, and the number of them.

  Args:
    params: The parameters of the policy.
    tokens: B prompts, padded on the right to P tokens.
    lengths: The number of tokens of each prompt.
    keys: A random key for each of N samples of each prompt.
    config: The shape of the policy.
    sampling: How to sample; S is its max_tokens.
    ends: The ids at which a sample ends.

  Returns:
    (ids, log-probabilities in nats, lengths). Lengths include the id at which a
    sample ends; ids and log-probabilities after it are 0.
  """
  (B, P), N = tokens.shape, keys.shape[1]
  S, K, C = sampling.max_tokens, config.num_kv_heads, config.head_dim
  logits, (prefix_k, prefix_v) = transformer.apply(
    config, params, tokens, lengths, method="prefill"
  )
  logits = jnp.broadcast_to(logits[:, None], (B, N, logits.shape[-1]))
  prefix_mask = jnp.arange(P) < lengths[:, None]
  params = transformer.for_decoding(config, params)
  blank = jnp.zeros((B * N * K, S, C), prefix_k.dtype)
  own = [(blank, blank) for _ in range(config.num_layers)]

  def unfinished(carry):
    i, done = carry[0], carry[-1]
    return (i < S) & ~done.all()

  def one_token(carry):
    i, logits, own, out, log_probs, count, done = carry
    fold = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, i)))
    token, log_prob = drawing.draw(logits, fold(keys), sampling)
    out = out.at[:, :, i].set(jnp.where(done, 0, token))
    log_probs = log_probs.at[:, :, i].set(jnp.where(done, 0, log_prob))
    count = count + ~done
    done = done | drawing.is_end(token, ends)
    positions = jnp.broadcast_to(lengths[:, None] + i, (B, N))
    prefix_distance = jnp.where(
      prefix_mask[:, None], positions[:, :, None] - jnp.arange(P), -1
    )
    own_distance = jnp.broadcast_to(i - jnp.arange(S), (B, N, S))
    pasts = [
      kv_cache.Past(
        prefix_k[layer], prefix_v[layer], k, v, prefix_distance, own_distance, i
      )
      for layer, (k, v) in enumerate(own)
    ]
    logits, own = transformer.decode(config, params, token, positions, pasts)
    return i + 1, logits, own, out, log_probs, count, done

  carry = (
    jnp.zeros((), jnp.int32),
    logits,
    own,
    jnp.zeros((B, N, S), jnp.int32),
    jnp.zeros((B, N, S), jnp.float32),
    jnp.zeros((B, N), jnp.int32),
    jnp.zeros((B, N), bool),
  )
  _, _, _, out, log_probs, count, _ = jax.lax.while_loop(
    unfinished, one_token, carry
  )
  return out, log_probs, count


@jax.jit
def _sample_keys(
  key: Key[Array, ""], requests: Int[ArrayLike, B], samples: Int[ArrayLike, N]
) -> Key[Array, "B N"]:
  """Returns a key for each sample of each request."""
  fold = jax.random.fold_in
  of_request = jax.vmap(fold, (None, 0))(key, requests)
  return jax.vmap(jax.vmap(fold, (None, 0)), (0, None))(of_request, samples)


@dataclasses.dataclass(frozen=True, eq=False)
class Sampler:
  """A policy with its tokenizer.

  Args:
    config: The shape of the model.
    params: Its parameters, a pytree.
    tokenizer: Its tokenizer.
    batch_samples: The most samples that are decoded at the same time, which
      bounds the memory of the device.
    template: How it is prompted and read.
    defaults: The sampling that a published policy came with, by the names of
      Sampling's fields.
  """

  config: model_config.ModelConfig
  params: Params
  tokenizer: tokenizer_lib.Tokenizer
  batch_samples: int = 512
  template: template_lib.Template = own_form.OWN
  defaults: Mapping[str, float] = dataclasses.field(default_factory=dict)

  @functools.cached_property
  def codec(self) -> codecs.Codec:
    """How the policy's prompts are written and its ids are read."""
    return codecs.of(self.template, self.tokenizer)

  def __repr__(self) -> str:
    return f"Sampler({transformer.summary(self.config, self.params)})"

  @arguments.checked
  def sample(
    self,
    problem: str | schema.Problem,
    *,
    n: int = 1,
    sampling: sampling_lib.Sampling = sampling_lib.Sampling(),
    seed: int = 0,
  ) -> list[schema.Solution]:
    """Returns n sampled solutions of a problem, with their answers.

    The random numbers of the i-th solution depend only on the seed and on i.

    Args:
      problem: The text of the question, or a Problem. A Problem's answer is
        copied to extra["reference_answer"].
      n: The number of solutions, at least 1.
      sampling: How to sample; what it doesn't say is as `defaults` say, else at
        temperature 1.
      seed: The seed of the samples.

    Returns:
      n solutions. `answer` is what the last step states, None if it states
      none, and `extra` has the fields of schema.STATISTICS.

    Raises:
      InputError: n is less than 1, or problem is neither a text nor a Problem.
    """
    if n < 1:
      raise errors.InputError(f"n={n}: give 1 or more")
    if isinstance(problem, str):
      problem = schema.Problem("0", problem)
    extra = dict(problem.extra)
    if problem.answer is not None:
      extra[schema.REFERENCE] = problem.answer
    start = schema.Solution(problem.id, problem.problem, (), extra=extra)
    forks.check()
    key = jax.random.key(seed)
    chosen = sampling.with_defaults(self.defaults)
    (samples,) = self.generate([start], n, chosen, key)
    return [
      dataclasses.replace(s, answer=answers.of_solution(s)) for s in samples
    ]

  def complete(
    self,
    prompts: Sequence[tokenizer_lib.Ids],
    num_samples: int,
    sampling: Sampling,
    key: jax.Array,
    progress: Callable[[int], None] = lambda done: None,
    numbers: Sequence[int] | None = None,
  ) -> list[list[Completion]]:
    """Returns num_samples completions of every prompt.

    Prompts of similar lengths are decoded together, so that few shapes are
    compiled.

    Args:
      prompts: The ids of each prompt.
      num_samples: The number of completions of each prompt.
      sampling: How to sample.
      key: The random key.
      progress: A function that is called with the number of completions so far.
      numbers: The number of each prompt, by which its random numbers are drawn;
        None is 0, 1, 2, ...

    Returns:
      The completions of each prompt, in the order of the prompts.
    """
    forks.check()
    at_once = min(num_samples, self.batch_samples)
    rows = max(1, self.batch_samples // at_once)
    # A small set is padded to few shapes, not to a whole batch.
    rows = min(rows, packing.power_of_two(len(prompts)))
    self._check_memory(rows * at_once, sampling.max_tokens)
    out: list[list[Completion]] = [[] for _ in prompts]
    order = np.argsort([len(p) for p in prompts], kind="stable").tolist()
    for start in range(0, len(order), rows):
      # Spare rows repeat a request: they end when it does.
      chosen = np.resize(order[start : start + rows], rows)
      longest = max(len(prompts[i]) for i in chosen)
      width = packing.padded_length(longest)
      tokens = np.zeros((rows, width), np.int32)
      lengths = np.zeros(rows, np.int32)
      for row, i in enumerate(chosen):
        lengths[row] = len(prompts[i])
        tokens[row, : lengths[row]] = prompts[i]
      for first in range(0, num_samples, at_once):
        requests = chosen if numbers is None else np.take(numbers, chosen)
        keys = _sample_keys(key, requests, first + np.arange(at_once))
        arrays = jax.device_get(
          decode(
            self.params,
            tokens,
            lengths,
            keys,
            config=self.config,
            sampling=sampling,
            ends=self.codec.ends,
          )
        )
        wanted = min(at_once, num_samples - first)
        for row, i in enumerate(chosen[: len(order) - start]):
          out[i] += self._completions(*(x[row, :wanted] for x in arrays))
        progress(sum(map(len, out)))
    return out

  def _check_memory(self, num_samples: int, max_tokens: int) -> None:
    """Refuses a budget whose keys and values can't be in memory."""
    c = self.config
    width = c.num_layers * 2 * c.num_kv_heads * c.head_dim
    need = num_samples * max_tokens * width * np.dtype(c.compute_dtype).itemsize
    what = f"`max_tokens={max_tokens}`: the keys and values of {num_samples}"
    memory.check(need, jax.local_devices()[:1], f"{what} samples")

  def _completions(
    self, tokens: np.ndarray, log_probs: np.ndarray, lengths: np.ndarray
  ) -> list[Completion]:
    out = []
    for ids, scores, n in zip(tokens, log_probs, lengths, strict=True):
      stopped = "end" if ids[n - 1] in self.codec.ends else "length"
      out.append(Completion(ids[:n], scores[:n], stopped))
    return out

  def generate(
    self,
    prefixes: Sequence[schema.Solution],
    num_samples: int,
    sampling: Sampling,
    key: jax.Array,
    progress: Callable[[int], None] = lambda done: None,
    numbers: Sequence[int] | None = None,
  ) -> list[list[schema.Solution]]:
    """Returns whole solutions: each prefix's steps, continued by the policy.

    With sampling and key bound, this is a schema.Generate.

    Args:
      prefixes: Unfinished solutions; they may be without steps.
      num_samples: The number of solutions of each prefix.
      sampling: How to sample.
      key: The random key.
      progress: A function that is called with the number of solutions so far.
      numbers: See complete.

    Returns:
      The solutions of each prefix. `extra` has the fields of schema.STATISTICS.
    """
    prompts = [self.codec.prompt(prefix) for prefix in prefixes]
    ids = [prompt.tokens for prompt in prompts]
    rows = self.complete(ids, num_samples, sampling, key, progress, numbers)
    return solutions(prefixes, prompts, rows, self.codec)

  def log_likelihoods(
    self, prefixes: Sequence[schema.Solution], options: Sequence[str]
  ) -> list[list[float]]:
    """Returns the log-probabilities of texts; this is a schema.LogLikelihood.

    Args:
      prefixes: Unfinished solutions.
      options: Texts that may follow the last step, within it; see
        log_likelihood.choice.

    Returns:
      Log-probabilities in nats: one row for each prefix, one column for each
      text.

    Raises:
      InputError: Two options are the same ids to the tokenizer.
    """
    return log_likelihood.log_likelihoods(
      self.config, self.params, self.codec, prefixes, options
    )


def solution(
  prefix: schema.Solution,
  prompt: codecs.Prompt,
  completion: Completion,
  n: int,
  codec: codecs.Codec,
) -> schema.Solution:
  """Returns a prefix with a completion as a solution.

  Args:
    prefix: The unfinished solution.
    prompt: Its ids.
    completion: Its continuation.
    n: The number of the completion, which the solution's id ends with.
    codec: How the policy's ids are read.

  Returns:
    The solution. `extra` has the prefix's fields, those of schema.STATISTICS,
    and of a policy with a template schema.SAMPLED.
  """
  read = codec.read(prefix, prompt, completion.tokens, completion.stopped)
  stopped = "stop" if read.at_stop else completion.stopped
  new = completion.log_probs
  statistics = dict(
    ended=completion.ended or read.at_stop,
    stopped=stopped,
    num_tokens=len(new),
    log_prob_mean=float(new.mean()),
    log_prob_min=float(new.min()),
  )
  return schema.Solution(
    id=f"{prefix.id}/{n}",
    problem=prefix.problem,
    steps=read.steps,
    raw_text=read.raw_text,
    spans=read.spans,
    source="policy",
    extra={**prefix.extra, **statistics, **read.extra},
  )


def solutions(
  prefixes: Sequence[schema.Solution],
  prompts: Sequence[codecs.Prompt],
  rows: Sequence[Sequence[Completion]],
  codec: codecs.Codec,
) -> list[list[schema.Solution]]:
  """Returns the solutions of each prefix's completions.

  Args:
    prefixes: Unfinished solutions.
    prompts: The ids of each.
    rows: The completions of each.
    codec: How the policy's ids are read.

  Returns:
    One list of solutions for each prefix.
  """
  return [
    [solution(prefix, prompt, c, n, codec) for n, c in enumerate(row)]
    for prefix, prompt, row in zip(prefixes, prompts, rows, strict=True)
  ]


def load(
  folder: files.PathLike,
  step: saves.Step = None,
  *,
  compute_dtype: str | None = None,
) -> Sampler:
  """Returns the policy of a checkpoint folder.

  Args:
    folder: The checkpoint folder.
    step: The training step whose parameters are loaded; None is the latest one
      that was saved, "best" that of the run's fit.best_metric.
    compute_dtype: The type of matmuls and activations, float32, bfloat16 or
      float16; None is that of the checkpoint.

  Returns:
    The policy as a Sampler.

  Raises:
    InputError: The folder can't be read, holds no policy or lacks the step, or
      the model has fewer ids than the tokenizer.
  """
  folder = pathlib.Path(folder)
  description = model_json.read_description(folder)
  model = model_config.computing_in(description.model, compute_dtype)
  policy = of_description(folder, description)
  params = held.load(folder, description, model, step)
  return dataclasses.replace(policy, config=model, params=params)


def of_description(
  folder: pathlib.Path, description: model_json.Description
) -> Sampler:
  """Returns a folder's policy without its parameters.

  Args:
    folder: The checkpoint folder.
    description: The content of its model.json.

  Returns:
    The policy; its `params` are None.

  Raises:
    InputError: It holds no policy, or the model has fewer ids than the
      tokenizer.
  """
  if description.program not in kinds.POLICIES:
    raise errors.InputError(
      f"{folder}: holds {kinds.with_article(description.program)}, which"
      " doesn't write;"
      " give the folder of a policy (sft or rl)"
    )
  tokenizer = model_json.read_tokenizer(folder, description)
  encoding_config = encoding_records.from_record(description.encoding, folder)
  needed = encoding_config.template.num_ids(tokenizer)
  if needed > description.model.vocab_size:
    raise errors.InputError(
      f"{folder}: a policy of our own form writes control ids up to"
      f" {needed - 1}, and this model has {description.model.vocab_size} ids;"
      " import it with `role=policy`, which keeps its own form"
    )
  return Sampler(
    description.model,
    None,
    tokenizer,
    template=encoding_config.template,
    defaults={
      name: value
      for name, value in description.sampling.items()
      if name in ("temperature", "top_p", "top_k", "min_p")
    },
  )
