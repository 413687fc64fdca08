"""Score files of others: any field of scores, with or without their labels."""

import json
import logging

import pytest

import prm_jax
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.evaluation import evaluate_processbench
from prm_jax.evaluation import labelled_scores
from prm_jax.evaluation import result_tables
from prm_jax.jobs import step_scores as step_scores_lib
from prm_jax.runtime import files

ROWS = [
  dict(id="g0", subset="gsm8k", label=-1, num_steps=2, a=[0.9, 0.4], b=[1, 1]),
  dict(id="g1", subset="gsm8k", label=1, num_steps=2, a=[0.9, 0.2], b=[1, 1]),
  dict(id="m0", subset="math", label=0, num_steps=1, a=[0.3], b=[0]),
  dict(id="m1", subset="math", label=-1, num_steps=1, a=[0.8], b=[1]),
]


@pytest.fixture
def path(tmp_path, monkeypatch):
  """A file of labelled scores, in the current folder."""
  monkeypatch.chdir(tmp_path)
  files.write_records("scores.jsonl", ROWS)
  return "scores.jsonl"


def _evaluate(path="scores.jsonl", *, field=None, inputs=(), **job):
  verb = prm_jax.EvaluateProcessBench(scores=path, field=field)
  verb.run(evaluate_processbench.ProcessBenchJob(inputs, fresh=True, **job))
  return files.read_json("results.json")


def _fixed(results):
  found = results["model"]["fixed"]
  return {name: x["f1"] for name, x in found["subsets"].items()}


def test_scores_with_labels_are_evaluated_without_the_solutions(path):
  results = _evaluate()
  # At 0.5: g0 is a false alarm, g1 found; m0 found, m1 right.
  assert _fixed(results) == dict(gsm8k=0.0, math=1.0)
  assert results["model"]["fixed"]["mean_f1"] == 0.5
  tuned = results["model"]["tuned"]["subsets"]["math"]
  assert 0.2 < tuned["threshold"] <= 0.4
  # The length of a step that isn't there isn't measured.
  assert {*results} >= {"everything_right", "step_index"}
  assert "step_length" not in results
  assert "-" in result_tables.processbench_table(
    {k: x for k, x in results.items() if k not in ("run", "limit")}
  )
  ids = [x["id"] for _, x in files.read_records("samples.jsonl")]
  assert ids == [row["id"] for row in ROWS]


def test_the_first_field_of_scores_is_used_and_said(path, caplog):
  caplog.set_level(logging.INFO, "prm_jax")
  assert _evaluate()["scored_by"]["field"] == "a"
  said = "scores.jsonl: the scores are those of 'a'; `field` takes another of b"
  assert caplog.text.count(said) == 1
  results = _evaluate(field="b")
  assert results["scored_by"]["field"] == "b"
  assert _fixed(results)["math"] == 1.0
  # Our own come first, and lists of labels aren't scores.
  rows = [dict(labels=[1] * len(x["a"]), step_scores=x["b"]) | x for x in ROWS]
  files.write_records(path, rows)
  assert "field" not in _evaluate()["scored_by"]
  files.write_records(path, [dict(labels=[1, 0]) | x for x in ROWS])
  assert _evaluate()["scored_by"]["field"] == "a"


def test_texts_problems_and_outcomes_are_used_if_they_are_there(path):
  more = dict(problem="p", final_answer_correct=True)
  rows = [x | more | dict(steps=["s"] * x["num_steps"]) for x in ROWS]
  files.write_records(path, rows)
  results = _evaluate()
  assert "step_length" in results
  lucky = results["model"]["fixed"]["subsets"]["math"]
  assert lucky["right_answer_wrong_process"]["num"] == 1
  (solution, _) = labelled_scores.read(path)["gsm8k"]
  assert (solution.problem, solution.outcome) == ("p", True)


def test_scores_without_a_subset_are_of_the_one_their_file_is_named_after(path):
  rows = [{k: v for k, v in x.items() if k != "subset"} for x in ROWS]
  for name in ("omnimath.jsonl", "omnimath.json"):
    text = "\n".join(map(json.dumps, rows))
    listed = json.dumps(rows)
    with open(name, "w") as f:
      f.write(listed if name.endswith(".json") else text)
    assert {k: len(x) for k, x in labelled_scores.read(name).items()} == dict(
      omnimath=4
    )


def test_labels_are_joined_by_id_if_the_solutions_are_given(path):
  keys = ("id", "num_steps", "a", "b")
  files.write_records(path, [{k: x[k] for k in keys} for x in ROWS[::-1]])
  inputs = []
  for name in ("gsm8k", "math"):
    solutions = [
      dict(id=x["id"], problem=x["id"], steps=["s"] * x["num_steps"])
      | dict(label=x["label"])
      for x in ROWS
      if x["subset"] == name
    ]
    with open(f"{name}.json", "w") as f:
      json.dump(solutions, f)
    inputs.append(f"{name}={name}.json")
  assert _fixed(_evaluate(inputs=tuple(inputs))) == dict(gsm8k=0.0, math=1.0)
  with pytest.raises(prm_jax.InputError, match='jsonl:1: has no "label"'):
    _evaluate()


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (dict(label=None), ':2: has no "label", the first wrong step from 0'),
    (dict(label=2), ':2: "label" is 2 for 2 steps'),
    (dict(label="1"), ':2: field "label" must be int, found str'),
    (dict(num_steps=3), ":2: 2 scores for 3 steps"),
    (dict(steps=["one"]), ":2: 2 scores for 1 steps"),
    (dict(a=[0.5]), ":2: 1 scores for 2 steps"),
    (dict(a=[0.5, 1.5]), ':2: "a"[1] is 1.5; expected P(correct so far)'),
    (dict(a=[0.5, True]), ':2: "a"[1] is True'),
    (dict(a=None), ':2: field "a" is null'),
    (dict(id=None), ':2: field "id" is null'),
    (dict(id="g0"), ":2: \"id\" 'g0' was used at scores.jsonl:1 already"),
  ],
)
def test_a_record_that_doesnt_fit_is_refused_by_its_line(path, change, message):
  files.write_records(path, [ROWS[0], ROWS[1] | change, *ROWS[2:]])
  with pytest.raises(prm_jax.InputError) as caught:
    _evaluate()
  assert str(caught.value).startswith(f"{path}{message}")


def test_scores_that_arent_numbers_or_arent_there_are_refused(path, tmp_path):
  text = (tmp_path / path).read_text()
  (tmp_path / path).write_text(text.replace("0.2", "NaN"))
  with pytest.raises(prm_jax.InputError, match=r"scores\.jsonl:2: .*NaN"):
    _evaluate()
  files.write_records(path, [dict(id="a", label=-1, note="x", labels=[1])])
  with pytest.raises(prm_jax.InputError, match=":1: no field has a list of sc"):
    _evaluate()
  files.write_records(path, ROWS)
  with pytest.raises(prm_jax.InputError, match="no such field; it has a, b"):
    _evaluate(field="c")
  with pytest.raises(prm_jax.InputError, match="give `scores`"):
    step_scores_lib.Source(field="c")
  files.write_records(path, [])
  with pytest.raises(prm_jax.InputError, match=r"scores\.jsonl: no scores"):
    _evaluate()


def test_a_limit_is_drawn_from_each_subset(path):
  results = _evaluate(limit=1)
  sizes = [
    x["num_err"] + x["num_cor"]
    for x in results["model"]["fixed"]["subsets"].values()
  ]
  assert (sizes, results["limit"]) == ([1, 1], 1)


def test_a_checkpoint_needs_the_solutions(path, capsys):
  words = ["eval", "processbench", "--checkpoint=runs/none"]
  assert main.main(words) == 1
  assert "give --input, SUBSET=FILE of each subset" in capsys.readouterr().err


def test_other_evaluations_take_such_scores_too(path):
  solutions = [
    schema.Solution(x["id"], x["id"], ("s",) * x["num_steps"], labels=labels)
    for x, labels in zip(ROWS, [(1, 1), (1, 0), (0,), (1,)])
  ]
  found = prm_jax.EvaluateSteps(scores=path, field="a")(solutions)
  assert [x["step_scores"] for x in found.samples] == [x["a"] for x in ROWS]


@pytest.mark.real_data
@pytest.mark.parametrize(
  ("field", "f1"),
  [(None, 0.7306), ("skywork_o1_open_prm_7b", 0.3926)],
)
def test_published_scores_have_their_published_f1(
  field, f1, public_data, tmp_path, monkeypatch
):
  """Qwen2.5-Math-PRM-7B and Skywork-o1-Open-PRM-7B on all of ProcessBench."""
  monkeypatch.chdir(tmp_path)
  path = public_data("published_scores", "processbench.jsonl.gz")
  results = _evaluate(path, field=field)
  assert results["model"]["missing"] == []
  assert results["model"]["fixed"]["mean_f1"] == pytest.approx(f1, abs=5e-5)
  if field is None:
    assert results["scored_by"]["field"] == "qwen2_5_math_prm_7b"
    by_subset = [100 * x for x in _fixed(results).values()]
    assert by_subset == pytest.approx([81.8, 77.2, 66.9, 66.3], abs=0.05)
