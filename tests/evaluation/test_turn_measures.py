"""Turns of agents: the published measures, by hand and by plain counts."""

import json
import math

import pytest

import prm_jax
from prm_jax import errors
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.evaluation import result_tables
from prm_jax.evaluation import turn_metrics
from prm_jax.records import jsonl
from prm_jax.text import messages
from prm_jax.text import segmenters
from prm_jax.text import turn_cuts

# Of four trajectories: the ratings, and scores of their turns.
RATINGS = [(1, 0, -1, 1), (-1, 1), (1, 0), (0, None, -1)]
SCORES = [(0.9, 0.2, 0.4, 0.3), (0.8, 0.6), (0.7, 0.9), (0.5, 0.1, 0.1)]


def _trajectory(i, ratings, **fields):
  said = []
  for turn, _ in enumerate(ratings):
    said += [dict(role="user", content=f"{i}?")]
    said += [dict(role="assistant", content="a" * (turn + 1))]
  return messages.trajectory(said, id=f"t{i}", ratings=ratings, **fields)


TRAJECTORIES = [_trajectory(i, x) for i, x in enumerate(RATINGS)]


def _score(solutions):
  return [schema.StepScores(SCORES[int(s.id[1:])]) for s in solutions]


def test_each_measure_is_that_of_a_count_by_hand():
  found = turn_metrics.evaluate(SCORES, RATINGS)
  # Right: .9, .7 and .6 of 4 rated 1; .4 and .1 of 3 rated -1.
  assert found["step_acc"] == 5 / 7
  # And .9, .5 of 3 rated 0.
  assert found["step_acc_neutral_good"] == 7 / 10
  assert found["balanced_acc"] == (3 / 4 + 2 / 3) / 2
  # The second turn is found before the third; 0; none; unknown.
  assert found["first_err_acc"] == 1 / 3
  assert found["num_first_error_unknown"] == 1
  right, wrong = [0.9, 0.3, 0.6, 0.7], [0.4, 0.8, 0.1]
  won = [(a > b) + (a == b) / 2 for a in right for b in wrong]
  assert found["auroc"] == sum(won) / len(won)
  names = ("right", "neutral", "wrong", "unrated")
  assert [found[f"num_turns_{x}"] for x in names] == [4, 3, 3, 1]


def test_a_turn_after_an_error_counts():
  for last, accuracy in ((0.9, 1.0), (0.1, 0.5)):
    found = turn_metrics.evaluate([(0.1, last)], [(-1, 1)])
    assert found["step_acc"] == accuracy


@pytest.mark.parametrize(
  "ratings, first",
  [
    ((1, -1, -1), 1),
    ((0, 1), -1),
    ((), -1),
    ((-1, None), 0),
    ((None, -1), None),
    ((1, None), None),
  ],
)
def test_the_first_error_is_unknown_if_an_earlier_turn_is_unrated(
  ratings, first
):
  assert turn_metrics.first_error(ratings) == first


def test_labels_are_ratings_of_two_kinds():
  solution = schema.Solution("a", "p", ("x",) * 4, labels=(1, 0.5, 0.4, None))
  assert turn_metrics.ratings_of(solution) == (1, 1, -1, None)
  assert turn_metrics.ratings_of(TRAJECTORIES[0]) == RATINGS[0]


def test_intervals_are_over_trajectories_of_one_problem_together():
  ratings = [(1, -1)] * 8
  scores = [(0.9, 0.1)] * 4 + [(0.1, 0.9)] * 4
  alone = turn_metrics.evaluate(scores, ratings)["interval"]
  low, high = alone["step_acc"]
  assert 0 < low < 0.5 < high < 1
  halves = turn_metrics.evaluate(scores, ratings, units=["a"] * 4 + ["b"] * 4)
  assert halves["interval"]["step_acc"] == [0, 1]
  assert halves["interval"]["first_err_acc"] == [0, 1]
  one = turn_metrics.evaluate(scores, ratings, units=["a"] * 8)["interval"]
  assert [one[x] for x in turn_metrics.MEASURES[:-1]] == [[0.5, 0.5]] * 4


def test_what_has_nothing_to_measure_is_undefined():
  found = turn_metrics.evaluate([(0.5,)], [(None,)])
  assert [found[x] for x in turn_metrics.MEASURES] == [None] * 5
  assert found["interval"]["step_acc"] == [None, None]


# --- Pairs -------------------------------------------------------------------


def _pair(i, subset, choice):
  extra = dict(pair=f"{i}", choice=choice)
  said = [dict(role="user", content=f"{subset}{i}?")]
  said += [dict(role="assistant", content=choice)]
  return messages.trajectory(
    said,
    id=f"{subset}/{i}/{choice}",
    source=subset,
    extra=extra,
    labels=(float(choice == "chosen"),),
  )


CHOICES = ("chosen", "rejected")
# Of subset a one pair is right, of b one of four, and one is a tie.
PAIRS = [_pair(0, "a", x) for x in CHOICES]
PAIRS += [_pair(i, "b", x) for i in range(4) for x in CHOICES]
LAST = [*(0.6, 0.5), *(0.9, 0.1), *(0.2, 0.2), *(0.1, 0.3), *(0.1, 0.2)]


def test_ties_count_half_and_subsets_the_same():
  found = turn_metrics.evaluate_pairs(LAST, PAIRS)
  accuracies = {k: x["accuracy"] for k, x in found["subsets"].items()}
  assert accuracies == dict(a=1.0, b=1.5 / 4)
  assert found["mean"] == (1 + 1.5 / 4) / 2
  low, high = found["mean_interval"]
  assert 0.5 <= low < found["mean"] < high <= 1
  assert found["num_incomplete"] == 0


def test_a_trajectory_without_the_other_of_its_pair_is_counted():
  found = turn_metrics.evaluate_pairs(LAST[:-1], PAIRS[:-1])
  assert found["num_incomplete"] == 1
  assert found["subsets"]["b"] == dict(
    found["subsets"]["b"], num=3, accuracy=1.5 / 3
  )
  assert turn_metrics.evaluate_pairs(LAST[:1], PAIRS[:1]) is None
  assert turn_metrics.evaluate_pairs([0.5] * 4, TRAJECTORIES) is None


# --- The verb ----------------------------------------------------------------


def test_position_and_length_are_beside_the_model():
  found = prm_jax.EvaluateTurns()(TRAJECTORIES, _score)
  baselines = found.results["baselines"]
  assert [*baselines] == ["everything_right", "step_index", "step_length"]
  assert baselines["everything_right"]["step_acc"] == 4 / 7
  # From the third turn on, 1 / (1 + index) is below .5.
  assert baselines["step_index"]["step_acc"] == 5 / 7
  assert found.results["step_acc"] == 5 / 7
  samples = [(x["prediction"], x["target"]) for x in found.samples]
  assert samples == [(1, 2), (-1, 0), (-1, -1), (1, None)]
  assert found.samples[3]["ratings"] == [0, None, -1]
  assert "sources" not in found.results and found.results["pairs"] is None


def test_pairs_are_ranked_by_log_odds_where_scores_are_equal():
  def score(solutions):
    return [
      schema.StepScores(
        (1.0,), logits=(40.0 + (x.extra["choice"] == "chosen"),)
      )
      for x in solutions
    ]

  found = prm_jax.EvaluateTurns()(PAIRS, score).results
  assert found["pairs"]["mean"] == 1
  assert found["baselines"]["everything_right"]["pairs"]["mean"] == 0.5
  assert found["sources"]["a"]["num_trajectories"] == 2


def test_what_cannot_be_compared_is_refused():
  bare = [messages.trajectory(x.messages) for x in TRAJECTORIES[:1]]
  cut = [turn_cuts.cut(x, segmenters.PARAGRAPH) for x in bare]
  for solutions, reason in (
    (bare, "no turn has a rating or label"),
    (cut, "its turns are cut into steps"),
    (TRAJECTORIES[:1] * 2, "'t0' was used at"),
  ):
    with pytest.raises(errors.InputError, match=reason):
      prm_jax.EvaluateTurns()(solutions, _score)


def test_files_of_the_published_form_are_evaluated_together(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  words = []
  scores = []
  for i, (ratings, given) in enumerate(zip(RATINGS, SCORES)):
    rows = jsonl.record_from_solution(TRAJECTORIES[i])["messages"]
    labels = {str(2 * k + 1): x for k, x in enumerate(ratings) if x is not None}
    row = dict(total_index=i, messages=rows, step_labels=labels)
    row["data_source"] = f"s{i % 2}"
    (tmp_path / f"{i}.jsonl").write_text(json.dumps(row))
    words.append(f"--input={i}.jsonl")
    scores.append(dict(id=f"agent_process_bench/{i}", step_scores=given))
  lines = "".join(json.dumps(x) + "\n" for x in scores)
  (tmp_path / "scores.jsonl").write_text(lines)
  assert main.main(["eval", "turns", *words, "--scores=scores.jsonl"]) == 0
  results = json.loads((tmp_path / "results.json").read_text())
  by_hand = turn_metrics.evaluate(SCORES, RATINGS)
  assert {x: results[x] for x in by_hand} == json.loads(json.dumps(by_hand))
  printed = capsys.readouterr().out
  assert "71.4" in printed and "on s1" in printed
  assert (
    "4 trajectories; turns rated 1, 0, -1 and unrated: 4, 3, 3, 1" in printed
  )


def test_a_file_without_ratings_is_named_with_the_format_it_was_read_as(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  row = dict(messages=[dict(role="assistant", content="a")], labels=[1])
  (tmp_path / "chat.jsonl").write_text(json.dumps(row))
  (tmp_path / "scores.jsonl").write_text("")
  words = ["eval", "turns", "--input=chat.jsonl", "--scores=scores.jsonl"]
  assert main.main(words) == 1
  assert capsys.readouterr().err.strip() == (
    "prm-jax: chat.jsonl: no turn has a rating or label to compare with; is"
    " --format=agent_process_bench its format?"
  )


def test_columns_are_apart_where_all_is_right():
  rated = [x for x in TRAJECTORIES if set(x.ratings) & {-1, 1}]

  def score(rows):
    return [
      schema.StepScores(tuple(float(r != -1) for r in x.ratings)) for x in rows
    ]

  table = result_tables.turns_table(
    prm_jax.EvaluateTurns()(rated, score).results
  )
  assert table.splitlines()[1].split("0.5")[1].count(" 100.0 [100.0,") == 3


def test_the_table_says_what_pairs_are_right():
  score = dict(zip((x.id for x in PAIRS), LAST))
  found = prm_jax.EvaluateTurns()(
    PAIRS, lambda rows: [schema.StepScores((score[x.id],)) for x in rows]
  )
  table = result_tables.turns_table(found.results)
  assert math.isclose(found.results["pairs"]["mean"], 0.6875)
  (line,) = [x for x in table.splitlines() if x.startswith("mean of the")]
  assert "68.8" in line
