"""What all tests of the device check share."""

import gc

import pytest


@pytest.fixture(autouse=True)
def no_search_for_cycles(monkeypatch):
  """After a check that failed, what it held is looked for and freed.

  Among all that the tests of one process have made, that takes a second.
  """
  monkeypatch.setattr(gc, "collect", lambda: 0)
