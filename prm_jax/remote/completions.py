"""An endpoint as a policy: many requests at a time.

`Client.generate` is a `Generate` of texts, `Client.log_likelihoods` a
`LogLikelihood`, and `Client.complete` completes token ids as an engine does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
import dataclasses
import hashlib
import json
import random as random_lib
import time
from typing import Any, TypeVar

from prm_jax import errors
from prm_jax import schema
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler as sampler_lib
from prm_jax.remote import asking
from prm_jax.remote import endpoint as endpoint_lib
from prm_jax.remote import parts
from prm_jax.remote import replies
from prm_jax.remote import texts
from prm_jax.runtime import files
from prm_jax.text import solution_texts

Record = dict[str, Any]
# What is completed, with an id of its own in a call.
Asked = TypeVar("Asked", schema.Solution, rollout_engine.Request)
_T = TypeVar("_T")


class Client:
  """An endpoint with its connections, its journal and its counts.

  Use it in a `with` block. `counts` has completions (of these from_journal,
  empty, cut by length or by a content_filter, without log-probabilities, or
  overshot: with text after their first step, which is dropped), continued, the
  requests that go on with a step after a stop string in one of its blocks,
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
      clock: Returns the time in seconds, for the journal and servers' rests.
      sleep: Waits some seconds; by default a failure elsewhere ends the wait.
      random: Returns a number in [0, 1).

    Raises:
      InputError: The key or the journal can't be used.
    """
    self.endpoint, self.template = endpoint, template
    self._counts: Counter[str] = Counter()
    self._asker = asking.Asker(endpoint, journal, clock, sleep, random)

  @property
  def counts(self) -> Counter[str]:
    """Returns what was counted so far."""
    return self._counts + self._asker.counts

  def __enter__(self) -> Client:
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def close(self) -> None:
    """Closes the connections and the journal."""
    self._asker.close()

  def generate(
    self,
    prefixes: Sequence[schema.Solution],
    num_samples: int,
    sampling: sampler_lib.Sampling,
    seed: int,
    *,
    stop_at_step: bool = False,
    count_prompts: bool = False,
    progress: Callable[[int], None] = lambda done: None,
  ) -> list[list[schema.Solution]]:
    """Returns whole solutions: each prefix's steps and their continuation.

    With sampling and seed bound, this is a schema.Generate. raw_text is the
    prefix's text with the new text, spans are the places of the steps in it.
    extra gets stopped, ended, num_tokens (as the server counts them),
    log_prob_mean and log_prob_min in nats (None if the server doesn't return
    them), and `text`, the new text unchanged. These are of all that was
    written, also of a completion of which only the first step is kept.

    Args:
      prefixes: Unfinished solutions. One with raw_text and spans is continued
        from the end of its raw_text.
      num_samples: The number of solutions of each prefix.
      sampling: How to sample.
      seed: The seed.
      stop_at_step: Whether a completion ends with its first step.
      count_prompts: Whether extra also gets prompt_tokens, the tokens of the
        prompt as the server counts them.
      progress: Called with the number of completions so far.

    Raises:
      InputError: The endpoint refuses a request, or gives no usable reply in
        the allowed number of tries; what was finished is in the journal. Or
        sampling and the endpoint's options both set top_k or min_p.
    """
    texts.check_begun(prefixes, self.template, self.endpoint)
    step = texts.step_end(self.template) if stop_at_step else None
    # A chat that can't be continued writes all, and the rest is dropped.
    in_parts = not self.endpoint.chat or self.endpoint.continues
    may_stop = in_parts or not texts.holds_blocks(self.template)
    sent_step = step if may_stop else None
    fixed = self._sampled_by(sampling, sent_step)
    if self.endpoint.log_probs:
      fixed["logprobs"] = True if self.endpoint.chat else 1

    def request(prefix: schema.Solution, part: parts.Part) -> Record:
      own_seed = _seed(seed, prefix.id, *part.numbers)
      own = dict(seed=own_seed)
      if part.number:
        own["max_tokens"] = sampling.max_tokens - part.record["num_tokens"]
        more = solution_texts.continued(
          prefix, self.template.separator, part.record["written"], ()
        )
        prefix = dataclasses.replace(prefix, **more._asdict())
      prompt = texts.prompt(prefix, self.template, self.endpoint)
      return prompt | fixed | own

    def read(reply, sent, _: parts.Part, server) -> Record:
      return replies.completion(reply, sent, server, sent_step)

    samples = [(p, n) for p in prefixes for n in range(num_samples)]
    completions = self._complete_all(
      *(prefixes, samples, request, read, sent_step),
      *(lambda _: sampling.max_tokens, self.template.begun, progress),
    )
    counted = ("prompt_tokens",) if count_prompts else ()
    solutions = [
      texts.solution(prefix, completion, n, self.template, step, counted)
      for (prefix, n), completion in zip(samples, completions, strict=True)
    ]
    if step is not None:
      self._counts["overshot"] += sum(
        not str(solution.raw_text).endswith(completion["written"])
        for solution, completion in zip(solutions, completions, strict=True)
      )
    return _rows(solutions, [num_samples] * len(prefixes))

  def complete(
    self,
    requests: Sequence[rollout_engine.Request],
    sampling: sampler_lib.Sampling,
    seed: int,
    *,
    ends: Sequence[int] = (),
    stop_at_step: bool = False,
    progress: Callable[[int], None] = lambda done: None,
  ) -> list[list[sampler_lib.Completion]]:
    """Returns each request's completions as token ids with log-probabilities.

    The prompts are sent as ids, so the server's tokenizer must be the policy's.
    vLLM and SGLang take and return ids. The ids of a completion that a stop
    string ended go on to the end of the token that completed the string.

    A journal answers a request that was made before, whatever the server's
    weights are now: give none if they change.

    Args:
      requests: The prompts to complete.
      sampling: How to sample.
      seed: The seed.
      ends: Further ids that end a completion, besides those that the server
        knows.
      stop_at_step: Whether a completion ends with its first step.
      progress: Called with the number of completions so far.

    Returns:
      The completions of each request. log_probs are as the server has them: by
      default at temperature 1 in vLLM, and at the sampling's in SGLang.

    Raises:
      InputError: The endpoint is a chat, refuses a request, returns no ids or
        no log-probabilities, or read another prompt than was sent.
    """
    if self.endpoint.chat:
      raise errors.InputError(
        f"{self.endpoint.url}: a chat takes no token ids; ask its /completions,"
        " without `chat`"
      )
    step = texts.step_end(self.template) if stop_at_step else None
    fixed = self._sampled_by(sampling, step)
    fixed |= dict(logprobs=1, return_token_ids=True)
    if ends:
      fixed["stop_token_ids"] = [*ends]
    fields = {**self.endpoint.options, "model": self.endpoint.model}

    def budget(asked: rollout_engine.Request) -> int:
      most = sampling.max_tokens
      return most if asked.max_tokens is None else min(asked.max_tokens, most)

    def request(asked: rollout_engine.Request, part: parts.Part) -> Record:
      own = dict(
        prompt=[int(i) for i in asked.prompt],
        seed=_seed(seed, asked.id, *part.numbers),
      )
      if asked.max_tokens is not None:
        own["max_tokens"] = budget(asked)
      if part.number:
        own["prompt"] += part.record["token_ids"]
        own["max_tokens"] = budget(asked) - part.record["num_tokens"]
      return fields | fixed | own

    def read(reply, sent, _: parts.Part, server) -> Record:
      ids = replies.token_ids(reply, sent["prompt"], server.url)
      # A prompt of ids has no text in which a stop string could begin.
      texts_sent = {name: x for name, x in sent.items() if name != "prompt"}
      return ids | replies.completion(reply, texts_sent, server, step)

    samples = [(r, n) for r in requests for n in range(r.num_samples)]
    records = self._complete_all(
      *(requests, samples, request, read, step, budget),
      *(lambda x: x.begun.text if x.begun else "", progress),
    )
    completions = [texts.completion(record, step) for record in records]
    return _rows(completions, [r.num_samples for r in requests])

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
    rows = self.weigh([(prefixes, options)], progress=progress)[0]
    return [[x.log_prob for x in row] for row in rows]

  def weigh(
    self,
    groups: Sequence[tuple[Sequence[schema.Solution], Sequence[str]]],
    *,
    progress: Callable[[int], None] = lambda done: None,
  ) -> list[list[list[schema.Weighed]]]:
    """Returns how likely texts are; this is a schema.Weigh.

    See log_likelihoods.
    """
    if self.endpoint.chat:
      raise errors.InputError(
        f"{self.endpoint.url}: a chat doesn't give the log-probabilities of a"
        " given text; ask its /completions (chat=False)"
      )

    def request(prefix: schema.Solution, option: str) -> Record:
      body = texts.prompt(prefix, self.template, self.endpoint, within=True)
      # Not 0 tokens, which SGLang refuses.
      rest = dict(max_tokens=1, temperature=0, echo=True, logprobs=1)
      return body | rest | dict(prompt=body["prompt"] + option)

    def read(reply, _: Record, option: str, server) -> Record:
      return replies.log_prob(reply, option, server.url)

    asked = [p for prefixes, _ in groups for p in prefixes]
    widths = [len(options) for prefixes, options in groups for _ in prefixes]
    pairs = [
      (p, option)
      for prefixes, options in groups
      for p in prefixes
      for option in options
    ]
    records = self._asker.ask_all(asked, pairs, request, read, progress)
    self._counts["weighed"] += len(records)
    self._counts["prompt_tokens"] += sum(x["prompt_tokens"] for x in records)
    values = [schema.Weighed(x["log_prob"], x["num_tokens"]) for x in records]
    return _rows(_rows(values, widths), [len(x) for x, _ in groups])

  # --- Requests and what is made of them --------------------------------------

  def _sampled_by(
    self, sampling: sampler_lib.Sampling, step: str | None
  ) -> Record:
    """Returns the fields of a request that say how to sample."""
    fields: Record = dict(
      max_tokens=sampling.max_tokens,
      temperature=sampling.temperature,
      top_p=sampling.top_p,
    )
    # Not every server knows these.
    cuts = dict(top_k=sampling.top_k, min_p=sampling.min_p)
    fields |= {name: value for name, value in cuts.items() if value}
    if twice := sorted(fields.keys() & self.endpoint.options.keys()):
      raise errors.InputError(
        f"endpoint.options: {', '.join(twice)}: given as an option of sampling,"
        " too; take one of them out"
      )
    if stops := [*([] if step is None else [step]), *self.template.stop]:
      fields["stop"] = stops
    return fields

  def _complete_all(
    self,
    asked: Sequence[Asked],
    samples: Sequence[tuple[Asked, int]],
    request: Callable[[Asked, Any], Record],
    read: Callable[[Record, Record, Any, endpoint_lib.Endpoint], Record],
    step: str | None,
    budget: Callable[[Asked], int],
    begun: Callable[[Asked], str],
    progress: Callable[[int], None],
  ) -> list[Record]:
    """Returns the completion of each sample, up to a step's end or its own."""

    def ask(items: Sequence[tuple[Asked, Any]], is_first: bool) -> list[Record]:
      self._counts["continued"] += 0 if is_first else len(items)
      tell = progress if is_first else lambda done: None
      return self._asker.ask_all(asked, items, request, read, tell)

    whole = parts.Whole(self.template, self.endpoint, step, budget, begun)
    completions = parts.completed(samples, ask, whole)
    for completion in completions:
      finish = completion["finish_reason"]
      self._counts.update(
        completions=1,
        tokens=completion["num_tokens"],
        prompt_tokens=parts.num_read(completion),
        empty=not completion["text"].strip(),
        length=finish == "length",
        content_filter=finish == "content_filter",
        without_log_probs=completion["log_prob_mean"] is None,
      )
    return completions


def _rows(values: Sequence[_T], lengths: Sequence[int]) -> list[list[_T]]:
  """Returns values that stand one after the other as rows of these lengths."""
  rest = iter(values)
  return [[next(rest) for _ in range(length)] for length in lengths]


def _seed(seed: int, prefix_id: str, *numbers: int) -> int:
  """Returns the request's seed, of 31 bits: that every server can take."""
  text = json.dumps([seed, prefix_id, *numbers])
  digest = hashlib.sha256(text.encode()).digest()
  return int.from_bytes(digest[:4], "big") >> 1
