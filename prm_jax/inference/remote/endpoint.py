"""What is known of an endpoint, and how solutions become text and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import reprlib
from typing import Any

import urllib3

from prm_jax import errors
from prm_jax.runtime import checks

# The fields of a request that are ours to set.
_OWN = {
  *("model", "prompt", "messages", "max_tokens", "temperature", "top_p"),
  *("seed", "stop", "logprobs", "n", "best_of", "stream", "echo"),
  *("continue_final_message", "add_generation_prompt"),
}


@dataclasses.dataclass(frozen=True)
class Endpoint:
  """Where a model is served, what its server can do, and how to be patient.

  url: up to and with /v1. chat: /chat/completions and messages, instead of
  /completions and a text. continues: the server continues an assistant's
  message (continue_final_message); else a chat can't complete a prefix that
  has steps. stop_in_text: the server leaves a stop string in the text, as
  transformers serve does. log_probs: ask for them. options: further fields of
  every request, such as top_k. key_variable: the environment variable that
  holds the API key.

  concurrency: requests under way at a time. connect_s, read_s: limits of one
  try; the latter from the request to the end of the reply. tries: how often a
  request is made in all, after pauses of backoff_s, doubled each time, less
  up to half of it by chance. An endpoint that asks for a longer pause than
  max_wait_s ends the run.
  """

  url: str
  model: str
  chat: bool = False
  continues: bool = False
  stop_in_text: bool = False
  log_probs: bool = True
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  key_variable: str | None = None
  concurrency: int = 16
  connect_s: float = 10.0
  read_s: float = 600.0
  tries: int = 8
  backoff_s: float = 1.0
  max_wait_s: float = 120.0

  def __post_init__(self):
    checks.check_counts(self, ("concurrency", "tries"), "endpoint.")
    limits = ("connect_s", "read_s", "max_wait_s")
    checks.check_positive(self, limits, "endpoint.")
    checks.check_natural(self, ("backoff_s",), "endpoint.")
    try:
      url = urllib3.util.parse_url(self.url)
    except urllib3.exceptions.LocationParseError:
      url = urllib3.util.Url()
    if url.scheme not in ("http", "https") or not url.host or url.auth:
      # It isn't shown: it may hold a password.
      raise errors.InputError(
        "endpoint.url: expected such as http://localhost:8000/v1; a key goes"
        " into an environment variable that key_variable names"
      )
    if taken := sorted(_OWN & self.options.keys()):
      raise errors.InputError(
        f"endpoint.options: {', '.join(taken)}: prm_jax sets it; take it out"
      )


@dataclasses.dataclass(frozen=True)
class Template:
  """How a problem and its steps become text, and text becomes steps again.

  prompt: the text before the steps, or the user's turn of a chat; it holds
  {problem} once. separator: follows the prompt and each step.
  stop: strings that end a solution, such as the opening of the next problem
  where the prompt holds examples. system: a chat's first message.
  """

  prompt: str = "{problem}"
  separator: str = "\n\n"
  stop: tuple[str, ...] = ()
  system: str | None = None

  def __post_init__(self):
    if self.prompt.count("{problem}") != 1:
      raise errors.InputError(
        f"template: prompt is {reprlib.repr(self.prompt)}; expected a text"
        " with {problem} in it, once"
      )
    if not self.separator or not all(self.stop):
      raise errors.InputError(
        "template: a separator or stop string is empty; give it a character"
      )

  def opening(self, problem: str) -> str:
    """Returns the text before the steps, without the separator."""
    # Not str.format: problems and prompts are full of braces.
    return self.prompt.replace("{problem}", problem)

  def written(self, steps: Sequence[str]) -> str:
    """Returns the steps, each with its separator."""
    return "".join(f"{step}{self.separator}" for step in steps)

  def split(self, text: str) -> tuple[str, ...]:
    """Returns the steps in a text, without the white space around them."""
    pieces = (piece.strip() for piece in text.split(self.separator))
    return tuple(piece for piece in pieces if piece)
