"""A user's function is found by its name, and its failures are one line."""

import dataclasses
import hashlib
import pathlib
import pickle
import sys
import textwrap

import hypothesis
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax.runtime import preemption
from prm_jax.runtime import terminal
from prm_jax.runtime import user_functions

CODE = """
  from __future__ import annotations
  import dataclasses
  import json

  @dataclasses.dataclass
  class Pair:
    a: int
    b: int

  scale = 2

  def double(x):
    return scale * x

  def pair(x):
    return Pair(x, x)

  def fail(x):
    return inner(x)

  def inner(x):
    raise ValueError(f"no\\n{x}")

  def deep(x):
    return max(x, key=lambda y: y.missing)

  def parse(x):
    return json.loads(x)
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
  """A file of functions, in the current folder."""
  monkeypatch.chdir(tmp_path)
  path = pathlib.Path("mine.py")
  path.write_text(textwrap.dedent(CODE))
  return path


def _load(text):
  name = user_functions.parse(text)
  assert name is not None
  return user_functions.load(name)


def _refused(text, *arguments):
  with pytest.raises(errors.InputError) as caught:
    _load(text)(*arguments)
  assert "\n" not in str(caught.value)
  return str(caught.value)


@pytest.mark.parametrize(
  ("text", "name"),
  [
    ("a.py:f", ("a.py", "f", True)),
    ("/x y/a:b.py:f", ("/x y/a:b.py", "f", True)),
    ("a:f", ("a", "f", False)),
    ("a.b_2.c:f", ("a.b_2.c", "f", False)),
    ("runs/prm", None),
    ("runs/a:b", None),
    ("./a:f", None),
    ("a-b:f", None),
    ("a:f:g", None),
    ("a:2", None),
    ("a:", None),
    (":f", None),
    ("", None),
  ],
)
def test_a_name_is_told_by_its_form_alone(text, name):
  parsed = user_functions.parse(text)
  assert (parsed and dataclasses.astuple(parsed)) == name
  assert parsed is None or str(parsed) == text


@hypothesis.settings(max_examples=50)
@hypothesis.given(st.text("ab.:/py ", max_size=12))
def test_any_text_is_a_name_or_none_or_refused_in_a_line(text):
  try:
    name = user_functions.parse(text)
  except errors.InputError as e:
    assert "FILE.py:FUNCTION" in str(e)
  else:
    assert name is None or str(name) == text


def test_a_file_without_a_function_is_refused():
  for text in ("a.py", "a.py:"):
    with pytest.raises(errors.InputError, match="which function"):
      user_functions.parse(text)


def test_a_files_function_is_called_and_leaves_nothing_beside_it(file):
  loaded = _load("mine.py:double")
  assert loaded(3) == 6
  assert [x.name for x in pathlib.Path().iterdir()] == ["mine.py"]
  assert loaded.identity == dict(
    function="double", sha256=hashlib.sha256(file.read_bytes()).hexdigest()
  )
  # What looks for a class in its module finds it.
  pair = _load("mine.py:pair")(1)
  assert pickle.loads(pickle.dumps(pair)) == pair


def test_files_of_one_name_are_modules_of_their_own(file, tmp_path):
  other = tmp_path / "other" / "mine.py"
  other.parent.mkdir()
  other.write_text("def double(x):\n  return 'other'\n")
  first, second = _load("mine.py:double"), _load(f"{other}:double")
  assert (first(3), second(3)) == (6, "other")
  assert "mine" not in sys.modules


def test_a_module_is_found_on_the_path_and_not_in_the_current_folder(
  file, monkeypatch
):
  # An installed prm-jax has no current folder on its path.
  here = {"", str(pathlib.Path().absolute())}
  monkeypatch.setattr(sys, "path", [x for x in sys.path if x not in here])
  message = _refused("mine:double", 1)
  assert "no module mine on Python's path" in message
  assert "PYTHONPATH" in message
  monkeypatch.syspath_prepend(str(pathlib.Path().absolute()))
  monkeypatch.delitem(sys.modules, "mine", raising=False)
  loaded = _load("mine:double")
  assert loaded(3) == 6
  assert loaded.identity == dict(
    module="mine",
    function="double",
    sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
  )
  assert _refused("mine:fail", 1).startswith("mine:fail: ")
  monkeypatch.delitem(sys.modules, "mine")


def test_a_function_of_a_builtin_module_has_no_file():
  loaded = _load("math:sqrt")
  assert loaded(4.0) == 2
  assert _load("time:time").identity["sha256"] is None


@pytest.mark.parametrize(
  ("name", "argument", "said"),
  [
    ("fail", 7, r"mine.py:fail: mine.py:23: ValueError: no 7"),
    # Not the line of the standard library.
    ("parse", "{", "mine.py:parse: mine.py:29: JSONDecodeError: Expecting"),
    ("deep", [1, 2], "mine.py:deep: mine.py:26: AttributeError: 'int' object"),
    (
      "doubel",
      1,
      "mine.py:doubel: no such function there; did you mean double",
    ),
    ("scale", 1, "mine.py:scale: is a int; give a function"),
  ],
)
def test_what_fails_is_said_with_its_line(file, name, argument, said):
  assert _refused(f"mine.py:{name}", argument).startswith(said)


@pytest.mark.parametrize("raised", ["SystemExit(0)", "SystemExit", "Exit(3)"])
def test_no_way_to_end_a_program_ends_the_call_of_a_function(file, raised):
  file.write_text(
    f"class Exit(BaseException): pass\n\ndef stop(x):\n  raise {raised}\n"
  )
  said = raised.partition("(")[0]
  assert _refused("mine.py:stop", 1).startswith(
    f"mine.py:stop: mine.py:4: {said}"
  )


@pytest.mark.parametrize(
  "ended",
  [KeyboardInterrupt, preemption.PreemptedError, terminal.ReaderGoneError],
)
def test_what_ends_the_command_itself_passes_through_a_function(ended):
  def function():
    raise ended

  name = user_functions.Name("mine", "function", is_file=False)
  with pytest.raises(ended):
    user_functions.UserFunction(name, function, None, None)()


def test_the_traceback_is_the_errors_cause(file):
  with pytest.raises(errors.InputError) as caught:
    _load("mine.py:fail")(1)
  assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
  ("code", "said"),
  [
    ("\nx = (", "mine.py:2: not Python: '(' was never closed"),
    ("x = 1\n1 / 0", "mine.py:2: ZeroDivisionError: division by zero"),
    ("import sys\nsys.exit()", "mine.py:2: SystemExit: None; return instead"),
    ("import no_such_one", "mine.py:1: ModuleNotFoundError: No module named"),
    ("x = '\0'", "source code string cannot contain null bytes"),
  ],
)
def test_a_file_that_cant_be_loaded_is_said_with_its_line(file, code, said):
  file.write_text(code)
  assert said in _refused("mine.py:double", 1)


@pytest.mark.parametrize("code", ["import no_such_one", "1 / 0", "x = ("])
def test_a_module_that_fails_isnt_taken_for_one_that_isnt_there(
  file, monkeypatch, code
):
  pathlib.Path("broken_one.py").write_text(code)
  monkeypatch.syspath_prepend(str(pathlib.Path().absolute()))
  message = _refused("broken_one:f")
  assert "broken_one.py:1" in message
  assert "PYTHONPATH" not in message


def test_what_is_no_file_isnt_read(tmp_path):
  (tmp_path / "folder.py").mkdir()
  assert "directory" in _refused(f"{tmp_path}/folder.py:f").lower()
