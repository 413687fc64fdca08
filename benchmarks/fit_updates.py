"""The updates of fits.py, of a PRM and of reinforcement learning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import dataclasses
import pathlib
from typing import Any

import fit_programs
import jax
import numpy as np

from prm_jax import batch as batch_lib
from prm_jax.models import model_config as model_config
from prm_jax.models import sharding
from prm_jax.plan import compile as plan_compile
from prm_jax.plan import runs
from prm_jax.rl import experience
from prm_jax.rl import rl_config as rl_config
from prm_jax.rl import rl_run as rl_run
from prm_jax.rl import rl_run_config as rl_run_config
from prm_jax.rl import rows as rows_lib
from prm_jax.rl import updates
from prm_jax.runtime import verbs
from prm_jax.scoring import row_shapes
from prm_jax.training import program as program_lib
from prm_jax.training import train_run_config
from prm_jax.training import trainable

EXPERIMENTS = pathlib.Path(__file__).parents[1] / "experiments"
LORA_RANK = 16
# Of a rollout.
PROBLEMS, SAMPLES = 8, 8


# --- training ----------------------------------------------------


def train(
  target: fit_programs.Target,
  model: model_config.ModelConfig,
  *,
  lora: bool,
  rows: int,
  remat: str,
) -> fit_programs.Part:
  """Returns the update of a PRM.

  Args:
    target: The chip.
    model: The model.
    lora: Whether adapters of a bfloat16 base are trained, else everything.
    rows: The number of rows.
    remat: What the backward pass computes again.
  """
  fields = {
    f"model.{k}": v for k, v in dataclasses.asdict(model).items() if k in _SIZES
  }
  fields |= dict(mesh="(1,1,1)") | _how(remat, lora)
  fields |= {
    "packing.batch_size": rows,
    "packing.sequence_length": fit_programs.ROW,
  }
  fields["encoding.max_tokens"] = fit_programs.ROW
  config = train_run_config.supervised(
    verbs.Config(EXPERIMENTS / "prm800k_qwen2_5_math_7b.py", _overrides(fields))
  )
  types = trainable.types_of(fit_programs.imported(model, "prm"))
  update = runs.update_of(
    train_run_config.from_config(config), model.vocab_size, types
  )

  def compile_it() -> fit_programs.Needs:
    plan = plan_compile.of_update(update, target.topology, target.devices)
    return fit_programs.Needs(plan.peak, plan.arguments, plan.refused)

  name = f"update {rows} x {fit_programs.ROW} remat={remat}"
  return fit_programs.Part(name, 0, compile_it, rows, remat)


_SIZES = (
  *("d_model", "num_layers", "num_heads", "num_kv_heads", "head_dim", "d_ff"),
  *("qkv_bias", "tie_embedding", "compute_dtype"),
)


def _how(remat: str, lora: bool) -> dict[str, Any]:
  adapters = dict(trainable="lora") | {"model.lora_rank": LORA_RANK}
  return {"model.remat": remat} | (adapters if lora else {})


def _overrides(fields: Mapping[str, Any]) -> tuple[str, ...]:
  return tuple(f"{k}={v}" for k, v in fields.items())


# --- reinforcement learning --------------------------------------


def rl(
  target: fit_programs.Target,
  model: model_config.ModelConfig,
  *,
  lora: bool,
  remat: str,
) -> Iterator[fit_programs.Part]:
  """Yields the programs of a run that a PRM of the policy's shape rewards.

  Args:
    target: The chip.
    model: The policy, the reference and the reward model.
    lora: Whether adapters of a bfloat16 policy are trained, else everything.
    remat: What the backward pass computes again.
  """
  config = _rl_config(lora)
  rank = LORA_RANK if lora else 0
  policy = dataclasses.replace(model, remat=remat, lora_rank=rank)
  models = updates.Models(policy, reference=model)
  program = rl_run.make_program(config, models, shares_reference=lora)
  given = trainable.types_of(fit_programs.imported(model, "sft"))
  given |= {(updates.REFERENCE, *path): x for path, x in given.items()}
  program = program_lib.holding(program, given)
  placed = program_lib.place(program, target.mesh, jax.random.key(0))
  state, prm = placed.target, fit_programs.imported(model, "prm")
  optimizer = fit_programs.num_bytes(state.opt_state)
  scorer = fit_programs.num_bytes(prm)
  own = updates.policy_of(state.params)
  yield from fit_programs.rollouts(
    *(target, policy, own, fit_programs.PROMPT, fit_programs.COMPLETION),
    held=fit_programs.num_bytes(state) - fit_programs.num_bytes(own) + scorer,
    tempered=True,
  )
  longest = fit_programs.PROMPT + fit_programs.COMPLETION + 1
  rows = row_shapes.Shapes(fit_programs.ROW, longest).most_rows(longest)
  yield fit_programs.forward(
    target, model, prm, rows, longest, fit_programs.num_bytes(state)
  )
  yield target.part(
    "reference",
    optimizer + scorer,
    experience._of_microbatch,
    *(state.params, batch_lib.empty(1, fit_programs.ROW)),
    models=models,
    temperature=config.rollout.temperature,
  )
  num = rows_lib.num_microbatches(
    config.shape, config.rollout, fit_programs.PROMPT
  )
  batch = batch_lib.empty(num, fit_programs.ROW)
  floats = np.zeros((num, fit_programs.ROW), np.float32)
  rollout = updates.Rollout(batch, *[floats] * 7, firsts=floats > 0)

  def compile_it() -> fit_programs.Needs:
    where = sharding.of_batch(target.mesh)
    given = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), rollout
    )
    return fit_programs.needs(placed.step.trace(state, given))

  yield fit_programs.Part(
    f"update 1 x {fit_programs.ROW} remat={remat}", scorer, compile_it, 1, remat
  )


def _rl_config(lora: bool) -> rl_config.RLConfig:
  fields = dict(init_from="runs/policy", prm="runs/prm", mesh="(1,1,1)")
  if lora:
    fields["trainable"] = "lora"
  fields |= {
    "rollout.problems": PROBLEMS,
    "rollout.samples": SAMPLES,
    "rollout.max_tokens": fit_programs.COMPLETION,
    "rewards.prm": 1.0,
    "packing.batch_size": 1,
    "packing.sequence_length": fit_programs.ROW,
  }
  given = verbs.Config(EXPERIMENTS / "rl_gsm8k_small.py", _overrides(fields))
  return rl_run_config.from_config(rl_run_config.filled(given)).config
