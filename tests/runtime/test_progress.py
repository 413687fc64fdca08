"""Long work says how far it is: a bar on a terminal, lines elsewhere."""

import functools
import sys
import threading

import pytest
import tqdm

from prm_jax.runtime import progress

pytestmark = pytest.mark.usefixtures("printed_log")


@pytest.fixture
def clock():
  """Returns a clock that stands still until its list is changed."""
  now = [100.0]
  return now, lambda: now[0]


def test_off_a_terminal_a_line_now_and_then_has_count_rate_and_eta(
  clock, capsys
):
  now, read = clock
  with progress.showing("score", 4_000, every_s=15, clock=read) as update:
    # What comes before the first report, a compilation, doesn't come again.
    for seconds, done in ((10, 200), (14, 900), (20, 1_000), (30, 1_400)):
      now[0] = 100.0 + seconds
      update(done)
    now[0] = 140.0
    update(2_000)
  said = capsys.readouterr()
  assert said.out == ""
  assert said.err.splitlines() == [
    "score 1,000/4,000 80.0 solutions/s eta 38s",
    "score 2,000/4,000 60.0 solutions/s eta 33s",
  ]


def test_what_comes_first_is_named_until_a_report_and_no_eta_until_two(
  clock, capsys
):
  now, read = clock
  with progress.showing(
    "score", 40, first=progress.COMPILING, every_s=5, clock=read
  ) as update:
    now[0] = 105.0
    update.__self__.log()
    # Nothing is done, but what comes first has ended.
    now[0] = 107.0
    update(0)
    now[0] = 110.0
    update(0, "64 tokens")
    now[0] = 115.0
    update(8)
    now[0] = 120.0
    update(16)
  assert capsys.readouterr().err.splitlines() == [
    "score 0/40 compiling 5s",
    "score 0/40 eta unknown 64 tokens",
    "score 8/40 eta unknown",
    "score 16/40 1.6 solutions/s eta 15s",
  ]


def test_a_line_comes_also_while_nothing_is_reported(capsys, monkeypatch):
  waited = threading.Event()
  log = progress._Lines.log

  def logged(self):
    log(self)
    waited.set()

  monkeypatch.setattr(progress._Lines, "log", logged)
  with progress.showing("read", None, every_s=0.01, first="opening"):
    assert waited.wait(20)
  (line,) = capsys.readouterr().err.splitlines()
  assert line == "read 0 solutions opening 1s"
  assert "progress" not in {t.name for t in threading.enumerate()}


def test_what_is_read_of_unknown_length_is_counted(clock, capsys, monkeypatch):
  now, read = clock
  slow = functools.partial(progress.showing, every_s=5, clock=read)
  monkeypatch.setattr(progress, "showing", slow)
  items = []
  for item in progress.through("read x", range(40)):
    now[0] += 0.5
    items.append(item)
  assert items == list(range(40))
  assert capsys.readouterr().err.splitlines() == [
    "read x 16 solutions",
    "read x 32 2.0 solutions/s",
  ]


def test_what_it_has_cost_stands_after_the_rest(clock, monkeypatch, capsys):
  now, read = clock
  with progress.showing("label", 8, every_s=1, clock=read) as update:
    update(2)
    now[0] = 102.0
    update(4, "64 rollouts")
  line = "label 4/8 1.0 solutions/s eta 4s 64 rollouts\n"
  assert capsys.readouterr().err == line
  monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
  at_once = functools.partial(tqdm.tqdm, mininterval=0)
  monkeypatch.setattr(tqdm, "tqdm", at_once)
  with progress.showing("label", 8) as update:
    update(4, "64 rollouts")
    update(8)
  assert "64 rollouts" in capsys.readouterr().err


def test_short_work_says_nothing_off_a_terminal(capsys):
  with progress.showing("score", 3) as update:
    update(3)
  with progress.showing("score", 0) as update:
    update(0)
  assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_one_bar_on_stderr(monkeypatch, capsys):
  monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
  # Else a bar that moves this fast is never drawn.
  at_once = functools.partial(tqdm.tqdm, mininterval=0)
  monkeypatch.setattr(tqdm, "tqdm", at_once)
  with progress.showing("rollouts", 40, "prefix") as update:
    update(0)
    update(30)
    update(40)
  said = capsys.readouterr()
  assert said.out == ""
  assert "rollouts: 100%" in said.err and "40/40" in said.err
  assert "prefix/s" in said.err and "\n" not in said.err


def test_the_rate_of_a_bar_counts_from_the_first_report(monkeypatch):
  now = [0.0]
  bar = tqdm.tqdm(total=100, file=open("/dev/null", "w"))  # noqa: SIM115
  monkeypatch.setattr(bar, "_time", lambda: now[0])
  bar.start_t = bar.last_print_t = 0.0
  now[0] = 60.0  # a compilation
  progress.restart(bar, 10)
  now[0] = 70.0
  bar.update(20)
  facts = bar.format_dict
  assert (facts["n"] - facts["initial"]) / facts["elapsed"] == 2.0
  bar.close()


def test_an_error_of_the_work_passes_through(monkeypatch):
  for terminal in (False, True):
    monkeypatch.setattr(
      sys.stderr, "isatty", lambda on=terminal: on, raising=False
    )
    with pytest.raises(KeyError), progress.showing("score", 3):
      raise KeyError


def test_work_of_minutes_has_fewer_lines(clock, capsys):
  now, read = clock
  with progress.showing("label", 10_000, every_s=5, clock=read) as update:
    for _ in range(900):
      now[0] += 1
      update(int(now[0]))
  lines = len(capsys.readouterr().err.splitlines())
  # Every 5 s in the first minute, and 15 s apart at the end.
  assert 12 + 600 // 15 <= lines < 900 // 5 / 2
