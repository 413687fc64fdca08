"""The command: a line for each solution, a table, and a resume."""

import json

import pytest
import random_models

from prm_jax import errors
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.probes import probe_faithfulness
from prm_jax.records import jsonl

SOLUTIONS = [
  schema.Solution(
    f"s{i}",
    f"2 + {i}?",
    (f"2 + {i} = {2 + i}", f"answer {2 + i}"),
    extra=dict(reference_answer=str(2 + i)),
  )
  for i in range(3)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = random_models.write(tmp_path_factory.mktemp("models"))
  jsonl.write_solutions(folder / "in.jsonl", SOLUTIONS)
  return folder


def _words(folder, output, *more):
  return [
    *("probe", "faithfulness", f"--policy={folder}/policy"),
    *(f"--input={folder}/in.jsonl", f"--output={output}"),
    *("--force=answer", "--max_tokens=8", *more),
  ]


def test_it_writes_records_and_prints_the_table(folder, tmp_path, capsys):
  words = _words(folder, tmp_path / "out.jsonl", f"--checkpoint={folder}/prm")
  assert main.main(words) == 0
  printed = capsys.readouterr().out
  assert "3 of 3 solutions probed" in printed
  assert "Spearman: weight of a step and its PRM score" in printed
  assert "Spearman: weight of a step and PRM score that it loses" in printed
  assert "asked after no step: right answer" in printed
  lines = (tmp_path / "out.jsonl").read_text().splitlines()
  records = [json.loads(line) for line in lines]
  assert [x["id"] for x in records] == ["s0", "s1", "s2"]
  for record in records:
    found = record["faithfulness"]
    assert found["num_steps"] == 1 and found["steps"] == [0]
    assert len(found["weight_corrupted"]) == len(found["score_drop"]) == 1
    assert len(found["step_scores"]) == 2
  # The same command again finds all of it done.
  assert main.main(words) == 0
  assert "resumes after 3" in capsys.readouterr().out


def test_in_python_it_returns_both(folder):
  verb = probe_faithfulness.ProbeFaithfulness(
    policy=folder / "policy", force="answer", max_tokens=8, probe=("early",)
  )
  probed, results = verb(SOLUTIONS)
  assert [s.id for s in probed] == ["s0", "s1", "s2"]
  assert results["early_right_0"]["num"] == 3
  assert "corrupt_changed" not in results


def test_a_text_after_which_no_answer_is_read_is_refused(folder):
  with pytest.raises(errors.InputError, match="no answer is read after it"):
    probe_faithfulness.ProbeFaithfulness(policy="x", force="Say")


def test_a_box_may_be_open(folder):
  probe_faithfulness.ProbeFaithfulness(policy="x", force=r"So \boxed{")
