"""The site: the same bytes each time, whatever the texts, whole or not at all."""

import json
import logging
import os
import pathlib
import re
import time

import pytest
import view_files

import prm_jax
from prm_jax import errors
from prm_jax.cli import main
from prm_jax.view import site
from prm_jax.view import view_inputs
from prm_jax.web import assets

HOSTILE = (
  "</script><script>alert(1)</script>",
  "<!--<script>",
  "]]>\u2028\u2029\n\0\"'\\",
  "<img src=x onerror=alert(1)>",
  "\U0001f600 \u0661 \u202e",
  "__proto__",
)


def pages_css():
  return (pathlib.Path(site.__file__).parent / "static/view.css").read_bytes()


def pages(*paths):
  return site.pages(view_inputs.read(paths))


def test_texts_come_back_as_they_were_and_no_script_ends_early(tmp_path):
  for i, text in enumerate(HOSTILE):
    view_files.write(
      tmp_path / f"{i}.jsonl",
      view_files.solution(
        text,
        problem=text,
        steps=[text],
        source=text,
        answer=text,
        step_scores={text: [0.5]},
        note=text,
      ),
    )
  made = pages(tmp_path)
  index, items = view_files.window(made)
  assert index["samples"]["key"] == [*HOSTILE] == index["models"]
  for text, sample in zip(HOSTILE, items["samples"], strict=True):
    assert sample["steps"] == [text] and sample["problem"] == text
    assert sample["models"][0]["name"] == text
    assert ["note", text] in sample["facts"]
  for name, content in made.items():
    if name.startswith("data/"):
      assert content.isascii() and b"<" not in content


def test_a_lone_surrogate_is_escaped():
  assert json.loads(site.script("\ud800<")) == "\ud800<"
  assert site.script("\ud800<").isascii()


def test_the_page_loads_scripts_and_styles_of_its_own_alone(tmp_path):
  made = pages(view_files.folder(tmp_path))
  page = made["index.html"].decode()
  named = re.findall(r'(?:src|href)="([^"]*)"', page)
  assert named.pop(0) == "data:,"
  assert {*named} <= made.keys()
  assert {*named} >= {x for x in made if x.startswith("view")}
  assert named.index("steps.js") < named.index("data/index.js")
  assert page.count("<script defer src=") == page.count("<script")
  assert " style=" not in page and "<style" not in page
  assert not re.search(r"\son\w+=", page)
  (policy,) = re.findall(
    r'http-equiv="Content-Security-Policy" content="(.*?)">', page
  )
  told = dict(x.strip().split(" ", 1) for x in policy.split(";"))
  assert told == {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "font-src": "'self'",
    "img-src": "data:",
    "base-uri": "'none'",
    "form-action": "'none'",
  }


def test_texts_reach_the_page_as_texts_alone():
  static = pathlib.Path(site.__file__).parent / "static"
  script = "".join(x.read_text() for x in static.glob("*.js"))
  for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write"):
    assert word not in script
  assert not re.search(
    r"\beval\(|new Function|fetch\(|import\(|https?:(?!//www\.w3\.org/2000/svg)",
    script,
  )
  # A style attribute is markup, which the policy forbids.
  assert not re.search(r'setAttribute\("style|\bstyle:', script)


def test_the_same_files_make_the_same_bytes(tmp_path):
  folder = view_files.folder(tmp_path)
  made = pages(folder)
  assert made == pages(folder)
  assert {x for x in assets.NAMES if x.startswith("katex/")} <= made.keys()


def test_ten_thousand_samples_stay_quick(tmp_path):
  num = 10_000
  view_files.write(
    tmp_path / "s.jsonl",
    *(
      view_files.solution(str(i), steps=["a step"] * 5, labels=[1] * 5)
      for i in range(num)
    ),
  )
  view_files.write(
    tmp_path / "p.jsonl",
    *(dict(id=str(i), step_scores=[0.5] * 5) for i in range(num)),
  )
  start = time.perf_counter()
  made = pages(tmp_path)
  assert time.perf_counter() - start < 20
  index, items = view_files.window(made)
  assert index["samples"]["key"] == [str(i) for i in range(num)]
  assert [x["id"] for x in items["samples"]] == index["samples"]["key"]
  assert all(len(x["models"]) == 1 for x in items["samples"])
  assert len(made["data/index.js"]) < 300 * num


def test_a_script_of_long_samples_has_fewer_of_them(tmp_path):
  text = "long " * (site.CHUNK_CHARACTERS // 10)
  view_files.write(
    tmp_path / "s.jsonl",
    *(view_files.solution(str(i), steps=[text]) for i in range(5)),
  )
  made = pages(tmp_path)
  assert sum(x.startswith("data/samples-") for x in made) == 5
  assert len(view_files.window(made)[1]["samples"]) == 5


def test_colours_of_lines_stand_out_from_the_paper_in_both_modes():
  styles = [assets.read("base.css")[0], pages_css()]
  light, dark = zip(
    *(x.decode().split("@media (prefers-color-scheme: dark)") for x in styles)
  )

  def luminance(colour):
    colour = "".join(2 * c for c in colour) if len(colour) == 3 else colour
    parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    r, g, b = (
      c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
    )
    return 0.2126 * r + 0.7152 * g + 0.0722 * b

  for mode in map("".join, (light, dark)):
    paper = luminance(re.search(r"--paper: #(\w+)", mode)[1])
    colours = re.findall(r"\.k\d { color: #(\w+)", mode)
    assert len({*colours}) == 10
    for colour in map(luminance, colours):
      low, high = sorted((colour, paper))
      assert (high + 0.05) / (low + 0.05) >= 4.5


# --- Folders and the command -------------------------------------------------


def in_folder(folder):
  return {
    x.relative_to(folder).as_posix(): x.read_bytes()
    for x in folder.rglob("*")
    if x.is_file()
  }


def test_the_command_writes_the_site_and_replaces_an_older_one(
  tmp_path, capsys
):
  folder, out = view_files.folder(tmp_path / "f"), tmp_path / "site"
  assert main.main(["view", str(folder), f"--static={out}"]) == 0
  told = capsys.readouterr().out
  assert told == (
    f"{out}: solutions 5, scores 5, runs 1, evaluations 1; open index.html\n"
  )
  assert in_folder(out) == pages(folder)
  one = folder / "solutions.jsonl"
  prm_jax.View((one,), static=out).run()
  assert in_folder(out) == pages(one) != pages(folder)
  both = [str(one), str(folder / "a_scores.jsonl")]
  assert main.main(["view", *both, f"--static={out}"]) == 0
  assert in_folder(out) == pages(*both)
  assert sorted(os.listdir(tmp_path)) == ["f", "site"]


def test_a_folder_of_something_else_is_left_as_it_is(tmp_path):
  folder = view_files.folder(tmp_path / "f")
  before = in_folder(folder)
  for other in (folder, folder / "solutions.jsonl"):
    with pytest.raises(
      errors.InputError, match=r"something else|is read by|lies in"
    ):
      prm_jax.View((str(folder),), static=other).run()
  assert in_folder(folder) == before
  mixed = tmp_path / "mixed"
  site.write(mixed, pages(folder))
  (mixed / "notes.txt").write_text("mine")
  with pytest.raises(errors.InputError, match="something else"):
    site.write(mixed, pages(folder))
  assert (mixed / "notes.txt").read_text() == "mine"


def test_a_site_that_cant_be_written_leaves_the_old_one(tmp_path, monkeypatch):
  folder, out = view_files.folder(tmp_path / "f"), tmp_path / "site"
  site.write(out, pages(folder))
  before = in_folder(out)
  write = pathlib.Path.write_bytes

  def full(path, content):
    if path.name == "view.js":
      raise OSError(28, "No space left on device")
    return write(path, content)

  monkeypatch.setattr(pathlib.Path, "write_bytes", full)
  with pytest.raises(errors.InputError, match="No space left"):
    site.write(out, pages(folder))
  assert in_folder(out) == before
  assert sorted(os.listdir(tmp_path)) == ["f", "site"]


def test_a_damaged_file_is_one_line_and_no_folder(tmp_path, capsys):
  folder, out = view_files.folder(tmp_path / "f"), tmp_path / "site"
  with open(folder / "solutions.jsonl", "a") as f:
    f.write('{"id": "x", "problem": 3, "steps": []}\n')
  assert main.main(["view", str(folder), f"--static={out}"]) == 1
  captured = capsys.readouterr()
  assert captured.err.count("\n") == 1 and "solutions.jsonl:6" in captured.err
  assert not out.exists()
  assert main.main(["view", str(tmp_path / "gone"), f"--static={out}"]) == 1
  assert "no such file" in capsys.readouterr().err
  logging.getLogger().handlers.clear()
