"""A head's classes are in the order that their names say, from bad to good."""

import json

import numpy as np
import pytest
import recipes
import test_import_export
import test_outcome_models
import test_peft_adapters

from prm_jax import errors
from prm_jax import huggingface
from prm_jax.cli import main
from prm_jax.huggingface import class_names
from prm_jax.huggingface import export_model
from prm_jax.huggingface import heads
from prm_jax.huggingface import import_model

PAIRS = [
  *(("incorrect", "correct"), ("negative", "positive"), ("bad", "good")),
  *(("-", "+"), ("wrong", "right"), ("false", "true"), ("0", "1")),
  *(("No", "Yes"), (" NEGATIVE", "POSITIVE "), ("incorrect_step", "correct")),
  *(("step_incorrect", "step_correct"), ("error", "no-error"), ("-1", "1")),
  *(("Incorrect.", "Correct."), (False, True), (0, 1), (-1, 1), (0.0, 1.0)),
]


def _labels(*names):
  return dict(
    id2label={str(i): name for i, name in enumerate(names)},
    # As JSON has them, false and 0 among them.
    label2id=json.loads(json.dumps({x: i for i, x in enumerate(names)})),
  )


@pytest.mark.parametrize(("bad", "good"), PAIRS)
def test_known_names_say_which_class_is_good(bad, good, tmp_path):
  assert class_names.order(_labels(bad, good), 2, tmp_path) == (0, 1)
  assert class_names.order(_labels(good, bad), 2, tmp_path) == (1, 0)
  # Either field alone says it, too.
  for field, value in _labels(good, bad).items():
    assert class_names.order({field: value}, 2, tmp_path) == (1, 0)


@pytest.mark.parametrize("num", [1, 2, 3])
def test_without_names_the_last_class_is_good(num, tmp_path):
  usual = tuple(range(num))
  unnamed = [f"LABEL_{i}" for i in usual]
  default = _labels("LABEL_0", "LABEL_1")
  for raw in (
    *({}, dict(id2label=None), _labels(*unnamed), default),
    class_names.names_of(num),
    # transformers leaves one as it was if only the other is given.
    {**class_names.names_of(num), "label2id": default["label2id"]},
  ):
    assert class_names.order(raw, num, tmp_path) == usual
  assert class_names.order(_labels("quality"), 1, tmp_path) == (0,)
  three = _labels("good", "bad", "neutral")
  assert class_names.order(three, 3, tmp_path) == (1, 2, 0)
  for names in (("-1", "0", "1"), (-1, 0, 1)):  # PRM800K's
    assert class_names.order(_labels(*names), 3, tmp_path) == (0, 1, 2)
    turned = _labels(*names[::-1])
    assert class_names.order(turned, 3, tmp_path) == (2, 1, 0)


@pytest.mark.parametrize(
  ("raw", "num", "message"),
  [
    (_labels("LABEL_1", "LABEL_0"), 2, "doesn't say which is right"),
    (_labels("a", "b"), 2, "doesn't say which is right"),
    (_labels("rejected", "chosen"), 2, "doesn't say which is right"),
    (_labels("-1", "0"), 2, "doesn't say which is right"),
    (_labels(0, 1, 2), 3, "doesn't say which is right"),
    (_labels("good", "correct"), 2, "doesn't say which is right"),
    (_labels("neutral", "good"), 2, "doesn't say which is right"),
    (dict(id2label={"0": "bad", "1": "good", "2": "ok"}), 3, "which is right"),
    (_labels("bad", "neutral", "good"), 2, "names 3 classes"),
    (_labels("incorrect"), 1, "a high score would be a bad one"),
    (
      _labels("bad", "good") | dict(label2id=dict(good=0, bad=1)),
      2,
      "contradict each other",
    ),
    (dict(id2label=["bad", "good"]), 2, "expected the names of the classes"),
    (dict(id2label={"1": "bad", "2": "good"}), 2, "and their indices"),
    (dict(id2label={"0": None, "1": "good"}), 2, "expected the names"),
    (dict(label2id={"bad": [0], "good": 1}), 2, "expected the names"),
  ],
)
def test_names_that_say_nothing_are_refused_in_one_line(
  raw, num, message, tmp_path
):
  with pytest.raises(errors.InputError, match=message) as e:
    class_names.order(raw, num, tmp_path)
  assert "config.json" in str(e.value)
  assert "\n" not in str(e.value)


# --- Whole folders ----------------------------------------------------------

WIDTH = test_import_export.MODEL.d_model
INNER = {"score.0.weight": (WIDTH, WIDTH), "score.0.bias": (WIDTH,)}
OUTER = dict(
  TokenClassification={"score.weight": (2, WIDTH), "score.bias": (2,)},
  ProcessRewardModel={"score.2.weight": (2, WIDTH), "score.2.bias": (2,)},
)


def _classifier(folder, kind, names, *, turned=False):
  """Writes a PRM's folder with random weights."""
  random = np.random.default_rng(0)
  shapes = OUTER[kind] | (INNER if kind == "ProcessRewardModel" else {})
  head = {
    name: random.normal(size=shape).astype(np.float32)
    for name, shape in sorted(shapes.items())
  }
  if turned:
    head |= {name: head[name][::-1] for name in OUTER[kind]}
  model = test_import_export.MODEL
  trunk = dict(test_import_export._params(model, "lm"))
  trunk.pop("lm_head", None)
  huggingface.save(
    folder,
    "qwen2",
    model,
    [*huggingface.export_tensors("qwen2", model, trunk), *head.items()],
    dtype="float32",
    architecture=f"Qwen2For{kind}",
    extra=_labels(*names),
  )
  (folder / "tokenizer.json").write_text(recipes.json_of("qwen"))
  return folder


@pytest.mark.parametrize("kind", OUTER)
def test_classes_in_either_order_are_the_same_model(kind, tmp_path):
  plain = _classifier(tmp_path / "a", kind, ("incorrect", "correct"))
  names = ("correct", "incorrect")
  turned = _classifier(tmp_path / "b", kind, names, turned=True)
  import_model.import_folder(plain, tmp_path / "plain")
  import_model.import_folder(turned, tmp_path / "turned")
  expected = test_peft_adapters._leaves(tmp_path / "plain")
  found = test_peft_adapters._leaves(tmp_path / "turned")
  assert found.keys() == expected.keys()
  for name, x in expected.items():
    np.testing.assert_array_equal(found[name], x)


def test_what_goes_out_says_the_order_that_it_has(tmp_path):
  kind, names = "TokenClassification", ("correct", "incorrect")
  theirs = _classifier(tmp_path / "theirs", kind, names)
  import_model.import_folder(theirs, tmp_path / "ours")
  export_model.export_folder(tmp_path / "ours", tmp_path / "back")
  record = json.loads((tmp_path / "back" / "config.json").read_text())
  assert record["id2label"] == {"0": "bad", "1": "good"}
  assert record["label2id"] == {"bad": 0, "good": 1}
  before, after = (
    huggingface.open_tensors(x).read("score.weight")
    for x in (theirs, tmp_path / "back")
  )
  np.testing.assert_array_equal(after, before[::-1])


def test_a_reward_that_is_called_bad_is_refused(tmp_path, capsys):
  theirs = test_outcome_models._theirs(tmp_path / "hf", **_labels("wrong"))
  words = ["import", f"--from={theirs}", f"--to={tmp_path / 'ours'}"]
  assert main.main(words) == 1
  said = capsys.readouterr().err
  assert "a high score would be a bad one" in said
  assert said.count("\n") == 1
  assert not (tmp_path / "ours").exists()


def test_a_value_head_has_no_named_classes(tmp_path):
  model = test_import_export.MODEL
  config = huggingface.Source("qwen2", model, "", _labels("a", "b", "c"))
  assert heads.order_of("value head", config, 1, tmp_path) == (0,)
