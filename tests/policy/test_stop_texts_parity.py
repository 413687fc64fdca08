"""Stop texts end a completion at the token at which transformers ends it."""

import dataclasses

import jax
import numpy as np
import policy_folders
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from prm_jax import huggingface  # noqa: E402
from prm_jax import schema  # noqa: E402
from prm_jax.policy import codecs  # noqa: E402
from prm_jax.policy import drawing  # noqa: E402
from prm_jax.policy import rollout_engine as rollout_engine  # noqa: E402
from prm_jax.text import policy_templates  # noqa: E402

pytestmark = pytest.mark.parity
GREEDY = drawing.Sampling(32, temperature=0.0)


@pytest.fixture(scope="module", params=["qwen2_5", "gemma"])
def policy(request, tmp_path_factory):
  """A random model of a tokenizer's vocabulary, here and there."""
  tokenizer = policy_folders.tokenizer(request.param)
  folder = policy_folders.write(tmp_path_factory.mktemp("hf"), request.param)
  torch.manual_seed(3)
  theirs = transformers.LlamaForCausalLM(
    transformers.LlamaConfig(
      vocab_size=tokenizer.text_ids,
      hidden_size=16,
      intermediate_size=24,
      num_hidden_layers=1,
      num_attention_heads=2,
      initializer_range=1.0,
      eos_token_id=None,
      bos_token_id=None,
    )
  ).eval()
  theirs.save_pretrained(folder)
  peer = transformers.PreTrainedTokenizerFast(
    tokenizer_file=str(folder / "tokenizer.json")
  )
  config = huggingface.read_config(folder)
  params, _ = huggingface.load_params(
    huggingface.open_tensors(folder), config.family, config.model
  )
  template = policy_templates.published(request.param)
  return theirs, peer, config.model, params, template, tokenizer


def test_a_completion_ends_at_the_token_that_completes_a_stop_text(policy):
  theirs, peer, model, params, template, tokenizer = policy
  ended = 0
  for k in range(12):
    start = schema.Solution(str(k), f"What is {k} + 3?", ())
    codec = codecs.of(template, tokenizer)
    engine = rollout_engine.Engine(model, params, tokenizer, codec=codec)
    ((whole,),), _ = engine.generate([start], 1, GREEDY, jax.random.key(0))
    text = whole.raw_text
    # Letters in the middle of the text, wherever tokens begin and end.
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    if len(stop) < 3 or "\ufffd" in stop:  # half a character is no text
      continue
    stopping = dataclasses.replace(template, stop=(stop,))
    engine = dataclasses.replace(engine, codec=codecs.of(stopping, tokenizer))
    ((found,),), _ = engine.generate([start], 1, GREEDY, jax.random.key(0))
    prompt = codec.prompt(start).tokens
    with torch.no_grad():
      out = theirs.generate(
        torch.tensor(prompt[None].astype(np.int64)),
        do_sample=False,
        max_new_tokens=32,
        pad_token_id=0,
        stop_strings=[stop],
        tokenizer=peer,
      )
    expected = out[0, len(prompt) :].tolist()
    assert found.extra[schema.SAMPLED]["ids"] == expected
    assert found.extra["stopped"] == "stop"
    assert found.raw_text == text[: text.find(stop)]
    ended += 1
  assert ended >= 3
