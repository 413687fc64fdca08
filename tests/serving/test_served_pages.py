"""What a browser gets from a scoring server, and what it asks for there.

tests/browser uses the pages as a person does.
"""

import re
import urllib.request

import pytest
import served

from prm_jax.serving import cut_api
from prm_jax.serving import declarations
from prm_jax.serving import routes
from prm_jax.web import assets

HTML = dict(Accept="text/html,application/xhtml+xml,*/*;q=0.8")
# A character that is two in UTF-16 comes before a cut.
TEXT = "First 2.\n\nSo \U0001d7da: 3.\n4."


# --- Pages ---------------------------------------------------------------------


def test_the_first_page_loads_from_this_server_alone(running):
  status, page, headers = running.get("/")
  assert status == 200 and headers["content-type"].startswith("text/html")
  named = re.findall(r'(?:src|href)="([^"]*)"', page)
  assert {x for x in named if not x.startswith("data:")} == {
    *("/web/katex/katex.min.css", "/web/base.css", "/web/playground.css"),
    *("/web/katex/katex.min.js", "/web/steps.js", "/web/playground.js"),
  }
  policy = headers["content-security-policy"]
  assert "default-src 'none'" in policy and "unsafe" not in policy
  assert "frame-ancestors 'none'" in policy
  assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", assets.NAMES)
def test_every_file_of_the_pages_is_served_as_it_is(running, name):
  url = f"http://{running.host}:{running.port}/web/{name}"
  with urllib.request.urlopen(url) as reply:
    assert (reply.read(), reply.headers["content-type"]) == assets.read(name)


@pytest.mark.parametrize(
  "name", [x for x in assets.NAMES if x.endswith((".html", ".css", ".js"))]
)
def test_no_file_names_another_place_and_no_page_has_a_script_inside(name):
  text = assets.read(name)[0].decode()
  if name.startswith("katex/"):
    # Its names of the languages that it writes, and its manual.
    known = r"https?://(www\.w3\.org|katex\.org)"
    text = re.sub(known, "", text)
  assert "://" not in text
  if name.endswith(".html"):
    assert not re.search(r"<script(?![^>]*\bsrc=)|\bon\w+=|\bstyle=", text)
  if name.endswith(".css"):
    fonts = {f"katex/{x}" for x in re.findall(r"url\(([^)]*)\)", text)}
    assert fonts <= {*assets.NAMES}


def test_a_key_is_for_scores_and_not_for_the_page(serving):
  with serving(keys=["secret"]) as asked:
    assert asked.get("/")[0] == asked.get("/web/steps.js")[0] == 200
    assert asked.get("/v1/models")[0] == 401
    assert asked.post(dict(text=TEXT), "/v1/prm/cut")[0] == 401


def test_no_page_is_served_where_none_is_wanted(serving):
  with serving(has_page=False) as asked:
    for path in ("/", "/web/steps.js", "/nowhere"):
      status, reply, _ = asked.get(path, **HTML)
      assert status == 404 and "error" in reply
    assert asked.get("/v1/models")[0] == 200


def test_a_path_that_isnt_there_is_a_page_for_a_browser_and_json_for_a_client(
  running,
):
  status, page, headers = running.get("/nowhere", **HTML)
  assert status == 404 and "no such page" in page
  assert "default-src 'none'" in headers["content-security-policy"]
  status, reply, _ = running.get("/nowhere")
  assert status == 404 and "GET /v1/models" in reply["error"]["message"]
  # A client that asks wrongly gets the refusal that it can read.
  status, reply, _ = running.ask("POST", "/v1/models", b"{}", HTML)
  assert status == 405 and "error" in reply


# --- What the page asks for --------------------------------------------------


def test_models_say_what_they_can_cut_and_read(running):
  (model,) = running.get("/v1/models")[1]["data"]
  assert model["segmenter"] == "paragraph" and model["reads_turns"] is False
  declarations.check(dict(object="list", data=[model]), routes.MODELS.reply)


@pytest.mark.parametrize(
  "segmenter, steps",
  [
    (None, ["First 2.", "So \U0001d7da: 3.\n4."]),
    ("paragraph", ["First 2.", "So \U0001d7da: 3.\n4."]),
    ("line", ["First 2.", "So \U0001d7da: 3.", "4."]),
    ("tokens:6", ["First", "2.\n\nSo", "\U0001d7da:", "3.\n4."]),
  ],
)
def test_a_text_is_cut_as_asked_for_in_characters(running, segmenter, steps):
  body = dict(text=TEXT) | ({"segmenter": segmenter} if segmenter else {})
  status, reply, _ = running.post(body, "/v1/prm/cut")
  assert status == 200
  declarations.check(reply, cut_api.ROUTE.reply)
  assert [TEXT[start:end] for start, end in reply["segments"]] == steps
  assert reply["segmenter"] == (segmenter or "paragraph")


def test_what_the_model_cuts_by_itself_it_scores_in_these_steps(running):
  _, reply, _ = running.post(dict(text=TEXT), "/v1/prm/cut")
  item = dict(problem="?", response=TEXT)
  _, scored, _ = running.post(dict(items=[item]))
  assert scored["data"][0]["segments"] == reply["segments"]


@pytest.mark.parametrize(
  "body, where, said",
  [
    (dict(text=TEXT, segmenter="words"), "segmenter", "'words': expected one"),
    (dict(text=TEXT, segmenter="tokens:0"), "segmenter", "1 or more"),
    (dict(text=TEXT, model="other"), "model", "no such model"),
    (dict(text="x" * 99_999), "text", "99999 characters"),
    (dict(text=3), "text", "expected a text"),
    (dict(), "text", "missing"),
    (dict(text=TEXT, problem="?"), None, "unknown field 'problem'"),
  ],
)
def test_what_cant_be_cut_is_refused_with_its_field(running, body, where, said):
  status, reply, _ = running.post(body, "/v1/prm/cut")
  assert status in (400, 404, 413)
  assert said in reply["error"]["message"]
  assert reply["error"].get("param") == where


def test_limits_of_bodies_hold_for_cuts(running):
  body = b"x" * (served.LIMITS.max_body_bytes + 1)
  assert running.post(body, "/v1/prm/cut")[0] == 413
