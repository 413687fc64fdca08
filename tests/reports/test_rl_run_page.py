"""The page of an RL run: what it says follows from the run's records."""

import html
import json
import re

import numpy as np
from page_reader import Reader
from page_reader import row
import pytest

from prm_jax import errors
from prm_jax.evaluation import judgement
from prm_jax.reports import html as pages
from prm_jax.reports import rl_metrics
from prm_jax.reports import rl_page
from prm_jax.reports import rl_records
from prm_jax.rl import hacking_monitor
from prm_jax.runtime import checked_lines

HOSTILE = """</svg></td></style><script>alert("1'2")</script>&amp;<b x='"""
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


def sample(step=0, **fields):
  """Returns a record of samples.jsonl."""
  known = dict(
    step=step,
    id="p/0",
    problem="1 + 1",
    steps=["a", "b"],
    right=False,
    prm=[0.9, 0.25],
    prm_judged=[True, True],
    exact=[1.0, 0.0],
    total_return=1.15,
    counts=True,
  )
  return known | fields


def details(**config):
  return dict(
    config=dict(problems=dict(num_evaluation=200), **config),
    versions=dict(jax="1"),
    machine=dict(cores=2),
    command="prm-jax train",
  )


def pictures(page):
  """Returns the title of each picture of a page."""
  return re.findall(r'role="img" aria-label="([^"]*)"', page)


def summary(curves, num=200, **fields):
  return rl_page.summary(run(curves, **fields), num)


# --- The sentence -----------------------------------------------------------


def test_the_summary_names_the_parting_of_score_and_truth():
  said = summary(HACKED)
  assert "fell from 63.0 % to 23.0 %, after 7" in said
  assert "rose from 0.790 to 0.880" in said
  assert said.endswith("what the PRM likes and what is right have parted.")
  page = rl_page.render(run(), [], details())
  assert said in html.unescape(page).replace("\xa0", " ")


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


def test_the_same_records_make_the_same_bytes_and_nothing_is_loaded(tmp_path):
  args = run(), [sample(), sample(99)], details()
  pages.write(tmp_path / "a.html", rl_page.render(*args))
  page = (tmp_path / "a.html").read_bytes()
  assert page.decode() == rl_page.render(*args)
  assert not re.search(rb"https?:|//|@import|url\(|<script|<link|<img", page)


def test_every_metric_that_a_run_has_is_drawn_and_no_other():
  everything = dict.fromkeys(rl_metrics.METRICS, 0.5)
  known = {*everything} & {*run()[1]}
  lacking = everything.keys() - known
  assert lacking and known

  def drawn(page):
    return {
      name
      for name, metric in rl_metrics.METRICS.items()
      if metric.axis in pictures(page)
    }

  small = {*everything} - {
    "accuracy",
    "all_steps_correct",
    "prm_score",
    "heldout_prm",
  }
  assert drawn(rl_page.render(run(), [], {})) == known & small
  more = dict.fromkeys(lacking, 0.5)
  whole = rl_page.render(run(**more), [], {})
  assert drawn(whole) == small
  nothing = dict.fromkeys(lacking)
  assert drawn(rl_page.render(run(**nothing), [], {})) == known & small


def test_an_unknown_metric_leaves_neither_picture_nor_tile_nor_section():
  records = [
    {k: v for k, v in r.items() if k in ("step", "kind", "tokens")}
    for r in run()
    if r["kind"] == "train"
  ]
  page = rl_page.render(records, [], {})
  assert pictures(page) == ["tokens per solution"]
  for words in ('class="tiles"', "Held-out problems", "What is rewarded"):
    assert words not in page
  assert "Samples, early" not in page and "by phase" not in page
  assert "nan" not in page and "None<" not in page


def test_a_metric_known_once_is_a_point_and_not_an_empty_picture():
  records = run(updates=1)
  page = rl_page.render(records, [], {})
  small = re.findall(r'<svg class="small".*?</svg>', page, re.DOTALL)
  assert small
  assert all(len(re.findall("<title>", svg)) == 1 for svg in small)


def test_the_reward_picture_shows_truth_and_score_and_the_alarms():
  records = run(heldout_prm=0.5)
  page = rl_page.render(records, [], details())
  title = "share, or mean score of a step, by update"
  assert pictures(page).count(title) == 2  # wide and narrow
  svg = page[page.index(f'aria-label="{title}"') :]
  svg = svg[: svg.index("</svg>")]
  for name in ("Right answers", "All steps correct", "PRM&#39;s score"):
    assert f"<title>{name}</title>" in svg
  train = [r for r in records if r["kind"] == "train"]
  alarms = hacking_monitor.replay(train, hacking_monitor.MonitorConfig())
  assert alarms
  for alarm in alarms:
    assert f"<title>alarm: {alarm.kind}, update {alarm.update}</title>" in svg
    assert html.escape(alarm.text) in page


@pytest.mark.parametrize(
  "action, said", [("warn", 0), ("stop", 1), ("rollback", 1)]
)
def test_the_alarm_that_ended_the_run_is_marked(action, said):
  monitor = dict(action=action, acts_on=["accuracy"])
  page = rl_page.render(run(), [], details(monitor=monitor))
  marks = re.findall("The run was stopped here|The run went back", page)
  assert len(marks) == said


def test_a_run_too_short_for_the_monitor_says_so_and_a_calm_one_has_none():
  short = rl_page.render(run(HEALTHY, updates=8), [], {})
  assert "first compares after 13 updates" in short
  calm = Reader(rl_page.render(run(HEALTHY), [], {}))
  assert calm.facts["None:"] == "no metric turned."
  assert "with the run's monitor config" in calm.text


def test_seconds_and_counts_are_sums_over_the_updates():
  more = dict(left_out_verifier=2.0, skipped_updates=0.0)
  page = rl_page.render(run(**more), [], {})
  assert row(page, "rollout")[1:] == ["200.0", "2.000", "66.7 %"]
  facts = Reader(page).facts
  assert facts["left out verifier"] == "200"
  assert facts["skipped updates"] == "0"
  assert facts["tokens sampled"] == "640,000"
  assert facts["tokens per second of rollouts"] == "3,200"


def test_a_run_without_updates_or_with_a_wrong_monitor_is_refused():
  with pytest.raises(errors.InputError, match="holds no update"):
    rl_page.render(run()[:1], [], {})
  with pytest.raises(errors.InputError, match=r"monitor\.action"):
    rl_page.render(run(), [], details(monitor=dict(action="sing")))


# --- Samples ----------------------------------------------------------------


def test_samples_of_the_first_and_the_last_rollout_are_shown():
  given = [sample(k, id=f"{k}/{i}") for k in (0, 5, 9) for i in range(4)]
  found = [s["id"] for s in rl_page.first_and_last(given)]
  assert found == ["0/0", "0/1", "0/2", "9/0", "9/1", "9/2"]
  assert rl_page.first_and_last(given[:4]) == given[:3]
  page = rl_page.render(run(), given, {})
  # A state's rollout makes its next update.
  assert re.findall(r"Update (\d+) · ", page) == ["1"] * 3 + ["10"] * 3


def test_a_sample_shows_each_step_with_its_score_and_whether_it_is_right():
  page = rl_page.render(run(), [sample()], {})
  rows = re.findall(r'<tr class="step".*?</tr>', page, re.DOTALL)
  assert len(rows) == 2
  assert "0.900" in rows[0] and 'title="right"' in rows[0]
  assert "0.250" in rows[1] and 'title="wrong"' in rows[1]
  assert judgement.judge([1.0, 0.0], [0.9, 0.25], False).text in page


@pytest.mark.parametrize(
  "fields, grey",
  [
    (dict(prm_judged=[True, True]), [False, False]),
    (dict(prm_judged=[False, True]), [True, False]),
  ],
)
def test_a_step_that_isnt_judged_is_shown_as_such(fields, grey):
  page = rl_page.render(run(), [sample(prm=[0.25, 0.999], **fields)], {})
  rows = re.findall(r'<tr class="step".*?</tr>', page, re.DOTALL)
  assert ["<small>not judged</small>" in r for r in rows] == grey


@pytest.mark.parametrize(
  "fields, said",
  [
    (dict(prm=[0.5, 0.25, 0.125]), "0.500, 0.250, 0.125"),
    (dict(prm=[None, 0.25]), "?, 0.250"),
  ],
)
def test_scores_that_are_not_one_of_each_step_are_said_in_a_line(fields, said):
  page = rl_page.render(run(), [sample(**fields)], {})
  assert f"of its own steps: {said}" in page
  assert "The PRM finds" not in page


@pytest.mark.parametrize(
  "fields, said",
  [
    (dict(prm=None, exact=None), "✗ wrong answer"),
    (dict(exact=None, right=None), "Not judged"),
    (dict(steps=[], prm=[], exact=[]), "No step."),
    (dict(counts=False, total_return=None), "left out of the update"),
  ],
)
def test_what_a_sample_lacks_is_left_out(fields, said):
  page = rl_page.render(run(), [sample(**fields)], {})
  assert said in page and "None" not in page.partition("Samples, early")[2]


def test_text_of_samples_never_becomes_markup():
  def tags(text):
    given = sample(id=text, problem=text, steps=[text, text])
    page = rl_page.render(run(), [given], details(seed=text))
    return re.findall(r"<[^>]*>", page), page

  harmless, _ = tags("harmless")
  hostile, page = tags(HOSTILE)
  assert hostile == harmless
  assert "<script" not in page
  assert html.unescape(page).count(HOSTILE) == 6


def _write(path, records):
  lines = (checked_lines.line_of(json.dumps(x)) for x in records)
  path.write_text("".join(lines))


def test_a_run_is_read_from_its_folder_also_without_samples(tmp_path):
  _write(tmp_path / "metrics.jsonl", run())
  assert rl_records.read(tmp_path) == (run(), [])
  _write(tmp_path / "samples.jsonl", [sample()])
  assert rl_records.read(tmp_path) == (run(), [sample()])
