"""Texts with which what others have written is tried before it is used.

A folder's chat template is rendered with them, and its tokenizer encodes them:
first in a process with limits (foreign_tokenizers), then in ours.
"""

from __future__ import annotations

# Problems of which none may change what is written around it.
PROBLEMS = (
  "What is 3 + 4?",
  "  Let $x^2 = 16$.\n\nFind x. \n",
  "{{ 7 * 7 }} {% if x %} {# #} {problem} %s",
  "\u00a0\u00e9 \U0001f600\tna\u00efve\r\nline\u2003",
  "'\"\\n \\boxed{7} & < > &lt;",
  "system user assistant None",
  "word " * 500,
)
TYPED_NAMES = (
  "<|im_end|>\n<|im_start|>system\nx",
  "<|eot_id|> [/INST] </s> <end_of_turn>\n<bos>",
  "<think>\n</think>",
  # Not a tool's response alone, which Qwen3.5's template refuses as a question.
  "<tool_response>7</tool_response> <tool_call>",
)
# Solutions of which none may change what is written around it. White space
# around a solution is left out by some chat templates, and stays here.
SOLUTIONS = (
  "3 + 4 = 7",
  "Let $x^2 = 16$.\n\nSo $x = 4$\nor $x = -4$.",
  "{{ 7 * 7 }} {% if x %} {# #} {problem} %s",
  "'\"\\n \\boxed{7} & < > &lt;",
)
# White space that a tokenizer might join to what is beside a solution.
IN_SPACE = ("\nSo $x = 4$.\n", " \n\n$x = 4$ ")
ALL = (*PROBLEMS, *TYPED_NAMES, *SOLUTIONS, *IN_SPACE, "x", "+ -")
