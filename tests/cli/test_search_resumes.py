"""A search that was stopped anywhere writes the bytes of one that wasn't.

Its PRM has random weights and the cache of a real one. So the last digits of a
score show if anything outlives a batch.
"""

import contextlib
import functools
import json

import numpy as np
import pytest
import random_models

from prm_jax.cli import main
from prm_jax.scoring import prefix_shapes
from prm_jax.scoring import score_sources
from prm_jax.search import search_models as search_models
from prm_jax.search import writers
from prm_jax.testbed import arithmetic
from prm_jax.testbed import arithmetic_policy

CALIBRATION = dict(intercept=0.5, slope=0.1, quantile=0.1)
# chunk_guidance has imported policies: huggingface/test_search_published.py.
COMMANDS = dict(
  best_of_n=["--num=3"],
  beam=["--keep=2", "--expand=2"],
  dvts=["--trees=2", "--expand=2"],
  rebase=["--width=3"],
  particle_filter=["--num=3"],
  mcts=["--simulations=2", "--expand=2"],
  reject_resample=["--attempts=2", "--threshold=0.6"],
  speculate=["--draft=weak", "--threshold=0.6"],
  adaptive_best_of_n=["--pilot=2", "--most=4", "--calibration=fitted.json"],
  verify=["--attempts=3", "--threshold=0.6"],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Returns a folder with prm/, problems and a calibration."""
  where = random_models.write(tmp_path_factory.mktemp("models"), 256)
  made = arithmetic.problems(
    5, "test", arithmetic.Task(max_turns=4), np.random.default_rng(0)
  )
  (where / "problems.jsonl").write_text(
    "".join(
      json.dumps(dict(id=p.id, problem=p.problem, answer=p.answer)) + "\n"
      for p in made
    )
  )
  (where / "fitted.json").write_text(json.dumps(dict(calibration=CALIBRATION)))
  return where


_load = functools.cache(score_sources.load)


@pytest.fixture(autouse=True)
def annotators(monkeypatch, folder):
  """Puts the annotator in the place of policies; "weak" slips more often."""

  @contextlib.contextmanager
  def opened(of, how, replies, counts):
    del replies, counts
    slips = dict(slip_shift=0.5) if of.source == "weak" else {}
    annotator = arithmetic_policy.Annotator(arithmetic.Task(**slips), how.seed)
    yield (
      search_models.Policy(
        *(annotator.step, annotator.whole, annotator.step, annotator.encode)
      ),
      dict(policy=of.source, seed=how.seed),
    )

  monkeypatch.setattr(writers, "opened", opened)
  # For time: few programs are compiled, and the PRM is read once.
  monkeypatch.setattr(prefix_shapes, "_LEAST_TOKENS", 64)
  monkeypatch.setattr(prefix_shapes, "_ROWS", (4, 1))
  monkeypatch.setattr(score_sources, "load", _load)
  monkeypatch.chdir(folder)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_search_cut_anywhere_resumes_to_the_same_bytes(
  name, tmp_path, capsys
):
  output = tmp_path / "found.jsonl"
  words = ("verify", "run") if name == "verify" else ("search", name)
  argv = [
    *(*words, "--policy=strong", "--scorer=prm", "--input=problems.jsonl"),
    *(f"--output={output}", "--batch=2", "--cache_tokens=4096"),
    *COMMANDS[name],
  ]

  def run():
    assert main.main(argv) == 0
    return output.read_bytes()

  whole = run()
  journal = tmp_path / "found.jsonl.journal"
  head, first, second, _ = journal.read_bytes().splitlines(keepends=True)
  for kept in ([first], [first, second[:40]], [first, second]):
    output.unlink()
    journal.write_bytes(b"".join([head, *kept]))
    assert run() == whole
    done = 2 * len([x for x in kept if x.endswith(b"\n")])
    assert f"resumes after {done} problems" in capsys.readouterr().out
