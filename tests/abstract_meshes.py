"""Meshes of devices that aren't here, to trace programs for."""

import jax


def of(platform: str) -> jax.sharding.AbstractMesh:
  """Returns a mesh of one gpu or tpu."""
  device = jax.sharding.AbstractDevice(
    device_kind=platform, num_cores=1, platform=platform
  )
  return jax.sharding.AbstractMesh(
    (1,), ("data",), (jax.sharding.AxisType.Auto,), abstract_device=device
  )
