"""What ends a solution is found in the examples before it, or nothing is."""

import pytest

from prm_jax.text import few_shot
from prm_jax.text import policy_templates

EXAMPLES = few_shot.prompt(few_shot.GSM8K)


@pytest.mark.parametrize(
  "heading", ["", "Solve.\n\n", "Solve these:\n", "\n", "# A\n\nProblems:\n\n"]
)
def test_a_heading_before_the_examples_changes_no_stop_text(heading):
  assert few_shot.stop_of(heading + EXAMPLES) == (few_shot.STOP,)
  template = policy_templates.plain(("</s>",), heading + EXAMPLES)
  assert template.stop == (few_shot.STOP,)
  given = policy_templates.plain(("</s>",), heading + EXAMPLES, ("###",))
  assert given.stop == ("###",)


@pytest.mark.parametrize(
  ("prompt", "stop"),
  [
    ("Solve.\nQ: 1\nA: 2\n\nQ: {problem}\nA:", "\n\nQ:"),
    # Without blank lines between examples, or with blanks in them.
    ("Solve.\n\nQ: 1\nA: 2\nQ: {problem}\nA:", "\nQ:"),
    ("Q: 1\nA: 2\n \nQ:{problem}", "\nQ:"),
    ("# E\nQ: 1\nA: 2\n\n# E\nQ: {problem}\n", "\n\n# E\nQ:"),
    ("### 1 + 1\n2\n\n### {problem}\n", "\n\n###"),
  ],
)
def test_the_opening_that_examples_repeat_ends_a_solution(prompt, stop):
  assert few_shot.stop_of(prompt) == (stop,)


@pytest.mark.parametrize(
  "prompt",
  [
    "{problem}",
    "Q: {problem}\nA:",
    "Solve.\n\nQ: {problem}\n",
    "1 + 1\n2\n\n{problem}\n",
    # No example, though it looks alike.
    "Quick sums\n\nQ {problem}\n",
    "Say Q: first.\n\nQ: {problem}",
    # Marks that a solution's lines may begin with.
    "Rules:\n- be short\n- {problem}",
    "Rules:\n- be short\n\n- {problem}",
  ],
)
def test_without_an_example_nothing_does(prompt):
  assert few_shot.stop_of(prompt) == ()
