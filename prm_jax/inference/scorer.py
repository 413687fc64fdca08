"""A PRM or ORM as a `Score`: jitted forward passes over rows of solutions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
import itertools
import pathlib
from typing import Any, overload

import jax
from jax import numpy as jnp
from jaxtyping import Float
import numpy as np

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.data import encoding
from prm_jax.data import packing
from prm_jax.data import segmenters
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.models import config as model_config
from prm_jax.models import transformer
from prm_jax.runtime import checks
from prm_jax.training import programs

LAYOUTS = ("padded", "packed", "tree")
_PACKED_TOKENS = 2048


@functools.partial(jax.jit, static_argnames=("config", "program", "scoring"))
def _forward(params, batch, *, config, program, scoring):
  scores = programs.KINDS[program].scores
  assert scores is not None
  return jnp.stack(scores(config, params, batch, **dict(scoring)))


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
  long, too; 2048 or the longest solution by default. chunk_solutions: so many
  are encoded at a time, which bounds the memory on the host.
  aggregate, judged, segmenter: see model_json.Description.

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
  chunk_solutions: int = 8192
  aggregate: str = "product"
  judged: str | None = None
  segmenter: str | None = None

  def __repr__(self) -> str:
    model = transformer.summary(self.config, self.params)
    return f"Scorer({self.program}, {model})"

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

  @overload
  def score(
    self, problem: str, steps: Sequence[str], /
  ) -> schema.StepScores: ...

  @overload
  def score(
    self,
    solutions: Iterable[schema.Solution],
    /,
    *,
    progress: Callable[[int], None] = ...,
  ) -> list[schema.StepScores]: ...

  def score(
    self,
    problem: str | Iterable[schema.Solution],
    steps: Sequence[str] | None = None,
    /,
    *,
    progress: Callable[[int], None] = lambda done: None,
  ) -> schema.StepScores | list[schema.StepScores]:
    """Returns the scores of one solution's steps, or of many solutions'.

    `score(problem, steps)` takes texts, `score(solutions)` any iterable of
    Solutions; with the latter it is a schema.Score. Longer solutions than the
    model was trained on are scored whole: nothing is ever cut off.

    Args:
      problem: the question's text, or the solutions.
      steps: the texts of the steps, if `problem` is a text.
      progress: is told how many solutions are scored.

    Raises:
      InputError: a text where a solution should be, or the other way round.
    """
    if isinstance(problem, str):
      if steps is None:
        raise errors.InputError(
          "score: a problem without steps; give score(problem, steps), or"
          " score(solutions)"
        )
      return self._score_one(schema.Solution("0", problem, tuple(steps)))
    if steps is not None:
      raise errors.InputError("score(solutions) takes no steps")
    scores: list[schema.StepScores] = []
    for chunk in _chunks(problem, self.chunk_solutions):
      done = functools.partial(_further, progress, len(scores))
      scores += self._score_chunk(chunk, done)
    return scores

  def score_text(self, problem: str, text: str) -> schema.StepScores:
    """Returns the scores of a text's steps, with their places in the text.

    Args:
      problem: the question's text.
      text: a whole solution, which is cut as the checkpoint says.

    Raises:
      InputError: the checkpoint doesn't say how a text is cut.
    """
    if self.segmenter is None:
      raise errors.InputError(
        "this model doesn't say how a text is cut into steps; give"
        " score(problem, steps)"
      )
    spans = segmenters.spans(text, self.segmenter)
    steps = tuple(text[start:end] for start, end in spans)
    solution = schema.Solution("0", problem, steps, raw_text=text, spans=spans)
    return self._score_one(solution)

  def _score_one(self, solution: schema.Solution) -> schema.StepScores:
    (scores,) = self._score_chunk([solution], lambda done: None)
    return scores

  def _score_chunk(
    self, solutions: Sequence[schema.Solution], progress: Callable[[int], None]
  ) -> list[schema.StepScores]:
    """Returns the scores of solutions whose ids fit the memory together."""
    unlimited = dataclasses.replace(self.encoding, max_tokens=None)
    encoded = [
      encoding.encode(s.problem, s.steps, self.tokenizer, unlimited)
      for s in solutions
    ]
    if self.layout == "padded":
      rows = self._score_padded(encoded, progress)
    else:
      problems = [s.problem for s in solutions]
      rows = self._score_packed(encoded, problems, progress)
    judged = self.judged or programs.KINDS[self.program].judged
    return [
      schema.StepScores(
        scores := tuple(map(float, row[0])),
        logits=tuple(map(float, row[1])),
        spans=solution.spans,
        judged=schema.judged_steps(scores, judged),
      )
      for solution, row in zip(solutions, rows, strict=True)
    ]

  def _score_padded(
    self,
    encoded: Sequence[encoding.EncodedSolution],
    progress: Callable[[int], None],
  ) -> list[Float[np.ndarray, "2 K"]]:
    """Returns scores and logits, from batches of solutions of like length."""
    lengths = np.asarray(
      [self._padded(len(x.tokens)) for x in encoded], np.int64
    )
    out = [np.zeros((2, 0))] * len(encoded)
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
          out[i] = scores[:, row, encoded[i].step_end]
        done += len(chosen)
        progress(done)
    return out

  def _score_packed(
    self,
    encoded: Sequence[encoding.EncodedSolution],
    problems: Sequence[str],
    progress: Callable[[int], None],
  ) -> list[Float[np.ndarray, "2 K"]]:
    """Returns scores and logits, from rows that hold many solutions."""
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
    by_segment = [np.zeros((2, 0))] * len(segments)
    members_of = np.bincount([segment for segment, _ in places])
    done = 0
    for start in range(0, len(rows), num):
      chosen = rows[start : start + num]
      filled = [[segments[i] for i in row] for row in chosen]
      filled += [[]] * (num - len(chosen))
      scores = self._forward(packing.fill(filled, length))
      for row, members in enumerate(chosen):
        ends = np.cumsum([sizes[i] for i in members])
        parts = np.split(scores[:, row], ends, axis=-1)
        for i, part in zip(members, parts):
          by_segment[i] = part
          done += int(members_of[i])
      progress(done)
    return [by_segment[i][:, at] for i, at in places]

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

  def _forward(self, batch: batch_lib.Batch) -> Float[np.ndarray, "2 B T"]:
    """Returns scores and logits of every token."""
    return np.asarray(
      _forward(
        self.params,
        batch,
        config=self.config,
        program=self.program,
        scoring=tuple(sorted(self.scoring.items())),
      )
    )


def _further(progress: Callable[[int], None], before: int, num: int) -> None:
  progress(before + num)


def _chunks(
  solutions: Iterable[schema.Solution], size: int
) -> Iterable[list[schema.Solution]]:
  """Yields the solutions in lists of so many; the iterable is read once."""
  rest = iter(solutions)
  while chunk := list(itertools.islice(rest, size)):
    for i, s in enumerate(chunk):
      if not isinstance(s, schema.Solution):
        raise errors.InputError(
          f"score: solutions[{i}] is a {type(s).__name__}; give Solutions, or"
          " score(problem, steps)"
        )
    yield chunk


def _example(
  encoded: encoding.EncodedSolution, problem: str = ""
) -> encoding.Example:
  """Returns which tokens are the steps', and where these end.

  An implicit PRM sums over them.
  """
  example = encoding.untargeted(encoded, problem)
  example.weights[encoded.prompt_tokens :] = 1
  return example


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
    aggregate=description.aggregate,
    judged=description.judged,
    segmenter=description.segmenter,
  )
