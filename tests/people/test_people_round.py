"""A round: people's labels are learned, and the queue is ranked anew."""

from collections.abc import Sequence
import json
import logging
import pathlib
import shlex
import subprocess
import sys
import time

import pytest
import small_config

import prm_jax
from prm_jax.cli import main
from prm_jax.jobs import step_scores
from prm_jax.people import desk as desk_lib
from prm_jax.people import model_order
from prm_jax.people import people_folder
from prm_jax.people import people_round
from prm_jax.people import work_queue
from prm_jax.records import jsonl
from prm_jax.runtime import files
from prm_jax.text import encoding

DESIGN = work_queue.Design(
  gold_share=0.3, random_share=0.3, overlap_share=0.3, seed=1
)


def solution(number: int, prefix: str = "p", **more) -> prm_jax.Solution:
  """Returns a solution whose second step is wrong if the number is odd."""
  last = "2 + 2 = 5" if number % 2 else "2 + 2 = 4"
  steps = (f"take {number}", last, "so that is it")
  name = f"{prefix}{number}"
  return prm_jax.Solution(name, f"What of {number // 2}?", steps, **more)


def answer(item) -> dict:
  wrong = "2 + 2 = 5" in item.steps
  return dict(kind="error", step=1) if wrong else dict(kind="right")


def begin(path, task="first_error", num=40):
  """Begins a folder with a pool and gold."""
  pool = [solution(i, outcome=i % 2 == 0) for i in range(num)]
  gold = [
    solution(i, "g", ratings=(1, -1, None) if i % 2 else (1, 1, 1))
    for i in range(100, 104)
  ]
  gold = gold if task == "first_error" else []
  return people_folder.begin(path, task, DESIGN, pool, gold)


def desk_of(folder, names: Sequence[str] = ("ann", "bob"), **options):
  """Returns the desk that the command serves."""
  verb = prm_jax.LabelPeople(**vars(DESIGN), **options)
  work = verb._work(folder)
  return desk_lib.Desk(work, folder.store(), {x: x for x in names})


def judge(desk, name, number, answer=answer):
  """Has a person judge as many items; returns what was given."""
  told = []
  for _ in range(number):
    shown = desk.next(name)["item"]
    given = desk._found(name, shown["id"])
    told.append(given)
    event = answer(desk._work.items[given.item])
    desk.add(
      name,
      dict(item=shown["id"], event=event, id=shown["id"], after=shown["last"])
      | dict(seconds=2.0),
    )
  return told


def config(path):
  """Writes a small config whose data aren't there."""
  path.write_text(
    small_config.text(
      data=dict(train=("jsonl:nothing.jsonl",), holdout=0.0),
      model=dict(d_model=16, head_dim=8, d_ff=16),
      eval_rows=8,
      fit=dict(steps=4, log_every=4, eval_every=0, checkpoint_every=2),
    )
  )
  return path


@pytest.fixture(scope="module")
def done(tmp_path_factory):
  """Returns a folder before and after a round, and what people judged."""
  root = tmp_path_factory.mktemp("round")
  folder = begin(root / "labels")
  desk = desk_of(folder)
  told = judge(desk, "ann", 16) + judge(desk, "bob", 8)
  # One that is begun, and stays so.
  begun = desk.next("ann")["item"]
  before = [*desk._work.pool.ranked]
  command = ["label", "people_round", f"--input={folder.path}"]
  command += [f"--config={config(root / 'c.py')}", f"--output={root / 'r'}"]
  assert main.main(command) == 0
  return root, folder, desk, told, begun, before, command


def test_a_round_trains_measures_and_ranks(done):
  root, folder, _, told, *_ = done
  assert (root / "r" / people_round.MODEL / "model.json").exists()
  written = files.read_json(root / "r" / people_round.ROUND)
  labels = written["labels"]
  by = {x.why for x in told}
  assert by == {"gold", "random", "chosen"}
  num_gold = sum(x.why == "gold" for x in told)
  assert labels["judgements"] == len(told) - num_gold
  assert labels["given_for"] == {
    why: sum(x.why == why for x in told) for why in ("random", "chosen")
  }
  assert labels["people"] == 2
  assert written["held_out"]["first_errors"]["num_err"] > 0
  assert written["model"]["fingerprint"].startswith("sha256:")
  text = (folder.path / people_folder.SCORES).read_text()
  scored = [json.loads(x) for x in text.splitlines()]
  assert {x["id"] for x in scored} == {
    *(f"p{i}" for i in range(40)),
    *(f"g{i}" for i in range(100, 104)),
  }
  assert {x["model"] for x in scored} == {written["model"]["fingerprint"]}


def test_neither_gold_nor_what_was_drawn_at_random_is_learned(done, tmp_path):
  root, folder, _, told, *_ = done
  train = [*jsonl.read_solutions(root / "r" / people_round.TRAIN)]
  held_out = [*jsonl.read_solutions(root / "r" / people_round.HELD_OUT)]
  chosen = {x.item for x in told if x.why == "chosen"}
  drawn = {x.item for x in told if x.why == "random"}
  assert {s.id for s in train} == chosen
  assert {s.id for s in held_out} == drawn
  # Two people's are one, with both names, and say what they were given for.
  both = [s for s in train if len(s.extra["annotators"]) == 2]
  assert both and all(s.extra["given_for"] == "chosen" for s in train)
  people_round._keep_labels(
    folder, tmp_path, encoding.LabelPolicy(), dict(train_on_random=True)
  )
  train = [*jsonl.read_solutions(tmp_path / people_round.TRAIN)]
  assert {s.id for s in train} >= chosen | drawn
  assert not any(s.id.startswith("g") for s in train)
  assert [*jsonl.read_solutions(tmp_path / people_round.HELD_OUT)] == []


@pytest.mark.slow
def test_the_pages_commands_run_as_written(tmp_path, monkeypatch):
  """On a folder with a first error, gold, and a step on which two differ."""
  root = pathlib.Path(__file__).parents[2]
  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv("PRM_JAX_DATA", raising=False)
  (tmp_path / "experiments").symlink_to(root / "experiments")
  folder = begin("labels")
  jsonl.write_solutions("samples.jsonl", folder.pool())
  desk = desk_of(folder)
  judge(desk, "ann", 30)
  judge(desk, "bob", 8, lambda item: dict(kind="error", step=0))
  tiny = [
    *("tokenizer.vocab_size=64", "tokenizer.model_type=word", "eval_rows=8"),
    *("packing.sequence_length=64", "encoding.max_tokens=64"),
    *("fit.steps=4", "fit.eval_every=2", "fit.checkpoint_every=2"),
    *("optimizer.warmup_steps=1", "packing.batch_size=8"),
    *("model.d_model=16", "model.num_layers=1", "model.d_ff=32"),
  ]
  page = (root / "docs" / "people.md").read_text()
  blocks = page.split("test_the_pages_commands_run_as_written -->\n```\n")
  ran = []
  for line in "".join(x.partition("```")[0] for x in blocks[1:]).splitlines():
    words = shlex.split(line)[1:]
    ran.append(words[1])
    if words[1] == "people_round":
      words += [f"--config.{x}" for x in tiny]
    assert main.main(words) == 0, line
  assert ran[:2] == ["people_report", "people_round"] and len(ran) == 8


def test_a_running_server_gives_by_the_new_order_and_keeps_the_rest(done):
  _, folder, desk, _, begun, before, _ = done
  assert desk.next("ann")["item"]["id"] == begun["id"]
  after = [*desk._work.pool.ranked]
  assert after != before and sorted(after) == sorted(before)
  assert desk._work.pool.gold == [f"g{i}" for i in range(100, 104)]
  rows = model_order.ScoresFile(
    folder.path / people_folder.SCORES, [], print, is_known=False
  )
  assert rows.news() == ({}, True)
  # By the model: the wrong answers first, those with the highest scores before.
  scores = desk._work.scores
  assert scores.keys() == desk._work.items.keys()
  worst = [min(scores[x]["model"]) for x in after if int(x[1:]) % 2]
  assert after[: len(worst)] == [x for x in after if int(x[1:]) % 2]
  assert worst == sorted(worst, reverse=True)
  # A restart takes them, too, without a word on the command line.
  again = desk_of(folder)
  again.next("bob")
  assert [*again._work.pool.ranked] == after
  assert [*desk_of(folder, order="file")._work.pool.ranked] == before


def test_the_random_part_stays_random_and_scores_are_hidden(done):
  folder = done[1]
  again = desk_of(folder, ["cat"])
  shown = again.next("cat")["item"]
  assert shown["scores"] is None
  given = judge(again, "cat", 6)
  for x in given:
    random = work_queue.is_random(folder.design, x.item)
    assert x.why == "gold" or (x.why == "random") == random
    # Gold has scores like the rest, once it is judged.
    name = again._name(x)
    assert len(again.item("cat", name)["scores"]["model"]) == 3


def test_the_same_command_goes_on_with_its_labels(done, capsys):
  root, folder, _, _, _, _, command = done
  scores = (folder.path / people_folder.SCORES).read_bytes()
  train = (root / "r" / people_round.TRAIN).read_bytes()
  (folder.path / people_folder.SCORES).unlink()
  judge(desk_of(folder, ["dan"]), "dan", 2)
  assert main.main(command) == 0
  assert (root / "r" / people_round.TRAIN).read_bytes() == train
  assert (folder.path / people_folder.SCORES).read_bytes() == scores
  # Another config is another round.
  assert main.main([*command, "--config.seed=5"]) == 1
  assert "seed" in capsys.readouterr().err
  assert (folder.path / people_folder.SCORES).read_bytes() == scores
  other = begin(root / "other")
  judge(desk_of(other), "ann", 12)
  there = [x.replace(str(folder.path), str(other.path)) for x in command]
  assert main.main(there) == 1
  assert "a round of another folder" in capsys.readouterr().err
  assert main.main([*command, "--train_on_random"]) == 1
  assert "another train_on_random" in capsys.readouterr().err
  (root / "full").mkdir()
  (root / "full" / "mine.txt").touch()
  assert main.main([*command, f"--output={root / 'full'}"]) == 1
  assert "something else, mine.txt" in capsys.readouterr().err


def test_a_round_that_never_trained_takes_what_was_said_since(
  done, tmp_path, monkeypatch
):
  command = done[-1]
  folder = begin(tmp_path / "labels")
  there = [x.replace(str(done[1].path), str(folder.path)) for x in command[:-1]]
  there.append(f"--output={tmp_path / 'r'}")

  def fail(*_):
    raise prm_jax.errors.InputError("a file isn't there")

  monkeypatch.setattr(people_round, "_train", fail)
  nums = []
  for name in ("ann", "bob"):
    judge(desk_of(folder), name, 12)
    assert main.main(there) == 1
    nums.append(len([*jsonl.read_solutions(tmp_path / "r" / "train.jsonl")]))
  assert 0 < nums[0] < nums[1]


def test_a_killed_round_leaves_the_folder_as_it_was(done, tmp_path):
  _, folder, _, _, _, _, command = done
  before = (folder.path / people_folder.SCORES).read_bytes()
  there = [*command[:-1], f"--output={tmp_path / 'r'}"]
  call = [sys.executable, "-m", "prm_jax", *there, "--config.fit.steps=9999"]
  with subprocess.Popen(
    call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
  ) as process:
    saved = tmp_path / "r" / people_round.MODEL / "checkpoints"
    end = time.monotonic() + 60
    while not saved.is_dir() and time.monotonic() < end:
      time.sleep(0.02)
    process.kill()
  assert saved.is_dir() and before
  assert (folder.path / people_folder.SCORES).read_bytes() == before
  assert "model" not in files.read_json(tmp_path / "r" / people_round.ROUND)


@pytest.mark.parametrize("broken", ["", '{"id": "p0", "step_scores": [0.5,'])
def test_a_broken_file_of_scores_changes_nothing_and_is_told_once(
  tmp_path, caplog, broken
):
  folder = begin(tmp_path / "labels")
  desk = desk_of(folder)
  pool, gold = (
    folder.items(),
    people_folder.items_of("first_error", folder.gold()),
  )
  path = folder.path / people_folder.SCORES
  path.write_text(broken)
  with caplog.at_level(logging.ERROR):
    desk.next("ann")
    desk.next("ann")
  assert len(caplog.records) == 1 and "stays as it is" in caplog.text
  assert "\n" not in caplog.records[0].message
  assert [*desk._work.pool.ranked] == [x.id for x in pool]
  # All of the pool and none of gold: that would tell which gold is.
  rows = [dict(id=x.id, step_scores=[0.1, 0.2, 0.3]) for x in pool]
  files.write_records(path, rows)
  desk.next("ann")
  assert not desk._work.scores and len(caplog.records) == 2
  assert "no scores of 4 items" in caplog.text
  rows += [dict(id=x.id, step_scores=[0.1, 0.2, 0.3]) for x in gold]
  files.write_records(path, rows)
  desk.next("ann")
  assert len(desk._work.scores) == len(rows) and len(caplog.records) == 2


def test_a_pool_that_grew_after_a_round_keeps_its_order(tmp_path):
  folder = begin(tmp_path / "labels", num=8)
  everything = [
    *folder.items(),
    *people_folder.items_of("first_error", folder.gold()),
  ]
  files.write_records(
    folder.path / people_folder.SCORES,
    (
      dict(id=x.id, step_scores=[0.1 * (i % 8)] * 3)
      for i, x in enumerate(everything)
    ),
  )
  ranked = ["p7", "p5", "p3", "p1", "p6", "p4", "p2", "p0"]
  desk = desk_of(folder)
  desk.next("ann")
  assert desk._work.pool.ranked == ranked and len(desk._work.scores) == 12
  desk = desk_of(begin(tmp_path / "labels", num=10))
  desk.next("ann")
  # p9 is a wrong answer without a score, p8 a right one.
  assert desk._work.pool.ranked == [*ranked[:4], "p9", *ranked[4:], "p8"]
  # What has scores could be gold; what has none couldn't.
  assert desk._work.scores == {}


def refused(tmp_path, folder, *words):
  command = ["label", "people_round", f"--input={folder.path}", *words]
  if not any(x.startswith("--config=") for x in words):
    command += [f"--config={config(tmp_path / 'c.py')}"]
  assert main.main([*command, f"--output={tmp_path / 'r'}"]) == 1
  assert not (tmp_path / "r").exists()


def test_labels_that_nothing_can_learn_are_refused(tmp_path, capsys):
  folder = begin(tmp_path / "labels")
  refused(tmp_path, folder)
  err = capsys.readouterr().err
  assert "0 right steps and 0 wrong ones" in err and "at_random=" not in err
  judge(desk_of(folder), "ann", 16)
  said = [*people_folder.read(folder.path / people_folder.JUDGEMENTS)]
  right = [s for s in said if s.ratings == (1, 1, 1)]
  (why,) = people_round._faults(right, said, encoding.LabelPolicy())
  assert "0 wrong ones" in why and "`train_on_random=True`" in why
  refused(tmp_path, begin(tmp_path / "pairs", "pairs"))
  assert "no ratings of steps" in capsys.readouterr().err
  (tmp_path / "o.py").write_text(
    config(tmp_path / "c.py").read_text().replace('"prm"', '"orm"', 1)
  )
  refused(tmp_path, folder, f"--config={tmp_path / 'o.py'}")
  err = capsys.readouterr().err
  assert "program='orm' doesn't learn" in err and len(err.splitlines()) == 1


def test_an_item_that_is_judged_meanwhile_says_what_it_was_given_for(
  tmp_path, monkeypatch
):
  folder = begin(tmp_path / "labels")
  desk, states = desk_of(folder), people_folder.Folder.states

  def states_of_a_moment_later(self):
    judge(desk, "ann", 6)
    return states(self)

  monkeypatch.setattr(people_folder.Folder, "states", states_of_a_moment_later)
  said = [*people_folder.read(folder.path / people_folder.JUDGEMENTS)]
  assert said and {s.extra["given_for"] for s in said} <= {"random", "chosen"}


def test_of_alternatives_the_ratings_are_learned_and_nothing_is_ranked(
  tmp_path, caplog
):
  folder = begin(tmp_path / "labels", "alternatives")
  desk = desk_of(folder, task="alternatives")
  for number in range(6):
    shown = desk.next("ann")["item"]
    # Both solutions of a problem begin otherwise; one of them is taken.
    for k, event in enumerate(
      [
        dict(kind="rate", step=0, alternative=0, rating=1),
        dict(kind="rate", step=0, alternative=1, rating=-1),
        dict(kind="take", alternative=0),
        dict(kind="end", reason="solution"),
      ]
    ):
      sent = dict(item=shown["id"], event=event, id=f"{number}-{k}")
      shown = desk.add("ann", sent | dict(after=shown["last"], seconds=1.0))
  output = tmp_path / "r"
  people_round._keep_labels(
    folder, output, encoding.LabelPolicy(), dict(train_on_random=False)
  )
  labels = files.read_json(output / people_round.ROUND)["labels"]
  assert labels["right_steps"] == labels["wrong_steps"] > 0
  assert labels["train"] + labels["held_out"] == 12 and labels["held_out"]
  with caplog.at_level(logging.INFO):
    people_round._rank(folder, step_scores.Source())
  assert "the order stays" in caplog.text
  assert not (folder.path / people_folder.SCORES).exists()
