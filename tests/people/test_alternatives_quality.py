"""The report on alternatives says what people did, and how far two agree."""

import json

import desks
import pytest

from prm_jax import schema
from prm_jax.cli import main
from prm_jax.people import alternatives_quality
from prm_jax.people import judgements
from prm_jax.people import people_folder
from prm_jax.people import work_queue


def rate(step, number, rating):
  return dict(kind="rate", step=step, alternative=number, rating=rating)


@pytest.fixture
def folder(tmp_path):
  """A folder in which two people judged an item, and one gave up another."""
  pool = [
    schema.Solution(s.id, "What?", s.steps)
    for s in desks.item("alternatives").solutions
  ]
  folder = people_folder.begin(
    *(tmp_path / "labels", "alternatives", work_queue.Design()), pool, []
  )
  store = folder.store()
  # The text of another path's.
  draw = judgements.Draw(("2 + 2 = 4",), (), {"2 + 2 = 5": True}, False)
  item = store.draw(folder.items()[0], draw, 0.0)
  take = dict(kind="take", alternative=0)
  end = dict(kind="end", reason="solution")
  said = dict(
    ann=[rate(0, 0, 1), rate(0, 1, -1), take, rate(1, 0, 1), take, end],
    bob=[
      *(rate(0, 0, 1), rate(0, 1, 0), take, rate(1, 0, -1)),
      *(dict(kind="write", text="mine"), end),
    ],
    cat=[rate(0, 0, -1), dict(kind="end", reason="give_up")],
  )
  for name, events in said.items():
    last = 0
    for i, event in enumerate(events):
      kept, _ = store.add(
        *(item, name, event),
        id=f"{name}{i}",
        after=last,
        seconds=2.0,
        at=1_600_000_000.5,
      )
      last = kept.number
  store.close()
  return folder


def test_what_people_did_is_counted(folder):
  told = alternatives_quality.report(folder, num_resamples=20)
  ann, bob = told["people"]["ann"], told["people"]["bob"]
  assert told["people"].keys() == {"ann", "bob"}
  assert (ann["items"], ann["steps"], ann["rated"]) == (1, 2, 3)
  assert ann["seconds_a_rating"] == 4.0
  assert ann["rated_right"]["value"] == 2 / 3
  assert ann["rated_right"]["interval"] is None  # of one item
  assert ann["rated_wrong"]["value"] == bob["rated_neutral"]["value"] == 1 / 3
  assert ann["written"]["value"] == 0 and bob["written"]["value"] == 0.5


def test_agreement_is_on_what_two_rated_at_the_same_path(folder):
  """Of the first step both, one apart by half; of the second one, apart."""
  found = alternatives_quality.report(folder, num_resamples=20)["agreement"]
  (pair,) = found["pairs"]
  assert (pair["a"], pair["b"], pair["solutions"]) == ("ann", "bob", 3)
  assert pair["first_error_same"]["value"] == pytest.approx(1 / 3)


def test_the_command_writes_it_and_the_rows_of_prm800k(
  folder, tmp_path, capsys
):
  out = tmp_path / "people.json"
  command = ["label", "people_report", f"--input={folder.path}"]
  assert main.main([*command, f"--output={out}"]) == 0
  assert "steps of their own" in capsys.readouterr().out
  assert json.loads(out.read_text())["people"]["bob"]["steps"] == 2
  rows = tmp_path / "rows.jsonl"
  source = folder.path / people_folder.JUDGEMENTS
  convert = ["data", "convert", str(source), "--format=people"]
  assert main.main([*convert, "--to=prm800k", f"--output={rows}"]) == 0
  ann, bob = map(json.loads, rows.read_text().splitlines())
  assert ann["labeler"] == "ann" and ann["label"]["total_time"] == 12_000
  assert ann["timestamp"] == "2020-09-13T12:26:40.500"
  assert [
    [(x["text"], x["rating"]) for x in step["completions"]]
    for step in ann["label"]["steps"]
  ] == [[("2 + 2 = 4", 1), ("2 + 2 = 5", -1)], [("2 + 2 = 5", 1)]]
  assert bob["label"]["steps"][1]["human_completion"]["text"] == "mine"


def test_of_nobody_there_is_no_report(tmp_path, capsys):
  pool = [desks.solution("a")]
  folder = people_folder.begin(
    *(tmp_path / "l", "alternatives", work_queue.Design()), pool, []
  )
  assert main.main(["label", "people_report", f"--input={folder.path}"]) == 1
  assert "nobody has ended" in capsys.readouterr().err
