"""The labelling page as people use it: by keyboard, and when things go wrong."""

import contextlib
import json
import subprocess
import sys
import threading

import desks
import pages
import pytest
import test_drawn_steps
import test_label_people

from prm_jax import schema
from prm_jax.people import judgement_store
from prm_jax.people import judgements
from prm_jax.text import messages as messages_lib

pytestmark = pytest.mark.browser

KEY = "#key=key-of-ann"
CODE = "def f(x):\n    return 2 * x\n\nprint(f(6))"
STEPS = ("There are $3 \\times 4$ pens.", CODE, "So $12 - 5 = 8$.", "Thus 8.")


def item(task, *texts, id="a"):
  """Returns an item of solutions with these steps."""
  texts = texts or (STEPS,)
  problem = "Tom has $12$ pens and gives 5 away. How many are left?"
  solutions = (
    schema.Solution(f"{id}{i or ''}", problem, tuple(steps))
    for i, steps in enumerate(texts)
  )
  return judgements.Item(id, task, tuple(solutions))


@pytest.fixture
def serve(tmp_path):
  """Serves items, or three of a task; yields the address with Ann's key."""
  with contextlib.ExitStack() as stack:

    def begin(task, *items, **options):
      desk = desks.desk(tmp_path, task, items, **options)
      return stack.enter_context(desks.serving(desk)) + KEY

    yield begin


def events(folder):
  """Returns what is kept: each event with the item that it is of."""
  with contextlib.closing(
    judgement_store.JudgementStore(folder / "judgements.db")
  ) as store:
    return store.events()


def kinds(folder):
  return [x.event["kind"] for x in events(folder)]


def ready(page):
  page.wait_for_selector("#buttons button")
  return page


def press(page, *keys):
  """Presses keys; of each judgement waits until the page says it is kept."""
  for key in keys:
    page.evaluate("document.getElementById('said').textContent = ''")
    page.keyboard.press(key)
    pages.until(page, "document.getElementById('said').textContent !== ''")


def go_on(page):
  """Goes to the next item."""
  page.evaluate("document.getElementById('problem').textContent = ''")
  page.keyboard.press("n")
  pages.until(
    page,
    "document.getElementById('problem').textContent !== ''"
    " || document.getElementById('work').hidden",
  )


def shows(page, where, words):
  """Waits until a place of the page has some words."""
  has = f"document.querySelector('{where}').textContent.includes('{words}')"
  pages.until(page, has)


def said(page):
  return page.inner_text("#said")


def ratings(page):
  """Returns the rating of each row, as it is read, "not judged" without one."""
  return page.eval_on_selector_all(
    "#lists .step .chips",
    """(nodes) => nodes.map((x) => [...x.children]
      .filter((y) => !y.classList.contains('chip'))
      .map((y) => y.textContent.replace(/^\\W+/, '')).join())""",
  )


def current(page):
  """Returns the number of the marked row, which has the focus."""
  row = page.locator("[aria-current=step]")
  assert row.evaluate("(x) => x === document.activeElement")
  return row.locator(".number").text_content().removeprefix("step ")


def test_what_had_ended_before_a_reload_can_be_taken_back(
  opened, serve, tmp_path
):
  items = item("per_step", ("one",)), item("per_step", ("two",), id="b")
  page = ready(opened(serve("per_step", *items)))
  press(page, "3")
  page.reload()
  ready(page)
  pages.until(page, "document.getElementById('done').textContent === '1 done'")
  press(page, "u", "u")
  assert kinds(tmp_path) == ["rate", "undo"]
  assert ratings(page) == ["not judged"]


# --- The four tasks, by keyboard ---------------------------------------------


def test_a_person_judges_up_to_the_first_wrong_step_and_then_sees_scores(
  opened, serve, tmp_path
):
  scores = {"a": {"m": [0.9, 0.8, 0.1, 0.7]}}
  items = item("first_error"), item("first_error", id="b")
  page = ready(opened(serve("first_error", *items, scores=scores)))
  assert ratings(page) == ["not judged"] * 4 and current(page) == "1"
  press(page, "3")
  assert said(page) == "Step 1: right, kept." and current(page) == "2"
  press(page, "f", "2")
  assert said(page) == "Step 2: neutral, kept."
  assert not page.locator(".chip").count()
  press(page, "1")
  assert ratings(page) == [
    *("right", "neutral,badly split", "wrong", "not judged")
  ]
  outcome = page.inner_text("#outcome")
  assert "first wrong step is step 3" in outcome
  assert "m: first doubted step: 3" in outcome
  assert page.locator(".chip").all_text_contents() == [
    *("m 0.900", "m 0.800", "m 0.100", "m 0.700")
  ]
  kept = [x.event for x in events(tmp_path)]
  place = dict(step=2, alternative=0)
  assert kept[-1] == dict(kind="rate", rating=-1, **place)
  assert [x["kind"] for x in kept] == ["rate", "flag", "rate", "rate"]
  go_on(page)
  assert page.inner_text("#done") == "1 done" and current(page) == "1"
  # A later step is the first wrong one: those before it are right.
  page.keyboard.press("j")
  page.keyboard.press("ArrowDown")
  press(page, "f")
  assert current(page) == "3"
  press(page, "3")
  assert "Step 1 is judged next" in said(page)
  press(page, "e")
  assert ratings(page) == [
    *("right", "right", "wrong,badly split", "not judged")
  ]
  page.keyboard.press("Enter")
  pages.until(page, "document.getElementById('work').hidden")
  assert "have done 2" in said(page)
  assert page.inner_text("#work-title") == "Nothing is left"


def test_all_further_steps_are_right_by_one_key(opened, serve, tmp_path):
  page = ready(opened(serve("first_error")))
  press(page, "2", "a")
  assert ratings(page) == ["neutral", "right", "right"]
  assert page.inner_text("#outcome") == "No step is wrong."
  assert kinds(tmp_path) == ["rate", "right"]


def test_every_step_is_judged_in_any_order(opened, serve, tmp_path):
  page = ready(opened(serve("per_step", item("per_step"))))
  page.keyboard.press("j")
  press(page, "2")
  assert current(page) == "3"
  press(page, "1")
  page.keyboard.press("k")
  page.keyboard.press("k")
  assert current(page) == "2"
  press(page, "3")
  assert ratings(page) == ["not judged", "right", "wrong", "not judged"]
  assert current(page) == "4"
  press(page, "3")
  assert current(page) == "1"
  press(page, "2")
  assert "2 right, 1 neutral, 1 wrong" in page.inner_text("#outcome")
  assert kinds(tmp_path) == ["rate"] * 5


def test_alternatives_are_rated_taken_and_written(opened, serve, tmp_path):
  page = ready(opened(serve("alternatives", desks.item("alternatives"))))
  assert ratings(page) == ["not judged"] * 2
  press(page, "Enter")
  assert "Only what is rated" in said(page)
  press(page, "1", "3")
  # The best of what is rated is marked.
  assert ratings(page) == ["wrong", "right"] and current(page) == "B"
  page.keyboard.press("k")
  press(page, "2")
  press(page, "f", "u", "Enter")
  assert page.inner_text("#path .text") == "2 + 2 = 5"
  assert "nothing goes on" in page.inner_text("#list-title")
  press(page, "u")
  assert current(page) == "B"
  page.keyboard.press("w")
  page.keyboard.insert_text("left")
  page.keyboard.press("Escape")
  assert not page.is_visible("#write") and current(page) == "B"
  page.keyboard.press("w")
  page.keyboard.type("2 + 2 = 1 + 3")  # Its digits are no judgements.
  press(page, "Control+Enter")
  assert not page.is_visible("#write")
  assert page.text_content("#path .step") == "step 12 + 2 = 1 + 3your own"
  press(page, "a")
  assert page.inner_text("#outcome") == "The solution is complete: 1 step."
  kept = [x.event for x in events(tmp_path)]
  assert kept[-2:] == [
    dict(kind="write", text="2 + 2 = 1 + 3"),
    dict(kind="end", reason="solution"),
  ]
  press(page, "u", "e")
  assert "no way to go on is right" in page.inner_text("#outcome")


def test_next_steps_are_drawn_while_a_person_works(opened, serve, tmp_path):
  goes_on = threading.Event()
  write = test_drawn_steps.writer("2", "3", "so 12", "6", ended={"so 12"})
  failed = []

  def generate(prefixes, num):
    if not failed:
      goes_on.wait(10)
      failed.append(1)
      raise RuntimeError("down")
    return write(prefixes, num)

  given = test_drawn_steps.problem()
  page = ready(opened(serve("alternatives", given, generate=generate)))
  drawn = page.locator("#drawn")
  assert "being written" in drawn.inner_text()
  press(page, "Enter")
  assert "still being written" in said(page)
  # A step that is begun stays, whatever comes.
  page.keyboard.press("w")
  page.keyboard.insert_text("begun")
  goes_on.set()
  shows(page, "#drawn", "d tries again")
  assert page.is_visible("#write")
  assert page.input_value("#written") == "begun"
  page.keyboard.press("Escape")
  press(page, "d")
  shows(page, "#drawn", "New: 2 next steps.")
  assert ratings(page) == ["not judged"] * 2 and current(page) == "A"
  press(page, "1")
  page.keyboard.press("k")
  press(page, "d")
  shows(page, "#drawn", "New: 2 next steps.")
  # The mark stays where it was.
  assert len(ratings(page)) == 4 and current(page) == "A"
  assert page.locator(".chip").all_inner_texts() == ["ends the solution"]
  page.keyboard.press("j")
  page.keyboard.press("j")
  press(page, "3")
  page.keyboard.press("k")
  press(page, "Enter")
  assert "where a solution ends" in page.inner_text("#list-title")
  assert drawn.inner_text() == ""
  for _ in looked_at(page):
    pages.check_reads(page)
  press(page, "a")
  assert page.inner_text("#outcome") == "The solution is complete: 1 step."
  assert events(tmp_path)[2].event == dict(kind="take", alternative=2)


def test_one_of_a_pair_is_preferred_or_neither(opened, serve, tmp_path):
  given = desks.item("pairs")
  page = ready(opened(serve("pairs", given)))
  step = page.locator("#lists .step > .text").first.text_content()
  # Which solution is shown first is drawn.
  first = [x.steps[0] for x in given.solutions].index(step)
  assert page.is_visible("#pair-rules") and not page.is_visible("#rules")
  for key, words in (
    *(("1", "The first solution"), ("2", "The second solution")),
    ("0", "Neither solution"),
  ):
    press(page, key)
    assert page.inner_text("#outcome") == f"{words} is better."
    marked = page.locator("h3", has_text="better").all_inner_texts()
    assert [words.split()[1].lower() in x.lower() for x in marked] == (
      [True] * (key != "0")
    )
    press(page, "u")
  sent = [x.event.get("solution") for x in events(tmp_path)]
  assert sent == [first, None, 1 - first, None, None, None]


@pytest.mark.parametrize("task", judgements.TASKS)
def test_a_bad_problem_and_giving_up_end_every_task(
  opened, serve, tmp_path, task
):
  page = ready(opened(serve(task)))
  press(page, "b")
  assert page.inner_text("#outcome") == "A bad problem."
  press(page, "u", "g")
  assert page.inner_text("#outcome") == "Given up."
  reasons = [x.event.get("reason") for x in events(tmp_path)]
  assert reasons == ["bad_problem", None, "give_up"]
  # All keys of the task are in the dialog, and so is the way out of it.
  page.keyboard.press("?")
  known = page.locator("#help kbd").all_inner_texts()
  assert {"b", "g", "u", "n"} < {*known}
  page.keyboard.press("u")
  page.keyboard.press("Escape")
  assert not page.is_visible("#help") and len(kinds(tmp_path)) == 3


def test_undo_takes_back_one_by_one_and_reaches_the_item_before(
  opened, serve, tmp_path
):
  page = ready(opened(serve("first_error")))
  press(page, "u")
  assert said(page) == "There is nothing to undo."
  press(page, "3", "2", "1")
  press(page, "u", "u")
  assert ratings(page) == ["right", "not judged", "not judged"]
  assert current(page) == "2"
  press(page, "a")
  go_on(page)
  assert "in b?" in page.inner_text("#problem")
  press(page, "u")
  assert "item before" in said(page) and "in a?" in page.inner_text("#problem")
  press(page, "u")
  assert ratings(page) == ["right", "not judged", "not judged"]
  assert {x.item for x in events(tmp_path)} == {"a"}


def test_one_key_is_one_judgement_however_fast_and_however_long(
  opened, serve, tmp_path
):
  items = item("first_error"), item("first_error", id="b")
  page = ready(opened(serve("first_error", *items)))

  def press_at_once(keys, is_held="false"):
    page.evaluate(
      f"""for (const key of '{keys}') {{
        document.activeElement.dispatchEvent(new KeyboardEvent(
          'keydown', {{key, bubbles: true, repeat: {is_held}}}));
      }}"""
    )

  press_at_once("3", is_held="true")
  # All are pressed before the first is answered.
  press_at_once("333")
  pages.until(
    page, "document.getElementById('said').textContent.startsWith('Step 3')"
  )
  assert [x.event["step"] for x in events(tmp_path)] == [0, 1, 2]
  assert current(page) == "4"
  page.get_by_role("button", name="1 wrong").click()
  page.wait_for_selector("#outcome:not([hidden])")
  assert ratings(page) == ["right", "right", "right", "wrong"]
  # What isn't seen yet isn't judged.
  press_at_once("n3")
  page.wait_for_selector("[aria-current=step]")
  assert ratings(page) == ["not judged"] * 4
  press(page, "2")
  assert [x.event["rating"] for x in events(tmp_path)] == [1, 1, 1, -1, 0]


# --- Nothing is lost ---------------------------------------------------------


def test_a_reload_in_the_middle_goes_on_where_it_was(opened, serve, tmp_path):
  page = ready(opened(serve("per_step")))
  assert page.url.endswith("/")  # Without the key.
  page.keyboard.press("j")
  press(page, "1")
  page.reload()
  ready(page)
  assert ratings(page) == ["not judged", "wrong", "not judged"]
  assert current(page) == "1"
  press(page, "3")
  assert len(kinds(tmp_path)) == 2
  assert page.evaluate("Object.keys(localStorage)") == []
  assert not page.context.cookies()


def test_of_two_tabs_the_second_is_told_and_shows_how_it_stands(
  opened, serve, tmp_path
):
  page = ready(opened(serve("first_error")))
  other = page.context.new_page()
  other.goto(page.url + KEY)
  ready(other)
  press(other, "2")
  page.keyboard.press("3")
  page.wait_for_selector("#error:not([hidden])")
  assert "judged elsewhere" in page.inner_text("#error")
  assert ratings(page) == ["neutral", "not judged", "not judged"]
  press(page, "3")
  assert not page.is_visible("#error")
  assert [x.event["rating"] for x in events(tmp_path)] == [0, 1]
  # Also of a judgement that a closed tab has left.
  other.reload()
  ready(other)
  page.context.route("**/events", lambda route: route.abort())
  page.keyboard.press("3")
  page.wait_for_selector("#late:not([hidden])")
  page.close()
  other.context.unroute("**/events")
  press(other, "1")
  other.reload()
  other.wait_for_selector("#error:not([hidden])")
  assert "Step 3: right: not kept" in other.inner_text("#error")
  assert "in b?" in other.inner_text("#problem")
  assert [x.event["rating"] for x in events(tmp_path)] == [0, 1, -1]


def test_a_judgement_outlives_the_page_whose_server_doesnt_answer(
  opened, serve, tmp_path
):
  page = ready(opened(serve("first_error")))
  press(page, "2")
  page.context.route("**/events", lambda route: route.abort())
  page.keyboard.press("1")
  page.wait_for_selector("#late:not([hidden])")
  assert "Step 2: wrong: not kept yet, trying again" in page.inner_text("#late")
  stored = page.evaluate("Object.entries(localStorage)")
  assert len(stored) == 1 and "key-of-ann" not in json.dumps(stored)
  # Another person's page at the same browser doesn't send it.
  page.context.unroute("**/events")
  other = page.context.new_page()
  other.goto(page.url + "#key=key-of-bob")
  ready(other)
  other.close()
  assert len(kinds(tmp_path)) == 1
  page.reload()
  page.wait_for_selector("#outcome:not([hidden])")
  assert said(page) == "Step 2: wrong, kept."
  assert ratings(page) == ["neutral", "wrong", "not judged"]
  assert [x.event["step"] for x in events(tmp_path)] == [0, 1]
  assert page.evaluate("localStorage.length") == 0


def test_a_judgement_whose_answer_is_lost_is_kept_once(opened, serve, tmp_path):
  page = ready(opened(serve("first_error")))
  answers = []

  def lose(route):
    answers.append(route.fetch().json())
    route.abort()

  page.route("**/events", lose, times=1)
  page.keyboard.press("3")
  page.wait_for_selector("#late:not([hidden])")
  page.evaluate("dispatchEvent(new Event('online'))")
  pages.until(
    page, "document.getElementById('said').textContent.includes('kept')"
  )
  assert answers[0]["last"] == events(tmp_path)[-1].number
  press(page, "2")
  assert [x.event["rating"] for x in events(tmp_path)] == [1, 0]
  assert not page.is_visible("#late")


def test_what_a_server_didnt_look_at_stays_and_is_told(opened, serve, tmp_path):
  page = ready(opened(serve("first_error")))

  def refuse(status):
    page.unroute("**/events")
    page.route("**/events", lambda x: x.fulfill(status=status, body="no"))

  refuse(404)
  page.keyboard.press("3")
  shows(page, "#error", "Step 1: right: not kept; it stays here")
  for status in (413, 411, 421):
    refuse(status)
    page.reload()
    shows(page, "#error", "Step 1: right: not kept; it stays here")
    assert f"status {status}" in page.inner_text("#error")
  page.unroute("**/events")
  page.reload()
  shows(page, "#said", "Step 1: right, kept.")
  assert not page.is_visible("#error") and not page.is_visible("#forget")
  assert kinds(tmp_path) == ["rate"]
  # One may also give it up.
  refuse(404)
  page.keyboard.press("2")
  page.click("#forget")
  assert not page.is_visible("#error") and not page.is_visible("#forget")
  assert page.evaluate("localStorage.length") == 0


def test_two_tabs_that_begin_at_once_send_what_is_left_once(
  opened, serve, tmp_path
):
  page = ready(opened(serve("first_error")))
  page.context.route("**/events", lambda route: route.abort())
  page.keyboard.press("3")
  page.wait_for_selector("#late:not([hidden])")
  page.context.unroute("**/events")
  # Another tab has sent it between the look at the names and at one of them.
  page.add_init_script(
    "Storage.prototype.getItem = new Proxy("
    "Storage.prototype.getItem, {apply: (of, at, [name]) =>"
    " name.startsWith('prm-label/') ? null : of.call(at, name)})"
  )
  page.reload()
  ready(page)
  assert ratings(page) == ["not judged"] * 3
  # And two that have both seen it.
  tabs = [page.context.new_page() for _ in range(2)]
  for tab in tabs:
    tab.goto(page.url + KEY, wait_until="commit")
  for tab in tabs:
    ready(tab)
    assert ratings(tab)[0] == "right" and not tab.is_visible("#error")
  assert kinds(tmp_path) == ["rate"]


SERVER = """
import pathlib, sys, desks
from prm_jax.people import people_server
desk = desks.desk(pathlib.Path(sys.argv[1]), "per_step")
server = people_server.PeopleServer(desk, "127.0.0.1", int(sys.argv[2]))
print(server.url, flush=True)
server.serve_forever()
"""


def start(folder, port=0, server=SERVER):
  """Returns a server as a process, and its address."""
  paths = f"import sys; sys.path[:0] = {sys.path!r}"
  command = [sys.executable, "-c", paths + server, str(folder), str(port)]
  process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
  assert process.stdout is not None
  return process, process.stdout.readline().strip()


def test_a_server_that_is_killed_and_comes_back_has_every_judgement_once(
  opened, tmp_path
):
  process, url = start(tmp_path)
  try:
    page = ready(opened(url + KEY))
    press(page, "3")
    process.kill()
    process.wait()
    page.keyboard.press("2")
    page.wait_for_selector("#late:not([hidden])")
    assert ratings(page) == ["right", "not judged", "not judged"]
    # Nothing is judged unseen: this one is refused.
    press(page, "3")
    assert "Wait" in said(page)
    process, again = start(tmp_path, int(url.rstrip("/").rpartition(":")[2]))
    assert again == url
    page.evaluate("dispatchEvent(new Event('online'))")
    pages.until(
      page, "document.getElementById('said').textContent.startsWith('Step 2')"
    )
    press(page, "1")
    assert ratings(page) == ["right", "neutral", "wrong"]
    assert [x.event["rating"] for x in events(tmp_path)] == [1, 0, -1]
  finally:
    process.kill()
    process.wait()


def test_too_many_requests_are_sent_again_when_the_server_says(
  opened, serve, tmp_path
):
  page = ready(opened(serve("first_error")))

  waits = ["0.05"]

  def answer(route):
    if not waits:
      route.continue_()
      return
    headers = {"Retry-After": waits.pop()}
    route.fulfill(status=429, json=dict(error="too many"), headers=headers)

  page.route("**/events", answer)
  press(page, "3")
  # Or as soon as the network is back.
  waits.append("600")
  page.keyboard.press("2")
  page.wait_for_selector("#late:not([hidden])")
  page.evaluate("dispatchEvent(new Event('online'))")
  pages.until(
    page, "document.getElementById('said').textContent.startsWith('Step 2')"
  )
  assert [x.event["rating"] for x in events(tmp_path)] == [1, 0]


def test_what_a_server_refuses_is_said_and_a_written_step_stays(opened, serve):
  page = ready(opened(serve("alternatives")))
  page.keyboard.press("w")
  page.keyboard.insert_text("x" * (1 << 20))
  page.keyboard.press("Control+Enter")
  page.wait_for_selector("#error:not([hidden])")
  assert len(page.input_value("#written")) == 1 << 20
  page.fill("#written", "short")
  press(page, "Control+Enter")
  assert page.inner_text("#path .text") == "short"
  page.keyboard.press("w")
  assert page.input_value("#written") == ""
  assert not page.is_visible("#error")


def test_two_people_judge_one_item_and_see_nothing_of_each_other(
  opened, serve, tmp_path
):
  items = [item("per_step")]
  url = serve("per_step", *items, overlap_share=1.0)
  ann = ready(opened(url))
  bob = ready(opened(url.replace("ann", "bob")))
  press(ann, "1")
  press(bob, "3")
  for page, rating in ((ann, "wrong"), (bob, "right")):
    page.reload()
    ready(page)
    assert ratings(page) == [rating, *["not judged"] * 3]
  said = [(x.annotator, x.event["rating"]) for x in events(tmp_path)]
  assert said == [("ann", -1), ("bob", 1)]


def test_without_a_right_key_one_is_asked_for(opened, serve):
  page = opened(serve("first_error").replace("ann", "nobody"))
  for key in ("no header has \u043a", "key-of-bob"):
    pages.until(
      page, "document.getElementById('error').textContent.includes('nobody')"
    )
    assert page.is_visible("#key-form")
    page.evaluate("document.getElementById('error').textContent = ''")
    page.keyboard.insert_text(key)
    page.keyboard.press("Enter")
  ready(page)
  assert not page.is_visible("#key-form") and not page.is_visible("#error")
  assert "key-of" not in page.content() + page.url


def test_the_time_of_a_judgement_has_no_idle_time(opened, serve, tmp_path):
  url = serve("first_error")
  page = opened(url.removesuffix(KEY))
  page.clock.install()
  page.goto(url)
  ready(page)
  page.clock.run_for(10_000)
  page.keyboard.press("j")
  page.clock.run_for(500_000)
  page.keyboard.press("k")
  page.clock.run_for(5_000)
  press(page, "3")
  page.clock.run_for(2_000)
  press(page, "3")
  first, second = (x.seconds for x in events(tmp_path))
  assert 44 < first < 48 and 1.9 < second < 5


# --- Everyone's texts, everyone's eyes ---------------------------------------


def hostile(task):
  texts = pages.HOSTILE
  more = [texts[::-1]] if task == "pairs" else []
  more = [[x] for x in texts[1:]] if task == "alternatives" else more
  made = item(task, texts, *more)
  solutions = [
    schema.Solution(f"<b>{i}", "\n".join(texts), x.steps)
    for i, x in enumerate(made.solutions)
  ]
  return judgements.Item("<b>0/../#?%", task, tuple(solutions))


def looked_at(page):
  """Yields for each width that the page must fit, in light and in dark."""
  for width, scheme in ((400, "dark"), (1280, "light")):
    page.set_viewport_size(dict(width=width, height=800))
    page.emulate_media(color_scheme=scheme)
    yield width
    pages.check_fits(page)


@pytest.mark.parametrize("task", judgements.TASKS)
def test_hostile_texts_are_texts(opened, serve, task):
  given = hostile(task)
  names = {given.id: {"<img src=x onerror='window.hacked=1'>": [0.1] * 17}}
  page = ready(opened(serve(task, given, scores=names)))
  for _ in looked_at(page):
    pages.check_unhacked(page)
  shown = page.locator("#lists .step > .text").all_text_contents()
  if task == "pairs" and shown[0] != pages.HOSTILE[0]:
    shown = shown[len(pages.HOSTILE) :]  # the second is shown first
  for text, seen in zip(pages.HOSTILE, shown, strict=False):
    if "\u0000" not in text and not text.startswith("$"):
      assert seen == text
  if task == "alternatives":
    press(page, "3", "Enter")
  else:
    press(page, {"first_error": "a", "pairs": "1"}.get(task, "f"))
  for _ in looked_at(page):
    pages.check_unhacked(page)
  if task in ("first_error", "pairs"):
    press(page, "n", "u")
    assert "item before" in said(page)


@pytest.mark.parametrize("task", judgements.TASKS)
def test_the_page_fits_and_can_be_read(opened, serve, task):
  texts = dict(alternatives=[STEPS, STEPS[1:], STEPS[2:]], pairs=[STEPS] * 2)
  scores = {"a": {"m": [0.9, 0.45, 0.01, 0.5]}}
  given = item(task, *texts.get(task, [STEPS]))
  page = ready(opened(serve(task, given, scores=scores)))
  if task != "pairs":
    press(page, "3", "f", "2")
  if task == "alternatives":
    press(page, "1", "Enter")
    page.keyboard.press("w")
  for _ in looked_at(page):
    pages.check_reads(page)
  if task == "alternatives":
    page.keyboard.press("Escape")
  press(page, {"pairs": "1", "first_error": "1"}.get(task, "g"))
  for _ in looked_at(page):
    pages.check_reads(page)
  page.keyboard.press("?")
  for width in looked_at(page):
    if width == 400:
      pages.check_reads(page)


def test_a_step_is_read_with_its_rating(opened, serve):
  page = ready(opened(serve("first_error", item("first_error"))))
  press(page, "3", "2")
  read = [x for x in pages.spoken(page) if x]
  last = read.index("Thus 8.")
  assert read[last - 2 : last + 2] == ["step", "4", "Thus 8.", "not judged"]
  code = read.index("neutral", read.index("Solution"))
  assert read[code - 1] == CODE.splitlines()[-1] or CODE in read[code - 1]
  assert "Step 2: neutral, kept." in read


def test_a_conversation_is_shown_in_its_turns_with_white_space(opened, serve):
  told = (
    *(("system", "Be short."), ("user", "What is 2 x 6?")),
    *(("assistant", CODE), ("user", "So?"), ("assistant", "It is 12.")),
  )
  solution = messages_lib.trajectory([dict(role=x, content=y) for x, y in told])
  given = judgements.Item("a", "first_error", (solution,))
  page = ready(opened(serve("first_error", given)))
  rows = page.locator("#lists li").evaluate_all(
    "(nodes) => nodes.map((x) => x.querySelector('div.text').textContent)"
  )
  assert rows == [text for _, text in told]
  assert not page.is_visible("#problem")
  assert page.locator(".turn b").all_inner_texts() == ["system", "user", "user"]
  assert CODE in page.locator(".step").first.inner_text()
  press(page, "3", "1")
  assert ratings(page) == ["right", "wrong"]


def test_in_a_long_solution_the_marked_step_is_in_sight(opened, serve):
  steps = [f"{i} is a number, and so is {i + 1}. " * 6 for i in range(30)]
  page = ready(opened(serve("first_error", item("first_error", steps))))
  for width in (400, 1280):
    page.set_viewport_size(dict(width=width, height=800))
    for _ in range(6):
      press(page, "3")
      assert page.evaluate(
        """() => {
          const row = document.activeElement.getBoundingClientRect();
          const bar = document.getElementById('bar').getBoundingClientRect();
          return row.top >= 0 && row.bottom <= bar.top;
        }"""
      )
  # So is what goes wrong.
  page.route("**/events", lambda route: route.abort())
  page.keyboard.press("3")
  page.wait_for_selector("#late:not([hidden])")
  where = page.locator("#late").bounding_box()
  assert where["y"] > 0 and where["y"] + where["height"] < 800


@pytest.mark.parametrize("width, dark", [(400, True), (1280, False)])
def test_who_decides_reads_what_others_said(opened, tmp_path, width, dark):
  keys = {x: x for x in ("ann", "bob", "cat")}
  desk = desks.desk(
    tmp_path, "first_error", keys=keys, overlap_share=1.0, adjudicate=True
  )
  test_label_people.judged(desk, "ann", dict(kind="right"))
  test_label_people.judged(desk, "bob", dict(kind="error", step=1))
  with desks.serving(desk) as url:
    page = opened(f"{url}#key=cat", width=width, dark=dark)
    page.wait_for_selector(".step.current")
    assert "2 people disagree (A, B): decide." in page.inner_text("#how")
    of_second = page.locator(".step").nth(1).locator(".other").all_inner_texts()
    said = {x.split(": ")[0]: x.split()[-1] for x in of_second}
    assert sorted(said) == ["A", "B"]
    assert sorted(said.values()) == ["right", "wrong"]
    pages.check_fits(page)
    pages.check_reads(page)
    assert "ann" not in page.content() and "bob" not in page.content()
