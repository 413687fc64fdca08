"""A recorded search: its trees, and a rollout engine that writes them again.

The steps are real ones of the same problem, drawn by the seed, the problem and
the node. Which nodes go on is what the reward model's scores say, once. A
replay then continues the recorded nodes, and every step that it samples gets
the recorded ids: so each way to search does the same work.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
from jaxtyping import Array, Float, Int, Key
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.policy import codecs
from prm_jax.policy import drawing
from prm_jax.policy import engine_programs
from prm_jax.policy import rollout_engine
from prm_jax.search import engine
from prm_jax.search import rules
from prm_jax.search import search_limits
from prm_jax.search import search_models
from prm_jax.search import tree as tree_lib
from prm_jax.text import tokenizer as tokenizer_lib

# The fewest steps of the wanted length that a problem must have.
LEAST_STEPS = 8


class Nodes(NamedTuple):
  """What a search wrote and scored, by the node's id: PROBLEM/PATH.

  Args:
    ids: The sampled ids of each node.
    scores: The scores of all steps of each node's solution.
  """

  ids: dict[str, list[int]]
  scores: dict[str, list[float]]


def node_id(tree: tree_lib.Tree, node: tree_lib.Node) -> str:
  """Returns the id that seeds what the policy writes."""
  return f"{tree.problem.id}/{node.path}"


def nodes_of_round(
  tree: tree_lib.Tree, number: int
) -> tuple[tree_lib.Node, ...]:
  """Returns the nodes that a round added, counted from 0; later ones add none."""
  sizes = (1, *tree.sizes)
  return tree.nodes[slice(*sizes[number : number + 2])]


def record(
  solutions: Sequence[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  score: schema.Score,
  args: argparse.Namespace,
) -> list[tree_lib.Tree]:
  """Returns the trees of a beam search over real steps.

  Args:
    solutions: Where problems and steps are from.
    tokenizer: The tokenizer of the policy.
    score: The reward model, whose scores say which nodes go on.
    args: problems, keep, expand, depth, step_tokens and seed are read.

  Raises:
    InputError: Too few problems have enough steps of the wanted length.
  """
  random = np.random.default_rng(args.seed)
  steps: dict[str, list[str]] = {}
  for s in solutions:
    of = steps.setdefault(s.problem, [])
    of += [x for x in s.steps if x not in of]
  most = args.keep * args.expand
  usable = {
    problem: [x for x in of if _fits(x, most, tokenizer, args.step_tokens)]
    for problem, of in steps.items()
  }
  able = sorted(x for x, of in usable.items() if len(of) >= LEAST_STEPS)
  if len(able) < args.problems:
    raise errors.InputError(
      f"--problems={args.problems}: the data has {len(able)} with"
      f" {LEAST_STEPS} steps of {args.step_tokens} tokens"
    )
  chosen = random.choice(len(able), args.problems, replace=False)
  problems = [
    schema.Solution(str(i), able[n], ()) for i, n in enumerate(chosen)
  ]

  def step(
    prefixes: Sequence[schema.Solution], num: int
  ) -> list[list[schema.Solution]]:
    assert num == 1
    return [[_scripted(p, usable[p.problem], args.seed)] for p in prefixes]

  return engine.search(
    problems,
    rules.Beam(args.keep, args.expand),
    {tree_lib.POLICY: search_models.Policy(step, step)},
    search_models.Verifier(score),
    search_limits.Limits(max_steps=args.depth),
    seed=args.seed,
  )


def _fits(
  step: str,
  siblings: int,
  tokenizer: tokenizer_lib.Tokenizer,
  sizes: Sequence[int],
) -> bool:
  """Returns whether a step can be written: its ids say the same text."""
  for number in (0, siblings - 1):
    text = f"({number}) {step}"
    ids = tokenizer.encode(text)
    if (
      not sizes[0] <= len(ids) + 1 <= sizes[1] or tokenizer.decode(ids) != text
    ):
      return False
  return True


def _scripted(
  prefix: schema.Solution, steps: Sequence[str], seed: int
) -> schema.Solution:
  """Returns a prefix with the step that its id says."""
  problem, path = prefix.id.split("/")
  numbers = [int(x) for x in path.split(".")]
  random = np.random.default_rng([seed, int(problem), *numbers])
  # The number tells siblings apart.
  text = f"({numbers[-1]}) {steps[random.integers(len(steps))]}"
  extra = dict(num_tokens=0, stopped="step", ended=False)
  return dataclasses.replace(prefix, steps=(*prefix.steps, text), extra=extra)


def nodes(
  trees: Sequence[tree_lib.Tree], tokenizer: tokenizer_lib.Tokenizer
) -> Nodes:
  """Returns what recorded trees hold: a step's ids end with a separator."""
  ids, scores = {}, {}
  for tree in trees:
    for node in tree.nodes[1:]:
      name = node_id(tree, node)
      text = tokenizer.encode(node.solution.steps[-1])
      ids[name] = [*text, tokenizer.separator]
      scores[name] = [*node.step_scores]
  return Nodes(ids, scores)


@dataclasses.dataclass(frozen=True)
class Replay(rules.Rule):
  """The rule that continues what was continued in recorded trees."""

  trees: Mapping[str, tree_lib.Tree]

  def next(self, tree: tree_lib.Tree) -> tree_lib.Round:
    """Returns what to continue; see rules.Rule."""
    return self.trees[tree.problem.id].rounds[len(tree.rounds)]


class Noting(codecs.SeparatorCodec):
  """Our own form; it notes the ids that were sampled after each prefix."""

  def __init__(self, tokenizer: tokenizer_lib.Tokenizer):
    super().__init__(tokenizer)
    self.ids: dict[str, list[int]] = {}

  def read(
    self,
    prefix: schema.Solution,
    prompt: codecs.Prompt,
    tokens: np.ndarray,
    why: str,
  ) -> codecs.Read:
    self.ids[prefix.id] = tokens.tolist()
    return super().read(prefix, prompt, tokens, why)


# --- What the engine draws --------------------------------------------------


@contextlib.contextmanager
def forced(
  ids: Mapping[str, Sequence[int]], key: Key[Array, ""]
) -> Iterator[None]:
  """Makes rollout engines draw these ids, whatever the logits are.

  A token is drawn as ever, then replaced. Which token it is shows in its random
  key, which no other token has.

  Args:
    ids: The ids that follow each request, by the request's id.
    key: The random key of the engines' calls.
  """
  names = [*ids]
  words = np.asarray(
    [rollout_engine._rng_words(name) for name in names], np.uint32
  )
  sizes = [len(ids[name]) for name in names]
  drawn = np.concatenate([np.arange(size) for size in sizes])
  keys = _token_keys(key, np.repeat(words, sizes, axis=0), drawn)
  data = np.asarray(jax.random.key_data(keys))
  factor = next(
    x for x in range(1, 99, 2) if len(np.unique(_mixed(data, x))) == len(data)
  )
  mixed = _mixed(data, factor)
  order = np.argsort(mixed)
  known = mixed[order]
  recorded = np.concatenate([ids[name] for name in names])[order]
  draw = drawing.draw

  def replayed(
    logits: Float[Array, "B N V"], keys: Array, sampling: drawing.Sampling
  ) -> tuple[Int[Array, "B N"], Float[Array, "B N"]]:
    tokens, log_probs = draw(logits, keys, sampling)
    wanted = _mixed(jax.random.key_data(keys), factor)
    at = jnp.searchsorted(known, wanted).clip(max=len(known) - 1)
    is_known = jnp.asarray(known)[at] == wanted
    chosen = jnp.asarray(recorded, tokens.dtype)[at]
    return jnp.where(is_known, chosen, tokens), log_probs

  drawing.draw = replayed
  engine_programs.decode_chunk.clear_cache()
  try:
    yield
  finally:
    drawing.draw = draw
    engine_programs.decode_chunk.clear_cache()


@jax.jit
def _token_keys(
  key: Key[Array, ""], words: Int[Array, "M 2"], drawn: Int[Array, " M"]
) -> Key[Array, " M"]:
  """Returns the key of each token of first samples; see engine_programs."""
  fold = jax.random.fold_in

  def of_token(words, drawn):
    return fold(fold(fold(fold(key, words[0]), words[1]), 0), drawn)

  return jax.vmap(of_token)(words, drawn)


def _mixed(data: Any, factor: int) -> Any:
  """Returns 32 bits of the two words of keys."""
  return data[..., 0] ^ data[..., 1] * np.uint32(factor)
