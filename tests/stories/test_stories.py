"""The stories run as a newcomer runs them, and what they claim is so.

They share a folder, so that the models are trained once. Ranges leave room for
other processors, which train other models from the same data.
"""

import ast
import fcntl
import json
import os
import pathlib
import subprocess
import sys

import pytest
import xla_flags

import prm_jax
from prm_jax.runtime import files

pytestmark = pytest.mark.stories
ROOT = pathlib.Path(__file__).resolve().parents[2]
# In the order in which they are read.
STORIES = (
  *("train_a_prm", "label_by_rollouts", "best_of_n", "search_with_a_bill"),
  *("rl_with_step_rewards", "serve_to_a_trainer"),
)
MAX_LINES = 150

# What a user may import: the face, whose names are public; problems to play
# with; and the adapters, which docs/integrations.md describes by their modules.
FACE = "prm_jax"
MODULES = ("prm_jax.testbed", "prm_jax.integrations")

# Runs a story, and writes down some of the names that it leaves.
RUN = """
import json, runpy, sys
path, folder, *wanted = sys.argv[1:]
sys.argv = [path, folder]
names = runpy.run_path(path, run_name="__main__")
print(json.dumps({name: names[name] for name in wanted}, default=float))
"""


def _path(story: str) -> pathlib.Path:
  return ROOT / "stories" / f"{story}.py"


def _run(story: str, folder: pathlib.Path, *wanted: str) -> list:
  """Returns the values of names of a story that was run in a folder."""
  environment = os.environ | dict(PYTHONPATH=str(ROOT))
  # Training is faster optimized; all else mostly compiles.
  trains = story == STORIES[0]
  environment["XLA_FLAGS"] = "" if trains else xla_flags.FAST_COMPILING
  done = subprocess.run(
    [sys.executable, "-c", RUN, _path(story), folder / "models", *wanted],
    cwd=folder,
    env=environment,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr[-2_000:]
  *told, numbers = done.stdout.splitlines()
  following = STORIES[STORIES.index(story) + 1 :][:1]
  assert any(f"Next: stories/{x}.py" in told[-1] for x in following) or (
    not following and "docs/" in told[-1]
  )
  return list(json.loads(numbers).values())


@pytest.fixture(scope="module")
def trained(tmp_path_factory, worker_id):
  """A folder with the first story's models, and what it says of them.

  One of several workers trains them; the others wait for it.
  """
  base = tmp_path_factory.getbasetemp()
  folder = (base if worker_id == "master" else base.parent) / "stories"
  folder.mkdir(exist_ok=True)
  said = folder / "said.json"
  with (folder / "lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not said.exists():
      names = ("num_hits", "num_wrong", "means")
      files.write_json(said, dict(said=_run(STORIES[0], folder, *names)))
  return folder, files.read_json(said)["said"]


@pytest.fixture
def folder(trained):
  return trained[0]


# --- What they claim ----------------------------------------------------------


def test_a_prm_finds_first_errors_and_knows_luck_where_an_orm_doesnt(trained):
  num_hits, num_wrong, means = trained[1]
  assert num_wrong > 100 and 0.6 < num_hits / num_wrong <= 1
  (sound_prm, sound_orm), (lucky_prm, lucky_orm), _ = means.values()
  assert sound_prm > 0.8 and lucky_prm < 0.5
  assert abs(sound_orm - lucky_orm) < 0.25 < sound_prm - lucky_prm


def test_rollouts_tell_right_steps_from_wrong_and_hard_labels_believe_luck(
  folder,
):
  means, rollouts = _run("label_by_rollouts", folder, "means", "rollouts")
  (soft_right, soft_wrong), (hard_right, hard_wrong) = means.values()
  assert soft_right - soft_wrong > 0.3 and hard_right - hard_wrong > 0.3
  assert hard_wrong > soft_wrong + 0.03
  assert 0 < rollouts["hard"] < 0.8 * rollouts["soft"]


def test_a_prm_chooses_better_than_an_orm_and_its_vote_better_than_a_majority(
  folder,
):
  (curves,) = _run("best_of_n", folder, "curves")
  assert len({curve[0] for curve in curves.values()}) == 1  # one sample
  last = {name: curve[-1] for name, curve in curves.items()}
  assert last["best by the PRM"] > last["best by the ORM"] + 0.15
  assert last["vote weighted by the PRM"] > last["majority vote"] + 0.05
  assert max(last.values()) == last["any of them right"] > 0.8


def test_drawing_bad_steps_again_gains_for_a_fraction_of_best_of_16s_bill(
  folder,
):
  (bills,) = _run("search_with_a_bill", folder, "bills")
  one, many, beam, redraw = bills.values()
  assert redraw["best"] > one["best"] + 0.25
  assert redraw["sampled"] < many["sampled"] / 5
  assert redraw["MFLOPs"] < beam["MFLOPs"] < many["MFLOPs"]
  assert many["sampled"] == pytest.approx(16 * one["sampled"], rel=0.1)
  assert many["vote"] >= many["best"] and many["vote"] > one["vote"] + 0.2


def test_step_rewards_raise_the_share_of_answers_with_all_steps_right(folder):
  before, after = _run("rl_with_step_rewards", folder, "before", "after")
  assert before["step"] == 0 and after["step"] == 12
  for name in ("accuracy", "all_steps_correct"):
    assert after[name] > before[name] + 0.05


def test_a_trainer_learns_from_served_step_scores_without_right_answers(folder):
  (shares,) = _run("serve_to_a_trainer", folder, "right_answers")
  assert shares[0] < 0.5 and min(shares[-3:]) > 0.75


# --- How they are read --------------------------------------------------------


def test_there_are_no_other_files_in_stories():
  found = {path.name for path in (ROOT / "stories").glob("*.py")}
  assert found == {f"{story}.py" for story in STORIES}


@pytest.mark.parametrize("story", STORIES)
def test_a_story_is_read_in_one_sitting_and_says_how_long_it_takes(story):
  text = _path(story).read_text(encoding="utf-8")
  assert len(text.splitlines()) <= MAX_LINES
  said = " ".join((ast.get_docstring(ast.parse(text)) or "").split())
  assert "seconds on two CPU cores" in said
  assert f"python stories/{story}.py [FOLDER]" in said


@pytest.mark.parametrize("story", STORIES)
def test_a_story_uses_public_names_alone(story):
  assert _not_public(_path(story).read_text(encoding="utf-8")) == []


def test_what_isnt_public_is_found():
  text = (
    "import prm_jax.rl\n"
    "from prm_jax.search import engine\n"
    "from prm_jax.testbed import arithmetic\n"
    "from prm_jax import schema\n"
    "import jax\n"
    "prm_jax.load, prm_jax.voting, arithmetic._slip\n"
  )
  assert _not_public(text) == [
    *("prm_jax.rl", "prm_jax.search", "prm_jax.schema", "jax"),
    *("prm_jax.voting", "arithmetic._slip"),
  ]


def _not_public(text: str) -> list[str]:
  """Returns what a program uses that isn't for its user."""
  found = []
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.Import):
      found += [x.name for x in node.names if not _may_import(x.name)]
    elif isinstance(node, ast.ImportFrom) and node.module == FACE:
      names = {x.name for x in node.names} - set(prm_jax.__all__)
      found += [f"{FACE}.{x}" for x in names if f"{FACE}.{x}" not in MODULES]
    elif isinstance(node, ast.ImportFrom):
      found += [node.module] if not _may_import(node.module) else []
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
      of_face = node.value.id == FACE
      is_hidden = of_face and node.attr not in prm_jax.__all__
      if is_hidden or node.attr.startswith("_"):
        found.append(f"{node.value.id}.{node.attr}")
  return found


def _may_import(module: str) -> bool:
  """Whether a user may import a module: by the standard library, or by name."""
  top = module.partition(".")[0]
  return module in (FACE, *MODULES) or (
    top in (*sys.stdlib_module_names, "numpy") and top != FACE
  )
