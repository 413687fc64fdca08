"""A policy's ids are one text: cut into steps, continued and learned alike."""

import dataclasses
import functools

from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import policy_folders
import pytest
import recipes
import tokenizers

from prm_jax import errors
from prm_jax import schema
from prm_jax.policy import codecs
from prm_jax.text import encoding
from prm_jax.text import own_form
from prm_jax.text import policy_templates
from prm_jax.text import segmenters
from prm_jax.text import step_automaton
from prm_jax.text import step_spans
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text import tokenizer_files

# Breaks, halves of characters, the name of a control that somebody typed.
TEXT = st.lists(
  st.sampled_from(
    ["so 3 + 4", " = 7", ".", "\n", "\n\n", "\r\n", " ", "€", "😀"]
  )
  | st.sampled_from(["<|im_end|>", "\u3000", "x^2"]),
  max_size=9,
).map("".join)


def _plain(**fields):
  template = policy_templates.plain(("</s>",), "Q: {problem}\nA:", bos="<s>")
  return dataclasses.replace(template, **fields)


@functools.cache
def codec(name):
  """Returns the codec of a case: a template and a tokenizer of its kind."""
  if name == "qwen":
    template = policy_templates.qwen2_5()
    template = dataclasses.replace(template, ends=("<|im_end|>",))
    return codecs.of(template, recipes.tokenizer("qwen"))
  if name == "llama_2 by line":
    template = _plain(segmenter=segmenters.LINE, separator="\n")
    return codecs.of(template, recipes.tokenizer("llama_2"))
  if name in policy_templates.CHATS:
    # Those of Llama 3 and Gemma have no spare ids.
    template = policy_templates.published(name)
    return codecs.of(template, policy_folders.tokenizer(name))
  # A tokenizer that adds a space before a text.
  return codecs.of(_plain(), recipes.tokenizer("llama_2"))


CODECS = ("qwen", "llama_2", "llama_2 by line", "llama3", "mistral", "gemma")
START = schema.Solution("a", "What is 3 + 4?", ())


def _ids(codec, text):
  ids, _ = codec.template.encode_text(text, codec.tokenizer)
  return ids


def _written(codec, tokens, prefix=START, why="end"):
  read = codec.read(prefix, codec.prompt(prefix), np.asarray(tokens), why)
  return schema.Solution(
    "a",
    prefix.problem,
    read.steps,
    raw_text=read.raw_text,
    spans=read.spans,
    extra=read.extra,
  )


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=25)
@given(text=TEXT)
@example(text="\n\none\n\n\n two.\r\n\r\nthree €")
def test_steps_are_cut_from_the_text_of_the_ids(name, text):
  c = codec(name)
  ids = [*_ids(c, text), c.ends[0], 5]  # what follows an end isn't the policy's
  written = _written(c, ids)
  assert written.raw_text == c.bytes.text(ids[:-2])
  assert written.spans == step_spans.spans(
    written.raw_text, c.template.segmenter
  )
  assert written.extra[schema.SAMPLED]["ids"] == ids[:-2]


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=25)
@given(text=TEXT)
@example(text="one.\n\n two\n\nthree\nfour")
def test_a_prefix_goes_on_from_the_ids_it_was_sampled_as(name, text):
  """Unless an id goes on after its end: then its text is encoded, and counted."""
  c = codec(name)
  ids = _ids(c, text)
  whole = _written(c, ids)
  for k in range(len(whole.steps) + 1):
    prefix = schema.first_steps(whole, k)
    prompt = c.prompt(prefix)
    np.testing.assert_array_equal(prompt.opening, c.prompt(START).opening)
    begun = prefix.raw_text or ""
    exact = [n for n in range(len(ids) + 1) if c.bytes.text(ids[:n]) == begun]
    assert prompt.encoded_anew == (k > 0 and not exact)
    if exact:
      assert prompt.begun.tolist() == ids[: exact[0]]
      rest = _written(c, ids[exact[0] :], prefix)
      assert rest.raw_text == whole.raw_text
      assert rest.steps == whole.steps
      assert rest.extra == whole.extra
    else:
      assert prompt.begun.tolist() == _ids(c, begun)


def test_numbers_count_on_from_those_of_the_prefix():
  numbered = segmenters.parse("numbered")
  template = dataclasses.replace(codec("qwen").template, segmenter=numbered)
  c = codecs.of(template, recipes.tokenizer("qwen"))
  text = "1. one\n2. two\n3. three\n4. four\n5. fi"
  whole = _written(c, _ids(c, text))
  assert whole.spans == step_spans.spans(text, numbered)
  for k in range(1, 5):
    prefix = schema.first_steps(whole, k)
    prompt = c.prompt(prefix)
    ids = _ids(c, text[len(prefix.raw_text) :])
    assert _written(c, ids, prefix).spans == whole.spans
    step = _written(c, ids, prefix, why="step")
    assert step.steps == whole.steps[: k + 1]
    # The last step isn't complete: it may go on.
    assert c.completes_step(np.asarray(ids), prompt) == (k < 4)
    text_alone = c.bytes.text(prompt.begun)
    assert (prompt.text, text_alone) == (prefix.raw_text, prefix.raw_text)


def _joining():
  """Returns the codec of a tokenizer that joins line breaks before no word."""
  letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
  vocabulary = {x: i for i, x in enumerate([*letters, "ĊĊ", "</s>", "<s>"])}
  model = tokenizers.Tokenizer(
    tokenizers.models.BPE(vocab=vocabulary, merges=[("Ċ", "Ċ")])
  )
  split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  model.pre_tokenizer, model.decoder = split, tokenizers.decoders.ByteLevel()
  model.add_special_tokens(["</s>", "<s>"])
  tokenizer = tokenizer_files.HuggingFace(model.to_str())
  return codecs.of(_plain(), tokenizer)


@pytest.mark.parametrize("end", ["\n\n", "\n", "\n ", " ", ""])
def test_a_prefix_has_the_ids_of_the_whole_text_or_else_its_own_alone(end):
  joining = _joining()
  steps, text = ("3 + 4 = 7.", "So 7."), f"3 + 4 = 7.{end}"
  spans = ((0, 10), (len(text), len(text) + 5))
  solution = schema.Solution(
    "a", START.problem, steps, raw_text=f"{text}So 7.", spans=spans
  )
  whole = _ids(joining, f"{text}So 7.")
  begun = joining.prompt(schema.first_steps(solution, 1)).begun.tolist()
  assert joining.bytes.text(begun) == text
  assert begun == whole[: len(begun)] or end in ("\n ", " ")
  if end == "\n\n":
    assert begun != _ids(joining, text)


def test_steps_without_a_text_have_the_templates_separator():
  c = codec("qwen")
  given_steps = ("one\n\nand a half", "two")
  prefix = schema.Solution("a", START.problem, given_steps)
  prompt = c.prompt(prefix)
  text = "one\n\nand a half\n\ntwo\n\n"
  assert prompt.begun.tolist() == _ids(c, text) and not prompt.encoded_anew
  written = _written(c, _ids(c, "three\n\nfour"), prefix)
  # What was given stays as it was, whatever it holds.
  assert written.steps == (*given_steps, "three", "four")
  assert written.raw_text == f"{text}three\n\nfour"


def test_ids_of_another_tokenizer_are_not_continued():
  c, other = codec("qwen"), codec("llama_2")
  whole = _written(other, _ids(other, "one\n\ntwo"))
  prefix = schema.first_steps(whole, 1)
  prompt = c.prompt(prefix)
  assert prompt.begun.tolist() == _ids(c, "one\n\n") and not prompt.encoded_anew
  damaged = dataclasses.replace(prefix, extra={schema.SAMPLED: dict(ids="1")})
  with pytest.raises(errors.InputError, match="solution 'a': \"sampled\" must"):
    c.prompt(damaged)


def test_a_step_asked_for_ends_where_the_next_would_begin():
  c = codec("qwen")
  for text, expected in (
    ("one.\n\n", "one.\n\n"),
    ("one.\n\n \n two", "one.\n\n \n "),
    ("\n\none\ntwo", "\n\none\ntwo"),
  ):
    written = _written(c, _ids(c, text), why="step")
    assert written.raw_text == expected
    assert len(written.steps) == 1


def test_a_text_ends_before_a_stop():
  c = codecs.of(_plain(stop=("\nQ:", "###")), recipes.tokenizer("llama_2"))
  written = _written(c, _ids(c, "one\ntwo ### \nQ: three"), why="stop")
  assert written.raw_text == "one\ntwo "
  assert written.steps == ("one\ntwo",)


def test_a_stop_text_that_begins_in_the_prefix_leaves_nothing_new():
  """A table of stops on the device begins in the prefix's state, too."""
  template = dataclasses.replace(codec("qwen").template, stop=("\n\nQ:",))
  c = codecs.of(template, recipes.tokenizer("qwen"))
  prefix = schema.Solution("a", START.problem, ("one",))
  ids = np.asarray(_ids(c, "Q: two"))
  read = c.read(prefix, c.prompt(prefix), ids, "stop")
  assert read.steps == ("one",) and read.at_stop
  goes_on = c.read(prefix, c.prompt(prefix), np.asarray(_ids(c, "two")), "end")
  assert goes_on.steps == ("one", "two") and not goes_on.at_stop


def test_a_text_that_a_stop_text_ended_is_learned_as_it_was_sampled():
  c = codecs.of(_plain(stop=("###",)), recipes.tokenizer("llama_2"))
  ids = [token for letter in "one" for token in _ids(c, letter)]
  whole = _written(c, [*ids, *_ids(c, "###")], why="stop")
  config = encoding.EncodingConfig(template=c.template, max_tokens=None)
  found = encoding.encode_solution(whole, c.tokenizer, config)
  assert found.tokens[found.prompt_tokens :].tolist()[: len(ids)] == ids


def test_ids_outside_the_vocabulary_are_refused():
  c = codec("qwen")
  whole = _written(c, _ids(c, "one\n\ntwo"))
  for bad, message in (
    (-1, "whole numbers of 0 or more"),
    (10**12, "of problem 'What is .* has the id 1000000000000, outside of the"),
  ):
    sampled = whole.extra[schema.SAMPLED] | dict(ids=[bad])
    damaged = dataclasses.replace(whole, extra={schema.SAMPLED: sampled})
    with pytest.raises(errors.InputError, match=message):
      c.prompt(damaged)


def test_no_step_holds_the_names_around_reasoning():
  tokenizer = recipes.tokenizer("qwen")
  names = ("<|im_start|>", "<extra_0>")
  template = dataclasses.replace(codec("qwen").template, thinking=names)
  c = codecs.of(template, tokenizer)
  opens, closes = map(tokenizer.control, names)
  ids = [opens, *_ids(c, "\nhm\n\nso"), closes, *_ids(c, "\n\nanswer 7")]
  written = _written(c, ids)
  assert written.steps == ("hm", "so", "answer 7")
  assert written.raw_text == f"{names[0]}\nhm\n\nso{names[1]}\n\nanswer 7"
  # They are no text that a stop text could be found in.
  stopping = dataclasses.replace(template, stop=("extra", "ans"))
  ended = _written(codecs.of(stopping, tokenizer), ids, why="stop")
  assert ended.raw_text == f"{names[0]}\nhm\n\nso{names[1]}\n\n"
  # The names in a solution's text are the tokens.
  assert _ids(c, written.raw_text) == ids
  given_steps = schema.Solution("a", "p", (written.raw_text,))
  assert c.prompt(given_steps).begun.tolist()[: len(ids)] == ids


def test_a_device_ends_a_step_with_its_thought_as_the_host_does():
  """What a thought leaves open, such as a fence, ends with it."""
  tokenizer = recipes.tokenizer("qwen")
  names = ("<|im_start|>", "<extra_0>")
  template = dataclasses.replace(codec("qwen").template, thinking=names)
  c = codecs.of(template, tokenizer)
  opens, closes = map(tokenizer.control, names)
  thought = [opens, *_ids(c, "hm\n\n```\nx = 1\n"), closes]
  answer = _ids(c, "\n\nSo it is 7.\n\nDone.")
  stops = c.stops(True)

  def ends(ids, begun):
    """Returns where the device ends steps, from a prefix's state."""
    state, found = stops.state_after(begun), []
    for k, token in enumerate(ids):
      state, event = stops.entry(state, token)
      found += [k] * (event == step_automaton.STEP)
    return found

  ids = thought + answer
  host = [
    k
    for k in range(1, len(ids))
    if len(_written(c, [*ids[:k], *_ids(c, "x")]).steps)
    < len(_written(c, [*ids[: k + 1], *_ids(c, "x")]).steps)
    or ids[k] == closes
  ]
  assert ends(ids, "") == host and len(host) == 3
  whole = _written(c, thought)
  prefix = dataclasses.replace(START, steps=whole.steps, extra=whole.extra)
  prefix = dataclasses.replace(
    prefix, raw_text=whole.raw_text, spans=whole.spans
  )
  after = ends(answer, c.begun(prefix))
  assert [k + len(thought) for k in after] == host[2:]


def test_a_thought_that_the_opening_began_is_told_until_it_ends():
  template = codec("qwen").template
  for after, told in ((("text", "<think>\n"),), (True, False)), ((), ()):
    opening = (*template.opening, *after)
    c = codecs.of(
      dataclasses.replace(template, opening=opening), recipes.tokenizer("qwen")
    )
    texts = ("so\n\n#### 4", "so</think>\n\n#### 5")
    read = [_written(c, _ids(c, text)).extra for text in texts]
    found = [x[schema.THINKING] for x in read if schema.THINKING in x]
    assert tuple(found) == told


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=25)
@given(text=TEXT, data=st.data())
def test_a_step_ends_at_the_first_token_that_reaches_its_end(name, text, data):
  c = codec(name)
  ids = [*_ids(c, text), *[c.ends[0]] * data.draw(st.integers(0, 1))]
  if not ids:
    return
  places = c.places(np.asarray(ids))
  whole = _written(c, ids)
  assert places.text == whole.raw_text
  assert len(places.token_ends) == len(ids)
  expected = [
    min(n for n in range(len(ids)) if c.bytes.ends(ids)[n] >= end)
    for _, end in whole.spans
  ]
  assert places.step_ends.tolist() == expected


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=25)
@given(text=TEXT)
def test_what_is_learned_is_what_was_sampled(name, text):
  c = codec(name)
  # Other ids than the tokenizer would choose: each character on its own.
  ids = [token for letter in text for token in _ids(c, letter)]
  whole = _written(c, ids)
  found = encoding.encode_solution(
    whole,
    c.tokenizer,
    encoding.EncodingConfig(template=c.template, max_tokens=None),
    end=True,
  )
  opening = c.prompt(START).opening.tolist()
  assert found.tokens.tolist() == [*opening, *ids, c.ends[0]]
  assert found.prompt_tokens == len(opening)
  ends = c.places(np.asarray(ids)).step_ends if ids else []
  assert found.step_end.tolist() == [len(opening) + int(x) for x in ends]


def test_a_long_solution_loses_whole_steps():
  c = codec("qwen")
  solution = schema.Solution("a", START.problem, ("one", "two", "three"))
  config = encoding.EncodingConfig(
    template=c.template, max_tokens=None, truncation="truncate"
  )
  whole = encoding.encode_solution(solution, c.tokenizer, config, end=True)
  config = dataclasses.replace(config, max_tokens=len(whole.tokens) - 1)
  found = encoding.encode_solution(solution, c.tokenizer, config, end=True)
  assert len(found.step_end) == 2
  text = c.bytes.text(found.tokens[found.prompt_tokens :])
  assert text == "one\n\ntwo"


def test_steps_that_no_token_tells_apart_are_refused():
  tokenizer = recipes.tokenizer("qwen")
  template = dataclasses.replace(codec("qwen").template, separator=" ")
  config = encoding.EncodingConfig(template=template)
  solution = schema.Solution("x", "p", ("", "", "two"))
  with pytest.raises(
    errors.InputError, match=r"^solution 'x': .* no token of its own"
  ):
    encoding.encode_solution(solution, tokenizer, config)


def test_our_own_form_has_separators():
  tokenizer = tokenizer_lib.Bytes()
  c = codecs.of(own_form.OWN, tokenizer)
  prompt = c.prompt(dataclasses.replace(START, steps=("a",)))
  ids = [tokenizer.bos, *START.problem.encode(), tokenizer.separator]
  assert prompt.opening.tolist() == ids
  assert prompt.begun.tolist() == [97, tokenizer.separator]
  read = c.read(START, prompt, np.asarray([98, tokenizer.eos]), "end")
  assert (read.steps, read.raw_text, read.extra) == (("b",), None, {})


def test_a_step_of_our_own_form_is_complete_with_its_separator():
  tokenizer = tokenizer_lib.Bytes()
  c, end = codecs.of(own_form.OWN, tokenizer), tokenizer.separator
  for ids, completes in (
    ([97, end], True),
    ([end, 97], True),
    ([97, tokenizer.eos], False),
    ([], False),
  ):
    assert c.completes_step(np.asarray(ids, np.int32)) == completes
  assert c.stops(False) is None and not c.steps_on_host()
  stops = c.stops(True)
  # Of all ids the separator alone ends a step.
  events = [stops.entry(0, i)[1] for i in range(end + 1)]
  assert np.flatnonzero(events).tolist() == [end]
  assert len(stops.table) == 1 and len(stops.kinds) == end + 1


@pytest.mark.parametrize("steps", [(), ("so",), ("so", "3 + 4")])
def test_within_our_own_form_an_option_goes_on_with_the_last_step(steps):
  tokenizer = tokenizer_lib.Bytes()
  c, end = codecs.of(own_form.OWN, tokenizer), tokenizer.separator
  prefix = dataclasses.replace(START, steps=steps)
  ids = [tokenizer.bos, *START.problem.encode(), end]
  for step in steps[:-1]:
    ids += [*step.encode(), end]
  ids += "".join(steps[-1:]).encode()
  assert c.within(prefix, " = 7") == [*ids, *b" = 7"]
  assert c.within(prefix, "") == ids


@pytest.mark.parametrize("steps", [(), ("so",), ("so", "3 + 4")])
def test_within_a_template_an_option_goes_on_with_the_last_step(steps):
  c = codec("qwen")
  prefix = dataclasses.replace(START, steps=steps)
  opening = c.prompt(START).opening.tolist()
  ids = c.within(prefix, " = 7")
  assert ids[: len(opening)] == opening
  assert c.bytes.text(ids[len(opening) :]) == "\n\n".join(steps) + " = 7"
  alone = c.within(prefix, "")
  assert c.bytes.text(alone[len(opening) :]) == "\n\n".join(steps)
  # As it was sampled, white space after the last step included.
  text = "so  \n\n 3 + 4 \n\n"
  written = _written(c, _ids(c, text))
  ids = c.within(written, " = 7")
  assert c.bytes.text(ids[len(opening) :]) == "so  \n\n 3 + 4 = 7"


def _ended_by(stops, c, text):
  """Returns the events at the tokens of a text, one token after another."""
  state, events = 0, []
  for token in _ids(c, text):
    state, event = stops.entry(state, token)
    events += [event] * bool(event)
  return events


@pytest.mark.parametrize("first", [False, True])
def test_stops_are_those_of_steps_if_they_are_asked_for(first):
  """Whichever was asked for before; a table is made once."""
  template = dataclasses.replace(codec("qwen").template, stop=("###",))
  c = codecs.of(template, recipes.tokenizer("qwen"))
  c.stops(first)
  at_step, at_end = c.stops(True), c.stops(False)
  assert (c.stops(True), c.stops(False)) == (at_step, at_end)
  step, stop = step_automaton.STEP, step_automaton.STOP
  assert _ended_by(at_step, c, "so\n\n3 ###") == [step, stop]
  assert _ended_by(at_end, c, "so\n\n3 ###") == [stop]
  assert codec("qwen").stops(False) is None


@pytest.mark.parametrize(
  "name, on_host",
  [
    *(("paragraph", False), ("line", False)),
    *(("sentence", True), ("numbered", True), ("tokens:3", True)),
  ],
)
def test_steps_that_look_ahead_are_found_on_the_host(name, on_host):
  template = dataclasses.replace(
    codec("qwen").template, segmenter=segmenters.parse(name), stop=("###",)
  )
  c = codecs.of(template, recipes.tokenizer("qwen"))
  assert c.steps_on_host() == on_host
  events = _ended_by(c.stops(True), c, "so.\n\nSo 3 ###")
  assert events[-1] == step_automaton.STOP
  assert (step_automaton.STEP in events) == (not on_host)
