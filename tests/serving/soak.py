"""A server under clients that come, ask and are killed, for a long time.

  python tests/serving/soak.py [--minutes=30] [--clients=8] [--seed=0]

`make soak` runs it. A process of `prm-jax serve` has a model of random weights.
Clients in processes of their own send requests whose scores are known, and every
half second one of them is killed, wherever it is. At the end each reply must
have been that of its own request, none may have had another status than 200, the
server's memory must not have grown, and it must end with exit code 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import contextlib
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cli"))
import random_models

import prm_jax
from prm_jax import schema

CLIENT = pathlib.Path(__file__).parent / "soak_client.py"
NUM_TEXTS = 200
# What memory may grow by after the first fifth of the time.
MOST_GROWTH_MIB = 32


def make_requests(
  folder: pathlib.Path, seed: int
) -> list[tuple[str, list[list[float]]]]:
  """Returns bodies, and the step scores of each one's items."""
  draw = random.Random(seed)
  scorer = prm_jax.load(folder)
  out = []
  for number in range(NUM_TEXTS):
    solutions = [
      schema.Solution(
        "0",
        f"Problem {number % 20}?",
        tuple(
          f"Step {draw.randrange(1000)}" * draw.randrange(1, 3)
          for _ in range(draw.randrange(1, 4))
        ),
      )
      for _ in range(draw.choice((1, 1, 1, 4)))
    ]
    items = [dict(problem=s.problem, steps=s.steps) for s in solutions]
    scores = [[*row.scores] for row in scorer.score(solutions)]
    out.append((json.dumps(dict(items=items)), scores))
  return out


def memory_mib(pid: int) -> float:
  """Returns what a process has in memory."""
  pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
  return pages * 4096 / 2**20


@contextlib.contextmanager
def serving(folder: pathlib.Path) -> Iterator[tuple[subprocess.Popen, int]]:
  """Yields a server's process and its port; it must end by SIGTERM with 0."""
  server = subprocess.Popen(
    [
      *(sys.executable, "-m", "prm_jax", "serve", "--port=0"),
      *(f"--checkpoint={folder}", "--max_tokens=128"),
      "--max_batch_tokens=256",
    ],
    stdout=subprocess.PIPE,
    text=True,
  )
  try:
    assert server.stdout is not None
    port = int(server.stdout.readline().split("/v1")[0].rpartition(":")[2])
    assert server.stdout.readline().endswith("ready\n")
    yield server, port
    server.send_signal(signal.SIGTERM)
    server.communicate(timeout=60)
    assert server.returncode == 0, f"exit code {server.returncode}"
  finally:
    server.kill()


class Client:
  """A client's process, and the file that its lines go to."""

  def __init__(self, port: int, seed: int, folder: pathlib.Path):
    self.path = folder / f"client{seed}"
    with self.path.open("w") as file:
      self.process = subprocess.Popen(
        [
          *(sys.executable, str(CLIENT), str(port), str(seed)),
          str(folder / "requests.json"),
        ],
        stdout=file,
      )

  def kill(self) -> int:
    """Kills it, wherever it is; returns how many right replies it had.

    Raises:
      AssertionError: A reply was wrong, or the client failed before.
    """
    assert self.process.poll() is None, "a client failed; see its traceback"
    self.process.kill()
    self.process.wait()
    # What follows the last line break was torn by the kill.
    lines = self.path.read_text().split("\n")[:-1]
    self.path.unlink()
    wrong = [line for line in lines if line != "ok"]
    assert not wrong, wrong[0]
    return len(lines)


def run(minutes: float, num_clients: int, seed: int) -> dict[str, Any]:
  """Returns what was counted.

  Raises:
    AssertionError: A reply is wrong, memory grew, or the server failed.
  """
  draw, killed, replies = random.Random(seed), 0, 0
  memory: list[float] = []
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    prm = random_models.write(folder) / "prm"
    requests = make_requests(prm, seed)
    (folder / "requests.json").write_text(json.dumps(requests))
    with serving(prm) as (server, port):
      clients = [Client(port, seed + i, folder) for i in range(num_clients)]
      end = time.monotonic() + 60 * minutes
      while time.monotonic() < end:
        time.sleep(0.5)
        assert server.poll() is None, "the server ended by itself"
        memory.append(memory_mib(server.pid))
        victim = draw.randrange(num_clients)
        replies += clients[victim].kill()
        killed += 1
        clients[victim] = Client(port, seed + num_clients + killed, folder)
      replies += sum(x.kill() for x in clients)
  fifth = len(memory) // 5
  grown = max(memory[-fifth - 1 :]) - max(memory[: fifth + 1])
  assert grown < MOST_GROWTH_MIB, f"memory grew by {grown:.0f} MiB"
  assert replies, "no reply came"
  return dict(
    replies=replies,
    killed=killed,
    first_mib=round(memory[0]),
    last_mib=round(memory[-1]),
    grown_mib=round(grown, 1),
  )


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--minutes", type=float, default=30)
  parser.add_argument("--clients", type=int, default=8)
  parser.add_argument("--seed", type=int, default=0)
  args = parser.parse_args()
  print(run(args.minutes, args.clients, args.seed))


if __name__ == "__main__":
  main()
