"""Grading: no answer hangs it, none is lost, no process stays behind."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from prm_jax import errors
from prm_jax.grading import equality
from prm_jax.grading import pool
from prm_jax.text import answers

needs_verify = pytest.mark.skipif(
  not pool.installed(), reason="needs the `verify` extra"
)

# A worker that does what its answer says; it writes its pid to the file that
# it is given.
FAKE = """
import json, os, signal, sys, time
print(os.getpid(), file=open(sys.argv[1], "a"))
print(json.dumps(dict(ready=True)), flush=True)
for line in sys.stdin:
  given = json.loads(line)["given"]
  if given == "loop":
    while True:
      pass
  if given == "die":
    os.kill(os.getpid(), signal.SIGKILL)
  if given.startswith("die once"):
    flag = given.partition(": ")[2]
    if not os.path.exists(flag):
      open(flag, "w").close()
      os._exit(1)
  if given == "slow":
    time.sleep(0.2)
  verdict = "right" if given in ("x", "slow") else "wrong"
  print(json.dumps(dict(verdict=verdict)), flush=True)
"""


@pytest.fixture
def fake(tmp_path):
  """Returns a function that makes a Grader of fake workers; and their pids."""
  seen = tmp_path / "pids"
  made = []

  def make(**options):
    command = (sys.executable, "-c", FAKE, str(seen))
    made.append(
      pool.Grader("math_verify", command=command, time_s=1.0, **options)
    )
    return made[-1]

  def pids():
    return [int(pid) for pid in seen.read_text().split()]

  yield make, pids
  for grader in made:
    grader.close()


def _is_running(pid):
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  return True


def _verdicts(grades):
  return [grade.verdict for grade in grades]


# --- Processes --------------------------------------------------------------


def test_a_hang_is_killed_in_time_and_nothing_else_is_lost(fake):
  make, pids = fake
  grader = make()
  given = ["x", "loop", "no", "slow", "loop ", "x", "slow "]
  start = time.monotonic()
  with grader:
    found = _verdicts(grader.grade([(g, "?") for g in given]))
    assert time.monotonic() - start < 10
    expected = {"x": "right", "slow": "right", "loop": "timeout"}
    assert found == [expected.get(g, "wrong") for g in given]
    first = pids()
    assert len(first) in (2, 3)  # a third one if there was work left
    # The pool goes on with the workers that it has.
    assert _verdicts(grader.grade([("slow", "!")])) == ["right"]
    assert pids() == first
  assert not any(map(_is_running, pids()))


def test_a_worker_that_dies_is_replaced_and_its_answer_tried_again(
  fake, tmp_path
):
  make, pids = fake
  once = f"die once: {tmp_path / 'flag'}"
  with make() as grader:
    found = grader.grade([(g, "?") for g in ("x", once, "die", "no", "slow")])
  assert _verdicts(found) == ["right", "wrong", "timeout", "wrong", "right"]
  # Two, and at most one for each death: `once` dies once, `die` twice.
  assert 3 <= len(pids()) <= 5
  assert not any(map(_is_running, pids()))


def test_a_worker_killed_from_outside_costs_nothing(fake):
  make, pids = fake
  with make() as grader:
    pairs = [(g, "?") for g in ("x", "no")]
    before = grader.grade(pairs)
    for pid in pids():
      os.kill(pid, signal.SIGKILL)
    assert grader.grade(pairs) == before


def test_the_order_is_the_callers_whoever_is_faster(fake):
  make, _ = fake
  given = ["slow", "no", "x", "slow", None, "no", "slow", "x"]
  alone, several = (
    make(num_workers=n).grade([(g, f"?{i}") for i, g in enumerate(given)])
    for n in (1, 3)
  )
  expected = {"no": "wrong", None: "wrong", "x": "right", "slow": "right"}
  assert _verdicts(alone) == [expected[g] for g in given]
  assert several == alone


def test_an_interrupt_leaves_no_process(fake):
  make, pids = fake

  def interrupt(done):
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    make().grade([(g, "?") for g in ("no", "loop")], interrupt)
  assert pids() and not any(map(_is_running, pids()))


def test_equal_and_repeated_answers_take_no_process_of_their_own(fake):
  make, pids = fake
  grader = make(num_workers=1)
  with grader:
    found = grader.grade([("1/2", "0.5"), (None, "1"), ("9" * 10**5, "5")])
    assert _verdicts(found) == ["right", "wrong", "unparsable"]
    with pytest.raises(FileNotFoundError):
      pids()  # nobody was started
    start = time.monotonic()
    assert _verdicts(grader.grade([("slow", "?")] * 100)) == ["right"] * 100
    assert time.monotonic() - start < 10  # not 100 times 0.2 s
    assert len(pids()) == 1


def test_a_worker_that_cant_start_is_an_error_not_an_endless_loop():
  grader = pool.Grader("prm800k", command=(sys.executable, "-c", "1 / 0"))
  with pytest.raises(RuntimeError, match="before they could start"):
    grader.grade([("1?", "2")])


def test_progress_ends_with_all_of_them(fake):
  make, _ = fake
  seen = []
  make().grade([("x", "?"), ("no", "?"), ("no", "?"), ("1", "1")], seen.append)
  assert seen == sorted(seen) and seen[-1] == 4


@needs_verify
@pytest.mark.parametrize("name", pool.GRADERS)
def test_no_file_of_the_current_folder_runs_in_a_worker(
  name, tmp_path, monkeypatch
):
  modules = ("json", "logging", "sympy", "math_verify", "sitecustomize")
  for module in (*modules, "usercustomize", "prm_jax/__init__"):
    path = tmp_path / f"{module}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({module!r})")
  monkeypatch.chdir(tmp_path)
  same = (r"\frac{\sqrt{12}}{2}", r"\sqrt{3}")
  # The empty entry at its end is the current folder, to Python.
  monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", "") + ":")
  with pool.Grader(name, num_workers=1) as grader:
    verdicts = _verdicts(grader.grade([same, ("2", "3")]))
  assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
  assert verdicts == ["wrong" if name == "rules" else "right", "wrong"]


@needs_verify
def test_a_real_worker_ends_with_its_parent_even_a_killed_one(tmp_path):
  program = (
    "import os, sys\n"
    "from prm_jax.grading import pool\n"
    "g = pool.Grader('prm800k')\n"
    "g.grade([('x+1', '1+x')])\n"
    "print(g._workers[0]._process.pid, flush=True)\n"
    "os.kill(os.getpid(), 9)\n"
  )
  done = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True
  )
  pid = int(done.stdout)
  for _ in range(100):
    if not _is_running(pid):
      break
    time.sleep(0.05)
  assert not _is_running(pid)


# --- Verdicts ---------------------------------------------------------------


@pytest.fixture(scope="module")
def both():
  with pool.Grader("both", exact_first=False) as grader:
    yield grader


@needs_verify
@pytest.mark.parametrize(
  ("given", "reference", "opinions"),
  [
    ("2 + 2", "4", ("right", "wrong")),  # an integer wants an integer
    ("2/4", "1/2", ("right", "wrong")),  # not reduced
    (r"\frac{\sqrt{12}}{2}", r"\sqrt{3}", ("right", "right")),
    ("7i - 2", "-2+7i", ("right", "right")),
    (r"\$36", "36", ("right", "right")),
    ("x = 5", "5", ("right", "right")),
    ("(1,200)", "1200", ("wrong", "right")),  # a tuple, or thousands?
    (r"\begin{pmatrix}1\\2\end{pmatrix}",) * 2 + (("right", "right"),),
    ("5", "6", ("wrong", "wrong")),
  ],
)
def test_two_opinions_on_one_answer(given, reference, opinions, both):
  (grade,) = both.grade([(given, reference)])
  assert grade.opinions == opinions
  assert grade.verdict == ("right" if "right" in opinions else "wrong")


@needs_verify
@pytest.mark.slow
def test_hostile_answers_get_a_verdict_in_time_and_the_next_one_is_graded():
  hostile = [
    "9" * 10**5,
    "9" * 1_999,
    "10^10^10",
    "5^{5^{5^{5^5}}}",
    "99999999!",
    r"\frac{" * 40 + "1" + "}{2}" * 40,
    "(" * 500 + "1" + ")" * 500,
    "__import__('os').system('true')",
    "\x00",
    "\ud800",
    "",
  ]
  verdicts = {}
  with pool.Grader("both", time_s=1.0) as grader:
    for text in hostile:
      start = time.monotonic()
      (grade,) = grader.grade([(text, "5")])
      verdicts[text] = grade.verdict
      assert grade.verdict != "right"
      assert set(grade.opinions) <= set(pool.VERDICTS)
      # Two opinions at most; a new worker may have to load its libraries.
      assert time.monotonic() - start < 30
    assert grader.grade([("2/1", "4/2")])[0].verdict == "right"
  assert verdicts[hostile[3]] == "timeout"


@pytest.mark.skipif(
  not sys.platform.startswith("linux"), reason="the limit is Linux's"
)
def test_memory_is_bounded_and_running_out_of_it_is_no_verdict():
  hungry = (
    "from prm_jax.grading import grading_worker\n"
    "def verdict(opinion, given, reference):\n"
    "  if given == 'all?':\n"
    "    bytearray(1 << 30)\n"
    "  return 'wrong'\n"
    "grading_worker.verdict = verdict\n"
    "grading_worker.main(10, 400)\n"
  )
  command = (sys.executable, "-c", hungry)
  with pool.Grader("prm800k", command=command, num_workers=1) as grader:
    found = grader.grade([("1?", "2"), ("all?", "2"), ("3?", "2")])
  assert _verdicts(found) == ["wrong", "timeout", "wrong"]


@needs_verify
def test_an_answer_in_words_is_unparsable_or_wrong_and_never_right(both):
  words = [("I cannot solve this", "5"), ("", "5"), ("???", "5")]
  found = both.grade(words)
  assert all(g.verdict in ("wrong", "unparsable") for g in found)


@pytest.mark.parametrize(
  ("opinions", "verdict"),
  [
    (("right", "wrong"), "right"),
    (("wrong", "right"), "right"),
    (("wrong", "timeout"), "wrong"),
    (("timeout", "right"), "right"),
    (("timeout", "wrong"), "timeout"),
    (("unparsable", "right"), "right"),
    (("unparsable", "timeout"), "unparsable"),
    (("timeout",), "timeout"),
  ],
)
def test_one_right_opinion_is_enough_and_the_first_counts_else(
  opinions, verdict
):
  assert pool._grade(opinions) == pool.Grade(verdict, opinions)


def test_counts_name_what_has_no_verdict_and_where_opinions_split():
  made = [("right", "wrong"), ("timeout", "wrong"), ("unparsable", "right")]
  assert pool.count([pool._grade(o) for o in made]) == dict(
    right=2,
    wrong=0,
    timeout=1,
    unparsable=0,
    first_without_verdict=2,
    opinions_differ=1,
  )
  one = pool.count([pool.Grade("wrong", ("wrong",))])
  assert one == dict(right=0, wrong=1, timeout=0, unparsable=0)


def test_time_is_no_outcome():
  verdicts = dict(right=True, wrong=False, unparsable=False, timeout=None)
  for verdict, outcome in verdicts.items():
    assert pool.outcome(pool.Grade(verdict, (verdict,))) is outcome


def test_the_rules_are_exact_equality_and_need_nothing(monkeypatch):
  monkeypatch.setattr(pool, "installed", lambda: False)
  pairs = [("1/2", "0.5"), ("2 + 2", "4"), (None, "1"), ("5 cm", "5 m")]
  found = pool.Grader("rules").grade(pairs)
  assert [g.verdict == "right" for g in found] == [
    equality.equal(*pair) for pair in pairs
  ]
  for name in ("math_verify", "prm800k", "both"):
    with pytest.raises(errors.InputError, match=r"-e .\.\[verify\]"):
      pool.Grader(name)
  with pytest.raises(errors.InputError, match="choose one of rules"):
    pool.Grader("sympy")


# --- Agreement with published grades ----------------------------------------


def _rows(path):
  with gzip.open(path, "rt") as f:
    return [json.loads(line) for line in f]


@needs_verify
@pytest.mark.real_data
@pytest.mark.slow
@pytest.mark.parametrize("name", ["rules", "math_verify", "prm800k"])
def test_each_opinion_agrees_with_the_published_grades(name, public_data):
  """All of them without the exact core's help; benchmarks/README.md."""
  math = [
    (answers.extract(row["solution"]), row["answer"], True)
    for row in _rows(public_data("math500", "math500.jsonl.gz"))
  ]
  gsm8k = [
    (answers.extract(text), text.rsplit("#### ", 1)[1], True)
    for row in _rows(public_data("gsm8k", "test.jsonl.gz"))
    for text in [row["answer"]]
  ]
  candidates, stated = [], []
  path = public_data("best_of_n", "gsm8k_pool_0000_0999.jsonl.gz")
  for row in _rows(path)[:100]:  # of 1,000; the page has all
    for candidate in row["candidates"]:
      rest = row["gold"], candidate["correct"]
      candidates.append((candidate["pred"], *rest))
      answer = answers.extract(candidate["text"])
      if answer is not None:
        stated.append((answer, *rest))
  assert len(candidates) > 1_500 and len(stated) > 1_000
  with pool.Grader(name, exact_first=False) as grader:
    for judged in (math, gsm8k, candidates, stated):
      found = grader.grade([(given, gold) for given, gold, _ in judged])
      agree = sum(
        (grade.verdict == "right") == correct
        for grade, (_, _, correct) in zip(found, judged, strict=True)
      )
      assert agree / len(judged) >= 0.995, (len(judged), pool.count(found))
