"""A served reward model, with the methods that a loaded one has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
import concurrent.futures
import functools
from typing import Any, overload, TypeVar

from prm_jax import errors
from prm_jax import schema
from prm_jax.inference import score_checks
from prm_jax.inference.remote import endpoint as endpoint_lib
from prm_jax.inference.remote import score_client
from prm_jax.inference.remote import score_protocol

_T = TypeVar("_T")


class Client:
  """A reward model behind `prm-jax serve`, or another server of that request.

  Its scores are those of the model that is served (docs/serve.md). A request
  that fails for a reason that may pass, such as a full queue, is sent again
  after a pause. Any thread may ask. It is a context manager.

  Args:
    url: The server's address, up to and including /v1.
    model: The name of the model; "" leaves it to the server.
    key_variable: The environment variable that holds the key; None sends none.
    insecure_key: Whether the key may be sent unencrypted, over http, to another
      machine.
    read_s: How long a try may take, in seconds.
    tries: How often a request is sent at most.

  Raises:
    InputError: The address is wrong, the key isn't there, or the server gives
      no scores.
  """

  def __init__(
    self,
    url: str,
    *,
    model: str = "",
    key_variable: str | None = None,
    insecure_key: bool = False,
    read_s: float = 600.0,
    tries: int = 8,
  ):
    self._url = url
    self._client = score_client.ScoreClient(
      endpoint_lib.Endpoint(
        *(url, model),
        key_variable=key_variable,
        insecure_key=insecure_key,
        read_s=read_s,
        tries=tries,
      )
    )

  def __repr__(self) -> str:
    return f"Client({self._url!r}, {self._client.model!r})"

  def __enter__(self) -> Client:
    return self

  def __exit__(self, *raised: object) -> None:
    self.close()

  @property
  def model_fingerprint(self) -> str | None:
    """A digest of all that the model's scores depend on; None if unknown."""
    return self._client.model_fingerprint

  def close(self) -> None:
    """Closes the sockets."""
    self._client.close()

  @overload
  def score(
    self, problem: str, steps: Sequence[str], /
  ) -> schema.StepScores: ...

  @overload
  def score(
    self, solutions: Iterable[schema.Solution], /
  ) -> list[schema.StepScores]: ...

  def score(
    self,
    problem: str | Iterable[schema.Solution],
    steps: Sequence[str] | None = None,
    /,
  ) -> schema.StepScores | list[schema.StepScores]:
    """Returns the scores of one solution's steps, or those of many solutions.

    Args:
      problem: The text of the question, or the solutions.
      steps: The text of each step, if `problem` is a text.

    Returns:
      StepScores if `problem` is a text, else a list with those of each
      solution, in their order.

    Raises:
      InputError: The server refuses, or no try has a usable reply.
    """
    if isinstance(problem, str):
      if steps is None or isinstance(steps, str):
        raise errors.InputError(
          "score: give score(problem, steps) with a list of steps,"
          " score(solutions), or score_text(problem, text)"
        )
      (row,) = self._score([schema.Solution("0", problem, tuple(steps))])
      return row
    return self._score(list(problem))

  def score_text(self, problem: str, text: str) -> schema.StepScores:
    """Returns the scores of the steps of a text, with their places in the text.

    Args:
      problem: The text of the question.
      text: A whole solution, which is cut into steps as the model's checkpoint
        says.

    Returns:
      The scores; spans has each step's place in `text`, in characters.

    Raises:
      InputError: The server refuses, the model doesn't say how texts are cut,
        or no try has a usable reply.
    """
    (row,) = self.score_texts([problem], [text])
    return row

  def score_texts(
    self, problems: Sequence[str], texts: Sequence[str]
  ) -> list[schema.StepScores]:
    """Returns the scores of the steps of many texts; see score_text.

    Args:
      problems: The text of the question of each.
      texts: Whole solutions. One that is blank has no step, and isn't sent.

    Returns:
      The scores of each, in their order.

    Raises:
      InputError: There isn't one problem for each text, or see score_text.
    """
    if len(problems) != len(texts):
      raise errors.InputError(
        f"score_texts: {len(problems)} problems and {len(texts)} texts; give one"
        " of each"
      )
    shown = [i for i, text in enumerate(texts) if text.strip()]
    names = [f"texts[{i}]" for i in shown]
    entries = self._client.entries(
      [score_protocol.text_item(problems[i], texts[i]) for i in shown], names
    )
    solutions = [
      self._cut(problems[i], texts[i], entry, name)
      for i, name, entry in zip(shown, names, entries, strict=True)
    ]
    rows = [schema.StepScores((), spans=()) for _ in texts]
    for i, row in zip(shown, self._checked(entries, solutions), strict=True):
      rows[i] = row
    return rows

  def _cut(
    self, problem: str, text: str, entry: score_protocol.Entry, name: str
  ) -> schema.Solution:
    """Returns a text as the solution that the server cut it into."""
    spans = None if entry.segments is None else tuple(entry.segments)
    if spans is None or any(end > len(text) for _, end in spans):
      raise errors.InputError(
        f"{self._url}: {name}: the reply has no places of steps in the text; the"
        " server must give segments for a response"
      )
    steps = tuple(text[start:end] for start, end in spans)
    return schema.Solution("0", problem, steps, raw_text=text, spans=spans)

  def _score(
    self, solutions: Sequence[schema.Solution]
  ) -> list[schema.StepScores]:
    """Returns the scores of solutions; one without a step isn't sent."""
    shown = [s for s in solutions if s.steps]
    entries = self._client.entries(
      [score_protocol.item(s) for s in shown],
      [f"solution {s.id!r}" for s in shown],
    )
    rows = iter(self._checked(entries, shown))
    return [next(rows) if s.steps else schema.StepScores(()) for s in solutions]

  def _checked(
    self,
    entries: Sequence[score_protocol.Entry],
    solutions: Sequence[schema.Solution],
  ) -> list[schema.StepScores]:
    """Returns entries as StepScores: one score in [0, 1] of each step."""
    rows = score_checks.step_scores(
      [entry.step_scores for entry in entries], solutions, self._url
    )
    return [
      schema.StepScores(
        row.scores, spans=solution.spans, judged=tuple(entry.judged or ())
      )
      for row, entry, solution in zip(rows, entries, solutions, strict=True)
    ]


class AsyncClient:
  """A `Client` whose methods are awaited, for many requests at a time.

  The server scores what comes together in one batch. The server is asked for a
  trial at the first call. It is an async context manager.

  Args:
    url: See Client.
    concurrency: The most requests that are under way at a time.
    **options: The options of Client.

  Raises:
    InputError: concurrency is below 1.
  """

  def __init__(self, url: str, *, concurrency: int = 64, **options: Any):
    if concurrency < 1:
      raise errors.InputError(f"concurrency={concurrency}: give 1 or more")
    self._make = functools.partial(Client, url, **options)
    self._client: Client | None = None
    self._making = asyncio.Lock()
    # A thread for each request: it waits for the server, and holds no lock.
    self._threads = concurrent.futures.ThreadPoolExecutor(concurrency)

  async def __aenter__(self) -> AsyncClient:
    await self._made()
    return self

  async def __aexit__(self, *raised: object) -> None:
    # Other tasks run while it waits for the requests under way.
    await asyncio.to_thread(self.close)

  def close(self) -> None:
    """Closes the sockets, once the requests under way have their replies."""
    self._threads.shutdown()
    if self._client is not None:
      self._client.close()

  @overload
  async def score(
    self, problem: str, steps: Sequence[str], /
  ) -> schema.StepScores: ...

  @overload
  async def score(
    self, solutions: Iterable[schema.Solution], /
  ) -> list[schema.StepScores]: ...

  async def score(self, *given: Any) -> Any:
    """Returns what Client.score does.

    Args:
      *given: A problem and its steps, or solutions.

    Returns:
      See Client.score.

    Raises:
      InputError: See Client.score.
    """
    client = await self._made()
    return await self._in_thread(functools.partial(client.score, *given))

  async def score_text(self, problem: str, text: str) -> schema.StepScores:
    """Returns what Client.score_text does.

    Args:
      problem: The text of the question.
      text: A whole solution.

    Returns:
      See Client.score_text.

    Raises:
      InputError: See Client.score_text.
    """
    client = await self._made()
    return await self._in_thread(
      functools.partial(client.score_text, problem, text)
    )

  async def score_texts(
    self, problems: Sequence[str], texts: Sequence[str]
  ) -> list[schema.StepScores]:
    """Returns what Client.score_texts does.

    Args:
      problems: The text of the question of each.
      texts: Whole solutions.

    Returns:
      See Client.score_texts.

    Raises:
      InputError: See Client.score_texts.
    """
    client = await self._made()
    return await self._in_thread(
      functools.partial(client.score_texts, problems, texts)
    )

  async def _made(self) -> Client:
    async with self._making:
      if self._client is None:
        self._client = await self._in_thread(self._make)
    return self._client

  async def _in_thread(self, call: Callable[[], _T]) -> _T:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(self._threads, call)
