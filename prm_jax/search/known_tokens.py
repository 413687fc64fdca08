"""The tokens of a problem that each model knows, and so what a call costs.

A model knows what it has read or written for the problem before. With a cache
of all prefixes it reads only the rest of a prompt. So the cost of a call
depends on the calls before it.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
import dataclasses

from jaxtyping import Int
import numpy as np

from prm_jax import schema
from prm_jax.rows import packing
from prm_jax.search import bill as bill_lib
from prm_jax.search import search_models
from prm_jax.search import tree as tree_lib


class KnownTokens:
  """What each model has read and written for one problem.

  Args:
    policies: The policies, by their names.
    verifier: What scores nodes.
  """

  def __init__(
    self,
    policies: Mapping[str, search_models.Policy],
    verifier: search_models.Verifier,
  ):
    self._policies, self._verifier = policies, verifier
    self._prefixes = {
      name: _Prefixes() for name in (*policies, bill_lib.SCORER)
    }
    self._counted = {name: _CountedPrefixes() for name in policies}

  def add_completion(
    self, name: str, begun: schema.Solution, new: schema.Solution
  ) -> bill_lib.Spent:
    """Returns what a completion took; its policy knows it from then on.

    Args:
      name: The name of the policy.
      begun: What it continued.
      new: What it returned.
    """
    num = int(new.extra["num_tokens"])
    encode = self._policies[name].encode
    if encode is None:
      known, read = self._counted[name].add(begun, new)
    else:
      ids = encode(begun)
      known, read = self._prefixes[name].add(ids), len(ids)
      # What a policy wrote it needs not read, however it is encoded.
      self._prefixes[name].add(encode(new))
    return bill_lib.Spent(
      calls=1,
      sampled=num,
      read=read,
      read_once=read - known,
      # Of a prompt that isn't counted the place of new tokens isn't known.
      context=bill_lib.context(known, read + num) if read else 0,
    )

  def add_scored(self, solution: schema.Solution) -> bill_lib.Spent:
    """Returns what the scores of a solution took; the scorer knows it then.

    Args:
      solution: What was scored.
    """
    encode = self._verifier.encode
    if encode is None:
      return bill_lib.Spent(calls=1)
    ids = encode(solution)
    known = self._prefixes[bill_lib.SCORER].add(ids)
    return bill_lib.Spent(
      calls=1,
      read=len(ids),
      read_once=len(ids) - known,
      context=bill_lib.context(known, len(ids)),
    )

  def add_node(self, begun: schema.Solution, node: tree_lib.Node) -> None:
    """Adds a node of a saved tree, whose cost the node has already.

    Args:
      begun: What the node continued.
      node: The node.
    """
    encode = self._policies[node.writer].encode
    scored = _with_steps(node.solution, node.ahead)
    if encode is None:
      self._counted[node.writer].add(begun, node.solution)
    else:
      for solution in (begun, node.solution, scored):
        self._prefixes[node.writer].add(encode(solution))
    if self._verifier.encode is not None:
      self._prefixes[bill_lib.SCORER].add(self._verifier.encode(scored))


class _Prefixes:
  """The sequences of ids that a model knows."""

  def __init__(self) -> None:
    # Big-endian bytes are ordered as the ids are. So those with the longest
    # common prefix are neighbours.
    self._known: list[bytes] = []

  def add(self, ids: Int[np.ndarray, " T"]) -> int:
    """Adds a sequence; returns how many of its first ids were known."""
    key = np.ascontiguousarray(ids, ">u4").tobytes()
    place = bisect.bisect_left(self._known, key)
    neighbours = self._known[max(place - 1, 0) : place + 1]
    known = max(
      (packing.num_common(_ids(other), _ids(key)) for other in neighbours),
      default=0,
    )
    if known < len(ids):
      self._known.insert(place, key)
    return known


def _ids(key: bytes) -> Int[np.ndarray, " T"]:
  return np.frombuffer(key, ">u4").astype(np.int64)


class _CountedPrefixes:
  """The steps that a policy knows whose server counts the tokens of prompts.

  Its ids aren't known. So each sequence of steps is kept with the number of
  tokens that it has as a prompt.
  """

  def __init__(self) -> None:
    self._num_tokens: dict[tuple[str, ...], int] = {}

  def add(
    self, begun: schema.Solution, new: schema.Solution
  ) -> tuple[int, int]:
    """Adds a completion; returns its prompt's known tokens, and all of them.

    If the server didn't count them, both are 0.
    """
    counted = new.extra.get(search_models.PROMPT_TOKENS)
    if counted is None:
      return 0, 0
    read = int(counted)
    known = self._num_known(begun.steps, read)
    self._num_tokens[begun.steps] = read
    self._num_tokens.setdefault(new.steps, read + int(new.extra["num_tokens"]))
    return known, read

  def _num_known(self, steps: tuple[str, ...], read: int) -> int:
    """Returns how many of the tokens of a prompt with these steps are known.

    Of a prompt whose steps are known that is all of them. A separator after the
    steps that are known counts as new.
    """
    if steps in self._num_tokens:
      return read
    begins = (steps[:n] for n in range(len(steps) - 1, -1, -1))
    known = (self._num_tokens[b] for b in begins if b in self._num_tokens)
    return min(next(known, 0), read)


def _with_steps(
  solution: schema.Solution, steps: Sequence[str]
) -> schema.Solution:
  """Returns a solution that goes on by steps."""
  if not steps:
    return solution
  return dataclasses.replace(
    solution, steps=(*solution.steps, *steps), raw_text=None, spans=None
  )
