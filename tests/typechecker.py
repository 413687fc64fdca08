"""The type checker of the tests, which jaxtyping's import hook takes by name.

beartype, with an int wherever a float goes. It looks at one entry of a list:
not at a random one, so that a test passes or fails every time.
"""

from collections.abc import Callable

import beartype

_BEARTYPE = beartype.beartype(
  conf=beartype.BeartypeConf(is_pep484_tower=True, is_random=False)
)
# jax puts shapes, shardings, None or stacks of rows where its arrays stand.
_PYTREES = ("Batch.__init__",)


def check(function: Callable) -> Callable:
  """Returns the function with its annotations checked at each call."""
  return function if function.__qualname__ in _PYTREES else _BEARTYPE(function)
