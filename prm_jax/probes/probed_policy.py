"""A policy as probes ask it: to finish, to answer now, and how sure it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import pathlib
from typing import Any, NamedTuple, TYPE_CHECKING

from prm_jax import schema
from prm_jax.jobs import policies
from prm_jax.policy import sampling as sampling_lib

if TYPE_CHECKING:
  from prm_jax.policy import sampler as sampler_lib

# The most tokens of an answer that is asked for.
ANSWER_TOKENS = 24


class Sureness(NamedTuple):
  """How sure a policy is of an answer; all in nats.

  Args:
    log_prob: The log-probability of the answer's text.
    first_log_prob: That of the answer's first token with a digit, or if none
      has one of the first that isn't blank; None if the policy is at a server.
    margin: By how much that token's logit exceeds the largest other one, or
      None.
    logit_std: The standard deviation of the logits there, or None.
  """

  log_prob: float
  first_log_prob: float | None = None
  margin: float | None = None
  logit_std: float | None = None


@dataclasses.dataclass(frozen=True)
class ProbedPolicy:
  """A policy.

  Args:
    finish: Returns whole solutions, one of each unfinished one.
    answer: Returns what the policy writes after the last step of each, within
      it, for a few tokens.
    sureness: Returns how sure it is of a text there, for groups of unfinished
      solutions and the text of each group; None if it doesn't tell.
    count: Returns the number of tokens of a text.
    depends_on: What its texts depend on, as plain data.
  """

  finish: Callable[[Sequence[schema.Solution]], list[schema.Solution]]
  answer: Callable[[Sequence[schema.Solution]], list[str]]
  sureness: (
    Callable[
      [Sequence[Sequence[schema.Solution]], Sequence[str]],
      list[list[Sureness]],
    ]
    | None
  )
  count: Callable[[str], int]
  depends_on: dict[str, Any] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def opened(
  policy: policies.Policy,
  sampling: sampling_lib.Sampling,
  seed: int,
  replies: pathlib.Path | None,
) -> Iterator[ProbedPolicy]:
  """Yields a policy.

  Args:
    policy: The policy.
    sampling: How it finishes solutions.
    seed: The seed of the samples.
    replies: The journal of a server's replies; None has none.
  """
  if policy.is_server:
    with _served(policy, sampling, seed, replies) as served:
      yield served
  else:
    loaded, _, known = policy.loaded(sampling, seed)
    slots = policy.slots or policies.SLOTS
    yield of_sampler(loaded, sampling, seed, slots, known)


def of_sampler(
  loaded: sampler_lib.Sampler,
  sampling: sampling_lib.Sampling,
  seed: int,
  slots: int = policies.SLOTS,
  depends_on: dict[str, Any] | None = None,
) -> ProbedPolicy:
  """Returns a policy of a checkpoint folder.

  Args:
    loaded: The policy.
    sampling: How it finishes solutions.
    seed: The seed of the samples.
    slots: The completions at the same time.
    depends_on: What its texts depend on.
  """
  import jax

  from prm_jax.policy import log_likelihood
  from prm_jax.policy import rollout_engine

  engine, codec = rollout_engine.of(loaded, slots=slots), loaded.codec
  found, key = sampling.with_defaults(loaded.defaults), jax.random.key(seed)
  short = dataclasses.replace(found, max_tokens=ANSWER_TOKENS)

  def finish(prefixes):
    if not prefixes:
      return []
    begun = [_as_written(p, codec) for p in prefixes]
    rows, _ = engine.generate(begun, 1, found, key)
    return [row[0] for row in rows]

  def answer(prefixes):
    if not prefixes:
      return []
    requests = [
      rollout_engine.Request(p.id, codec.within(p, ""), 1) for p in prefixes
    ]
    rows, _ = engine.complete(requests, short, key)
    return [codec.places(row[0].tokens).text for row in rows]

  def sureness(groups, texts):
    ids, starts = [], []
    for prefixes, text in zip(groups, texts, strict=True):
      choices = [log_likelihood.choice(p, [text], codec) for p in prefixes]
      ids.append([x.tokens for x in choices])
      starts.append([x.shared for x in choices])
    rows = log_likelihood.of_groups(loaded.config, loaded.params, ids)
    return [
      [
        _sureness(x, row, start, loaded.tokenizer.decode)
        for x, row, start in zip(*group, strict=True)
      ]
      for group in zip(ids, rows, starts, strict=True)
    ]

  def count(text):
    return len(loaded.tokenizer.encode(text))

  return ProbedPolicy(finish, answer, sureness, count, depends_on or {})


def _as_written(prefix: schema.Solution, codec: Any) -> schema.Solution:
  """Returns a prefix with the ids that it has if something follows.

  A tokenizer may join line breaks at the end of a text that are two ids before
  a word, and a space is often a part of the next word; the policy writes that
  space itself.
  """
  from prm_jax.policy import codecs

  text, spans = prefix.raw_text, prefix.spans
  if not isinstance(codec, codecs.TemplateCodec) or not text or not spans:
    return prefix
  ids = codec.before_word(text)
  begun = codec.bytes.text(ids)
  if not text.startswith(begun) or len(begun) < spans[-1][1]:
    return prefix
  sampled = dict(tokenizer=codec.bytes.digest, ids=[*map(int, ids)])
  return dataclasses.replace(
    prefix, raw_text=begun, extra={schema.SAMPLED: sampled}
  )


def _sureness(ids, row, start, decode) -> Sureness:
  """Returns how sure a policy is of the ids from a place on."""
  own, texts = range(start, len(ids)), [decode([int(x)]) for x in ids[start:]]
  # A space or "$" by itself says nothing of the answer.
  first = next(
    (i for i, x in zip(own, texts) if any(map(str.isdigit, x))),
    next((i for i, x in zip(own, texts) if x.strip()), start),
  )
  log_prob = float(row.log_prob[first])
  return Sureness(
    float(row.log_prob[start:].sum()),
    log_prob,
    log_prob - float(row.best_other[first]),
    float(row.logit_std[first]),
  )


@contextlib.contextmanager
def _served(policy, sampling, seed, replies) -> Iterator[ProbedPolicy]:
  from prm_jax.jobs import opened_policies

  counts: Counter[str] = Counter()
  short = dataclasses.replace(sampling, max_tokens=ANSWER_TOKENS)
  with (
    opened_policies.opened(policy, sampling, seed, replies, counts) as writer,
    opened_policies.opened(policy, short, seed, None, counts) as answerer,
  ):

    def finish(prefixes):
      rows = writer.complete(prefixes, 1, lambda done, tokens=0: None)
      return [row[0] for row in rows]

    def answer(prefixes):
      rows = answerer.complete(prefixes, 1, lambda done, tokens=0: None)
      return [
        str(row[0].raw_text)[len(str(p.raw_text)) :]
        for p, row in zip(prefixes, rows, strict=True)
      ]

    def sureness(groups, texts):
      of_texts = writer.log_likelihoods
      assert of_texts is not None  # else it isn't asked
      return [
        [Sureness(row[0]) for row in of_texts(prefixes, [text])]
        for prefixes, text in zip(groups, texts, strict=True)
      ]

    tells = writer.log_likelihoods and not policy.server.no_log_probs
    yield ProbedPolicy(
      finish,
      answer,
      sureness if tells else None,
      lambda text: len(text.split()),
      writer.depends_on,
    )
