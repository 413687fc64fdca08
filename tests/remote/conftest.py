"""Servers for tests, ended after each."""

import contextlib

import pytest
import stub_server


@pytest.fixture
def serve():
  with contextlib.ExitStack() as stubs:
    yield lambda *behave: stubs.enter_context(stub_server.running(*behave))
