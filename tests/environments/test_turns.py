"""Rollouts in a world are independent, repeatable, and replayed exactly."""

import collections
import dataclasses
import json
import math

import numpy as np
import pytest

import prm_jax
from prm_jax import errors
from prm_jax import schema
from prm_jax.environments import shop_tasks
from prm_jax.environments import sql
from prm_jax.environments import turns
from prm_jax.evaluation import best_of_n
from prm_jax.labelling import monte_carlo
from prm_jax.records import jsonl
from prm_jax.testbed import sql_policy
from prm_jax.text import messages
from prm_jax.text import segmenters
from prm_jax.text import turn_cuts

MAX_TURNS = 6


@dataclasses.dataclass(frozen=True)
class Counting:
  """A user who repeats the sum of what was said; 0 ends the conversation."""

  def begin(self, opening):
    return int(opening.problem)

  def act(self, state, turn):
    state += int(turn.text)
    said = schema.Message("user", f"{state}")
    return state, () if turn.text == "0" else (said,)

  def answer(self, trajectory):
    return trajectory.messages[-2].text

  def outcome(self, trajectory):
    return None


def _conversation(*texts, **fields):
  roles = ("user", "assistant")
  return messages.trajectory(
    [dict(role=roles[i % 2], content=x) for i, x in enumerate(texts)], **fields
  )


def _says(text):
  return lambda trajectories, seeds: [
    schema.Message("assistant", text) for _ in trajectories
  ]


def _drawn(trajectories, seeds):
  """Says 0 once in four turns, else a number of five digits, by its seed."""
  return [
    schema.Message("assistant", "0" if seed % 4 == 0 else f"{seed % 10**5}")
    for seed in seeds
  ]


def _texts(trajectory):
  return [x.text for x in trajectory.messages]


# --- A prefix -----------------------------------------------------------------


def test_a_prefix_is_replayed_and_gets_the_answer_to_its_last_turn():
  whole = _conversation("5", "1", "6", "2", "8")
  for k in range(3):
    prefix = schema.first_turns(whole, k)
    state, begun = turns.reset(Counting(), prefix)
    assert state == (5, 6, 8)[k]
    assert _texts(begun) == _texts(whole)[: 2 * k + 1]
  assert turns.reset(Counting(), whole) == (8, whole)
  ended = _conversation("5", "1", "6", "0")
  assert turns.reset(Counting(), ended) == (6, ended)


@pytest.mark.parametrize(
  ("texts", "said"),
  [
    (("5", "1", "7", "2"), r"messages\[1\] .*'user: 6'.*'user: 7'"),
    (("5", "1", "6", "2", "9"), r"messages\[3\] .*'user: 8'.*'user: 9'"),
    (("5", "0", "5", "2"), r"messages\[1\] .* says \[\].*'user: 5'"),
  ],
)
def test_a_prefix_that_the_world_would_not_have_made_is_refused(texts, said):
  with pytest.raises(errors.InputError, match=f"solution '0': after {said}"):
    turns.reset(Counting(), _conversation(*texts))


def test_a_solution_without_messages_is_refused():
  with pytest.raises(errors.InputError, match="no messages"):
    turns.reset(Counting(), schema.Solution("a", "5", ("1",)))


# --- Rollouts -----------------------------------------------------------------


def test_rollouts_are_independent_and_the_same_in_any_company():
  first = _conversation("5", id="a")
  other = _conversation("7", "3", id="b")
  generate = turns.generate(Counting(), _drawn, seed=3)
  (rows,) = generate([first], 20)
  assert len({tuple(_texts(x)) for x in rows}) > 15
  assert generate([other, first], 4)[1] == rows[:4]
  (others,) = turns.generate(Counting(), _drawn, seed=4)([first], 20)
  assert [x.steps for x in others] != [x.steps for x in rows]
  for row in rows:
    assert turns.reset(Counting(), row)[1].messages == row.messages


def test_rollouts_end_when_the_world_says_nothing_or_after_max_turns():
  generate = turns.generate(Counting(), _drawn, seed=0, max_turns=3)
  opening = _conversation("5", tools=(sql.TOOL,), extra=dict(level=1))
  (rows,) = generate([opening], 40)
  kinds = set()
  for row in rows:
    ended = row.steps[-1] == "0"
    assert row.extra == dict(level=1, ended=ended)
    assert "0" not in row.steps[:-1]
    assert ended or len(row.steps) == 3
    assert row.answer == row.messages[-2].text and row.tools == opening.tools
    kinds.add((ended, len(row.steps)))
  assert kinds == {(True, 1), (True, 2), (True, 3), (False, 3)}


def test_a_prefix_that_can_not_go_on_stays_as_it_is():
  def fail(trajectories, seeds):
    raise AssertionError

  ended = _conversation("5", "0")
  long = _conversation("5", "1", "6", "1")
  generate = turns.generate(Counting(), fail, seed=0, max_turns=2)
  (one,), (two,) = generate([ended, long], 1)
  assert _texts(one) == ["5", "0"] and one.extra["ended"]
  assert _texts(two) == ["5", "1", "6", "1", "7"] and not two.extra["ended"]


def test_an_empty_turn_ends_a_rollout_without_being_part_of_it():
  opening = _conversation("5", "1")
  ((one,),) = turns.generate(Counting(), _says(" \n"), seed=0)([opening], 1)
  assert _texts(one) == ["5", "1", "6"] and one.extra["ended"] is False


def test_labels_and_the_cut_of_a_prefix_stay_behind():
  cut = turn_cuts.cut(_conversation("5", "1", "6", "2"), segmenters.PARAGRAPH)
  prefix = dataclasses.replace(cut, labels=(1.0, 0.0), outcome=True)
  ((one,),) = turns.generate(Counting(), _says("0"), seed=0)([prefix], 1)
  assert one.steps == ("1", "2", "0")
  assert (one.labels, one.spans, one.outcome) == (None, None, None)


@pytest.mark.parametrize(
  ("policy", "said"),
  [
    (lambda trajectories, seeds: [], "0 turns for 2 trajectories"),
    (lambda trajectories, seeds: ["1", "1"], "wrote '1'; return Messages"),
    (
      lambda trajectories, seeds: [schema.Message("user", "1")] * 2,
      "return Messages of the role assistant",
    ),
  ],
)
def test_a_policy_that_writes_no_turns_is_refused(policy, said):
  generate = turns.generate(Counting(), policy, seed=0)
  with pytest.raises(errors.InputError, match=said):
    generate([_conversation("5")], 2)


def test_no_turn_at_all_is_refused():
  with pytest.raises(errors.InputError, match="max_turns=0"):
    turns.generate(Counting(), _drawn, seed=0, max_turns=0)


# --- Labels of turns ----------------------------------------------------------

POLICY = sql_policy.SQLPolicy(
  wrong_query=0.3, malformed=0.35, wrong_answer=0.15
)


def _chance(kind, turns_left):
  """Returns P(success) after a turn of a kind: a sum over all courses."""
  if kind == "wrong" or turns_left == 0:
    return 0.0
  if kind == "right":
    return 1 - POLICY.wrong_answer
  right = 1 - POLICY.wrong_query - POLICY.malformed
  return sum(
    POLICY.malformed**k * right * (1 - POLICY.wrong_answer)
    for k in range(turns_left - 1)
  )


def _recorded(seed, *kinds):
  """Returns a trajectory of SQL whose turns are of these kinds."""
  task = shop_tasks.task(seed)
  queries = dict(
    look_up=sql_policy.LOOK_UP,
    malformed="SELEKT",
    wrong=task.wrong_query,
    right=task.query,
  )
  (opening,) = sql.openings([seed])
  said = [*opening.messages]
  for kind in kinds:
    turn = sql_policy.query(queries[kind])
    said += [turn, *sql.SQL().act(task, turn)[1]]
  said.append(schema.Message("assistant", f"Answer: {task.answer}"))
  return messages.trajectory(
    said, id=f"{seed}-{'-'.join(kinds)}", tools=opening.tools
  )


def _labelled(solutions, completions, seed):
  return monte_carlo.label(
    solutions,
    turns.generate(sql.SQL(), POLICY, seed=seed, max_turns=MAX_TURNS),
    turns.verifier(sql.SQL()),
    monte_carlo.Options(completions),
    find_answer=sql.SQL().answer,
  )


def test_labels_of_turns_are_the_policys_chance_of_success():
  courses = [
    ("look_up", "right"),
    ("look_up", "wrong"),
    ("look_up", "malformed", "malformed", "malformed", "malformed"),
    ("malformed", "wrong", "right"),
  ]
  num = 120
  solutions = [_recorded(i, *kinds) for i, kinds in enumerate(courses)]
  labelled, work = _labelled(solutions, num, seed=0)
  assert work["rollouts"] == num * sum(map(len, courses))
  assert work["unverifiable"] == work["empty"] == 0
  found = set()
  for kinds, solution in zip(courses, labelled, strict=True):
    assert solution.labels[-1] == 1 and solution.source == "monte_carlo"
    for k, (kind, label) in enumerate(zip(kinds, solution.labels)):
      p = _chance(kind, MAX_TURNS - k - 1)
      found.add(p)
      # 4.5 deviations: one such test in 10,000 would fail by chance.
      assert abs(label - p) <= 4.5 * math.sqrt(p * (1 - p) / num), (kinds, k)
  # Also those after which success is impossible, exactly.
  assert 0 in found and len(found) == 6


def test_labels_have_the_same_bytes_for_the_same_seed(tmp_path):
  solutions = [_recorded(2, "look_up", "malformed", "wrong")]
  texts = []
  for seed, order in ((5, 1), (5, -1), (6, 1)):
    more = [_recorded(1, "look_up", "right"), *solutions][::order]
    labelled, _ = _labelled(more, 9, seed)
    path = tmp_path / f"{len(texts)}.jsonl"
    jsonl.write_solutions(path, [x for x in labelled if x.id[0] == "2"])
    texts.append(path.read_bytes())
  assert texts[0] == texts[1] != texts[2]
  # What was written is a trajectory of this world, with its labels.
  (read,) = jsonl.read_solutions(tmp_path / "0.jsonl")
  assert [*read.labels] == json.loads(texts[0])["labels"]
  assert turns.reset(sql.SQL(), read)[1].messages == solutions[0].messages


def test_a_chance_is_that_of_the_policys_own_formula():
  for left in range(8):
    assert POLICY.success(left) == pytest.approx(_chance("look_up", left))


# --- Best of N ----------------------------------------------------------------


def test_best_of_n_and_votes_choose_among_trajectories():
  """With exact scores of turns any right trajectory is found."""
  openings = sql.openings(range(4))
  rows = turns.generate(sql.SQL(), POLICY, seed=1)(openings, 6)

  labels = {x.id: sql.judge(x).labels for row in rows for x in row}

  def score(solutions):
    return [schema.StepScores(labels[x.id]) for x in solutions]

  for row in rows:
    chosen = prm_jax.best_of_n(row, score, aggregate="last")
    assert chosen.outcome == any(x.outcome for x in row)
  grid, left_out = best_of_n.groups([x for row in rows for x in row], "rows")
  assert grid.shape == (4, 6) and not left_out
  last = np.array([[labels[x.id][-1] for x in row] for row in rows])
  right = np.array([[x.outcome for x in row] for row in rows])
  answers = [[x.answer for x in row] for row in rows]
  curves = best_of_n.curves({"exact": last}, right, answers, [1, 6])
  assert (curves["exact"] == curves["oracle"]).all()
  for row, known in zip(rows, curves["majority"][:, 1]):
    counts = collections.Counter(x.answer for x in row if x.answer)
    (top, *ties) = [x for x in counts if counts[x] == max(counts.values())]
    assert ties or known == (top == row[0].extra[schema.REFERENCE])
  assert 0 < right.mean() < 1 and {*curves["majority"][:, 1]} >= {0, 1}
