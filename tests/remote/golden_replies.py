"""Replies of vLLM and SGLang with token ids, written from their source.

vLLM: vllm-project/vllm, vllm/entrypoints/openai/completion: protocol.py at
002032ee2b18e1f7bd924ec47b62504ba3866063 (CompletionResponse, its choice and
their defaults) and serving.py at 030ea52effcb05071543c8c42b8f0145e94cee43
(request_output_to_completion_response, _create_completion_logprobs).

SGLang: sgl-project/sglang, python/sglang/srt/entrypoints/openai/
serving_completions.py at 004c82e07d876f6e4a0ad6e15325706b0f478f1a
(_build_completion_response), and to_openai_style_logprobs beside it, which has
no offsets of text.

None of these was recorded from a server.
"""


def vllm(body, ids, log_probs, text, finish, stopped):
  """Returns vLLM's reply; stopped: the stop string or stop id, else None."""
  tokens = [f"<{i}>" for i in ids]
  logprobs = dict(
    text_offset=[3 * n for n in range(len(ids))],
    token_logprobs=log_probs,
    tokens=tokens,
    top_logprobs=[{t: x} for t, x in zip(tokens, log_probs, strict=True)],
  )
  choice = dict(
    index=0,
    text=text,
    logprobs=logprobs if body.get("logprobs") is not None else None,
    finish_reason=finish,
    stop_reason=stopped,
    token_ids=ids if body.get("return_token_ids") else None,
    prompt_logprobs=None,
    prompt_token_ids=body["prompt"] if body.get("return_token_ids") else None,
    routed_experts=None,
  )
  usage = dict(
    prompt_tokens=len(body["prompt"]),
    total_tokens=len(body["prompt"]) + len(ids),
    completion_tokens=len(ids),
    prompt_tokens_details=None,
  )
  return dict(
    id="cmpl-0",
    object="text_completion",
    created=1,
    model=body["model"],
    choices=[choice],
    service_tier=None,
    system_fingerprint=None,
    usage=usage,
    kv_transfer_params=None,
    ec_transfer_params=None,
    metrics=None,
  )


def sglang(body, ids, log_probs, text, finish, stopped):
  """Returns SGLang's reply; stopped: the stop string or end id, else None."""
  tokens = [f"<{i}>" for i in ids]
  logprobs = dict(
    text_offset=[-1] * len(ids),
    token_logprobs=log_probs,
    tokens=tokens,
    top_logprobs=[{t: x} for t, x in zip(tokens, log_probs, strict=True)],
  )
  choice = dict(
    index=0,
    text=text,
    logprobs=logprobs if body.get("logprobs") is not None else None,
    finish_reason=finish,
    matched_stop=stopped,
    token_ids=ids if body.get("return_token_ids") else None,
    prompt_token_ids=body["prompt"] if body.get("return_token_ids") else None,
  )
  usage = dict(
    prompt_tokens=len(body["prompt"]),
    total_tokens=len(body["prompt"]) + len(ids),
    completion_tokens=len(ids),
    prompt_tokens_details=None,
    reasoning_tokens=0,
  )
  return dict(
    id="0",
    object="text_completion",
    created=1,
    model=body["model"],
    choices=[choice],
    usage=usage,
    metadata=dict(weight_version="default"),
  )


SERVERS = dict(vllm=vllm, sglang=sglang)
# An end: vLLM has no stop_reason at the end-of-sequence id, SGLang the id.
END_ID = 151645
ENDS = dict(vllm=None, sglang=END_ID)
