"""What the tests of Hugging Face folders share."""

import json

import pytest


@pytest.fixture(scope="session", autouse=True)
def equal_renderings():
  """Starts one process for the same template and variables, not one a test."""
  from prm_jax.huggingface import chat_templates

  run, known = chat_templates.Chat.run, {}

  def run_or_know(chat, *variables):
    key = chat.text, json.dumps(variables)
    if key not in known:
      known[key] = run(chat, *variables)
    return known[key]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(chat_templates.Chat, "run", run_or_know)
    yield
