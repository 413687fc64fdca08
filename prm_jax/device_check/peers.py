"""torch and transformers with the same model, in turns with us."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
import importlib.util
from typing import Any, NamedTuple

import jax
import numpy as np

from prm_jax import batch as batch_lib
from prm_jax.device_check import check_results
from prm_jax.device_check import model_checks
from prm_jax.device_check import shapes
from prm_jax.device_check import timing
from prm_jax.device_check import update_checks
from prm_jax.models import model_config
from prm_jax.models import transformer
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler
from prm_jax.rows import packing
from prm_jax.text import encoding

_ROUNDS = 3


class Work(NamedTuple):
  """How much both sides do.

  Attributes:
    rows: of `tokens` tokens each, of a forward pass or an update.
    completions: of `new` tokens each, after prompts of as many tokens.
  """

  rows: int
  tokens: int
  completions: int
  new: int


LARGE, LITTLE = Work(8, 2048, 64, 128), Work(2, 64, 4, 8)


def checks(setting: check_results.Setting) -> list[check_results.Check]:
  """Returns the comparisons with torch, which run where it has CUDA."""
  return [
    check_results.Check(
      f"peers.{run.__name__}",
      functools.partial(_compare, run),
      required=False,
      stage="peers",
    )
    for run in (forward, update, generate)
  ]


def _compare(
  run: Callable, setting: check_results.Setting
) -> check_results.Measured:
  """Returns how many times as fast as torch we are.

  Raises:
    NotRun: torch, transformers or CUDA aren't there, or it doesn't fit.
  """
  if setting.platform != "gpu":
    raise check_results.NotRun("compared on NVIDIA GPUs only")
  for name in ("torch", "transformers", "safetensors"):
    if importlib.util.find_spec(name) is None:
      raise check_results.NotRun(f"{name} isn't installed")
  import torch

  if not torch.cuda.is_available():
    raise check_results.NotRun("torch has no CUDA here")
  name = shapes.of(setting)[0]
  model = shapes.SHAPES[name]
  # The state of an update on each side, and activations.
  needed = 40 * shapes.num_parameters(model)
  if setting.memory is not None and setting.memory < needed:
    raise check_results.NotRun(
      f"two models of {name} need {needed / 2**30:.0f} GiB together"
    )
  return run(model, LITTLE if setting.small else LARGE, "cuda")


def _theirs(
  model: model_config.ModelConfig, params: Any, device: str, dtype: Any
) -> Any:
  """Returns transformers' Qwen2 with our parameters."""
  import torch
  import transformers

  from prm_jax import huggingface
  from prm_jax.huggingface import to_hf_config

  extra = dict(max_position_embeddings=32_768)
  record = to_hf_config.record("qwen2", model, dtype="float32", extra=extra)
  config = transformers.Qwen2Config.from_dict(record)
  with torch.device(device):
    made = transformers.Qwen2ForCausalLM(config).to(dtype)
  own = dict(made.named_parameters())
  with torch.no_grad():
    for name, tensor in huggingface.export_tensors("qwen2", model, params):
      own[name].copy_(torch.from_numpy(np.array(tensor, np.float32)))
  return made


def _both(model: model_config.ModelConfig, device: str) -> tuple[Any, Any]:
  """Returns random parameters to infer with, and torch's model of them."""
  import torch

  params = model_checks.random_params(model, ("lm",))
  params = jax.tree.map(lambda x: x.astype(model.compute_dtype), params)
  dtype = getattr(torch, model.compute_dtype)
  return params, _theirs(model, params, device, dtype).eval()


def _ids(model: model_config.ModelConfig, rows: int, tokens: int) -> np.ndarray:
  rng = np.random.default_rng(0)
  return rng.integers(0, model.vocab_size, (rows, tokens), dtype=np.int32)


def _rows(ids: np.ndarray) -> batch_lib.Batch:
  """Returns a solution a row, a label at every 40th token."""
  index = np.arange(ids.shape[1])
  step_end = index % 40 == 39
  labels = (index % 80 == 39).astype(np.float32)
  weights = step_end.astype(np.float32)
  examples = [encoding.Example(row, labels, weights, step_end) for row in ids]
  return packing.fill([[packing.chain(x)] for x in examples], len(index))


def _faster(
  by_jax: Callable[[], Any],
  by_torch: Callable[[], Any],
  note: str,
  **details: Any,
) -> check_results.Measured:
  """Returns torch's time over ours, in turns."""
  by_jax()
  by_torch()
  costs = timing.alternate(dict(ours=by_jax, torch=by_torch), _ROUNDS)
  ratio = timing.ratio(costs["torch"], costs["ours"])["wall"]
  seconds = timing.wall_seconds(costs)
  return check_results.Measured(
    ratio["median"],
    "x",
    note=f"as fast as torch: {note}",
    details=dict(ratio=ratio, seconds=seconds, **details),
  )


def _wait(device: str) -> None:
  """Waits for what torch has begun."""
  import torch

  if device == "cuda":
    torch.cuda.synchronize()


def forward(
  model: model_config.ModelConfig, work: Work, device: str
) -> check_results.Measured:
  """Compares forward passes to the last hidden states, and these states."""
  import torch

  params, peer = _both(model, device)
  ids = _ids(model, work.rows, work.tokens)
  rows, torch_ids = _rows(ids), torch.as_tensor(ids, device=device).long()
  run = jax.jit(functools.partial(transformer.apply, model, method="hidden"))

  def by_torch() -> Any:
    with torch.inference_mode():
      out = peer.model(torch_ids, use_cache=False).last_hidden_state
    _wait(device)
    return out

  states = np.asarray(run(params, rows)).astype(np.float32)
  expected = by_torch().float().cpu().numpy()
  error = np.linalg.norm(states - expected) / np.linalg.norm(expected)
  return _faster(
    lambda: jax.block_until_ready(run(params, rows)),
    by_torch,
    f"forward pass; states {error:.2g} apart",
    difference=float(error),
  )


def update(
  model: model_config.ModelConfig, work: Work, device: str
) -> check_results.Measured:
  """Compares updates: float32 parameters, AdamW, layers computed again."""
  import torch

  model = dataclasses.replace(model, remat="full")
  run = update_checks.Updates(model, 0)
  run.start()
  ids = _ids(model, work.rows, work.tokens)
  rows = _rows(ids)
  peer = _theirs(model, run.state.params, device, torch.float32).train()
  peer.gradient_checkpointing_enable(dict(use_reentrant=False))
  head = torch.nn.Linear(model.d_model, 1).to(device)
  weights = [*peer.model.parameters(), *head.parameters()]
  optimizer = torch.optim.AdamW(
    weights, lr=1e-5, fused=device == "cuda" or None
  )
  torch_ids = torch.as_tensor(ids, device=device).long()
  at = torch.as_tensor(rows.step_end, device=device)
  labels = torch.as_tensor(rows.labels, device=device)[at]
  dtype = getattr(torch, model.compute_dtype)
  narrow = dtype != torch.float32

  def by_torch() -> None:
    with torch.autocast(device, dtype=dtype, enabled=narrow):
      hidden = peer.model(torch_ids, use_cache=False).last_hidden_state
    logits = head(hidden.float())[..., 0][at]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(weights, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    _wait(device)

  return _faster(
    lambda: run([rows]),
    by_torch,
    f"update of {work.rows} x {work.tokens:,} tokens, AdamW, all of the layers"
    " computed again",
  )


def generate(
  model: model_config.ModelConfig, work: Work, device: str
) -> check_results.Measured:
  """Compares sampling of the same number of tokens after the same prompts."""
  import torch

  params, peer = _both(model, device)
  prompts = _ids(model, work.completions, work.new)
  engine = rollout_engine.Engine(
    model,
    params,
    model_checks.Endless(model.vocab_size),
    slots=work.completions,
    reserve=True,
  )
  requests = [
    rollout_engine.Request(str(i), prompt, 1)
    for i, prompt in enumerate(prompts)
  ]
  sampling = sampler.Sampling(work.new)
  torch_ids = torch.as_tensor(prompts, device=device).long()

  def by_torch() -> None:
    torch.manual_seed(0)
    with torch.inference_mode():
      peer.generate(
        torch_ids,
        attention_mask=torch.ones_like(torch_ids),
        do_sample=True,
        top_k=0,
        min_new_tokens=work.new,
        max_new_tokens=work.new,
        pad_token_id=0,
      )
    _wait(device)

  return _faster(
    lambda: engine.complete(requests, sampling, jax.random.key(0)),
    by_torch,
    f"{work.completions} completions of {work.new} tokens",
  )
