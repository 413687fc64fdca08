"""What `import prm_jax` gives: every name, in no time, with values checked."""

import json
import logging
import os
import pathlib
import pkgutil
import shutil
import subprocess
import sys
import types

import pytest
import using_prm_jax

import prm_jax

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  folder = tmp_path_factory.mktemp("public")
  using_prm_jax.train(folder / "prm")
  using_prm_jax.train_policy(folder / "sft")
  return folder


def test_the_import_loads_no_jax():
  code = "import sys, prm_jax; sys.exit('jax' in sys.modules)"
  assert (
    subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
  )


def test_every_public_name_stays_what_it_is_after_all_modules_are_imported():
  for module in pkgutil.walk_packages(prm_jax.__path__, "prm_jax."):
    if module.name != "prm_jax.__main__":
      __import__(module.name)
  modules = {"losses", "returns", "advantages"}
  for name in set(prm_jax.__all__) - {"__version__"}:
    value = getattr(prm_jax, name)
    assert isinstance(value, types.ModuleType) == (name in modules), name
  assert set(prm_jax.__all__) <= set(dir(prm_jax))
  with pytest.raises(AttributeError, match="no attribute 'scorer_of_all'"):
    _ = prm_jax.scorer_of_all


def test_a_finished_run_takes_a_segmenter_and_nothing_else_changes(
  folders, tmp_path
):
  folder = shutil.copytree(folders / "prm", tmp_path / "prm")
  before = prm_jax.load(folder)
  config = using_prm_jax.PRM | dict(segmenter="line")
  prm_jax.train(config, using_prm_jax.solutions(), folder)
  after = prm_jax.load(folder)
  steps = ["2 + 3 = 5", "5 * 4 = 20"]
  assert after.score("2 + 3 * 4", steps) == before.score("2 + 3 * 4", steps)
  found = after.score_text("2 + 3 * 4", "\n".join(steps))
  assert found.spans == ((0, 9), (10, 20))
  for other in ("sentence", ""):
    config["segmenter"] = other
    with pytest.raises(prm_jax.InputError, match="other values of segmenter"):
      prm_jax.train(config, using_prm_jax.solutions(), folder)
  assert prm_jax.load(folder).segmenter == after.segmenter


def test_a_users_program_calls_every_name(folders, tmp_path):
  (one,) = using_prm_jax.score(str(folders / "prm")).scores
  assert 0 < one < 1
  sampled = using_prm_jax.sample(
    str(folders / "sft"), str(tmp_path / "sampled.jsonl")
  )
  assert len({s.id for s in sampled}) == 2
  found = using_prm_jax.search(str(folders / "sft"), str(folders / "prm"))
  assert [s.id for s in found] == ["p", "p"]
  labelled = using_prm_jax.label_without_rollouts(str(folders / "sft"))
  assert all("cpmi" in s.extra for s in labelled)
  labelled = using_prm_jax.label(prm_jax.load(folders / "sft"))
  assert all(s.labels is not None for s in labelled)
  found = using_prm_jax.data_sets(
    str(tmp_path / "in.jsonl"), str(tmp_path / "built")
  )
  assert found["solutions"] == 4
  exchanged = using_prm_jax.exchange(str(folders / "prm"), str(tmp_path))
  assert exchanged == "native"
  assert "labels[0] is 7.0" in using_prm_jax.refused()
  assert using_prm_jax.rewards() > 2


def test_a_model_in_a_notebook_is_shown_in_one_line(folders):
  for name in ("prm", "sft"):
    text = repr(prm_jax.load(folders / name))
    assert len(text) < 200 and "\n" not in text and "parameters" in text


def test_a_model_is_its_scores_whatever_is_scored_together(folders):
  prm = prm_jax.load(folders / "prm")
  together = prm.score(using_prm_jax.solutions())
  for s, expected in zip(using_prm_jax.solutions(), together):
    alone = prm.score(s.problem, list(s.steps))
    assert alone.scores == pytest.approx(expected.scores, abs=1e-6)
    assert alone.logits == pytest.approx(expected.logits, abs=1e-5)


def test_solutions_are_scored_in_parts_of_bounded_size(folders):
  import dataclasses

  prm = prm_jax.load(folders / "prm")
  parts = dataclasses.replace(prm, chunk_solutions=3)
  many = using_prm_jax.solutions() * 2
  pulled = 0

  def stream():
    nonlocal pulled
    for s in many:
      pulled += 1
      yield s

  scores = prm.score(many)
  rows = parts.score(stream())
  assert pulled == len(many) and len(rows) == len(many)
  for row, expected in zip(rows, scores):
    assert row.scores == pytest.approx(expected.scores, abs=1e-6)


def test_the_best_of_n_is_by_log_odds_and_says_what_isnt_judged(caplog):
  solutions = [prm_jax.Solution(x, "p", ("a", "b")) for x in "abc"]
  odds = dict(a=(18.0, 30.0), b=(19.0, 20.0), c=(20.0, 17.5))

  def score(given):
    return [
      prm_jax.StepScores(
        (1.0, 1.0), logits=odds[s.id], judged=(True, s.id != "a")
      )
      for s in given
    ]

  best = {"last": "a", "min": "b", "product": "b", "mean": "b"}
  for how, name in best.items():
    caplog.clear()
    assert prm_jax.best_of_n(solutions, score, aggregate=how).id == name
    warned = "wasn't trained to judge" in caplog.text
    assert warned == (how in ("last", "mean"))


def test_a_text_that_no_model_says_how_to_cut_is_refused(folders):
  prm = prm_jax.load(folders / "prm")
  with pytest.raises(prm_jax.InputError, match="how a text is cut"):
    prm.score_text("2 + 3", "2 + 3 = 5\n\nSo 5.")


def test_the_import_leaves_other_loggers_alone():
  code = (
    "import logging, prm_jax;"
    "before = {n: logging.getLogger(n).level for n in ('absl', 'jax', '')};"
    "prm_jax.load, prm_jax.train, prm_jax.Scorer;"
    "after = {n: logging.getLogger(n).level for n in before};"
    "assert before == after, (before, after)"
  )
  subprocess.run([sys.executable, "-c", code], check=True)
  assert logging.getLogger("absl") is not None


def test_a_folder_that_is_no_model_is_refused_in_one_line(tmp_path):
  with pytest.raises(prm_jax.InputError) as caught:
    prm_jax.load(tmp_path)
  assert "not a checkpoint folder" in str(caught.value)
  assert "\n" not in str(caught.value)


# Trains, scores and labels as a user's program does.
PROGRAM = """
import logging, pathlib, sys
import prm_jax
{setup}
import using_prm_jax as user
folder = pathlib.Path(sys.argv[1])
user.train(folder / "prm")
user.score(str(folder / "prm"))
user.label(user.train_policy(folder / "sft"))
"""


def _outputs(folder, setup=""):
  done = subprocess.run(
    [sys.executable, "-c", PROGRAM.format(setup=setup), str(folder)],
    cwd=pathlib.Path(__file__).parent,
    env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    capture_output=True,
    text=True,
    check=True,
  )
  return done.stdout, done.stderr


@pytest.mark.faults
def test_training_scoring_and_labelling_print_nothing(tmp_path):
  assert _outputs(tmp_path) == ("", "")


@pytest.mark.faults
def test_a_program_that_logs_gets_each_line_once(tmp_path):
  setup = (
    "logging.basicConfig(level=logging.INFO, format='%(name)s|%(message)s')"
  )
  out, err = _outputs(tmp_path, setup)
  lines = [x for x in err.splitlines() if x.startswith("prm_jax.")]
  assert not out
  for name in ("prm", "sft"):
    ends = f"prm_jax.training.metrics_log|{name} train step 2/2 "
    assert sum(x.startswith(ends) for x in lines) == 1
  assert len(set(lines)) == len(lines)


# Calls with values of another type, and what the refusal says.
MISTAKES = {
  'prm.score("2 + 3", "so 5")': "score: steps must be a list of str",
  'prm.score("2 + 3")': "a problem without steps",
  'prm.score(None, ["so 5"])': "problem must be str | a list of Solution",
  'prm.score(solutions, ["so 5"])': "the problem is a list; with steps",
  "prm.score(solutions[0])": "problem must be str | a list of Solution",
  'prm.score([("2 + 3", ["so 5"])])': "problem must be str | a list of",
  "prm.score(iter([3]))": "solutions[0] is a int",
  'prm.score_text("2 + 3", 5)': "score_text: text must be str, found 5",
  'policy.sample(["2 + 3"])': "sample: problem must be str | Problem",
  'policy.sample("2 + 3", n="4")': "sample: n must be int, found '4'",
  'policy.sample("2 + 3", sampling=1.0)': "sampling must be Sampling, found 1.0",
  "prm_jax.best_of_n(solutions, policy)": "best_of_n: score must be Scorer |",
  'prm_jax.best_of_n(["2 + 3"], prm)': "solutions must be a list of Solution",
  "prm_jax.CachedScorer(policy)": "scorer must be Scorer, found Sampler",
  "prm_jax.CachedScorer(prm, cache_tokens=None)": "cache_tokens must be int",
  "prm_jax.CachedScorer(prm).score(solutions[0])": "a list of Solution",
  'prm_jax.CachedScorer(prm).score("2 + 3")': "a list of Solution",
  "prm_jax.label(solutions, prm)": "label: policy must be Sampler |",
  'prm_jax.label(solutions, policy, completions="8")': "completions must be int",
  'prm_jax.train("missing.py", [], "run")': "`config=missing.py`: no such file",
  'prm_jax.train(3, [], "run")': "train: config must be Config |",
  "prm_jax.load(3)": "load: folder must be a path, found 3",
  "prm_jax.load(None)": "load: folder must be a path, found None",
  'prm_jax.load("prm", step=[1])': "load: step must be",
  "prm_jax.load_score(3)": "load_score: name must be a path, found 3",
  "prm_jax.Client(3)": "endpoint.url must be str, found 3",
  'prm_jax.Client("http://localhost/v1", tries=None)': "tries must be a number",
  "prm_jax.StepScores(None)": "scores must be a list with a number",
  "prm_jax.read_solutions(b'x')": "read_solutions: path must be a path",
  'prm_jax.write_solutions("x.jsonl", [3])': "solutions must be a list of",
}


def test_a_call_that_means_something_else_is_refused_in_one_line(folders):
  # In a process of its own: here, prm_jax's calls are checked for types.
  code = f"""
import json, prm_jax, using_prm_jax
prm, policy = prm_jax.load("prm"), prm_jax.load("sft")
solutions = using_prm_jax.solutions()
lines = []
for call in {list(MISTAKES)!r}:
  try:
    lines.append("accepted: " + repr(eval(call)))
  except prm_jax.InputError as e:
    lines.append(str(e))
print(json.dumps(lines))
"""
  env = os.environ | dict(PYTHONPATH=os.pathsep.join(sys.path))
  done = subprocess.run(
    [sys.executable, "-c", code],
    cwd=folders,
    env=env,
    check=True,
    capture_output=True,
    text=True,
  )
  for line, (call, message) in zip(json.loads(done.stdout), MISTAKES.items()):
    assert message in line, call
    assert "\n" not in line and "--" not in line
