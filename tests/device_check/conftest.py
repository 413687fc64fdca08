"""What all tests of the device check share."""

import gc

import pytest


@pytest.fixture(autouse=True)
def no_search_for_cycles():
  """After a check that failed, what it held is looked for and freed.

  Among all that the tests of one process have made, that takes a second. It is
  a patch of its own: those of a test must end before the test's other fixtures.
  """
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(gc, "collect", lambda: 0)
    yield
