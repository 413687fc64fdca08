"""XLA's flags for the tests, which compile tiny programs most of the time."""

from importlib import metadata

from packaging import version

# XLA needn't optimize them, nor divide them among threads; its older emitters
# compile faster than its default ones. jaxlib 0.11.1 no longer has those, and
# XLA aborts at a flag it doesn't know.
FAST_COMPILING = " ".join(
  [
    "--xla_backend_optimization_level=0",
    "--xla_cpu_parallel_codegen_split_count=1",
  ]
  + ["--xla_cpu_use_fusion_emitters=false"]
  * (version.Version(metadata.version("jaxlib")).release < (0, 11, 1))
)


def devices(number: int) -> str:
  """Returns the flags for so many simulated devices."""
  return f"--xla_force_host_platform_device_count={number} {FAST_COMPILING}"
