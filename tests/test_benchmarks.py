"""What the benchmarks measure is what they say they measure."""

import dataclasses
import importlib
import importlib.util
import itertools
import json
import pathlib
import re
import sys

import jax
import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.demo import demo_run_config as demo_run_config
from prm_jax.models import sharding
from prm_jax.plan import topologies
from prm_jax.policy import drawing
from prm_jax.rows import packing
from prm_jax.runtime import config_files
from prm_jax.scoring import scorer
from prm_jax.text import encoding
from prm_jax.text import step_automaton

FOLDER = pathlib.Path(__file__).parents[1] / "benchmarks"


def test_the_sampling_benchmark_samples_as_the_demo_unless_told_otherwise(
  monkeypatch,
):
  monkeypatch.syspath_prepend(str(FOLDER))
  sample = importlib.import_module("sample")
  monkeypatch.delitem(sys.modules, "sample")
  config = demo_run_config.from_config(config_files.load(sample.CONFIG))

  def found(*words):
    sampling = sample.sampling(sample.arguments().parse_args(words), config)
    return sampling.max_tokens, sampling.temperature, sampling.top_p

  assert found() == (config.max_new_tokens, config.temperature, config.top_p)
  assert config.top_p < 1
  told = found("--temperature=0", "--top_p=1")
  assert told == (config.max_new_tokens, 0.0, 1.0)


def test_the_import_benchmark_counts_all_of_its_checkpoint(
  monkeypatch, tmp_path
):
  monkeypatch.syspath_prepend(str(FOLDER))
  load = importlib.import_module("load_checkpoint")
  monkeypatch.delitem(sys.modules, "load_checkpoint")
  small = dict(vocab_size=512, d_model=64, num_layers=3, d_ff=96)
  monkeypatch.setattr(load, "MODEL", dataclasses.replace(load.MODEL, **small))
  load.make_checkpoint(tmp_path, 0)
  counts = load.measure(tmp_path, 1)["counts"]["checkpoint"]
  table, query, key = 512 * 64, 64 * 32 * 64, 64 * 8 * 64
  layer = 2 * query + 2 * key + 3 * 64 * 96 + 2 * 64
  weights = table + 3 * layer + 64
  assert counts == {
    "bytes": 2 * weights,
    "bytes of the largest tensor": 2 * query,
    "tensors": 2 + 3 * 9,
    "bytes as float32 parameters": 4 * weights,
  }


def test_blocks_of_attention_are_counted_as_by_hand(monkeypatch):
  monkeypatch.syspath_prepend(str(FOLDER))
  count = importlib.import_module("attention_blocks")
  for name in ("attention_blocks", "train_step"):
    monkeypatch.delitem(sys.modules, name)
  # Solutions of 4 and 2 tokens, and 2 of padding.
  row = [packing.chain(_example(n)) for n in (4, 2)]
  found = count.shares([row], 8, (1, 2, 4, 8))
  assert found == {
    "pairs": (10 + 3 + 2) / 64,
    "blocks_1": (10 + 3 + 2) / 64,
    "blocks_2": (3 + 1 + 1) * 4 / 64,
    "blocks_4": 2 * 16 / 64,
    "blocks_8": 1.0,
  }


def _example(tokens):
  zeros = np.zeros(tokens, np.float32)
  return encoding.Example(
    np.arange(tokens, dtype=np.int32), zeros, zeros, zeros.astype(bool)
  )


def test_the_streaming_benchmark_trains_on_distinct_labelled_solutions(
  monkeypatch,
):
  monkeypatch.syspath_prepend(str(FOLDER))
  stream = importlib.import_module("stream")
  monkeypatch.delitem(sys.modules, "stream")
  found = list(stream.solutions(3_000))
  # Deduplication would leave out what comes twice.
  assert len({(s.problem, s.steps) for s in found}) == 3_000
  for s in found:
    first, second = (step.rpartition("= ")[2] for step in s.steps[1:])
    a, b = (int(x) for x in s.problem[13:-1].split(" + "))
    right = (1.0, float(int(first) == 17 * a))
    assert s.labels[:2] == right
    assert s.outcome == (int(second) == 17 * a + b) == (s.labels[2] == 1)


def test_the_label_benchmark_counts_labels_once_and_up_to_the_first_wrong_one(
  monkeypatch,
):
  monkeypatch.syspath_prepend(str(FOLDER))
  rollouts = importlib.import_module("label_rollouts")
  monkeypatch.delitem(sys.modules, "label_rollouts")
  problem = "Ann dials 2 up 1 times 2 ."
  right = ("so 2 + 1 = 3", "so 3 * 2 = 6", "answer 6")
  wrong = (right[0], "so 3 * 2 = 5", "answer 5")
  labelled = [
    schema.Solution("a", problem, right, (1.0, 1.0, None)),
    schema.Solution("b", problem, wrong, (1.0, 1.0, 0.0)),
    schema.Solution("c", problem, wrong[:2], (0.0, 1.0)),
  ]
  assert rollouts.count(labelled, 7) == dict(rollouts=7, labels=4, agreeing=2)
  found = rollouts.measure(0, (3, 4), 4, None)
  for counts in found.values():
    assert counts["agreeing"] == counts["labels"] > 5


def test_looking_for_a_steps_end_costs_under_two_percent_of_a_step(monkeypatch):
  """Against the matrix products of a step with 2 of the model's 24 layers."""
  monkeypatch.syspath_prepend(str(FOLDER))
  rollouts = importlib.import_module("rollouts")
  monkeypatch.delitem(sys.modules, "rollouts")
  model = dataclasses.replace(rollouts.QWEN, num_layers=2)
  # As many states and kinds of ids as paragraphs have in its vocabulary.
  table = step_automaton.Table(
    jax.ShapeDtypeStruct((208, 268), np.uint16),
    jax.ShapeDtypeStruct((model.vocab_size,), np.uint16),
  )
  plain, looking = (rollouts.lowered_step(model, 64, x) for x in (None, table))
  assert "ui16" in looking.as_text() and "ui16" not in plain.as_text()
  added = {
    name: looking.cost_analysis()[name] - plain.cost_analysis()[name]
    for name in ("flops", "bytes accessed")
  }
  d, ff = model.d_model, model.d_ff
  layer = 2 * d * d + 2 * d * 128 + 3 * d * ff
  weights = model.vocab_size * d + model.num_layers * layer
  assert 0 <= added["flops"] < 0.02 * 2 * weights * 64
  size = sum(2 * x.size for x in table)
  assert 0 < added["bytes accessed"] + size < 0.02 * 2 * weights


# --- Against TRL and transformers -------------------------------------------

TINY = (
  *("--vocabulary=300", "--d_model=64", "--num_layers=2", "--d_ff=96"),
  *("--num_kv_heads=1", "--sequence_length=256", "--batch=4"),
)


@pytest.fixture
def against(monkeypatch):
  """Returns a script that compares with a peer, and small arguments for it."""
  before = {*sys.modules}

  def load(name):
    monkeypatch.syspath_prepend(str(FOLDER))
    script = importlib.import_module(name)
    # Not all have every option.
    return script, script.arguments().parse_known_args(TINY)[0]

  yield load
  for name in {*sys.modules} - before:
    if (
      pathlib.Path(getattr(sys.modules[name], "__file__", "") or "").parent
      == FOLDER
    ):
      del sys.modules[name]


def _rated(problem, *ratings, first="a"):
  steps = [f"{first} step {k}, 2 + {k} = {2 + k}." for k in range(len(ratings))]
  return schema.Solution(
    f"{problem}/{first}/{len(steps)}",
    problem,
    tuple(steps),
    source="prm800k",
    ratings=ratings,
  )


RATED = [
  _rated("What is 2 + 2?", 1, 0, -1),
  _rated("What is 2 + 2?", 1, None, 1, first="b"),
  _rated("What is 2 + 2?", None, 1, first="b"),
  _rated("What is 2 + 2?", 1, -1, 1, first="c"),
  _rated("Another problem, and a longer one.", None, None, -1),
  _rated("Another problem, and a longer one.", 1),
  _rated("Nothing was rated here.", None, None),
]


def _model(script, args, folder, solutions=RATED):
  return script.peer.make(args, solutions, folder, 512)


def test_trl_is_given_our_ids_and_our_targets(against, tmp_path):
  vs_trl, args = against("vs_trl")
  model = _model(vs_trl, args, tmp_path)
  rows, counts = vs_trl.make_rows(RATED, model)
  assert counts["solutions without a target"] == 1
  assert [x.row["labels"] for x in rows] == [
    *([1, 1, 0], [1, -100, 1], [-100, 1], [1, 0], [-100, -100, 0], [1])
  ]
  for example, row in rows:
    # As PRMTrainer.tokenize_row does: texts apart, a label at each "\n".
    ids = model.tokenizer.encode(row["prompt"])
    labels = [-100] * len(ids)
    for step, label in zip(row["completions"], row["labels"], strict=True):
      ids += (
        added := model.tokenizer.encode(step) + model.tokenizer.encode("\n")
      )
      labels += [-100] * (len(added) - 1) + [label]
    assert ids == example.tokens.tolist()
    found = np.where(example.weights > 0, example.labels, -100)
    assert labels == found.tolist()


def test_the_timed_batches_of_trl_stand_for_an_epoch(against):
  vs_trl, args = against("vs_trl")
  lengths = np.random.default_rng(0).integers(3, 90, 42)
  examples = [_of_length(n) for n in lengths]
  args.timed_updates = 10
  whole = vs_trl.trl_batches(examples, args)
  # Ten batches of four, and two sequences that fill none.
  assert sorted(i for x in whole.batches for i in x) != list(range(42))
  assert len({i for x in whole.batches for i in x}) == 40
  slots = sum(4 * lengths[x].max() for x in whole.batches)
  assert whole.counts["labels"] == whole.counts["updates"] + 31
  assert slots == round(whole.share * whole.counts["slots"])
  assert 0.9 < whole.share < 1
  args.timed_updates = 2
  some = vs_trl.trl_batches(examples, args)
  chosen = [lengths[x].max() for x in some.batches]
  widths = sorted(lengths[x].max() for x in whole.batches)
  assert chosen == [widths[2], widths[7]]
  slots = 4 * sum(chosen)
  assert some.share == pytest.approx(slots / whole.counts["slots"])


def _of_length(n):
  weights = np.zeros(n, np.float32)
  weights[-1] = 1
  return encoding.Example(
    np.arange(n), np.zeros(n, np.float32), weights, weights > 0, "", 1
  )


@pytest.mark.parametrize("copies", [True, False])
def test_scored_solutions_are_distinct_and_copies_share_the_problem_alone(
  against, copies
):
  score, _ = against("score")
  texts = [*itertools.product("abc", "xyz")]
  data = [
    schema.Solution(f"{p}/{i}", f"problem {p}", steps)
    for p, number in enumerate((2, 9, 5))
    for i, steps in enumerate([*texts[:number], *texts[:number]])
  ]
  found, counts = score.candidates(data, 2, 5, 0, copies=copies)
  groups = [found[:5], found[5:]]
  for group in groups:
    assert len({s.steps for s in group}) == 5
    assert len({s.problem for s in group}) == 1
    copied = [s for s in group if s.steps[0].startswith("(")]
    assert len({s.steps[0] for s in copied}) == len(copied)
    for s in copied:
      first = s.steps[0].partition(") ")[2]
      assert (first, *s.steps[1:]) in {x.steps for x in data}
  assert groups[0][0].problem != groups[1][0].problem
  real = {(s.problem, s.steps) for s in data}
  assert counts["real"] == sum((s.problem, s.steps) in real for s in found)
  assert copies or counts["real"] == 10
  with pytest.raises(
    errors.InputError, match=r"problems=3: .* has 2 with 5"
  ) as e:
    score.candidates(data, 3, 5, 0, copies=False)
  assert "\n" not in str(e.value)


def test_a_score_that_differs_or_is_missing_ends_the_scoring_benchmark(against):
  score, _ = against("score")
  right = [[0.1, 0.2], [], [0.3]]
  assert score.check_same(dict(a=right, b=right)) == dict(a=0, b=0)
  wrong = {
    "differs by": [[0.1, 0.2], [], [0.3002]],
    "one score for each": [[0.1, 0.2], [0.3], []],
    "differs": [[0.1, float("nan")], [], [0.3]],
  }
  for said, scores in wrong.items():
    with pytest.raises(RuntimeError, match=said):
      score.check_same(dict(a=right, b=scores))


@pytest.mark.parity
def test_updates_of_trl_are_ours_and_other_weights_are_noticed(
  against, tmp_path
):
  pytest.importorskip("trl.experimental.prm")
  vs_trl, args = against("vs_trl")
  vs_trl.peer.use_device("cpu")
  model = _model(vs_trl, args, tmp_path)
  rows, _ = vs_trl.make_rows(RATED, model)
  assert len(vs_trl.checked_rows(rows)) == 4
  found = vs_trl.check_same(rows, model, args)
  for name in ("padded", "packed", "tree"):
    assert 0 <= found[name]["loss_nats"] < 1e-5
    assert 0 <= found[name]["grad_norm"] < 1e-4
  # Otherwise two updates would say no more than one.
  losses = found["trl"]
  assert losses["loss_nats"] - losses["second_loss_nats"] > 1e-3
  changed = jax.tree.map(lambda x: 1.01 * x, model.params)
  with pytest.raises(RuntimeError, match="nothing was timed"):
    vs_trl.check_same(rows, model._replace(params=changed), args)
  with pytest.raises(RuntimeError, match="other ids or labels"):
    vs_trl.trl_side(
      model._replace(
        encoding=dataclasses.replace(model.encoding, max_tokens=9)
      ),
      rows,
      args,
      bf16=False,
    )


@pytest.mark.parity
def test_transformers_and_ours_score_alike_in_every_layout(against, tmp_path):
  pytest.importorskip("transformers")
  score, args = against("score")
  score.peer.use_device("cpu")
  model = _model(score, args, tmp_path)
  encoded = [
    encoding.encode(s.problem, s.steps, model.tokenizer, model.encoding)
    for s in RATED
  ]
  runs = {x: score.by_scorer(x, RATED, model, args) for x in scorer.LAYOUTS}
  for by_length in (False, True):
    runs[f"transformers {by_length}"] = score.by_transformers(
      encoded, model, args, by_length=by_length
    )
  scores = {name: run() for name, run in runs.items()}
  assert max(score.check_same(scores).values()) < 1e-5
  assert np.ptp(np.concatenate(scores["padded"])) > 0.05
  counts = score.count(encoded, [s.problem for s in RATED], args)["tokens"]
  assert counts["tree"] < counts["packed"] < counts["transformers_sorted"]


def test_weak_scalings_table_and_picture_show_every_size(monkeypatch):
  monkeypatch.syspath_prepend(str(FOLDER))
  scaling = importlib.import_module("weak_scaling")
  monkeypatch.delitem(sys.modules, "weak_scaling")
  rows = [
    dict(
      chips=n,
      mesh=[1, n, 1],
      peak_gib=8 / n,
      fits=n > 1,
      computed_tflop=40.0,
      wire_gib=10.0 * (n > 1),
      wire_s=0.1,
      compute_s=0.2,
    )
    for n in (1, 4, 16)
  ]
  lines = scaling.table(rows).splitlines()
  assert lines[2] == (
    "| 1 | 1 x 1 x 1 | 8.00 (doesn't fit) | 40.0 | 0.00 | 0.50 |"
  )
  assert lines[-1] == "| 16 | 1 x 16 x 1 | 0.50 | 40.0 | 10.00 | 0.50 |"
  picture = scaling.figure(rows).decode()
  for note in ("sent, GiB, 16 chips: 10.00", "TFLOP, 4 chips: 40.00"):
    assert note in picture
  refused = dict(chips=1, mesh=[1, 1, 1])
  assert "doesn't fit" in scaling.table([refused])


@pytest.mark.parity
def test_growing_solutions_are_scored_alike_by_all_and_read_once(
  against, tmp_path
):
  pytest.importorskip("transformers")
  score, args = against("score")
  score.peer.use_device("cpu")
  args.problems, args.depth, args.rounds = 1, 3, 1
  args.cache_tokens = 8_192
  score.growing.SET = 8
  calls = score.growing.record(RATED, args)
  sizes = {name: [*map(len, of)] for name, of in calls.items()}
  assert sizes == dict(beam=[16] * 3, set=[8] * 3)
  for of in calls.values():
    for before, after in itertools.pairwise(of):
      known = {s.steps for s in before}
      assert all(s.steps[:-1] in known for s in after)
  model = _model(score, args, tmp_path)
  found = score.grow(args, RATED, model)
  assert "pages: 8,192 tokens" in score.results.show(found)
  for name in calls:
    counts = found["counts"][name]
    computed, whole = counts["tokens computed"], counts["tokens, whole"]
    assert max(computed[1:]) < 1.2 * min(computed[1:])
    assert whole == sorted(whole) and whole[-1] > 2 * computed[-1]
    # Those of transformers are within score.TOLERANCE.
    assert found["differences"][name]["whole, padded"] < 1e-5


# --- Against search-and-learn -----------------------------------------------


def test_a_replayed_search_with_other_ids_or_scores_ends_its_benchmark(against):
  search, _ = against("search")
  ids, scores = {"0/1": [5, 2], "0/1.0": [7, 2]}, {"0/1": [0.5], "0/1.0": [0.5]}
  wanted = search.recorded.Nodes(ids, scores)
  near = search.recorded.Nodes(ids, scores | {"0/1": [0.50001]})
  assert search.check_same("near", near, wanted) == pytest.approx(1e-5)
  wrong = {
    "'0/1.0'] have other ids": wanted._replace(ids=ids | {"0/1.0": [7, 7]}),
    "'0/2'] have other ids": wanted._replace(ids=ids | {"0/2": [7, 2]}),
    "one score for each": wanted._replace(scores=scores | {"0/1": [0.5, 0.5]}),
    "differs by": wanted._replace(scores=scores | {"0/1": [0.5002]}),
    "differs by nan": wanted._replace(scores=scores | {"0/1": [np.nan]}),
  }
  for said, made in wrong.items():
    with pytest.raises(RuntimeError, match=re.escape(said)):
      search.check_same("wrong", made, wanted)


@pytest.mark.parity
def test_a_search_of_ours_and_of_transformers_has_the_same_ids_and_scores(
  against, monkeypatch, tmp_path
):
  pytest.importorskip("transformers")
  search, args = against("search")
  search.peer.use_device("cpu")
  args.problems, args.keep, args.expand, args.depth = 2, 2, 2, 3
  args.rounds, args.step_tokens, args.slots = 1, [4, 40], 6
  args.prompt_tokens, args.cache_tokens = 128, 2_048
  found = {}
  check = search.check_same

  def note(name, made, wanted):
    found[name] = made
    return check(name, made, wanted)

  monkeypatch.setattr(search, "check_same", note)
  draw = drawing.draw
  result = search.replay([*search.WAYS], args, _long_solutions(), tmp_path)
  assert drawing.draw is draw
  assert "ours / search_and_learn" in search.results.show(result)
  ours, theirs = found[search.OURS], found[search.PEER]
  # Each of two problems has 4 children after each of 3 steps.
  assert len(ours.ids) == 2 * 3 * 4
  assert ours.ids == theirs.ids
  assert len({tuple(x) for x in ours.ids.values()}) > 12
  for node, scores in ours.scores.items():
    np.testing.assert_allclose(theirs.scores[node], scores, rtol=0, atol=1e-4)
  assert np.ptp(np.concatenate([*ours.scores.values()])) > 0.05
  assert {*found} == {*search.WAYS}
  assert all(x.ids == ours.ids for x in found.values())
  counts = result["counts"]
  for name, way in search.WAYS.items():
    assert (name in counts) == (way.scoring != "peer")
    assert ("scored tokens read" in counts.get(name, ())) == (
      way.scoring == "cached"
    )
  cached = counts[search.OURS]
  assert cached["scored tokens read"] < cached["scored tokens, whole"]
  assert cached["prompt tokens read"] < cached["prompt tokens, each step's"]


def _long_solutions():
  """Returns solutions of two problems with enough steps for a search."""
  return [
    schema.Solution(
      str(p),
      f"Problem {p}: what is {p} + {p}?",
      tuple(f"Step {k}: {k} + {p} = {k + p}, so we go on." for k in range(9)),
    )
    for p in (1, 2)
  ]


# --- A server -----------------------------------------------------------------


@pytest.mark.parity
def test_our_server_and_a_plain_one_give_the_same_scores(
  against, monkeypatch, tmp_path
):
  pytest.importorskip("transformers")
  serve, args = against("serve")
  serve.peer.use_device("cpu")
  args.solutions, args.clients, args.rounds = 6, 3, 1
  args.tokens, args.batch_tokens = [1, 128], 128
  monkeypatch.setattr("prm_jax.scoring.prefix_shapes._FEW_ROWS", (1,))
  monkeypatch.setattr(serve.peer, "read", lambda path: RATED)
  result = serve.measure("growing", args, tmp_path)
  assert {*result["differences"]} == {
    *("ours", "cached", "offline", "offline_trees", "plain", "transformers")
  }
  assert result["counts"]["asked"]["solutions"] == 6
  assert {*result["seconds_of_a_request"]} == {"ours", "cached", "plain"}
  shown = serve.results.show(result)
  assert "ours / plain" in shown and "offline / transformers" in shown
  assert "cached / ours" in shown


def test_a_server_whose_scores_differ_is_found_out(against):
  serve, _ = against("serve")
  rows = dict(offline=[[0.5, 0.25]], ours=[[0.5, 0.25001]])
  assert serve._differences(rows)["ours"] == pytest.approx(1e-5)
  with pytest.raises(RuntimeError, match="ours: a score differs"):
    serve._differences(rows | dict(ours=[[0.5, 0.26]]))


def test_the_page_gives_the_rounding_that_was_measured():
  """Every cell of the table in docs/python.md is that of its result."""
  docs = FOLDER.parent / "docs"
  page = (docs / "python.md").read_text()
  section = page.partition("\n## Rounding\n")[2].partition("\n## ")[0]
  rows = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in section.splitlines()
    if line.startswith("|")
  ][2:]
  assert len(rows) == 6
  measured = [
    json.loads((docs / "results" / name).read_text())["differences"]
    for name in re.findall(r"results/(rounding_[^)]*)\)", section)
  ]
  forms = ("alone", "batches", "packed", "trees", "cached", "transformers")
  for form, (_, *cells) in zip(forms, rows, strict=True):
    pairs = [
      (found, f"bfloat16: {form} to {base}")
      for found in measured
      for base in ("alone", "float32")
    ]
    for cell, (found, pair) in zip(cells, pairs, strict=True):
      x = found.get(pair)
      sizes = () if x is None else (x["log_odds_p99"], x["log_odds_max"])
      expected = ", ".join(f"{size:g}" for size in sizes)
      assert cell == (expected and f"{expected} ({x['probability_max']:g})"), (
        pair
      )
  for found in measured:
    for pair, x in found.items():
      if pair.startswith("float32") and "transformers" not in pair:
        assert x["log_odds_max"] <= 4e-5 and x["probability_max"] <= 1e-5


_PROGRAM = """HloModule decode
%fused_slice (a: bf16[8,4]) -> bf16[2,4] {
  %a = bf16[8,4]{1,0} parameter(0)
  %wide = f32[8,4]{1,0} convert(%a)
  %part = f32[2,4]{1,0} slice(%wide), slice={[0:2], [0:4]}
  ROOT %narrow = bf16[2,4]{1,0} convert(%part)
}

%fused_put (cache: f32[100], new: f32[1], at: s32[]) -> f32[100] {
  %cache = f32[100]{0} parameter(0)
  %new = f32[1]{0} parameter(1)
  %at = s32[] parameter(2)
  ROOT %put = f32[100]{0} dynamic-update-slice(%cache, %new, %at)
}

%inner (c: (bf16[2,4])) -> (bf16[2,4]) {
  %c = (bf16[2,4]{1,0}) parameter(0)
  %x = bf16[2,4]{1,0} get-tuple-element(%c), index=0
  %y = bf16[2,4]{1,0} copy(%x), metadata={op_name="while/body/while/body/copy"}
  ROOT %t = (bf16[2,4]{1,0}) tuple(%y)
}

%body (s: (bf16[8,4], f32[100], f32[1], s32[])) -> (bf16[8,4], f32[100]) {
  %s = (bf16[8,4]{1,0}, f32[100]{0}, f32[1]{0}, s32[]) parameter(0)
  %w = bf16[8,4]{1,0} get-tuple-element(%s), index=0
  %k = f32[100]{0} get-tuple-element(%s), index=1
  %n = f32[1]{0} get-tuple-element(%s), index=2
  %i = s32[] get-tuple-element(%s), index=3
  %cut = bf16[2,4]{1,0} fusion(%w), kind=kLoop, calls=%fused_slice
  %kept = f32[100]{0} fusion(%k, %n, %i), kind=kLoop, calls=%fused_put
  %given = (bf16[2,4]{1,0}) tuple(%cut)
  %looped = (bf16[2,4]{1,0}) while(%given), condition=%never, body=%inner, \
backend_config={"known_trip_count":{"n":"30"}}
  ROOT %out = (bf16[8,4]{1,0}, f32[100]{0}) tuple(%w, %kept)
}

ENTRY %main (p: bf16[8,4]) -> bf16[8,4] {
  %p = bf16[8,4]{1,0} parameter(0)
  %once = bf16[8,4]{1,0} copy(%p)
  %loop = (bf16[8,4]{1,0}, f32[100]{0}) while(%once), condition=%c, body=%body
  ROOT %r = bf16[8,4]{1,0} get-tuple-element(%loop), index=0
}
"""


def _of_benchmarks(monkeypatch, *names):
  monkeypatch.syspath_prepend(str(FOLDER))
  modules = [importlib.import_module(name) for name in names]
  for name in (*names, "results"):
    monkeypatch.delitem(sys.modules, name, raising=False)
  return modules


def test_kernels_move_what_they_read_and_write(monkeypatch):
  (kernels,) = _of_benchmarks(monkeypatch, "kernels")
  program = kernels.read(_PROGRAM.replace("\\\n", ""))
  found = {x.name: (x.bytes, x.times) for x in program.body()}
  # A slice of 2 x 4 in 2 bytes; one number into a cache, and its place.
  assert found == {"cut": (32, 1), "kept": (4 + 4 + 4, 1), "y": (32, 30)}
  assert [(x.name, x.bytes) for x in program.once()] == [("once", 128)]


def test_a_step_on_paper_is_counted_by_hand(monkeypatch):
  step, _ = _of_benchmarks(monkeypatch, "decode_step", "kernels")
  model = dataclasses.replace(step.SHAPES["0.5B"], vocab_size=1000)
  found = step.on_paper(model, 16)
  assert step.layout(16) == (4, 4, 2, 128)
  matrices = 2 * 24 * 896 * ((14 + 2 + 2 + 14) * 64 + 3 * 4864)
  vectors = 2 * (24 * (2 * 896 + (14 + 2 + 2) * 64) + 896)
  token = 2 * 2 * 24 * 2 * 64
  assert found == {
    "token rows": 2 * 16 * 896,
    "layers' weights": matrices + vectors,
    "output head": 2 * 1000 * 896 + 4 * 16 * 1000,
    "prompts": 4 * 128 * token,
    "tails": 16 * 9 * token,
    "pages": 16 * 56 * token,
    "rest of attention": 0,
    "sampler": 4 * 16 * 1000,
  }


@pytest.mark.plan
@pytest.mark.skipif(
  importlib.util.find_spec("jax_cuda12_plugin") is None,
  reason="jax_cuda12_plugin isn't installed",
)
def test_an_h100s_step_sorts_no_vocabulary_and_copies_nothing_large(
  monkeypatch,
):
  step, kernels = _of_benchmarks(monkeypatch, "decode_step", "kernels")
  model = dataclasses.replace(step.SHAPES["0.5B"], num_layers=2)
  topology = topologies.parse("h100:1")
  mesh = sharding.make_mesh((1, 1, 1), topologies.devices(topology))

  def compiled(held, sampling):
    return step.compile_chunk(
      *(mesh, model, step.engine_shapes.weights(model, held), step.layout(64)),
      step.SAMPLINGS[sampling],
    )

  published = compiled("bfloat16", "published")
  program = kernels.read(published.as_text())
  vocabulary = 4 * 64 * model.vocab_size
  assert all(
    x.bytes < vocabulary / 4 for x in program.body() if x.opcode == "sort"
  )
  # The most likely tokens, then the nucleus of ten passes, and the draw.
  found = step.count(published)
  assert found["bytes"]["sampler"] < 22 * vocabulary
  # What pages sum isn't copied next to their masses.
  assert not any(
    "concatenate" in x.name and "MKGC" in x.source for x in program.body()
  )
  narrow, wide = (
    step.count(compiled(x, "plain")) for x in ("bfloat16", "float32")
  )
  # Only norms and biases are read in float32.
  assert wide["bytes in all"] < 1.001 * narrow["bytes in all"]
  assert wide["kernels"] == narrow["kernels"]
  assert wide["bytes once a chunk"] < 1e6
