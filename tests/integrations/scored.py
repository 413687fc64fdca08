"""Scores for tests: a text's steps are its lines, scored by what they say."""

import re

from prm_jax import schema
from prm_jax.integrations import placement
from prm_jax.integrations import scoring

PROBLEM = "What is 2 + 3 * 4?"
# The score of a line, written at its end, such as "so 3 [0.5]".
_SCORE = re.compile(r"\[([0-9.]+)\]")


def score(solutions):
  """A schema.Score that reads each step's score from its text."""
  out = []
  for solution in solutions:
    assert solution.problem == PROBLEM and solution.steps
    assert not any(re.search(r"</s>|<\|im_", step) for step in solution.steps)
    scores = [float((_SCORE.search(x) or [0, 0.5])[1]) for x in solution.steps]
    judged = schema.judged_steps(scores, "until_first_error")
    out.append(schema.StepScores(tuple(scores), judged=judged))
  return out


score_texts = scoring.cut_and_score(score, scoring.by_segmenter("line"))


class Tokenizer:
  """A policy's tokenizer of bytes, called as those of `transformers`."""

  eos_token = "</s>"
  eos = 256

  def encode(self, text):
    return [*text.encode()]

  def decode(self, ids, skip_special_tokens=False, **options):
    del options
    text, out = b"", ""
    for i in ids:
      if i == self.eos:
        out += text.decode("utf-8", "replace")
        text = b""
        out += "" if skip_special_tokens else self.eos_token
      else:
        text += bytes([i])
    return out + text.decode("utf-8", "replace")


TOKENIZER = Tokenizer()
DECODE = placement.decoder(TOKENIZER)
CHAT = [dict(role="user", content=PROBLEM)]
# Steps of scores 0.75 and 0.5, one of 1.0, and none; their ids, and the tokens
# that complete them.
TEXTS = ["so € [0.75]\n7 [0.5]", "7 [1.0]", ""]
IDS = [[*TOKENIZER.encode(text), TOKENIZER.eos] for text in TEXTS]
ENDS = [(12, 20), (6,), ()]
