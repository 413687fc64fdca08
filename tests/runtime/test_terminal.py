"""What a command prints can't act on a terminal, and never ends its work."""

import errno
import io
import os
import sys
import threading

import pytest

from prm_jax import errors
from prm_jax.runtime import terminal


@pytest.mark.parametrize(
  ("text", "shown"),
  [
    ("\x1b[2J\x07", r"\x1b[2J\x07"),
    ("all is well\rFAILED", r"all is well\x0dFAILED"),
    ("\x9b31m\x85\x7f", r"\x9b31m\x85\x7f"),
    ("a\u202etxt.exe\u2066\u200f", r"a\u202etxt.exe\u2066\u200f"),
    ("a\u2028b", r"a\u2028b"),
    ("\udcff\ud800", r"\udcff\ud800"),
    ("tab\tand\nline", "tab\tand\nline"),
    ("\u00e9 \u4e2d \U0001f600 \u05d0", "\u00e9 \u4e2d \U0001f600 \u05d0"),
  ],
)
def test_a_character_that_acts_on_a_terminal_is_shown_as_an_escape(text, shown):
  assert terminal.visible(text) == shown
  assert "\n" not in terminal.visible(text, one_line=True)


def _never(error):
  raise AssertionError(error)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_no_encoding_makes_a_text_fail(encoding):
  raw = io.BytesIO()
  text = io.TextIOWrapper(raw, encoding=encoding)
  stream = terminal.Stream(text, _never)
  print("\u00e9\udcff\x1b\u4e2d", file=stream, flush=True)
  shown = raw.getvalue().decode(encoding)
  assert r"\udcff\x1b" in shown and shown.endswith("\n")
  assert ("\u4e2d" in shown) == (encoding == "utf-8")


@pytest.fixture
def broken_pipe():
  reader, writer = os.pipe()
  os.close(reader)
  with open(writer, "w", encoding="utf-8") as f:
    yield f


def test_a_stream_without_reader_fails_once_and_then_takes_all(broken_pipe):
  failures = []
  stream = terminal.Stream(broken_pipe, failures.append)
  for _ in range(3):
    print("x" * 100_000, file=stream, flush=True)
  assert [e.errno for e in failures] == [errno.EPIPE]
  # As libraries do, and Python when it ends.
  os.write(broken_pipe.fileno(), b"x")
  broken_pipe.write("x")
  broken_pipe.flush()


@pytest.mark.parametrize("carries_result", [True, False])
def test_only_a_result_that_nobody_reads_ends_the_work(
  broken_pipe, carries_result, monkeypatch
):
  monkeypatch.setattr(sys, "stdout", broken_pipe)
  with terminal.opened() as printed:
    printed.carries_result = carries_result
    if not carries_result:
      print("x", flush=True)
      printed.finish()
      return
    with pytest.raises(terminal.ReaderGoneError):
      print("x", flush=True)
    with pytest.raises(terminal.ReaderGoneError):
      printed.finish()


@pytest.mark.parametrize("carries_result", [True, False])
def test_a_full_disk_under_the_output_is_said(carries_result, monkeypatch):
  with open("/dev/full", "w", encoding="utf-8") as f:
    monkeypatch.setattr(sys, "stdout", f)
    with terminal.opened() as printed:
      printed.carries_result = carries_result
      print("held back")
      with pytest.raises(errors.DiskFullError, match="standard output"):
        printed.finish()


def test_another_thread_isnt_ended_but_the_command_is(monkeypatch):
  with open("/dev/full", "w", encoding="utf-8") as f:
    monkeypatch.setattr(sys, "stdout", f)
    with terminal.opened() as printed:
      done = []

      def work():
        print("x", flush=True)
        done.append(True)

      thread = threading.Thread(target=work)
      thread.start()
      thread.join()
      assert done
      with pytest.raises(errors.DiskFullError):
        printed.finish()


def test_standard_error_may_fail_and_streams_come_back(monkeypatch):
  with open("/dev/full", "w", encoding="utf-8") as f:
    monkeypatch.setattr(sys, "stderr", f)
    before = sys.stdout, sys.stderr
    with terminal.opened():
      print("x", file=sys.stderr, flush=True)
    assert before == (sys.stdout, sys.stderr)


def test_a_bar_may_move_the_cursor_and_bytes_stay_as_they_are(monkeypatch):
  raw = io.BytesIO()
  monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, encoding="utf-8"))
  with terminal.opened():
    for text in (
      "\r50 %",
      "\n\x1b[A",
      "\r    \r",
      "all well\rfailed",
      "\r\x1b[2J",
    ):
      sys.stderr.write(text)
    sys.stderr.buffer.write(b"\x1b\xff")
  assert raw.getvalue() == (
    b"\r50 %\n\x1b[A\r    \rall well\\x0dfailed\r\\x1b[2J\x1b\xff"
  )
