"""The demo's page: what it says follows from the numbers."""

import copy
import re

import pytest

from prm_jax.evaluation import tables
from prm_jax.reports import demo_page

N = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def results(name="spare"):
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
    "calibration_steps": {
      "prm": dict(counted=50, not_judged=7, after_error=11),
    },
    "reliability": {
      "prm": [
        dict(mean_score=0.1, share_correct=0.2, count=30),
        dict(mean_score=0.9, share_correct=0.85, count=20),
      ],
      name: [],
    },
    "run": dict(
      evaluated=dict(kind="Demo"), command=name, config={name: {"steps": 7}}
    ),
    "seconds": {"train_prm": 95.24, "train_orm": 24.7, name: 0.06},
    "peak_rss_gib": 2.413,
  }


def sections(found):
  return {x.title: x for x in demo_page.page(found).sections}


def rows(section):
  """Returns the texts of a section's table by the names of its rows."""
  return {row[0]: row[1:] for row in tables.texts(section.table)}


# --- The page ---------------------------------------------------------------


def test_every_number_of_the_curves_is_in_the_picture_and_the_table():
  found = results("x")
  section = sections(found)["Best of N"]
  (panel,) = section.panels
  lines = {line.label: line for line in panel.lines}
  labels = {"prm": "PRM", "orm": "ORM", "oracle": "Oracle (pass@N)", "x": "x"}
  shown = rows(section)
  assert lines.keys() == shown.keys() - {""} and len(lines) == 8
  assert panel.x_is_log and list(panel.x_ticks) == N
  assert shown[""] == [f"N = {n}, %" for n in N]
  for key, label in labels.items():
    curve, ends = found["accuracy"][key], found["interval"][key]
    assert list(lines[label].y) == curve and list(lines[label].x) == N
    assert list(zip(lines[label].low, lines[label].high)) == [*map(tuple, ends)]
    assert shown[label] == [
      f"{100 * y:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
      for y, (low, high) in zip(curve, ends, strict=True)
    ]


def test_differences_false_positives_metrics_and_times_are_on_the_page():
  page = sections(results("x"))
  differences = rows(page["Differences on the same problems"])
  assert differences["PRM \N{MINUS SIGN} ORM, N = 4"] == ["14.0 [9.0, 19.0]"]
  assert differences["x at N = 256 \N{MINUS SIGN} PRM at N = 64"] == [
    "-10.0 [-20.0, 0.0]"
  ]
  lucky = rows(page["Right answer, wrong step"])
  assert (lucky["ORM"], lucky["x"]) == (["23.8"], ["-"])
  steps = page["Can the step scores be believed?"]
  assert rows(steps) == {
    "": [
      *("AUROC", "Brier", "steps", "left out: not judged"),
      "after a wrong step",
    ],
    "PRM": ["0.9960", "0.0123", "50", "7", "11"],
    "Monte-Carlo PRM": ["0.9530", "0.0714", "", "", ""],
  }
  facts = {x.name: x.text for x in page["How it was made"].facts}
  assert facts["train prm"] == "1 min 35 s" and facts["train orm"] == "24.7 s"
  assert facts["total"] == "2 min 00 s" and facts["peak memory"] == "2.41 GiB"
  assert facts["command"] == "x" and facts["config.x.steps"] == "7"


def test_a_reliability_picture_has_the_bins_and_none_is_drawn_without_them():
  panels = sections(results())["Can the step scores be believed?"].panels
  assert [x.title for x in panels if x.lines] == ["PRM"]
  (line,) = panels[0].lines
  assert panels[0].has_diagonal
  assert (line.x, line.y) == ((0.1, 0.9), (0.2, 0.85))


def test_tiles_are_the_last_values_with_their_intervals():
  tiles = demo_page.page(results()).tiles
  assert [x.label for x in tiles] == [
    *("PRM", "PRM-weighted vote", "Monte-Carlo PRM", "ORM", "Majority vote"),
  ]
  assert (tiles[0].value, tiles[0].small) == ("93.2 %", "88.9 to 96.3")


@pytest.mark.parametrize(
  "shorten",
  [
    lambda found: found["n"].pop(),
    lambda found: found["accuracy"]["prm"].pop(),
  ],
)
def test_curves_of_unequal_lengths_are_refused(shorten):
  found = copy.deepcopy(results())
  shorten(found)
  with pytest.raises(ValueError, match=r"shorter|longer"):
    demo_page.page(found)


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
  found = results()
  pair = {"mean": mean, "low": low, "high": high}
  found["paired"][f"prm_minus_{other}_at_256"] = pair
  text = demo_page.summary(found)
  sentences = re.split(r"(?<=\.) (?=[A-Z])", text)
  assert len(sentences) == 2
  assert said in sentences[place]
  assert "ahead" in sentences[1 - place]
  assert demo_page.page(found).lead == text


def test_the_summary_tells_of_a_fall_beyond_the_interval_and_of_no_other():
  found = results()
  ending = "not always help the PRM, which was at 96.3 % with 32"
  found["interval"]["prm"][-1] = [0.9, 0.962]
  assert ending in demo_page.summary(found)
  found["interval"]["prm"][-1] = [0.9, 0.964]
  assert "always" not in demo_page.summary(found)
