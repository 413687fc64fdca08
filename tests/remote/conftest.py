"""Servers for tests, ended after each."""

import threading

import pytest
import stub_server


@pytest.fixture
def serve():
  stubs = []

  def start(behave=lambda handler, body, times: stub_server.reply(body)):
    stubs.append(stub_server.Stub(behave))
    threading.Thread(
      target=stubs[-1].serve_forever, args=(0.01,), daemon=True
    ).start()
    return stubs[-1]

  yield start
  for stub in stubs:
    stub.closing.set()
    stub.shutdown()
    stub.server_close()
