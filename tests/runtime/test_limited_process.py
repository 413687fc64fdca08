"""What a worker does in a process with limits stays in it."""

from concurrent import futures
import sys

import pytest

from prm_jax.runtime import limited_process

ONLY_LINUX = pytest.mark.skipif(
  not sys.platform.startswith("linux"), reason="Linux alone has these limits"
)


def _run(folder, code, job=None, *, time_s=20, memory_mib=300):
  folder.mkdir(exist_ok=True)
  worker = folder / "worker.py"
  worker.write_text(f"import json, sys\njob = json.load(sys.stdin)\n{code}\n")
  return limited_process.run(worker, job, time_s=time_s, memory_mib=memory_mib)


def test_a_worker_answers_what_it_is_asked(tmp_path):
  job = dict(a=[1, "\u00e9"])
  reply = _run(tmp_path, "json.dump([job, 2], sys.stdout)", job)
  assert reply == [job, 2]


@pytest.mark.parametrize(
  "code",
  [
    "raise KeyError",
    pytest.param("x = 'a' * (400 << 20)", marks=ONLY_LINUX),
    pytest.param(
      "open(__file__ + 'x', 'w').write('a' * 99999)", marks=ONLY_LINUX
    ),
  ],
)
def test_a_worker_that_exceeds_its_limits_or_fails_gives_nothing(
  code, tmp_path
):
  assert _run(tmp_path, f"{code}\njson.dump(1, sys.stdout)") is None


def test_a_worker_that_takes_too_long_gives_nothing(tmp_path):
  def run(name, code):
    code += "\njson.dump(1, sys.stdout)"
    return _run(tmp_path / name, code, time_s=1)

  codes = ("while True: pass", "import time; time.sleep(99)")
  with futures.ThreadPoolExecutor() as pool:  # each takes its second
    assert [*pool.map(run, "ab", codes)] == [None, None]
