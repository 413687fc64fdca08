"""A process with limits that runs one worker: `limited_process` starts it.

The kernel enforces the limits of time and memory: a worker that loops or fills
the memory ends, and nothing else. It may write no file.
"""

from __future__ import annotations

import math
import resource
import runpy
import signal
import sys


def main(time_s: float, memory_mib: int, worker: str) -> None:
  """Runs a worker's file as a program, within limits."""
  signal.signal(signal.SIGALRM, signal.SIG_DFL)
  signal.alarm(math.ceil(time_s))
  limit = memory_mib << 20
  if sys.platform.startswith("linux"):
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
  runpy.run_path(worker, run_name="__main__")


if __name__ == "__main__":
  main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
