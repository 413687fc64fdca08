"""An endpoint as a `Generate` and a `LogLikelihood`: many requests at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
import hashlib
import json
import queue
import random as random_lib
import reprlib
import threading
import time
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.inference import sampler as sampler_lib
from prm_jax.inference.remote import connection
from prm_jax.inference.remote import endpoint as endpoint_lib
from prm_jax.inference.remote import journal as reply_journal
from prm_jax.inference.remote import replies
from prm_jax.runtime import files

Record = dict[str, Any]


class Client:
  """An endpoint with its connections, its journal and its counts.

  Use it in a `with` block. `counts` has completions (of these from_journal,
  empty, cut by length or by a content_filter, without log-probabilities),
  tokens as the server counts them, requests, retries, failed tries by their
  cause, and torn_lines of the journal. A count of 0 is left out.
  """

  def __init__(
    self,
    endpoint: endpoint_lib.Endpoint,
    template: endpoint_lib.Template = endpoint_lib.Template(),
    journal: files.PathLike | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Any] | None = None,
    random: Callable[[], float] = random_lib.random,
  ):
    """Opens the journal and reads the key.

    Args:
      endpoint: The endpoint.
      template: How solutions become text and back.
      journal: The file of finished completions; it is made if it doesn't exist.
      clock: Returns the time in seconds, for the journal.
      sleep: Waits some seconds; by default a failure elsewhere ends the wait.
      random: Returns a number in [0, 1).

    Raises:
      InputError: The key or the journal can't be used.
    """
    self.endpoint, self.template = endpoint, template
    self._counts: Counter[str] = Counter()
    self._stop = threading.Event()
    self._connection = connection.Connection(
      endpoint,
      self._stop,
      route="chat/completions" if endpoint.chat else "completions",
      sleep=self._stop.wait if sleep is None else sleep,
      random=random,
    )
    self._journal = None
    if journal is not None:
      self._journal = reply_journal.Journal(journal, clock)
      self._counts["torn_lines"] = self._journal.torn_lines
      self._counts["damaged_lines"] = self._journal.damaged_lines

  @property
  def counts(self) -> Counter[str]:
    """Returns what was counted so far."""
    return self._counts + self._connection.counts

  def __enter__(self) -> Client:
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def close(self) -> None:
    """Closes the connections and the journal."""
    self._stop.set()
    self._connection.close()
    if self._journal is not None:
      self._journal.close()

  def generate(
    self,
    prefixes: Sequence[schema.Solution],
    num_samples: int,
    sampling: sampler_lib.Sampling,
    seed: int,
    *,
    stop_at_step: bool = False,
    progress: Callable[[int], None] = lambda done: None,
  ) -> list[list[schema.Solution]]:
    """Returns whole solutions: each prefix's steps and their continuation.

    With sampling and seed bound, this is a schema.Generate. extra gets stopped,
    ended, num_tokens (as the server counts them), log_prob_mean and
    log_prob_min in nats (None if the server doesn't return them), and `text`,
    the new text unchanged.

    Args:
      prefixes: Unfinished solutions.
      num_samples: The number of solutions of each prefix.
      sampling: How to sample.
      seed: The seed.
      stop_at_step: Whether a completion ends with its first step.
      progress: Called with the number of completions so far.

    Raises:
      InputError: The endpoint refuses a request, or gives no usable reply in
        the allowed number of tries; what was finished is in the journal.
    """
    template, endpoint = self.template, self.endpoint
    if endpoint.chat and not endpoint.continues:
      self._refuse_steps(prefixes)
    fixed: Record = dict(
      max_tokens=sampling.max_tokens,
      temperature=sampling.temperature,
      top_p=sampling.top_p,
    )
    step = template.separator if stop_at_step else None
    if stops := [step] * stop_at_step + [*template.stop]:
      fixed["stop"] = stops
    if endpoint.log_probs:
      fixed["logprobs"] = True if endpoint.chat else 1

    def request(prefix: schema.Solution, sample: int) -> Record:
      own_seed = _seed(seed, prefix.id, sample)
      return self._prompt(prefix, whole=True) | fixed | dict(seed=own_seed)

    def read(reply: Record, sent: Record, _: int) -> Record:
      completion = replies.completion(reply, sent, endpoint, step)
      matched, finish = completion["matched"], completion["finish_reason"]
      stopped = "end" if matched or finish == "stop" else "length"
      if step is not None and matched == step:
        stopped = "step"
      return completion | dict(stopped=stopped)

    samples = [(p, n) for p in prefixes for n in range(num_samples)]
    completions = self._ask_all(prefixes, samples, request, read, progress)
    for completion in completions:
      self._count_completion(completion)
    rest = iter(completions)
    return [
      [self._solution(prefix, next(rest), n) for n in range(num_samples)]
      for prefix in prefixes
    ]

  def log_likelihoods(
    self,
    prefixes: Sequence[schema.Solution],
    options: Sequence[str],
    *,
    progress: Callable[[int], None] = lambda done: None,
  ) -> list[list[float]]:
    """Returns each option's log-probability in nats, after the last step.

    This is a schema.LogLikelihood. The server must return the log-probabilities
    of a prompt (echo), as vLLM and SGLang do, and an option must begin with a
    token.
    """
    if self.endpoint.chat:
      raise errors.InputError(
        f"{self.endpoint.url}: a chat doesn't give the log-probabilities of a"
        " given text; ask its /completions (chat=False)"
      )

    def request(prefix: schema.Solution, option: str) -> Record:
      body = self._prompt(prefix, whole=False)
      # Not 0 tokens, which SGLang refuses.
      rest = dict(max_tokens=1, temperature=0, echo=True, logprobs=1)
      return body | rest | dict(prompt=body["prompt"] + option)

    def read(reply: Record, _: Record, option: str) -> Record:
      return replies.log_prob(reply, option, self.endpoint.url)

    pairs = [(p, option) for p in prefixes for option in options]
    records = self._ask_all(prefixes, pairs, request, read, progress)
    self._counts["weighed"] += len(records)
    self._counts["prompt_tokens"] += sum(x["prompt_tokens"] for x in records)
    rest = iter(records)
    return [[next(rest)["log_prob"] for _ in options] for _ in prefixes]

  # --- Requests and what is made of them --------------------------------------

  def _refuse_steps(self, prefixes: Sequence[schema.Solution]) -> None:
    for prefix in prefixes:
      if prefix.steps:
        raise errors.InputError(
          f"prefix {prefix.id!r} has steps, which a chat continues only if"
          " the server continues a message (vLLM, SGLang, llama.cpp: set"
          " continues); or use /completions"
        )

  def _prompt(self, prefix: schema.Solution, whole: bool) -> Record:
    """Returns the prompt's fields; whole: its last step has its separator."""
    template, endpoint = self.template, self.endpoint
    opening = template.opening(prefix.problem)
    steps = template.written(prefix.steps)
    fields = {**endpoint.options, "model": endpoint.model}
    if not endpoint.chat:
      text = f"{opening}{template.separator}{steps}"
      if prefix.steps and not whole:
        text = text.removesuffix(template.separator)
      return fields | dict(prompt=text)
    messages = [dict(role="user", content=opening)]
    if template.system is not None:
      messages.insert(0, dict(role="system", content=template.system))
    if not prefix.steps:
      return fields | dict(messages=messages)
    messages.append(dict(role="assistant", content=steps))
    return fields | dict(
      messages=messages,
      add_generation_prompt=False,
      continue_final_message=True,
    )

  def _count_completion(self, completion: Record) -> None:
    finish = completion["finish_reason"]
    self._counts.update(
      completions=1,
      tokens=completion["num_tokens"],
      prompt_tokens=completion["prompt_tokens"],
      empty=not completion["text"].strip(),
      length=finish == "length",
      content_filter=finish == "content_filter",
      without_log_probs=completion["log_prob_mean"] is None,
    )

  def _solution(
    self, prefix: schema.Solution, completion: Record, sample: int
  ) -> schema.Solution:
    names = ("stopped", "num_tokens", "log_prob_mean", "log_prob_min", "text")
    extra = {name: completion[name] for name in names}
    extra["ended"] = completion["stopped"] == "end"
    return schema.Solution(
      id=f"{prefix.id}/{sample}",
      problem=prefix.problem,
      steps=(*prefix.steps, *self.template.split(completion["new_text"])),
      source="policy",
      extra={**prefix.extra, **extra},
    )

  def _ask_all(
    self,
    prefixes: Sequence[schema.Solution],
    items: Sequence[tuple[schema.Solution, Any]],
    request: Callable[[schema.Solution, Any], Record],
    read: Callable[[Record, Record, Any], Record],
    progress: Callable[[int], None],
  ) -> list[Record]:
    """Returns what was read for each item, from the journal or the endpoint."""
    for prefix_id, times in Counter(p.id for p in prefixes).items():
      if times > 1:
        raise errors.InputError(
          f"prefix {prefix_id!r} is asked for {times} times in one call; give"
          " each an id of its own"
        )
    keys = [_digest(p.id, tag, request(p, tag)) for p, tag in items]
    records: list[Record | None] = [None] * len(items)
    if self._journal is not None:
      records = [self._journal.get(key) for key in keys]
    missing = [i for i, record in enumerate(records) if record is None]
    done = len(items) - len(missing)
    self._counts["from_journal"] += done
    progress(done)

    def work(i: int) -> Record:
      prefix, tag = items[i]
      body = request(prefix, tag)
      return self._connection.ask(
        body,
        lambda reply: read(reply, body, tag),
        f"prefix {reprlib.repr(prefix.id)}",
      )

    def settle(i: int, record: Record) -> None:
      nonlocal done
      if self._journal is not None:
        who = dict(id=items[i][0].id, of=items[i][1])
        self._journal.put(
          keys[i], who | dict(model=self.endpoint.model), record
        )
      records[i], done = record, done + 1
      progress(done)

    self._stop.clear()
    _each(missing, work, settle, self.endpoint.concurrency, self._stop)
    if self._journal is not None:
      self._journal.sync()
    return [record for record in records if record is not None]


def _seed(seed: int, prefix_id: str, sample: int) -> int:
  """Returns the request's seed, of 31 bits: that every server can take."""
  text = json.dumps([seed, prefix_id, sample])
  digest = hashlib.sha256(text.encode()).digest()
  return int.from_bytes(digest[:4], "big") >> 1


def _digest(prefix_id: str, tag: Any, body: Record) -> str:
  """Returns a request's key in the journal; `body` is all that is asked for."""
  text = json.dumps([1, prefix_id, tag, body], sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:32]


def _each(
  items: Sequence[int],
  work: Callable[[int], Record],
  settle: Callable[[int, Record], None],
  concurrency: int,
  stop: threading.Event,
) -> None:
  """Calls settle(i, work(i)) for each item, as the work is finished.

  Up to `concurrency` threads do the work; the caller's thread settles. After
  an error no further work begins, and the work that has begun is settled;
  Ctrl-C waits for nothing.
  """
  todo: queue.SimpleQueue[int] = queue.SimpleQueue()
  done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
  for item in items:
    todo.put(item)

  def serve() -> None:
    while not stop.is_set():
      try:
        i = todo.get_nowait()
      except queue.Empty:
        return
      try:
        done.put((i, work(i)))
      except BaseException as e:
        done.put((i, e))  # before the others see that it is over
        stop.set()

  threads = [
    threading.Thread(target=serve, daemon=True)
    for _ in range(min(concurrency, len(items)))
  ]
  for thread in threads:
    thread.start()
  try:
    for _ in items:
      i, record = done.get()
      if isinstance(record, BaseException):
        for thread in threads:
          thread.join()
        while not done.empty():
          i, late = done.get()
          if not isinstance(late, BaseException):
            settle(i, late)
        raise record
      settle(i, record)
  finally:
    stop.set()
