"""What gives scores and isn't a checkpoint: a function, a server or a judge.

A source has no tokenizer of ours. So its solutions aren't encoded, no limit
counts tokens, and its batches are bounded by their number of solutions. A call
may take long or never end, so each source is called in a thread of its own.

If a source fails, a request gets a refusal and never a score. Neither the reply
nor the log repeats what a server or an exception says: it may hold the text of
a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import functools
import logging
import pathlib
import ssl
import time
from typing import Any

import numpy as np

from prm_jax import client as client_lib
from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import user_functions
from prm_jax.scoring import cached_scorer
from prm_jax.scoring import score_checks
from prm_jax.scoring import score_sources
from prm_jax.serving import judges
from prm_jax.serving import models
from prm_jax.serving import refusals
from prm_jax.serving import server_limits as limits_lib
from prm_jax.serving import threads
from prm_jax.text import encoding
from prm_jax.text import own_form
from prm_jax.text import segmenters
from prm_jax.text import step_spans
from prm_jax.text import template as template_lib

_logger = logging.getLogger(__name__)

KINDS = ("function", "server", "judge")
# The statuses by which a server refuses some of the solutions it was sent, and
# the causes of no reply that may be one of them: this server fails so, too.
_OF_A_SOLUTION = (400, 413, 422)
_CAUSES_OF_A_SOLUTION = ("status_500", "status_502")
# A client has its own tries.
TRIES = 2
# The first pause between two tries, and the part of a call's time that a pause
# may take at most.
_BACKOFF_S = 0.25
_PAUSE = 0.1
_RETRY_AFTER_S = 5
# Scores solutions, or says why one has no score.
Ask = Callable[
  [Sequence[schema.Solution]], list[schema.StepScores | refusals.RefusedError]
]
_NO_TOKENS = encoding.EncodedSolution(
  np.zeros(0, np.int32), np.zeros(0, np.int32), 0
)


class NoScoresError(errors.InputError):
  """What was returned isn't one score in [0, 1] for each step."""


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
  """What gives scores and isn't a checkpoint, under a name.

  Args:
    name: The name in requests.
    fingerprint: A digest of what is known of what its scores depend on.
    kind: One of KINDS.
    ask: Scores solutions.
    limits: What it accepts; max_batch_tokens is a number of solutions here.
    segmenter: How a text is cut into steps; None if texts aren't taken.
    aggregate: How step scores become a solution's score by default.
    template: The template of its texts: our own form.
  """

  name: str
  fingerprint: str
  kind: str
  ask: Ask
  limits: limits_lib.Limits
  segmenter: segmenters.Segmenter | None = None
  aggregate: str = "product"
  template: template_lib.Template = own_form.OWN

  def prepare(
    self, solution: schema.Solution, where: str, client: str = ""
  ) -> models.Prepared:
    """Returns a solution that can be scored.

    Args:
      solution: The solution.
      where: The item of the request that it is, for errors.
      client: Who asks.

    Raises:
      RefusedError: It has no steps, or too many; or it is a conversation, and a
        judge reads none.
    """
    models.check_steps(solution, self.limits, where)
    if solution.messages is not None and self.kind == "judge":
      raise refusals.invalid(
        f"{self.name!r} is a judge, which reads a problem and its steps and no"
        " conversation; ask a model that reads conversations",
        where,
      )
    until = time.monotonic() + self.limits.deadline_s
    return models.Prepared(solution, _NO_TOKENS, client, until)

  def cut(self, problem: str, text: str, where: str) -> schema.Solution:
    """Returns a text as a solution, cut by the server's segmenter.

    Args:
      problem: The problem.
      text: The text.
      where: The item of the request that it is, for errors.

    Raises:
      RefusedError: There is no segmenter.
    """
    if self.segmenter is None:
      raise models.uncut(self.name, where)
    spans = self.spans(text, self.segmenter, where)
    steps = tuple(text[start:end] for start, end in spans)
    return schema.Solution("0", problem, steps, raw_text=text, spans=spans)

  def spans(
    self, text: str, segmenter: segmenters.Segmenter, where: str
  ) -> tuple[schema.Span, ...]:
    """Returns where the steps of a text are, in characters.

    Args:
      text: The text.
      segmenter: How it is cut.
      where: The field that it is, for errors.

    Raises:
      InputError: The segmenter counts tokens.
    """
    del where  # Of any length.
    return step_spans.spans(text, segmenter)

  @property
  def reads_turns(self) -> bool:
    """Whether it scores the turns of conversations."""
    return self.kind != "judge"

  def rows(self, first: models.Prepared) -> models.Rows:
    """Returns an empty batch, a single row of solutions.

    Args:
      first: A solution that has room in it.
    """
    del first
    return models.Rows(self.limits.max_batch_tokens, 1)

  def score(
    self, batch: Sequence[models.Prepared]
  ) -> list[cached_scorer.Scored | refusals.RefusedError]:
    """Returns the scores of a batch, or why a solution has none.

    If the whole batch fails, but may hold solutions that don't, each half is
    asked for: a client's solution doesn't fail those of others. One that fails
    among n takes about 2 log2 n calls. What no request waits for any longer
    isn't asked for again.

    Args:
      batch: The solutions.
    """
    try:
      rows = self.ask([x.solution for x in batch])
    except BaseException as e:  # a function may raise any
      if len(batch) == 1 or not _is_of_a_solution(e):
        return [self._refused(e)] * len(batch)
      failed = type(e).__name__
    else:
      return [_scored(x, row) for x, row in zip(batch, rows, strict=True)]
    _logger.warning(
      *("%r fails for %d solutions together (%s): asks for each half",),
      *(self.name, len(batch), failed),
    )
    middle = len(batch) // 2
    return [*self._again(batch[:middle]), *self._again(batch[middle:])]

  def _again(
    self, batch: Sequence[models.Prepared]
  ) -> list[cached_scorer.Scored | refusals.RefusedError]:
    """Returns the scores of those solutions that are still waited for."""
    now = time.monotonic()
    left = [x for x in batch if x.until > now]
    rows = iter(self.score(left) if left else ())
    over = refusals.RefusedError(504, "no scores in time; try again later")
    return [next(rows) if x.until > now else over for x in batch]

  def _refused(self, error: BaseException) -> refusals.RefusedError:
    """Returns why there are no scores, and logs it."""
    if isinstance(error, client_lib.NoReplyError):
      cause = error.cause or "stopped"
      _logger.error("%r: its server gives no reply (%s)", self.name, cause)
      return refusals.RefusedError(
        503,
        f"the server of {self.name!r} gives no reply ({cause}); try again",
        retry_after_s=_RETRY_AFTER_S,
      )
    if isinstance(error, client_lib.RefusalError):
      why = f"the server of {self.name!r} refuses it (status {error.status})"
      _logger.error("%s", why)
      return refusals.RefusedError(502, why)
    if self.kind != "function":
      # A connection raises it anew, to hide its key.
      threads.log_place(self.name, error.__context__ or error)
      return refusals.RefusedError(
        502,
        f"the server of {self.name!r} gives no usable scores; this server's log"
        " says where",
      )
    if isinstance(error, NoScoresError):
      what = "gave no list with a score in [0, 1] of each step"
      _logger.error("%r %s", self.name, what)
    else:
      what = f"failed ({type(error).__name__}); the server's log says where"
      threads.log_place(self.name, error)
    return refusals.RefusedError(500, f"{self.name!r} {what}")


# What a server may serve.
Served = models.Model | Source


def is_source(name: str) -> bool:
  """Returns whether a name isn't that of a checkpoint folder.

  Args:
    name: What score_sources.load_score takes, or the file of a judge.

  Raises:
    InputError: It is a file of Python without a function.
  """
  return (
    score_sources.is_url(name)
    or score_sources.is_function(name)
    or name.endswith(judges.ENDING)
  )


def load(
  where: str,
  limits: limits_lib.Limits,
  *,
  name: str | None = None,
  segmenter: segmenters.Segmenter | None = None,
  key: score_sources.Key = score_sources.Key(),
) -> Source:
  """Returns what isn't a checkpoint.

  Args:
    where: FILE.py:FUNCTION, MODULE:FUNCTION, a server's address up to and
      including /v1, or the JSON file of a judge (see judges.load).
    limits: What is accepted.
    name: Its name in requests; None is that of the function or the file.
    segmenter: How texts are cut into steps.
    key: The key of a server.

  Raises:
    InputError: There is no such thing, an address has no name, or the segmenter
      counts tokens.
  """
  if segmenter is not None and segmenter.kind == "tokens":
    raise errors.InputError(
      f"`segmenter=tokens:{segmenter.num_tokens}`: {where} has no tokenizer;"
      " give another one"
    )
  num = limits.max_batch_solutions
  tries = _tries(limits.deadline_s)
  ask: Ask
  if score_sources.is_url(where):
    if name is None:
      raise errors.InputError(f"{where}: give it a name, NAME={where}")
    client = client_lib.Client(
      where,
      key_variable=key.variable,
      insecure_key=key.insecure,
      **tries,
    )
    kind, num = "server", min(num, client_lib.MAX_ITEMS)
    ask = functools.partial(_checked, client.score)
    identity = dict(
      url=where,
      model=client.model,
      model_fingerprint=client.model_fingerprint,
    )
  elif function := user_functions.parse(where):
    loaded = user_functions.load(function)
    # Not `loaded` itself, which makes one error of all that are raised.
    kind, ask = "function", functools.partial(_checked, loaded.function)
    identity = dict(loaded.identity)
    name = name or function.function
  else:
    judge = judges.load(where, **tries)
    kind, ask, identity = "judge", judge.score, judge.identity
    num = min(num, judge.most)
    name = name or pathlib.Path(where).stem
  return Source(
    *(name, models.fingerprint_of(identity), kind, ask),
    dataclasses.replace(limits, max_batch_tokens=num),
    segmenter,
  )


def _tries(time_s: float) -> Any:
  """Returns the settings of a client whose calls end within a time."""
  pause_s = _PAUSE * time_s
  return dict(
    tries=TRIES,
    read_s=(time_s - (TRIES - 1) * pause_s) / TRIES,
    backoff_s=_BACKOFF_S,
    max_wait_s=pause_s,
  )


def _scored(
  prepared: models.Prepared, row: schema.StepScores | refusals.RefusedError
) -> cached_scorer.Scored | refusals.RefusedError:
  """Returns a solution's scores with the places of its steps."""
  if isinstance(row, refusals.RefusedError):
    return row
  placed = dataclasses.replace(row, spans=prepared.solution.spans)
  return cached_scorer.Scored(placed, 0)


def _checked(
  score: Callable[[Any], Any], solutions: Sequence[schema.Solution]
) -> list[schema.StepScores | refusals.RefusedError]:
  """Returns scores as plain numbers: one in [0, 1] for each step."""
  given = score(solutions)
  try:
    rows = score_checks.step_scores(given, solutions, "scores")
  except Exception as e:  # of what was given, too
    raise NoScoresError(str(e)) from e
  return [
    schema.StepScores(
      tuple(map(float, row.scores)), judged=tuple(map(bool, row.judged))
    )
    for row in rows
  ]


def _is_of_a_solution(error: BaseException) -> bool:
  """Returns whether a call may have failed because of one of its solutions."""
  if isinstance(error, client_lib.RefusalError):
    return error.status in _OF_A_SOLUTION
  if isinstance(error, client_lib.NoReplyError):
    return error.cause in _CAUSES_OF_A_SOLUTION
  # A connection raises an error anew, to hide its key.
  first = error.__context__ or error
  return not isinstance(first, client_lib.OtherModelError) and not isinstance(
    first.__context__, ssl.SSLCertVerificationError
  )
