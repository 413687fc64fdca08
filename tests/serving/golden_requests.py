"""Requests of other programs' clients, and the replies that they read.

Each says whether it was recorded, by running the client's own function against
a server, or is written from the client's source; and at which commit. A body is
what json.dumps makes of it, as aiohttp and requests do: the recorded ones are so
byte for byte.
"""

from collections.abc import Callable, Sequence
import dataclasses
import json
from typing import Any

from prm_jax import voting

PROBLEM = "1 + 1?"
RESPONSE = "1 + 1 = 2.\n\nSo 2."
OTHER = "one step only"
CHAT = [
  dict(role="user", content=PROBLEM),
  dict(role="assistant", content=RESPONSE),
]
QWEN = (
  "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a"
  " helpful assistant.<|im_end|>\n<|im_start|>user\n1 + 1?<|im_end|>\n"
  "<|im_start|>assistant\n"
)
LLAMA = (
  "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting"
  " Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|>"
  "<|start_header_id|>user<|end_header_id|>\n\n1 + 1?<|eot_id|>"
  "<|start_header_id|>assistant<|end_header_id|>\n\n"
)


@dataclasses.dataclass(frozen=True)
class Golden:
  """A request and its reply.

  Args:
    source: Where the request is from.
    path: The path, with its query.
    body: The body.
    texts: The problem and the response of each solution in it.
    reply: Returns the reply, of the step scores of each solution, the model's
      aggregate of them and the numbers of tokens.
    read: Returns what the client makes of the reply, and whether it is the
      score of the last solution.
  """

  source: str
  path: str
  body: dict[str, Any]
  texts: Sequence[tuple[str, str]]
  reply: Callable[[list[list[float]], list[float], list[int]], Any]
  read: Callable[[Any], float]

  @property
  def bytes(self) -> bytes:
    return json.dumps(self.body).encode()


ONE = [(PROBLEM, RESPONSE)]
TWO = [*ONE, (PROBLEM, OTHER)]


def _listed(kind, data, tokens):
  usage = dict(
    prompt_tokens=sum(tokens), total_tokens=sum(tokens), completion_tokens=0
  )
  return dict(
    id=kind, object="list", created=0, model="tiny", data=data, usage=usage
  )


def _pooling(steps, scores, tokens):
  data = [
    dict(index=i, object="pooling", data=[[1 - p, p] for p in row])
    for i, row in enumerate(steps)
  ]
  return _listed("pooling", data, tokens)


def _classify(steps, scores, tokens):
  data = [
    dict(index=i, label="correct", probs=[score], num_classes=1)
    for i, score in enumerate(scores)
  ]
  return _listed("classify", data, tokens)


def _sglang(steps, scores, tokens):
  return [
    dict(embedding=[score], meta_info=dict(prompt_tokens=num))
    for score, num in zip(scores, tokens, strict=True)
  ]


def _embeddings(steps, scores, tokens):
  data = [
    dict(object="embedding", index=i, embedding=[score])
    for i, score in enumerate(scores)
  ]
  usage = dict(prompt_tokens=sum(tokens), total_tokens=sum(tokens))
  return dict(object="list", data=data, model="tiny", usage=usage)


def _openrlhf(steps, scores, tokens):
  return dict(rewards=scores, scores=scores, extra_logs={})


def _slime(steps, scores, tokens):
  return dict(
    score=scores[0], step_scores=steps[0], segments=[[0, 10], [12, 17]]
  )


def _tei(steps, scores, tokens):
  return [[dict(score=score, label="correct")] for score in scores]


VLLM = (
  "written from vllm-project/vllm, vllm/entrypoints/pooling/pooling/protocol.py at 01cfbaf"
  " and examples/pooling/reward/token_reward_online.py at 01e4fce"
)
VERL = (
  "recorded from RewardLoopWorker.compute_score_disrm, which was given the"
  " rendered chat: verl-project/verl,"
  " verl/experimental/reward_loop/reward_loop.py at 1dda039"
)
SGLANG = "written from sgl-project/sglang, docs/basic_usage/native_api.ipynb at 06c48ca"
SGLANG_EMBEDDINGS = (
  "written from sgl-project/sglang, python/sglang/srt/entrypoints/openai/"
  "protocol.py at 004c82e and serving_embedding.py at 012bcb5"
)
OPENRLHF = (
  "recorded from SingleTurnAgentExecutor._fetch_rewards_via_http:"
  " OpenRLHF/OpenRLHF, openrlhf/utils/agent.py at 3c3be62"
)
SLIME = (
  "recorded from remote_rm: THUDM/slime, slime/rollout/rm_hub/__init__.py at"
  " 624b824"
)
TEI = "written from huggingface/text-embeddings-inference, router/src/http/types.rs at 02506d0"
GYM_AGENT = (
  "written from NVIDIA-NeMo/Gym, responses_api_agents/simple_agent/app.py and"
  " nemo_gym/rollout_collection.py at 07d6b0d"
)
GYM = (
  "written from NVIDIA-NeMo/Gym, responses_api_agents/simple_agent/tests/"
  "test_verify_payload.py at 17b77ea"
)
# What an agent of Gym sends; the message has the fields that training adds.
GYM_BODY = {
  "responses_create_params": {
    "input": [
      {"role": "developer", "content": "Reason step by step."},
      {
        "role": "user",
        "content": [{"type": "input_text", "text": PROBLEM}],
        "type": "message",
      },
    ],
    "temperature": 1.0,
    "tools": [],
  },
  "response": {
    "id": "terminal-response",
    "created_at": 1.0,
    "model": "model",
    "object": "response",
    "output": [
      {"id": "r-1", "type": "reasoning", "summary": []},
      {
        "id": "message-1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [
          {"type": "output_text", "text": RESPONSE, "annotations": []}
        ],
        "generation_token_ids": [1, 2, 3],
        "generation_log_probs": [-0.25, -0.25, -0.25],
      },
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": None,
  },
  "task_id": "task-1",
  "verifier_metadata": {
    "expected": "2",
    "nested": [{"labels": ["a", None, 3]}],
  },
}


# What simple_agent sends before an episode: the task, with what it may hold.
GYM_SEED = {name: x for name, x in GYM_BODY.items() if name != "response"}
# What rollout_collection leaves of four replies of /verify, which simple_agent
# forwards.
GYM_VERIFIED = {
  "verify_responses": [
    {
      "_ng_task_index": task,
      "_ng_rollout_index": rollout,
      "agent_ref": {"name": "agent"},
      "reward": reward,
      "reward_components": {"min": reward},
      "resolved": reward > 0.5,
      "response": {"usage": {"output_tokens": tokens}},
    }
    for task, rollout, reward, tokens in (
      *((3, 0, 0.25, 10), (3, 1, 0.75, 30), (0, 0, 1.0, 20), (0, 1, 0.5, 20)),
    )
  ]
}


def _gym(steps, scores, tokens):
  components = {
    how: voting.aggregate(steps[0], how) for how in voting.AGGREGATES
  }
  return GYM_BODY | dict(reward=scores[0], reward_components=components)


GOLDEN = {
  "vllm_pooling": Golden(
    *(VLLM, "/pooling"),
    dict(model="tiny", input=[f"{QWEN}{x}<|im_end|>\n" for _, x in TWO]),
    *(
      TWO,
      _pooling,
      lambda reply: min(p for _, p in reply["data"][-1]["data"]),
    ),
  ),
  "vllm_pooling_messages": Golden(
    *(VLLM, "/pooling"),
    dict(
      model="tiny",
      messages=[
        dict(role=x["role"], content=[dict(type="text", text=x["content"])])
        for x in CHAT
      ],
      task="token_classify",
    ),
    *(ONE, _pooling, lambda reply: min(p for _, p in reply["data"][0]["data"])),
  ),
  "verl_classify": Golden(
    *(VERL, "/classify"),
    dict(
      model="tiny", input=f"{QWEN}{RESPONSE}<|im_end|>\n", use_activation=False
    ),
    *(ONE, _classify, lambda reply: reply["data"][-1]["probs"][-1]),
  ),
  "verl_classify_without_bos": Golden(
    *(VERL, "/classify"),
    dict(
      model="tiny",
      input=LLAMA.removeprefix("<|begin_of_text|>") + RESPONSE + "<|eot_id|>",
      use_activation=False,
    ),
    *(ONE, _classify, lambda reply: reply["data"][-1]["probs"][-1]),
  ),
  "sglang_classify": Golden(
    *(SGLANG, "/classify"),
    dict(model="tiny", text=[f"{LLAMA}{x}<|eot_id|>" for _, x in TWO]),
    *(TWO, _sglang, lambda reply: reply[-1]["embedding"][0]),
  ),
  "sglang_classify_one": Golden(
    *(SGLANG, "/classify"),
    dict(model="tiny", text=f"{LLAMA}{RESPONSE}<|eot_id|>"),
    ONE,
    lambda *x: _sglang(*x)[0],
    lambda reply: reply["embedding"][0],
  ),
  "verl_embeddings": Golden(
    *(VERL, "/v1/embeddings"),
    dict(model="tiny", input=f"{QWEN}{RESPONSE}<|im_end|>\n"),
    *(ONE, _embeddings, lambda reply: reply["data"][-1]["embedding"][-1]),
  ),
  "sglang_embeddings": Golden(
    *(SGLANG_EMBEDDINGS, "/v1/embeddings"),
    dict(
      input=[f"{LLAMA}{x}<|eot_id|>" for _, x in TWO],
      model="tiny",
      encoding_format="float",
      user=None,
      rid=["a", "b"],
    ),
    *(TWO, _embeddings, lambda reply: reply["data"][-1]["embedding"][0]),
  ),
  "openrlhf": Golden(
    *(OPENRLHF, "/get_reward"),
    dict(query=[f"{QWEN}{RESPONSE}<|im_end|>"], prompts=[QWEN], labels=["2"]),
    *(ONE, _openrlhf, lambda reply: reply["rewards"][0]),
  ),
  "openrlhf_plain_prompts": Golden(
    *(OPENRLHF, "/get_reward"),
    dict(
      query=[f"{PROBLEM}{x}</s>" for _, x in TWO],
      prompts=[PROBLEM] * 2,
      labels=["2", None],
    ),
    *(TWO, _openrlhf, lambda reply: reply["scores"][-1]),
  ),
  "slime": Golden(
    *(SLIME, "/rm"),
    dict(prompt=QWEN, response=f"{RESPONSE}<|im_end|>", label="2"),
    *(ONE, _slime, lambda reply: reply["score"]),
  ),
  "slime_messages": Golden(
    *(SLIME, "/rm"),
    dict(prompt=[CHAT[0]], response=f"{RESPONSE}<|im_end|>", label=None),
    *(ONE, _slime, lambda reply: reply["score"]),
  ),
  "tei_pair": Golden(
    *(TEI, "/predict"),
    dict(inputs=[PROBLEM, RESPONSE]),
    ONE,
    lambda *x: _tei(*x)[0],
    lambda reply: reply[0]["score"],
  ),
  "tei_batch": Golden(
    *(TEI, "/predict"),
    dict(
      inputs=[[f"{QWEN}{RESPONSE}<|im_end|>"], [PROBLEM, OTHER]],
      raw_scores=False,
      truncate=False,
    ),
    *(TWO, _tei, lambda reply: reply[-1][0]["score"]),
  ),
  "nemo_gym": Golden(
    *(GYM, "/verify", GYM_BODY, ONE, _gym, lambda reply: reply["reward"])
  ),
}


def changed(value, draw, values):
  """Returns JSON with a part of it replaced, left out or repeated.

  Args:
    value: The JSON.
    draw: The random.Random that chooses.
    values: What may take a part's place.
  """
  if not value or not isinstance(value, dict | list) or draw.random() < 0.2:
    return draw.choice(values)
  copy = value.copy()
  at = draw.choice([*copy] if isinstance(copy, dict) else range(len(copy)))
  if draw.random() < 0.2:
    del copy[at]
  else:
    copy[at] = changed(copy[at], draw, values)
  return copy
