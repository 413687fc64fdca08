"""The step that `fit` runs, compiled for other chips, and what it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import re
import time
from typing import Any

import jax

from prm_jax import batch as batch_lib
from prm_jax.models import model_config as model_config
from prm_jax.models import sharding
from prm_jax.plan import collectives
from prm_jax.plan import flops as flops_lib
from prm_jax.plan import planned_memory as memory_lib
from prm_jax.plan import topologies
from prm_jax.training import program as program_lib


@dataclasses.dataclass(frozen=True)
class Update:
  """The update that is planned.

  Args:
    make: Returns its program, given (model, microbatches).
    model: The shape of the model.
    batch_size: The number of rows of a batch.
    sequence_length: The number of tokens of a row.
    microbatches: The number of parts that a batch is divided into.
    mesh: The number of devices on each axis.
    steps: The number of updates of the run.
    pairs: Whether its targets are compared in pairs.
    notes: What a reader of its plan should know.
  """

  make: Callable[
    [model_config.ModelConfig, int], program_lib.Program[batch_lib.Batch]
  ]
  model: model_config.ModelConfig
  batch_size: int
  sequence_length: int
  microbatches: int
  mesh: tuple[int, ...]
  steps: int
  pairs: bool = False
  notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Plan:
  """What an update needs; bytes and FLOPs are of one chip.

  Args:
    topology: The chips.
    mesh: (data, fsdp, tensor).
    parameters: The number of parameters.
    rows: The number of rows of a batch.
    sequence_length: The number of tokens of a row.
    microbatches: The number of parts that a batch is divided into.
    steps: The number of updates of the run.
    remat: What the backward pass computes again.
    attention: The kind of attention.
    memory: The bytes that a program can have.
    peak: The most bytes in use, arguments included; None if it didn't fit and
      the compiler reported no more than `refused`.
    arguments: The bytes of the state and the batch.
    hardware_flops: The FLOPs that are computed.
    model_flops: The FLOPs that the model needs, without rematerialisation and
      with half the square of attention.
    sent: See collectives.Sent.
    seconds: Lower bounds from compute, memory and wire.
    refused: The compiler's message, if it didn't fit.
    warnings: Warnings, in words.
    compile_s: The time of compilation.
  """

  topology: str
  mesh: tuple[int, ...]
  parameters: int
  rows: int
  sequence_length: int
  microbatches: int
  steps: int
  remat: str
  attention: str
  memory: int
  peak: int | None
  arguments: int | None = None
  hardware_flops: float = 0.0
  model_flops: float = 0.0
  sent: collectives.Sent | None = None
  seconds: dict[str, float] = dataclasses.field(default_factory=dict)
  refused: str = ""
  warnings: tuple[str, ...] = ()
  compile_s: float = 0.0

  @property
  def fits(self) -> bool:
    return self.peak is not None and self.peak <= self.memory

  @property
  def hours(self) -> float | None:
    """The least hours of all updates, by the bounds; None without them."""
    if not self.seconds:
      return None
    return self.steps * max(self.seconds.values()) / 3600


def of_update(
  update: Update, topology: topologies.Topology, devices: Sequence[Any]
) -> Plan:
  """Compiles an update for a topology and returns what it needs.

  Raises:
    InputError: the mesh or the rows don't fit the topology, or the model can't
      be split so.
  """
  mesh = sharding.make_mesh(update.mesh, devices)
  sharding.check_rows(update.batch_size // update.microbatches, mesh)
  model = update.model
  traced = _trace(update, mesh)
  hardware, needed = flops(traced, update, mesh)
  (state, _), _ = traced.in_avals
  plan = Plan(
    topology=topology.name,
    mesh=tuple(mesh.shape.values()),
    parameters=sum(x.size for x in jax.tree.leaves(state.params)),
    rows=update.batch_size,
    sequence_length=update.sequence_length,
    microbatches=update.microbatches,
    steps=update.steps,
    remat=model.remat,
    attention=model.attention,
    memory=topology.chip.memory,
    peak=None,
    hardware_flops=hardware / topology.size,
    model_flops=needed / topology.size,
    warnings=(
      *warnings(update, mesh),
      *update.notes,
      *filter(None, [topology.chip.note]),
    ),
  )
  begun = time.monotonic()
  try:
    compiled = traced.lower().compile()
  except jax.errors.JaxRuntimeError as e:
    if "RESOURCE_EXHAUSTED" not in str(e):
      raise
    return dataclasses.replace(
      plan, refused=refusal(str(e)), compile_s=time.monotonic() - begun
    )
  memory = compiled.memory_analysis()
  sent = collectives.read(compiled.as_text())
  plan = dataclasses.replace(
    plan,
    peak=memory_lib.peak(memory),
    arguments=memory.argument_size_in_bytes,
    sent=sent,
    compile_s=time.monotonic() - begun,
  )
  return dataclasses.replace(plan, seconds=_bounds(plan, topology.chip))


def _trace(update: Update, mesh: jax.sharding.Mesh) -> Any:
  """Returns the update, traced for the mesh."""
  program = update.make(update.model, update.microbatches)
  placed = program_lib.place(program, mesh, jax.random.key(0))
  rows = sharding.of_batch(mesh)
  shape = (update.batch_size, update.sequence_length)
  batch = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(shape, x.dtype, sharding=rows),
    batch_lib.empty(1, 1),
  )
  if update.pairs:
    batch = dataclasses.replace(batch, pair_group=batch.tokens)
  return placed.step.trace(placed.target, batch)


def _hardware(count: flops_lib.Count, update: Update) -> float:
  """Returns the FLOPs of a count, with kernels at half the square.

  A matmul of a kernel takes rows x heads x (T^2 / 2) pairs of query and key,
  2 FLOPs per channel each.
  """
  rows = update.batch_size // update.microbatches
  width = update.model.num_heads * update.model.head_dim
  return count.flops + count.kernel_matmuls * rows * width * (
    update.sequence_length**2
  )


def flops(
  traced: Any, update: Update, mesh: jax.sharding.Mesh
) -> tuple[float, float]:
  """Returns an update's FLOPs over all chips: computed, and needed.

  The computed FLOPs are those of the traced update, with kernels at half the
  square. For the needed ones: without rematerialisation the step would compute
  a T + b T^2 for rows of T tokens, b from attention, so two lengths give both;
  causal attention needs half of b T^2.

  Args:
    traced: The update as it is.
    update: What is planned.
    mesh: The mesh.
  """
  T = update.sequence_length
  plain = dataclasses.replace(
    update,
    model=dataclasses.replace(
      update.model, remat="none", attention="reference"
    ),
  )
  once, twice = (
    flops_lib.count(
      _trace(dataclasses.replace(plain, sequence_length=n), mesh).jaxpr
    ).flops
    for n in (T, 2 * T)
  )
  square = (twice - 2 * once) / 2
  computed = _hardware(flops_lib.count(traced.jaxpr), update)
  return computed, once - square / 2


def refusal(message: str) -> str:
  """Returns what the compiler says of memory, in one line.

  Args:
    message: What it says.
  """
  match = re.search(r"\(([\d.]+)([KMGT])\) exceeds available HBM", message)
  if match:
    return f"the compiler needs {match[1]} {match[2]}iB"
  return " ".join(message.split())[:300]


def _bounds(plan: Plan, chip: topologies.Chip) -> dict[str, float]:
  """Returns the least seconds that an update can take, by what limits it.

  memory: every argument is read and every result written once. Activations
  come on top; the bound is a lower one.
  """
  assert plan.arguments is not None and plan.sent is not None
  return dict(
    compute=plan.hardware_flops / chip.flops,
    memory=2 * plan.arguments / chip.memory_bandwidth,
    wire=plan.sent.wire / chip.wire_bandwidth,
  )


def warnings(update: Update, mesh: jax.sharding.Mesh) -> list[str]:
  """Returns what will be slow or large without being wrong."""
  model = update.model
  platform = sharding.platform(mesh)
  texts = _tile_warnings(model, platform, mesh.shape["fsdp"])
  if platform != "cpu" and model.compute_dtype == "float32":
    texts.append("compute_dtype=float32: matmuls at a fraction of the peak")
  if model.attention == "reference" and update.sequence_length > 2048:
    texts.append(
      f"attention='reference' holds the square of {update.sequence_length} tokens"
    )
  tensor = mesh.shape["tensor"]
  for name in ("num_heads", "num_kv_heads", "d_ff"):
    if getattr(model, name) % tensor:
      texts.append(
        f"{name}={getattr(model, name)} isn't a multiple of tensor={tensor}:"
        " its kernels are on every chip"
      )
  return texts


def _tile_warnings(
  model: model_config.ModelConfig, platform: str, fsdp: int
) -> list[str]:
  # A tile of bfloat16 is 16 rows. A kernel's gradient that is split below it
  # is summed whole on every chip, and then cut.
  if platform != "tpu" or model.d_model % (16 * fsdp) == 0:
    return []
  return [
    f"d_model={model.d_model} over fsdp={fsdp} isn't a multiple of 16 rows a"
    " chip: slices are padded, and gradients can't be scattered; a smaller"
    " fsdp, with the rest as data, holds more and sends less"
  ]
