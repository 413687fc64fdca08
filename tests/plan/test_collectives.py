"""Bytes that a compiled program sends, from its text."""

import jax
from jax import numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import pytest

from prm_jax.models import sharding
from prm_jax.plan import collectives

# A loop of seven turns that gathers 64 floats from 4 devices; the gather stands
# twice in the text, as asynchronous ones do, on one channel.
LOOP = """HloModule step

%body (p: (s32[], f32[16])) -> (s32[], f32[16]) {
  %a = f32[64]{0} all-gather(%x), channel_id=3, replica_groups=[1,4]<=[4]
  %b = f32[64]{0} all-gather(%x), channel_id=3, replica_groups=[1,4]<=[4]
}

%condition (p: (s32[], f32[16])) -> pred[] {
  %bound = s32[] constant(7)
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}

ENTRY %main (p: f32[16]) -> f32[16] {
  %loop = (s32[], f32[16]) while(%t), condition=%condition, body=%body
  ROOT %r = f32[16]{0} get-tuple-element(%loop), index=1
}
"""


def test_a_loop_sends_as_often_as_it_runs_and_a_channel_once():
  found = collectives.read(LOOP)
  assert found.data == {"all-gather": 7 * 64 * 4}
  assert found.calls == {"all-gather": 7}
  assert found.wire == 7 * 64 * 4


def test_the_compilers_own_trip_count_is_believed():
  text = LOOP.replace(
    "body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"5"}}'
  ).replace("constant(7)", "constant(1)")
  assert collectives.read(text).calls == {"all-gather": 5}


def test_a_loop_of_unknown_length_is_refused_if_it_sends():
  with pytest.raises(ValueError, match="how often"):
    collectives.read(LOOP.replace("direction=LT", "direction=NE"))


@pytest.mark.parametrize(
  ("line", "size"),
  [
    ("bf16[8,4] all-reduce(%x), channel_id=1", 64),
    ("(f32[8], f32[4]) all-reduce(%x, %y), channel_id=1", 48),
    ("(f32[8], f32[4]) all-reduce-start(%x, %y), channel_id=1", 48),
    ("(f32[2], f32[8]) all-gather-start(%x), channel_id=1", 32),
    (
      "((f32[2], f32[1]), (f32[8], f32[4])) all-gather-start(%x, %y),"
      " channel_id=1",
      48,
    ),
    ("f32[8] reduce-scatter(%x), replica_groups=[2,4]<=[8], channel_id=1", 128),
    (
      "f32[8] reduce-scatter(%x), replica_groups={{0,1},{2,3}}, channel_id=1",
      64,
    ),
    ("(f32[8], f32[8], u32[], u32[]) collective-permute-start(%x)", 32),
    ("bf16[4,8] all-to-all(%x), channel_id=1", 64),
  ],
)
def test_the_size_is_that_of_the_larger_side(line, size):
  text = f"ENTRY %main (p: f32[2]) -> f32[2] {{\n  %a = {line}\n}}\n"
  found = collectives.read(text)
  assert list(found.data.values()) == [size]
  assert found.wire == size * (2 if "all-reduce" in line else 1)


def test_a_compiled_scan_over_split_kernels_gathers_each_of_them():
  """The real text of a compiler: 6 layers' kernels, once forward each."""
  mesh = sharding.make_mesh((1, 8, 1))
  split = NamedSharding(mesh, P(None, "fsdp", None))
  rows = NamedSharding(mesh, P("fsdp", None))

  def forward(kernels, x):
    def layer(x, kernel):
      x = jnp.tanh(x @ kernel)
      return jax.lax.with_sharding_constraint(x, rows), None

    return jax.lax.scan(layer, x, kernels)[0]

  compiled = (
    jax.jit(forward, in_shardings=(split, rows), out_shardings=rows)
    .lower(jnp.ones((6, 64, 64)), jnp.ones((1024, 64)))
    .compile()
  )
  found = collectives.read(compiled.as_text())
  assert found.data == {"all-gather": 6 * 64 * 64 * 4}
