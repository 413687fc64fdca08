"""The scripted agent errs at the rates that it is given, and only so."""

import pytest

from prm_jax import errors
from prm_jax.environments import sql
from prm_jax.environments import turns
from prm_jax.testbed import sql_policy


def _outcomes(**rates):
  policy = sql_policy.SQLPolicy(**rates)
  generate = turns.generate(sql.SQL(), policy, seed=0, max_turns=5)
  rows = generate(sql.openings(range(4)), 2)
  return [sql.judge(x) for row in rows for x in row]


def test_an_agent_that_errs_in_one_way_has_one_course():
  rates = dict(wrong_query=0.0, malformed=0.0, wrong_answer=0.0)
  for change, labels in (
    ({}, (1, 1, 1)),
    (dict(wrong_query=1.0), (1, 0, 0)),
    (dict(malformed=1.0), (1, 0, 0, 0, 0)),
    (dict(wrong_answer=1.0), (1, 1, 0)),
    (dict(wrong_query=1.0, wrong_answer=1.0), (1, 0, 0)),
  ):
    judged = _outcomes(**rates | change)
    assert {x.labels for x in judged} == {labels}
    assert {x.outcome for x in judged} == {not change}


def test_rates_that_are_no_chances_are_refused():
  with pytest.raises(errors.InputError, match="malformed"):
    sql_policy.SQLPolicy(malformed=1.5)
  with pytest.raises(errors.InputError, match="sum up"):
    sql_policy.SQLPolicy(wrong_query=0.6, malformed=0.5)
