"""Imported ORMs score as transformers does, in a batch with padding; and back.

The models are random, with the names and config.json that their classes write.
Needs the extra `parity`.
"""

import datetime
import json
import pathlib

import numpy as np
import policy_folders
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.cli import main
from prm_jax.huggingface import chat_template_worker
from prm_jax.huggingface import chat_templates
from prm_jax.huggingface import export_model
from prm_jax.huggingface import import_model
from prm_jax.huggingface import outcome_chat
from prm_jax.huggingface import token_names
from prm_jax.scoring import scorer
from prm_jax.text import policy_text
from prm_jax.text import templates

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
parity = pytest.importorskip("test_import_export_parity")
published = pytest.importorskip("test_chat_templates_parity")
safetensors_torch = pytest.importorskip("safetensors.torch")

pytestmark = pytest.mark.parity
SOLUTIONS = [
  *parity.SOLUTIONS,
  schema.Solution("d", "  Let $x = 3$.\n", ("So $x^2 = 9$,\nas asked.",)),
]
# Families of tokenizers and chats, and classes of transformers.
CLASSIFIERS = dict(
  llama2="LlamaForSequenceClassification",
  llama3="LlamaForSequenceClassification",
  mistral="MistralForSequenceClassification",
  qwen2_5_math="Qwen2ForSequenceClassification",
  qwen3="Qwen3ForSequenceClassification",
  gemma="Gemma2ForSequenceClassification",
)
CASES = [
  *CLASSIFIERS.items(),
  ("gemma", "Gemma3TextForSequenceClassification"),
]
REWARD = "Qwen2ForRewardModel"
PADS = dict(llama2="</s>", llama3="<|eot_id|>", mistral="</s>", gemma="<pad>")


def _pad(family):
  """Returns the id of padding: for Llama, that of the token that ends a turn.

  If that is all that follows a solution, the token before it is read.
  """
  name = PADS.get(family, "<|endoftext|>")
  return policy_folders.tokenizer(family).control(name)


def _config(name, family):
  sizes = dict(
    parity.SIZES,
    vocab_size=policy_folders.tokenizer(family).text_ids + 8,
    num_labels=1,
    pad_token_id=_pad(family),
  )
  return getattr(transformers, name.split("For")[0] + "Config")(**sizes)


def _classifier(folder, family, name):
  """Writes a classifier's folder; returns its logits of whole chats."""
  model = getattr(transformers, name)(_config(name, family))
  parity._random(model)
  with torch.no_grad():
    model.score.weight.mul_(5)  # a reward isn't a small number
  model.save_pretrained(folder)
  policy_folders.write(folder, family, published._published(family))
  return lambda ids, mask: model(ids, attention_mask=mask).logits[:, 0]


def _reward_model(folder):
  """Qwen2ForRewardModel is remote code: a trunk and torch's layers."""
  config = _config("Qwen2ForCausalLM", "qwen2_5_math")
  trunk = parity._random(transformers.Qwen2ForCausalLM(config))
  width = parity.SIZES["hidden_size"]
  score = torch.nn.Sequential(
    torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)
  )
  parity._random(score, 1)
  trunk.save_pretrained(folder)
  path = folder / "config.json"
  changed = json.loads(path.read_text()) | dict(architectures=[REWARD])
  path.write_text(json.dumps(changed))
  tensors = safetensors_torch.load_file(folder / "model.safetensors")
  tensors.pop("lm_head.weight", None)
  tensors |= {f"score.{k}": v for k, v in score.state_dict().items()}
  safetensors_torch.save_file(tensors, folder / "model.safetensors")
  chat = published._published("qwen2_5_math")
  policy_folders.write(folder, "qwen2_5_math", chat)

  def logits(ids, mask):
    hidden = trunk.model(ids, attention_mask=mask).last_hidden_state
    # The remote code reads the token before the first that is padding.
    last = (ids == config.pad_token_id).int().argmax(-1) - 1
    rows = torch.arange(len(ids))
    return score(hidden)[rows, last % ids.shape[1], 0]

  return logits


def _tokens(folder, family):
  """Returns the chats' ids and their mask, as transformers pads them."""
  theirs = transformers.PreTrainedTokenizerFast(
    tokenizer_file=str(folder / "tokenizer.json"),
    chat_template=published._published(family),
    padding_side="right",
    pad_token=PADS.get(family, "<|endoftext|>"),
    **policy_folders.names(family),
  )
  chats = [
    [
      dict(role="user", content=x.problem),
      dict(role="assistant", content="\n\n".join(x.steps)),
    ]
    for x in SOLUTIONS
  ]
  out = theirs.apply_chat_template(
    chats, tokenize=True, return_dict=True, return_tensors="pt", padding=True
  )
  return out["input_ids"], out["attention_mask"]


def _expected(logits, folder, family):
  with torch.no_grad():
    return logits(*_tokens(folder, family)).numpy()


def _found(folder):
  return np.asarray(
    [x.logits[-1] for x in scorer.load(folder).score(SOLUTIONS)]
  )


@pytest.mark.parametrize("family, name", [*CASES, ("qwen2_5_math", REWARD)])
def test_an_orm_scores_as_transformers_both_ways(
  family, name, tmp_path, capsys
):
  theirs, ours = tmp_path / "theirs", tmp_path / "ours"
  theirs.mkdir()
  if name == REWARD:
    logits = _reward_model(theirs)
  else:
    logits = _classifier(theirs, family, name)
  expected = _expected(logits, theirs, family)
  words = ["import", f"--from={theirs}", f"--to={ours}"]
  verified = "verified: 6 scores differ from transformers' by"
  verifies = family == "qwen2_5_math"
  assert main.main([*words, *["--verify"] * verifies]) == 0
  said = capsys.readouterr().out
  assert "an orm, read as" in said
  assert (verified in said) == verifies
  np.testing.assert_allclose(_found(ours), expected, atol=1e-4, rtol=1e-5)
  assert np.ptp(expected) > 0.1, "logits that are all alike show nothing"
  export_model.export_folder(ours, tmp_path / "back")
  parity.check_card(ours, tmp_path / "back", num=1)
  if name == REWARD:
    return
  # What goes out is loaded by the class without a tensor too few or too many.
  back, report = getattr(transformers, name).from_pretrained(
    tmp_path / "back", dtype=torch.float32, output_loading_info=True
  )
  assert not any(report.values()), report
  again = _expected(
    lambda ids, mask: back.eval()(ids, attention_mask=mask).logits[:, 0],
    *(tmp_path / "back", family),
  )
  np.testing.assert_array_equal(again, expected)


# --- All chat templates that TRL's package holds ----------------------------

_TEXTS = (
  "It is 7.",
  "3 + 4 = 7\n\nIt is 7.",
  "<think>\n3 + 4 = 7\n</think>\n\nIt is 7.",
  "<think>3 + 4 = 7</think>It is 7.",
  "3 + 4 = 7\n</think>\n\nIt is 7.",
  "<think>\n3 + 4 = 7, so 7.",
  "3 + 4, <think> I think </think>, is 7. <think>No.</think> Yes.",
  "<|channel|>analysis<|message|>3 + 4 = 7<|end|>It is 7.",
  "<|channel>thought\n3 + 4 = 7<channel|>It is 7.",
  "[THINK]3 + 4 = 7[/THINK]It is 7. <tool_call>7</tool_call>",
)
_HELD = published._TEXTS or pathlib.Path("without TRL")
_TEMPLATES = sorted(x.stem for x in _HELD.glob("*.jinja"))


@pytest.fixture
def within(monkeypatch):
  """Renders chat templates within this process, and on one day."""

  class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
      return chat_template_worker.NOW

  def run(chat, *variables):
    job = dict(template=chat.text, variables=variables)
    return chat_template_worker.replies_to(job)

  monkeypatch.setattr(transformers.utils.chat_template_utils, "datetime", Fixed)
  monkeypatch.setattr(chat_templates.Chat, "run", run)


@pytest.mark.usefixtures("within")
@pytest.mark.parametrize("name", _TEMPLATES)
def test_a_solution_has_the_ids_of_transformers_or_is_refused(name, tmp_path):
  chat = (published._TEXTS / f"{name}.jinja").read_text()
  theirs, tokenizer = published._any_model(tmp_path / "hf", chat)
  try:
    read = outcome_chat.template(tmp_path / "hf", tokenizer, pad=None)
  except errors.InputError as e:
    # They read pictures, and no message that is a text.
    assert name.startswith(("idefics3", "llava_next")), e
    return
  names = token_names.controls(tmp_path / "hf", tokenizer)
  opening, closing = (
    "".join("What?" if kind == "problem" else x for kind, x in parts)
    for parts in (read.opening, read.closing)
  )
  for text in _TEXTS:
    messages = [
      dict(role="user", content="What?"),
      dict(role="assistant", content=text),
    ]
    try:
      written = theirs.apply_chat_template(messages, tokenize=False)
    except Exception as e:  # what a template raises
      written = repr(e)
    solution = schema.Solution(
      *("a", "What?", (text,)), raw_text=text, spans=((0, len(text)),)
    )
    try:
      ids = policy_text.encode(read, solution, tokenizer).tokens
    except errors.InputError as e:
      assert "the solution holds" in str(e)
      assert written != f"{opening}{text}{closing}", "it need not be refused"
      continue
    assert written == f"{opening}{text}{closing}"
    # The name of another control is a text to us.
    if not any(x in text for x in {*names} - {*read.thinking}):
      expected = theirs.apply_chat_template(messages, return_dict=False)
      assert ids.tolist() == list(expected)


def test_where_the_token_that_ends_a_turn_is_padding_no_other_is_read(tmp_path):
  """As transformers does: the token before it is the last that isn't padding."""
  _classifier(tmp_path, "llama3", CLASSIFIERS["llama3"])
  imported = import_model.import_folder(tmp_path, tmp_path / "ours")
  closing = imported.description.encoding["template"]["closing"]
  assert closing == (templates.CUT,)
