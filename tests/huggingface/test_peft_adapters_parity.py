"""Adapters that PEFT trained score as PEFT says, and PEFT loads ours.

Needs the extra `parity`.
"""

import numpy as np
import policy_folders
import pytest
import recipes

from prm_jax.cli import main
from prm_jax.huggingface import export_model
from prm_jax.huggingface import import_model
from prm_jax.huggingface import peft_adapters
from prm_jax.huggingface import verify
from prm_jax.scoring import scorer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
parity = pytest.importorskip("test_import_export_parity")
outcomes = pytest.importorskip("test_outcome_models_parity")

pytestmark = pytest.mark.parity
TARGETS = dict(
  TOKEN_CLS=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj"],
  SEQ_CLS="all-linear",
)


def _base(folder, task):
  """Writes a language model's folder."""
  tokenizer = "qwen2_5_math"
  size = policy_folders.tokenizer(tokenizer).text_ids + 8
  config = transformers.Qwen2Config(
    **parity.SIZES, vocab_size=size, pad_token_id=outcomes._pad(tokenizer)
  )
  parity._random(transformers.Qwen2ForCausalLM(config)).save_pretrained(folder)
  if task == "SEQ_CLS":
    policy_folders.write(folder, tokenizer)
    return
  (folder / "tokenizer.json").write_text(recipes.json_of("qwen"))
  (folder / "tokenizer_config.json").write_text("{}")


def _load(folder, task):
  kind = dict(TOKEN_CLS="Token", SEQ_CLS="Sequence")[task]
  return getattr(
    transformers, f"AutoModelFor{kind}Classification"
  ).from_pretrained(
    folder, num_labels=2 if task == "TOKEN_CLS" else 1, dtype=torch.float32
  )


def _scores(model, task, folder):
  """Returns the scores of the solutions, or logits of whole chats."""
  with torch.no_grad():
    if task == "SEQ_CLS":
      ids, mask = outcomes._tokens(folder, "qwen2_5_math")
      return model(ids, attention_mask=mask).logits[:, 0].numpy()
    out = []
    for s in parity.SOLUTIONS:
      ids, places = recipes.token_classification(s.problem, s.steps)
      logits = model(torch.tensor([ids])).logits[0, places]
      out.append(logits.softmax(-1)[:, 1].numpy())
    return np.concatenate(out)


def _found(folder, task):
  prm = scorer.load(folder)
  if task == "SEQ_CLS":
    return np.asarray([x.logits[-1] for x in prm.score(outcomes.SOLUTIONS)])
  return np.concatenate([x.scores for x in prm.score(parity.SOLUTIONS)])


@pytest.mark.parametrize("task", TARGETS)
def test_an_adapter_scores_as_peft_both_ways(
  task, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(outcomes.published, "_published", policy_folders.chat_of)
  base, theirs, ours = (tmp_path / x for x in ("base", "theirs", "ours"))
  base.mkdir()
  _base(base, task)
  config = peft.LoraConfig(
    r=4, lora_alpha=10, target_modules=TARGETS[task], task_type=task
  )
  torch.manual_seed(0)
  model = peft.get_peft_model(_load(base, task), config).eval()
  with torch.no_grad():
    for p in model.parameters():
      if p.requires_grad:
        p.copy_(0.3 * torch.randn_like(p))
  model.save_pretrained(theirs)
  expected = _scores(model, task, base)
  assert np.ptp(expected) > 0.01
  words = [f"--from={theirs}", f"--to={ours}", f"--base={base}", "--verify"]
  assert main.main(["import", *words]) == 0
  assert "scores differ from transformers' by" in capsys.readouterr().out
  np.testing.assert_allclose(_found(ours, task), expected, atol=1e-4)
  export_model.export_folder(ours, tmp_path / "back", base=base)
  back = peft.PeftModel.from_pretrained(_load(base, task), tmp_path / "back")
  np.testing.assert_array_equal(_scores(back.eval(), task, base), expected)
  card = (tmp_path / "back" / "README.md").read_text()
  assert '"BASE", num_labels=' in card
  (tmp_path / "back" / "README.md").write_text(
    card.replace('"BASE"', repr(str(base)))
  )
  num = 1 if task == "SEQ_CLS" else None
  parity.check_card(ours, tmp_path / "back", num)


def test_an_adapted_policy_is_verified_and_another_adapter_is_seen(tmp_path):
  base = tmp_path / "base"
  base.mkdir()
  _base(base, "TOKEN_CLS")
  for seed in (0, 1):
    plain = transformers.AutoModelForCausalLM.from_pretrained(
      base, dtype=torch.float32
    )
    config = peft.LoraConfig(
      r=4, target_modules=["q_proj", "up_proj"], task_type="CAUSAL_LM"
    )
    torch.manual_seed(seed)
    model = peft.get_peft_model(plain, config)
    with torch.no_grad():
      for p in model.parameters():
        if p.requires_grad:
          p.copy_(0.3 * torch.randn_like(p))
    model.save_pretrained(tmp_path / f"adapter_{seed}")
  source = tmp_path / "adapter_0"
  import_model.import_folder(source, tmp_path / "ours", base=base)
  compared = verify.compare(source, tmp_path / "ours", base)
  assert compared.what == "log-probabilities"
  assert compared.largest <= 1e-4
  other = verify.compare(tmp_path / "adapter_1", tmp_path / "ours", base)
  assert other.largest > 2 * other.tolerance


@pytest.mark.parametrize("name", ["skywork", "qwen_prm"])
def test_an_adapter_on_a_prm_whose_head_transformers_lacks_is_verified(
  name, tmp_path, capsys
):
  base, theirs = tmp_path / "base", tmp_path / "theirs"
  base.mkdir()
  parity.MAKE[name](base)
  plain = transformers.AutoModelForCausalLM.from_pretrained(
    base, dtype=torch.float32
  )
  model = peft.get_peft_model(
    plain, peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"])
  )
  with torch.no_grad():
    for p in model.parameters():
      if p.requires_grad:
        p.copy_(0.3 * torch.randn_like(p))
  model.save_pretrained(theirs)
  words = [f"--from={theirs}", f"--base={base}", "--verify"]
  assert main.main(["import", *words, f"--to={tmp_path / 'ours'}"]) == 0
  assert "6 scores differ from transformers' by" in capsys.readouterr().out


def test_a_head_that_the_import_lost_is_seen(tmp_path, monkeypatch):
  base, theirs = tmp_path / "base", tmp_path / "theirs"
  base.mkdir()
  _base(base, "TOKEN_CLS")
  model = _load(base, "TOKEN_CLS")
  model.save_pretrained(base)
  config = peft.LoraConfig(
    r=2, target_modules=["q_proj"], task_type="TOKEN_CLS"
  )
  model = peft.get_peft_model(model, config)
  with torch.no_grad():
    for name, p in model.named_parameters():
      if "modules_to_save" in name:
        p.copy_(torch.randn_like(p))
  model.save_pretrained(theirs)
  split = peft_adapters._split
  monkeypatch.setattr(peft_adapters, "_split", lambda *x: (split(*x)[0], {}))
  import_model.import_folder(theirs, tmp_path / "ours", base=base)
  compared = verify.compare(theirs, tmp_path / "ours", base)
  assert compared.largest > 2 * compared.tolerance
