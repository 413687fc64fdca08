"""Imported PRMs score as the public recipes do, run with torch; and back.

The models are tiny and random, of the sizes that the recipes' tokenizers ask
for. Needs the extra `parity`.
"""

import contextlib
import dataclasses
import io
import json
import pathlib
import re

import numpy as np
import pytest
import recipes
import test_import_export

from prm_jax import schema
from prm_jax.huggingface import export_model
from prm_jax.huggingface import import_model
from prm_jax.huggingface import verify
from prm_jax.scoring import scorer
from prm_jax.text import segmenters
from prm_jax.text import tokenizer as tokenizer_lib

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

pytestmark = pytest.mark.parity
PROBLEM = "Janet has 3 eggs and buys 12 more. How many eggs has she now?"
SOLUTIONS = [
  schema.Solution("a", PROBLEM, ("She buys 12.", "3 + 12 = 15", "x = 4")),
  schema.Solution("b", PROBLEM, ("The answer is: 15",)),
  schema.Solution("c", "x^2 = 16", ("so x = 4", "or x = -4.") * 3),
]
SIZES = dict(
  hidden_size=32,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  intermediate_size=48,
  max_position_embeddings=512,
)


def _save(folder, model, tokenizer, **changes):
  """Writes a Hugging Face folder; changes go into its config.json."""
  model.save_pretrained(folder)
  (folder / "tokenizer.json").write_text(recipes.json_of(tokenizer))
  named = recipes.tokenizer(tokenizer)
  names = dict(bos_token=named.bos_name)
  (folder / "tokenizer_config.json").write_text(json.dumps(names))
  path = folder / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _vocab(tokenizer):
  return dict(vocab_size=recipes.tokenizer(tokenizer).text_ids + 3)


def _random(model, seed=0):
  """Returns the model with larger weights, so that scores differ."""
  torch.manual_seed(seed)
  with torch.no_grad():
    for p in model.parameters():
      p.copy_(torch.randn_like(p) * (0.3 if p.ndim > 1 else 0.1))
      if p.ndim == 1 and p.shape[0] == SIZES["hidden_size"]:
        p.add_(1.0)
  return model.eval()


def _token_classification(folder):
  config = transformers.Qwen2Config(**SIZES, **_vocab("qwen"), num_labels=2)
  model = _random(transformers.Qwen2ForTokenClassification(config))
  _save(folder, model, "qwen")
  return lambda ids, at: model(ids).logits[0, at].softmax(-1)[:, 1]


def _qwen_prm(folder):
  """Qwen2ForProcessRewardModel is remote code: a trunk and torch's layers."""
  config = transformers.Qwen2Config(**SIZES, **_vocab("qwen"))
  trunk = _random(transformers.Qwen2ForCausalLM(config))
  width = SIZES["hidden_size"]
  score = torch.nn.Sequential(
    torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 2)
  )
  _random(score, 1)
  _save(folder, trunk, "qwen", architectures=["Qwen2ForProcessRewardModel"])
  tensors = safetensors_torch.load_file(folder / "model.safetensors")
  tensors |= {f"score.{k}": v for k, v in score.state_dict().items()}
  safetensors_torch.save_file(tensors, folder / "model.safetensors")

  def scores(ids, at):
    hidden = trunk.model(ids).last_hidden_state
    return score(hidden)[0, at].softmax(-1)[:, 1]

  return scores


def _skywork(folder):
  config = transformers.Qwen2Config(**SIZES, **_vocab("qwen"))
  trunk = _random(transformers.Qwen2ForCausalLM(config))
  summary = _random(torch.nn.Linear(SIZES["hidden_size"], 1), 1)
  _save(folder, trunk, "qwen")
  tensors = safetensors_torch.load_file(folder / "model.safetensors")
  tensors |= {f"v_head.summary.{k}": v for k, v in summary.state_dict().items()}
  safetensors_torch.save_file(tensors, folder / "model.safetensors")

  def scores(ids, at):
    hidden = trunk.model(ids).last_hidden_state
    return summary(hidden)[0, at, 0].sigmoid()

  return scores


def _signs(model, good, bad):
  def scores(ids, at):
    return model(ids).logits[0, at][:, [good, bad]].softmax(-1)[:, 0]

  return scores


def _math_shepherd(folder):
  config = transformers.MistralConfig(
    **SIZES, **_vocab("llama_2"), sliding_window=None
  )
  model = _random(transformers.MistralForCausalLM(config))
  _save(folder, model, "llama_2")
  signs = recipes.public("llama_2").encode("+ -", add_special_tokens=False)
  return _signs(model, *signs.ids)


def _rlhflow(folder):
  config = transformers.LlamaConfig(**SIZES, **_vocab("llama_3"))
  model = _random(transformers.LlamaForCausalLM(config))
  _save(folder, model, "llama_3")
  found = recipes.public("llama_3")
  good, bad = (found.encode(x, add_special_tokens=False).ids[-1] for x in "+-")
  return _signs(model, good, bad)


MAKE = dict(
  token_classification=_token_classification,
  qwen_prm=_qwen_prm,
  skywork=_skywork,
  math_shepherd=_math_shepherd,
  rlhflow=_rlhflow,
)
EVERY = pytest.mark.parametrize("name", MAKE)
# A language model doesn't say that it is read as a PRM.
NAMED = ("math_shepherd", "rlhflow")


def _import(name, tmp_path):
  theirs, ours = tmp_path / "theirs", tmp_path / "ours"
  theirs.mkdir()
  recipe = MAKE[name](theirs)
  template = name if name in NAMED else None
  found = import_model.import_folder(theirs, ours, template=template)
  assert found.description.encoding["template"]["name"] == name
  return recipe, ours


@EVERY
def test_an_imported_prm_scores_as_the_public_recipe(name, tmp_path):
  recipe, ours = _import(name, tmp_path)
  prm = scorer.load(ours)
  scores = [x.scores for x in prm.score(SOLUTIONS)]
  assert prm.segmenter == (
    segmenters.Segmenter("paragraph") if name.startswith("qwen") else None
  )
  for solution, found in zip(SOLUTIONS, scores, strict=True):
    ids, places = recipes.RECIPES[name][1](solution.problem, solution.steps)
    with torch.no_grad():
      expected = recipe(torch.tensor([ids]), places)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)
  spread = np.ptp([x for row in scores for x in row])
  assert spread > 0.01, "scores that are all alike show nothing"


@pytest.mark.parametrize("names", [("correct", "incorrect"), ("-", "+")])
def test_a_token_classifiers_names_say_which_score_it_is(names, tmp_path):
  """As transformers reads them: what id2label calls right."""
  theirs = tmp_path / "theirs"
  config = transformers.Qwen2Config(
    **SIZES,
    **_vocab("qwen"),
    id2label=dict(enumerate(names)),
    label2id={name: i for i, name in enumerate(names)},
  )
  model = _random(transformers.Qwen2ForTokenClassification(config))
  _save(theirs, model, "qwen")
  good = model.config.label2id["+" if "+" in names else "correct"]
  import_model.import_folder(theirs, tmp_path / "ours")
  found = scorer.load(tmp_path / "ours").score(SOLUTIONS)
  recipe = recipes.RECIPES["token_classification"][1]
  for solution, scored in zip(SOLUTIONS, found, strict=True):
    ids, places = recipe(solution.problem, solution.steps)
    with torch.no_grad():
      expected = model(torch.tensor([ids])).logits[0, places].softmax(-1)
    np.testing.assert_allclose(scored.scores, expected[:, good], atol=1e-4)
  compared = verify.compare(theirs, tmp_path / "ours")
  assert compared.largest < 1e-4
  assert np.ptp([x for row in found for x in row.scores]) > 0.01


@EVERY
def test_import_and_export_give_back_every_tensor_to_the_bit(name, tmp_path):
  _, ours = _import(name, tmp_path)
  export_model.export_folder(ours, tmp_path / "back")
  old, new = (
    safetensors_torch.load_file(tmp_path / folder / "model.safetensors")
    for folder in ("theirs", "back")
  )
  old.pop("lm_head.weight", None) if name not in NAMED else None
  assert old.keys() == new.keys()
  for key, value in old.items():
    assert value.dtype == new[key].dtype
    assert torch.equal(value, new[key]), key


def _run(code, folder):
  """Returns what a card's Python prints, with the folder in place of HERE."""
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    exec(code.replace("HERE", str(folder)), {})
  return json.loads(printed.getvalue().strip().splitlines()[-1])


def check_card(ours, target, num=None):
  """Runs a card's Python for its own example, and for another text.

  Args:
    ours: The checkpoint folder.
    target: The folder that it was exported to.
    num: How many of the last steps' scores it prints; None is all.
  """
  text = (target / "README.md").read_text()
  code = re.search(r"```python\n(.*?)```", text, re.S).group(1)
  said = re.search(r"In float32 this prints `(\[.*?\])`", text).group(1)
  np.testing.assert_allclose(_run(code, target), json.loads(said), atol=2e-4)
  solution = SOLUTIONS[2]
  other = re.sub(
    r"^problem = .*?^\]$",
    lambda _: (
      f"problem = {solution.problem!r}\nsteps = {list(solution.steps)!r}"
    ),
    code,
    flags=re.S | re.M,
  )
  assert other != code
  expected = scorer.load(ours).score([solution])[0].scores
  expected = expected[-(num or len(expected)) :]
  np.testing.assert_allclose(_run(other, target), expected, atol=2e-4)
  # After imports, problem and steps: ten lines, for heads that transformers
  # has and texts that are encoded one by one; a head and places take more.
  lines = code.partition("\n]\n")[2].splitlines()
  more = 4 * ("head = " in code) + 4 * ("text = " in code or "ends = " in code)
  adapts = "peft." in code
  assert 8 <= len(lines) <= 10 + more + adapts, code


@EVERY
def test_the_cards_code_scores_any_text_as_the_model(name, tmp_path):
  _, ours = _import(name, tmp_path)
  export_model.export_folder(ours, tmp_path / "back")
  check_card(ours, tmp_path / "back")


@pytest.mark.parametrize("kind", ["native", "native_orm_of_a_classifier"])
@pytest.mark.parametrize("tokenizer", ["bytes", "sentencepiece"])
def test_the_cards_code_of_a_model_of_ours_does_too(kind, tokenizer, tmp_path):
  fields = dict(test_import_export.KINDS[kind])
  made = tokenizer_lib.Bytes()
  if tokenizer == "sentencepiece":
    made = tokenizer_lib.train_sentencepiece(recipes.LESSONS, 320)
  model = dataclasses.replace(
    test_import_export.MODEL,
    vocab_size=made.vocab_size,
    **fields.pop("model", {}),
  )
  ours = test_import_export._ours(
    tmp_path / "ours", model, tokenizer=made, **fields
  )
  export_model.export_folder(ours, tmp_path / "back")
  check_card(ours, tmp_path / "back", 1 if "classifier" in kind else None)


def test_the_page_loads_what_was_exported_as_it_says(tmp_path, monkeypatch):
  page = pathlib.Path(__file__).parents[2] / "docs" / "bring_your_own.md"
  (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
  _, ours = _import("token_classification", tmp_path)
  facts = export_model.export_folder(ours, tmp_path / "my-prm")
  monkeypatch.chdir(tmp_path)
  names: dict = {}
  exec(code, names)
  with torch.no_grad():
    logits = names["model"](torch.tensor([facts.example.tokens])).logits
  scores = logits[0, list(facts.example.places)].softmax(-1)[:, 1]
  np.testing.assert_allclose(scores.numpy(), facts.example.scores, atol=1e-4)
