"""Next steps that a policy draws: different, kept before they are shown."""

import contextlib
import json
import logging
import sqlite3
import threading
import time

import desks
import pytest

import prm_jax
from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets.formats import prm800k
from prm_jax.jobs import policies
from prm_jax.people import desk as desk_lib
from prm_jax.people import drawn_steps
from prm_jax.people import judgement_store
from prm_jax.people import judgements
from prm_jax.records import sources
from prm_jax.runtime import files
from prm_jax.runtime import listening
from prm_jax.search import search_models
from prm_jax.search import writers

RATE = dict(kind="rate", step=0, alternative=0, rating=1)


def writer(*texts, ended=()):
  """Returns a policy that writes these texts, each time the next ones."""
  left = iter(texts)

  def generate(prefixes, num):
    generate.asked += [x.id for x in prefixes]
    rows = []
    for prefix in prefixes:
      new = [next(left, "") for _ in range(num)]
      rows.append(
        [
          schema.Solution(
            f"{prefix.id}/{i}",
            prefix.problem,
            (*prefix.steps, *([text] if text else [])),
            extra=dict(ended=text in ended, stopped="step"),
          )
          for i, text in enumerate(new)
        ]
      )
    return rows

  generate.asked = []
  return generate


def problem(id_="a"):
  return judgements.Item(id_, "alternatives", (desks.solution(id_, ()),))


def drawn(desk, name="ann"):
  """Returns the item of a person once nothing is being drawn."""
  end = time.monotonic() + 10
  while True:
    shown = desk.next(name)["item"]
    if not shown["draws"]["is_drawing"]:
      return shown
    assert time.monotonic() < end, "it draws for ever"
    time.sleep(0.005)


def body(shown, event, id_):
  known = dict(item=shown["id"], event=event, id=id_, after=shown["last"])
  return known | dict(seconds=2.0)


@pytest.fixture
def begin(tmp_path):
  """Begins a desk with a policy, as often as it is asked for."""
  desks_begun = []

  def begin(generate, *items, num=2, **design):
    items = items or (problem(),)
    desk = desks.desk(
      *(tmp_path, "alternatives", items),
      generate=generate,
      num_drawn=num,
      **design,
    )
    desks_begun.append(desk)
    return desk

  yield begin
  for desk in desks_begun:
    desk.close()


def test_as_many_different_steps_are_drawn_as_are_wanted():
  item = desks.item("alternatives")
  generate = writer("2 + 2 = 4", "2  +  2 = 4 ", "x", "\ud800", "x ", "y", "z")
  asked = drawn_steps.Asked(item, ())
  (draw,) = drawn_steps.draws(generate, [asked], 2)
  # One that is there, but for white space, isn't new: more are asked for.
  assert draw.steps == {"x": False, "y": False}
  assert draw.known == ("2 + 2 = 4", "2 + 2 = 5") and not draw.is_end
  assert len({*generate.asked}) == len(generate.asked) == 3


def test_a_step_without_an_end_isnt_one():
  def generate(prefixes, num):
    return [
      [
        schema.Solution(
          "x", p.problem, (*p.steps, "half"), extra=dict(stopped="length")
        )
        for _ in range(num)
      ]
      for p in prefixes
    ]

  (draw,) = drawn_steps.draws(generate, [drawn_steps.Asked(problem(), ())], 2)
  assert not draw.steps and not draw.is_end


def test_what_is_drawn_depends_on_the_item_the_path_and_the_round_alone():
  first, again, other = writer(), writer(), writer()
  asked = drawn_steps.Asked(problem(), ("x",))
  drawn_steps.draws(first, [asked], 1)
  drawn_steps.draws(again, [drawn_steps.Asked(problem("b"), ()), asked], 1)
  drawn_steps.draws(other, [drawn_steps.Asked(problem(), ("y",))], 1)
  assert {*first.asked} < {*again.asked}
  assert not {*first.asked} & {*other.asked}
  more = judgements.Item(
    *("a", "alternatives", problem().solutions),
    (judgements.Draw(("x",), (), {}, False),),
  )
  later = writer()
  drawn_steps.draws(later, [drawn_steps.Asked(more, ("x",))], 1)
  assert not {*first.asked} & {*later.asked}


def test_what_is_shown_is_kept_and_the_same_for_all_and_after_a_restart(
  begin, tmp_path
):
  desk = begin(writer("x", "y", "z", "w"), overlap_share=1.0)
  first = desk.next("ann")["item"]
  assert first["alternatives"] == [] and first["draws"]["is_drawing"]
  shown = drawn(desk)
  assert shown["alternatives"] == ["x", "y"]
  with sqlite3.connect(tmp_path / "judgements.db") as db:
    (text,) = db.execute("SELECT draw FROM drawn").fetchone()
  assert json.loads(text)["steps"] == {"x": False, "y": False}
  assert drawn(desk, "bob")["alternatives"] == ["x", "y"]
  desk.add("ann", body(shown, dict(RATE, alternative=1), "1"))
  again = begin(writer("never"), overlap_share=1.0)
  shown = drawn(again)
  assert shown["alternatives"] == ["x", "y"]
  assert shown["state"]["ratings"] == [[0, 1, 1]]
  # What is sent again is kept once, drawn step or not.
  sent = body(shown, dict(kind="take", alternative=1), "2")
  assert again.add("ann", sent)["state"] == again.add("ann", sent)["state"]


def test_first_steps_are_there_before_the_page_or_the_policy_is_refused(
  begin, caplog
):
  def down(prefixes, num):
    del prefixes, num
    raise errors.InputError("it is down")

  caplog.set_level(logging.INFO)
  with pytest.raises(errors.InputError, match="it is down"):
    begin(down).begin_drawing()
  generate = writer("x", "y")
  begin(generate).begin_drawing()
  # Who waits for a policy is told so.
  assert [x.levelname for x in caplog.records] == ["INFO", "INFO"]
  again = begin(down)
  again.begin_drawing()
  assert again.next("ann")["item"]["alternatives"] == ["x", "y"]
  assert len(generate.asked) == 1 and len(caplog.records) == 2


def test_more_is_drawn_once_however_often_it_is_asked_for(begin):
  generate = writer("x", "y", "y", "z", "w")
  desk = begin(generate)
  shown = drawn(desk)
  for _ in range(3):
    desk.draw("ann", dict(item=shown["id"], number=1))
  more = drawn(desk)
  assert more["alternatives"] == ["x", "y", "z", "w"]
  assert more["draws"]["number"] == 2
  desk.draw("ann", dict(item=shown["id"], number=1))
  assert not desk.next("ann")["item"]["draws"]["is_drawing"]
  for wrong in (3, dict(item=shown["id"]), dict(item=3, number=1)):
    with pytest.raises(desk_lib.Refused) as e:
      desk.draw("ann", wrong)
    assert e.value.status == 400
  with pytest.raises(desk_lib.Refused, match="no such item"):
    desk.draw("bob", dict(item=shown["id"], number=2))


def test_while_a_policy_writes_others_are_answered(begin):
  goes_on = threading.Event()
  write = writer("x", "y", "u", "v")

  def generate(prefixes, num):
    goes_on.wait(10)
    return write(prefixes, num)

  item = desks.item("alternatives", "b")
  desk = begin(generate, problem(), item)
  assert desk.next("ann")["item"]["draws"]["is_drawing"]
  # What is there is rated meanwhile, and keeps its number.
  shown = desk.next("bob")["item"]
  assert shown["alternatives"] == ["2 + 2 = 4", "2 + 2 = 5"]
  desk.add("bob", body(shown, dict(RATE, alternative=1, rating=-1), "1"))
  goes_on.set()
  shown = drawn(desk, "bob")
  assert shown["alternatives"][:2] == ["2 + 2 = 4", "2 + 2 = 5"]
  assert len(shown["alternatives"]) == 4
  assert shown["state"]["ratings"] == [[0, 1, -1]]


def test_a_pool_that_grows_leaves_what_was_drawn_its_number():
  solutions = desks.item("alternatives").solutions
  draw = judgements.Draw((), ("2 + 2 = 4",), {"x": False}, False)
  item = judgements.Item("a", "alternatives", solutions[:1], (draw,))
  assert item.alternatives(()) == ("2 + 2 = 4", "x")
  grown = judgements.Item("a", "alternatives", solutions, (draw,))
  assert grown.alternatives(()) == ("2 + 2 = 4", "x", "2 + 2 = 5")


def test_where_a_solution_ends_nothing_is_drawn_and_a_person_says_so(begin):
  desk = begin(writer("x", "12", ended={"12"}))
  shown = drawn(desk)
  assert shown["ends"] == [False, True] and not shown["is_end"]
  shown = desk.add("ann", body(shown, dict(RATE, alternative=1), "1"))
  take = dict(kind="take", alternative=1)
  shown = desk.add("ann", body(shown, take, "2"))
  assert shown["is_end"] and not shown["draws"]["is_drawing"]
  assert shown["state"]["reason"] is None
  end = dict(kind="end", reason="solution")
  shown = desk.add("ann", body(shown, end, "3"))
  assert shown["state"]["reason"] == "solution"


def test_a_policy_that_ends_without_a_further_step_ends_the_solution(begin):
  desk = begin(writer("x", "y", ended={""}))
  shown = drawn(desk)
  shown = desk.add("ann", body(shown, RATE, "1"))
  desk.add("ann", body(shown, dict(kind="take", alternative=0), "2"))
  shown = drawn(desk)
  assert shown["is_end"] and shown["alternatives"] == []


def test_of_a_solution_that_is_there_the_same_holds():
  whole = desks.solution("a")
  item = judgements.Item("a", "alternatives", (whole,))
  assert item.ends(whole.steps) and not item.ends(whole.steps[:2])
  cut = desks.solution("a", extra=dict(ended=False))
  assert not judgements.Item("a", "alternatives", (cut,)).ends(cut.steps)
  assert not problem().ends(())


@pytest.mark.parametrize(
  "error, why",
  [
    (errors.InputError("http://x: no answer\nmore"), "http://x: no answer"),
    (RuntimeError("the words of Ann"), "RuntimeError"),
  ],
)
def test_a_policy_that_is_down_is_asked_again_and_one_line_says_so(
  begin, caplog, error, why
):
  write, is_down = writer("x", "y"), [True]

  def generate(prefixes, num):
    if is_down[0]:
      raise error
    return write(prefixes, num)

  desk = begin(generate)
  shown = drawn(desk)
  assert shown["draws"]["has_failed"] and not shown["draws"]["number"]
  (record,) = caplog.records
  assert record.getMessage() == f"no next step was drawn: {why}"
  assert drawn(desk)["draws"]["has_failed"]
  is_down[0] = False
  desk.draw("ann", dict(item=shown["id"], number=0))
  assert drawn(desk)["alternatives"] == ["x", "y"]


def test_of_a_batch_one_that_cant_be_drawn_leaves_the_others(begin):
  write = writer("u", "v", "x", "y")
  begun, goes_on, asked = threading.Event(), threading.Event(), []

  def generate(prefixes, num):
    begun.set()
    goes_on.wait(10)
    asked.append(len(prefixes))
    if any("in b?" in x.problem for x in prefixes):
      raise errors.InputError("too long")
    return write(prefixes, num)

  keys = {x: x for x in ("ann", "bob", "cat")}
  desk = begin(generate, *map(problem, "abc"), keys=keys)
  for name in keys:
    desk.next(name)
    # The first is being drawn before the others are asked for.
    begun.wait(10)
  goes_on.set()
  assert drawn(desk, "cat")["alternatives"] == ["x", "y"]
  assert drawn(desk, "bob")["draws"]["has_failed"]
  assert asked == [1, 2, 1, 1]


def test_a_persons_step_is_in_no_log(begin, caplog):
  write = writer("x", "y")

  def generate(prefixes, num):
    if prefixes[0].steps:
      raise errors.InputError(f"refused: {prefixes[0].steps}")
    return write(prefixes, num)

  desk = begin(generate)
  shown = drawn(desk)
  desk.add("ann", body(shown, dict(kind="write", text="my secret"), "1"))
  assert drawn(desk)["draws"]["has_failed"]
  (record,) = caplog.records
  assert "secret" not in record.getMessage()


# --- The command and its folder ---------------------------------------------


@pytest.fixture
def label(tmp_path, monkeypatch):
  """Runs the command on records with a policy; calls what is done meanwhile."""
  (tmp_path / "policy").mkdir()

  def label(records, do=lambda desk: None, *texts, **options):
    @contextlib.contextmanager
    def opened(policy, how, replies, counts):
      asked.append((policy, how))
      generate = writer(*texts)
      yield search_models.Policy(generate, generate), {}

    asked = []
    monkeypatch.setattr(writers, "opened", opened)
    monkeypatch.setattr(listening, "run", lambda server, ready: do(server.desk))
    files.write_records(tmp_path / "in.jsonl", records)
    options = dict(policy=tmp_path / "policy", task="alternatives") | options
    verb = prm_jax.LabelPeople(**options)
    verb.run(verb.job(tmp_path / "in.jsonl", tmp_path / "labels", port=0))
    return asked

  return label


def test_problems_are_solved_step_by_step_and_keep_their_answers(
  label, tmp_path
):
  def work(desk):
    shown = drawn(desk, "me")
    assert shown["alternatives"] == ["x", "y", "z", "w"]
    flag = dict(kind="flag", step=0, alternative=0)
    for i, event in enumerate(
      (RATE, flag, dict(kind="take", alternative=0)),
    ):
      shown = desk.add("me", body(shown, event, str(i)))
    desk.add("me", body(shown, dict(kind="end", reason="solution"), "end"))

  records = [dict(id="p", problem="6 x 2?", answer="12")]
  label(records, work, *"xyzw")
  (ours,), _ = sources.read("people", tmp_path / "labels" / "judgements.db")
  assert ours.steps == ("x",) and ours.extra["reference_answer"] == "12"
  assert ours.extra["flagged_steps"] == [0]
  prm800k.write(tmp_path / "rows.jsonl", [ours])
  (back,) = prm800k.read(tmp_path / "rows.jsonl")
  for name in ("reference_answer", "timestamp", "seconds", "flagged_steps"):
    assert back.extra[name] == ours.extra[name]
  # More of the pool leave the item its name, and what was said.
  more = dict(id="s", problem="6 x 2?", steps=["x", "12"])
  label([more], lambda desk: None, "u", "v")
  assert sources.read("people", tmp_path / "labels" / "judgements.db")[0] == [
    ours
  ]


def test_a_server_isnt_waited_for_as_long_as_by_a_job(label):
  server = policies.Server(model="m", tries=5)
  policy = policies.Policy("http://127.0.0.1:9/v1", server=server)
  records = [dict(id="p", problem="6 x 2?")]
  ((asked, how),) = label(records, policy=policy, seed=3)
  assert (asked.server.tries, asked.server.read_s) == (5, 60.0)
  assert how.seed == 3 and how.max_step_tokens is None


@pytest.mark.parametrize(
  "options, why",
  [
    (dict(task="per_step"), "no policy draws for it"),
    (
      dict(
        policy=policies.Policy(
          "http://x/v1", server=policies.Server(model="m", chat=True)
        )
      ),
      "give `continues=True`",
    ),
    (dict(policy="http://x/v1"), "give `model`"),
  ],
)
def test_a_policy_that_cant_draw_is_refused(label, options, why):
  with pytest.raises(errors.InputError, match=why) as e:
    label([dict(id="p", problem="6 x 2?")], **options)
  assert "\n" not in str(e.value)


def test_what_no_policy_goes_on_with_is_refused(label, tmp_path):
  told = [dict(role="user", content="?"), dict(role="assistant", content="!")]
  with pytest.raises(errors.InputError, match="'c' is a conversation"):
    label([dict(id="c", messages=told, steps=["!"])])
  with pytest.raises(errors.InputError, match="give another `output`"):
    label([dict(id="p", problem="?")], policy=tmp_path / "labels")


def test_a_folder_of_the_version_before_is_read_and_goes_on(tmp_path):
  path = tmp_path / "judgements.db"
  with sqlite3.connect(path) as db:
    db.executescript(judgement_store._TABLES)
    db.execute("PRAGMA user_version=1")
    db.execute(
      "INSERT INTO events (id, annotator, item, at, seconds, event)"
      " VALUES ('1', 'ann', 'a', 0, 1, ?)",
      (json.dumps(dict(kind="write", text="x")),),
    )
  store = judgement_store.JudgementStore(path)
  assert len(store.events()) == 1 and store.drawn() == {}
  draw = judgements.Draw(("x",), ("k",), {"y": True}, False)
  store.draw(problem(), draw, 0.0)
  with pytest.raises(judgement_store.Unkept):
    store.draw(problem(), draw, 0.0)
  store.close()
  again = judgement_store.JudgementStore(path)
  assert again.drawn() == {"a": (draw,)} and len(again.events()) == 1
