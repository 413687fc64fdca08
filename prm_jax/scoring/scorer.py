"""Reward models as a `Score`: jitted forward passes over rows of solutions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
import itertools
from typing import Any, overload

import jax
from jax import numpy as jnp
from jaxtyping import Float
import numpy as np

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax import schema
from prm_jax.models import kinds
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.rows import packing
from prm_jax.runtime import arguments
from prm_jax.runtime import checks
from prm_jax.runtime import forks
from prm_jax.scoring import row_shapes
from prm_jax.text import encoding
from prm_jax.text import segmenters
from prm_jax.text import tokenizer as tokenizer_lib

LAYOUTS = ("padded", "packed", "tree")
BATCH_TOKENS = 16_384


@functools.partial(jax.jit, static_argnames=("config", "program", "scoring"))
def _forward(params, batch, *, config, program, scoring):
  scores = kinds.KINDS[program].scores
  assert scores is not None
  return jnp.stack(scores(config, params, batch, **dict(scoring)))


@dataclasses.dataclass(frozen=True, eq=False)
class Scorer:
  """A reward model with its tokenizer and encoding.

  Scores are the same, up to rounding, for every layout and batch size.

  Args:
    program: What the model is: prm (scores are P(correct so far)), orm (P(right
      answer), as estimated after each step) or implicit (see
      training.implicit_prm.scores).
    config: The shape of the model.
    params: Its parameters, a pytree.
    tokenizer: Its tokenizer.
    encoding: How a solution becomes tokens.
    batch_tokens: The most tokens in a batch, which bounds the memory of the
      device. A longer solution is a batch of its own.
    sequence_length: The length of a row in tokens; a longer solution's row is
      twice, four times, ... as long, and every batch is full. So few shapes are
      compiled, however many and however long the solutions are. 0 chooses
      lengths by the solutions; packed and tree rows then have 2,048 tokens, or
      as many as the longest solution.
    scoring: Further arguments of the program's scores, such as an implicit
      PRM's beta.
    row_lengths: The lengths that packed and tree rows may have, ascending, in
      place of many; the row of a longer solution is as without. With
      batch_tokens they say which programs there are, `shapes.all()`.
    layout: padded (one solution in each row), packed (rows filled with several
      solutions) or tree (solutions of one problem also share their prefixes,
      each of which is computed once).
    chunk_solutions: The number of solutions that are encoded at a time, which
      bounds the memory of the host.
    aggregate: How step scores become a solution's score, for `best_of_n`.
    judged: Which steps the model was trained to judge, one of schema.JUDGED;
      None is what the program's kind says.
    segmenter: How score_text cuts a text into steps; None if that isn't known.

  Raises:
    InputError: The layout is unknown, or it is tree and the model shares no
      prefixes or its attention supports no trees; or row_lengths are given
      for padded rows.
  """

  program: str
  config: model_config.ModelConfig
  params: Any
  tokenizer: tokenizer_lib.Tokenizer
  encoding: encoding.EncodingConfig
  batch_tokens: int = BATCH_TOKENS
  sequence_length: int = 0
  row_lengths: tuple[int, ...] = ()
  scoring: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  layout: str = "padded"
  chunk_solutions: int = 8192
  aggregate: str = "product"
  judged: str | None = None
  segmenter: segmenters.Segmenter | None = None

  def __repr__(self) -> str:
    model = transformer.summary(self.config, self.params)
    return f"Scorer({self.program}, {model})"

  def __post_init__(self):
    checks.check_choice("layout", self.layout, LAYOUTS)
    checks.check_counts(self, ("batch_tokens",))
    if self.row_lengths and self.layout == "padded":
      raise errors.InputError(
        "row_lengths with layout='padded': give packed or tree"
      )
    if self.layout == "tree" and (reason := self.shares_nothing):
      raise errors.InputError(f"layout='tree': {reason}; use padded or packed")
    if self.layout == "tree":
      model_config.check_trees(self.config.attention, "layout='tree'")

  @property
  def shares_nothing(self) -> str:
    """Why solutions can't share their prefixes' work; "" if they can."""
    if kinds.KINDS[self.program].scores_whole_solutions:
      return f"an {self.program} PRM's scores are sums over whole solutions"
    if self.encoding.template.apart:
      return f"the template {self.encoding.template.name!r} reads steps apart"
    return ""

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

  @arguments.checked
  def score(
    self,
    problem: str | Iterable[schema.Solution],
    steps: Sequence[str] | None = None,
    /,
    *,
    progress: Callable[[int], None] = lambda done: None,
  ) -> schema.StepScores | list[schema.StepScores]:
    """Returns the scores of one solution's steps, or those of many solutions.

    `score(problem, steps)` takes texts. `score(solutions)` takes any iterable
    of Solutions and is a schema.Score. Solutions longer than those of training
    are scored whole: nothing is cut off.

    Args:
      problem: The text of the question, or the solutions.
      steps: The text of each step, if `problem` is a text.
      progress: A function that is called with the number of solutions scored so
        far.

    Returns:
      StepScores if `problem` is a text, else a list with those of each
      solution, in their order.

    Raises:
      InputError: A text was given without steps, or steps without a text, steps
        are one str, or an entry isn't a Solution.
    """
    if isinstance(problem, str):
      if steps is None:
        raise errors.InputError(
          "score: a problem without steps; give score(problem, steps), or"
          " score(solutions)"
        )
      return self._score_one(schema.Solution("0", problem, tuple(steps)))
    if steps is not None:
      raise errors.InputError(
        f"score: the problem is a {type(problem).__name__}; with steps, give a"
        " text"
      )
    scores: list[schema.StepScores] = []
    for chunk in chunks(problem, self.chunk_solutions):
      done = functools.partial(_further, progress, len(scores))
      scores += self._score_chunk(chunk, done)
    return scores

  @arguments.checked
  def score_text(
    self, problem: str, text: str, *, segmenter: str | None = None
  ) -> schema.StepScores:
    """Returns the scores of the steps of a text, with their places in the text.

    Args:
      problem: The text of the question.
      text: A whole solution. The names around reasoning that a policy's template
        has are in no step.
      segmenter: How the text is cut into steps, as segmenters.parse takes it;
        None is as the checkpoint says.

    Returns:
      The scores; spans has each step's place in `text`, in characters.

    Raises:
      InputError: The checkpoint doesn't say how a text is cut into steps, and
        nothing is given; or it says something else than what is given.
    """
    scorer = self if segmenter is None else self.cut_by(segmenter)
    return self._score_one(scorer.cut(problem, text))

  def cut_by(self, segmenter: str | segmenters.Segmenter) -> Scorer:
    """Returns the scorer of the same model that cuts texts by a segmenter.

    Args:
      segmenter: The segmenter, or what segmenters.parse takes.

    Returns:
      The scorer; this one stays as it is.

    Raises:
      InputError: There is no such segmenter, or the checkpoint says that texts
        are cut by another one: a model scores steps as those of its training.
    """
    if not isinstance(segmenter, segmenters.Segmenter):
      segmenter = segmenters.parse(segmenter)
    if self.segmenter not in (None, segmenter):
      raise errors.InputError(
        f"`segmenter={segmenters.name_of(segmenter)}`: the checkpoint says that"
        f" texts are cut by {segmenters.name_of(self.segmenter)!r}; leave it"
        " out, or give score(problem, steps)"
      )
    return dataclasses.replace(self, segmenter=segmenter)

  def cut(self, problem: str, text: str, id_: str = "0") -> schema.Solution:
    """Returns a text as a solution, cut into steps as `score_text` does.

    Args:
      problem: The text of the question.
      text: A whole solution.
      id_: The id of the solution.

    Returns:
      The solution, with each step's place in the text.

    Raises:
      InputError: The checkpoint doesn't say how a text is cut into steps.
    """
    if self.segmenter is None:
      raise errors.InputError(
        "this model doesn't say how a text is cut into steps; take"
        " cut_by('paragraph') of it, or cut_by('line'), or give"
        " score_text(problem, text, segmenter='paragraph') or"
        " score(problem, steps)"
      )
    spans = self.encoding.template.spans(text, self.segmenter, self.tokenizer)
    steps = tuple(text[start:end] for start, end in spans)
    return schema.Solution(id_, problem, steps, raw_text=text, spans=spans)

  def _score_one(self, solution: schema.Solution) -> schema.StepScores:
    (scores,) = self._score_chunk([solution], lambda done: None)
    return scores

  def _score_chunk(
    self, solutions: Sequence[schema.Solution], progress: Callable[[int], None]
  ) -> list[schema.StepScores]:
    """Returns the scores of solutions whose tokens fit into memory together."""
    encoded = list(map(self.encode, solutions))
    return self.score_encoded(solutions, encoded, progress)

  def score_encoded(
    self,
    solutions: Sequence[schema.Solution],
    encoded: Sequence[encoding.EncodedSolution],
    progress: Callable[[int], None] = lambda done: None,
    groups: Sequence[str] | None = None,
  ) -> list[schema.StepScores]:
    """Returns the scores of solutions whose ids are known.

    Args:
      solutions: The solutions.
      encoded: What `encode` returns for each.
      progress: See score.
      groups: With the layout tree, the group of each solution: those of one
        group share prefixes. None is the problem.

    Returns:
      The scores of each solution, in their order.
    """
    if self.layout == "padded":
      rows = self._score_padded(encoded, progress)
    else:
      if groups is None:
        groups = [s.problem for s in solutions]
      rows = self._score_packed(encoded, groups, progress)
    return list(map(self.step_scores, solutions, rows))

  @property
  def shapes(self) -> row_shapes.Shapes:
    """The shapes of batches."""
    return row_shapes.Shapes(
      self.batch_tokens, self.sequence_length, self.row_lengths
    )

  def compile_shape(self, length: int, rows: int) -> None:
    """Compiles the program for batches of a shape, so that none waits for it.

    Args:
      length: The length of a row in tokens.
      rows: The number of rows.
    """
    self._forward(packing.fill([[]] * rows, length))

  def encode(self, solution: schema.Solution) -> encoding.EncodedSolution:
    """Returns a solution's ids, however many, and where its steps are read.

    Args:
      solution: The solution.

    Returns:
      The ids; no limit of the encoding cuts them.

    Raises:
      InputError: The solution can't be encoded.
    """
    return encoding.encode_whole(solution, self.tokenizer, self.encoding)

  def step_scores(
    self, solution: schema.Solution, row: Float[np.ndarray, "2 K"]
  ) -> schema.StepScores:
    """Returns the StepScores of a solution.

    Args:
      solution: The solution.
      row: The score and the log-odds of each step.

    Returns:
      The scores, with the solution's spans and which steps are judged.
    """
    scores = tuple(map(float, row[0]))
    judged = self.judged or kinds.KINDS[self.program].judged
    return schema.StepScores(
      scores,
      logits=tuple(map(float, row[1])),
      spans=solution.spans,
      judged=schema.judged_steps(scores, judged),
      without_thinking=self.encoding.template.unread(solution),
    )

  def _score_padded(
    self,
    encoded: Sequence[encoding.EncodedSolution],
    progress: Callable[[int], None],
  ) -> list[Float[np.ndarray, "2 K"]]:
    """Returns scores and logits, from batches of solutions of like length."""
    shapes = self.shapes
    lengths = np.asarray(
      [shapes.row_length(len(x.tokens)) for x in encoded], np.int64
    )
    out = [np.zeros((2, 0))] * len(encoded)
    done = 0
    for length in np.unique(lengths).tolist():
      members = np.flatnonzero(lengths == length)
      for chosen, num in shapes.batches(members.tolist(), length):
        filled = [[packing.chain(_example(encoded[i]))] for i in chosen]
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
    shapes = self.shapes
    length = shapes.packed_length(max(len(x.tokens) for x in encoded))
    segments, places = _segments(
      encoded, problems, length if self.layout == "tree" else None
    )
    sizes = [len(x) for x in segments]
    if not self.sequence_length:  # a few short ones don't fill a whole row
      length = min(length, shapes.row_length(sum(sizes)))
    rows = packing.assign_rows(sizes, length)
    by_segment = [np.zeros((2, 0))] * len(segments)
    members_of = np.bincount([segment for segment, _ in places])
    done = 0
    for chosen, num in shapes.batches(rows, length):
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

  def longer_than_trained(self, solutions: Sequence[schema.Solution]) -> int:
    """Returns how many solutions are longer than those of the model's training.

    Args:
      solutions: The solutions to count.

    Returns:
      The number of solutions with more tokens than the encoding's max_tokens.
    """
    encoding_config = dataclasses.replace(self.encoding, truncation="drop")
    return sum(
      encoding.encode_solution(s, self.tokenizer, encoding_config) is None
      for s in solutions
    )

  def _forward(self, batch: batch_lib.Batch) -> Float[np.ndarray, "2 B T"]:
    """Returns scores and logits of every token."""
    forks.check()
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


def chunks(
  solutions: Iterable[schema.Solution], size: int
) -> Iterable[list[schema.Solution]]:
  """Yields the solutions in lists of `size`; reads the iterable once.

  Args:
    solutions: The solutions.
    size: The most solutions of a list.

  Yields:
    Lists, in the order of the solutions.

  Raises:
    InputError: An entry isn't a Solution.
  """
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
  """Returns an example that marks the tokens of steps and the steps' ends.

  An implicit PRM sums over the tokens of steps.
  """
  example = encoding.untargeted(encoded, problem)
  example.weights[encoded.own] = 1
  return example


def _segments(
  encoded: Sequence[encoding.EncodedSolution],
  problems: Sequence[str],
  tree_tokens: int | None,
) -> tuple[list[packing.Segment], list[tuple[int, np.ndarray]]]:
  """Returns segments, and the places at which each solution's steps are read.

  A place is the number of a segment and the indices in it. With tree_tokens,
  the solutions of one problem share prefixes in trees of that many tokens; with
  None no solutions share anything.
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
