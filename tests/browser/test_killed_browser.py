"""A browser and its server are killed at any moment: nothing lost, none double.

PRM_JAX_KILLS is how often the browser is; 3 by default, at every third of them
the server as well. It is one of `make faults`.
"""

import collections
import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import threading

import pytest
import test_people

from prm_jax.people import judgement_store

pytestmark = pytest.mark.faults
NUM = int(os.environ.get("PRM_JAX_KILLS", "3"))
NUM_STEPS = 60
SERVER = test_people.SERVER.replace(
  'desks.desk(pathlib.Path(sys.argv[1]), "per_step")',
  "desks.desk(pathlib.Path(sys.argv[1]), 'per_step', [desks.item('per_step',"
  f" x, [str(k) for k in range({NUM_STEPS})]) for x in map(str, range(99))])",
)


class Browser:
  """A chromium with a folder of its own, which outlives it."""

  def __init__(self, folder: pathlib.Path):
    command = [
      *(shutil.which("chromium"), "--headless=new", "--no-sandbox"),
      *("--remote-debugging-port=0", f"--user-data-dir={folder}"),
    ]
    self.ended = threading.Event()
    self._process = subprocess.Popen(
      command, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    for line in self._process.stderr:
      if "listening on " in line:
        self.address = line.split("listening on ")[1].strip()
        break
    # A pipe that nobody reads would stop it.
    threading.Thread(target=self._process.stderr.read, daemon=True).start()

  def kill(self) -> None:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self._process.pid, signal.SIGKILL)
    self._process.wait()
    self.ended.set()


def judge(chromium, browser, url, kill, told, again, drawn):
  """Judges by keyboard until the browser is killed; adds what is said to be kept.

  That is at a moment which is drawn, from before the page is there on. What is
  said at first is of a judgement that the browser before has left, and may have
  said the same of: its own store of it is older than its last moment.
  """
  connected = chromium.connect_over_cdp(browser.address)
  page = connected.contexts[0].pages[0]
  threading.Timer(drawn.uniform(0.1, 1.4), kill).start()
  page.goto(url)
  adds_to = again
  while True:
    if page.is_visible("#outcome"):
      page.keyboard.press("n")
    page.wait_for_selector("[aria-current=step]")
    words = page.inner_text("#said")
    if words.endswith(", kept."):
      adds_to.append(words.removesuffix(", kept."))
    adds_to = told
    test_people.press(page, drawn.choice("123"))


def test_nothing_is_lost_and_none_is_double_however_often_it_is_killed(
  browser, tmp_path
):
  from playwright import sync_api

  drawn = random.Random(0)
  told: list[str] = []
  again: list[str] = []
  server, url = start(tmp_path)
  port = int(url.rstrip("/").rpartition(":")[2])
  try:
    for number in range(NUM):
      killed = Browser(tmp_path / "profile")

      def kill(killed=killed, number=number, server=server):
        if number % 3 == 2:
          server.kill()
          server.wait()
        killed.kill()

      with contextlib.suppress(sync_api.Error):
        address = url + test_people.KEY
        how = kill, told, again, drawn
        judge(browser.browser_type, killed, address, *how)
      killed.ended.wait()
      if server.poll() is not None:
        server, _ = start(tmp_path, port)
  finally:
    server.kill()
    server.wait()
  with contextlib.closing(
    judgement_store.JudgementStore(tmp_path / "judgements.db")
  ) as store:
    kept = store.events()
  assert {x.event["kind"] for x in kept} == {"rate"}
  words = {-1: "wrong", 0: "neutral", 1: "right"}
  said = [
    f"Step {x.event['step'] + 1}: {words[x.event['rating']]}" for x in kept
  ]
  print(f"{NUM} kills, {len(told)} and {len(again)} said, {len(kept)} kept")
  places = collections.Counter((x.item, x.event["step"]) for x in kept)
  assert max(places.values()) == 1
  # In their order; at each kill one may be kept that no page said.
  rest = iter(said)
  assert all(x in rest for x in told) and {*again} <= {*said}
  assert len(told) <= len(kept) <= len(told) + NUM and len(told) >= NUM


def start(folder, port=0):
  """Returns a server as a process, and its address."""
  return test_people.start(folder, port, SERVER)
