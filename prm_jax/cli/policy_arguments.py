"""The options of a policy: a checkpoint folder, or a model at a server.

The options of a server are the fields of remote.Endpoint and remote.Template.
None of them has a default here, so that it can be told which were given.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from prm_jax import errors
from prm_jax.cli import arguments
from prm_jax.cli import model_arguments
from prm_jax.runtime import json_text

# Options that are fields of remote.Endpoint and remote.Template.
ENDPOINT = (
  *("model", "chat", "continues", "stop_in_text", "key_variable"),
  *("insecure_key", "concurrency", "connect_s", "read_s", "tries"),
  *("backoff_s", "max_wait_s"),
)
TEMPLATE = ("prompt", "separator", "stop", "system")
# The options of a server, and of a folder.
SERVER = (
  *ENDPOINT,
  *TEMPLATE,
  *("segmenter", "request_option", "no_log_probs"),
)
FOLDER = ("step", "dtype", "slots")


def is_server(policy: str) -> bool:
  """Returns whether a policy is the address of a server."""
  return policy.startswith(("http://", "https://"))


def check(args: argparse.Namespace, *, loads_scorer: bool = False) -> None:
  """Refuses options that don't fit --policy: a server's or a folder's.

  Args:
    args: The parsed arguments.
    loads_scorer: Whether what scores is a checkpoint folder, so that --dtype is
      for this one if --policy is a server.
  """
  if is_server(args.policy):
    names = [x for x in FOLDER if not (loads_scorer and x == "dtype")]
    _refuse(args, names, "is for a checkpoint folder, and --policy is a server")
    if args.model is None:
      raise errors.InputError(
        f"--policy={args.policy}: give --model, the name it is served by"
      )
    return
  _refuse(args, SERVER, "is for a server, and --policy is a folder")


def given(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
  """Returns those of some options that were given, by name."""
  values = {name: vars(args).get(name) for name in names}
  return {
    name: value
    for name, value in values.items()
    if value is not None and value is not False
  }


def _refuse(args: argparse.Namespace, names: Iterable[str], why: str) -> None:
  for name, value in given(args, names).items():
    option = f"--{name}" if value is True else f"--{name}={_shown(value)}"
    raise errors.InputError(f"{option}: {why}; take it out")


def _shown(value: Any) -> str:
  first = value[0] if isinstance(value, list) else value
  if isinstance(first, float):
    return f"{first:g}"
  return "=".join(map(str, first)) if isinstance(first, tuple) else str(first)


def request_option(text: str) -> tuple[str, Any]:
  """Returns a field of a request, NAME=JSON."""
  name, equals, value = text.partition("=")
  try:
    if name and equals:
      return name, json_text.parse(value)
  except json_text.JSONTextError:
    pass
  raise argparse.ArgumentTypeError(
    f"{text[:60]!r} isn't NAME=JSON, such as top_k=20 or name='\"a text\"'"
  )


def add(
  parser: arguments.Parser, model: str, prompt: str, *, required: bool = True
) -> None:
  """Adds --policy with the options of a folder and of a server.

  Args:
    parser: The parser of a command that samples.
    model: What the policy is here.
    prompt: What {problem} stands for in the text that is sent to a server.
    required: Whether --policy must be given.
  """
  parser.add_option(
    "--policy",
    f"{model}: a checkpoint folder, or the address of a server such as"
    " http://HOST:PORT/v1 (docs/remote.md)",
    required=required,
  )
  model_arguments.add(parser, *FOLDER)
  _add_requests(parser)
  _add_texts(parser, prompt)
  _add_limits(parser)


def _add_requests(parser: arguments.Parser) -> None:
  parser.add_option(
    "--model", "the name of the model at the server; required with a server"
  )
  parser.add_switch(
    "--chat", "send requests to the server's chat interface (servers only)"
  )
  parser.add_switch(
    "--continues",
    "with --chat, say that the server continues a message that has begun, as"
    " vLLM, SGLang and llama.cpp do; else a chat completes no solution that has"
    " steps (servers only)",
  )
  parser.add_switch(
    "--stop_in_text",
    "say that the server leaves stop strings in the text, as transformers serve"
    " does (servers only)",
  )
  parser.add_switch(
    "--no_log_probs",
    "don't ask for log-probabilities, for a server that refuses them (servers"
    " only)",
  )
  parser.add_option(
    "--request_option",
    "a further field of each request, such as top_k=20 or"
    " chat_template_kwargs='{\"enable_thinking\": false}'; repeat the option for"
    " each field (servers only)",
    action="append",
    type=request_option,
    metavar="NAME=JSON",
  )
  parser.add_option(
    "--key_variable",
    "the name of the environment variable that holds the server's API key"
    " (servers only; default: no key is sent)",
  )
  parser.add_switch(
    "--insecure_key",
    "send the API key even if the server is another machine and its address"
    " begins with http://, so that everyone on the way can read it",
  )


def _add_texts(parser: arguments.Parser, prompt: str) -> None:
  parser.add_option(
    "--prompt",
    "the text that is sent to the server; {problem}, exactly once, stands for"
    f" {prompt} (servers only; default: {{problem}})",
  )
  parser.add_option(
    "--system", "the system message, with --chat (servers only; default: none)"
  )
  parser.add_option(
    "--separator",
    "the text that is sent after the prompt and after each step of a solution"
    " whose whole text isn't known; new text is cut into steps there (servers"
    " only; default: a blank line)",
  )
  parser.add_option(
    "--segmenter",
    f"how new text is cut into steps, instead of at --separator:"
    f" {arguments.SEGMENTERS}, which only a folder has (servers only; default:"
    " paragraph if --separator is a blank line)",
  )
  parser.add_option(
    "--stop",
    "a text that ends a solution, such as the opening of the next problem if"
    " --prompt has examples; repeat the option for each (servers only)",
    action="append",
    metavar="TEXT",
  )


def _add_limits(parser: arguments.Parser) -> None:
  for name, text, kind in (
    (
      "concurrency",
      "the number of requests that are sent at the same time (servers only;"
      " default: 16)",
      arguments.whole,
    ),
    (
      "tries",
      "the number of tries of a request in all (servers only; default: 8)",
      arguments.whole,
    ),
    (
      "connect_s",
      "the limit for connecting to the server, in seconds (servers only;"
      " default: 10)",
      arguments.number,
    ),
    (
      "read_s",
      "the limit of a try, from connecting to the end of the reply, in seconds"
      " (servers only; default: 600)",
      arguments.number,
    ),
    (
      "backoff_s",
      "the first pause between tries, in seconds; it doubles each time (servers"
      " only; default: 1)",
      arguments.number,
    ),
    (
      "max_wait_s",
      "the longest pause that a server may ask for, in seconds; a longer one"
      " ends the run (servers only; default: 120)",
      arguments.number,
    ),
  ):
    parser.add_option(f"--{name}", text, type=kind)
