"""Long work says how far it is: a bar on a terminal, lines elsewhere."""

import functools
import sys

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
    for seconds, done in ((1, 10), (14, 900), (20, 1_000), (30, 1_400)):
      now[0] = 100.0 + seconds
      update(done)
    now[0] = 140.0
    update(2_000)
  said = capsys.readouterr()
  assert said.out == ""
  assert said.err.splitlines() == [
    "score 1,000/4,000 50.0 solutions/s eta 60s",
    "score 2,000/4,000 50.0 solutions/s eta 40s",
  ]


def test_what_it_has_cost_stands_behind_the_rest(clock, monkeypatch, capsys):
  now, read = clock
  with progress.showing("label", 8, every_s=1, clock=read) as update:
    now[0] = 102.0
    update(4, "64 rollouts")
  line = "label 4/8 2.0 solutions/s eta 2s 64 rollouts\n"
  assert capsys.readouterr().err == line
  monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
  at_once = functools.partial(tqdm.tqdm, mininterval=0)
  monkeypatch.setattr(tqdm, "tqdm", at_once)
  with progress.showing("label", 8) as update:
    update(4, "64 rollouts")
    update(8)
  assert capsys.readouterr().err.count("64 rollouts") >= 2  # it stays


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


def test_an_error_of_the_work_passes_through(monkeypatch):
  for terminal in (False, True):
    monkeypatch.setattr(
      sys.stderr, "isatty", lambda on=terminal: on, raising=False
    )
    with pytest.raises(KeyError), progress.showing("score", 3):
      raise KeyError
