"""The playground of a server, as a person uses it: by keyboard, at any width.

Its models are functions, whose scores follow from words, so that what the page
must show is known.
"""

import base64
import contextlib
import json
import re
import threading
import urllib.request

import pages
import pytest

import prm_jax
from prm_jax import schema
from prm_jax.runtime import listening
from prm_jax.serving import app as app_lib
from prm_jax.serving import served_sources
from prm_jax.serving import server as server_lib
from prm_jax.serving import server_limits as limits_lib
from prm_jax.text import segmenters

pytestmark = pytest.mark.browser

PROBLEM = "Tom has $3$ boxes with 4 pens each, and gives 5 away. How many?"
STEPS = ("There are $3 \\times 4 = 12$.", "A wrong sum: 12 - 5 = 8.", "So 8.")
TEXT = "\n\n".join(STEPS)


def strict(solutions):
  """Doubts each step with the word "wrong", and judges none after the first."""
  rows = []
  for solution in solutions:
    bad = ["wrong" in step for step in solution.steps]
    first = bad.index(True) if any(bad) else len(bad)
    rows.append(
      schema.StepScores(
        tuple(0.02 if x else 0.97 for x in bad),
        judged=tuple(i <= first for i in range(len(bad))),
      )
    )
  return rows


def lenient(solutions):
  return [schema.StepScores((0.75,) * len(x.steps)) for x in solutions]


def source(name, ask, kind="function", **options):
  return served_sources.Source(
    name,
    f"sha256:{name}",
    kind,
    ask,
    limits_lib.Limits(max_body_bytes=1 << 20),
    **options,
  )


@contextlib.contextmanager
def serving(*models, keys=()):
  limits = limits_lib.Limits(max_body_bytes=1 << 20)
  server = app_lib.Server({x.name: x for x in models}, limits, keys)
  with (
    listening.listen("127.0.0.1", 0) as listener,
    server_lib.answering(server, listener),
  ):
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"


@pytest.fixture(scope="module")
def url():
  own = segmenters.PARAGRAPH
  with serving(source("strict", strict, segmenter=own)) as address:
    yield address


@pytest.fixture(scope="module")
def url_of_two():
  own = segmenters.PARAGRAPH
  with serving(
    source("strict", strict, segmenter=own),
    source("lenient", lenient, segmenter=own),
  ) as address:
    yield address


def ready(page):
  page.wait_for_selector("input[name=model]")
  return page


def write(page, problem=PROBLEM, text=TEXT):
  page.fill("#problem", problem)
  page.fill("#text", text)


def scored(page):
  page.keyboard.press("Control+Enter")
  page.wait_for_selector("#share:not([hidden])")


def steps_of(page):
  """Returns the text of each shown step, as it was before formulas."""
  return page.eval_on_selector_all(
    ".step > .text",
    """(nodes) => nodes.map((node) => {
      const copy = node.cloneNode(true);
      copy.querySelectorAll('.katex').forEach((x) => {
        x.replaceWith(`$${x.querySelector('annotation').textContent}$`);
      });
      return copy.textContent;
    })""",
  )


def chips_of(page, number):
  """Returns what is shown beside a step, without what is only read aloud."""
  return page.eval_on_selector_all(
    f".step:nth-child({number}) .chip",
    """(nodes) => nodes.map((node) => [...node.childNodes]
      .filter((x) => x.nodeType === 3).map((x) => x.data).join(''))""",
  )


def box(page):
  page.wait_for_selector("#error:not([hidden])")
  return page.inner_text("#error")


# --- What it shows -----------------------------------------------------------


def test_by_keyboard_a_person_scores_a_text_and_changes_a_step(opened, url):
  page = ready(opened(url))
  page.locator("input[name=model]").focus()
  page.keyboard.press("Tab")
  page.keyboard.insert_text(PROBLEM)
  page.keyboard.press("Tab")  # The kind of solution.
  page.keyboard.press("Tab")
  page.keyboard.insert_text(TEXT)
  scored(page)
  assert steps_of(page) == list(STEPS)
  assert "First doubted step: 2 (score 0.020)" in page.inner_text("#verdict")
  assert [chips_of(page, i) for i in (1, 2, 3)] == [
    *(["0.970"], ["0.020"], ["0.970"])
  ]
  classes = [
    row.get_attribute("class").split() for row in page.locator(".step").all()
  ]
  assert [x[1] for x in classes] == ["good", "bad", "unjudged"]
  assert ["first" in x for x in classes] == [False, True, False]
  # Tab goes from what scores to the steps.
  while "step" not in (
    page.evaluate("document.activeElement.className").split()
  ):
    page.keyboard.press("Tab")
  page.keyboard.press("Tab")  # The first step's button.
  page.keyboard.press("Tab")
  detail = page.locator(".step:focus > .detail")
  assert "score 0.020, log-odds \u22123.89" in detail.inner_text()
  assert "the first doubted step" in detail.inner_text()
  page.keyboard.press("Enter")
  page.keyboard.press("Control+A")
  page.keyboard.insert_text("12 - 5 = 7.")
  page.keyboard.press("Control+Enter")
  pages.until(
    page, "document.querySelector('#verdict').textContent.includes('No step')"
  )
  assert chips_of(page, 2) == ["0.970 (+0.950)"]
  assert chips_of(page, 1) == ["0.970"]
  assert page.evaluate("document.activeElement.className").startswith("step")
  assert steps_of(page)[1] == "12 - 5 = 7."
  # A click after it lands, as nothing moves when a step loses the focus.
  page.locator("#link").click()
  assert page.inner_text("#copied")
  # What is at the left counts: its problem, unless its solution was changed.
  page.fill("#problem", "Another problem.")
  page.locator(".step").nth(1).focus()
  page.keyboard.press("Enter")
  page.keyboard.press("Control+A")
  page.keyboard.insert_text("wrong again")
  page.fill("#step-list li:first-child textarea", "Mine.")
  page.locator(".step textarea").press("Control+Enter")
  assert "press Score" in box(page)
  assert page.input_value(".step textarea") == "wrong again"
  page.fill("#step-list li:first-child textarea", STEPS[0])
  page.locator(".step textarea").press("Control+Enter")
  pages.until(
    page, "document.querySelector('#verdict').textContent.includes('step: 2')"
  )
  assert page.inner_text("#shown-problem") == "Another problem."
  assert chips_of(page, 2) == ["0.020"]
  assert page.input_value("#step-list li:first-child textarea") == STEPS[0]


def test_a_change_that_is_left_changes_nothing(opened, url):
  page = ready(opened(url))
  write(page)
  scored(page)
  page.locator(".step").nth(1).focus()
  page.keyboard.press("Enter")
  page.keyboard.insert_text("else")
  page.keyboard.press("Escape")
  assert steps_of(page) == list(STEPS)
  assert page.evaluate("document.activeElement.className").startswith("step")


def test_models_are_side_by_side_and_each_is_shown_as_its_reply_arrives(opened):
  go = threading.Event()

  def slow(solutions):
    assert go.wait(20)
    return lenient(solutions)

  own = segmenters.PARAGRAPH
  with serving(
    source("slow", slow, segmenter=own), source("strict", strict, segmenter=own)
  ) as address:
    page = ready(opened(address))
    write(page)
    page.click("#score")
    page.wait_for_selector(".step")
    assert chips_of(page, 2) == ["0.020"]
    assert not page.is_visible("#share")
    go.set()
    page.wait_for_selector("#share:not([hidden])")
    assert chips_of(page, 2) == ["0.750", "0.020"]
    assert "slow, strict, in this order" in page.inner_text("#order")
    verdict = page.inner_text("#verdict")
    assert "slow: no step is doubted" in verdict
    assert "strict: first doubted step: 2" in verdict
    page.locator("input[name=model]").first.uncheck()
    scored(page)
    pages.until(page, "document.querySelectorAll('.chip').length === 3")


def test_a_text_is_cut_by_the_segmenter_of_choice_and_can_be_changed(
  opened, url
):
  page = ready(opened(url))
  write(page, text="One 1.\nTwo \U0001d7da.\n\nThree 3.")
  scored(page)
  assert steps_of(page) == ["One 1.\nTwo \U0001d7da.", "Three 3."]
  page.select_option("#segmenter", "line")
  assert "trained on steps cut by paragraph" in page.inner_text(
    "#segmenter-note"
  )
  page.keyboard.press("Control+Enter")
  pages.until(page, "document.querySelectorAll('.step').length === 3")
  assert steps_of(page) == ["One 1.", "Two \U0001d7da.", "Three 3."]
  page.click("#cut")
  page.wait_for_selector("#part-steps:not([hidden])")
  areas = page.locator("#step-list textarea")
  assert [x.input_value() for x in areas.all()] == steps_of(page)
  page.click("#add-step")
  page.keyboard.insert_text("Four is wrong.")
  page.get_by_label("Remove step 1").click()
  page.keyboard.press("Control+Enter")
  pages.until(
    page, "document.querySelector('#verdict').textContent.includes('step: 3')"
  )
  assert steps_of(page) == ["Two \U0001d7da.", "Three 3.", "Four is wrong."]
  page.check("input[value=text]")
  page.select_option("#segmenter", "tokens")
  page.click("#score")
  assert "tokens" in box(page)


def test_turns_of_a_conversation_are_scored_where_a_model_reads_them(
  opened, url
):
  with serving(source("judge", lenient, "judge")) as address:
    turns = dict(messages=[dict(role="user", content="2 + 2?")])
    link = base64.urlsafe_b64encode(json.dumps(turns).encode()).decode()
    page = ready(opened(f"{address}#{link.rstrip('=')}"))
    assert "no model of this server reads turns" in box(page)
    assert page.is_visible("#text")
    assert not page.is_visible("input[value=messages]")
  page = ready(opened(url))
  page.check("input[value=messages]")
  assert not page.is_visible("#problem")
  page.get_by_label("Message 1", exact=True).fill("Weather in Ulm?")
  page.get_by_label("Message 2", exact=True).fill("I look it up.")
  page.click("#add-message")
  page.get_by_label("Role of message 3").select_option("user")
  page.keyboard.press("Tab")
  page.keyboard.insert_text("And?")
  page.click("#add-message")
  page.get_by_label("Role of message 4").select_option("assistant")
  page.get_by_label("Message 4", exact=True).fill("Sun, which is wrong.")
  scored(page)
  assert steps_of(page) == ["I look it up.", "Sun, which is wrong."]
  assert "First doubted step: 2" in page.inner_text("#verdict")
  # As JSON, with what has no field of its own.
  page.click("#edit-json")
  messages = json.loads(page.input_value("#json"))
  call = dict(type="function", function=dict(name="look", arguments="{}"))
  messages[1] = dict(role="assistant", content=None, tool_calls=[call])
  messages[2] = dict(role="tool", content="rain")
  page.fill("#json", json.dumps(messages))
  page.click("#use-json")
  assert "with tool_calls" in page.inner_text("#message-list")
  page.keyboard.press("Control+Enter")
  pages.until(
    page, "document.querySelector('.step .text')?.textContent.includes('look')"
  )
  page.click("#edit-json")
  page.fill("#json", "[1]")
  page.click("#use-json")
  assert "list of messages" in box(page)


def test_formulas_are_drawn_and_amounts_are_not(opened, url):
  page = ready(opened(url))
  shown = (
    *("It costs $5 and $6.", "So $x^2$ and \\(y\\).", "\\[z\\] and $$w$$."),
    *("A broken $\\frac{1$ and $\\nosuch{x}$", "\\$3 isn't, $4$ is."),
    "As written: \\(\\nosuch\\), \\[\\nosuch\\], $$\\nosuch$$.",
  )
  write(page, text="\n\n".join(shown))
  scored(page)
  drawn = [
    page.locator(f".step:nth-child({i}) .katex").count() for i in range(1, 6)
  ]
  assert drawn == [0, 2, 2, 0, 1]
  assert "$\\nosuch{x}$" in page.locator(".step").nth(3).inner_text()
  assert page.locator(".step > .text").nth(5).inner_text() == shown[5]
  assert page.locator("#shown-problem .katex").count() == 1


# --- What it hands on --------------------------------------------------------


def test_a_link_holds_the_input_where_no_server_sees_it(opened, url_of_two):
  page = ready(opened(url_of_two))
  write(page, text=f"{TEXT}\n\n\U0001d7da \u202e </script>")
  page.locator("input[name=model]").first.uncheck()
  page.select_option("#segmenter", "line")
  scored(page)
  page.click("#link")
  pages.until(page, "location.hash.length > 1")
  again = ready(opened(page.url))
  pages.until(again, "document.querySelector('#problem').value !== ''")
  for name in ("#problem", "#text", "#segmenter"):
    assert again.input_value(name) == page.input_value(name)
  checked = [x.is_checked() for x in again.locator("input[name=model]").all()]
  assert checked == [False, True]
  scored(again)
  assert steps_of(again) == steps_of(page)
  # The address follows what is written since, also that no model is ticked.
  again.fill("#problem", "Later.")
  again.locator("input[name=model]").last.uncheck()
  of_both = again.url
  pages.until(again, f"location.href !== {json.dumps(of_both)}")
  again.wait_for_timeout(300)
  again.reload()
  ready(again)
  assert again.input_value("#problem") == "Later."
  assert again.locator("input[name=model]:checked").count() == 0
  again.locator("input[name=model]").first.check()
  again.fill("#text", "x" * 60_000)
  scored(again)
  again.click("#link")
  assert "browsers take 64,000" in again.inner_text("#copied")
  assert "#" not in again.url
  broken = ready(opened(f"{url_of_two}#not_a_link"))
  assert "link's input can't be read" in box(broken)


def test_the_same_request_is_there_for_curl_and_for_python(opened, url_of_two):
  page = ready(opened(url_of_two))
  hostile = f'it\'s $HOME `ls` "quoted" \\ {chr(0x2028)} \U0001d7da wrong'
  page.fill("#problem", PROBLEM)
  page.fill("#text", f"{TEXT}\n\n{hostile}")
  scored(page)
  chips = [map(float, chips_of(page, i)) for i in range(1, 5)]
  shown, others = ([*map(float, x)] for x in zip(*chips))
  commands = page.text_content("#curl").split("\n\n")
  replies = []
  for command in commands:
    body = re.search(r"<<'JSON'\n(.*)\nJSON$", command)[1]
    asked = urllib.request.Request(
      re.match(r"curl (\S+)", command)[1],
      body.encode(),
      {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked) as reply:
      (entry,) = json.load(reply)["data"]
    replies.append(entry["step_scores"])
  assert replies == [shown, others]
  rows = []
  exec(
    page.text_content("#python"), dict(print=lambda *told: rows.append(told))
  )
  assert [(name, [*x.scores]) for name, x in rows] == [
    *(("strict", shown), ("lenient", others))
  ]
  # One model alone.
  page.locator("input[name=model]").last.uncheck()
  page.keyboard.press("Control+Enter")
  pages.until(
    page, "!document.querySelector('#python').textContent.includes('for model')"
  )
  page.wait_for_selector("#share:not([hidden])")
  code = page.text_content("#python")
  rows = []
  exec(code.replace("print(", "rows.append("), dict(rows=rows))
  assert list(rows[0].scores) == pytest.approx(shown)
  page.click("#cut")
  page.wait_for_selector("#part-steps:not([hidden])")
  scored(page)
  pages.until(
    page, "document.querySelector('#python').textContent.includes('.score(')"
  )
  exec(
    page.text_content("#python").replace("print(", "rows.append("),
    dict(rows=rows),
  )
  assert rows[1].scores == rows[0].scores
  assert prm_jax.Client.__name__ in code


def test_a_key_is_asked_for_sent_and_kept_nowhere(opened):
  own = segmenters.PARAGRAPH
  with serving(source("strict", strict, segmenter=own), keys=["k1"]) as address:
    page = opened(address)
    page.wait_for_selector("#key-form:not([hidden])")
    assert "This server asks for a key" in page.inner_text("#key-form")
    assert page.locator("[role=alert]:visible").count() == 0
    page.keyboard.insert_text("wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key-form #key-error:not([hidden])")
    assert "doesn't take this key" in page.inner_text("#key-error")
    assert page.locator("[role=alert]:visible").count() == 1
    page.fill("#key", "k1")
    page.keyboard.press("Enter")
    ready(page)
    write(page)
    scored(page)
    assert "$KEY" in page.text_content("#curl")
    assert "k1" not in page.text_content("body")
    stored = page.evaluate(
      "[localStorage.length, sessionStorage.length, document.cookie]"
    )
    assert stored == [0, 0, ""] and not page.context.cookies()


# --- What goes wrong ---------------------------------------------------------


def test_what_cant_be_scored_is_one_clear_box(opened, url):
  page = ready(opened(url))
  page.click("#score")
  assert "Write a problem" in box(page)
  page.fill("#problem", "?")
  page.click("#score")
  assert "Write a solution" in box(page)
  page.fill("#text", "x" * (1 << 20))
  page.click("#score")
  pages.until(
    page,
    "document.querySelector('#error').textContent.includes('shorten its texts')",
  )
  assert "more than 1,048,576 bytes" in box(page)
  page.check("input[value=steps]")
  page.get_by_label("Remove step 1").click()
  page.click("#score")
  pages.until(
    page, "document.querySelector('#error').textContent.includes('no step')"
  )
  page.locator("input[name=model]").uncheck()
  page.click("#score")
  pages.until(
    page,
    "document.querySelector('#error').textContent.includes('Choose a model')",
  )
  page.check("input[value=text]")
  write(page)
  page.locator("input[name=model]").check()
  scored(page)
  assert not page.is_visible("#error")


def test_a_server_that_fails_or_is_gone_is_said(opened):
  def fails(solutions):
    raise RuntimeError("secret")

  with serving(source("bad", fails, segmenter=segmenters.PARAGRAPH)) as address:
    page = ready(opened(address))
    write(page)
    page.click("#score")
    said = box(page)
    assert "failed" in said and "secret" not in said
  page.route("**", lambda route: route.abort())
  page.click("#score")
  pages.until(
    page,
    "document.querySelector('#error').textContent.includes(\"doesn't answer\")",
  )


def test_a_server_that_answers_again_needs_no_reload(opened, url):
  page = opened(f"{url}nowhere")  # So that the first request can be held up.
  page.route("**/v1/models", lambda route: route.abort())
  page.goto(url)
  assert "doesn't answer" in box(page)
  write(page)
  page.keyboard.press("Control+Enter")
  page.wait_for_selector("#error:not([hidden])")
  page.unroute("**/v1/models")
  page.get_by_role("button", name="Try again").click()
  ready(page)
  assert page.input_value("#text") == TEXT
  scored(page)


def test_a_path_that_isnt_there_leads_to_the_playground(opened, url):
  page = opened(f"{url}nowhere")
  pages.check_reads(page)
  page.get_by_role("link", name="The playground").click()
  ready(page)


# --- Everyone's texts, everyone's eyes ---------------------------------------


@pytest.mark.parametrize("width", [400, 1280])
def test_hostile_texts_are_texts(opened, width):
  names = ["<img src=x onerror='window.hacked=1'>", "W" * 80, "\u202etxet"]
  own = segmenters.LINE
  with serving(*(source(x, strict, segmenter=own) for x in names)) as address:
    page = ready(opened(address, width=width))
    page.check("input[value=steps]")
    for i, text in enumerate(pages.HOSTILE):
      if i:
        page.click("#add-step")
      page.get_by_label(f"Step {i + 1}", exact=True).fill(text)
    page.fill("#problem", "\n".join(pages.HOSTILE))
    scored(page)
    pages.check_unhacked(page)
    pages.check_fits(page)
    shown = page.locator(".step > .text").all_text_contents()
    for text, seen in zip(pages.HOSTILE, shown, strict=True):
      if "\u0000" not in text and not text.startswith("$"):
        assert seen == text
    page.check("input[value=messages]")
    page.click("#edit-json")
    messages = [dict(role=x, content=x) for x in ("user", *pages.HOSTILE)]
    page.fill("#json", json.dumps(messages))
    page.click("#use-json")
    pages.check_unhacked(page)
    pages.check_fits(page)


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_and_can_be_read(opened, url_of_two, width, dark):
  page = ready(opened(url_of_two, width=width, dark=dark))
  page.emulate_media(reduced_motion="reduce")
  pages.check_reads(page)
  write(page)
  scored(page)
  verdict = page.locator("#verdict").bounding_box()
  assert 0 <= verdict["y"] < 400
  page.locator(".step").nth(1).focus()
  for part in ("#curl-part", "#python-part"):
    page.locator(f"{part} summary").click()
  pages.check_reads(page)
  pages.check_fits(page)
  for kind in ("steps", "messages"):
    page.check(f"input[value={kind}]")
    pages.check_reads(page)
    pages.check_fits(page)
  page.get_by_label("Message 1", exact=True).fill("")
  page.click("#score")
  box(page)
  pages.check_reads(page)


def test_a_score_is_read_with_its_step(opened, url_of_two):
  page = ready(opened(url_of_two))
  write(page, text="Right.\n\nA wrong one.\n\nAfter it.")
  scored(page)
  read = pages.spoken(page)
  second = read.index("step", read.index("step") + 1)
  assert read[second : second + 10] == [
    *("step", "2", "A wrong one.", "strict", "0.020", ", log-odds \u22123.89"),
    *("lenient", "0.750", ", log-odds +1.10", "the first doubted step"),
  ]


def test_the_boxes_of_steps_are_high_enough_to_read(opened, url):
  page = ready(opened(url))
  write(page)
  page.get_by_role("button", name="Edit as steps").click()
  page.wait_for_selector("#step-list textarea")
  boxes = page.locator("#step-list textarea").all()
  assert len(boxes) == 3
  assert min(box.bounding_box()["height"] for box in boxes) > 24


def test_a_wrong_number_of_tokens_is_said_wherever_it_hides(opened, url):
  page = ready(opened(url))
  write(page)
  page.select_option("#segmenter", "tokens")
  page.fill("#num-tokens", "0")
  page.get_by_role("button", name="Score", exact=True).click()
  page.wait_for_selector("#error:not([hidden])")
  assert "a whole number of them" in page.inner_text("#error")
  # Of another way to cut the number doesn't matter.
  page.select_option("#segmenter", "line")
  page.get_by_role("button", name="Score", exact=True).click()
  page.wait_for_selector("#share:not([hidden])")


def test_scores_of_before_dont_stay_beside_what_was_refused(opened, url):
  page = ready(opened(url))
  write(page)
  scored(page)
  assert page.locator(".step").count() == 3
  page.fill("#text", "")
  page.keyboard.press("Control+Enter")
  page.wait_for_selector("#error:not([hidden])")
  assert page.locator(".step").count() == 0
  assert page.locator("#share").is_hidden()


def test_a_step_that_is_being_changed_stays_when_another_model_answers(opened):
  own = segmenters.PARAGRAPH
  go_on = threading.Event()

  def slow(solutions):
    go_on.wait(20)
    return lenient(solutions)

  with serving(
    source("strict", strict, segmenter=own), source("slow", slow, segmenter=own)
  ) as address:
    page = ready(opened(address))
    write(page)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".step")
    page.locator(".step").nth(1).focus()
    page.keyboard.press("Enter")
    page.locator(".step textarea").fill("being changed")
    go_on.set()
    pages.until(
      page, "document.querySelector('#verdict').textContent.includes('slow')"
    )
    assert page.locator(".step textarea").input_value() == "being changed"
    page.keyboard.press("Escape")
    assert page.locator(".step").nth(0).locator(".chip").count() == 2


def test_a_key_that_can_be_none_is_said_and_asked_for_again(opened):
  with serving(source("strict", strict), keys=("secret",)) as address:
    page = opened(address)
    page.wait_for_selector("#key-form:not([hidden])")
    page.fill("#key", "ключ")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key-error:not([hidden])")
    assert "ASCII" in page.inner_text("#key-error")
    page.fill("#key", "secret")
    page.keyboard.press("Enter")
    ready(page)
