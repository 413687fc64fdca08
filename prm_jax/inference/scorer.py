"""A PRM or ORM as a `Score`: jitted forward passes over rows of solutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import pathlib
from typing import Any

import jax
import numpy as np

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.data import encoding
from prm_jax.data import packing
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.models import config as model_config
from prm_jax.runtime import checks
from prm_jax.training import programs

LAYOUTS = ("padded", "packed", "tree")
_PACKED_TOKENS = 2048


@functools.partial(jax.jit, static_argnames=("config", "program", "scoring"))
def _forward(params, batch, *, config, program, scoring):
  scores = programs.KINDS[program].scores
  assert scores is not None
  return scores(config, params, batch, **dict(scoring))


@dataclasses.dataclass(frozen=True, eq=False)
class Scorer:
  """A reward model with its tokenizer and encoding.

  program: prm (P(correct so far)), orm (P(right answer), as seen at each step
  end) or implicit (see training.implicit_prm.scores, which takes `scoring`).
  layout: padded, a solution a row; packed, rows full of solutions; tree, in
  which those of one problem share their prefixes, each computed once. Scores
  are the same to rounding. batch_tokens: bounds the memory in use.
  sequence_length: solutions are padded to so many tokens, or twice, four times,
  ... as many, and a set to whole batches: few shapes are compiled for sets of
  any size and texts of any length. Rows of packed solutions and of trees are so
  long, too; 2048 or the longest solution by default.

  Raises:
    InputError: an unknown layout, or trees for an implicit PRM or for attention
      that supports none.
  """

  program: str
  config: model_config.ModelConfig
  params: Any
  tokenizer: tokenizer_lib.Tokenizer
  encoding: encoding.EncodingConfig
  batch_tokens: int = 16_384
  sequence_length: int = 0
  scoring: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  layout: str = "padded"

  def __post_init__(self):
    checks.check_choice("layout", self.layout, LAYOUTS)
    whole = programs.KINDS[self.program].scores_whole_solutions
    if self.layout == "tree" and whole:
      raise errors.InputError(
        f"layout='tree': an {self.program} PRM sums over the tokens of one"
        " solution; use padded or packed"
      )
    if self.layout == "tree":
      model_config.check_trees(self.config.attention, "layout='tree'")

  def score(
    self,
    solutions: Sequence[schema.Solution],
    progress: Callable[[int], None] = lambda done: None,
  ) -> list[list[float]]:
    """Returns one float per step; a schema.Score.

    Longer solutions than the model was trained on are scored whole: nothing
    is ever cut off.
    """
    unlimited = dataclasses.replace(self.encoding, max_tokens=None)
    encoded = [
      encoding.encode(s.problem, s.steps, self.tokenizer, unlimited)
      for s in solutions
    ]
    if self.layout == "padded":
      return self._score_padded(encoded, progress)
    problems = [s.problem for s in solutions]
    return self._score_packed(encoded, problems, progress)

  def _score_padded(
    self,
    encoded: Sequence[encoding.EncodedSolution],
    progress: Callable[[int], None],
  ) -> list[list[float]]:
    """Returns what `score` does, from batches of solutions of like length."""
    lengths = np.asarray(
      [self._padded(len(x.tokens)) for x in encoded], np.int64
    )
    out: list[list[float]] = [[] for _ in encoded]
    done = 0
    for length in np.unique(lengths).tolist():
      members = np.flatnonzero(lengths == length)
      rows = max(1, self.batch_tokens // length)
      for start in range(0, len(members), rows):
        chosen = members[start : start + rows]
        filled = [[packing.chain(_example(encoded[i]))] for i in chosen]
        num = self._num_rows(rows, len(chosen))
        filled += [[]] * (num - len(chosen))
        scores = self._forward(packing.fill(filled, length))
        for row, i in enumerate(chosen):
          out[i] = [float(x) for x in scores[row, encoded[i].step_end]]
        done += len(chosen)
        progress(done)
    return out

  def _score_packed(
    self,
    encoded: Sequence[encoding.EncodedSolution],
    problems: Sequence[str],
    progress: Callable[[int], None],
  ) -> list[list[float]]:
    """Returns what `score` does, from rows that hold many solutions."""
    if not encoded:
      return []
    longest = max(len(x.tokens) for x in encoded)
    length = self._padded(longest)
    if not self.sequence_length:
      length = max(_PACKED_TOKENS, packing.padded_length(longest))
    segments, places = _segments(
      encoded, problems, length if self.layout == "tree" else None
    )
    sizes = [len(x) for x in segments]
    if not self.sequence_length:  # a few short ones don't fill a whole row
      length = min(length, packing.padded_length(sum(sizes)))
    rows = packing.assign_rows(sizes, length)
    num = self._num_rows(max(1, self.batch_tokens // length), len(rows))
    by_segment: list[np.ndarray] = [np.zeros(0)] * len(segments)
    members_of = np.bincount([segment for segment, _ in places])
    done = 0
    for start in range(0, len(rows), num):
      chosen = rows[start : start + num]
      filled = [[segments[i] for i in row] for row in chosen]
      filled += [[]] * (num - len(chosen))
      scores = self._forward(packing.fill(filled, length))
      for row, members in enumerate(chosen):
        ends = np.cumsum([sizes[i] for i in members])
        for i, part in zip(members, np.split(scores[row], ends)):
          by_segment[i] = part
          done += int(members_of[i])
      progress(done)
    return [[float(x) for x in by_segment[i][at]] for i, at in places]

  def _padded(self, length: int) -> int:
    padded = self.sequence_length or packing.padded_length(length)
    while padded < length:
      padded *= 2
    return padded

  def longer_than_trained(self, solutions: Sequence[schema.Solution]) -> int:
    """Returns how many solutions exceed the encoding's max_tokens."""
    encoding_config = dataclasses.replace(self.encoding, truncation="drop")
    return sum(
      encoding.encode(s.problem, s.steps, self.tokenizer, encoding_config)
      is None
      for s in solutions
    )

  def _num_rows(self, most: int, needed: int) -> int:
    """Returns the rows of a batch; the last ones may be padding."""
    if self.sequence_length:
      return most
    # A small set is padded to few shapes, not to a whole batch.
    return min(most, 1 << (needed - 1).bit_length())

  def _forward(self, batch: batch_lib.Batch) -> np.ndarray:
    return np.asarray(
      _forward(
        self.params,
        batch,
        config=self.config,
        program=self.program,
        scoring=tuple(sorted(self.scoring.items())),
      )
    )


def _example(
  encoded: encoding.EncodedSolution, problem: str = ""
) -> encoding.Example:
  """Returns which tokens are the steps', and where these end.

  An implicit PRM sums over them.
  """
  n = len(encoded.tokens)
  weights, step_end = np.zeros(n, np.float32), np.zeros(n, bool)
  weights[encoded.prompt_tokens :] = 1
  step_end[encoded.step_end] = True
  labels = np.zeros(n, np.float32)
  return encoding.Example(encoded.tokens, labels, weights, step_end, problem)


def _segments(
  encoded: Sequence[encoding.EncodedSolution],
  problems: Sequence[str],
  tree_tokens: int | None,
) -> tuple[list[packing.Segment], list[tuple[int, np.ndarray]]]:
  """Returns segments, and where each solution's steps are read.

  That is the number of the segment and the places in it. tree_tokens: solutions
  of one problem share prefixes in trees of so many tokens; None: none do.
  """
  examples = [
    _example(x, problem) for x, problem in zip(encoded, problems, strict=True)
  ]
  if tree_tokens is None:
    whole = [packing.chain(x) for x in examples]
    return whole, [(i, x.step_end) for i, x in enumerate(encoded)]
  segments, of = packing.placed_trees(examples, tree_tokens)
  return segments, [
    (number, path[solution.step_end])
    for (number, path), solution in zip(of, encoded, strict=True)
  ]


def load(
  folder: pathlib.Path, step: int | None = None, layout: str = "padded"
) -> Scorer:
  """Returns the scorer of a checkpoint folder.

  step: a saved step; the latest by default. layout: see Scorer.

  Raises:
    InputError: it can't be read, holds a policy, lacks the step, or has no
      such layout.
  """
  description = model_json.read_description(folder)
  where = pathlib.Path(folder) / model_json.DESCRIPTION
  if programs.named(description.program, where).scores is None:
    raise errors.InputError(
      f"{folder}: holds a {description.program} model, which has no scores;"
      " give the folder of an implicit prm, a prm or an orm"
    )
  encoding_config = encoding.saved_encoding(description.encoding, where)
  return Scorer(
    description.program,
    description.model,
    programs.load_params(folder, description, step=step),
    model_json.read_tokenizer(folder, description),
    encoding_config,
    scoring=description.scoring,
    layout=layout,
  )
