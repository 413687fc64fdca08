"""Judgements stay: through kills, repeated sends and two writers at once."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import desks
import pytest

from prm_jax import errors
from prm_jax.people import judgement_store

RIGHT = dict(kind="rate", step=0, alternative=0, rating=1)
WRITER = """
import sys
sys.path[:0] = {paths!r}
import desks
from prm_jax.people import judgement_store
store = judgement_store.JudgementStore({path!r})
item = desks.item("per_step")
last = store.events()[-1].number if store.events() else 0
print("begun", flush=True)
for number in range(10**6):
  event = dict(kind="rate", step=0, alternative=0, rating=number % 3 - 1)
  kept, _ = store.add(
    item, "ann", event, id=f"{{sys.argv[1]}}-{{number}}", after=last,
    seconds=1.0, at=0.0)
  last = kept.number
  print(kept.id, flush=True)
"""


def opened(folder):
  return judgement_store.JudgementStore(folder / "judgements.db")


def add(store, event, id_="1", after=0, annotator="ann", item="per_step"):
  return store.add(
    *(desks.item(item), annotator, event),
    id=id_,
    after=after,
    seconds=1.5,
    at=7.0,
  )


def test_an_event_is_there_when_the_file_is_opened_again(tmp_path):
  store = opened(tmp_path)
  kept, state = add(store, RIGHT)
  assert state.rating(0) == 1
  store.close()
  assert opened(tmp_path).events() == [kept]
  assert kept[1:] == ("1", "ann", "a", 7.0, 1.5, RIGHT)


def test_an_event_that_is_sent_again_is_kept_once(tmp_path):
  store = opened(tmp_path)
  first = add(store, RIGHT)
  again = add(store, RIGHT)
  assert first == again and len(store.events()) == 1
  with pytest.raises(judgement_store.Conflict, match="something else"):
    add(store, dict(RIGHT, rating=0))
  with pytest.raises(judgement_store.Conflict, match="another item"):
    add(store, RIGHT, annotator="bob")


def test_of_two_tabs_the_second_is_told(tmp_path):
  store = opened(tmp_path)
  kept, _ = add(store, RIGHT)
  with pytest.raises(judgement_store.Conflict, match="load it again"):
    add(store, dict(RIGHT, step=1), "2")
  add(store, dict(RIGHT, step=1), "2", after=kept.number)


def test_an_event_that_doesnt_fit_leaves_nothing(tmp_path):
  store = opened(tmp_path)
  with pytest.raises(errors.InputError, match="no step 9"):
    add(store, dict(RIGHT, step=9))
  assert store.events() == []
  add(store, RIGHT)


def test_two_writers_at_once_lose_nothing(tmp_path):
  opened(tmp_path).close()

  def write(name):
    store, last = opened(tmp_path), 0
    for number in range(50):
      event = dict(RIGHT, rating=number % 3 - 1)
      kept, _ = add(store, event, f"{name}{number}", last, annotator=name)
      last = kept.number

  threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  for name in "ab":
    found = [x.id for x in opened(tmp_path).events(name)]
    assert found == [f"{name}{i}" for i in range(50)]


def test_an_item_is_given_once(tmp_path):
  store = opened(tmp_path)
  given = judgement_store.Given("ann", "a", "chosen")
  store.give(given, 1.0)
  store.give(given._replace(why="gold"), 2.0)
  assert [x for x, _ in opened(tmp_path).given()] == [given]


def test_a_file_of_something_else_or_of_another_version_is_refused(tmp_path):
  (tmp_path / "judgements.db").write_text("nothing of the kind " * 100)
  with pytest.raises(judgement_store.Unkept, match="can't be used"):
    opened(tmp_path)
  (tmp_path / "judgements.db").unlink()
  opened(tmp_path).close()
  with sqlite3.connect(tmp_path / "judgements.db") as db:
    db.execute("PRAGMA user_version=9")
  with pytest.raises(errors.InputError, match="another version"):
    opened(tmp_path)


def test_what_was_said_to_be_kept_outlives_a_kill_at_any_moment(tmp_path):
  path = str(tmp_path / "judgements.db")
  script = WRITER.format(
    paths=[os.path.dirname(desks.__file__), *sys.path], path=path
  )
  told: list[str] = []
  drawn = random.Random(0)
  for number in range(8):
    with subprocess.Popen(
      [sys.executable, "-c", script, str(number)],
      stdout=subprocess.PIPE,
      text=True,
    ) as process:
      assert process.stdout is not None
      assert process.stdout.readline() == "begun\n"
      time.sleep(drawn.uniform(0, 0.15))
      process.send_signal(signal.SIGKILL)
      lines = process.stdout.read().split("\n")
    # The last line may be half of one.
    told += lines[:-1]
  assert len(told) > 20
  store = opened(tmp_path)
  kept = [x.id for x in store.events()]
  assert len(kept) == len({*kept})
  # One more may be kept in each life than was told.
  assert [x for x in kept if x in {*told}] == told
  assert len(kept) - len(told) <= 8
  json.dumps([x.event for x in store.events()])
