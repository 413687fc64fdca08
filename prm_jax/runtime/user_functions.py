"""Functions of the user's own, found by a name such as `my_module:function`.

A name is MODULE:FUNCTION, and the module is imported from Python's path, or
FILE.py:FUNCTION, and the file is loaded as a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import difflib
import hashlib
import importlib
import pathlib
import re
import sys
import traceback
import types
from typing import Any

from prm_jax import errors
from prm_jax.runtime import files
from prm_jax.runtime import preemption
from prm_jax.runtime import terminal

_OF_FILE = re.compile(r"(.+\.py):([^\W\d]\w*)", re.DOTALL)
_OF_MODULE = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")
# Whose frames are none of the user's code.
_HERE = str(pathlib.Path(__file__).parent)
_FORMS = "FILE.py:FUNCTION or MODULE:FUNCTION"


@dataclasses.dataclass(frozen=True)
class Name:
  """The name of a function.

  Args:
    place: The name of a module, or the path of a file.
    function: The name of the function there.
    is_file: Whether the place is a file.
  """

  place: str
  function: str
  is_file: bool

  def __str__(self) -> str:
    return f"{self.place}:{self.function}"


def parse(text: str) -> Name | None:
  """Returns the name that a text is; None if it has another form.

  Raises:
    InputError: It is a file of Python without a function.
  """
  if named := _OF_FILE.fullmatch(text):
    return Name(named[1], named[2], is_file=True)
  if text.endswith((".py", ".py:")):
    raise errors.InputError(
      f"{text}: which function of it? give FILE.py:FUNCTION"
    )
  if named := _OF_MODULE.fullmatch(text):
    return Name(named[1], named[2], is_file=False)
  return None


@dataclasses.dataclass(frozen=True, eq=False)
class UserFunction:
  """A function of the user's; if it fails, one line says how and where.

  Args:
    name: Its name.
    function: The function.
    file: The file of its module; None if that has none.
    sha256: The digest of that file, in hexadecimal; None without a file.
  """

  name: Name
  function: Callable[..., Any]
  file: str | None
  sha256: str | None

  def __call__(self, *arguments: Any) -> Any:
    """Returns what the function does.

    Raises:
      InputError: It raised an exception, which is the cause of this one.
    """
    with refusing(self.file, self.name):
      return self.function(*arguments)

  @property
  def identity(self) -> dict[str, str | None]:
    """What the function is, as plain data: its name and its file's digest.

    A file may be moved, so its path isn't part of it.
    """
    place = {} if self.name.is_file else dict(module=self.name.place)
    return dict(**place, function=self.name.function, sha256=self.sha256)


# No fault of the user's code: an error that is one line already, Ctrl-C, and
# what ends a command that this code may have called.
_LET_THROUGH = (
  errors.InputError,
  KeyboardInterrupt,
  preemption.PreemptedError,
  terminal.ReaderGoneError,
)


@contextlib.contextmanager
def refusing(file: str | None, name: Name | None = None) -> Iterator[None]:
  """Makes one error, of one line, of what the user's code raises inside.

  So it does of sys.exit, whose code would be that of a command that isn't done.

  Args:
    file: The file of the code, if that is known.
    name: What the error names before the place; None is nothing.
  """
  try:
    yield
  except _LET_THROUGH:
    raise
  except BaseException as e:
    said = _described(e, file)
    raise errors.InputError(said if name is None else f"{name}: {said}") from e


def _described(error: BaseException, file: str | None) -> str:
  """Returns what the user's code raised as "FILE:LINE: TYPE: MESSAGE".

  It names the innermost line of the code's own file, else that of any. Of a
  file that isn't Python it is that file's line.
  """
  frames = [
    frame
    for frame in traceback.extract_tb(error.__traceback__)
    if not frame.filename.startswith((_HERE, "<frozen"))
  ]
  own = [frame for frame in frames if frame.filename == file]
  if isinstance(error, SyntaxError):
    # A text that the code itself parses has another name, or none.
    where = error.filename or ("" if own else file or "")
    if where and not where.startswith("<"):
      line = f":{error.lineno}" if error.lineno else ""
      return f"{where}{line}: not Python: {error.msg}"
  message = " ".join(str(error).split()) or "no message"
  if isinstance(error, SystemExit):
    message = f"{error.code}; return instead, or raise an exception"
  last = (own or frames)[-1:]
  place = f"{last[0].filename}:{last[0].lineno}: " if last else ""
  place = place or (f"{file}: " if file else "")
  return f"{place}{type(error).__name__}: {message}"


def load(name: Name) -> UserFunction:
  """Returns the function of a name.

  Raises:
    InputError: There is no such file, module or function, or the module fails
      while it is loaded.
  """
  content = None
  if name.is_file:
    content = files.read_bytes(name.place)
    module = _run(name, content)
  else:
    module = _import(name)
  file = getattr(module, "__file__", None)
  if content is None and file is not None:
    content = files.read_bytes(file)
  return UserFunction(
    name,
    _find(name, module, file),
    file,
    None if content is None else hashlib.sha256(content).hexdigest(),
  )


def _run(name: Name, content: bytes) -> types.ModuleType:
  """Returns a file's content as a module."""
  path = str(pathlib.Path(name.place))
  digest = hashlib.sha256(path.encode() + b"\0" + content).hexdigest()
  # In sys.modules, where dataclasses and pickle look for it, under a name that
  # hides no other module.
  module = types.ModuleType(f"prm_jax_user_{digest[:16]}")
  module.__file__ = path
  sys.modules[module.__name__] = module
  with refusing(path, name):
    # Not by an import, which would leave a __pycache__ beside the file, and
    # might run other bytes than those of the digest.
    exec(compile(content, path, "exec"), vars(module))
  return module


def _import(name: Name) -> types.ModuleType:
  with refusing(None, name):
    try:
      return importlib.import_module(name.place)
    except ModuleNotFoundError as e:
      if e.name is None or not f"{name.place}.".startswith(f"{e.name}."):
        raise  # one that it imports
      raise errors.InputError(
        f"{name}: no module {e.name} on Python's path; install it, set"
        f" PYTHONPATH to the folder that holds it, or give {_FORMS.split()[0]}"
      ) from None


def _find(
  name: Name, module: types.ModuleType, file: str | None
) -> Callable[..., Any]:
  """Returns a module's function; refuses what can't be called."""
  where = "" if name.is_file or file is None else f" ({file})"
  function = getattr(module, name.function, None)
  if callable(function):
    return function
  if function is not None:
    raise errors.InputError(
      f"{name}: is a {type(function).__name__}{where}; give a function"
    )
  known = [k for k, v in vars(module).items() if callable(v)]
  near = difflib.get_close_matches(name.function, known, n=1, cutoff=0.5)
  hint = f"did you mean {near[0]}?" if near else "give the name of one"
  raise errors.InputError(f"{name}: no such function there{where}; {hint}")
