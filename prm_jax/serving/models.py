"""A reward model that is served: it prepares solutions and scores batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import saves
from prm_jax.data import encoding
from prm_jax.inference import score_sources
from prm_jax.inference import scorer as scorer_lib
from prm_jax.models import config as model_config
from prm_jax.runtime import files
from prm_jax.serving import limits as limits_lib
from prm_jax.serving import refusals
from prm_jax.training import programs


@dataclasses.dataclass(frozen=True)
class Prepared:
  """A solution that can be scored.

  Args:
    solution: The solution; its spans are places in the caller's text.
    encoded: Its ids; none if no tokenizer is known.
    row_tokens: The tokens of its row in a batch, padding included. Without a
      tokenizer 1, so that a batch's limit is a number of solutions.
    client: Who asks. Solutions of one client and problem share prefixes; those
      of several clients don't, so that none learns of another's texts by how
      long its own take.
  """

  solution: schema.Solution
  encoded: encoding.EncodedSolution
  row_tokens: int
  client: str = ""

  @property
  def group(self) -> str:
    """What the solutions have in common that share prefixes."""
    return json.dumps([self.client, self.solution.problem])


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
  """

  name: str
  fingerprint: str
  scorer: scorer_lib.Scorer
  limits: limits_lib.Limits
  folder: pathlib.Path | None = None
  step: int = 0

  @property
  def kind(self) -> str:
    """What it is: prm, orm or implicit."""
    return self.scorer.program

  @property
  def aggregate(self) -> str:
    """How step scores become a solution's score by default."""
    return self.scorer.aggregate

  @property
  def template(self) -> Any:
    """The template of its texts; None is our own form."""
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
    try:
      encoded = self.scorer.encode(solution)
    except errors.InputError as e:
      raise refusals.invalid(str(e), where) from e
    length = len(encoded.tokens)
    if length > self.limits.max_tokens:
      raise refusals.too_large(
        f"{length} tokens with its problem; this server takes up to"
        f" {self.limits.max_tokens}, and cuts nothing",
        where,
      )
    row_tokens = self.scorer.row_length(length)
    return Prepared(solution, encoded, row_tokens, client)

  def cut(self, problem: str, text: str, where: str) -> schema.Solution:
    """Returns a text as a solution, cut as the model's own segmenter cuts it.

    Args:
      problem: The problem.
      text: The text.
      where: The item of the request that it is, for errors.

    Raises:
      RefusedError: The model doesn't say how texts are cut.
    """
    try:
      return self.scorer.cut(problem, text)
    except errors.InputError as e:
      raise uncut(self.name, where) from e

  def score(self, batch: Sequence[Prepared]) -> list[schema.StepScores]:
    """Returns the scores of a batch.

    Args:
      batch: The solutions.
    """
    num = Counter(x.group for x in batch)
    siblings = [self._shares_prefixes and num[x.group] > 1 for x in batch]
    rows: list[schema.StepScores | None] = [None] * len(batch)
    for layout, is_sibling in (("padded", False), ("tree", True)):
      places = [i for i, x in enumerate(siblings) if x == is_sibling]
      if not places:
        continue
      scorer = dataclasses.replace(self.scorer, layout=layout)
      scored = scorer.score_encoded(
        [batch[i].solution for i in places],
        [batch[i].encoded for i in places],
        groups=[batch[i].group for i in places],
      )
      for i, row in zip(places, scored, strict=True):
        rows[i] = row
    return [row for row in rows if row is not None]

  @functools.cached_property
  def _shares_prefixes(self) -> bool:
    """Whether rows with trees can be scored."""
    kind = programs.KINDS[self.scorer.program]
    attention = self.scorer.config.attention
    return not (
      kind.scores_whole_solutions or attention in model_config.PACKED_ATTENTION
    )


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
    raise refusals.invalid("no step to score; give a text with steps", where)
  if num > limits.max_steps:
    raise refusals.too_large(
      f"{num} steps; this server takes up to {limits.max_steps}", where
    )


def uncut(name: str, where: str) -> refusals.RefusedError:
  """Returns the refusal of a text for a model that can't cut it."""
  return refusals.invalid(
    f"the model {name!r} doesn't say how a text is cut into steps; give steps",
    where,
  )


def load(
  folder: files.PathLike,
  limits: limits_lib.Limits,
  *,
  name: str | None = None,
) -> Model:
  """Returns the model of a checkpoint folder's latest save.

  Args:
    folder: The folder of a PRM or an ORM.
    limits: What is accepted. The shapes that are compiled follow from them.
    name: Its name in requests; None is that of the folder.

  Raises:
    InputError: The folder holds no reward model.
  """
  path = score_sources.checkpoint_folder(str(folder))
  loaded = score_sources.load(str(path))
  if loaded.scorer is None:
    raise errors.InputError(f"{folder}: give the checkpoint folder of a model")
  scorer = dataclasses.replace(
    loaded.scorer,
    row_lengths=row_lengths(limits.max_tokens),
    batch_tokens=limits.max_batch_tokens,
  )
  identity = dict(loaded.identity, compute_dtype=scorer.config.compute_dtype)
  return Model(
    name or path.resolve().name,
    fingerprint_of(identity),
    scorer,
    limits,
    path,
    int(loaded.identity["checkpoint_step"]),
  )


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
  return load(model.folder, model.limits, name=model.name)


def row_lengths(max_tokens: int) -> tuple[int, ...]:
  """Returns the lengths of rows: two for each doubling, up to a limit.

  Each is compiled for each number of rows, so there are few. From 128 tokens on
  a row has less than half padding, from 256 on less than a third.

  Args:
    max_tokens: The most tokens of a solution.
  """
  lengths = [128]
  while (last := lengths[-1]) < max_tokens:
    # 256, 384, 512, 768, 1024, ...
    lengths.append(last + max(128, 1 << (last.bit_length() - 2)))
  return tuple(lengths)
