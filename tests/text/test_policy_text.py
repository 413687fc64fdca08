"""Of equal texts with other ids, one is continued, whatever the batch."""

import dataclasses
import itertools

import numpy as np
import policy_folders
import pytest
import recipes

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import journal
from prm_jax.labelling import monte_carlo
from prm_jax.policy import codecs
from prm_jax.text import policy_templates
from prm_jax.text import policy_text
from prm_jax.text import solution_texts
from prm_jax.text import templates

TOKENIZER = recipes.tokenizer("qwen")
TEMPLATE = dataclasses.replace(policy_templates.qwen2_5(), ends=("<|im_end|>",))
TEXT = "one\n\ntwo\n\nthree"
CODEC = codecs.of(TEMPLATE, TOKENIZER)


def _sampled(name, problem, parts):
  """Returns TEXT, as it is sampled if each of its parts is encoded by itself."""
  encoded = (TEMPLATE.encode_text(p, TOKENIZER)[0] for p in parts)
  ids = [*itertools.chain(*encoded)]
  spans = TEMPLATE.spans(TEXT, TEMPLATE.segmenter, TOKENIZER)
  sampled = dict(tokenizer=CODEC.bytes.digest, ids=ids)
  return schema.Solution(
    *(name, problem, tuple(TEXT[a:b] for a, b in spans)),
    extra={schema.SAMPLED: sampled},
    raw_text=TEXT,
    spans=spans,
  )


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_equal_prefixes_get_one_label_and_go_on_from_the_first_ones_ids(order):
  """The first in the input: a problem's solutions are in one batch."""
  as_encoded = {"a": [TEXT], "b": TEXT}  # b: each letter by itself
  input_ = [_sampled(n, "p", as_encoded[n]) for n in order]
  input_.insert(1, _sampled("c", "q", [TEXT]))
  continued = []

  def generate(prefixes, num):
    prompts = [CODEC.prompt(prefix).begun.tolist() for prefix in prefixes]
    continued.extend(
      (prefix.problem, ids)
      for prefix, ids in zip(prefixes, prompts, strict=True)
    )
    return [
      [dataclasses.replace(p, extra={"ids": ids})] * num
      for p, ids in zip(prefixes, prompts, strict=True)
    ]

  def verify(solutions):
    # What the continued ids are decides the label.
    return [len(s.extra.get("ids", ())) % 2 == 0 for s in solutions]

  options = monte_carlo.Options(completions=2)
  own = input_[0].extra[schema.SAMPLED]["ids"]
  labels = []
  for batch_size in (1, 9):
    continued.clear()
    batches = journal.batches(input_, batch_size)
    done = [
      s
      for batch in batches
      for s in monte_carlo.label(batch, generate, verify, options)[0]
    ]
    labels.append({s.id: s.labels for s in done})
    of_p = [ids for problem, ids in continued if problem == "p"]
    assert [*map(CODEC.bytes.text, of_p)] == ["one\n\n", "one\n\ntwo\n\n"]
    assert of_p == [own[: len(ids)] for ids in of_p]
  assert labels[0] == labels[1]
  assert labels[0]["a"] == labels[0]["b"]


# --- One text with what is around it ----------------------------------------

ONE_TEXT = policy_text.PolicyTemplate(
  "chat",
  (
    ("control", "<s>"),
    ("text", "[INST] "),
    templates.PROBLEM,
    ("text", " [/INST] "),
  ),
  ("</s>",),
  closing=(("text", " "), ("control", "</s>")),
  one_text=True,
)


@pytest.mark.parametrize(
  "steps", [("one",), ("one", "two"), ("7 \U0001f600", "two\nlines", "é")]
)
@pytest.mark.parametrize("has_text", [False, True])
def test_one_text_has_the_ids_of_the_whole_and_reads_steps_where_they_end(
  steps, has_text
):
  tokenizer = policy_folders.tokenizer("llama2")
  solution = schema.Solution("a", "p q", steps)
  between = "\n\n"
  if has_text:
    between = " \n"
    places = solution_texts.places(solution, between)
    solution = dataclasses.replace(
      solution, raw_text=between.join(steps) + " \n", spans=places
    )
  whole = "[INST] p q [/INST] " + between.join(steps) + " \n" * has_text
  ids = tokenizer.encode(f"{whole} ")
  found = ONE_TEXT.write(solution, tokenizer)
  assert found.tokens[1:-1].tolist() == ids
  assert len(found.step_end) == len(steps)
  assert found.step_end[-1] == len(ids) + 1
  ends = [whole.index(step) + len(step) for step in steps]
  for read, end in zip(found.step_end[:-1], ends):
    assert tokenizer.decode(ids[:read]) == whole[:end]
  before = tokenizer.decode(ids[: found.prompt_tokens - 1])
  assert before.rstrip() == "[INST] p q [/INST]"


def test_reasoning_in_one_text_is_between_its_controls():
  tokenizer = policy_folders.tokenizer("qwen3")
  template = dataclasses.replace(
    policy_templates.qwen3(),
    closing=(("control", "<|im_end|>"), ("text", "\n")),
  )
  text = "<think>\none\n\ntwo\n</think>\n\nthree"
  spans = template.spans(text, template.segmenter, tokenizer)
  solution = schema.Solution(
    *("a", "p", tuple(text[a:b] for a, b in spans)), raw_text=text, spans=spans
  )
  assert solution.steps == ("one", "two", "three")
  apart, whole = (
    dataclasses.replace(template, one_text=one_text).write(solution, tokenizer)
    for one_text in (False, True)
  )
  np.testing.assert_equal(vars(apart), vars(whole))


def test_two_blank_steps_of_one_text_are_refused():
  tokenizer = policy_folders.tokenizer("llama2")
  solution = schema.Solution("a", "p", ("", "", "one"), raw_text="one")
  solution = dataclasses.replace(solution, spans=((0, 0), (0, 0), (0, 3)))
  with pytest.raises(errors.InputError, match=r"step 1 .* ends"):
    ONE_TEXT.write(solution, tokenizer)


def test_a_policy_is_never_one_text_with_its_prompt():
  with pytest.raises(errors.InputError, match="one_text is for reward models"):
    dataclasses.replace(ONE_TEXT, closing=())
