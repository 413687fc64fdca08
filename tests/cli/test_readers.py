"""Exit 0 means that the work is done, whoever reads what a command prints.

Real processes with real pipes; tests/faults/test_lost_readers.py has long work.
"""

import json
import os
import subprocess
import sys

import pytest

from prm_jax.cli import main

COMMAND = (
  sys.executable,
  "-c",
  "import sys; from prm_jax.cli import main; sys.exit(main.command())",
)
# What a shell does with the streams of "$@".
GONE = '"$@" | true; exit ${PIPESTATUS[0]}'
BOTH_GONE = '"$@" 2>&1 | true; exit ${PIPESTATUS[0]}'
READS_ONE = '"$@" | head -1; exit ${PIPESTATUS[0]}'
CLOSED = '"$@" >&-'
BOTH_CLOSED = '"$@" >&- 2>&-'
FULL = '"$@" >/dev/full'
ERRORS_GONE = '"$@" 2>/dev/full'


def _shell(script, folder, *words):
  # true must have ended when the command begins to write.
  slow = (
    script.replace('"$@"', '{ sleep 0.3; "$@"; }')
    if "true" in script
    else script
  )
  return subprocess.run(
    ["bash", "-c", slow, "bash", *COMMAND, *words],
    cwd=folder,
    # Python would write each print at once, and hide what is held back.
    env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
    capture_output=True,
    text=True,
    timeout=120,
  )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  made = tmp_path_factory.mktemp("readers")
  row = dict(problem="1 + 1", steps=["2\x1b[2J"], labels=[1.0])
  with open(made / "in.jsonl", "w", encoding="utf-8") as f:
    for i in range(3000):
      f.write(json.dumps(dict(row, id=f"s{i}\u202e\n")) + "\n")
  return made


@pytest.mark.parametrize(
  ("script", "code"),
  [(GONE, 6), (CLOSED, 6), (FULL, 4), (ERRORS_GONE, 0), ('"$@" 2>&-', 0)],
)
def test_a_printed_result_that_is_lost_is_no_success(script, code, folder):
  ended = _shell(script, folder, "--version")
  assert ended.returncode == code, ended
  assert "Traceback" not in ended.stderr and "ignored" not in ended.stderr
  lines = ended.stderr.splitlines()
  assert len(lines) == (code == 4) and all(
    "disk" in x or "space" in x for x in lines
  )


@pytest.mark.parametrize("script", [GONE, FULL])
def test_a_refusal_keeps_its_code_if_what_was_printed_before_is_lost(
  script, folder
):
  row = dict(id="s", problem="1 + 1", steps=["2", ""], labels=[1.0, 1.0])
  (folder / "blank.jsonl").write_text(json.dumps(row) + "\n")
  ended = _shell(script, folder, "data", "doctor", "blank.jsonl")
  assert ended.returncode == 1, ended
  assert len(ended.stderr.splitlines()) == 1, ended.stderr


def test_a_reader_of_the_first_line_gets_it_and_the_rest_is_no_success(folder):
  words = ("data", "inspect", "in.jsonl", "--limit=3000")
  ended = _shell(READS_ONE, folder, *words)
  assert ended.returncode == 6 and not ended.stderr
  # Nothing in it acts on a terminal, and an id makes no second line.
  assert ended.stdout == "# s0\\u202e\\n  outcome None\n"


@pytest.mark.parametrize("script", [BOTH_GONE, BOTH_CLOSED])
def test_work_whose_result_is_a_file_is_done_without_readers(script, folder):
  output = folder / f"{len(script)}.jsonl"
  words = ("data", "convert", "in.jsonl", "--to=jsonl", f"--output={output}")
  ended = _shell(script, folder, *words)
  assert ended.returncode == 0, ended
  assert output.read_text().count("\n") == 3000
  assert all(map(json.loads, output.read_text().splitlines()))


def test_the_code_of_a_refusal_stays_if_nobody_reads_why(folder):
  for script in (ERRORS_GONE, BOTH_GONE, BOTH_CLOSED):
    assert _shell(script, folder, "nothing").returncode == 1


def test_records_that_nobody_reads_are_no_success_either(monkeypatch):
  def run(argv, parser, flags, printed):
    del argv, parser, flags
    printed.carries_result = True
    raise BrokenPipeError

  monkeypatch.setattr(main, "_run", run)
  assert main.main([]) == 6


def test_no_locale_makes_a_message_fail(folder):
  for word in (b"--n\xc3\xb6\xff\x1b=\x07\n1", "--\u202e".encode()):
    for setting in ("LC_ALL=C", "PYTHONIOENCODING=ascii", "PYTHONUTF8=1"):
      ended = subprocess.run(
        ["env", setting, *COMMAND, "data", "stats", "f", word],
        cwd=folder,
        capture_output=True,
        timeout=60,
      )
      assert ended.returncode == 1
      assert ended.stderr.startswith(b"prm-jax: unrecognized arguments: --")
      assert ended.stderr.count(b"\n") == 1
      assert not {0x1B, 0x07, 0x0D} & {*ended.stderr}
