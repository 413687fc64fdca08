"""What a server accepts, and how long it waits."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from prm_jax import errors
from prm_jax.runtime import checks
from prm_jax.runtime import verbs


@dataclasses.dataclass(frozen=True)
class Limits(verbs.Value):
  """What a server accepts, and how long it waits.

  Args:
    max_body_bytes: The most bytes of a request.
    max_bodies_bytes: The most bytes of all requests that are read or answered;
      one that would exceed it is refused with status 503. Those that wait for
      one source may hold an equal part of it, as may all others.
    max_items: The most solutions of a request.
    max_steps: The most steps of a solution.
    max_tokens: The most tokens of a solution with its problem; a longer one is
      refused.
    max_batch_tokens: The most tokens that the model reads in one call, padding
      included; it is rounded up to the length of a row.
    max_batch_solutions: The most solutions of a call of what isn't a
      checkpoint.
    cache_tokens: The most tokens whose keys and values each model keeps from one
      request to the next, so that it needn't read them again if they come
      before others, for clients whose solutions grow; 0 keeps none.
    max_wait_ms: How long the first solution of a batch waits for others, in
      milliseconds; while the model is at work no solution waits longer.
    max_queue: The most solutions of all models that wait in the queue; a
      request that would add more gets status 503, unless none waits.
    deadline_s: How long a request may take, in seconds, before it gets status
      504.
    read_s: How long a client may take to send a request, in seconds.
    reload_s: How often to look for a later save in the checkpoint folders, in
      seconds; 0 is never.

  Raises:
    InputError: A number is out of range.
  """

  first_is_whole: ClassVar[bool] = False

  max_body_bytes: int = dataclasses.field(
    default=4 << 20, metadata=verbs.NO_OPTION
  )
  max_bodies_bytes: int = dataclasses.field(
    default=256 << 20, metadata=verbs.NO_OPTION
  )
  max_items: int = dataclasses.field(default=256, metadata=verbs.NO_OPTION)
  max_steps: int = dataclasses.field(default=512, metadata=verbs.NO_OPTION)
  max_tokens: int = 2048
  max_batch_tokens: int = 8192
  max_batch_solutions: int = 64
  cache_tokens: int = 0
  max_wait_ms: float = 5.0
  max_queue: int = 1024
  deadline_s: float = 60.0
  read_s: float = dataclasses.field(default=10.0, metadata=verbs.NO_OPTION)
  reload_s: float = 0.0

  def __post_init__(self):
    super().__post_init__()
    checks.check_counts(
      self,
      (
        *("max_body_bytes", "max_bodies_bytes", "max_items", "max_steps"),
        "max_tokens",
        *("max_batch_tokens", "max_batch_solutions", "max_queue"),
      ),
    )
    if self.max_bodies_bytes < self.max_body_bytes:
      raise errors.InputError(
        f"max_bodies_bytes={self.max_bodies_bytes}: no request of"
        f" max_body_bytes={self.max_body_bytes} could be read; give at least that"
      )
    checks.check_natural(self, ("cache_tokens", "max_wait_ms", "reload_s"))
    checks.check_positive(self, ("deadline_s", "read_s"))
