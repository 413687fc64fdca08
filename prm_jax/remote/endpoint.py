"""What is known of an endpoint, and how solutions become text and back."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import functools
import re
import reprlib
from typing import Any

from prm_jax import client as client_lib
from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import checks
from prm_jax.text import segmenters
from prm_jax.text import solution_texts
from prm_jax.text import step_cuts
from prm_jax.text import step_spans

# The fields of a request that are ours to set.
_OWN = {
  *("model", "prompt", "messages", "max_tokens", "temperature", "top_p"),
  *("seed", "stop", "logprobs", "n", "best_of", "stream", "echo"),
  *("continue_final_message", "add_generation_prompt"),
  *("return_token_ids", "stop_token_ids"),
}


@dataclasses.dataclass(frozen=True)
class Endpoint(client_lib.Settings):
  """Where a model is served, what its server can do, and how long to wait.

  Its address, its key, and how long to wait are those of client.Settings.

  Args:
    model: The name of the model at the server.
    chat: Whether to send messages to /chat/completions, instead of a text to
      /completions.
    continues: Whether the server continues an assistant's message
      (continue_final_message); otherwise a chat can't complete a prefix that
      has steps.
    stop_in_text: Whether the server leaves a stop string in the text, as
      transformers serve does.
    log_probs: Whether to ask for log-probabilities.
    options: Further fields of every request, such as top_k.
    concurrency: The number of requests to each server at the same time.
    replica: The addresses of further servers of the same model.
  """

  model: str
  chat: bool = False
  continues: bool = False
  stop_in_text: bool = False
  log_probs: bool = True
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  concurrency: int = 16
  replica: tuple[str, ...] = ()

  def __post_init__(self):
    checks.check_counts(self, ("concurrency",), "endpoint.")
    super().__post_init__()
    if taken := sorted(_OWN & self.options.keys()):
      raise errors.InputError(
        f"endpoint.options: {', '.join(taken)}: prm_jax sets it; take it out"
      )
    places = {self.place}
    for server in self.servers[1:]:
      if server.place in places:
        raise errors.InputError(
          f"endpoint: `replica={server.url}`: this server is given twice; take"
          " it out"
        )
      places.add(server.place)

  @functools.cached_property
  def servers(self) -> tuple[Endpoint, ...]:
    """Each server as an endpoint of its own, in the order given."""
    try:
      others = [
        dataclasses.replace(self, url=url, replica=()) for url in self.replica
      ]
    except errors.InputError as e:
      fault = str(e).removeprefix("endpoint.url")
      raise errors.InputError(f"endpoint.replica{fault}") from None
    return (self, *others)


@dataclasses.dataclass(frozen=True)
class Template:
  """How a problem and its steps become text, and text becomes steps.

  Args:
    prompt: The text before the steps, or the user's turn of a chat; it holds
      {problem} once.
    separator: The text after the prompt, and after each step of a solution
      whose own text isn't known; generation stops there if it is to stop at a
      step.
    stop: The strings that end a solution, such as the opening of the next
      problem if the prompt has examples.
    system: The first message of a chat.
    segmenter: How the server's text is cut into steps; None is at blank lines
      if the separator is one, else at each separator.
  """

  prompt: str = "{problem}"
  separator: str = "\n\n"
  stop: tuple[str, ...] = ()
  system: str | None = None
  segmenter: segmenters.Segmenter | None = None

  def __post_init__(self):
    if self.prompt.count("{problem}") != 1:
      raise errors.InputError(
        f"template: `prompt` is {reprlib.repr(self.prompt)}; expected a text"
        " with {problem} in it, once"
      )
    if not self.separator or not all(self.stop):
      raise errors.InputError(
        "template: a `separator` or `stop` string is empty; give it a character"
      )
    if self.segmenter is not None and self.segmenter.kind == "tokens":
      raise errors.InputError(
        "template: `segmenter` tokens counts a tokenizer's tokens, and an"
        " endpoint's isn't known; take another"
      )

  def opening(self, problem: str) -> str:
    """Returns the text before the steps, without the separator."""
    # Not str.format: problems and prompts are full of braces.
    return self.prompt.replace("{problem}", problem)

  def begun(self, prefix: schema.Solution) -> str:
    """Returns the text of an unfinished solution; see solution_texts.begun."""
    return solution_texts.begun(prefix, self.separator)

  def places(self, prefix: schema.Solution) -> tuple[schema.Span, ...]:
    """Returns the place of each step in `begun`, in characters."""
    return solution_texts.places(prefix, self.separator)

  def cut(self, text: str, begun: str = "") -> tuple[schema.Span, ...]:
    """Returns where the steps of a new text are, without blank ends.

    Args:
      text: The new text.
      begun: The solution's text before it; see `step_spans.spans`.
    """
    if self.segmenter is not None:
      return step_spans.spans(text, self.segmenter, begun=begun)
    if self.separator == "\n\n":
      return step_spans.spans(text, segmenters.PARAGRAPH, begun=begun)
    breaks = re.compile(re.escape(self.separator))
    return step_cuts.steps(text, step_cuts.at_breaks(text, breaks))[0]
