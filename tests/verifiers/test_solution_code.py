import contextlib
import gzip
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import prm_jax
from prm_jax import errors
from prm_jax import schema
from prm_jax.labelling import label_verify
from prm_jax.testbed import small_programs
from prm_jax.verifiers import sandbox
from prm_jax.verifiers import solution_code
from prm_jax.verifiers import verdicts

pytestmark = pytest.mark.skipif(
  sandbox.why_none() is not None, reason="the kernel allows no sandbox"
)


@pytest.fixture(scope="module")
def checker():
  with solution_code.Checker(time_s=0.7, memory_mib=256) as checker:
    yield checker


@pytest.fixture(scope="module")
def patient_checker():
  """For what takes some time on a busy machine."""
  with solution_code.Checker(time_s=6, memory_mib=256) as checker:
    yield checker


def _labels(checker, *steps, tests="assert f(1) == 2", **extra):
  if tests is not None:
    extra["tests"] = tests
  found = checker.verify(schema.Solution("s", "?", steps, extra=extra))
  return [x.label for x in found], [x.reason for x in found]


def test_planted_errors_are_found(checker):
  random = np.random.default_rng(1)
  solutions = [small_programs.solution(f"p{i}", random) for i in range(40)]
  for s in solutions:
    found = checker.verify(s)
    assert verdicts.labels(found) == s.labels, (s, found)
  assert 15 < sum(0.0 in s.labels for s in solutions) < 38


def test_the_reason_names_the_error_and_its_line(checker):
  labels, reasons = _labels(
    *(checker, "def f(x):", "  y = [x]", "  return y[3]"), tests="f(1)"
  )
  assert labels == [1, 1, 0]
  said = "IndexError: list index out of range, line 3: return y[3]"
  assert reasons[2] == said
  _, reasons = _labels(checker, "def f(x):", "  return x + = 1")
  assert reasons[1] == "SyntaxError: invalid syntax, line 2: return x + = 1"
  _, reasons = _labels(checker, "def f(x):", "  return x")
  assert reasons[1] == "the whole code fails a test: assert f(1) == 2"


@pytest.mark.parametrize(
  "steps, labels",
  [
    # Unfinished, and whole in the end.
    *[(("def f(x):", "  y = (x", "    + 1)", "  return y"), [1] * 4)],
    *[(("def f(x):", '  """Says', '  it."""', "  return x + 1"), [1] * 4)],
    *[(("def f(x):", "  return (x +", "    1)"), [1] * 3)],
    *[
      (
        ("def f(x):", "  try:", "    return x + 1", "  finally:", "    x"),
        [1] * 5,
      )
    ],
    # Unfinished, and wrong in the end.
    (("def f(x):", "  y = x + 1", "  return (y"), [1, 1, 0]),
    (("def f(x):", "  return g(x)", "def g(x):", "  return x"), [1, 1, 1, 0]),
    (("def f(x):", "  return g(x)"), [1, 0]),
    # A loop is judged when it is whole.
    (
      ("def f(x):", "  while x < 9:", "    y = 1", "    x += 1", "  return y"),
      [1, 1, 1, 1, 0],
    ),
    (("def f(x):", "  while True:", "    y = 1", "  return 3"), [1, 1, 0, 0]),
    # At the top, and in part of an if.
    (("y = 1", "y = z", "f = abs"), [1, 0, 0]),
    (("def f(x):", "  if x:", "    y = q", "  return 1"), [1, 1, 0, 0]),
    (("import sys", "sys.exit(0)", "f = abs"), [1, 0, 0]),
    # Marks of a chat's code.
    (("```python", "def f(x):", "  return x + 1", "```"), [1] * 4),
  ],
)
def test_a_prefix_is_judged_by_what_it_is_so_far(steps, labels, checker):
  found, reasons = _labels(checker, *steps)
  assert found == labels, reasons


def test_tests_may_look_at_arguments_values_and_errors(checker):
  tests = """
a = [2, 1]
assert change(a) is None and a == [1, 2]
assert LIMIT == (1, {2: {3.5}}) and pair(1, b=2) == (1, 2)
try:
  pair(0)
  assert False
except ValueError as e:
  assert "none" in str(e)
"""
  steps = (
    "LIMIT = (1, {2: {3.5}})\ndef change(x):\n  x.sort()",
    "def pair(a, b=0):\n  if not a:\n    raise ValueError('none')",
    "  return a, b",
  )
  labels, reasons = _labels(checker, *steps, tests=tests)
  assert labels == [1, 1, 1], reasons


def test_without_tests_nothing_is_right(checker):
  assert _labels(checker, "y = 1", "z = 2", tests=None)[0] == [None, None]
  assert _labels(checker, "y = 1", "z = q", tests=None)[0] == [None, 0]
  assert _labels(checker, "y = 1", "z = 2", tests=[])[0] == [None, None]


@pytest.mark.parametrize("tests", [3, ["assert f(1) == 2", 3], {"a": 1}])
def test_tests_that_are_no_text_are_not_told(tests, checker):
  labels, reasons = _labels(checker, "f = abs", tests=tests)
  assert labels == [None] and "a text or a list" in reasons[0]


def test_tests_that_cannot_be_run_are_not_told(checker):
  code = "def f(x):\n  return x + 1"
  labels, reasons = _labels(checker, code, tests="assert f(1")
  assert labels == [None] and reasons == ["the tests aren't Python"]
  labels, reasons = _labels(checker, code, tests="while True: pass")
  assert labels == [None] and "ended before" in reasons[0]
  labels, _ = _labels(checker, code, tests=None, test="def check(f): pass")
  assert labels == [None]
  # And the next solution is judged.
  assert _labels(checker, code)[0] == [1]


def test_what_cannot_pass_between_the_processes_is_not_told(checker):
  labels, reasons = _labels(
    checker, "class f:", "  def __init__(self, x): pass", tests="assert f(1)"
  )
  assert labels == [1, None] and "returns a value of type f" in reasons[1]
  tests = "assert f(lambda: 1) == 2"
  labels, _ = _labels(checker, "def f(x):", "  return 2", tests=tests)
  assert labels == [1, None]


# --- Code that means harm -----------------------------------------------------

HARMLESS_END = "\ndef f(x):\n  return x"  # wrong, and so never right
HOSTILE = dict(
  fork_bomb="import os\nwhile True:\n  os.fork()",
  fork_quietly="import os\nfor _ in range(99):\n  try:\n    os.fork()\n  except OSError: pass",
  loop="while True: pass",
  asleep="import time\ntime.sleep(99)",
  no_alarm="import signal\nfor s in range(1, 60):\n  try: signal.signal(s, signal.SIG_IGN)\n  except (OSError, ValueError): pass\nwhile True: pass",
  memory="x = bytearray(10**10)",
  memory_slowly="x = []\nwhile True: x.append(bytearray(10**7))",
  recursion="import sys\nsys.setrecursionlimit(10**9)\ndef g(): g()\ng()",
  exits="import sys\nsys.exit(0)",
  exits_at_once="import os\nos._exit(0)",
  crash="import ctypes\nctypes.string_at(0)",
  prints="import sys\nfor _ in range(1000): sys.stdout.write('x' * 10**6)",
  prints_below="import os\nfor _ in range(1000):\n  os.write(1, b'x' * 10**6)",
  kills_parent="import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
  kills_all="import os, signal\nos.kill(-1, signal.SIGKILL)",
  kills_group="import os, signal\nos.killpg(0, signal.SIGKILL)",
  big_file="with open('/tmp/x', 'wb') as g:\n  for _ in range(99): g.write(b'x' * 10**6)",
  many_files="for i in range(10**4): open(f'/tmp/{i}', 'w').close()",
  open_files="x = [open('/dev/null') for _ in range(999)]",
  library="open(__import__('json').__file__, 'a')",
  remount="import ctypes\nassert not ctypes.CDLL(None).mount(b'none', b'/', b'', 32 | 4096, b'')",
  user="import os\nos.setuid(0)",
  deep="x = " + "(" * 5_000 + ")" * 5_000,
  deep_minus="x = " + "-" * 50_000 + "1",
  null="x = '\0'",
  # What wants to seem right.
  assertion="import builtins\nclass Never(Exception): pass\nbuiltins.AssertionError = Never",
  equal="class All(int):\n  def __eq__(self, other): return True\n  __hash__ = None\n\ndef f(x):\n  return All()",
  asserts_off="import sys\nsys.flags\nsys.settrace(lambda *a: None)",
  replies="import os\nfor fd in range(64):\n  for x in (b'{\"first\": null, \"untold\": null, \"reason\": \"\"}\\n', b'[1, {\"value\": [\"int\", \"0x2\"], \"after\": []}]\\n'):\n    try: os.write(fd, x)\n    except OSError: pass",
  patches="import json\njson.dumps = lambda x: '{\"first\": null, \"untold\": null}'\njson.loads = json.dumps",
  frames="import sys\nframe = sys._getframe()\nwhile frame:\n  frame.f_globals['_called'] = lambda *a: {'value': ['int', '0x2']}\n  frame = frame.f_back",
  exit_hook="import atexit\natexit.register(lambda: print('{\"first\": null}'))",
)  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_code_ends_and_does_not_pass(name, checker, tmp_path):
  start = time.perf_counter()
  tests = "assert f(1) == 2 and f(3) == 4"
  labels, reasons = _labels(
    *(checker, "y = 1", HOSTILE[name] + HARMLESS_END), tests=tests
  )
  assert labels in ([1, 0], [1, None]), reasons
  assert time.perf_counter() - start < 12
  # And the next one is judged as if nothing had been.
  labels, reasons = _labels(checker, "def f(x):", "  return x + 1", tests=tests)
  assert labels == [1, 1], reasons


def test_code_sees_no_file_environment_process_or_network(
  checker, tmp_path, monkeypatch
):
  monkeypatch.setenv("SECRET", "7")
  path = tmp_path / "written"
  with socket.create_server(("127.0.0.1", 0)) as server:
    server.settimeout(0.2)
    code = f"""
import os, socket
def fails(*what):
  try:
    what[0](*what[1:])
  except OSError:
    return True
  return False
assert "SECRET" not in os.environ
for path in ({str(tmp_path)!r}, "/proc", "/etc", "/home", {os.path.expanduser("~/.ssh")!r}):
  assert fails(os.listdir, path), path
assert fails(open, {str(path)!r}, "w")
assert fails(open, os.path.expanduser("~root/x"), "w")
assert fails(socket.create_connection, ("127.0.0.1", {server.getsockname()[1]}), 1)
assert fails(socket.create_connection, ("192.0.2.1", 80), 1)
assert fails(os.kill, {os.getpid()}, 0)
assert os.getuid() != 0 and os.getppid() == 1
def f(x):
  open("/tmp/x", "w").write("its own")
  return x + 1
"""
    labels, reasons = _labels(checker, code)
    assert labels == [1], reasons
    with pytest.raises(TimeoutError):
      server.accept()
  assert not path.exists()


def test_a_lower_limit_of_the_machine_is_named():
  program = (
    "import resource\n"
    "from prm_jax.verifiers import sandbox\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
    "print(sandbox.why_none())\n"
  )
  command = [sys.executable, "-c", program]
  said = subprocess.run(command, check=True, capture_output=True, text=True)
  assert said.stdout == (
    "OSError: ulimit of file size is 1048576, 16777216 are needed\n"
  )


def test_limits_hold_inside(patient_checker):
  code = """
import os, time
def most(do, error, bound):
  for i in range(bound):
    try:
      do(i)
    except error:
      return i
  return bound
def fork(i):
  if not os.fork():
    time.sleep(9)
kept = []
assert most(fork, OSError, 50) < 20
assert most(lambda i: kept.append(bytearray(10**8)), MemoryError, 9) < 3
kept.clear()
assert most(lambda i: kept.append(open("/dev/null")), OSError, 200) < 64
kept.clear()
with open("/tmp/x", "wb", 0) as file:
  assert most(lambda i: file.write(bytes(10**6)), OSError, 99) < 20
assert most(lambda i: open(f"/tmp/{i}", "w").close(), OSError, 5000) < 1000
def f(x):
  return x + 1
"""
  labels, reasons = _labels(patient_checker, code)
  assert labels == [1], reasons


@pytest.mark.parametrize(
  "code, tests",
  [
    ("n = 0\ndef f():\n  global n\n  n += 1", "f()\nassert n == 1"),
    ("log = []\ndef f(x):\n  log.append(x)", "f(3)\nassert log == [3]"),
    (
      "log = []\ndef f(x):\n  log.append(x)\n  return 1 / x",
      "try:\n  f(0)\nexcept ZeroDivisionError: pass\nassert log == [0]",
    ),
    ("def f(x):\n  x.append(1)", "a = []\nf(x=a)\nassert a == [1]"),
    (
      "print('at first')\ndef f():\n  print('hi')",
      "import contextlib, io\nb = io.StringIO()\n"
      "with contextlib.redirect_stdout(b): f()\nassert b.getvalue() == 'hi\\n'",
    ),
    (
      "import sys\ndef f():\n  sys.exit(2)",
      "try:\n  f()\n  assert False\nexcept SystemExit: pass",
    ),
    ("table = [0] * 10**6\ndef f(x):\n  return x", "assert f(1) == 1"),
    ("def f(x):\n  return x", "x = [*range(90_000)]\nassert f(x) == x"),
    ("def sum(a, b):\n  return a + b", "assert sum(1, 2) == 3"),
  ],
)
def test_tests_see_what_they_would_in_one_process(code, tests, patient_checker):
  assert _labels(patient_checker, code, tests=tests) == (
    *([1], ["the whole code passes the tests"]),
  )


_LOOKS = (
  "assert abs(f(1) - 2) < 1e-6",
  "try:\n  f(1)\nexcept {}: pass\nelse: 1/0",
)


@pytest.mark.parametrize(
  "code, tests",
  [
    ("def f(x):\n  return 9\ndef abs(x):\n  return 0", _LOOKS[0]),
    ("import os\ndef f(x):\n  os._exit(0)", _LOOKS[1].format("Exception")),
    ("import os\ndef f(x):\n  os._exit(0)", _LOOKS[1].format("BaseException")),
    ("def f(x):\n  while True: pass", _LOOKS[1].format("Exception")),
    ("def f(x):\n  import os\n  os.kill(os.getpid(), 40)", "f(1)"),
  ],
)
def test_what_only_looks_like_passing_fails(code, tests, checker):
  labels, reasons = _labels(checker, code, tests=tests)
  assert labels == [0], reasons


@pytest.mark.parametrize(
  "code, tests, why",
  [
    ("class E(Exception): pass\ndef f():\n  raise E", "try: f()\nexcept E: 1", "E"),
    ("class E: pass\ndef f():\n  return 1", "assert isinstance(f(), E)", "E"),
    ("class E:\n  RED = 1", "assert E.RED == 1", "E.RED"),
    ("import math\nf = math.sqrt", "assert math.isclose(f(4), 2)", "NameError"),
    ("def f():\n  return input()", "from unittest import mock\nf()", "mock"),
    ("def f():\n  return open('t').read()", "open('t', 'w')\nf()", "open"),
    ("def f(): pass", "from solution import f\nf()", "ModuleNotFoundError"),
    ("def f(a, b):\n  a.append(1)", "a = []\nf(a, a)\nassert a", "twice"),
    ("def sum(x): 1\ndef abs(x): 1", "assert abs(sum([1])) == 1", "abs and sum"),
    ("cur = None\ndef f():\n  global cur\n  cur = f", "f()\nassert cur", "cur"),
    (
      "def f(x):\n  raise StopIteration",
      "assert all(map(lambda x: f(x) == 1, [1, 2]))",
      "ends a loop",
    ),
    # Tests that nothing runs.
    ("def f(x): return 1", "def test():\n  assert f(1) == 2", "ask nothing"),
    ("def f(x): return 1", "if __name__ == '__main__': f(1)", "ask nothing"),
    (
      "def f(x): return 1",
      "import unittest\nclass T(unittest.TestCase):\n  def test(self):\n    f(1)",
      "ask nothing",
    ),
  ],
)  # fmt: skip
def test_tests_that_need_more_than_values_are_not_told(
  code, tests, why, checker
):
  labels, reasons = _labels(checker, code, tests=tests)
  assert labels == [None] and why in reasons[0], reasons


def test_a_module_that_is_not_here_is_no_error_but_nothing_is_told(checker):
  rest = ("def f(x):", "  return x + 1")
  labels, reasons = _labels(checker, "import os", "import numpy.linalg", *rest)
  assert labels == [1, None, None, None] and "'numpy'" in reasons[1]
  assert _labels(checker, "import os.zzz", *rest)[0] == [0, 0, 0]
  assert _labels(checker, "from math import zzz", *rest)[0] == [0, 0, 0]


def test_a_prompt_is_lines_and_a_text(checker):
  steps = ("  y = x", "  return y + 1")
  assert _labels(checker, *steps, prompt="def f(x):")[0] == [1, 1]
  labels, reasons = _labels(checker, *steps, prompt=["def f(x):"])
  assert labels == [None, None] and "prompt" in reasons[0]


def test_an_error_that_a_later_function_takes_away_is_none(checker):
  steps = (
    "def f(x):",
    "  try:\n    return g(x)\n  except Exception:\n    raise ValueError('bad')",
    "def g(x):",
    "  return x + 2",
  )
  assert _labels(checker, *steps)[0] == [1, 1, 1, 0]


def test_a_run_finds_no_file_of_the_one_before(checker):
  steps = ("import os", "os.mkdir('a')", "def f(x):", "  return x + 2")
  assert _labels(checker, *steps)[0] == [1, 1, 1, 0]


def test_many_at_a_time_have_processes_each():
  with contextlib.ExitStack() as stack:
    for _ in range(8):
      checker = stack.enter_context(solution_code.Checker(time_s=2))
      labels, reasons = _labels(checker, "def f(x):\n  return x + 1")
      assert labels == [1], reasons


_ALL_FDS = "import os\nfor fd in range(64):\n  try: {}\n  except OSError: pass"
_LEAVES = dict(
  half_a_line=_ALL_FDS.format("os.write(fd, b'x')"),
  not_blocking=_ALL_FDS.format("os.set_blocking(fd, False)"),
  interrupt="import os, signal\nos.kill(1, signal.SIGINT)",
  nice="import os\nos.setpriority(os.PRIO_PROCESS, 1, 19)",
  full="for i in range(16): open(f'/tmp/{i}', 'wb').write(b'x' * 10**6)",
  deep="import os\nfor i in range(400):\n  os.mkdir('d' * 200)\n  os.chdir('d' * 200)\nos.chmod('/tmp/' + 'd' * 200, 0)",
  **{
    name: f"import resource as r\nr.prlimit(1, r.RLIMIT_{name}, ({most}, {most}))"
    for name, most in dict(AS=30 << 20, NPROC=1, NOFILE=1, FSIZE=1).items()
  },
)  # fmt: skip


@pytest.mark.parametrize("name", _LEAVES)
def test_what_code_leaves_behind_does_not_harm_the_next(name):
  honest = (
    "x = [0] * 4_000_000",
    "assert __import__('os').listdir('/tmp') == []",
    "open('/tmp/a', 'wb').write(bytes(2_000_000))",
    "def f(n):\n  return 'a' * n",
  )
  tests = "assert f(200_000) == 'a' * 200_000"
  with solution_code.Checker(time_s=2, memory_mib=256) as checker:
    _labels(checker, _LEAVES[name] + HARMLESS_END)
    labels, reasons = _labels(checker, *honest, tests=tests)
  assert labels == [1, 1, 1, 1], reasons


def test_code_gets_no_rights_by_a_namespace_of_its_own(checker):
  code = "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000)\nf = abs"
  labels, reasons = _labels(checker, code, tests="assert f(-1) == 1")
  assert labels == [1], reasons


def test_nothing_is_left_of_a_run(tmp_path):
  mark = "import os, time\nif not os.fork():\n  time.sleep(98765)\nf = abs"
  with solution_code.Checker(time_s=1) as checker:
    _labels(checker, mark)
    processes = [checker._process.process]
  assert processes[0].poll() is not None
  for status in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
      assert b"98765" not in status.read_bytes()
    except OSError:
      continue


def test_without_a_sandbox_code_is_refused_until_it_is_allowed(monkeypatch):
  monkeypatch.setattr(sandbox, "why_none", lambda: "unshare: not permitted")
  verb = label_verify.LabelVerify("code")
  with pytest.raises(errors.InputError, match="unsafe_code=True") as e:
    verb([schema.Solution("s", "?", ("x = 1",))])
  assert "unshare: not permitted" in str(e.value) and "\n" not in str(e.value)
  verb = label_verify.LabelVerify("code", unsafe_code=True, time_s=1.0)
  solution = schema.Solution(
    *("s", "?", ("def f(x):", "  return x")), extra=dict(tests="assert f(1)")
  )
  endless = schema.Solution(
    "t", "?", ("while True: pass",), extra=dict(tests="assert f(1)")
  )
  labelled = verb([solution, endless])
  assert [x.labels for x in labelled] == [(1, 1), (0,)]
  assert [x.outcome for x in labelled] == [True, False]


def test_the_kernels_refusal_is_told(monkeypatch):
  """As the kernel says it: here a worker that can't start."""
  monkeypatch.setattr(
    sandbox, "_command", lambda *_: [sys.executable, "-c", "1/0"]
  )
  sandbox.why_none.cache_clear()
  try:
    assert sandbox.why_none() == "ZeroDivisionError: division by zero"
  finally:
    sandbox.why_none.cache_clear()


def test_the_page_shows_what_it_says():
  page = pathlib.Path(prm_jax.__file__).parents[1] / "docs" / "verifiers.md"
  blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
  (block,) = (x for x in blocks if "tests" in x)
  exec(block, {})


# --- HumanEval ----------------------------------------------------------------


def _human_eval(num, change=lambda code: code):
  data = pathlib.Path(os.environ.get("PRM_JAX_DATA", "nowhere"))
  with gzip.open(data / "humaneval" / "HumanEval.jsonl.gz") as f:
    records = [json.loads(line) for line in f][:: 164 // num][:num]
  for x in records:
    code = change(x["canonical_solution"])
    steps = tuple(line for line in code.split("\n") if line.strip())
    extra = {k: x[k] for k in ("prompt", "test", "entry_point")}
    yield schema.Solution(x["task_id"], x["prompt"], steps, extra=extra)


def _passes(solution):
  """Runs harmless code and its tests as HumanEval does: in one namespace."""
  extra = solution.extra
  parts = (extra["prompt"], *solution.steps, extra["test"])
  code = "\n".join((*parts, f"check({extra['entry_point']})"))
  done = subprocess.run(
    [sys.executable, "-S", "-"], input=code.encode(), capture_output=True
  )
  return not done.returncode


@pytest.mark.real_data
@pytest.mark.skipif("PRM_JAX_DATA" not in os.environ, reason="needs its data")
def test_human_evals_own_solutions_pass_and_broken_ones_do_as_python_says():
  with solution_code.Checker(time_s=5) as checker:
    for s in _human_eval(40):
      found = checker.verify(s)
      assert {x.label for x in found} == {1}, (s, found)
    compared = 0
    for s in _human_eval(16, lambda x: x.replace("+", "-").replace("<", ">")):
      label = checker.verify(s)[-1].label
      assert label == _passes(s), s
      compared += not label
    assert compared > 4
