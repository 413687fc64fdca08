"""The command's folder and the desk: what people get, may say, and leave."""

import hashlib
import http.client
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import desks
import pytest

import prm_jax
from prm_jax import errors
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.datasets.formats import prm800k
from prm_jax.people import desk as desk_lib
from prm_jax.people import judgements
from prm_jax.people import label_people
from prm_jax.people import model_order
from prm_jax.people import people_folder
from prm_jax.people import work_queue
from prm_jax.records import jsonl
from prm_jax.records import sources
from prm_jax.runtime import files
from prm_jax.web import page_http

RATE = dict(kind="rate", step=0, alternative=0, rating=1)
DESIGN = work_queue.Design(gold_share=0, random_share=0, overlap_share=0)


def asks(shown):
  """Returns which item is shown, by its problem: what it is called is secret."""
  return shown["problem"].removeprefix("What is asked in ").removesuffix("?")


def body(shown, event, id_="1", **more):
  known = dict(item=shown["id"], event=event, id=id_, after=shown["last"])
  return known | dict(seconds=2.0) | more


def judged(desk, name, *events):
  """Says events of the item that a person gets; returns it as it is then."""
  shown = desk.next(name)["item"]
  for number, event in enumerate(events):
    id_ = f"{name}-{shown['id']}-{number}"
    shown = desk.add(name, body(shown, event, id_))
  return shown


# --- The desk ---------------------------------------------------------------


@pytest.mark.parametrize("task", judgements.TASKS)
def test_an_item_comes_back_until_it_has_ended_and_then_the_next(
  tmp_path, task
):
  desk = desks.desk(tmp_path, task)
  first = desk.next("ann")["item"]
  assert desk.next("ann")["item"] == first == desk.item("ann", first["id"])
  assert asks(first) == "a"
  end = dict(kind="end", reason="give_up")
  shown = judged(desk, "ann", end)
  assert shown["state"]["reason"] == "give_up" and shown["last"] > 0
  assert desk.next("ann")["ended"] == 1
  assert asks(desk.next("ann")["item"]) == "b"


def test_nobody_sees_an_item_or_a_judgement_of_another(tmp_path):
  desk = desks.desk(tmp_path, "per_step")
  shown = judged(desk, "ann", RATE)
  other = desk.next("bob")["item"]
  assert asks(other) == "b"
  for name in (shown["id"], "a", other["id"].upper()):
    with pytest.raises(desk_lib.Refused, match="no such item") as e:
      desk.item("bob", name)
    assert e.value.status == 404
  with pytest.raises(desk_lib.Refused, match="no such item"):
    desk.add("bob", body(shown, RATE, "x"))


def test_what_a_browser_calls_an_item_tells_nothing(tmp_path):
  """Neither that it is gold, nor that it is another person's item, too."""
  items = [desks.item("per_step", x) for x in ("gold-1", "p")]
  desk = desks.desk(
    tmp_path,
    "per_step",
    items,
    gold=["gold-1"],
    screening=1,
    overlap_share=1.0,
  )
  names = []
  for who in ("ann", "bob"):
    shown = judged(desk, who, dict(kind="end", reason="give_up"))
    assert "gold" not in shown["id"] and len(shown["id"]) == 24
    names += [shown["id"], desk.next(who)["item"]["id"]]
  assert len({*names}) == 4 and len({len(x) for x in names}) == 1
  guess = hashlib.sha256(b"0\0ann\0gold-1").hexdigest()[:24]
  assert guess not in names


def test_two_people_judge_an_item_without_a_word_of_each_other(tmp_path):
  desk = desks.desk(tmp_path, "per_step", overlap_share=1.0)
  judged(desk, "ann", RATE)
  shown = desk.next("bob")["item"]
  assert asks(shown) == "a" and shown["state"]["ratings"] == []


def test_a_judgement_of_another_tab_is_a_conflict(tmp_path):
  desk = desks.desk(tmp_path, "per_step")
  shown = desk.next("ann")["item"]
  desk.add("ann", body(shown, RATE))
  with pytest.raises(desk_lib.Refused) as e:
    desk.add("ann", body(shown, dict(RATE, step=1), "2"))
  # Without the item's id, which could tell gold from the rest.
  assert e.value.status == 409 and "'a'" not in str(e.value)
  # The same again isn't.
  again = desk.add("ann", body(shown, RATE))
  assert again["state"]["ratings"] == [[0, 0, 1]]


@pytest.mark.parametrize(
  "change, why",
  [
    (dict(event=dict(RATE, step=9)), "no step 9"),
    (dict(event=3), "event must be"),
    (dict(id=""), "1 to 64 characters"),
    (dict(id="x" * 65), "1 to 64 characters"),
    (dict(seconds="2"), "seconds must be"),
    (dict(seconds=float("inf")), "seconds must be"),
    (dict(more=1), "expected an object"),
  ],
)
def test_a_wrong_body_is_refused_and_nothing_is_kept(tmp_path, change, why):
  desk = desks.desk(tmp_path, "per_step")
  shown = desk.next("ann")["item"]
  with pytest.raises(desk_lib.Refused, match=why) as e:
    desk.add("ann", body(shown, RATE) | change)
  assert e.value.status == 400
  assert desk.item("ann", shown["id"]) == shown


def test_scores_are_hidden_until_the_item_has_ended(tmp_path):
  scores = {"a": {"model": [0.9, 0.2, 0.1]}}
  desk = desks.desk(tmp_path, "first_error", scores=scores)
  shown = judged(desk, "ann", RATE)
  assert shown["scores"] is None
  shown = desk.add("ann", body(shown, dict(kind="right"), "2"))
  assert shown["scores"] == scores["a"]
  shown = desk.add("ann", body(shown, dict(kind="undo"), "3"))
  assert shown["scores"] is None and desk.next("ann")["item"] == shown


def test_who_gives_up_sees_no_score_to_judge_by(tmp_path):
  desk = desks.desk(
    tmp_path, "first_error", scores={"a": {"model": [0.9, 0.2, 0.1]}}
  )
  shown = judged(desk, "ann", dict(kind="end", reason="give_up"))
  assert shown["scores"] is None


def test_a_key_is_a_persons_and_too_many_requests_wait(tmp_path):
  desk = desks.desk(tmp_path, "per_step")
  assert desk.annotator("key-of-bob") == "bob"
  for key in ("", "key-of-bobb", "Key-of-bob", "\ud800"):
    with pytest.raises(desk_lib.Refused) as e:
      desk.annotator(key)
    assert e.value.status == 401
  with pytest.raises(desk_lib.Refused) as e:
    for _ in range(200):
      desk.annotator("key-of-bob")
  assert e.value.status == 429
  assert desk.annotator("key-of-ann") == "ann"


def test_a_desk_that_is_opened_again_knows_what_has_ended(tmp_path):
  judged(desks.desk(tmp_path, "first_error"), "ann", dict(kind="right"))
  again = desks.desk(tmp_path, "first_error")
  told = again.next("ann")
  assert (told["ended"], asks(told["item"])) == (1, "b")


def test_who_decides_sees_what_others_said_and_not_who_they_are(tmp_path):
  keys = {x: x for x in ("ann", "bob", "cat")}
  desk = desks.desk(
    tmp_path, "first_error", keys=keys, overlap_share=1.0, adjudicate=True
  )
  of_ann = judged(desk, "ann", dict(kind="right"))
  judged(desk, "bob", dict(kind="error", step=1))
  shown = desk.next("cat")["item"]
  assert asks(shown) == "a"
  assert sorted(shown["others"], key=str) == [[1, -1, None], [1, 1, 1]]
  assert "ann" not in json.dumps(shown) and "bob" not in json.dumps(shown)
  # Neither of the two sees the other's, then or later.
  assert desk.item("ann", of_ann["id"])["others"] == []
  shown = desk.add("cat", body(shown, dict(kind="error", step=1), "c"))
  assert len(shown["others"]) == 2
  again = desks.desk(
    tmp_path, "first_error", keys=keys, overlap_share=1.0, adjudicate=True
  )
  assert len(again.item("cat", shown["id"])["others"]) == 2
  assert asks(again.next("cat")["item"]) == "b"


@pytest.mark.parametrize("reason", ["give_up", "bad_problem"])
def test_nobody_disagrees_with_one_who_didnt_judge(tmp_path, reason):
  desk = desks.desk(tmp_path, "first_error", overlap_share=1.0, adjudicate=True)
  judged(desk, "ann", dict(kind="right"))
  judged(desk, "bob", dict(kind="end", reason=reason))
  assert not desk._disputed


def test_what_is_given_up_goes_to_another_unless_that_is_undone(tmp_path):
  desk = desks.desk(tmp_path, "per_step", [desks.item("per_step", "a")])
  shown = judged(desk, "ann", dict(kind="end", reason="give_up"))
  again = desks.desk(tmp_path, "per_step", [desks.item("per_step", "a")])
  assert asks(again.next("bob")["item"]) == "a"
  desk.add("ann", body(shown, dict(kind="undo"), "2"))
  assert desk.next("bob")["item"] is None


def test_what_is_left_for_hours_goes_to_another(tmp_path, monkeypatch):
  now = [1_000.0]
  monkeypatch.setattr(desk_lib.time, "time", lambda: now[0])

  def opened():
    items = [desks.item("first_error", x) for x in "ab"]
    return desks.desk(tmp_path, "first_error", items, hold_hours=2.0)

  desk = opened()
  judged(desk, "ann", dict(kind="right"))  # what has ended stays so
  begun = desk.next("ann")["item"]
  assert asks(begun) == "b"
  now[0] += 7_000
  begun = desk.add("ann", body(begun, RATE))  # still at work
  now[0] += 7_000
  for found in (desk, opened()):
    assert found.next("bob")["item"] is None
  now[0] += 300
  for found in (opened(), desk):
    assert asks(found.next("bob")["item"]) == "b"
  # Who comes back goes on.
  assert desk.next("ann")["item"] == begun


def test_a_pair_is_kept_in_its_order_whatever_is_shown(tmp_path):
  turned = {}
  for name in ("ann", "bob", "cat", "dan"):
    shares = dict(overlap_share=1.0, overlap=9, seed=3)
    desk = desks.desk(tmp_path, "pairs", keys={name: name}, **shares)
    first = desk.next(name)["item"]["solutions"][0]["steps"]
    turned[name] = first == ["2 + 2 = 5"]
    shown = judged(desk, name, dict(kind="prefer", solution=0))
    assert shown["state"]["preferred"] == 0
    # Sent again, it is the same.
    sent = body(
      shown, dict(kind="prefer", solution=0), f"{name}-{shown['id']}-0"
    )
    assert desk.add(name, sent | dict(after=0))["state"]["preferred"] == 0
    (kept,) = desk._store.events(name)
    assert kept.event["solution"] == int(turned[name])
    with pytest.raises(desk_lib.Refused, match="no solution"):
      judged(desk, name, dict(kind="prefer", solution=2))
  assert {*turned.values()} == {True, False}


def test_two_equal_solutions_are_no_pair():
  given = [schema.Solution(str(i), "What?", desks.STEPS) for i in range(2)]
  given += [schema.Solution("b", "What?", ("x",)), given[0]]
  (pair,) = people_folder.items_of("pairs", given)
  assert [s.id for s in pair.solutions] == ["b", "0"]


# --- Over HTTP --------------------------------------------------------------


def asked(url, key="key-of-ann", data=None, **headers):
  sent = None if data is None else json.dumps(data).encode()
  request = urllib.request.Request(url, sent, headers)
  if key:
    request.add_header("Authorization", f"Bearer {key}")
  try:
    with urllib.request.urlopen(request, timeout=10) as reply:
      return reply.status, reply.headers, reply.read()
  except urllib.error.HTTPError as e:
    return e.code, e.headers, e.read()


def test_work_needs_a_key_in_a_header_and_the_right_host(tmp_path):
  with desks.serving(desks.desk(tmp_path, "per_step")) as url:
    route = f"{url}v1/label/next"
    assert asked(route, key=None)[0] == asked(route, key="x")[0] == 401
    status, headers, text = asked(route)
    shown = json.loads(text)["item"]
    assert status == 200 and asks(shown) == "a"
    assert "Access-Control-Allow-Origin" not in headers
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert asked(route, Host="evil.example")[0] == 421
    sent = body(json.loads(text)["item"], RATE)
    # Nothing is kept of what was asked by another name.
    events = f"{url}v1/label/events"
    assert asked(events, data=sent, Host="evil.example")[0] == 421
    assert json.loads(asked(route)[2])["item"]["last"] == 0
    status, _, text = asked(f"{url}v1/label/events", data=sent)
    assert status == 200 and json.loads(text)["state"]["ratings"] == [[0, 0, 1]]
    assert asked(f"{url}v1/label/items/{shown['id']}")[2] == text
    assert asked(f"{url}v1/label/events", data=[1])[0] == 400
    assert asked(f"{url}v1/label/elsewhere")[0] == 404
    assert asked(f"{url}../../etc/passwd")[0] == 404


@pytest.mark.parametrize(
  "url",
  [
    "labels.example.org",
    "ftp://x",
    "https://x/path",
    "https://a@x",
    "https://",
    "https://:80",
    "https://x:99999",
    "https://x y",
    "https://[::1",
  ],
)
def test_a_public_url_is_an_address_without_a_path(url):
  with pytest.raises(errors.InputError, match="without a path"):
    label_people.PeopleJob("s.jsonl", "labels", public_url=url)


def test_a_server_before_ours_is_linked_and_may_name_itself(tmp_path):
  with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
  desk = desks.desk(tmp_path, "per_step")
  route = f"http://127.0.0.1:{port}/v1/label/next"
  with desks.serving(desk, port, public_url="https://Labels.example") as url:
    assert url == "https://Labels.example/"
    for host, status in (
      ("labels.example", 200),
      ("LABELS.example:443", 200),
      (f"127.0.0.1:{port}", 200),
      ("evil.example", 421),
    ):
      assert asked(route, Host=host)[0] == status


@pytest.mark.parametrize(
  "url, names",
  [
    ("https://Labels.example:443/", ["labels.example", "labels.example:443"]),
    ("http://labels.example", ["labels.example", "labels.example:80"]),
    ("https://labels.example:8443", ["labels.example:8443"]),
    ("https://[2001:DB8::1]", ["[2001:db8::1]", "[2001:db8::1]:443"]),
    ("https://b\u00fccher.example:1", ["xn--bcher-kva.example:1"]),
  ],
)
def test_a_browser_may_leave_out_the_schemes_own_port(url, names):
  assert page_http.hosts_of(url) == {*names}
  label_people.PeopleJob("s.jsonl", "labels", public_url=url)


# --- The folder -------------------------------------------------------------


def pool(*names, **more):
  return [desks.solution(name, **more) for name in names]


def worked(tmp_path, task, *events):
  """Has ann judge the first item of a folder; returns its judgements.db."""
  items = {x.id: x.solutions for x in [desks.item(task)]}
  given = [s for x in items.values() for s in x]
  given = [prm_jax.Solution(s.id, "What?", s.steps) for s in given]
  folder = people_folder.begin(tmp_path / "labels", task, DESIGN, given, [])
  work = desk_lib.Work(
    task=task,
    items={x.id: x for x in folder.items()},
    pool=work_queue.Pool([x.id for x in folder.items()]),
    design=DESIGN,
  )
  desk = desk_lib.Desk(work, folder.store(), {"k": "ann"})
  judged(desk, "ann", *events)
  return tmp_path / "labels" / people_folder.JUDGEMENTS


def test_judgements_are_solutions_with_ratings_at_any_moment(tmp_path):
  path = worked(tmp_path, "first_error", RATE, dict(kind="error", step=1))
  (solution,), _ = sources.read("people", path)
  assert solution.id == "a/ann" and solution.ratings == (1, -1, None)
  assert solution.steps == desks.STEPS
  assert solution.extra["annotator"] == "ann"
  assert solution.extra["finish_reason"] == "found_error"
  assert solution.extra["seconds"] == 4.0
  assert solution.extra["given_for"] == "chosen"


@pytest.mark.parametrize("reason", [None, "give_up", "bad_problem"])
def test_what_is_open_or_wasnt_judged_is_left_out(tmp_path, reason):
  events = [RATE] if reason is None else [dict(kind="end", reason=reason)]
  path = worked(tmp_path, "per_step", *events)
  assert sources.read("people", path)[0] == []


def test_ratings_come_back_from_prm800ks_rows(tmp_path):
  path = worked(tmp_path, "first_error", RATE, dict(kind="error", step=1))
  ours = [*people_folder.read(path)]
  prm800k.write(tmp_path / "rows.jsonl", ours)
  (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
  assert row["labeler"] == "ann"
  assert row["label"]["finish_reason"] == "found_error"
  (back,) = prm800k.read(tmp_path / "rows.jsonl")
  # In a row a step without a rating is one that a person wrote.
  assert (back.steps, back.ratings) == (desks.STEPS[:2], (1, -1))


def test_alternatives_are_a_tree_that_prm800k_can_hold(tmp_path):
  path = worked(
    tmp_path,
    "alternatives",
    RATE,
    dict(RATE, alternative=1, rating=-1),
    dict(kind="take", alternative=0),
    dict(RATE, step=1, alternative=1, rating=-1),
    dict(kind="write", text="4 times 3 is 12"),
    dict(kind="end", reason="solution"),
  )
  ours = [*people_folder.read(path)]
  assert [(s.id, s.steps, s.ratings) for s in ours] == [
    ("a/ann/path", ("2 + 2 = 4", "4 times 3 is 12"), (1, None)),
    ("a/ann/0.1", ("2 + 2 = 5",), (-1,)),
    ("a/ann/1.1", ("2 + 2 = 4", "4 x 3 = 13"), (None, -1)),
  ]
  prm800k.write(tmp_path / "rows.jsonl", ours)
  (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
  steps = row["label"]["steps"]
  assert [len(x["completions"]) for x in steps] == [2, 1]
  assert steps[1]["human_completion"]["text"] == "4 times 3 is 12"
  back = [*prm800k.read(tmp_path / "rows.jsonl")]
  assert [(s.steps, s.ratings) for s in back] == [
    (s.steps, s.ratings) for s in ours
  ]


def test_a_step_that_has_no_way_on_is_a_row_that_prm800k_can_hold(tmp_path):
  path = worked(
    tmp_path,
    "alternatives",
    RATE,
    dict(kind="take", alternative=0),
    dict(RATE, step=1, alternative=0, rating=-1),
    dict(RATE, step=1, alternative=1, rating=-1),
    dict(kind="end", reason="found_error"),
  )
  ours = [*people_folder.read(path)]
  prm800k.write(tmp_path / "rows.jsonl", ours)
  back = [*prm800k.read(tmp_path / "rows.jsonl")]
  assert [(s.steps, s.ratings) for s in back] == [
    (s.steps, s.ratings) for s in ours
  ]
  assert {s.extra["finish_reason"] for s in back} == {"no_way_on"}
  nothing = worked(
    tmp_path / "n",
    "alternatives",
    dict(RATE, rating=-1),
    dict(kind="end", reason="found_error"),
  )
  prm800k.write(tmp_path / "none.jsonl", people_folder.read(nothing))


READER = """
import os, sys
from prm_jax.people import people_folder
if os.getuid() == 0:  # who may write everywhere
  os.setuid(65534)
print([s.id for s in people_folder.read(sys.argv[1])])
"""


@pytest.mark.parametrize("is_served", [True, False])
def test_a_folder_that_cant_be_written_is_read(tmp_path, is_served):
  path = worked(tmp_path, "first_error", dict(kind="right"))
  ids = [s.id for s in people_folder.read(path)]
  log = path.with_name(f"{path.name}-wal")
  if not is_served:
    store = people_folder.Folder(path.parent).store()
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
  with tempfile.TemporaryDirectory() as parent:
    pathlib.Path(parent).chmod(0o755)
    copy = pathlib.Path(parent) / "labels"
    shutil.copytree(path.parent, copy)
    if not is_served:
      for name in (f"{path.name}-wal", f"{path.name}-shm"):
        (copy / name).unlink()
    assert is_served == (copy / log.name).exists()
    copy.chmod(0o555)
    command = [sys.executable, "-c", READER, copy / path.name]
    run = subprocess.run(command, capture_output=True, text=True)
    copy.chmod(0o755)
  assert ids and run.stdout.strip() == str(ids), run.stderr


def test_another_file_of_the_folder_isnt_the_judgements(tmp_path):
  path = worked(tmp_path, "first_error", dict(kind="right"))
  with pytest.raises(errors.InputError, match=r"are the file judgements\.db"):
    [*people_folder.read(path.with_name("work.json"))]


def test_preferences_have_no_ratings(tmp_path):
  path = worked(tmp_path, "pairs", dict(kind="prefer", solution=0))
  with pytest.raises(errors.InputError, match="which of two"):
    [*people_folder.read(path)]


def test_gold_is_no_label(tmp_path):
  gold = pool("g", ratings=(1, 1, 1))
  folder = people_folder.begin(
    tmp_path / "labels", "first_error", DESIGN, pool("a"), gold
  )
  items = {x.id: x for x in people_folder.items_of("first_error", gold)}
  design = work_queue.Design(screening=1)
  pool_ = work_queue.Pool([], ["g"])
  work = desk_lib.Work(
    task="first_error", items=items, pool=pool_, design=design
  )
  desk = desk_lib.Desk(work, folder.store(), {"k": "ann"})
  judged(desk, "ann", dict(kind="right"))
  path = folder.path / people_folder.JUDGEMENTS
  assert [*people_folder.read(path)] == []
  assert [x.id for x, *_ in folder.states()] == ["g"]


def test_a_pool_may_grow_but_not_change(tmp_path):
  def begin(solutions, task="first_error", gold=(), **design):
    made = work_queue.Design(**design)
    return people_folder.begin(tmp_path / "w", task, made, solutions, gold)

  begin(pool("a", "b"))
  grown = begin(pool("c"))
  assert [x.id for x in grown.items()] == ["a", "b", "c"]
  changed = [desks.solution("a", ("another",))]
  with pytest.raises(errors.InputError, match="'a' had another text"):
    begin(changed)
  with pytest.raises(errors.InputError, match="other options: seed"):
    begin(pool("a"), seed=3)
  with pytest.raises(errors.InputError, match="no solution has"):
    people_folder.begin(
      tmp_path / "v", "pairs", work_queue.Design(), pool("a", "b"), []
    )
  for ratings in (None, (None, 1, -1)):
    with pytest.raises(errors.InputError, match="'g' has no rating or label"):
      begin(pool("a"), gold=pool("g", ratings=ratings))
  with pytest.raises(errors.InputError, match="in the pool as well"):
    begin(pool("a"), gold=pool("a", ratings=(1, 1, 1)))
  right = dict(ratings=(1, 1, 1))
  begin([], gold=pool("g", **right))
  for solutions, gold, why in (
    ([], pool("g", ratings=(1, -1, None)), "gold item 'g' had other ratings"),
    ([], [desks.solution("g", ("x",), ratings=(1,))], "'g' had another text"),
    ([], pool("a", **right), "'a' is in the pool as well"),
    (pool("g"), [], "'g' is in the pool as well"),
  ):
    with pytest.raises(errors.InputError, match=why):
      begin(solutions, gold=gold)
  kept = begin([])
  assert [x.id for x in kept.gold()] == ["g"]
  # What tells the folder from others stays, and is made anew where it lacks.
  assert kept.fingerprint == grown.fingerprint
  work = files.read_json(tmp_path / "w" / "work.json")
  del work["secret"]
  files.write_json(tmp_path / "w" / "work.json", work)
  assert len(begin([]).secret) == 32
  (tmp_path / "x").mkdir()
  (tmp_path / "x" / "mine.txt").write_text("mine")
  with pytest.raises(errors.InputError, match="something else"):
    people_folder.begin(
      tmp_path / "x", "per_step", work_queue.Design(), pool("a"), []
    )


def test_who_isnt_named_today_has_no_access_and_the_same_key_another_day(
  tmp_path,
):
  folder = people_folder.begin(
    tmp_path / "labels", "per_step", DESIGN, pool("a"), []
  )
  before = folder.keys(["ann", "bob"])
  folder.write_links("http://h/", before)
  assert {*folder.keys(["bob"]).values()} == {"bob"}
  folder.write_links("http://h/", folder.keys(["bob"]))
  assert folder.keys(["ann", "bob"]) == before
  # A line that is taken out makes a key anew.
  links = folder.path / "links.txt"
  links.write_text(links.read_text().splitlines()[1])
  again = folder.keys(["ann", "bob"])
  assert len({*again} & {*before}) == 1
  links.write_bytes(b"\xff")
  with pytest.raises(errors.InputError, match=r"links\.txt:1"):
    folder.keys(["ann"])


# --- The command ------------------------------------------------------------


def test_the_command_serves_links_that_stay_and_keeps_what_is_said(tmp_path):
  jsonl.write_solutions(
    tmp_path / "s.jsonl",
    [*pool("a", outcome=True), *pool("b", outcome=False)],
  )
  (tmp_path / "scores.jsonl").write_text(
    "".join(json.dumps(dict(id=x, step_scores=[0.9] * 3)) + "\n" for x in "ab")
  )
  (tmp_path / "names.txt").write_text("ann\nbob\n")
  labels = tmp_path / "labels"
  command = [
    *(sys.executable, "-m", "prm_jax", "label", "people"),
    *(f"--input={tmp_path / 's.jsonl'}", f"--output={labels}", "--port=0"),
    f"--annotators={tmp_path / 'names.txt'}",
    f"--scores={tmp_path / 'scores.jsonl'}",
  ]
  links = {}
  for life in range(2):
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
      said = ""
      while "links: " not in said:
        said += server.stdout.readline()
      text = (labels / "links.txt").read_text()
      rows = [x.split("\t") for x in text.splitlines()]
      found = {name: link.partition("#key=") for name, link in rows}
      keys = {name: x[2] for name, x in found.items()}
      assert keys.keys() == {"ann", "bob"} and len({*keys.values()}) == 2
      assert not links or links == keys
      links = keys
      assert os.stat(labels / "links.txt").st_mode & 0o077 == 0
      assert not any(key in said for key in keys.values())
      url = found["ann"][0]
      told = json.loads(asked(f"{url}v1/label/next", keys["ann"])[2])
      # The convincing wrong one comes first.
      assert asks(told["item"]) == "b"
      ratings = told["item"]["state"]["ratings"]
      assert ratings == [[0, 0, 1]] * life
      if life == 0:
        sent = body(told["item"], RATE)
        assert asked(f"{url}v1/label/events", keys["ann"], sent)[0] == 200
      # A second server of the folder would give the same items.
      other = subprocess.run(command, capture_output=True, text=True)
      assert other.returncode == 1 and "another process" in other.stderr
      server.terminate()
      assert server.wait(20) == 0


@pytest.mark.parametrize(
  "names, why",
  [
    ("", "one name in each line"),
    ("a\na\n", "each of them once"),
    ("ann\nb/c\n", "'b/c' can't be a name"),
    ("path\n", "'path' can't be a name"),
    ("7.1\n", "'7.1' can't be a name"),
    (b"Andr\xe9\n", "isn't UTF-8"),
  ],
)
def test_wrong_names_are_refused_in_one_line(tmp_path, capsys, names, why):
  jsonl.write_solutions(tmp_path / "s.jsonl", pool("a"))
  given = names if isinstance(names, bytes) else names.encode()
  (tmp_path / "names.txt").write_bytes(given)
  command = ["label", "people", f"--input={tmp_path / 's.jsonl'}"]
  command += [f"--output={tmp_path / 'l'}"]
  command += [f"--annotators={tmp_path / 'names.txt'}"]
  assert main.main(command) == 1
  assert why in capsys.readouterr().err
  assert not (tmp_path / "l").exists()


def test_an_order_by_a_model_waits_for_one(tmp_path):
  folder = people_folder.begin(
    tmp_path / "labels", "per_step", DESIGN, pool(*"abc"), []
  )
  work = prm_jax.LabelPeople(task="per_step", order="uncertain")._work(folder)
  assert work.pool.ranked == ["a", "b", "c"] and work.news() is None
  scores = dict(a=0.9, b=0.4, c=0.8)
  rows = [dict(id=x, step_scores=[p] * 3) for x, p in scores.items()]
  files.write_records(folder.path / people_folder.SCORES, rows)
  ranked, shown = work.news()
  assert ranked.ranked == ["b", "c", "a"]
  assert shown["a"] == {"model": (0.9, 0.9, 0.9)} and work.news() is None


def test_only_ratings_of_steps_are_decided_between():
  with pytest.raises(errors.InputError, match="task pairs has no such rule"):
    prm_jax.LabelPeople(task="pairs", adjudicate=True)


def test_the_order_of_the_pool_is_the_models():
  rows = dict(
    a=(True, [0.9]), b=(False, [0.2]), c=(False, [0.8]), d=(None, [0.5])
  )
  items = [
    judgements.Item(k, "per_step", tuple(pool(k, outcome=x)))
    for k, (x, _) in rows.items()
  ]
  scores = {k: prm_jax.StepScores(tuple(x)) for k, (_, x) in rows.items()}

  def order(name):
    return "".join(x.id for x in model_order.ordered(items, scores, name))

  assert order("convincing") == "cbad"
  assert order("uncertain") == "dbca"
  assert order("file") == "abcd"
  assert model_order.ordered(items, {}, "convincing") == items


def test_a_body_that_nobody_reads_is_refused_and_the_line_closed(tmp_path):
  with desks.serving(desks.desk(tmp_path, "per_step")) as url:
    for headers in ({}, {"Transfer-Encoding": "chunked"}):
      connection = http.client.HTTPConnection(url.split("/")[2], timeout=10)
      body = b"GET / HTTP/1.1\r\n\r\n" if not headers else [b"x"]
      connection.request("GET", "/v1/label/next", body, headers)
      reply = connection.getresponse()
      assert reply.status == 400 and reply.headers["Connection"] == "close"
      connection.close()
