"""Requests to an endpoint, repeated if that may help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
import http.client
import json
import os
import ssl
import threading
from typing import Any

import urllib3

import prm_jax
from prm_jax import errors
from prm_jax.inference.remote import endpoint as endpoint_lib
from prm_jax.inference.remote import exchange
from prm_jax.inference.remote import replies

Record = dict[str, Any]

_FIXES = {
  401: "check the key in the variable that key_variable names",
  403: "check the key in the variable that key_variable names",
  404: "check the model's name, and that the url goes up to and with /v1",
  405: "check that the url goes up to and with /v1",
  413: "shorten the prompt",
}
# Fields that not every server knows: one that refuses it may name it.
_FIELD_FIXES = {
  "continue_final_message": (
    "if this server doesn't continue a message (vLLM, SGLang and llama.cpp do),"
    " ask /completions, without `chat`"
  ),
  "top_k": (
    "if this server has no `top_k` (vLLM, SGLang and llama.cpp do), take it out"
  ),
  "min_p": (
    "if this server has no `min_p` (vLLM, SGLang and llama.cpp do), take it out"
  ),
  "return_token_ids": (
    "if this server returns no token ids, use vLLM or SGLang"
  ),
  "logprobs": (
    "if this server returns no log-probabilities, give `no_log_probs=True`"
    " (in Python log_probs=False)"
  ),
}


class Connection:
  """Sockets to an endpoint, its key, and counts.

  `counts` has requests, retries and failed_* tries by their cause: timeout,
  connection, bad_reply or status_*. Any thread may ask.
  """

  def __init__(
    self,
    endpoint: endpoint_lib.Endpoint,
    stop: threading.Event,
    *,
    route: str,
    sleep: Callable[[float], Any],
    random: Callable[[], float],
  ):
    """Reads the key.

    Args:
      endpoint: The endpoint.
      stop: An event; if it is set, no further try is made.
      route: What follows the endpoint's url, such as completions.
      sleep: Waits some seconds.
      random: Returns a number in [0, 1).

    Raises:
      InputError: The key isn't there.
    """
    self.counts: Counter[str] = Counter()
    self._endpoint, self._stop, self._lock = endpoint, stop, threading.Lock()
    self._sleep, self._random = sleep, random
    self._key = _api_key(endpoint.key_variable)
    self._url = f"{endpoint.url.rstrip('/')}/{route}"
    self._exchanger = exchange.Exchanger(self._url, endpoint.connect_s)
    self._headers = {
      "Content-Type": "application/json",
      "User-Agent": f"prm_jax/{prm_jax.__version__}",
    }
    if self._key is not None:
      self._headers["Authorization"] = f"Bearer {self._key}"

  def ask(
    self, body: Record, read: Callable[[Record], Record], who: str
  ) -> Record:
    """Returns what `read` returns for the reply; tries again if that may help.

    Args:
      body: The body of the request.
      read: Reads the reply; raises replies.PassingError if it isn't usable.
      who: The prefix that an error names.

    Raises:
      RefusalError: The endpoint refuses.
      NoReplyError: No try has a usable reply.
      InputError: What `read` raises, or a certificate that isn't trusted.
    """
    data, most = json.dumps(body).encode(), self._endpoint.tries
    tried, last, cause = 0, "", ""
    while tried < most and not self._stop.is_set():
      tried += 1
      self._count("requests")
      try:
        return read(self._reply(data, who))
      except replies.PassingError as e:
        self._count(f"failed_{e.cause}")
        last, wait_s, cause = str(e), e.wait_s, e.cause
      except (replies.RefusalError, replies.NoReplyError):
        raise  # their words are masked
      except errors.InputError as e:
        raise errors.InputError(self._masked(str(e))) from None
      if tried < most:
        self._count("retries")
        self._sleep(max(self._pause_s(tried), wait_s))
    raise replies.NoReplyError(
      f"{self._url}: {who}: no usable reply in {tried} tries, the last time"
      f" {self._safe(last)}; see to the server and start again",
      cause,
    )

  def close(self) -> None:
    """Closes the sockets that are idle."""
    self._exchanger.close()

  def _pause_s(self, tried: int) -> float:
    """Returns a pause that doubles each time, less up to half of it."""
    longest = self._endpoint.backoff_s * 2.0 ** (tried - 1)
    longest = min(longest, self._endpoint.max_wait_s)
    return longest * (1 - self._random() / 2)

  def _reply(self, data: bytes, who: str) -> Record:
    """Returns the reply's object; raises PassingError or InputError."""
    status, headers, content = self._post(data)
    if status == 200:
      kind = headers.get("Content-Type", "")
      return replies.json_object(content, kind, self._masked)
    reason = f"status {status}, {self._safe(replies.message(content))}"
    if status != 429 and status < 500:
      fixes = (fix for name, fix in _FIELD_FIXES.items() if name in reason)
      default = _FIXES.get(status, "fix the request or the server")
      fix = next(fixes, default) if status in (400, 422) else default
      raise replies.RefusalError(f"{self._url}: {who}: {reason}; {fix}", status)
    asked = headers.get("Retry-After", "")
    wait_s = _retry_after_s(asked)
    if wait_s > self._endpoint.max_wait_s:
      raise replies.NoReplyError(
        f"{self._url}: {who}: {reason}; it asks for a pause longer than"
        f" max_wait_s, Retry-After: {self._safe(asked)}; start again then",
        f"status_{status}",
      )
    raise replies.PassingError(f"status_{status}", reason, wait_s)

  def _post(self, data: bytes) -> tuple[int, Mapping[str, str], bytes]:
    """Returns status, headers and body; raises PassingError or InputError."""
    try:
      return self._exchanger.post(data, self._headers, self._endpoint.read_s)
    except (TimeoutError, urllib3.exceptions.TimeoutError):
      raise replies.PassingError("timeout", "it took too long") from None
    except ssl.SSLCertVerificationError as e:
      raise errors.InputError(
        f"{self._url}: its certificate isn't trusted: {e}; add its authority"
        " to the system's"
      ) from None
    except (
      OSError,
      http.client.HTTPException,
      urllib3.exceptions.HTTPError,
    ) as e:
      raise replies.PassingError("connection", str(e)) from None

  def _count(self, name: str) -> None:
    with self._lock:
      self.counts[name] += 1

  def _masked(self, text: str) -> str:
    """Returns a text without the key, in the forms that a message may have."""
    # A shorter one is no secret but what a server without keys is given.
    if self._key is not None and len(self._key) > 5:
      quoted = repr(self._key)[1:-1], json.dumps(self._key)[1:-1]
      for form in (self._key, *quoted):
        text = text.replace(form, "***")
    return text

  def _safe(self, text: str) -> str:
    """Returns a server's words in one line, short and without the key."""
    text = " ".join(self._masked(text).split())
    return text if len(text) <= 400 else f"{text[:400]}..."


def _api_key(variable: str | None) -> str | None:
  if variable is None:
    return None
  key = os.environ.get(variable, "").strip()
  if not key:
    raise errors.InputError(
      f"the environment variable {variable} isn't set; put the API key into it"
    )
  if not (key.isascii() and key.isprintable()):
    raise errors.InputError(
      f"the environment variable {variable} holds a character that no API key"
      " has; set it again"
    )
  return key


def _retry_after_s(header: str) -> float:
  """Returns a Retry-After, a number or a date, in seconds; 0 if it is none."""
  try:
    return float(urllib3.Retry().parse_retry_after(header))
  except (urllib3.exceptions.InvalidHeader, ValueError, OverflowError):
    # The last two: a number of 5,000 digits, a year that no calendar has.
    return 0.0
