"""The page of an RL run: what it says follows from the run's records."""

import json

import numpy as np
import pytest

from prm_jax import errors
from prm_jax.evaluation import tables
from prm_jax.reports import rl_metrics
from prm_jax.reports import rl_page
from prm_jax.rl import hacking_monitor

# Shares of right answers, and the PRM's mean score: first, middle, last.
HACKED = ((0.63, 0.73, 0.23), (0.79, 0.82, 0.88))
HEALTHY = ((0.63, 0.8, 0.93), (0.79, 0.82, 0.9))


def run(curves=HACKED, updates=100, every=10, seed=0, **more):
  """Returns the records of a run that nobody made; more: of every update."""
  random = np.random.default_rng(seed)
  places = (0, 15 * updates // 60, updates)
  right, score = (
    np.interp(np.arange(updates + 1), places, values) for values in curves
  )
  records = []
  for k in range(updates + 1):
    facts = dict(
      accuracy=right[k], prm_score=score[k], all_steps_correct=right[k] / 2
    )
    if k:
      noise = 0.02 * random.standard_normal(3)
      update = dict(
        facts,
        accuracy=right[k] + noise[0],
        prm_return=6 * score[k] + noise[1],
        kl_nats=0.001 * k,
        tokens=50 + noise[2],
        solutions=128.0,
        sampled_tokens=6_400.0,
        rollout_s=2.0,
        update_s=1.0,
        **more,
      )
      records.append(dict(step=k, kind="train", **update))
    if k % every == 0:
      records.append(dict(step=k, kind="eval", **facts))
  return json.loads(json.dumps(records))


def details(**config):
  return dict(
    config=dict(problems=dict(num_evaluation=200), **config),
    versions=dict(jax="1"),
    machine=dict(cores=2),
    command="prm-jax train",
  )


def sections(records, **config):
  page = rl_page.page(records, details(**config))
  return {x.title: x for x in page.sections}


def drawn(records):
  """Returns the titles of the small pictures of a page."""
  shown = sections(records).values()
  return {x.title for s in shown for x in s.panels if x.lines} - {""}


def summary(curves, num=200, **fields):
  return rl_page.summary(run(curves, **fields), num)


# --- The sentence -----------------------------------------------------------


def test_the_summary_names_the_parting_of_score_and_truth():
  said = summary(HACKED)
  assert "fell from 63.0 % to 23.0 %, after 7" in said
  assert "rose from 0.790 to 0.880" in said
  assert said.endswith("what the PRM likes and what is right have parted.")
  assert rl_page.page(run(), details()).lead == said


@pytest.mark.parametrize(
  "curves",
  [
    HEALTHY,
    # Both fall; both rise; the score stays.
    ((0.6, 0.5, 0.2), (0.8, 0.7, 0.6)),
    ((0.2, 0.3, 0.9), (0.5, 0.6, 0.7)),
    ((0.6, 0.5, 0.2), (0.8, 0.8, 0.8)),
    # A fall of half a point, of 200 problems.
    ((0.6, 0.6, 0.595), (0.5, 0.6, 0.7)),
  ],
)
def test_the_summary_names_no_parting_where_there_is_none(curves):
  assert "parted" not in summary(curves)


def test_a_fall_from_a_best_in_between_is_a_parting_too():
  said = summary(((0.3, 0.7, 0.4), (0.5, 0.6, 0.9)))
  assert "rose from 30.0 % to 40.0 %" in said and "parted" in said


def test_a_change_is_chance_up_to_two_standard_errors():
  # 1.96 standard errors of 200 answers each, and 2.5 of 400 and more.
  curves = ((0.5, 0.55, 0.598), (0.5, 0.5, 0.5))
  assert "chance" in summary(curves, 200)
  assert "chance" not in summary(curves, 400)
  assert "chance" not in summary(curves, None)


def test_without_evaluations_the_summary_is_of_the_samples():
  records = [r for r in run() if r["kind"] == "train"]
  said = rl_page.summary(records)
  assert "right answers of its samples fell" in said and "parted" in said
  del records[1:]
  assert "nothing told how right answers changed" in rl_page.summary(records)


def test_a_run_without_a_prm_or_a_verifier_has_a_sentence_of_the_rest():
  bare = [{k: v for k, v in r.items() if k != "prm_score"} for r in run()]
  assert rl_page.summary(bare).endswith("at update 20.")
  assert "PRM" not in rl_page.summary(bare)
  blind = [dict(r, accuracy=None) for r in run()]
  assert "the PRM's mean score of a step rose" in rl_page.summary(blind)


# --- The page ---------------------------------------------------------------


def test_every_metric_that_a_run_has_is_drawn_and_no_other():
  everything = dict.fromkeys(rl_metrics.METRICS, 0.5)
  known = {*everything} & {*run()[1]}
  lacking = everything.keys() - known
  assert lacking and known
  together = {"accuracy", "all_steps_correct", "prm_score", "heldout_prm"}

  def axes(names):
    return {rl_metrics.METRICS[name].axis for name in names}

  assert drawn(run()) == axes(known - together)
  assert drawn(run(**dict.fromkeys(lacking, 0.5))) == axes(
    everything.keys() - together
  )
  assert drawn(run(**dict.fromkeys(lacking))) == axes(known - together)


def test_an_unknown_metric_leaves_neither_picture_nor_tile_nor_section():
  records = [
    {k: v for k, v in r.items() if k in ("step", "kind", "tokens")}
    for r in run()
    if r["kind"] == "train"
  ]
  page = rl_page.page(records, {})
  assert page.tiles == []
  assert [x.title for x in page.sections] == [
    "Alarms of the hacking monitor",
    "What its solutions look like",
  ]
  assert drawn(records) == {"tokens per solution"}


def test_tiles_are_the_first_and_last_values():
  tiles = rl_page.page(run(), {}).tiles
  assert [(x.label, x.value, x.small) for x in tiles[:2]] == [
    ("Right answers", "23.0 %", "from 63.0 %"),
    ("PRM's score", "0.880", "from 0.790"),
  ]


def test_the_reward_picture_shows_truth_and_score_and_the_alarms():
  records = run(heldout_prm=0.5)
  page = sections(records)
  panel = page["What is rewarded, and what is true"].panels[0]
  assert [x.label for x in panel.lines] == [
    *("Right answers", "PRM's score", "All steps correct", "Held-out PRM"),
  ]
  train = [r for r in records if r["kind"] == "train"]
  alarms = hacking_monitor.replay(train, hacking_monitor.MonitorConfig())
  assert alarms and panel.marks == [alarm.update for alarm in alarms]
  told = page["Alarms of the hacking monitor"].facts
  assert len(told) == len(alarms)
  assert all(a.text in x.text for a, x in zip(alarms, told, strict=True))


@pytest.mark.parametrize(
  "action, said", [("warn", 0), ("stop", 1), ("rollback", 1)]
)
def test_the_alarm_that_ended_the_run_is_marked(action, said):
  monitor = dict(action=action, acts_on=["accuracy"])
  section = sections(run(), monitor=monitor)["Alarms of the hacking monitor"]
  ended = ("The run was stopped here", "The run went back")
  assert sum(any(x in f.text for x in ended) for f in section.facts) == said
  assert action in section.note


def test_a_run_too_short_for_the_monitor_says_so_and_a_calm_one_has_none():
  def told(**fields):
    shown = sections(run(HEALTHY, **fields))["Alarms of the hacking monitor"]
    return [(x.name, x.text) for x in shown.facts]

  (short,) = told(updates=8)
  assert "first compares after 13 updates" in short[1]
  assert told() == [("none", "no metric turned.")]


def test_seconds_and_counts_are_sums_over_the_updates():
  page = sections(run(left_out_verifier=2.0, skipped_updates=0.0))
  table = tables.texts(page["Seconds of all updates, by phase"].table)
  assert table[0] == ["", "s", "s an update", "share, %"]
  assert table[1] == ["rollout", "200.0", "2.000", "66.7"]
  assert {x.name: x.text for x in page["Work"].facts} == {
    "solutions sampled": "12,800",
    "tokens sampled": "640,000",
    "tokens per second of rollouts": "3,200",
    "left out verifier": "200",
    "skipped updates": "0",
  }


def test_the_evaluations_are_a_table_of_what_is_known():
  table = tables.texts(sections(run(updates=20))["Held-out problems"].table)
  head = ["", "right answers, %", "all steps correct, %", "PRM's score"]
  assert [row[0] for row in table] == ["", "update 0", "update 10", "update 20"]
  assert table[0] == head and table[1] == ["update 0", "63.0", "31.5", "0.7900"]


def test_the_title_says_the_method_and_how_far_the_run_is():
  config = dict(
    fit=dict(steps=200),
    loss=dict(kind="ppo"),
    rewards=dict(prm=1.0, verifier=0.5, orm=0.0),
    seed=3,
  )
  assert rl_page.page(run(), details(**config)).title == (
    "A policy after 100 of 200 updates · ppo · rewards: prm 1, verifier 0.5"
    " · seed 3"
  )


@pytest.mark.parametrize("monitor", [dict(action="sing"), dict(sings=True)])
def test_a_wrong_monitor_is_refused(monitor):
  with pytest.raises(errors.InputError, match="monitor"):
    rl_page.page(run(), details(monitor=monitor))
