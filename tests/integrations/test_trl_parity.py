"""TRL's GRPOTrainer trains on our scores: five updates of a tiny random policy.

Needs the extra `parity`. The policy's tokenizer is byte-level BPE and the PRM's
is bytes, so a step's end isn't the same token in both.
"""

from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np
import policy_folders
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")

import datasets  # noqa: E402
import turns_cases  # noqa: E402

from prm_jax import schema  # noqa: E402
from prm_jax.integrations import placement  # noqa: E402
from prm_jax.integrations import scoring  # noqa: E402
from prm_jax.integrations import token_credit  # noqa: E402
from prm_jax.integrations import trl as adapter  # noqa: E402
from prm_jax.integrations import turn_rewards  # noqa: E402
from prm_jax.models import model_config as model_config  # noqa: E402
from prm_jax.models import transformer  # noqa: E402
from prm_jax.scoring import scorer as scorer_lib  # noqa: E402
from prm_jax.text import encoding  # noqa: E402
from prm_jax.text import segmenters  # noqa: E402
from prm_jax.text import tokenizer as tokenizer_lib  # noqa: E402

torch.set_num_threads(1)  # other tests have the other cores
pytestmark = pytest.mark.parity
PROBLEM = "What is 2 + 3?"
STEPS, GROUP = 5, 4
KEYS = ("completion_ids", "completion_mask", "advantages")
MORE_KEYS = (*KEYS, "tool_mask")


@pytest.fixture(scope="module")
def prm():
  """A random PRM of bytes whose steps are lines."""
  tokenizer = tokenizer_lib.Bytes()
  config = model_config.ModelConfig(
    vocab_size=tokenizer.vocab_size,
    d_model=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    d_ff=24,
  )
  random = np.random.default_rng(0)
  shapes = jax.eval_shape(
    lambda: meta.unbox(transformer.init(jax.random.key(0), config, ("step",)))
  )
  params = jax.tree.map(
    lambda x: jnp.asarray(random.normal(size=x.shape), x.dtype), shapes
  )
  return scorer_lib.Scorer(
    *("prm", config, params, tokenizer, encoding.EncodingConfig()),
    segmenter=segmenters.parse("line"),
    judged="all",
  )


@pytest.fixture
def policy(tmp_path):
  """A random policy that writes many line breaks, and its tokenizer."""
  folder = policy_folders.write(tmp_path / "hf", "qwen2_5")
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  tokenizer.pad_token = "<|endoftext|>"
  torch.manual_seed(3)
  model = transformers.LlamaForCausalLM(
    transformers.LlamaConfig(
      vocab_size=len(tokenizer),
      hidden_size=16,
      intermediate_size=24,
      num_hidden_layers=1,
      num_attention_heads=2,
      initializer_range=0.5,
      tie_word_embeddings=False,
    )
  )
  return model, tokenizer


def train(trainer_class, policy, reward, tmp_path, tools=None, length=16):
  """Returns the trainer after its updates, and how much its weights changed."""
  model, tokenizer = policy
  before = [p.detach().clone() for p in model.parameters()]
  chat = [dict(role="user", content=PROBLEM)]
  trainer = trainer_class(
    model=model,
    reward_funcs=reward,
    args=trl.GRPOConfig(
      output_dir=str(tmp_path / "out"),
      max_steps=STEPS,
      per_device_train_batch_size=2 * GROUP,
      num_generations=GROUP,
      max_completion_length=length,
      learning_rate=1e-2,
      logging_steps=1,
      save_strategy="no",
      report_to=[],
      use_cpu=True,
      disable_tqdm=True,
      seed=0,
    ),
    train_dataset=datasets.Dataset.from_list([dict(prompt=chat)] * 16),
    processing_class=tokenizer,
    tools=tools,
  )
  trainer.train()
  after = [p.detach() for p in model.parameters()]
  changed = sum(float((a - b).abs().sum()) for a, b in zip(after, before))
  return trainer, changed


def test_the_reward_that_trl_logs_is_our_score_of_its_completions(
  prm, policy, tmp_path
):
  asked = []

  def score_texts(problems, texts):
    assert set(problems) == {PROBLEM}
    asked.extend(texts)
    return scoring.text_scorer(prm)(problems, texts)

  reward = adapter.reward_func(score_texts, aggregate="min")
  trainer, changed = train(trl.GRPOTrainer, policy, reward, tmp_path)
  logged = [x for x in trainer.state.log_history if "rewards/prm/mean" in x]
  assert len(logged) == STEPS and len(asked) == STEPS * 2 * GROUP
  scores = prm.score([prm.cut(PROBLEM, text) for text in asked])
  own = np.array([min(x.scores, default=0.0) for x in scores])
  np.testing.assert_allclose(
    [x["rewards/prm/mean"] for x in logged],
    own.reshape(STEPS, -1).mean(axis=1),
    rtol=1e-4,
  )
  assert all(x["frac_reward_zero_std"] == 0 for x in logged)
  assert changed > 0.1


def test_trls_loss_takes_our_advantages_of_tokens(prm, policy, tmp_path):
  made, learnt, score_texts = [], [], scoring.text_scorer(prm)

  class Watched(adapter.with_step_advantages(trl.GRPOTrainer, score_texts)):
    def _generate_and_score_completions(self, inputs):
      output = super()._generate_and_score_completions(inputs)
      made.append({key: output[key].tolist() for key in KEYS})
      return output

    def _compute_loss(self, model, inputs):
      learnt.append(inputs["advantages"].tolist())
      return super()._compute_loss(model, inputs)

  def equal(completions, **columns):
    return [1.0] * len(completions)

  trainer, changed = train(Watched, policy, equal, tmp_path)
  decode = placement.decoder(trainer.processing_class)
  assert len(made) == len(learnt) == STEPS
  # TRL shuffles the rows of a batch.
  assert [sorted(x["advantages"]) for x in made] == list(map(sorted, learnt))
  num_steps = []
  for output in made:
    mask = output["completion_mask"]
    ids = list(map(scoring.token_ids, output["completion_ids"], mask))
    problems = [PROBLEM] * len(ids)
    scored = scoring.score_responses(score_texts, decode, problems, ids)
    num_steps += [len(x.scores) for x in scored]
    rows = token_credit.in_groups(scored, GROUP)
    np.testing.assert_allclose(
      output["advantages"], placement.align(rows, mask), atol=1e-5
    )
  # The outcomes are equal, so all that was learnt came from the steps.
  assert changed > 0.1 and max(num_steps) > 1


def add(a: int, b: int) -> int:
  """Adds.

  Args:
    a: A number.
    b: Another one.
  """
  return a + b


def test_trls_loop_of_tools_gets_advantages_of_turns(policy, tmp_path):
  """TRL calls the tool and makes the masks; what is sampled is ours."""
  from trl import chat_template_utils

  _, tokenizer = policy
  tokenizer.chat_template = chat_template_utils.qwen3_chat_template
  call = (
    '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
  )
  said = [f"look [0.75]\n{call}", "5 [0.25]", "so 5 [1.0]", "no [0.5]"]
  ids = [
    [*tokenizer.encode(x, add_special_tokens=False), tokenizer.eos_token_id]
    for x in said
  ]
  score, asked = turns_cases.recorded()
  made = []

  class Watched(adapter.with_turn_advantages(trl.GRPOTrainer, score)):
    def _generate_single_turn(self, prompt_ids, *more, **options):
      after_tool = len(prompt_ids) == GROUP
      rows = ids[1:3] if after_tool else [ids[0], ids[3]]
      return [rows[i % 2] for i in range(len(prompt_ids))], None

    def _generate_and_score_completions(self, inputs):
      output = super()._generate_and_score_completions(inputs)
      made.append({k: x.tolist() for k, x in output.items() if k in MORE_KEYS})
      return output

  reward = adapter.turn_reward_func(score, name="turns")
  trainer, changed = train(Watched, policy, reward, tmp_path, [add], 160)
  # A conversation of two turns, one of one, and so on.
  assert asked[0].messages[-2].text == "5" and len(asked[0].steps) == 2
  assert asked[0].messages[-3].calls[0].arguments == dict(a=2, b=3)
  log = trainer.state.log_history[0]
  assert log["turns/turn_min"] == log["prm/turn_min"] == pytest.approx(0.5)
  assert log["rewards/turns/mean"] == pytest.approx(0.5)
  scores = [(0.75, 0.25), (0.5,), (0.75, 1.0), (0.5,)] * 2
  tokens = [ids[:2], ids[3:], [ids[0], ids[2]], ids[3:]] * 2
  scored = [
    turn_rewards.placed(schema.StepScores(x), [*map(len, y)])
    for x, y in zip(scores, tokens)
  ]
  form = token_credit.to_go_advantages
  for i, own in enumerate(
    token_credit.in_groups(scored, GROUP, advantages=form)
  ):
    mask = np.multiply(made[0]["completion_mask"][i], made[0]["tool_mask"][i])
    row = np.array(made[0]["advantages"][i])[mask == 1] - own
    # What is left is the advantage of TRL's own rewards, at each token.
    assert np.ptp(row) < 1e-5
  assert changed > 0.1
