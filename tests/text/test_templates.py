"""A template writes what the public recipe writes, and reads no other place."""

import dataclasses
import json

import hostile_text
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
import recipes

from prm_jax import errors
from prm_jax.text import encoding
from prm_jax.text import templates

EVERY = pytest.mark.parametrize("name", recipes.RECIPES)
PROBLEM = "Janet has 3 eggs and buys 12 more. How many eggs has she now?"
STEPS = (
  "Step 1: She buys 12 eggs, so she has 3 + 12 = 15 eggs.",
  "Step 2: Therefore $x^2 = 16$.",
  "Step 3: The answer is: 15",
)
# Words that no recipe takes for a separator, as a person would write them.
ORDINARY = st.lists(
  st.sampled_from([*PROBLEM.split(), "x^2", "= 16", "так", "é", "(a + b)"]),
  min_size=1,
  max_size=6,
).map(" ".join)


def _reading(name: str, **fields) -> encoding.EncodingConfig:
  tokenizer = recipes.tokenizer(recipes.RECIPES[name][0])
  bos = tokenizer.bos_name
  found = templates.published(name, bos=bos)
  return encoding.EncodingConfig(template=found, max_tokens=None, **fields)


def _ledger(name, problem, steps, end=False, **fields):
  tokenizer = recipes.tokenizer(recipes.RECIPES[name][0])
  encoding_config = dataclasses.replace(_reading(name), **fields)
  return encoding.encode(problem, steps, tokenizer, encoding_config, end=end)


@EVERY
@given(problem=ORDINARY, steps=st.lists(ORDINARY, min_size=1, max_size=4))
def test_ordinary_text_has_the_recipes_ids_and_places(name, problem, steps):
  found = _ledger(name, problem, steps, end=True)
  ids, places = recipes.RECIPES[name][1](problem, steps)
  assert found.tokens.tolist() == ids
  assert found.step_end.tolist() == places


@EVERY
@given(problem=hostile_text.TEXT, steps=st.lists(hostile_text.TEXT, max_size=4))
def test_every_step_has_one_place_whatever_its_text(name, problem, steps):
  found = _ledger(name, problem, steps)
  assert len(found.step_end) == len(steps)
  assert np.all(np.diff([-1, *found.step_end]) > 0)


@pytest.mark.parametrize(
  ("name", "typed"),
  [
    ("qwen_prm", "so <extra_0> it is"),
    ("math_shepherd", "the word ки is Russian"),
    ("skywork", "first\nthen"),
  ],
)
def test_where_a_separator_is_typed_the_recipe_miscounts_and_we_do_not(
  name, typed
):
  steps = [STEPS[0], typed, STEPS[2]]
  _, places = recipes.RECIPES[name][1](PROBLEM, steps)
  assert len(places) == 4
  found = _ledger(name, PROBLEM, steps)
  assert len(found.step_end) == 3


@EVERY
@given(new=hostile_text.TEXT)
def test_another_text_of_a_step_moves_no_place_before_it(name, new):
  before = _ledger(name, PROBLEM, STEPS)
  after = _ledger(name, PROBLEM, [*STEPS[:2], new])
  np.testing.assert_array_equal(after.step_end[:2], before.step_end[:2])
  seen = int(before.step_end[1]) + 1
  np.testing.assert_array_equal(after.tokens[:seen], before.tokens[:seen])


@EVERY
def test_the_prompt_ends_where_the_first_step_begins(name):
  tokenizer = recipes.tokenizer(recipes.RECIPES[name][0])
  found = _ledger(name, PROBLEM, STEPS)
  assert PROBLEM in tokenizer.decode(found.tokens[: found.prompt_tokens])
  said = tokenizer.decode(found.tokens[found.prompt_tokens :])
  assert said.lstrip().startswith("Step 1: She")


@EVERY
def test_a_step_too_many_is_dropped_or_the_solution_is(name):
  two = _ledger(name, PROBLEM, STEPS[:2])
  limit = dict(max_tokens=len(two.tokens))
  assert _ledger(name, PROBLEM, STEPS, **limit) is None
  kept = _ledger(name, PROBLEM, STEPS, truncation="truncate", **limit)
  np.testing.assert_array_equal(kept.tokens, two.tokens)
  np.testing.assert_array_equal(kept.step_end, two.step_end)
  nothing = dict(max_tokens=3, truncation="truncate")
  assert _ledger(name, PROBLEM, STEPS, **nothing) is None


@EVERY
def test_a_reading_with_its_dialect_survives_json(name):
  encoding_config = _reading(name)
  record = json.loads(json.dumps(dataclasses.asdict(encoding_config)))
  assert encoding.saved_encoding(record, "model.json") == encoding_config


def test_a_named_dialect_becomes_data_when_the_tokenizer_is_known():
  encoding_config = encoding.EncodingConfig(template="qwen_prm")
  found = encoding.with_template(encoding_config, recipes.tokenizer("qwen"))
  assert found.template == templates.qwen_prm()
  with pytest.raises(errors.InputError, match="no control token"):
    encoding.with_template(encoding_config, recipes.tokenizer("llama_2"))


def test_a_chat_may_have_another_system_turn_and_a_text_has_none():
  said = templates.published("qwen_prm", system="Be brief.")
  assert ("text", "system\nBe brief.") in said.opening
  with pytest.raises(errors.InputError, match="no system turn"):
    templates.published("skywork", system="Be brief.")
  with pytest.raises(errors.InputError, match="expected one of"):
    templates.published("quen_prm")


@pytest.mark.parametrize(
  ("step", "message"),
  [
    ([("step", "")], "one step and one read"),
    ([("step", ""), ("raed", "")], "raed"),
    ([("step", ""), ("read", ""), ("read", "")], "one step and one read"),
  ],
)
def test_a_dialect_that_reads_no_step_is_refused(step, message):
  with pytest.raises(errors.InputError, match=message):
    templates.PromptTemplate("mine", (("problem", ""),), tuple(step))
