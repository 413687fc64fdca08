"""Pages of runs and evaluations: each kind's own, and all numbers of any."""

import json

import numpy as np
import pytest
import view_files

import prm_jax
from prm_jax import errors
from prm_jax.cli import main
from prm_jax.evaluation import evaluate
from prm_jax.evaluation import results as results_lib
from prm_jax.evaluation import tables
from prm_jax.runtime import files
from prm_jax.view import view_inputs
from prm_jax.view import view_pages

RESULTS = dict(auroc=0.75, run=dict(evaluated=dict(kind="Unheard of")))


def titles(page):
  return [x.title for x in page.sections]


def panels(page):
  return {p.title: p for x in page.sections for p in x.panels}


# --- Runs -------------------------------------------------------------------


def test_a_runs_metrics_are_means_of_what_is_known_and_few():
  records = [
    dict(step=i, kind="train", a=float(i), b=None) for i in range(1_000)
  ]
  records += [dict(step=999, kind="eval", a=7.0, z=float("nan"))]
  page = view_pages.of_run(records, {})
  assert "the mean of up to 6 records" in page.sections[0].text
  shown = panels(page)
  train, held_out = shown["a"].lines
  assert [x for x in shown if shown[x].lines] == ["a"]
  assert (train.label, held_out.label) == ("train", "eval")
  assert (held_out.x, held_out.y) == ((999,), (7,))
  assert len(train.x) == view_pages.MAX_POINTS and train.x == train.y
  assert train.x[0] == 2 and (train.low[0], train.high[0]) == (0, 4)


def test_a_run_without_a_number_says_so():
  page = view_pages.of_run([dict(step=1, kind="train", a=None)], {})
  assert "no number yet" in page.lead and not page.sections


def test_a_run_of_rl_has_its_page_and_all_metrics_below(tmp_path):
  records = [
    dict(step=k, kind="train", accuracy=k / 9, sampled_tokens=9.0, unknown=1.0)
    for k in (1, 2)
  ]
  view_files.write(tmp_path / "metrics.jsonl", *records)
  details = dict(command="prm-jax train", config=dict(seed=7))
  (tmp_path / "environment.json").write_text(json.dumps(details))
  page = view_pages.of_run(*view_inputs.read([tmp_path]).runs[tmp_path.name])
  assert page.title == "A policy after 2 updates · seed 7"
  assert titles(page)[-2:] == ["How it was made", "All metrics"]
  assert page.sections[-1].is_folded and "unknown" in panels(page)


@pytest.mark.parametrize(
  "numbers", [{}, dict(n=[], accuracy=dict(prm=[]), interval=dict(prm=[]))]
)
def test_results_of_nothing_say_so(numbers):
  results = numbers | dict(
    run=dict(evaluated=dict(kind="BestOfN")), scored_by=dict(step=1)
  )
  page = view_pages.of_evaluation(results_lib.Evaluation(results, []))
  assert "nothing was evaluated" in page.lead
  assert not panels(page)


@pytest.mark.parametrize(
  "config",
  [
    dict(monitor=dict(action="sing")),
    dict(monitor=[1]),
    dict(problems="all"),
    dict(rewards=dict(prm="much")),
  ],
)
def test_a_config_of_something_else_leaves_the_metrics(config):
  records = [dict(step=1, kind="train", accuracy=0.5, sampled_tokens=9.0)]
  page = view_pages.of_run(records, dict(config=config))
  assert page.lead.startswith("Only its metrics are shown: ")
  assert titles(page) == ["All metrics", "How it was made"]
  assert not page.sections[0].is_folded


@pytest.mark.parametrize("value", ["much", True, [1.0]])
def test_a_metric_that_is_no_number_is_refused(tmp_path, value):
  path = view_files.write(
    tmp_path / "metrics.jsonl", dict(step=1, kind="train", loss_nats=value)
  )
  with pytest.raises(errors.InputError, match=r"metrics.jsonl:1: loss_nats"):
    view_inputs.read([path])


# --- Evaluations ------------------------------------------------------------


def evaluated(tmp_path):
  """Writes the results of `eval steps`, with samples; returns their path."""
  random = np.random.default_rng(0)
  ids = [str(i) for i in range(40)]
  given = view_files.write(
    tmp_path / "in" / "solutions.jsonl",
    *(
      view_files.solution(x, labels=[1.0, i % 2, 0.0])
      for i, x in enumerate(ids)
    ),
  )
  scores = view_files.write(
    tmp_path / "in" / "scores.jsonl",
    *(dict(id=x, step_scores=random.random(3).tolist()) for x in ids),
  )
  output = tmp_path / "results.json"
  job = evaluate.SolutionsJob(input=given, output=output)
  prm_jax.EvaluateSteps(scores=scores).run(job)
  return output


def page_of(path):
  (found,) = view_inputs.read([path]).evaluations.values()
  return view_pages.of_evaluation(found)


def test_an_evaluation_has_its_pictures_its_table_and_all_numbers(tmp_path):
  path = evaluated(tmp_path)
  page = page_of(path)
  assert titles(page) == ["Results", "How it was made", "All numbers"]
  assert [*panels(page)] == [
    "Calibration",
    "ROC: wrong steps found by a low score",
    "First errors by position",
  ]
  table = tables.texts(page.sections[0].table)
  results = files.read_json(path)
  assert table[1][0] == "model"
  assert table[1][1].startswith(f"{results['auroc']:.4f} [")
  told = {x.name: x.text for x in page.sections[-1].facts}
  assert told["auroc"] == f"{results['auroc']:.6g}"
  assert page.sections[-1].is_folded


def test_without_the_samples_that_it_was_written_with_the_table_stays(tmp_path):
  path = evaluated(tmp_path)
  samples = tmp_path / "samples.jsonl"
  samples.write_text(samples.read_text() + "\n")
  page = page_of(path)
  assert not panels(page) and "aren't beside it" in page.sections[0].note
  assert len(page.sections[0].table.rows) > 1


def test_results_that_lack_something_are_shown_as_their_numbers(tmp_path):
  path = evaluated(tmp_path)
  results = files.read_json(path)
  del results["reliability"]
  path.write_text(json.dumps(results))
  page = page_of(path)
  assert page.lead == "Only their numbers are shown: they lack 'reliability'."
  assert titles(page) == ["How it was made", "All numbers"]


def test_processbench_has_its_pictures_and_its_table_also_of_a_part(tmp_path):
  """And the command writes both for a part of the solutions."""
  random = np.random.default_rng(0)
  rows = [
    view_files.solution(
      str(i), label=i % 4 - 1, subset="gsm8k", steps=["a", "b", "c"]
    )
    | dict(step_scores=random.random(3).tolist())
    for i in range(60)
  ]
  scores = view_files.write(tmp_path / "in" / "gsm8k.jsonl", *rows)
  output = tmp_path / "results.json"
  command = ["eval", "processbench", f"--scores={scores}", "--limit=40"]
  command += [f"--output={output}", f"--table={tmp_path / 't.md'}"]
  assert main.main(command) == 0
  assert "model, fixed: gsm8k" in (tmp_path / "t.md").read_text()
  page = page_of(output)
  assert not page.lead
  assert [*panels(page)] == [
    "F1 against the threshold",
    "First errors by position",
  ]
  table = tables.texts(page.sections[0].table)
  f1 = files.read_json(output)["model"]["fixed"]["subsets"]["gsm8k"]["f1"]
  assert table[1][2].startswith(f"{100 * f1:.1f}")


@pytest.mark.parametrize(
  "run",
  [dict(evaluated=dict(kind="Unheard of")), dict(evaluated=[]), 3, dict()],
)
def test_results_of_an_unknown_kind_are_shown_as_their_numbers(tmp_path, run):
  path = tmp_path / "results.json"
  path.write_text(json.dumps(dict(auroc=0.75, run=run)))
  page = page_of(path)
  assert "name no evaluation of this version" in page.lead
  assert page.sections[-1].title == "All numbers"
  assert [(x.name, x.text) for x in page.sections[-1].facts] == [
    ("auroc", "0.75")
  ]


def test_a_kind_that_is_no_name_is_said(tmp_path):
  path = tmp_path / "results.json"
  run = dict(evaluated=dict(kind=["Steps"]))
  path.write_text(json.dumps(dict(auroc=0.75, run=run)))
  assert page_of(path).lead.startswith("Only their numbers are shown")
