"""Standard output and error: safe for a terminal, and for a reader that left.

What a command prints may repeat names and texts of strangers: of files, of data
sets, of servers. Characters of these that act on a terminal are shown as
escapes. If the reader of a stream goes away, the command's work counts: it
continues without that stream, unless its result is what it prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import errno
import io
import os
import re
import sys
import threading
from typing import Any

from prm_jax import errors
from prm_jax.runtime import files

# Control characters but tab and line feed, separators of lines that aren't line
# feeds, marks that change the direction of a text, and halves of characters.
_ACTING = re.compile(
  "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
  "\ud800-\udfff]"
)
# What tqdm writes: moves, a bar, and back to the start of the line.
_BAR = re.compile("((?:\r|\x1b\\[A|\n)*)(.*?)(\r?)", re.DOTALL)
# A pipe whose reader has ended, a terminal that was closed, a stream that is.
_GONE = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, errno.ECONNRESET)


class ReaderGoneError(Exception):
  """Nobody reads the standard output of a command whose result goes there.

  It is no OSError: libraries, argparse for example, catch these in writes.
  """

  # Not 128 + SIGPIPE, for which a launcher would start the command again.
  exit_code = 6


def visible(text: str, *, one_line: bool = False) -> str:
  r"""Returns a text without characters that act on a terminal.

  They become escapes: \x1b, \u202e.

  Args:
    text: The text.
    one_line: Whether line feeds become \n, too.
  """
  text = _ACTING.sub(lambda found: _escape(found[0]), text)
  return text.replace("\n", "\\n") if one_line else text


def _escape(character: str) -> str:
  code = ord(character)
  return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


class Stream(io.TextIOBase):
  """A text stream for a terminal, which reports its first failed write.

  After that it writes nothing. Each method may be called by any thread.
  """

  def __init__(
    self,
    stream: Any,
    failed: Callable[[Exception], None],
    *,
    has_bars: bool = False,
  ):
    """Wraps a stream.

    Args:
      stream: The stream; None if it was closed before the process began.
      failed: Called with the error of a write that fails; it may raise another.
      has_bars: Whether tqdm, ours or a library's, may move the cursor at the
        ends of what it writes. What else is written must not begin with a text
        of strangers.
    """
    super().__init__()
    self._stream, self._failed = stream, failed
    self._has_bars = has_bars
    self.error: Exception | None = None

  def write(self, text: str) -> int:
    moves, bar, back = self._split(text)
    shown = moves + visible(bar) + back

    def write(stream: Any) -> None:
      # No locale makes a message fail.
      encoding = stream.encoding or "utf-8"
      known = shown.encode(encoding, "backslashreplace").decode(encoding)
      stream.write(known)

    self._attempt(write)
    return len(text)

  def _split(self, text: str) -> tuple[str, str, str]:
    """Returns a text with the cursor's moves before and after it apart."""
    match = _BAR.fullmatch(text) if self._has_bars else None
    return ("", text, "") if match is None else (match[1], match[2], match[3])

  def flush(self) -> None:
    self._attempt(lambda stream: stream.flush())

  def isatty(self) -> bool:
    return self._stream is not None and self._stream.isatty()

  def fileno(self) -> int:
    if self._stream is None:
      raise io.UnsupportedOperation("closed before the process began")
    return self._stream.fileno()

  def writable(self) -> bool:
    return True

  @property
  def encoding(self) -> str:  # type: ignore[override]
    return (self._stream and self._stream.encoding) or "utf-8"

  @property
  def buffer(self) -> Bytes:
    """The stream for bytes: a result that programs read, as it is."""
    return Bytes(self)

  def write_bytes(self, data: Any) -> None:
    def write(stream: Any) -> None:
      stream.flush()
      stream.buffer.write(data)

    self._attempt(write)

  def _attempt(self, do: Callable[[Any], object]) -> None:
    if self.error is not None:
      return
    try:
      if self._stream is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
      do(self._stream)
    except (OSError, ValueError) as e:  # ValueError: the stream is closed
      self.error = e
      self._discard()
      self._failed(e)

  def _discard(self) -> None:
    """Lets what is written later, also by libraries and at exit, vanish."""
    with contextlib.suppress(OSError, ValueError):
      fd = self.fileno()
      null = os.open(os.devnull, os.O_WRONLY)
      os.dup2(null, fd)
      os.close(null)


class Bytes(io.RawIOBase):
  """The bytes of a Stream, which fail as its text does."""

  def __init__(self, stream: Stream):
    super().__init__()
    self._text = stream

  def write(self, data: Any) -> int:
    self._text.write_bytes(data)
    return memoryview(data).nbytes

  def flush(self) -> None:
    self._text.flush()

  def writable(self) -> bool:
    return True


class Output:
  """Whether standard output carries the result of a command, and how it fares.

  Attributes:
    carries_result: Whether the command's result is what it prints. Then it
      ends if nobody reads it.
  """

  def __init__(self) -> None:
    self.carries_result = True
    self._stream = Stream(sys.stdout, self._failed)

  @property
  def stream(self) -> Stream:
    return self._stream

  def finish(self) -> None:
    """Writes what is still held back; raises if standard output has failed.

    Raises:
      ReaderGoneError: Nobody reads what is the command's result.
      DiskFullError: The disk is full.
      InputError: It couldn't be written to for another reason.
    """
    self._stream.flush()
    if self._stream.error is not None:
      self._raise(self._stream.error)

  def _failed(self, error: Exception) -> None:
    # Another thread can't end the command; `finish` does.
    if threading.current_thread() is threading.main_thread():
      self._raise(error)

  def _raise(self, error: Exception) -> None:
    # ValueError: the stream was closed by the program that runs this one.
    if isinstance(error, OSError) and error.errno not in _GONE:
      fix = "make room, and give the same command again"
      raise files.unwritable("standard output", error, fix) from None
    if self.carries_result:
      raise ReaderGoneError from None


@contextlib.contextmanager
def opened() -> Iterator[Output]:
  """Replaces the standard streams inside; yields what the command prints to.

  Standard error carries no result. If it fails, the command continues without.
  """
  _fill_closed()
  before = sys.stdout, sys.stderr
  output = Output()
  sys.stdout = output.stream
  sys.stderr = Stream(before[1], lambda error: None, has_bars=True)
  try:
    yield output
  finally:
    # What can't be written is discarded now: at exit it would change the code.
    with contextlib.suppress(ReaderGoneError, errors.InputError):
      output.stream.flush()
    sys.stderr.flush()
    sys.stdout, sys.stderr = before


def _fill_closed() -> None:
  """Opens the standard streams' descriptors that are closed.

  Else the next file to be opened, such as an output, would take their place,
  and a library's messages would be written into it.
  """
  for fd in range(3):
    try:
      os.fstat(fd)
    except OSError:
      # The lowest free number, which is this one.
      os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
