"""The samples of all files: each is there once, with what is known of it."""

import itertools
import json
import math

import hostile_json
import pytest
import view_files

import prm_jax
from prm_jax import errors
from prm_jax import schema
from prm_jax.evaluation import judgement
from prm_jax.runtime import checked_lines
from prm_jax.view import site
from prm_jax.view import view_inputs
from prm_jax.view import view_samples


def shown(*paths):
  """Returns {key: (row, content)} of the samples of files."""
  samples = view_samples.build(view_inputs.read(paths))
  source, names = view_samples.truth(samples), view_samples.models(samples)
  rows = [view_samples.row(x, source, names) for x in samples]
  contents = [view_samples.content(x, source) for x in samples]
  for row, verdicts in zip(rows, (x["verdicts"] for x in rows)):
    row["verdict"] = dict(zip(names, verdicts))
  made = {r["key"]: (r, c) for r, c in zip(rows, contents, strict=True)}
  assert len(made) == len(samples)
  json.dumps([rows, contents], allow_nan=False)
  return made


def test_every_kind_of_file_in_a_folder_is_found_and_others_are_left_out(
  tmp_path,
):
  inputs = view_inputs.read([view_files.folder(tmp_path / "f")])
  assert {k: len(x) for k, x in inputs.solutions.items()} == {"solutions": 5}
  assert {k: len(x) for k, x in inputs.scores.items()} == {"a_scores": 5}
  assert {k: len(x.records) for k, x in inputs.runs.items()} == {"run": 4}
  assert [*inputs.evaluations] == ["other"]


def test_each_sample_is_there_once_with_the_models_judgement(tmp_path):
  found = shown(view_files.folder(tmp_path))
  assert [*found] == [*view_files.SCORES, "bare", "alone"]
  for name, scores in view_files.SCORES.items():
    row, content = found[name]
    assert row["verdict"] == {"a_scores": name}
    assert row["least"] == [min(scores)]
    assert content["steps"] == ["so", "then", "now"]
    assert content["truth"] == [True, False, None]
    assert content["models"][0]["scores"] == scores
    assert content["files"] == ["solutions", "a_scores"]
    assert row["lucky"] == (name == "missed")
  assert not found["bare"][0]["labelled"] and found["bare"][1]["models"] == []
  assert found["alone"][1]["steps"] == ["", ""]
  assert found["alone"][0]["verdict"] == {"a_scores": "no_label"}


def test_flags_are_those_of_an_oracle(tmp_path):
  """Every combination of two models and two sources, told by other means."""
  values = [*itertools.product([0.1, 0.9], repeat=2)]
  cases = [*itertools.product(values, values, [(1, 0), (1, 1), (0, None)])]
  ids = [str(i) for i in range(len(cases))]
  view_files.write(
    tmp_path / "s.jsonl",
    *(
      view_files.solution(i, steps=["a", "b"], labels=x, outcome=True)
      for i, (*_, x) in zip(ids, cases)
    ),
  )
  view_files.write(
    tmp_path / "t.jsonl",
    *(view_files.solution(i, steps=["a", "b"], labels=[1, None]) for i in ids),
  )
  for at, name in enumerate(["x", "y"]):
    view_files.write(
      tmp_path / f"{name}.jsonl",
      *(dict(id=i, step_scores=c[at]) for i, c in zip(ids, cases)),
    )
  found = shown(tmp_path)
  for i, (x, y, labels) in zip(ids, cases, strict=True):
    row = found[i][0]
    wrong = [j for j in (0, 1) if labels[j] == 0]
    assert row["lucky"] == bool(wrong)
    assert row["labels_disagree"] == (labels[0] == 0)
    assert row["models_disagree"] == (x != y)
    for name, scores in (("x", x), ("y", y)):
      doubted = [j for j in (0, 1) if scores[j] < 0.5]
      if wrong[:1] == doubted[:1]:
        expected = {"no_error", "first_error"}
      elif not doubted or (wrong and wrong[0] < doubted[0]):
        expected = {"missed", "late_alarm"}
      else:
        expected = {"false_alarm", "early_alarm"}
      assert row["verdict"][name] in expected, (labels, scores)


def test_a_step_that_a_model_doesnt_judge_is_neither_doubted_nor_missed():
  unjudged = judgement.judge([1, 0], [0.1, 0.9], judged=[False, False])
  assert (unjudged.name, unjudged.kind) == ("unjudged", "open")
  early = judgement.judge([1, 0], [0.1, 0.1], judged=[True, False])
  assert early.name == "early_alarm"
  assert (
    judgement.judge([1, 1], [0.1, 0.9], judged=[False, True]).name == "no_error"
  )


def test_scores_belong_to_the_solution_in_the_nearest_folder(tmp_path):
  for name, steps in (("a", ["1", "2"]), ("b", ["3", "4"])):
    view_files.write(
      tmp_path / name / "s.jsonl", view_files.solution("x", steps=steps)
    )
  view_files.write(
    tmp_path / "b" / "scores.jsonl", dict(id="x", step_scores=[0.5, 0.5])
  )
  found = shown(tmp_path)
  assert [*found] == ["x (a/s)", "x (b/s)"]
  assert not found["x (a/s)"][1]["models"] and found["x (b/s)"][1]["models"]


def test_scores_of_other_steps_are_a_sample_of_their_own(tmp_path):
  view_files.write(tmp_path / "s.jsonl", view_files.solution("x"))
  scores = [dict(id="x", step_scores=[0.5]), dict(id="x", step_scores=[0.5, 1])]
  for i, record in enumerate(scores):
    view_files.write(tmp_path / f"{i}.jsonl", record)
  assert {k: len(c["steps"]) for k, (_, c) in shown(tmp_path).items()} == {
    "x (s)": 3,
    "x (0)": 1,
    "x (1)": 2,
  }


def test_several_models_of_one_record_are_models_each(tmp_path):
  view_files.write(
    tmp_path / "demo.jsonl",
    view_files.solution(
      "x",
      step_scores=dict(prm=[0.9, 0.1, 0.5], orm=[1, 1, 1]),
      judged=dict(prm=[True, True, False]),
    ),
    view_files.solution(
      "z", a_score=[0.5, 1, 0], scores_before=[0.5], share=[0, 0, 1]
    ),
  )
  view_files.write(
    tmp_path / "published.jsonl",
    dict(id="y", label=1, one=[0.5, 0.25], two=[1, 0], three=[3, 4], tags=[]),
  )
  found = shown(tmp_path)
  assert found["x"][1]["models"][0]["judged"] == [True, True, False]
  assert [x["name"] for x in found["x"][1]["models"]] == ["prm", "orm"]
  assert [x["name"] for x in found["z"][1]["models"]] == ["a_score"]
  models = [x["name"] for x in found["y"][1]["models"]]
  assert models == ["published: one", "published: two"]
  assert found["y"][1]["truth"] == [True, False]


def test_annotators_of_one_solution_are_one_sample_of_several_sources(
  tmp_path,
):
  people = dict(ann=[1, 1, -1], bo=[1, -1, None])
  view_files.write(
    tmp_path / "rated.jsonl",
    *(
      view_files.solution(
        f"x/{who}", problem="p", ratings=ratings, annotator=who
      )
      for who, ratings in people.items()
    ),
  )
  ((key, (row, content)),) = shown(tmp_path).items()
  assert key == "x" and row["labels_disagree"]
  assert content["labels"] == dict(ann=[1, 1, 0], bo=[1, 0, None])
  assert content["truth"] == [True, True, False]  # ann rated more steps


def test_a_conversation_is_shown_with_what_came_between_its_turns(tmp_path):
  messages = [
    dict(role="user", content="find it"),
    dict(role="assistant", content="I look"),
    dict(role="user", content="nothing?"),
    dict(role="assistant", content="not there"),
  ]
  view_files.write(tmp_path / "t.jsonl", dict(id="x", messages=messages))
  ((_, content),) = shown(tmp_path).values()
  assert content["steps"] == ["I look", "not there"]
  assert content["messages"][2] == ["user", "nothing?"]


def test_samples_of_an_rl_run_have_their_update_and_the_prms_scores(tmp_path):
  record = dict(
    step=4,
    id="x",
    problem="p",
    steps=["a", "b"],
    right=True,
    prm=[0.9, 0.2],
    prm_judged=[True, True],
    exact=[1.0, 0.0],
    total_return=0.5,
    counts=True,
  )
  later = record | dict(step=5, prm=[0.5], exact=None)
  path = tmp_path / "samples.jsonl"
  path.write_text(
    "".join(checked_lines.line_of(json.dumps(x)) for x in (record, later))
  )
  found = shown(path)
  assert [*found] == ["x, update 5", "x, update 6"]
  row, content = found["x, update 5"]
  assert row["source"] == "update 5" and row["lucky"]
  assert row["verdict"] == dict(prm="first_error")
  assert ["total_return", "0.5"] in content["facts"]
  assert ["prm_of_its_own_steps", "[0.5]"] in found["x, update 6"][1]["facts"]
  damaged = path.read_text().replace("0.9", "0.8")
  path.write_text(damaged)
  with pytest.raises(errors.InputError, match=r"samples.jsonl:1: damaged"):
    shown(path)


KINDS = dict(
  solution=view_files.solution(
    "x", labels=[1, 0.5, None], outcome=True, judged=[True] * 3,
    step_scores=[0.5, 1, 0], other=dict(a=[1]), annotator="me",
  ),
  several=view_files.solution("x", step_scores=dict(a=[0, 1, 1]), judged=dict(a=[True] * 3)),
  scores=dict(id="x", step_scores=[0.5], step_logits=[0.0], judged=[True]),
  published=dict(id="x", label=0, mine=[0.5, 0.5], steps=["a", "b"], problem=None),
  sample=dict(
    step=1, id="x", problem="p", steps=["a"], right=None, prm=[0.5],
    prm_judged=[True], exact=[1.0], total_return=1.0, counts=True,
  ),
  metrics=dict(step=1, kind="train", loss=0.5, time_s=None),
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_any_record_is_shown_or_refused_in_one_line(tmp_path, kind):
  from prm_jax.view import site

  path = tmp_path / "file.jsonl"
  refused = num = 0
  for _, changed in hostile_json.variants(KINDS[kind]):
    if not isinstance(changed, dict):
      continue
    view_files.write(path, KINDS[kind] | dict(id="other"), changed)
    num += 1
    try:
      view_files.window(site.pages(view_inputs.read([path])))
    except errors.InputError as e:
      assert len(str(e).splitlines()) == 1
      assert str(e).startswith(str(path))
      refused += 1
  assert num > 40 and refused > 0


def test_a_damaged_file_is_named_with_its_line(tmp_path):
  folder = view_files.folder(tmp_path)
  for name, line in (("solutions", 6), ("a_scores", 6), ("run/metrics", 5)):
    path = folder / f"{name}.jsonl"
    before = path.read_text()
    path.write_text(f'{before}{{"id": \n')
    with pytest.raises(prm_jax.InputError, match=f"{path}:{line}: "):
      view_inputs.read([folder])
    path.write_text(before)
  (folder / "b_results.json").write_text('{"auroc":')
  with pytest.raises(prm_jax.InputError, match=r"b_results\.json"):
    view_inputs.read([folder])


def test_nothing_to_show_is_said(tmp_path):
  (tmp_path / "empty.jsonl").write_text("")
  problems = view_files.write(tmp_path / "p.jsonl", dict(id="p", problem="x"))
  for path in (tmp_path, problems, tmp_path / "empty.jsonl"):
    with pytest.raises(errors.InputError, match="nothing to show"):
      view_inputs.read([path])
  with pytest.raises(errors.InputError, match="no such file"):
    view_inputs.read([tmp_path / "gone.jsonl"])


def test_a_label_is_what_the_record_says():
  def of(**fields):
    return view_samples.labels_of(
      schema.Solution("x", "p", ("a", "b"), **fields)
    )

  assert of() is None
  assert of(labels=(0.25, None)) == (0.25, None)
  assert of(ratings=(0, -1), labels=(1.0, 1.0)) == (0.5, 0.0)
  path = dict(path_ratings=[1, -1])
  assert of(ratings=(None, 1), extra=path) == (1.0, 1.0)
  assert of(extra=dict(label=-1)) == (1.0, 1.0)
  assert of(extra=dict(label=0)) == (0.0, None)
  assert of(extra=dict(label=2)) is None and of(extra=dict(label="0")) is None


def test_scores_that_round_to_1_bring_their_log_odds(tmp_path):
  """Of one model and of several, in solutions and in scores alone."""
  several = dict(
    step_scores=dict(prm=[0.5, 1.0], orm=[0.25, 0.75]),
    step_logits=dict(prm=[0.0, 18.0], orm=[-1.1, 1.1]),
  )
  view_files.write(
    tmp_path / "s.jsonl",
    view_files.solution("a", steps=["so", "then"], **several),
    view_files.solution(
      "b", steps=["so"], step_scores=[1.0], step_logits=["18"]
    ),
  )
  odds = math.log(4)
  view_files.write(
    tmp_path / "c_scores.jsonl",
    dict(id="c", step_scores=[1.0, 0.8], step_logits=[40.0, odds]),
  )
  made = site.pages(view_inputs.read([tmp_path]))
  _, items = view_files.window(made)
  found = {
    x["name"]: x["logits"] for y in items["samples"] for x in y["models"]
  }
  assert found == {
    "prm": [0.0, 18.0],
    "orm": None,
    "s": None,
    "c_scores": [40.0, odds],
  }
