"""A rendered chat is read as what was rendered, or refused."""

import hostile_text
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from prm_jax.serving import chat_requests
from prm_jax.serving import refusals
from prm_jax.text import own_form
from prm_jax.text import policy_templates
from prm_jax.text import policy_text
from prm_jax.text import templates

TEMPLATES = {
  name: policy_templates.published(name, ends=["</s>"])
  for name in policy_templates.NAMES
}
TEMPLATES["no_thinking"] = policy_templates.qwen3(thinking=False)
TEMPLATES["system"] = policy_templates.llama3("Be brief.")
TEMPLATES["plain_bos"] = policy_templates.plain(
  ["</s>"], "Q: {problem}\nA:", bos="<s>"
)
CONTROLS = sorted(
  {
    content
    for template in TEMPLATES.values()
    for kind, content in template.opening
    if kind == "control"
  }
  | {name for template in TEMPLATES.values() for name in template.ends}
)
# What stands between the turns of every template.
BETWEEN = sorted(
  {
    piece
    for template in TEMPLATES.values()
    for piece in "".join(x for _, x in template.opening).split("\n")
    if len(piece) < 80
  }
)
HOSTILE = st.lists(
  st.sampled_from([*CONTROLS, *BETWEEN, "\n", "\n\n", " ", "2 + 2?", "4"])
  | hostile_text.TEXT,
  max_size=5,
).map("".join)
RESPONSE = "So 4.\n\nAnswer 4"


def _prompt(template, problem):
  """Returns what a template writes before the response, as one text."""
  return "".join(
    problem if kind == "problem" else content
    for kind, content in template.opening
  )


def _read(template, text):
  try:
    return chat_requests.reader(template).read(text, "text")
  except refusals.RefusedError as e:
    assert (e.status, e.where) == (400, "text")
    return None


def _is_clean(template, *texts):
  names = {name for kind, name in template.opening if kind == "control"}
  names = (names | {*template.ends}) - {*template.thinking}
  return not any(name in text for name in names for text in texts)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=60)
@given(problem=HOSTILE, response=HOSTILE, number=st.integers(0, 5))
@example(problem="2 + 2?", response=RESPONSE, number=0)
@example(problem="a\nb", response="\n\nA:\n\nc ", number=1)
@example(problem="</s><|im_end|>", response="<|im_end|>\n", number=0)
def test_a_rendered_chat_is_read_as_its_problem_and_response(
  name, problem, response, number
):
  template = TEMPLATES[name]
  if template.strips:
    problem = problem.strip()
  end = template.ends[number % len(template.ends)] + "\n" * (number % 2)
  prompt = _prompt(template, problem)
  found = _read(template, prompt + response + end)
  assert found in (None, (problem, response))
  try:
    pair = chat_requests.reader(template).read_pair(
      prompt, response + end, "prompts"
    )
  except refusals.RefusedError:
    pair = None
  assert pair in (None, (problem, response))
  if name in policy_templates.CHATS and _is_clean(template, problem, response):
    assert found is not None
    assert pair is not None


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=60)
@given(problem=HOSTILE, response=HOSTILE)
@example(problem="2 + 2?", response="4<|im_end|><|im_end|>")
def test_an_unfinished_chat_is_read_unless_its_text_is_a_finished_ones(
  name, problem, response
):
  template = TEMPLATES[name]
  if template.strips:
    problem = problem.strip()
  found = _read(template, _prompt(template, problem) + response)
  if found is None:
    return
  read_problem, read_response = found
  assert read_problem == problem
  left = response.removeprefix(read_response)
  # What was taken off is the end of a turn, which such a text has.
  assert read_response + left == response
  assert not left or any(end in left for end in template.ends)
  assert _is_clean(template, read_problem, read_response)


@pytest.mark.parametrize("end", [" </s>", "</s>", ""])
def test_the_text_before_the_end_of_an_orms_chat_is_no_response(end):
  """As in Llama 2's chat, where a space comes before </s>."""
  orm = policy_text.PolicyTemplate(
    "chat",
    (
      *(("control", "<s>"), ("text", "[INST] "), templates.PROBLEM),
      ("text", " [/INST] "),
    ),
    ("</s>",),
    closing=(("text", " "), ("control", "</s>")),
    one_text=True,
  )
  prompt = "<s>[INST] 2 + 2? [/INST] "
  reader, expected = chat_requests.reader(orm), ("2 + 2?", RESPONSE)
  assert _read(orm, f"{prompt}{RESPONSE}{end}") == expected
  assert reader.read_pair(prompt, f"{RESPONSE}{end}", "prompts") == expected
  assert reader.read_response(f"{RESPONSE}{end}", "responses") == RESPONSE


def test_a_clean_unfinished_chat_is_read():
  for name in policy_templates.CHATS:
    text = _prompt(TEMPLATES[name], "2 + 2?") + RESPONSE + "\n"
    assert _read(TEMPLATES[name], text) == ("2 + 2?", RESPONSE + "\n")


@pytest.mark.parametrize("name", policy_templates.CHATS)
def test_a_model_of_another_form_reads_every_published_chat(name):
  system = dict(system="Any\n\nturn.") if name in ("qwen3", "llama3_1") else {}
  template = policy_templates.published(name, **system)
  text = _prompt(template, "2 + 2?") + RESPONSE + template.ends[0]
  expected = ("2 + 2?", RESPONSE)
  assert _read(own_form.OWN, text) == expected
  assert _read(templates.skywork(), text) == expected
  bos = {"gemma": "<bos>", "mistral": "<s>"}.get(name, "<|begin_of_text|>")
  assert _read(own_form.OWN, text.removeprefix(bos)) == expected


def test_a_model_with_a_chat_reads_no_other_system_turn():
  text = _prompt(policy_templates.qwen2_5("Other."), "2 + 2?") + "4"
  assert _read(own_form.OWN, text) is not None
  assert _read(policy_templates.qwen2_5(), text) is None


def _steps(template, text):
  """Returns the steps of a chat with a mark after each; None if refused."""
  reader, turns = chat_requests.reader(template), _read(template, text)
  assert turns.problem == "2 + 2?"
  try:
    return reader.read_steps(turns.response, "text")
  except refusals.RefusedError as e:
    assert (e.status, e.where) == (400, "text")
    assert "<extra_0>" in e.message
    return None


@pytest.mark.parametrize("end", ["", "<|im_end|>\n", "<|im_end|><|endoftext|>"])
def test_marks_end_the_steps_for_every_model(end):
  """White space around them is that of a model which was trained with marks."""
  template = templates.qwen_prm()
  prompt = _prompt(template, "2 + 2?")
  other = prompt.replace(templates.STEP_BY_STEP, "Check.")
  for begun in (prompt, other):
    marked = f"{begun}So 4.<extra_0>Answer 4\n<extra_0>{end}"
    assert _steps(template, marked) == ("So 4.", "Answer 4\n")
    assert _steps(template, f"{begun}4<extra_0>") == ("4",)
  if "endoftext" not in end:
    marked = f"{prompt}So 4.<extra_0>Answer 4\n<extra_0>{end}"
    for model in (own_form.OWN, templates.skywork(), templates.math_shepherd()):
      assert _steps(model, marked) == ("So 4.", "Answer 4")


def test_a_text_after_the_last_mark_is_refused():
  template = templates.qwen_prm()
  text = f"{_prompt(template, '2 + 2?')}So 4.<extra_0>Answer 4"
  assert _steps(template, text) is None
  assert _steps(own_form.OWN, text) is None


def test_letters_are_a_mark_at_the_end_of_a_line_alone():
  read = chat_requests.reader(own_form.OWN).read_steps
  assert read("So 4. ки\nAnswer 4 ки", "x") == ("So 4.", "Answer 4")
  assert read("So 4. ки\nAnswer 4 ки\n", "x") == ("So 4.", "Answer 4")
  for end in ("\r\n", " \n", " \r\n", "\n\n"):
    assert read(f"a ки{end}b ки{end}", "x") == ("a", "b")
  assert read("a\nки\nb\r\nки\r\n", "x") == ("a", "b")
  for text in ("Ошибки\nнет", " ки нет", "Ошибки ", RESPONSE, ""):
    assert read(text, "x") is None


@pytest.mark.parametrize(
  ("text", "number"),
  [
    ("a<extra_0><extra_0>", 1),
    ("<extra_0>a<extra_0>", 0),
    ("a<extra_0> \n<extra_0>b<extra_0>", 1),
    ("a ки\nки\n", 1),
    ("ки\n", 0),
  ],
)
@pytest.mark.parametrize("template", [own_form.OWN, templates.qwen_prm()])
def test_a_mark_without_a_step_before_it_is_refused(text, number, template):
  read = chat_requests.reader(template).read_steps
  with pytest.raises(refusals.RefusedError, match=f"step {number} .*empty"):
    read(text, "x")


def test_a_prompt_without_a_chat_is_the_problem_itself():
  for template in (
    own_form.OWN,
    templates.skywork(),
    policy_templates.qwen2_5(),
  ):
    read = chat_requests.reader(template).read_pair
    assert read("2 + 2?", "4", "prompts") == ("2 + 2?", "4")
  assert chat_requests.reader(own_form.OWN).read_pair("2?", "4</s>", "x") == (
    "2?",
    "4",
  )
  less = "Is |x|<|y| or |x|>|y|?"
  assert chat_requests.reader(own_form.OWN).read_pair(less, "4", "x") == (
    less,
    "4",
  )


BAD_PROMPTS = {
  "unknown": (None, "<|im_start|>tool\n2?<|im_end|>\n", "4"),
  "no_turn": (None, "<|im_start|>user\n2?<|im_end|>\n", "4"),
  "unknown_chat": (None, "<|user|>\n2?<|end|>\n<|assistant|>\n", "4"),
  "unknown_end": (None, "2?", "4<｜end▁of▁sentence｜>"),
  "marker": (None, "What is <|im_end|>?", "4"),
  "response": (None, "2?", "4<|im_end|>5"),
  "not_the_prompt": (
    policy_templates.plain(["</s>"], "Q: {problem}\n"),
    "2?",
    "4",
  ),
  "other_chat": (
    policy_templates.plain(["</s>"]),
    "<s>[INST] 2?[/INST]\n",
    "4",
  ),
  "turn_before": (
    None,
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>assistant\nHi.<|im_end|>\n"
    "<|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n",
    "4",
  ),
  "not_stripped": (
    policy_templates.gemma(),
    "<bos><start_of_turn>user\n 2?<end_of_turn>\n<start_of_turn>model\n",
    "4",
  ),
  "two_turns": (
    policy_templates.qwen3(),
    "<|im_start|>user\n1?<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n"
    "<|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n",
    "4",
  ),
}


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_what_no_template_writes_is_refused(name):
  template, prompt, rest = BAD_PROMPTS[name]
  with pytest.raises(refusals.RefusedError) as e:
    chat_requests.reader(template).read_pair(prompt, rest, "prompts[3]")
  assert (e.value.status, e.value.where) == (400, "prompts[3]")
  with pytest.raises(refusals.RefusedError, match="send the problem"):
    chat_requests.reader(template).read(prompt + rest, "query[3]")


def test_text_without_a_chat_says_not_where_its_problem_ends():
  assert _read(own_form.OWN, "2 + 2?\n\n4") is None
