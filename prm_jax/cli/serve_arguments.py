"""The arguments of `prm-jax serve`."""

from __future__ import annotations

from prm_jax.cli import arguments
from prm_jax.cli import model_arguments


def add(commands: arguments.Parser) -> None:
  """Adds serve."""
  serve = commands.add_command(
    "serve",
    "answer requests for step scores over HTTP, until SIGTERM",
    "serve.serve",
    compiles=True,
  )
  serve.add_option(
    "--checkpoint",
    "the checkpoint folders of the PRMs and ORMs to serve, with commas between"
    " them; NAME=FOLDER gives one a name (default: that of the folder). An entry"
    " may also be FILE.py:FUNCTION, MODULE:FUNCTION, NAME=ADDRESS of a server of"
    " scores (up to and including /v1), or the JSON file of a judge"
    " (docs/serve.md)",
    required=True,
  )
  model_arguments.add(serve, "dtype")
  serve.add_option(
    "--segmenter",
    "how texts are cut into steps for a checkpoint that doesn't say it, and for"
    f" what isn't a checkpoint: {arguments.SEGMENTERS}, which needs a checkpoint"
    " (default: requests must give steps)",
  )
  serve.add_option(
    "--upstream_key_variable",
    "the environment variable with the key of the servers in --checkpoint"
    " (default: none is sent)",
  )
  serve.add_switch(
    "--insecure_key",
    "send that key even if the server is another machine and its address begins"
    " with http://, so that everyone on the way can read it",
  )
  serve.add_option("--host", "the address to listen at", default="127.0.0.1")
  serve.add_option(
    "--port", "the port to listen at; 0 is any that is free", default=8000
  )
  serve.add_option(
    "--key_variable",
    "the environment variable with the key that clients must send, or several"
    " with commas between them (default: none is asked for)",
  )
  serve.add_switch(
    "--insecure",
    "listen at an address that other machines can reach, without a key",
  )
  serve.add_option(
    "--max_tokens",
    "the most tokens of a solution with its problem; a longer one is refused",
    default=2048,
  )
  serve.add_option(
    "--max_batch_tokens",
    "the most tokens that the model reads in one call, padding included",
    default=8192,
  )
  serve.add_option(
    "--max_batch_solutions",
    "the most solutions of a call of what isn't a checkpoint",
    default=64,
  )
  serve.add_option(
    "--cache_tokens",
    "the most tokens that each model needn't read again if they come before"
    " others, for clients whose solutions grow; 0 keeps none",
    default=0,
  )
  serve.add_option(
    "--max_wait_ms",
    "how long the first solution of a batch waits for others, in milliseconds",
    default=5.0,
  )
  serve.add_option(
    "--max_queue",
    "the most solutions that wait; requests that would add more get status 503",
    default=1024,
  )
  serve.add_option(
    "--deadline_s",
    "how long a request may take, in seconds, before it gets status 504",
    default=60.0,
  )
  serve.add_option(
    "--reload_s",
    "how often to look for a later save in the checkpoint folders, in seconds;"
    " 0 is never",
    default=0.0,
  )
