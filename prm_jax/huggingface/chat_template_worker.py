"""A process that renders one chat template: `chat_templates` starts it.

A chat template is a program of whoever published the model. It runs in jinja's
sandbox, with what transformers gives it, and this process has limits of time
and memory (runtime/limited_process.py): a template that loops or multiplies
texts ends the process, and nothing else.

It reads one JSON object {"template", "variables": [{...}, ...]} from stdin and
writes one to stdout: "replies", a list with {"text"} or {"error"} for each of
the variables, and "texts", the texts that the template's code holds. It imports
nothing of prm_jax, so that it starts at once and needs little memory.
"""

from __future__ import annotations

from collections.abc import Mapping
import datetime
import json
import sys
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

# What "now" is to a template: the day that Llama 3.1's names by default. So an
# import gives the same prompt on every day.
NOW = datetime.datetime(2024, 7, 26)
# The characters of all renderings, some hundreds of prompts without tools.
MOST_CHARACTERS = 1 << 22


class _Generation(jinja2.ext.Extension):
  """Reads {% generation %}, which marks an assistant's text, as its content."""

  tags = {"generation"}  # noqa: RUF012

  def parse(self, parser: Any) -> list[jinja2.nodes.Node]:
    next(parser.stream)
    return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
  """A namespace that stores no name of Python's own, as transformers has it."""

  def __init__(self, *args: Any, **fields: Any):
    super().__init__()
    for name, value in dict(*args, **fields).items():
      self[name] = value

  def __setitem__(self, name: str, value: Any) -> None:
    if name.startswith("_"):
      raise jinja2.exceptions.SecurityError(f"{name!r} in a namespace")
    super().__setitem__(name, value)


def environment() -> jinja2.Environment:
  """Returns the sandbox, with what transformers gives a template.

  transformers.utils.chat_template_utils is the source of the settings, filters
  and functions.
  """

  def raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)

  def strftime_now(form: str) -> str:
    return NOW.strftime(form)

  def tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
  ) -> str:
    return json.dumps(
      x,
      ensure_ascii=ensure_ascii,
      indent=indent,
      separators=separators,
      sort_keys=sort_keys,
    )

  sandbox = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[_Generation, jinja2.ext.loopcontrols],
  )
  sandbox.filters["tojson"] = tojson
  sandbox.globals.update(
    raise_exception=raise_exception,
    strftime_now=strftime_now,
    namespace=_Namespace,
  )
  return sandbox


def texts_in(sandbox: jinja2.Environment, source: str) -> list[str]:
  """Returns the texts that a template's code holds, each once, in order."""
  tokens = sandbox.lexer.tokenize(source)
  found = (token.value for token in tokens if token.type == "string")
  return list(dict.fromkeys(found))


def rendered(
  template: jinja2.Template, variables: Mapping[str, Any], most: int
) -> str:
  """Returns the text of a template.

  Args:
    template: The template.
    variables: Its variables, JSON's types only.
    most: The most characters.

  Raises:
    ValueError: The text is longer.
  """
  pieces, length = [], 0
  for piece in template.generate(**variables):
    length += len(piece)
    if length > most:
      raise ValueError("it writes more than a prompt can hold")
    pieces.append(piece)
  return "".join(pieces)


def replies_to(job: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what is written for a job; see above."""
  replies: list[dict[str, str]] = []
  texts: list[str] = []
  left = MOST_CHARACTERS
  try:
    sandbox = environment()
    template = sandbox.from_string(job["template"])
    texts = texts_in(sandbox, job["template"])
    for variables in job["variables"]:
      try:
        text = rendered(template, variables, left)
        left -= len(text)
        replies.append(dict(text=text))
      except jinja2.exceptions.TemplateError as e:
        replies.append(dict(error=str(e)))
      except (TypeError, KeyError, AttributeError) as e:  # of these variables
        replies.append(dict(error=f"{type(e).__name__}: {e}"))
  except MemoryError:
    raise
  except Exception as e:  # a template raises whatever it likes
    replies = [dict(error=f"{type(e).__name__}: {e}")] * len(job["variables"])
  return dict(replies=replies, texts=texts)


if __name__ == "__main__":
  json.dump(replies_to(json.load(sys.stdin)), sys.stdout)
