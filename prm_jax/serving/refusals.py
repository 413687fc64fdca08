"""Why a request gets no scores, as a status of HTTP and one line.

A client may retry what has status 503, after the seconds that it is told, and
504. It must not retry what has another below 500: the request itself is at fault.
"""

from __future__ import annotations

from typing import Any

from prm_jax import errors

Record = dict[str, Any]


class RefusedError(Exception):
  """A request that gets no scores.

  Args:
    status: The status of the reply.
    message: One line: what is wrong, and how to fix it.
    where: The field that is wrong, such as items[3].steps; "" is the whole
      request.
    retry_after_s: After how many seconds the client may try again; None is not
      at all.
  """

  def __init__(
    self,
    status: int,
    message: str,
    where: str = "",
    retry_after_s: int | None = None,
  ):
    super().__init__(message)
    self.status, self.message, self.where = status, message, where
    self.retry_after_s = retry_after_s

  @property
  def record(self) -> Record:
    """The reply's body, in the form that clients of OpenAI's API read."""
    error = dict(
      message=self.message, type=_TYPES.get(self.status, "invalid_request")
    )
    if self.where:
      error["param"] = self.where
    return dict(error=error)


_TYPES = {
  401: "authentication",
  404: "not_found",
  500: "server_error",
  502: "upstream_error",
  503: "overloaded",
  504: "timeout",
}
# What the field "type" of a refusal may be.
KINDS = ("invalid_request", *_TYPES.values())


def invalid(message: str, where: str = "") -> RefusedError:
  """Returns the refusal of a request that can't be understood."""
  return RefusedError(400, message, where)


def of_solution(error: errors.InputError, where: str) -> RefusedError:
  """Returns the refusal of an item's solution.

  Args:
    error: What is wrong with the solution, which the server names "0".
    where: The item, which the client knows.
  """
  return invalid(str(error).removeprefix("solution '0': "), where)


def too_large(message: str, where: str = "") -> RefusedError:
  """Returns the refusal of a request that is above a limit."""
  return RefusedError(413, message, where)


def overloaded(message: str, retry_after_s: int = 1) -> RefusedError:
  """Returns the refusal of a request that may be sent again later."""
  return RefusedError(503, message, retry_after_s=retry_after_s)
