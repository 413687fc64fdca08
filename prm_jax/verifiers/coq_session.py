"""A coqtop that is asked one sentence at a time.

Of Coq's interfaces this is the smallest: with -emacs its prompt holds the name
of the open proof and a number that grows by one with each sentence accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import dataclasses
import functools
import os
import pathlib
import re
import shutil
import subprocess

from prm_jax import errors
from prm_jax.verifiers import asked_program
from prm_jax.verifiers import sandbox
from prm_jax.verifiers.asked_program import UntoldError

# Every prompt's name: of no proof it is Coq.
ANY_NAME = r"[^<>|\s]+"
_WORKER = pathlib.Path(__file__).with_name("program_worker.py")
_ARGUMENTS = ("-q", "-emacs", "-set", "Printing Unfocused")
# Where Debian says in which folder OCaml's libraries are; opam says it in theirs.
_OCAML = "/etc/ocamlfind.conf"
# The longest that its start, or a sentence of whom we trust, may take.
START_S = 60.0
# What Coq's own libraries take of the address space, and more.
_OWN_MIB = 1_024
# One without an end, which a proof can print, is the rest: so it takes time in
# proportion to the text.
_ASIDE = re.compile(r"<(infomsg|warning)>.*?(?:</\1>|\Z)", re.S)


@dataclasses.dataclass(frozen=True)
class Coqtop:
  """An installed coqtop.

  Args:
    program: Its file.
    version: What it says of itself.
    readable: The files and folders that it reads.
  """

  program: str
  version: str
  readable: tuple[str, ...]


@functools.cache
def installed() -> Coqtop:
  """Returns the coqtop on the PATH.

  Raises:
    InputError: There is none, or it doesn't start.
  """
  found = shutil.which("coqtop")
  if found is None:
    raise errors.InputError(
      "`verifier=coq` needs Coq's program coqtop, which isn't on the PATH:"
      " install it, as by `apt-get install coq` or `opam install coq`"
    )
  said = [_said_by(found, x) for x in ("-print-version", "-config")]
  lines = (line.partition("=") for line in said[1].splitlines())
  paths = [v for k, _, v in lines if k in ("COQLIB", "COQCORELIB") and v]
  program = os.path.realpath(found)
  readable = {os.path.dirname(os.path.realpath(x)) for x in paths} | {program}
  readable |= {_OCAML} if os.path.isfile(_OCAML) else set()
  return Coqtop(program, " ".join(said[0].split()), tuple(sorted(readable)))


@dataclasses.dataclass(frozen=True)
class Reply:
  """What coqtop says after a sentence.

  Args:
    text: It, without notes and warnings.
    name: The name in the prompt after it.
    is_accepted: Whether all sentences were accepted.
  """

  text: str
  name: str
  is_accepted: bool


class Session:
  """A coqtop; made by `started`."""

  def __init__(self, process: subprocess.Popen[bytes], time_s: float):
    """Makes one.

    Args:
      process: The coqtop.
      time_s: The longest that it may take for a sentence, in seconds.
    """
    self._program = asked_program.AskedProgram(process, "Coq")
    self._time_s = time_s
    self._state = int(self._exchanged(b"", ANY_NAME, START_S)[1][2])

  def ask(
    self,
    *sentences: str,
    names: str = ANY_NAME,
    limit_s: float | None = None,
  ) -> Reply:
    """Returns the reply to sentences.

    Args:
      *sentences: The sentences.
      names: A pattern of names: the first prompt with one ends the reply.
      limit_s: The longest that it may take (default: as the session's).

    Raises:
      UntoldError: There is no reply in time, or the prompt's number is none
        that these sentences lead to.
    """
    data = "".join(f"{x}\n" for x in sentences).encode(errors="replace")
    said, prompt = self._exchanged(data, names, limit_s or self._time_s)
    before, self._state = self._state, int(prompt[2])
    if self._state not in (before, before + len(sentences)):
      raise UntoldError("Coq read other sentences than were sent")
    text = _ASIDE.sub("", said.decode(errors="replace"))
    return Reply(text, prompt[1].decode(), self._state != before)

  def _exchanged(
    self, data: bytes, names: str, limit_s: float
  ) -> tuple[bytes, re.Match[bytes]]:
    """Returns what is said, and the prompt after it: its name and number."""
    prompt = re.compile(
      rf"<prompt>({names}) < (\d+) \|[^<>\n]*\| \d+ < </prompt>".encode()
    )
    return self._program.exchange(data, prompt, limit_s)


@contextlib.contextmanager
def started(
  coqtop: Coqtop, *, time_s: float, memory_mib: int
) -> Iterator[Session]:
  """Starts a coqtop in a sandbox, and ends it with the block.

  Args:
    coqtop: The program.
    time_s: The longest that it may take for a sentence, in seconds.
    memory_mib: The most memory beside that of Coq's libraries, in MiB.

  Yields:
    The session.

  Raises:
    UntoldError: It doesn't start.
  """
  with sandbox.started(
    *(_WORKER, coqtop.program, *_ARGUMENTS),
    memory_mib=memory_mib + _OWN_MIB,
    stdin=subprocess.PIPE,
    readable=coqtop.readable,
  ) as process:
    yield Session(process, time_s)


def _said_by(program: str, argument: str) -> str:
  try:
    return subprocess.run(
      (program, argument),
      stdin=subprocess.DEVNULL,
      capture_output=True,
      check=True,
      text=True,
      timeout=START_S,
    ).stdout
  except (OSError, subprocess.SubprocessError, ValueError) as e:
    raise errors.InputError(
      f"{program} {argument} fails ({e}): install Coq again"
    ) from None
