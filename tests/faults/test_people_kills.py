"""A server of people's work is killed at any moment: nothing lost, none double.

PRM_JAX_KILLS is how often; 12 by default.
"""

import json
import os
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request

import desks
import pytest

from prm_jax.people import people_folder
from prm_jax.records import jsonl
from prm_jax.runtime import listening

pytestmark = pytest.mark.faults
NUM = int(os.environ.get("PRM_JAX_KILLS", "12"))
PATIENCE_S = 60


def asked(url, key, data=None):
  """Returns what a server answers; asks again while it isn't there."""
  end = time.monotonic() + PATIENCE_S
  while True:
    sent = None if data is None else json.dumps(data).encode()
    headers = {"Authorization": f"Bearer {key}"}
    try:
      request = urllib.request.Request(url, sent, headers)
      with urllib.request.urlopen(request, timeout=5) as reply:
        return json.loads(reply.read())
    except urllib.error.HTTPError as e:
      if e.code != 429:
        raise
    except OSError:  # killed before, while or after it kept the judgement
      pass
    assert time.monotonic() < end, "the server never came back"
    time.sleep(0.02)


def test_nothing_is_lost_and_nothing_is_double_however_often_it_is_killed(
  tmp_path,
):
  drawn = random.Random(0)
  num_steps = 40
  solutions = [
    desks.solution(str(i), [f"step {k}" for k in range(num_steps)])
    for i in range(200)
  ]
  jsonl.write_solutions(tmp_path / "s.jsonl", solutions)
  with listening.listen("127.0.0.1", 0) as taken:
    port = taken.getsockname()[1]
  labels = tmp_path / "labels"
  command = [
    *(sys.executable, "-m", "prm_jax", "label", "people", "--task=per_step"),
    *(f"--input={tmp_path / 's.jsonl'}", f"--output={labels}"),
    *(f"--port={port}", "--gold_share=0", "--random_share=0"),
  ]

  def start():
    return subprocess.Popen(
      command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

  server = start()
  said: list[dict] = []
  try:
    end = time.monotonic() + PATIENCE_S
    while not (labels / "links.txt").exists():
      assert time.monotonic() < end
      time.sleep(0.05)
    (line,) = (labels / "links.txt").read_text().splitlines()
    url, _, key = line.split("\t")[1].partition("#key=")
    shown = asked(f"{url}v1/label/next", key)["item"]
    kills, next_kill = 0, time.monotonic() + 0.3
    while kills < NUM:
      step = len(shown["state"]["ratings"])
      rating = drawn.choice((-1, 0, 1))
      event = dict(kind="rate", step=step, alternative=0, rating=rating)
      sent = dict(item=shown["id"], event=event, id=str(len(said)))
      sent |= dict(after=shown["last"], seconds=1.0)
      if time.monotonic() > next_kill:
        server.kill()
        server.wait()
        kills += 1
        server = start()
        next_kill = time.monotonic() + drawn.uniform(1.0, 2.5)
      shown = asked(f"{url}v1/label/events", key, sent)
      said.append(event)
      assert len(shown["state"]["ratings"]) == step + 1
      if shown["state"]["reason"] is not None:
        shown = asked(f"{url}v1/label/next", key)["item"]
  finally:
    server.kill()
    server.wait()
  store = people_folder.Folder(labels).store()
  kept = [x.event for x in store.events()]
  assert kept == said and len(said) > 5 * NUM
