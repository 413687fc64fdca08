"""Variants over seeds: bands hold every seed, tokens are counted up."""

import importlib
import pathlib
from xml.etree import ElementTree

import numpy as np
import pytest

from prm_jax import errors
from prm_jax.evaluation import tables
from prm_jax.reports import rl_sweep
from prm_jax.runtime import files

SVG = "{http://www.w3.org/2000/svg}"
EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"


def curves(seed, updates=12, every=3, **more):
  """Returns the curves of a seed as experiments store them."""
  random = np.random.default_rng(seed)
  steps = np.arange(1, updates + 1)
  at = np.arange(0, updates + 1, every)

  def values(num):
    return random.uniform(0.2, 0.9, num).round(5).tolist()

  return dict(
    eval=dict(step=at.tolist(), accuracy=values(len(at))),
    train=dict(
      step=steps.tolist(),
      accuracy=values(updates),
      prm_score=values(updates),
      sampled_tokens=random.integers(1_000, 2_000, updates).tolist(),
    )
    | more,
  )


def runs(*variants, seeds=3):
  return {
    name: [curves(10 * i + k) for k in range(seeds)]
    for i, name in enumerate(variants)
  }


def lines(figure):
  """Returns the lines of a figure's one panel by their labels."""
  (panel,) = figure.panels
  return {line.label: line for line in panel.lines}


# --- Bands ------------------------------------------------------------------


def test_a_band_holds_every_value_of_every_seed_and_the_mean():
  random = np.random.default_rng(0)
  for _ in range(20):
    lines = []
    for _ in range(3):
      x = np.sort(random.choice(np.arange(1, 50), 6, replace=False)).tolist()
      lines.append(([0, *x, 50], random.normal(size=8).tolist()))
    band = {p.x: p for p in rl_sweep.over_seeds(lines)}
    for x, y in lines:
      for a, b in zip(x, y, strict=True):
        assert band[a].low <= b <= band[a].high
    assert all(p.low <= p.mean <= p.high for p in band.values())
    assert sorted(band) == list(band)


def test_seeds_at_the_same_places_need_no_straight_lines():
  lines = [([0, 5, 9], [1.0, 2.0, 6.0]), ([0, 5, 9], [3.0, 8.0, 6.0])]
  assert rl_sweep.over_seeds(lines) == [
    *((0, 2, 1, 3), (5, 5, 2, 8), (9, 6, 6, 6)),
  ]


def test_a_band_is_where_all_of_its_seeds_are():
  lines = [([0, 2], [0.0, 2.0]), ([1, 4], [9.0, 9.0])]
  assert rl_sweep.over_seeds(lines) == [(1, 5, 1, 9), (2, 5.5, 2, 9)]
  assert rl_sweep.over_seeds([*lines, ([], [])]) == rl_sweep.over_seeds(lines)
  assert rl_sweep.over_seeds([([], [])]) == []


def test_tokens_are_those_of_all_updates_up_to_a_record():
  c = curves(0)
  tokens = c["train"]["sampled_tokens"]
  of_updates = rl_sweep.against_tokens(c, "train")
  assert of_updates == np.cumsum(tokens).tolist()
  of_evals = rl_sweep.against_tokens(c, "eval")
  assert of_evals == [sum(tokens[:k]) for k in c["eval"]["step"]]
  assert of_evals[0] == 0


def test_after_an_update_of_unknown_tokens_no_place_is_known():
  c = curves(0)
  c["train"]["sampled_tokens"][4] = None
  assert rl_sweep.against_tokens(c, "eval")[2:] == [None] * 3
  assert None not in rl_sweep.against_tokens(c, "eval")[:2]
  del c["train"]["sampled_tokens"]
  assert set(rl_sweep.against_tokens(c, "eval")) == {None}


# --- Figures ------------------------------------------------------------------


@pytest.mark.parametrize("against", [rl_sweep.STEP, rl_sweep.TOKENS])
@pytest.mark.parametrize("kind", ["eval", "train"])
def test_a_figure_has_the_values_of_the_chosen_variants(kind, against):
  given = runs("a", "b<&>", "c", seeds=1)
  figure = rl_sweep.figure(
    given, "accuracy", kind=kind, against=against, variants=("a", "b<&>")
  )
  assert lines(figure).keys() == {"a", "b<&>"}
  for name, line in lines(figure).items():
    (seed,) = given[name]
    tokens = rl_sweep.against_tokens(seed, kind)
    at = dict(step=seed[kind]["step"], sampled_tokens=tokens)[against]
    assert list(line.x) == at
    assert list(line.y) == seed[kind]["accuracy"]


def test_long_curves_are_means_of_updates_and_the_picture_says_so():
  given = {"a": [curves(k, updates=100) for k in range(2)]}
  (panel,) = rl_sweep.figure(given, "prm_score", kind="train").panels
  assert panel.x_label == "updates, means of 3; bands reach over the seeds"


def test_one_seed_has_no_band_and_nothing_speaks_of_one():
  given = runs("a", "b", seeds=1)
  page = rl_sweep.page("One", given)
  assert "bands" not in page.lead + "".join(
    x.x_label for section in page.sections for x in section.panels
  )
  assert not lines(rl_sweep.figure(given, "accuracy"))["a"].low
  band = lines(rl_sweep.figure(runs("a"), "accuracy"))["a"]
  assert all(a <= b <= c for a, b, c in zip(band.low, band.y, band.high))


@pytest.mark.parametrize(
  "variants, metric, said",
  [
    (
      [f"variant{i}" for i in range(7)],
      "accuracy",
      "7 variants in one picture",
    ),
    (["variant0", "nobody"], "accuracy", "nobody: no such variant"),
    (["variant0"], "all_steps_correct", "no eval curve of variant0"),
  ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(variants, metric, said):
  given = runs(*(f"variant{i}" for i in range(7)), seeds=1)
  with pytest.raises(errors.InputError, match=said) as e:
    rl_sweep.figure(given, metric, variants=variants)
  assert "\n" not in str(e.value)


def test_a_page_draws_what_its_variants_have_and_no_more():
  given = runs("a", "b")
  groups = {"First": ["a", "b", "not yet"], "None": ["not yet"]}
  page = rl_sweep.page("A title", given, groups=groups)
  assert [x.title for x in page.sections] == [
    "Results of each variant",
    "First",
  ]
  panels = [x for x in page.sections[1].panels if x.lines]
  assert [(x.y_label, x.x_label.partition(";")[0]) for x in panels] == [
    ("right answers, % (held out, greedy)", "updates"),
    ("right answers, % (held out, greedy)", "sampled tokens"),
    ("right answers, % (samples)", "updates"),
    ("PRM's mean score of a step (samples)", "updates"),
  ]


def test_a_page_says_what_each_variant_is_and_links_to_more():
  about = dict(a=("Says this.", "x.md#a"), later=("Not yet.", "y.md"))
  page = rl_sweep.page("Why?", runs("a", "b"), about=about)
  told = [(x.name, x.text, x.address) for x in page.sections[0].facts]
  assert told == [("a", "Says this.", "x.md#a")]


def test_the_table_has_the_last_of_each_variant_over_its_seeds():
  given = runs("a") | {"b": [curves(7)]}
  head, *body = tables.texts(rl_sweep.table(given))
  assert head == [
    *("", "seeds", "updates", "sampled tokens", "right answers, %"),
    "PRM's score",
  ]
  last = [100 * c["eval"]["accuracy"][-1] for c in given["a"]]
  assert body[0][4] == f"{np.mean(last):.1f} [{min(last):.1f}, {max(last):.1f}]"
  tokens = sum(given["b"][0]["train"]["sampled_tokens"])
  assert body[1][:4] == ["b", "1", "12", f"{tokens:,}"]


# --- The experiments --------------------------------------------------------


def test_an_experiments_pictures_are_of_the_points_that_there_are(
  monkeypatch, tmp_path
):
  monkeypatch.syspath_prepend(EXPERIMENTS)
  testbed = importlib.import_module("rl_testbed")
  output = tmp_path / "found.json"
  points = [
    dict(name=name, seed=seed, curves=curves(seed))
    for seed in (1, 0)
    for name in ("a", "b")
  ]
  points.append(dict(name="before", seed=0, curves={}))
  files.write_json(output, dict(points=points, command="python x.py"))
  words = dict(
    title="Why?",
    groups={"All": ("b", "before", "a", "later")},
    labels=dict(a="A", b="B", before="Before", later="Later"),
    about=dict(b=("Of b.", "b.md")),
  )
  testbed.pictures(points[-1:], output, **words)
  assert list(tmp_path.iterdir()) == [output]
  testbed.pictures(points, output, **words)
  # No evaluation has a faithful accuracy.
  names = {p.name for p in tmp_path.iterdir()}
  assert names == {"found.json", "found.svg", "found_pages"}
  svg = ElementTree.parse(tmp_path / "found.svg")
  assert {"A", "B"} <= {text.text for text in svg.iter(f"{SVG}text")}
  data = tmp_path / "found_pages/data"
  assert '"found"' in (data / "index.js").read_text()
  shown = (data / "evaluations-0.js").read_text()
  for words in ('"title":"Why?"', "python x.py", '"b.md"'):
    assert words in shown
  assert '"points"' not in shown


@pytest.mark.parametrize("name", ["rl_rewards", "rl_algorithms"])
def test_every_variant_that_is_drawn_has_a_sentence_and_a_link(
  monkeypatch, name
):
  monkeypatch.syspath_prepend(EXPERIMENTS)
  experiment = importlib.import_module(name)
  drawn = {arm for arms in experiment.GROUPS.values() for arm in arms}
  assert experiment.ABOUT.keys() == drawn
  for text, link in experiment.ABOUT.values():
    page, _, section = link.partition("#")
    # The address is one from docs/results/NAME_pages.
    there = EXPERIMENTS.parent / "docs" / page.removeprefix("../../")
    lines = there.read_text().splitlines()
    titles = {x[3:].lower().replace(" ", "-") for x in lines if x[:3] == "## "}
    assert text.endswith(".") and section in titles


def test_the_groups_of_the_rewards_experiment_are_variants_that_can_be_told_apart(
  monkeypatch,
):
  monkeypatch.syspath_prepend(EXPERIMENTS)
  rewards = importlib.import_module("rl_rewards")
  shown = [
    variant for variants in rewards.GROUPS.values() for variant in variants
  ]
  assert {*shown} == rewards.ARMS.keys() - {"before"}
  assert rewards.LABELS.keys() == rewards.ARMS.keys()
  # A picture cuts longer ones.
  shown = [x for arm, x in rewards.LABELS.items() if arm != "before"]
  assert max(map(len, shown)) <= 19
  for variants in rewards.GROUPS.values():
    assert len(variants) <= rl_sweep.MAX_VARIANTS
