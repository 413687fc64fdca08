"""The server of pages: to this machine's browsers, files of the site alone."""

import http.client
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading

import pytest
import view_files

import prm_jax
from prm_jax.view import page_server
from prm_jax.view import site
from prm_jax.view import view_inputs


@pytest.fixture(scope="module")
def served(tmp_path_factory):
  """Yields a server, and the files that it serves."""
  folder = tmp_path_factory.mktemp("served")
  made = site.pages(view_inputs.read([view_files.folder(folder / "f")]))
  site.write(folder / "pages", made)
  (folder / "secret.js").write_text("secret")
  server = page_server.PageServer(folder / "pages", "127.0.0.1", 0)
  thread = threading.Thread(target=server.serve_forever)
  thread.start()
  yield server, made
  server.shutdown()
  server.server_close()
  thread.join()


def asked(server, path, method="GET", **headers):
  connection = http.client.HTTPConnection(*server.server_address[:2])
  connection.request(method, path, headers=headers)
  reply = connection.getresponse()
  body = reply.read()
  connection.close()
  return reply, body


def test_every_file_of_the_site_is_served_with_its_type_and_policy(served):
  server, made = served
  for name in ("", *made):
    reply, body = asked(server, f"/{name}")
    assert (reply.status, body) == (200, made[name or "index.html"])
    assert "script-src 'self'" in reply.headers["Content-Security-Policy"]
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
  kind = asked(server, "/data/index.js?x=1")[0].headers["Content-Type"]
  assert kind == "text/javascript; charset=utf-8"


@pytest.mark.parametrize(
  "path",
  [
    *("/gone", "/data", "/data/", "/../secret.js", "/%2e%2e/secret.js"),
    *("/katex/..", "/data/../index.html", "index.html"),
  ],
)
def test_nothing_else_is_served(served, path):
  reply, body = asked(served[0], path)
  assert reply.status in (400, 404) if path[0] == "/" else True
  assert b"secret" not in body and b"<li>" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_only_get_is_answered(served, method):
  assert asked(served[0], "/", method)[0].status == 501


@pytest.mark.parametrize(
  "host",
  ["evil.example", "evil.example:{port}", "127.0.0.1", "localhost:1", ""],
)
def test_another_name_for_this_machine_is_refused(served, host):
  port = served[0].server_address[1]
  reply, body = asked(served[0], "/", Host=host.format(port=port))
  assert reply.status == 421 and b"prmIndex" not in body
  right = asked(served[0], "/", Host=f"localhost:{port}")[0]
  assert right.status == 200


def test_an_address_that_cant_be_had_is_refused_in_one_line(tmp_path):
  path = view_files.write(tmp_path / "s.jsonl", view_files.solution("x"))
  with socket.create_server(("127.0.0.1", 0)) as taken:
    port = taken.getsockname()[1]
    with pytest.raises(prm_jax.InputError, match=f"port={port}`: can't listen"):
      prm_jax.View((path,), port=port).run()
  for host in ("0.0.0.0", "example.org", "::"):
    with pytest.raises(prm_jax.InputError, match="other machines could read"):
      prm_jax.View((path,), host=host).run()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_a_signal_and_leaves_nothing(tmp_path, number):
  path = view_files.write(tmp_path / "s.jsonl", view_files.solution("x"))
  temporary = tmp_path / "tmp"
  temporary.mkdir()
  words = [sys.executable, "-m", "prm_jax", "view", str(path), "--port=0"]
  process = subprocess.Popen(
    words,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env=dict(os.environ, TMPDIR=str(temporary)),
    cwd=pathlib.Path(prm_jax.__file__).parents[1],
  )
  line = process.stdout.readline()
  url = line.partition(": solutions 1;")[0]
  host, port = url.removeprefix("http://").rstrip("/").split(":")
  connection = http.client.HTTPConnection(host, int(port))
  connection.request("GET", "/")
  assert b"data/index.js" in connection.getresponse().read()
  process.send_signal(number)
  _, said = process.communicate(timeout=30)
  assert (process.returncode, said) == (0, "")
  assert not os.listdir(temporary)
