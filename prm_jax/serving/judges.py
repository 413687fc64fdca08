"""An LLM judge as a source of scores, described by a JSON file.

  {"policy": "http://localhost:8000/v1", "model": "qwen", "chat": true,
   "template": "processbench", "votes": 8, "max_tokens": 4096}

The fields are options of `prm-jax label judge` (docs/judge.md). A step's score
is what that command would write as its label: by default the share of votes by
which everything up to the step is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import logging
import time
from typing import Any

from prm_jax import client as client_lib
from prm_jax import errors
from prm_jax import remote
from prm_jax import schema
from prm_jax.labelling import judge_prompts
from prm_jax.labelling import llm_judge
from prm_jax.labelling import rubrics
from prm_jax.policy import drawing
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.serving import refusals

_logger = logging.getLogger(__name__)

# The end of the name of a judge's file.
ENDING = ".json"


@dataclasses.dataclass(frozen=True)
class Judge:
  """A judge at an endpoint, and how it is asked.

  Args:
    policy: The address of its server, up to and including /v1.
    model: The name of the model there.
    template: The prompt, and how its answer is read: one of
      judge_prompts.TEMPLATES.
    votes: The number of answers about each solution.
    min_votes: Fewer readable answers make no score.
    vote: How votes become scores; see llm_judge.label.
    rubric: The file of a rubric, which is asked by instead of a template.
    unknown: The score of steps without one; they count as not judged. None
      refuses such a solution.
    seed: The seed of the answers.
    max_tokens: The most tokens of an answer. This and the next four are fields
      of drawing.Sampling.
    temperature: See drawing.Sampling.
    top_p: See drawing.Sampling.
    top_k: See drawing.Sampling.
    min_p: See drawing.Sampling.
    chat: See remote.Endpoint, as are the next five.
    stop_in_text: See remote.Endpoint.
    key_variable: See remote.Endpoint.
    insecure_key: See remote.Endpoint.
    concurrency: See remote.Endpoint.
    request_option: Further fields of every request.
    prompt: See remote.Template, as are the next two.
    system: See remote.Template.
    stop: See remote.Template.

  Raises:
    InputError: A field is out of range.
  """

  policy: str
  model: str
  template: str = "processbench"
  votes: int = 1
  min_votes: int = 1
  vote: str = "share"
  rubric: str | None = None
  unknown: float | None = None
  seed: int = 0
  max_tokens: int = 512
  temperature: float = 1.0
  top_p: float = 1.0
  top_k: int = 0
  min_p: float = 0.0
  chat: bool = False
  stop_in_text: bool = False
  key_variable: str | None = None
  insecure_key: bool = False
  concurrency: int = 16
  request_option: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  prompt: str = "{problem}"
  system: str | None = None
  stop: tuple[str, ...] = ()

  def __post_init__(self):
    checks.check_counts(self, ("votes", "concurrency"))
    checks.check_choice("template", self.template, [*judge_prompts.TEMPLATES])
    checks.check_seed(self.seed)
    if self.unknown is not None:
      checks.check_shares(self, ("unknown",))
    if self.system is not None and not self.chat:
      raise errors.InputError(
        "system: only a chat has one; set chat to true, or write it into prompt"
      )

  def only(self, *names: str) -> Any:
    """Returns some of its fields."""
    return {name: getattr(self, name) for name in names}

  @property
  def sampling(self) -> drawing.Sampling:
    """How answers are sampled."""
    return drawing.Sampling(
      **self.only("max_tokens", "temperature", "top_p", "top_k", "min_p")
    )

  @property
  def weighs(self) -> bool:
    """Whether its verdicts are weighed by their probabilities."""
    return self.vote == "log_likelihood" and not self.chat

  @property
  def num_rounds(self) -> int:
    """Into how many parts a call's time is divided, one after another.

    Each is for as many requests as are sent at once.
    """
    return -(-self.votes // self.concurrency) + self.weighs


@dataclasses.dataclass(frozen=True, eq=False)
class Loaded:
  """A judge that can be asked.

  Args:
    judge: The judge.
    client: The client of its server.
    template: How it is asked.
    round_s: The most time that requests which are sent at once take, with all
      tries, in seconds.
  """

  judge: Judge
  client: remote.Client
  template: judge_prompts.Template
  round_s: float

  @property
  def most(self) -> int:
    """The most solutions of a call: all their answers are asked for at once."""
    return max(1, self.judge.concurrency // self.judge.votes)

  @property
  def identity(self) -> dict[str, Any]:
    """What its scores depend on, as plain data; not the weights behind it."""
    how = ("key_variable", "insecure_key", "concurrency")
    fields = dataclasses.asdict(self.judge) | dict(rubric=self.template.rubric)
    if fields["rubric"] is None:  # so that other judges' prints stay
      del fields["rubric"]
    return {name: x for name, x in fields.items() if name not in how}

  def score(
    self, solutions: Sequence[schema.Solution]
  ) -> list[schema.StepScores | refusals.RefusedError]:
    """Returns the judge's score of each step, or why a solution has none.

    Args:
      solutions: The solutions.

    Raises:
      InputError: The server refuses, or gives no usable reply.
    """
    labelled, work = self._label(solutions)
    unread = {
      name: num
      for name, num in work.items()
      if num and (name == "tied" or name.startswith("unparsable_"))
    }
    if unread:
      _logger.warning("answers of a judge that are no votes: %s", unread)
    return [self._row(solution) for solution in labelled]

  def _row(
    self, solution: schema.Solution
  ) -> schema.StepScores | refusals.RefusedError:
    """Returns the scores of a labelled solution."""
    labels, unknown = solution.labels or (), self.judge.unknown
    scores = [unknown if x is None else x for x in labels]
    known = [x for x in scores if x is not None]
    if len(known) < len(scores):
      return refusals.RefusedError(
        502, f"the judge's answers make no score: {self._reason(solution)}"
      )
    return schema.StepScores(
      tuple(known),
      judged=tuple(x is not None for x in labels),
      graded=solution.extra.get(judge_prompts.GRADED),
    )

  def _reason(self, solution: schema.Solution) -> str:
    """Returns why a labelled solution has no score."""
    num = len(solution.extra["first_errors"])
    reason = f"{num} of {self.judge.votes} can be read"
    if num < self.judge.min_votes:
      return reason
    if self.judge.vote == "majority":
      return f"{reason}, and no first error has more votes than others (a tie)"
    return f"{reason}, and too few of their verdicts have a probability"

  def _label(
    self, solutions: Sequence[schema.Solution]
  ) -> tuple[list[schema.Solution], dict[str, int]]:
    judge = self.judge
    end = time.monotonic() + judge.num_rounds * self.round_s
    return llm_judge.label(
      solutions,
      functools.partial(
        self.client.generate, sampling=judge.sampling, seed=judge.seed
      ),
      self.template,
      **judge.only("votes", "min_votes", "vote"),
      log_likelihoods=functools.partial(self._weigh, end)
      if judge.weighs
      else None,
    )

  def _weigh(
    self,
    end: float,
    prefixes: Sequence[schema.Solution],
    words: Sequence[str],
  ) -> list[list[float]]:
    """Returns the probabilities of words, asked for until a time.

    Raises:
      NoReplyError: The next of them might come later.
    """
    num = max(1, self.judge.concurrency // len(words))
    rows: list[list[float]] = []
    for start in range(0, len(prefixes), num):
      if time.monotonic() + self.round_s > end:
        raise client_lib.NoReplyError(
          f"{self.judge.policy}: {len(prefixes)} verdicts take too long; allow"
          " more time, or ask for fewer votes",
          "timeout",
        )
      rows += self.client.log_likelihoods(prefixes[start : start + num], words)
    return rows


def load(
  path: files.PathLike,
  *,
  tries: int,
  read_s: float,
  backoff_s: float,
  max_wait_s: float,
) -> Loaded:
  """Returns the judge that a file describes; nothing is asked.

  Args:
    path: The JSON file, with fields of Judge.
    tries: The number of tries of a request in all.
    read_s: The limit of a try of a call, in seconds: of all requests that it
      takes one after another.
    backoff_s: The first pause between tries, in seconds.
    max_wait_s: The longest pause, also of all, in seconds.

  Raises:
    InputError: The file doesn't describe a judge, or its key isn't there.
  """
  record = files.read_json(path)
  known = {field.name: field for field in dataclasses.fields(Judge)}
  if unknown := sorted(record.keys() - known.keys()):
    raise errors.InputError(
      f"{path}: unknown field {unknown[0][:60]!r}; there are {', '.join(known)}"
    )
  for name in ("policy", "model"):
    if name not in record:
      raise errors.InputError(f"{path}: {name} is missing; see docs/serve.md")
  try:
    checks.check_types(Judge, record)
    if not isinstance(record.get("request_option", {}), dict):
      raise errors.InputError("request_option: expected an object")
    judge = Judge(**record | dict(stop=tuple(record.get("stop", ()))))
    num = judge.num_rounds
    endpoint = remote.Endpoint(
      judge.policy,
      **judge.only("model", "chat", "stop_in_text", "concurrency"),
      **judge.only("key_variable", "insecure_key"),
      log_probs=False,
      options=judge.request_option,
      tries=tries,
      read_s=read_s / num,
      backoff_s=backoff_s,
      max_wait_s=max_wait_s / num,
    )
    template = remote.Template(**judge.only("prompt", "system", "stop"))
    round_s = (tries * read_s + (tries - 1) * max_wait_s) / num
    client = remote.Client(endpoint, template)
    asked = rubrics.template_of(judge.template, judge.rubric)
    loaded = Loaded(judge, client, asked, round_s)
    loaded._label([])  # refuses fields that make no sense together
  except errors.InputError as e:
    raise errors.InputError(f"{path}: {e}") from e
  return loaded
