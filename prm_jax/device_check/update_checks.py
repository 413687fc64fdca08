"""Updates of a PRM as training makes them, on one device or on a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

from flax import traverse_util
from flax.core import meta
import jax
from jax import numpy as jnp
import numpy as np

from prm_jax import batch as batch_lib
from prm_jax.device_check import shapes
from prm_jax.models import model_config as model_config
from prm_jax.models import sharding
from prm_jax.plan import planned_memory
from prm_jax.training import optimizer as optimizer_lib
from prm_jax.training import prm
from prm_jax.training import program as program_lib
from prm_jax.training import programs

OPTIMIZER = optimizer_lib.OptimizerConfig(peak_lr=1e-3)
# Of the schedule: far more than are made here.
STEPS = 10_000


class Updates:
  """The update that training.loop runs: AdamW, clipping, donated state.

  Attributes:
    state: the training state, which a call replaces.
  """

  def __init__(
    self,
    model: model_config.ModelConfig,
    seed: int,
    *,
    optimizer: optimizer_lib.OptimizerConfig = OPTIMIZER,
    mesh: jax.sharding.Mesh | None = None,
  ):
    """Makes nothing yet on the devices.

    Args:
      model: what is trained.
      seed: of the random parameters.
      optimizer: rates, decay and clipping.
      mesh: where; the first device alone by default.
    """
    self._program = programs.make(
      prm.PRMConfig(),
      model,
      optimizer_lib.make(optimizer, STEPS),
      trainable="lora" if model.lora_rank else "all",
    )
    if model.lora_rank:
      # Published weights are bfloat16, and so is what isn't trained of them.
      base = jax.eval_shape(self._program.init, jax.random.key(0)).params
      paths = traverse_util.flatten_dict(meta.unbox(base))
      types = dict.fromkeys(paths, jnp.bfloat16)
      self._program = program_lib.holding(self._program, types)
    if mesh is None:
      mesh = sharding.make_mesh((1, 1, 1), jax.devices()[:1])
    self.mesh = mesh
    # The mesh may be of other devices than those that arrays go to by default.
    self._device = mesh.devices.flat[0]
    with jax.default_device(self._device):
      self._key = jax.random.key(seed)
    self.placed = program_lib.place(self._program, mesh, self._key)
    self._init: Any = None
    self._compiled: Any = None
    self.state: Any = None

  def start(self, params: Any = None) -> None:
    """Makes the state; drops the one before.

    Args:
      params: parameters to begin with, instead of those of the seed; they stay.
    """
    if self._init is None:
      program = self._program  # not self: a cycle would keep the state
      self._init = sharding.jit(
        lambda key: meta.unbox(program.init(key)),
        self.mesh,
        in_shardings=(sharding.replicated(self.mesh),),
        out_shardings=self.placed.shardings,
      )
    self.state = None  # Its memory is free before the next one is made.
    state = self._init(self._key)
    if params is not None:
      # A copy: the first update donates its input.
      with jax.default_device(self._device):
        params = jax.tree.map(jnp.copy, params)
      shardings = self.placed.shardings.params
      state = state.replace(params=jax.device_put(params, shardings))
    self.state = state

  def plan(self, batch: batch_lib.Batch) -> int:
    """Compiles the update for such rows; returns its peak of memory in bytes.

    The same program runs afterwards: it isn't compiled again.
    """
    rows = sharding.of_batch(self.mesh)
    shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=rows), batch
    )
    traced = self.placed.step.trace(self.placed.target, shapes)
    compiled = traced.lower().compile()
    self._compiled = dataclasses.replace(self.placed.step, compiled=compiled)
    return planned_memory.peak(compiled.memory_analysis())

  def __call__(
    self, batches: Sequence[batch_lib.Batch]
  ) -> list[program_lib.Metrics]:
    """Makes an update per batch, its copy to the device included, and waits.

    Returns:
      The metrics of each update.

    Raises:
      RuntimeError: the last loss is no number.
    """
    if self.state is None:
      self.start()
    step: Callable = self._compiled or self.placed.step
    of_updates = []
    for rows in batches:
      on_mesh = sharding.put_batch(rows, self.mesh)
      self.state, metrics = step(self.state, on_mesh)
      of_updates.append(metrics)
    if not np.isfinite(metrics["loss_nats"]):
      raise RuntimeError("the loss is no number: what was timed is nonsense")
    jax.block_until_ready(self.state)
    return of_updates


def matmul_flops(
  model: model_config.ModelConfig, tokens: int, keys_per_token: float
) -> float:
  """Returns the FLOPs of the matmuls of an update, forward and backward.

  6 n (N + 2 L H C k + D): n tokens, N parameters of the layers' matmuls, and
  for each token two products over k keys and one with the score head. A
  multiplication and its addition are two. Recomputation, softmax, norms and
  AdamW don't count; a third of it is the forward pass. With A parameters of
  adapters N counts 4, since its own gradient isn't needed, and A counts 6: then
  the forward pass is more than a third.

  Args:
    model: its shape.
    tokens: n, padding included if it is computed.
    keys_per_token: k: T as a dense mask computes it, T / 2 by the causal
      convention of published numbers, or the mean number that is seen.
  """
  attention = 2 * model.num_layers * model.num_heads * model.head_dim
  per_token = model.body_parameters + attention * keys_per_token + model.d_model
  flops = 6.0 * tokens * per_token
  if model.lora_rank:
    adapters = shapes.num_trained(model)
    flops += tokens * (6.0 * adapters - 2.0 * model.body_parameters)
  return flops
