"""A reward model that is served: it prepares solutions and scores batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
import logging
import math
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.models import kinds
from prm_jax.models import model_config
from prm_jax.runtime import files
from prm_jax.scoring import cached_scorer
from prm_jax.scoring import score_sources
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.serving import refusals
from prm_jax.serving import server_limits as limits_lib
from prm_jax.text import encoding
from prm_jax.text import segmenters

# A token has that many characters at most: in the published vocabularies the
# longest are 128 spaces.
_TOKEN_CHARS = 128
_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Prepared:
  """A solution that can be scored.

  Args:
    solution: The solution; its spans are places in the caller's text.
    encoded: Its ids; none if no tokenizer is known.
    client: Who asks. Solutions of one client and problem share prefixes; those
      of several clients don't, so that none learns of another's texts by how
      long its own take.
    until: When the request's time is over at the latest, by time.monotonic.
  """

  solution: schema.Solution
  encoded: encoding.EncodedSolution
  client: str = ""
  until: float = math.inf

  @property
  def num_tokens(self) -> int:
    """The number of its tokens."""
    return len(self.encoded.tokens)

  @property
  def size(self) -> int:
    """What it takes of a batch: its tokens, or 1 if they aren't known."""
    return max(1, self.num_tokens)

  @property
  def group(self) -> str:
    """What the solutions have in common that share prefixes."""
    return json.dumps([self.client, self.solution.problem])


class Rows:
  """The rows of a batch that is being filled, each by several solutions.

  Args:
    length: The length of each, in the unit of Prepared.size.
    num: How many there are.
  """

  def __init__(self, length: int, num: int):
    self._room = [length] * num

  def add(self, solution: Prepared) -> bool:
    """Puts a solution where it leaves the least room.

    Args:
      solution: The solution.

    Returns:
      Whether there is room for it.
    """
    fit = [room for room in self._room if room >= solution.size]
    if fit:
      self._room[self._room.index(min(fit))] -= solution.size
    return bool(fit)


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A reward model under a name.

  Args:
    name: The name in requests.
    fingerprint: A digest of all that its scores depend on.
    scorer: The model.
    limits: What it accepts.
    folder: The checkpoint folder that it is from; None if it has none.
    step: The saved step.
    cache: The scorer with what it has read kept from one request to the next;
      None keeps nothing.
  """

  name: str
  fingerprint: str
  scorer: scorer_lib.Scorer
  limits: limits_lib.Limits
  folder: pathlib.Path | None = None
  step: int = 0
  cache: cached_scorer.CachedScorer | None = None

  @property
  def kind(self) -> str:
    """What it is: prm, orm or implicit."""
    return self.scorer.program

  @property
  def aggregate(self) -> str:
    """How step scores become a solution's score by default."""
    return self.scorer.aggregate

  @property
  def segmenter(self) -> segmenters.Segmenter | None:
    """How a text is cut into steps; None if texts aren't taken."""
    return self.scorer.segmenter

  @property
  def reads_turns(self) -> bool:
    """Whether it scores the turns of conversations."""
    return getattr(self.template, "conversation", None) is not None

  @property
  def template(self) -> Any:
    """The template of its texts."""
    return self.scorer.encoding.template

  def prepare(
    self, solution: schema.Solution, where: str, client: str = ""
  ) -> Prepared:
    """Returns a solution with its ids.

    Args:
      solution: The solution.
      where: The item of the request that it is, for errors.
      client: Who asks.

    Raises:
      RefusedError: It has no steps, too many steps or too many tokens, or it
        can't be encoded.
    """
    check_steps(solution, self.limits, where)
    if solution.messages is None:
      self._check_chars(where, solution.problem, *solution.steps)
    else:
      self._check_messages(solution, where)
    try:
      encoded = self.scorer.encode(solution)
    except errors.InputError as e:
      raise refusals.of_solution(e, where) from e
    length = len(encoded.tokens)
    if length > self.limits.max_tokens:
      raise refusals.too_large(
        f"{length} tokens with its problem; this server takes up to"
        f" {self.limits.max_tokens}, and cuts nothing",
        where,
      )
    return Prepared(solution, encoded, client)

  def cut(self, problem: str, text: str, where: str) -> schema.Solution:
    """Returns a text as a solution, cut by the model's segmenter.

    Args:
      problem: The problem.
      text: The text.
      where: The item of the request that it is, for errors.

    Raises:
      RefusedError: The model has no segmenter, or the text is too long or can't
        be cut by it.
    """
    self._check_chars(where, problem, text)
    if self.segmenter is None:
      raise uncut(self.name, where)
    try:
      return self.scorer.cut(problem, text)
    except errors.InputError as e:
      raise refusals.of_solution(e, where) from e

  def spans(
    self, text: str, segmenter: segmenters.Segmenter, where: str
  ) -> tuple[schema.Span, ...]:
    """Returns where the steps of a text are, in characters.

    Args:
      text: The text.
      segmenter: How it is cut.
      where: The field that it is, for errors.

    Raises:
      RefusedError: The text is too long.
    """
    self._check_chars(where, text)
    return self.template.spans(text, segmenter, self.scorer.tokenizer)

  def _check_chars(self, where: str, *texts: str) -> None:
    """Refuses what can't have max_tokens, before any work on its texts."""
    num, most = sum(map(len, texts)), self.limits.max_tokens * _TOKEN_CHARS
    if num > most:
      raise refusals.too_large(
        f"{num} characters with its problem; this server takes up to"
        f" {self.limits.max_tokens} tokens, which have at most {most}, and cuts"
        " nothing",
        where,
      )

  def _check_messages(self, solution: schema.Solution, where: str) -> None:
    """Refuses a conversation that can't have max_tokens."""
    messages, most = solution.messages or (), self.limits.max_tokens
    if len(messages) > most:  # each has a token of its own
      raise refusals.too_large(
        f"{len(messages)} messages; this server takes up to {most} tokens, and"
        " cuts nothing",
        where,
      )
    said = (y for x in messages for y in (x.shown, x.thinking or ""))
    tools = (json.dumps(x, ensure_ascii=False) for x in solution.tools)
    self._check_chars(where, *said, *tools)

  def rows(self, first: Prepared) -> Rows:
    """Returns the empty rows of a batch.

    Args:
      first: A solution that has room in each.
    """
    shapes = self.scorer.shapes
    length = shapes.packed_length(first.num_tokens)
    return Rows(length, shapes.most_rows(length))

  def score(self, batch: Sequence[Prepared]) -> list[cached_scorer.Scored]:
    """Returns the scores of a batch.

    A number that isn't finite spreads to all that stands in one row, so
    solutions without finite scores are scored again, each alone.

    Args:
      batch: The solutions.
    """
    rows = self._score(batch)
    for i, row in enumerate(rows):
      if not all(map(math.isfinite, row.scores.scores)):
        if self.cache is not None:
          self.cache.clear()
        rows[i] = self._score_whole([batch[i]])[0]
    return rows

  def _score(self, batch: Sequence[Prepared]) -> list[cached_scorer.Scored]:
    if self.cache is None:
      return self._score_whole(batch)
    return self.cache.score_encoded(
      [x.solution for x in batch],
      [x.encoded for x in batch],
      [x.client for x in batch],
    )

  def _score_whole(
    self, batch: Sequence[Prepared]
  ) -> list[cached_scorer.Scored]:
    rows = self.scorer.score_encoded(
      [x.solution for x in batch],
      [x.encoded for x in batch],
      groups=[x.group for x in batch],
    )
    return [cached_scorer.Scored(row, 0) for row in rows]

  def programs(self) -> list[Callable[[], None]]:
    """Returns what compiles a program, for each that solutions may need."""
    scorer, cache = self.scorer, self.cache
    programs: list[Callable[[], None]] = [
      functools.partial(scorer.compile_shape, *shape)
      for shape in scorer.shapes.all()
    ]
    if cache is not None:
      programs += [
        functools.partial(cache.compile_shape, shape)
        for shape in cache.shapes.all()
      ]
    return programs


def check_steps(
  solution: schema.Solution, limits: limits_lib.Limits, where: str
) -> None:
  """Refuses a solution without a step, or with too many.

  Args:
    solution: The solution.
    limits: The limits.
    where: The item of the request that it is, for errors.

  Raises:
    RefusedError: It has none, or too many.
  """
  num = len(solution.steps)
  if not num:
    given = "a text with steps"
    if solution.messages is not None:
      given = "a message of the assistant"
    raise refusals.invalid(f"no step to score; give {given}", where)
  if num > limits.max_steps:
    raise refusals.too_large(
      f"{num} steps; this server takes up to {limits.max_steps}", where
    )


def uncut(name: str, where: str) -> refusals.RefusedError:
  """Returns the refusal of a text for a model that can't cut it."""
  return refusals.invalid(
    f"the model {name!r} doesn't say how a text is cut into steps; give steps,"
    " or start the server with a `segmenter`",
    where,
  )


def load(
  folder: files.PathLike,
  limits: limits_lib.Limits,
  *,
  name: str | None = None,
  segmenter: segmenters.Segmenter | None = None,
  compute_dtype: str | None = None,
) -> Model:
  """Returns the model of a checkpoint folder's latest save.

  Args:
    folder: The folder of a PRM or an ORM.
    limits: What is accepted. The shapes that are compiled follow from them.
    name: Its name in requests; None is that of the folder.
    segmenter: How texts are cut into steps if the checkpoint doesn't say it.
    compute_dtype: The type of matmuls and activations; None is that of the
      checkpoint.

  Raises:
    InputError: The folder holds no reward model.
  """
  path = score_sources.checkpoint_folder(str(folder))
  loaded = score_sources.load(str(path), compute_dtype=compute_dtype)
  if loaded.scorer is None:
    raise errors.InputError(f"{folder}: give the checkpoint folder of a model")
  scorer = in_batches(loaded.scorer, limits)
  identity = dict(loaded.identity, compute_dtype=scorer.config.compute_dtype)
  judged = scorer.judged or kinds.KINDS[scorer.program].judged
  if judged == "last" and scorer.aggregate != "last":
    _logger.warning(
      f"warning: {folder}: the aggregate of its {model_json.DESCRIPTION},"
      f" {scorer.aggregate}, reads steps that it isn't trained to judge (all but"
      " the last); write last there, or ask for it in requests"
    )
  if segmenter is not None and scorer.segmenter is None:
    scorer = scorer.cut_by(segmenter)
    identity["segmenter"] = segmenters.record_of(segmenter)
  try:
    cache = cache_of(scorer, limits)
  except errors.InputError as e:
    raise errors.InputError(f"{folder}: {e}") from e
  return Model(
    name or path.resolve().name,
    fingerprint_of(identity),
    scorer,
    limits,
    path,
    int(loaded.identity["checkpoint_step"]),
    cache,
  )


def cache_of(
  scorer: scorer_lib.Scorer, limits: limits_lib.Limits
) -> cached_scorer.CachedScorer | None:
  """Returns a scorer that keeps what it has read; None if it shall keep nothing.

  Args:
    scorer: The scorer.
    limits: How much is kept, and the most tokens of a solution.

  Raises:
    InputError: Solutions share no prefixes with this scorer.
  """
  num = limits.cache_tokens
  if not num:
    return None
  try:
    return cached_scorer.CachedScorer(
      scorer, cache_tokens=num, most_tokens=limits.max_tokens
    )
  except errors.InputError as e:
    raise errors.InputError(f"`cache_tokens={num}`: {e}") from e


def fingerprint_of(identity: Mapping[str, Any]) -> str:
  """Returns the digest of what scores depend on."""
  text = json.dumps(identity, sort_keys=True)
  return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def load_newer(model: Model) -> Model | None:
  """Returns the model of a later save of its folder; None if there is none.

  Args:
    model: The model.

  Raises:
    InputError: The later save can't be read.
  """
  if model.folder is None or saves.chosen(model.folder, None) == model.step:
    return None
  return load(
    model.folder,
    model.limits,
    name=model.name,
    segmenter=model.segmenter,
    compute_dtype=model.scorer.config.compute_dtype,
  )


def in_batches(
  scorer: scorer_lib.Scorer, limits: limits_lib.Limits
) -> scorer_lib.Scorer:
  """Returns a scorer whose batches have few shapes, and full rows.

  Args:
    scorer: The scorer. Solutions share prefixes if its model can score trees.
    limits: The most tokens of a solution and of a batch.
  """
  can_share = not (
    scorer.shares_nothing
    or scorer.config.attention in model_config.PACKED_ATTENTION
  )
  return dataclasses.replace(
    scorer,
    layout="tree" if can_share else "packed",
    row_lengths=row_lengths(limits),
    batch_tokens=limits.max_batch_tokens,
  )


def row_lengths(limits: limits_lib.Limits) -> tuple[int, ...]:
  """Returns the lengths of rows: up to a limit four for each doubling.

  Args:
    limits: The most tokens of a solution; and of a batch, with which rows of
      1,024 tokens may have several solutions.
  """
  most = max(limits.max_tokens, min(1024, limits.max_batch_tokens))
  lengths = [128]
  while (last := lengths[-1]) < most:
    # 128, 160, 192, 224, 256, 320, ..., 1024, then 1536, 2048, 3072, ...: those
    # are compiled for several numbers of rows.
    power = 1 << (last.bit_length() - 1)
    lengths.append(last + power // (4 if last < 1024 else 2))
  return tuple(lengths)
