"""The report: what the page says follows from the numbers, and is harmless."""

import copy
import itertools
import re
from xml.etree import ElementTree

from page_reader import Reader
from page_reader import row
import pytest

from prm_jax.evaluation import judgement
from prm_jax.reports import demo_page
from prm_jax.reports import html as pages

N = [1, 2, 4, 8, 16, 32, 64, 128, 256]
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = """</svg></td></style><script>alert("1'2")</script>&amp;<b x='"""


def made_up_results(name="spare"):
  """Returns numbers that nobody measured; `name` is a curve we don't know."""
  accuracy = {
    "prm": [0.501, 0.662, 0.811, 0.904, 0.951, 0.963, 0.957, 0.944, 0.932],
    "prm_mc": [0.501, 0.641, 0.762, 0.833, 0.871, 0.884, 0.872, 0.858, 0.841],
    "orm": [0.501, 0.622, 0.671, 0.652, 0.561, 0.452, 0.341, 0.253, 0.192],
    "majority": [0.501, 0.512, 0.613, 0.692, 0.723, 0.741, 0.752, 0.76, 0.772],
    "weighted_prm": [0.501, 0.66, 0.793, 0.912, 0.962, 0.98, 0.99, 1.0, 1.0],
    "logprob": [0.501, 0.56, 0.602, 0.61, 0.597, 0.571, 0.553, 0.53, 0.509],
    "oracle": [0.501, 0.701, 0.862, 0.952, 0.985, 0.994, 1.0, 1.0, 1.0],
    name: [0.501, 0.503, 0.507, 0.513, 0.517, 0.519, 0.523, 0.529, 0.531],
  }
  return {
    "seed": 3,
    "n": N,
    "accuracy": accuracy,
    "interval": {
      k: [[max(0, y - 0.043), min(1, y + 0.031)] for y in curve]
      for k, curve in accuracy.items()
    },
    "paired": {
      "prm_minus_orm_at_256": {"mean": 0.74, "low": 0.681, "high": 0.792},
      "prm_minus_majority_at_256": {"mean": 0.16, "low": 0.1, "high": 0.21},
      "prm_minus_orm_at_4": {"mean": 0.14, "low": 0.09, "high": 0.19},
      f"{name}_at_256_minus_prm_at_64": {"mean": -0.1, "low": -0.2, "high": 0},
    },
    "false_positive_share": {"prm": 0.014, "orm": 0.238, name: None},
    "step_auroc": {"prm": 0.996, "prm_mc": 0.953},
    "step_brier": {"prm": 0.0123, "prm_mc": 0.0714},
    "seconds": {"train_prm": 95.24, "train_orm": 24.7, name: 0.06},
    "peak_rss_gib": 2.413,
  }


def made_up(text="x"):
  """Returns render's arguments with `text` wherever data may bring text."""
  solutions = [
    {
      "problem": text,
      "answer": text,
      "picked_by": text,
      "steps": [text, text],
      "labels": [1, 0],
      "step_scores": {"prm": [0.9, 0.1], text: [0.7, 0.6]},
      "judged": {},
      "outcome": False,
      "solution_answer": text,
    },
    {
      "problem": text,
      "answer": None,
      "picked_by": "orm",
      "steps": [],
      "labels": None,
      "step_scores": {},
      "judged": {},
      "outcome": None,
      "solution_answer": None,
    },
  ]
  bins = [
    {"score": 0.1, "correct": 0.2, "count": 30},
    {"score": 0.9, "correct": 0.85, "count": 20},
    {"score": None, "correct": None, "count": 0},
  ]
  details = {
    "config": {text: {text: text, "steps": 7}},
    "versions": {text: text},
    "machine": {text: text},
    "command": text,
    "train": {"prm": [[1, 0.7], [2, 0.4]], text: [[5, 3.0]]},
  }
  reliability = {"prm": bins, text: bins}
  return made_up_results(text), solutions, reliability, details


# --- The page ---------------------------------------------------------------


def test_the_page_loads_nothing_from_anywhere():
  page = demo_page.render(*made_up())
  assert not re.search(r"https?:|//|@import|url\(", page)
  reader = Reader(page)
  names = set(
    itertools.chain(*(t for t in reader.tags if isinstance(t, tuple)))
  )
  assert not names & {"script", "link", "img", "iframe", "object", "image"}
  assert not names & {"src", "href", "srcset", "xlink:href", "background"}


def test_text_from_data_never_becomes_markup():
  # Of one length, since the picture's names are cut at a length.
  word = "harmless".ljust(len(HOSTILE), "!")
  harmless, hostile = (
    Reader(demo_page.render(*made_up(text))) for text in (word, HOSTILE)
  )
  assert hostile.tags == harmless.tags
  assert hostile.text.count(HOSTILE) == harmless.text.count(word) > 20


def test_every_number_of_the_curves_is_in_the_table():
  results, *others = made_up()
  page = demo_page.render(results, *others)
  names = {"prm": "PRM", "orm": "ORM", "oracle": "Oracle (pass@N)", "x": "x"}
  for key, name in names.items():
    pairs = zip(results["accuracy"][key], results["interval"][key])
    expected = [
      f"{100 * y:.1f}{100 * low:.1f}–{100 * high:.1f}"
      for y, (low, high) in pairs
    ]
    assert row(page, name)[1:] == expected
  assert row(page, "right answers, %")[1:] == [f"N = {n}" for n in N]


def test_differences_false_positives_metrics_and_times_are_on_the_page():
  page = demo_page.render(*made_up())
  assert row(page, "PRM − ORM, N = 4")[1:3] == ["+14.0", "+9.0 to +19.0"]
  assert row(page, "x at N = 256 − PRM at N = 64")[1:4] == [
    "−10.0",
    "−20.0 to 0.0",
    "includes 0",
  ]
  rows = Reader(page).rows
  assert ["ORM", "23.8 %"] in [r[:2] for r in rows]
  assert ["x", "none picked"] in [r[:2] for r in rows]
  assert ["Monte-Carlo PRM", "0.953", "0.071", "–"] in rows
  for text in ("1 min 35 s", "24.7 s", "2 min 00 s", "2.41 GiB", "x.steps"):
    assert f">{text}<" in page


def test_a_plot_says_of_how_many_steps_a_bin_is_and_the_table_of_all():
  page = demo_page.render(*made_up())
  assert ["PRM", "0.996", "0.012", "50"] in Reader(page).rows
  assert "PRM, mean score 0.100, right 20.0 %, 30 steps" in page


def test_a_results_file_with_curves_alone_still_makes_a_page():
  results = {k: made_up_results()[k] for k in ("n", "accuracy")}
  page = demo_page.render(results, [], {}, {})
  assert "whose interval was not measured" in page
  assert "nan" not in page and "None" not in page


def test_control_characters_and_surrogates_do_not_break_the_file(tmp_path):
  text = "a\0b\x1b\ud800\u202e"
  page = demo_page.render(*made_up(text))
  assert "a␀b␛\\ud800" in page
  pages.write(tmp_path / "report.html", page)
  assert (tmp_path / "report.html").read_text(encoding="utf-8") == page
  ElementTree.fromstring(demo_page.figure(made_up_results(text)))


def test_a_failed_write_leaves_the_old_page_as_it_was(tmp_path):
  path = tmp_path / "report.html"
  pages.write(path, demo_page.render(*made_up()))
  before = path.read_bytes()
  with pytest.raises(UnicodeEncodeError):
    pages.write(path, "new\ud800")
  assert path.read_bytes() == before
  assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
  "shorten",
  [
    lambda results: results["n"].pop(),
    lambda results: results["accuracy"]["prm"].pop(),
    lambda results: results["interval"]["prm"].pop(),
  ],
)
def test_curves_of_unequal_lengths_are_refused(shorten):
  results, *others = copy.deepcopy(made_up())
  shorten(results)
  with pytest.raises(ValueError, match=r"shorter|longer"):
    demo_page.render(results, *others)


# --- The sentences ----------------------------------------------------------


@pytest.mark.parametrize("other, place", [("orm", 0), ("majority", 1)])
@pytest.mark.parametrize(
  "mean, low, high, said",
  [
    (0.1, 0.01, 0.2, "the PRM is ahead by 10.0 points"),
    (0.1, 0.0, 0.2, "the PRM does not win, its difference of +10.0 points"),
    (0.1, -0.1, 0.3, "the PRM does not win, its difference of +10.0 points"),
    (-0.1, -0.2, -0.01, "the PRM does not win, it is behind by 10.0 points"),
  ],
)
def test_the_prm_wins_only_where_the_paired_interval_is_above_0(
  other, place, mean, low, high, said
):
  results = made_up_results()
  pair = {"mean": mean, "low": low, "high": high}
  results["paired"][f"prm_minus_{other}_at_256"] = pair
  text = demo_page.summary(results)
  sentences = re.split(r"(?<=\.) (?=[A-Z])", text)
  assert len(sentences) == 2
  assert said in sentences[place]
  assert "ahead" in sentences[1 - place]
  page = Reader(demo_page.render(results, *made_up()[1:])).text
  assert text in page.replace("\xa0", " ")


def test_the_summary_tells_of_a_fall_beyond_the_interval_and_of_no_other():
  results = made_up_results()
  ending = "not always help the PRM, which was at 96.3 % with 32"
  results["interval"]["prm"][-1] = [0.9, 0.962]
  assert ending in demo_page.summary(results)
  results["interval"]["prm"][-1] = [0.9, 0.964]
  assert "always" not in demo_page.summary(results)


def test_the_comment_compares_first_doubt_and_first_error():
  for labels in itertools.product([0, 1, None], repeat=3):
    for scores in itertools.product([0.1, 0.9], repeat=3):
      wrong = [i for i in range(3) if labels[i] == 0]
      doubted = [i for i in range(3) if scores[i] < 0.5]
      said = judgement.judge(labels, scores)
      kind, line = said.kind, said.text
      late = wrong and doubted and wrong[0] < doubted[0]
      if set(labels) == {None}:
        assert kind == "open" and "No step has an exact label" in line
      elif doubted and labels[doubted[0]] is None and not late:
        assert kind == "open" and f"doubts step {doubted[0] + 1}" in line
      elif wrong[:1] == doubted[:1]:
        assert kind == "right"
        assert not wrong or f"first error, step {wrong[0] + 1} " in line
      else:
        assert kind == "wrong"
        missed = bool(wrong) and (not doubted or late)
        assert ("misses" in line) == missed
        assert ("false alarm" in line) == (not missed)
        named = {int(i) for i in re.findall(r"step (\d)", line)}
        assert named == {i + 1 for i in wrong[:1] + doubted[:1]}
      assert "\n" not in line


def test_a_right_answer_after_a_wrong_step_is_called_luck():
  assert "luck" in judgement.judge([1, 0], [0.9, 0.1], True).text
  assert "luck" in judgement.judge([1, 0], [0.9, 0.9], True).text
  assert "luck" not in judgement.judge([1, 0], [0.9, 0.1], False).text
  assert "luck" not in judgement.judge([1, 1], [0.9, 0.1], True).text


@pytest.mark.parametrize(
  "labels, scores, slips",
  [
    ([1, 0, None], [0.9, 0.1, 0.1], []),
    ([1, 0, 0], [0.9, 0.8, 0.9], ["missed"]),
    ([1, 1, 1], [0.2, 0.9, 0.3], ["false alarm", "false alarm"]),
    ([0, 1, 1], [0.2, 0.3, 0.3], []),
  ],
)
def test_slips_are_marked_up_to_the_first_error(labels, scores, slips):
  results, showcase, *others = made_up()
  showcase[0] |= {
    "steps": ["a", "b", "c"],
    "labels": labels,
    "step_scores": {"prm": scores},
  }
  page = demo_page.render(results, showcase[:1], *others)
  assert re.findall("<small>(missed|false alarm)</small>", page) == slips
  marks = {0: "✗", 1: "✓", None: "–"}
  for i in range(3):
    cells = row(page[page.index("<article>") :], str(i + 1))
    assert cells[2:] == [marks[labels[i]], f"{scores[i]:.3f}"]


def test_a_step_that_isnt_judged_is_never_shown_as_a_judged_one():
  """The wrong answer that a PRM calls right after its own first doubt."""
  results, showcase, *others = made_up("orm")
  scores = [0.98, 0.17, 0.999]
  shown = showcase[0] | {
    "steps": ["then 4 + 3 = 7", "now 7 - 2 = 6", "answer 4"],
    "labels": [1, 0, 0],
    "step_scores": {"prm": scores, "orm": [0.4, 0.3, 0.2]},
    "judged": {"prm": [True, True, False], "orm": [False, False, True]},
  }
  page = demo_page.render(results, [shown], *others)
  card = page[page.index("<article>") :]
  rows = re.findall(r'<tr class="step".*?</tr>', card, re.DOTALL)
  assert ["not judged<" in r for r in rows] == [False, False, True]
  assert [r.count('class="unjudged"') for r in rows] == [1, 1, 1]
  assert row(card, "3")[3] == "0.999not judged"
  assert [row(card, str(i))[4] for i in (1, 2, 3)] == [
    "(0.40)",
    "(0.30)",
    "0.20",
  ]
  # Neither blue nor orange, and no verdict about what isn't judged.
  fills = re.findall(r"background:([^\"]*)", card)
  assert ["--" in fill for fill in fills[:3]] == [True, True, False]
  assert "<small>missed" not in card and "<small>false alarm" not in card
  for text in ("Grey scores", "its own first score below 0.5"):
    assert text.replace("its", "their") in page.replace("its", "their")


def test_the_page_says_which_steps_calibration_counts_and_leaves_out():
  results, *others = made_up()
  counts = dict(counted=50, not_judged=7, after_error=11)
  results["calibration_steps"] = {"prm": counts}
  page = demo_page.render(results, *others)
  assert ["PRM", "0.996", "0.012", "50", "7", "11"] in Reader(page).rows
  heads = ["steps", "left out: not judged", "after a wrong step"]
  assert row(page, "step scores")[-3:] == heads
  assert "count the judged steps up to the first wrong one" in page
  assert "That holds for judged steps only" in page


# --- The picture ------------------------------------------------------------


def drawn(results):
  """Returns {curve's name: (points of the line, place of the name)}."""
  root = ElementTree.fromstring(demo_page.figure(results))
  curves = {}
  for group in root.findall(f"{SVG}g"):
    words = group.findall(f"{SVG}text")
    if len(words) != 1:
      continue
    numbers = re.findall(r"[\d.]+", group.find(f"{SVG}path").get("d"))
    numbers = [float(v) for v in numbers]
    place = (float(words[0].get("x")), float(words[0].get("y")))
    name = words[0].find(f"{SVG}title").text
    curves[name] = (list(zip(numbers[::2], numbers[1::2])), place)
  return curves


def test_the_picture_has_every_curve_on_a_log2_axis():
  results = made_up_results("</svg><script>")
  curves = drawn(results)
  assert len(curves) == 8
  lines = [points for points, _ in curves.values()]
  steps = [b[0] - a[0] for p in lines for a, b in itertools.pairwise(p)]
  assert max(steps) - min(steps) <= 0.11 < min(steps)
  # One straight scale for all values: pixels fall as the accuracy rises.
  prm, orm = curves["PRM"][0], curves["ORM"][0]
  scale = (orm[-1][1] - prm[-1][1]) / (0.932 - 0.192)
  for name, key in (("</svg><script>", "</svg><script>"), ("ORM", "orm")):
    for (_, y), value in zip(curves[name][0], results["accuracy"][key]):
      assert y == pytest.approx(prm[0][1] - scale * (value - 0.501), abs=0.2)


def test_no_two_curves_differ_by_colour_alone():
  results = made_up_results()
  root = ElementTree.fromstring(demo_page.figure(results))
  groups = [
    g for g in root.findall(f"{SVG}g") if g.find(f"{SVG}text/*") is not None
  ]
  styles = {
    (
      g.find(f"{SVG}path").get("stroke-dasharray"),
      g.find(f"{SVG}g/{SVG}path").get("d"),
      g.find(f"{SVG}g/{SVG}path").get("fill"),
    )
    for g in groups
  }
  assert len(styles) == len(groups) == 8


def test_names_beside_the_curves_never_overlap_nor_leave_the_picture():
  for value in (0.0, 0.5, 1.0):
    results = made_up_results()
    results["interval"] = {}
    for k in results["accuracy"]:
      results["accuracy"][k] = [value] * len(N)
    places = sorted(y for _, (_, y) in drawn(results).values())
    assert all(b - a >= 18 for a, b in itertools.pairwise(places))
    assert places[0] > 0 and places[-1] < 440


@pytest.mark.parametrize("value", [0.0, 0.03, 0.5, 0.97, 1.0])
def test_the_axis_of_accuracy_ends_at_100_percent_and_never_passes_0(value):
  accuracy = {k: [value] * len(N) for k in ("prm", "orm", "majority")}
  picture = demo_page.figure({"n": N, "accuracy": accuracy})
  texts = [t.text for t in ElementTree.fromstring(picture).iter(f"{SVG}text")]
  # The words of both axes come first, then the ticks of y, then those of x.
  ticks = [int(t) for t in texts[2 : texts.index("1")]]
  assert ticks == sorted(ticks) and len(ticks) > 2
  assert 0 <= ticks[0] <= 100 * value <= ticks[-1] == 100


def test_one_value_of_n_makes_a_picture_too():
  results = {
    "n": [1],
    "accuracy": {key: [0.5] for key in ("prm", "orm", "majority")},
  }
  assert len(drawn(results)) == 3


def test_colours_of_text_stand_out_from_the_paper_in_both_modes():
  style = ElementTree.fromstring(demo_page.figure(made_up_results()))
  light, dark = style.find(f"{SVG}style").text.split("@media")

  def luminance(colour):
    colour = "".join(2 * c for c in colour) if len(colour) == 3 else colour
    parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    r, g, b = (
      c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
    )
    return 0.2126 * r + 0.7152 * g + 0.0722 * b

  for mode in (light, dark):
    colours = dict(re.findall(r"\.(\w+){color:#(\w+)}", mode))
    paper = luminance(colours.pop("paper"))
    colours.pop("grid")
    assert len(colours) == 12
    for colour in map(luminance, colours.values()):
      low, high = sorted((colour, paper))
      assert (high + 0.05) / (low + 0.05) >= 4.5


def test_a_long_loss_curve_is_averaged_and_says_so():
  results, showcase, reliability, details = made_up()
  pairs = [[i, 1.0 + i % 2] for i in range(1, 600)] + [[600, float("nan")]]
  details["train"] = {"policy": pairs}
  page = demo_page.render(results, showcase, reliability, details)
  label = "update (means of 5 logged losses); 1 not finite, left out"
  assert label in page
  drawing = page[page.index('aria-label="Loss of each') :]
  curve = re.search(r'd="(M[^"]*)" fill="none"', drawing)[1]
  assert curve.count("L") == 119


def test_the_training_figure_names_every_curve_and_leaves_out_what_isnt_finite():
  train = dict(prm=[[10, 0.7], [20, float("nan")], [30, 0.1]], orm=[[10, 0.6]])
  root = ElementTree.fromstring(demo_page.training_figure(train))
  shown = " ".join(x.text or "" for x in root.iter(f"{SVG}title"))
  assert "PRM, update 30: 0.100 nats" in shown
  assert "ORM, update 10: 0.600 nats" in shown
  assert "nan" not in shown and "update 20" not in shown
  ElementTree.fromstring(demo_page.training_figure({}))
