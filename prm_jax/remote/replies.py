"""Reads the replies of an endpoint, and says what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
import math
import reprlib
from typing import Any, TypeGuard

from prm_jax import client as client_lib
from prm_jax import errors
from prm_jax.remote import endpoint as endpoint_lib
from prm_jax.runtime import checks

Record = dict[str, Any]


def _unusable(what: str) -> client_lib.PassingError:
  return client_lib.PassingError("bad_reply", what)


def _choice(reply: Record) -> tuple[Record, int, int]:
  """Returns the one choice, and the numbers of tokens read and written."""
  choices, usage = reply.get("choices"), _object(reply.get("usage"))
  if not isinstance(choices, list) or len(choices) != 1:
    number = len(choices) if isinstance(choices, list) else "no list of"
    raise _unusable(f"{number} choices instead of 1")
  if not isinstance(choices[0], dict):
    raise _unusable("a choice that isn't an object")
  read, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
  if not (_is_count(read) and _is_count(written)):
    raise _unusable("usage without prompt_tokens or completion_tokens")
  return choices[0], read, written


def _object(value: Any) -> Record:
  """Returns a value that should be an object; of another one nothing."""
  return value if isinstance(value, dict) else {}


def _is_count(value: Any) -> TypeGuard[int]:
  return isinstance(value, int) and 0 <= value <= checks.MAX_COUNT


def completion(
  reply: Record,
  sent: Record,
  endpoint: endpoint_lib.Endpoint,
  step: str | None = None,
) -> Record:
  """Returns text, new_text, matched, finish_reason, tokens and log-probs.

  new_text is the text up to the stop string; matched is the stop string that
  ended it, or None. `step` is the stop string that ends a step.
  """
  choice, prompt_tokens, num_tokens = _choice(reply)
  text = _text(choice, endpoint)
  finish = choice.get("finish_reason")
  if finish not in ("stop", "length", "content_filter"):
    raise _unusable(f"finish_reason {reprlib.repr(finish)}")
  new_text, matched = _cut(text, choice, sent, endpoint, step)
  log_probs = _token_log_probs(choice)
  return dict(
    text=text,
    new_text=new_text,
    matched=matched,
    finish_reason=finish,
    prompt_tokens=prompt_tokens,
    num_tokens=num_tokens,
    log_prob_mean=sum(log_probs) / len(log_probs) if log_probs else None,
    log_prob_min=min(log_probs, default=None),
  )


def _text(choice: Record, endpoint: endpoint_lib.Endpoint) -> str:
  message = _object(choice.get("message")) if endpoint.chat else choice
  text = message.get("content" if endpoint.chat else "text")
  if isinstance(text, str):
    # Half a character, which no file can hold, becomes U+FFFD.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
  if message.get("reasoning_content") or message.get("reasoning"):
    raise errors.InputError(
      f"{endpoint.url}: it put the text into the message's reasoning; start the"
      " server without a reasoning parser"
    )
  raise _unusable("a choice without text")


def _cut(
  text: str,
  choice: Record,
  sent: Record,
  endpoint: endpoint_lib.Endpoint,
  step: str | None,
) -> tuple[str, str | None]:
  """Returns the text before a stop string, and that string or None."""
  stops = sent.get("stop", [])
  # Where the server leaves it in, with what came in the same token.
  places = {text.find(stop): stop for stop in stops if stop in text}
  if places:
    return text[: min(places)], places[min(places)]
  for name in ("stop_reason", "matched_stop"):  # of vLLM, of SGLang
    if name in choice:
      return text, choice[name] if choice[name] in stops else None
  if step is None or choice["finish_reason"] != "stop":
    return text, None
  if not endpoint.stop_in_text:
    raise errors.InputError(
      f"{endpoint.url}: it doesn't tell a step's end from the solution's;"
      " complete whole solutions, or use vLLM or SGLang (or set stop_in_text,"
      " for a server that leaves stop strings in the text)"
    )
  # transformers also finds one that begins in the prompt.
  whole = sent.get("prompt", "") + text
  ended = (stop for stop in stops if text and whole.endswith(stop))
  return text, next(ended, None)


def _token_log_probs(choice: Record) -> list[float]:
  """Returns what a choice says of its tokens; nothing if not of each."""
  log_probs = _object(choice.get("logprobs"))
  values, content = log_probs.get("token_logprobs"), log_probs.get("content")
  if values is None and isinstance(content, list):
    values = [x.get("logprob") for x in content if isinstance(x, dict)]
  if not isinstance(values, list) or not all(map(_is_finite, values)):
    return []
  return [float(value) for value in values]


def token_ids(reply: Record, prompt: Sequence[int], url: str) -> Record:
  """Returns the token_ids of a completion and their log_probs in nats.

  vLLM and SGLang have the same fields: token_ids and prompt_token_ids of a
  choice, if return_token_ids is sent, and OpenAI's logprobs.token_logprobs
  (vllm-project/vllm 030ea52, vllm/entrypoints/openai/completion/serving.py;
  sgl-project/sglang 004c82e,
  python/sglang/srt/entrypoints/openai/serving_completions.py).

  Args:
    reply: The reply.
    prompt: The ids that were sent.
    url: The endpoint, for messages.

  Raises:
    InputError: The server returns no ids or log-probabilities, or has read
      another prompt.
    PassingError: They aren't one for each token.
  """
  choice, prompt_tokens, _ = _choice(reply)
  ids, read = choice.get("token_ids"), choice.get("prompt_token_ids")
  if ids is None:
    raise errors.InputError(
      f"{url}: it returns no token ids; use vLLM or SGLang, of a version that"
      " knows return_token_ids"
    )
  if not _object(choice.get("logprobs")):
    raise errors.InputError(
      f"{url}: it returns no log-probabilities of tokens; use vLLM or SGLang"
    )
  if read is None:
    is_read = prompt_tokens == len(prompt)
  else:
    is_read = read == list(prompt)
  if not is_read:
    raise errors.InputError(
      f"{url}: it didn't read the prompt's {len(prompt)} ids but others,"
      f" {prompt_tokens} of them; take out the option that cuts or changes"
      " prompts"
    )
  log_probs = _token_log_probs(choice)
  if not _are_ids(ids) or len(ids) != len(log_probs):
    raise _unusable("not a token id and a log-probability of each new token")
  return dict(token_ids=ids, log_probs=log_probs)


def _are_ids(values: Any) -> bool:
  """Returns whether a value is a list of ids, and not an empty one."""
  are_some = isinstance(values, list) and bool(values)
  return are_some and all(type(x) is int and _is_count(x) for x in values)


def _is_finite(value: Any) -> bool:
  return isinstance(value, int | float) and math.isfinite(value)


def log_prob(reply: Record, option: str, url: str) -> Record:
  """Returns log_prob and num_tokens of the option at the prompt's end.

  And prompt_tokens, of all of the prompt.
  """
  choice, prompt_tokens, _ = _choice(reply)
  log_probs = _object(choice.get("logprobs"))
  tokens, values = log_probs.get("tokens"), log_probs.get("token_logprobs")
  if not isinstance(tokens, list) or not isinstance(values, list):
    tokens = values = []
  if min(len(tokens), len(values)) < prompt_tokens:
    raise errors.InputError(
      f"{url}: it doesn't give the log-probabilities of a prompt (echo); use"
      " vLLM or SGLang"
    )
  text, at = "", prompt_tokens
  while at > 0 and len(text) < len(option):
    at -= 1
    text = f"{tokens[at]}{text}"
  chosen = values[at:prompt_tokens]
  if text != option or not all(map(_is_finite, chosen)):
    raise errors.InputError(
      f"{url}: the option {option!r} isn't whole tokens after the text, whose"
      f" end is {text!r}; begin the option where a token begins, such as with"
      " a space"
    )
  return dict(
    log_prob=float(sum(chosen)),
    num_tokens=len(chosen),
    prompt_tokens=prompt_tokens,
  )
