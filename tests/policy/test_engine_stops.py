"""The engine stops where the host would cut, and draws the same until there."""

import dataclasses
import itertools
import re

import numpy as np
import pytest
import test_engine
import test_sampler

from prm_jax import errors
from prm_jax import schema
from prm_jax.policy import codecs
from prm_jax.policy import rollout_engine
from prm_jax.text import segmenters
from prm_jax.text import step_automaton
from prm_jax.text import step_spans
from prm_jax.text import token_bytes

KEY, WARM = test_engine.KEY, test_sampler.WARM
# The bytes of the 13 ids of Digits; its controls are the last three. A table of
# the first nine is padded for the others.
OF = (
  *(b"\n", b"\n\n", b"a", b" ", b".\n\n", b"\xe2", b"\x82\xac", b"ab", b"b"),
  *(b"", b"", b"", b""),
)
# Fences, displays and blank lines, which open and close by turns.
BLOCKS = (
  *(
    b"\n\n",
    b"\n```\n",
    b"a",
    b"\n",
    b"$$\n",
    b"\\[",
    b"\\]\n\n",
    b"\n\n",
    b"b",
  ),
  *(b"", b"", b"", b""),
)
TOKENS = token_bytes.TokenBytes(OF[:9], OF[:9])
PREFIXES = ("", "a", "a\n", "\n", "a\n\n", "a \n ", "b", "a")


def _expected(tokens, prefix, steps, stop, of=OF):
  """Returns where a whole completion stops, and why, from its decoded bytes."""

  def closed(text):
    return 0 if steps is None else len(step_spans.spans(text + "x", steps)) - 1

  before = closed(prefix)
  for n in range(1, len(tokens) + 1):
    own = prefix.encode() + b"".join(of[i] for i in tokens[:n])
    text = own.decode("utf-8", "replace")
    if tokens[n - 1] == test_sampler.Digits.eos:
      return n, "end"
    if any(text.count(x) > prefix.count(x) for x in stop):
      return n, "stop"
    if closed(text) > before:
      return n, "step"
  return len(tokens), "length"


@pytest.fixture(scope="module")
def whole():
  requests = test_engine._requests(num_samples=6)
  return test_engine._engine(slots=16, chunk=4).complete(requests, WARM, KEY)[0]


@pytest.mark.parametrize(
  "steps, stop, slots, chunk, of",
  [
    (segmenters.PARAGRAPH, (), 5, 3, OF),
    (segmenters.PARAGRAPH, ("ab",), 5, 3, BLOCKS),
    (segmenters.LINE, ("ba",), 16, 4, OF),
    (segmenters.PARAGRAPH, ("ab", "b\n"), 16, 4, OF),
    (None, ("aa", "€"), 16, 4, OF),
  ],
  ids=["paragraph", "blocks", "line", "paragraph and stops", "stops"],
)
def test_a_completion_is_the_whole_one_up_to_where_the_host_would_stop(
  whole, steps, stop, slots, chunk, of
):
  tokens = token_bytes.TokenBytes(of[:9], of[:9])
  stops = step_automaton.make(tokens, steps, stop)
  requests = [
    dataclasses.replace(r, stop_state=stops.state_after(prefix))
    for r, prefix in zip(
      test_engine._requests(num_samples=6), PREFIXES, strict=True
    )
  ]
  engine = test_engine._engine(slots=slots, chunk=chunk, stops=stops)
  found, _ = engine.complete(requests, WARM, KEY)
  reasons = set()
  for row, expected, prefix in zip(found, whole, PREFIXES, strict=True):
    for a, b in zip(row, expected, strict=True):
      n, stopped = _expected(b.tokens, prefix, steps, stop, of)
      assert (a.tokens.tolist(), a.stopped) == (b.tokens[:n].tolist(), stopped)
      np.testing.assert_allclose(a.log_probs, b.log_probs[:n], atol=1e-5)
      assert a.ended == (stopped in ("end", "stop"))
      reasons.add(stopped)
  assert ("step" in reasons, "stop" in reasons) == (bool(steps), bool(stop))


def test_any_of_several_ids_ends_a_completion_in_both_samplers(whole):
  ends = (test_sampler.Digits.eos, 3)
  requests = test_engine._requests(num_samples=6)
  found, _ = test_engine._engine(ends=ends).complete(requests, WARM, KEY)
  reasons = set()
  for row, expected in zip(found, whole, strict=True):
    for a, b in zip(row, expected, strict=True):
      places = np.flatnonzero(np.isin(b.tokens, ends))
      n = places[0] + 1 if len(places) else len(b.tokens)
      assert a.tokens.tolist() == b.tokens[:n].tolist()
      assert a.stopped == ("end" if len(places) else "length")
      reasons.add(int(a.tokens[-1]))
  assert reasons >= {*ends}
  by_batches = test_engine._by_batches(
    test_sampler.PLAIN, requests[:2], WARM, ends
  )
  for row, expected in zip(found[:2], by_batches, strict=True):
    for a, b in zip(row, expected, strict=True):
      assert a.tokens.tolist() == b.tokens.tolist()


def test_two_ways_to_stop_or_a_state_that_is_none_are_refused():
  stops = step_automaton.make(TOKENS, segmenters.LINE)
  with pytest.raises(errors.InputError, match="give one of them"):
    test_engine._engine(stops=stops, stop_at_step=True)
  requests = [rollout_engine.Request("a", [10], 1, stop_state=3)]
  with pytest.raises(errors.InputError, match=r"a: stop_state=3, .* 2 states"):
    test_engine._engine(stops=stops).complete(requests, WARM, KEY)
  with pytest.raises(errors.InputError, match=r"a: stop_state=3, .* 1 states"):
    test_engine._engine().complete(requests, WARM, KEY)


class LooksAhead(codecs.SeparatorCodec):
  """Steps that end before an "a" after a line break: the "a" tells."""

  def stops(self, at_step):
    return None

  def steps_on_host(self):
    return True

  def completes_step(self, tokens, prompt=None):
    text = b"".join(OF[i] for i in tokens).decode("utf-8", "replace")
    return re.search(r"[ab]\n+a", text) is not None


@pytest.mark.parametrize("slots, chunk", [(16, 4), (5, 7)])
def test_where_a_step_shows_later_the_host_stops_and_counts_what_it_drops(
  whole, slots, chunk
):
  codec = LooksAhead(test_sampler.Digits())
  engine = test_engine._engine(
    slots=slots, chunk=chunk, codec=codec, stop_at_step=True
  )
  found, work = engine.complete(test_engine._requests(num_samples=6), WARM, KEY)
  kept = steps = 0
  for a, b in zip(*(itertools.chain(*x) for x in (found, whole)), strict=True):
    n = next(
      (
        n
        for n in range(1, len(b.tokens) + 1)
        if codec.completes_step(b.tokens[:n])
      ),
      None,
    )
    steps += n is not None
    assert a.tokens.tolist() == b.tokens[:n].tolist()
    assert a.stopped == ("step" if n is not None else b.stopped)
    np.testing.assert_allclose(a.log_probs, b.log_probs[:n], atol=1e-5)
    kept += len(a.tokens)
  assert steps > 3
  assert 0 < work.overshoot == work.decoded - kept


def test_where_a_step_ends_is_asked_of_what_the_completion_continues():
  asked = []

  class Asked(LooksAhead):
    def completes_step(self, tokens, prompt=None):
      asked.append(prompt.begun.tolist())
      return super().completes_step(tokens, prompt)

  codec = Asked(test_sampler.Digits())
  engine = test_engine._engine(codec=codec, stop_at_step=True)
  prefixes = [
    schema.Solution("p", "12", ()),
    schema.Solution("q", "12", ("3",)),  # the prompt of p begins its own
  ]
  engine.generate(prefixes, 2, WARM, KEY)
  begun = [codec.prompt(p).begun.tolist() for p in prefixes]
  assert begun[0] != begun[1]
  assert sorted({*map(tuple, asked)}) == sorted(map(tuple, begun))
