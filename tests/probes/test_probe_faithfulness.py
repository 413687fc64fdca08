"""The command: a line for each solution, a table, and a resume."""

import dataclasses
import json

import pytest
import random_models

from prm_jax import errors
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.probes import faithfulness
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


def test_a_probe_that_does_not_exist_is_refused():
  with pytest.raises(
    errors.InputError, match="no such probe; give one of earl"
  ):
    probe_faithfulness.ProbeFaithfulness(policy="x", probe=("nope",))


def test_what_was_probed_is_not_probed_again(folder, tmp_path, capsys):
  probed = dataclasses.replace(
    SOLUTIONS[1], extra=dict(faithfulness=dict(skipped="no_answer"))
  )
  jsonl.write_solutions(tmp_path / "in.jsonl", [SOLUTIONS[0], probed])
  words = _words(folder, tmp_path / "out.jsonl")
  words[3] = f"--input={tmp_path}/in.jsonl"
  assert main.main(words) == 1
  (line,) = capsys.readouterr().err.splitlines()
  assert "in.jsonl: solution 's1' was probed already" in line
  assert not (tmp_path / "out.jsonl").exists()


def test_a_run_that_was_killed_goes_on_and_writes_the_same_bytes(
  folder, tmp_path, monkeypatch, capsys
):
  probed: list[str] = []

  def probe(solutions, policy, options):
    if len(probed) == stops_at:
      raise KeyboardInterrupt
    probed.extend(s.id for s in solutions)
    return [dict(skipped=f"no_answer_{s.id}") for s in solutions]

  monkeypatch.setattr(faithfulness, "probe", probe)
  stops_at = 2
  words = _words(folder, tmp_path / "out.jsonl", "--batch=1")
  assert main.main(words) != 0
  assert not (tmp_path / "out.jsonl").exists()
  stops_at = None
  assert main.main(words) == 0
  assert probed == ["s0", "s1", "s2"]
  assert "resumes after 2" in capsys.readouterr().out
  again = _words(folder, tmp_path / "again.jsonl", "--batch=3")
  assert main.main(again) == 0
  written = (tmp_path / "again.jsonl").read_bytes()
  assert (tmp_path / "out.jsonl").read_bytes() == written


def test_another_reward_model_is_no_resume(
  folder, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(
    faithfulness, "probe", lambda s, *_: [dict(skipped="no_answer")] * len(s)
  )
  words = _words(folder, tmp_path / "out.jsonl")
  assert main.main(words) == 0
  capsys.readouterr()
  assert main.main([*words, f"--checkpoint={folder}/prm"]) == 1
  (line,) = capsys.readouterr().err.splitlines()
  assert "out.jsonl" in line and "scored_by" in line


def test_a_right_answer_that_is_no_text_is_refused(folder, tmp_path, capsys):
  wrong = dataclasses.replace(SOLUTIONS[0], extra=dict(reference_answer=5))
  jsonl.write_solutions(tmp_path / "in.jsonl", [wrong])
  words = _words(folder, tmp_path / "out.jsonl")
  words[3] = f"--input={tmp_path}/in.jsonl"
  assert main.main(words) == 1
  (line,) = capsys.readouterr().err.splitlines()
  assert "solution 's0': \"reference_answer\" must be str, found int" in line
