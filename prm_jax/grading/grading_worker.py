"""A process that grades answers and may be killed: `grading.pool` starts it.

One JSON object per line. It writes {"ready": true} when its libraries are
loaded, then answers each {"opinion", "given", "reference"} on stdin by
{"verdict"} on stdout, until stdin ends. It never outlives its parent: an idle
one reads the end of stdin, and a busy one is ended by the kernel's alarm,
whatever code is running.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import resource
import signal
import sys
from typing import Any

from prm_jax.grading import prm800k_rules


def verdict(opinion: str, given: str, reference: str) -> str:
  """Returns right, wrong or unparsable; may take forever."""
  if opinion == "prm800k":
    return "right" if prm800k_rules.same(given, reference) else "wrong"
  return _math_verify(given, reference)


def _math_verify(given: str, reference: str) -> str:
  import math_verify
  import sympy

  def read(answer):
    # Its own clock needs signals; here the process is the clock.
    return math_verify.parse(_as_math(answer), parsing_timeout=None)

  try:
    gold, guess = read(reference), read(given)
    if math_verify.verify(
      gold, guess, timeout_seconds=None, raise_on_error=True
    ):
      return "right"
  except MemoryError:
    raise
  except Exception:  # sympy raises whatever it meets, RecursionError too
    return "unparsable"
  kinds = (sympy.Basic, sympy.MatrixBase)
  are_read = [any(isinstance(x, kinds) for x in xs) for xs in (gold, guess)]
  return "wrong" if all(are_read) else "unparsable"


_MARKED = re.compile(r"(?<!\\)\$|\\[([]|\\boxed")


def _as_math(answer: str) -> str:
  """Returns an answer so that Math-Verify finds all of it, as LaTeX."""
  return answer if _MARKED.search(answer) else f"${answer}$"


def main(time_s: float, memory_mib: int) -> None:
  """Answers until stdin ends; time_s per answer, then the kernel ends it."""
  replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries may print
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
  signal.signal(signal.SIGALRM, signal.SIG_DFL)
  logging.disable(logging.CRITICAL)
  limit = memory_mib << 20
  if sys.platform.startswith("linux"):
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

  def reply(**fields: Any) -> None:
    print(json.dumps(fields), file=replies, flush=True)

  for opinion in ("prm800k", "math_verify"):
    verdict(opinion, "x + 1", "1 + x")  # loads what it needs
  reply(ready=True)
  for line in sys.stdin:
    job = json.loads(line)
    signal.alarm(math.ceil(time_s) + 1)
    result = verdict(job["opinion"], job["given"], job["reference"])
    signal.alarm(0)
    reply(verdict=result)


if __name__ == "__main__":
  try:
    main(float(sys.argv[1]), int(sys.argv[2]))
  except (MemoryError, BrokenPipeError, KeyboardInterrupt):
    # A process without memory may do anything; it ends at once.
    os._exit(1)
