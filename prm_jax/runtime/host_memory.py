"""Gives memory that was freed back to the system."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import ctypes

from jax import monitoring

_COMPILED = "/jax/core/compile/backend_compile_duration"


def trim() -> None:
  """Gives freed memory back, where the C library is glibc.

  It keeps what its threads freed: after XLA has compiled an update or a save
  was written, some hundred MB.
  """
  with contextlib.suppress(OSError, AttributeError):
    ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def trimmed_after_compiling() -> Iterator[None]:
  """Trims whenever a program was compiled, before it runs."""

  def listen(event: str, duration_secs: float, **_: str | int) -> None:
    if event == _COMPILED and duration_secs > 1:
      trim()

  monitoring.register_event_duration_secs_listener(listen)
  try:
    yield
  finally:
    monitoring.unregister_event_duration_listener(listen)
