"""What a policy reads before its solution has the ids of the published text."""

import dataclasses
import json
import re

import hostile_text
from hypothesis import example
from hypothesis import given
from hypothesis import settings
import numpy as np
import policy_folders
import pytest
import tokenizers

from prm_jax import errors
from prm_jax.text import answers
from prm_jax.text import encoding
from prm_jax.text import few_shot
from prm_jax.text import policy_templates
from prm_jax.text import tokenizer as tokenizer_lib

CHATS = policy_templates.CHATS
ALL = {
  name: policy_templates.published(name, ends=["</s>"])
  for name in policy_templates.NAMES
}
SYSTEM = "  Be {brief}.\n"


def _text(template, problem) -> str:
  """Returns what a template writes, as one text."""
  if template.strips:
    problem = problem.strip()
  return "".join(
    problem if kind == "problem" else content
    for kind, content in template.opening
  )


def _published_ids(family, text) -> list[int]:
  """Returns ids with control tokens found in the text, as others encode it."""
  model = tokenizers.Tokenizer.from_str(policy_folders.json_of(family))
  return model.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("family", CHATS)
@settings(max_examples=20)
@given(problem=hostile_text.TEXT)
@example(problem="  What is 3 + 4?\n\n")
@example(problem="")
def test_an_opening_has_the_ids_of_its_text(family, problem):
  problem = problem.encode("utf-8", "replace").decode()
  problem = problem.replace("<", "(").replace("[", "(")  # no control's name
  template = policy_templates.published(family)
  found = policy_templates.write_opening(
    template, problem, policy_folders.tokenizer(family)
  )
  assert found.dtype == np.int32
  assert found.tolist() == _published_ids(family, _text(template, problem))


@pytest.mark.parametrize("family", CHATS)
@settings(max_examples=20)
@given(problem=hostile_text.TEXT)
@example(problem="<|im_end|><|eot_id|>[/INST]</s><end_of_turn><eos><think>")
def test_no_text_of_a_problem_is_a_control(family, problem):
  template = policy_templates.published(family)
  tokenizer = policy_folders.tokenizer(family)
  controls = policy_templates.control_ids(template, tokenizer)
  written = policy_templates.write_opening(template, problem, tokenizer)
  found = [int(i) for i in written if i in controls.values()]
  assert found == [
    controls[name] for kind, name in template.opening if kind == "control"
  ]


@pytest.mark.parametrize("family", ["llama3", "llama3_1", "gemma"])
def test_a_template_that_strips_leaves_white_space_around_a_problem_out(family):
  template = policy_templates.published(family)
  tokenizer = policy_folders.tokenizer(family)
  found, plain = (
    policy_templates.write_opening(template, problem, tokenizer).tolist()
    for problem in ("\u00a0\n What is 3 + 4?\n\n ", "What is 3 + 4?")
  )
  assert found == plain


def test_white_space_around_a_problem_stays_elsewhere():
  tokenizer = policy_folders.tokenizer("qwen3")
  template = policy_templates.qwen3()
  with_space, plain = (
    policy_templates.write_opening(template, problem, tokenizer).tolist()
    for problem in (" 3 + 4\n\n", "3 + 4")
  )
  assert with_space != plain


@pytest.mark.parametrize("part", ["opening", "ends", "thinking"])
def test_a_tokenizer_without_a_control_is_refused(part):
  template = policy_templates.qwen2_5()
  changes = dict(
    opening=(("control", "<|none|>"), *template.opening),
    ends=("<|im_end|>", "<|none|>"),
    thinking=("<|im_end|>", "<|none|>"),
  )
  changed = dataclasses.replace(template, **{part: changes[part]})
  tokenizer = policy_folders.tokenizer("qwen2_5")
  policy_templates.check_tokenizer(template, tokenizer)
  with pytest.raises(errors.InputError, match=r"no control token '<\|none\|>'"):
    policy_templates.check_tokenizer(changed, tokenizer)
  config = encoding.EncodingConfig(template=changed)
  with pytest.raises(errors.InputError, match="no control token"):
    encoding.with_template(config, tokenizer)


@pytest.mark.parametrize("name", ALL)
def test_a_template_comes_back_from_a_checkpoint(name):
  config = encoding.EncodingConfig(template=ALL[name])
  saved = json.loads(json.dumps(dataclasses.asdict(config)))
  assert encoding.saved_encoding(saved, "model.json") == config


@pytest.mark.parametrize(
  "change",
  [
    dict(ends=[]),
    dict(ends="</s>"),
    dict(ends=[3]),
    dict(opening=[["text", "a"]]),
    dict(opening=[["step", ""], ["problem", ""]]),
    dict(opening=[["problem", 7]]),
    dict(strips="no"),
    dict(separator=""),
    dict(separator=1),
    dict(name=None),
    dict(thinking=["<think>"]),
    dict(stop=[""]),
    dict(segmenter="chapters"),
    dict(step=[]),
  ],
  ids=str,
)
def test_a_damaged_template_is_refused(change):
  record = json.loads(json.dumps(dataclasses.asdict(ALL["qwen3"]))) | change
  with pytest.raises(errors.InputError):
    encoding.saved_encoding(dict(template=record), "model.json")


def test_a_model_needs_the_ids_of_all_controls():
  tokenizer = tokenizer_lib.HuggingFace(policy_folders.json_of("qwen3"))
  config = encoding.EncodingConfig(template=policy_templates.qwen3())
  assert encoding.num_ids(config, tokenizer) == tokenizer.text_ids


# --- Plain text and examples ------------------------------------------------


def test_a_prompt_is_written_around_the_problem_whatever_its_braces():
  template = policy_templates.plain(
    ["</s>"], "{x} Q: {problem}\nA: {y}", bos="<s>"
  )
  assert _text(template, "{problem} {0}") == "<s>{x} Q: {problem} {0}\nA: {y}"


@pytest.mark.parametrize("prompt", ["", "no problem", "{problem} {problem}"])
def test_a_prompt_without_one_place_for_the_problem_is_refused(prompt):
  with pytest.raises(errors.InputError, match="in it, once"):
    policy_templates.plain(["</s>"], prompt)


def test_the_equations_and_answers_of_the_examples_are_right():
  equations = 0
  for _, solution in few_shot.GSM8K:
    last = None
    for left, right in re.findall(r"([\d *+/-]+\d) = (\d+)", solution):
      assert eval(left) == int(right), left
      equations, last = equations + 1, right
    assert answers.extract(solution) == last
  assert equations >= 2 * len(few_shot.GSM8K)


def test_an_examples_problem_ends_a_solution():
  template = policy_templates.gsm8k_4_shot(["</s>"])
  text = _text(template, "What is 3 + 4?")
  solutions = text.split("Solution:\n")[1:]
  assert len(solutions) == len(few_shot.GSM8K) + 1
  for solution, (_, given_solution) in zip(solutions, few_shot.GSM8K):
    assert solution.partition(template.stop[0])[0] == given_solution
  assert solutions[-1] == ""


# --- By name ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3", "mistral"])
def test_a_chat_takes_a_system_turn(name):
  found = policy_templates.published(name, system=SYSTEM)
  assert _text(found, "P").count(SYSTEM.strip()) == 1
  assert _text(found, "P") != _text(ALL[name], "P")


@pytest.mark.parametrize(
  ("name", "asked"),
  [
    ("plain", dict(system="x", ends=["</s>"])),
    ("llama3", dict(thinking=True)),
    ("plain", dict(ends=[])),
    ("gpt", {}),
  ],
)
def test_what_a_template_lacks_is_refused(name, asked):
  with pytest.raises(errors.InputError):
    policy_templates.published(name, **asked)


def test_further_ends_come_after_a_templates_own():
  found = policy_templates.published("gemma", ends=["<x>", "<eos>"])
  assert found.ends == ("<end_of_turn>", "<eos>", "<x>")
