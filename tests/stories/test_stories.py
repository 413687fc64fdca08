"""The six stories: each runs as it is written, and what it says is so."""

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
STORIES = sorted((ROOT / "stories").glob("*.py"))
MAX_LINES = 150
# What a user may import: the package's face, adapters for trainers, the testbed.
IMPORTED = {
  "prm_jax",
  "prm_jax.testbed.arithmetic",
  "prm_jax.integrations.scoring",
  "prm_jax.integrations.token_credit",
}
CLAIMS = {}


def _claim(name):
  return lambda function: CLAIMS.setdefault(name, function)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("stories")


def _numbers(said, name):
  """Returns the numbers of the line that begins with a name."""
  line = re.search(rf"^{re.escape(name)}(.*)$", said, re.MULTILINE)
  assert line, said
  return [float(x) for x in re.findall(r"-?\d+\.?\d*", line[1])]


@_claim("train_a_prm")
def _the_prm_finds_errors_and_the_orm_is_fooled_by_luck(said):
  found = int(re.search(r"first wrong step in (\d+)%", said)[1])
  assert found >= 50
  _, prm, orm = _numbers(said, "right answer, a wrong step")
  _, sound, _ = _numbers(said, "right answer, all steps right")
  assert prm < orm
  assert prm < sound - 0.2


@_claim("label_by_rollouts")
def _right_steps_promise_more_and_hard_labels_cost_less(said):
  right, wrong = _numbers(said, "mean soft label")
  assert right > wrong + 0.3
  soft, hard = _numbers(said, "completions:")
  assert hard < soft


@_claim("best_of_n")
def _the_prm_chooses_better_than_chance_and_than_the_orm(said):
  prm, orm = (_numbers(said, f"chosen by the {x}") for x in ("PRM", "ORM"))
  most = _numbers(said, "any right (the most there is)")
  assert prm[0] == orm[0] == most[0]  # one sample: nothing to choose
  assert prm[-1] > max(prm[0], orm[-1]) + 10
  assert all(x <= y for x, y in zip(prm, most, strict=True))


@_claim("search_with_a_bill")
def _a_wider_rule_costs_more_and_choosing_pays(said):
  one, four = (_numbers(said, x) for x in ("one sample", "best of 4"))
  assert four[0] > one[0]
  for narrow, wide in (("best of 4", "best of 16"), ("beam, 2", "beam, 4")):
    narrow, wide = _numbers(said, narrow)[-3:], _numbers(said, wide)[-3:]
    assert all(x < y for x, y in zip(narrow, wide, strict=True))


@_claim("rl_with_step_rewards")
def _more_answers_are_right_after_the_run(said):
  rows = re.findall(r"samples +([\d.]+)% +([\d.]+)%", said)
  assert len(rows) == 3
  assert float(rows[-1][0]) > float(rows[0][0])


@_claim("serve_to_a_trainer")
def _the_rewards_of_a_response_sum_to_its_first_score(said):
  blocks = said.split("advantage\n")[1:]
  assert len(blocks) == 4
  for block in blocks:
    rows = [x.split()[-3:] for x in block.split("\n\n")[0].splitlines()]
    rewards = sum(float(reward) for _, reward, _ in rows)
    assert rewards == pytest.approx(float(rows[0][0]), abs=0.05)


@pytest.mark.parametrize("path", STORIES, ids=lambda x: x.stem)
def test_a_story_is_short_and_imports_what_a_user_may(path):
  text = path.read_text()
  assert len(text.splitlines()) <= MAX_LINES
  names = set()
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.Import):
      names |= {x.name for x in node.names}
    elif isinstance(node, ast.ImportFrom):
      names |= {f"{node.module}.{x.name}" for x in node.names}
  ours = {x for x in names if x.startswith("prm_jax")}
  assert "prm_jax" in ours and ours <= IMPORTED


def test_there_are_six_stories_and_the_readme_names_each():
  assert len(STORIES) == 6
  assert {path.stem for path in STORIES} == {*CLAIMS}
  readme = (ROOT / "README.md").read_text()
  for path in STORIES:
    assert f"(stories/{path.name})" in readme


# In the order in which they are read: the first trains the models.
@pytest.mark.stories
@pytest.mark.parametrize("name", CLAIMS)
def test_what_a_story_says_is_so(name, folder):
  command = [sys.executable, str(ROOT / "stories" / f"{name}.py"), str(folder)]
  env = dict(os.environ, JAX_PLATFORMS="cpu", PYTHONPATH=str(ROOT))
  env.pop("XLA_FLAGS", None)
  done = subprocess.run(
    command, env=env, capture_output=True, text=True, check=False, timeout=280
  )
  assert done.returncode == 0, done.stderr[-2000:]
  CLAIMS[name](done.stdout)
