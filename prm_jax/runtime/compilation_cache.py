"""Compiled programs that are kept on disk, so that the next start loads them.

jax has such a cache, off by default. The command line turns it on; a library
must not, so a Python program calls `enable` itself. What is loaded is run as
machine code: a folder that another user could write to isn't used.
"""

from __future__ import annotations

from collections.abc import Mapping
import hashlib
import importlib.util
import os
import pathlib
import platform
import shutil
import warnings

from prm_jax import errors
from prm_jax.runtime import user_cache

# 0 turns the cache off.
SWITCH = "PRM_JAX_COMPILATION_CACHE"
# jax's own variable; a user who sets it has chosen a folder.
OF_JAX = "JAX_COMPILATION_CACHE_DIR"

MAX_BYTES = 256 << 20  # of one folder
MAX_FOLDERS = 4  # one for each version of jax and kind of processor
# Far below it, loading a program takes as long as compiling it. jax's default, 1 s,
# would keep nothing of a small model.
_MIN_COMPILE_S = 0.05


def enable(environment: Mapping[str, str] = os.environ) -> pathlib.Path | None:
  """Makes jax keep compiled programs in the user's cache folder.

  It must be called before the first program is compiled. The numbers are those
  of a fresh compilation, bit for bit. A cache that can't be used is no error:
  programs are then compiled as without it.

  Args:
    environment: The environment variables: PRM_JAX_COMPILATION_CACHE=0 leaves
      the cache off, and JAX_COMPILATION_CACHE_DIR leaves all as jax has it.

  Returns:
    The folder; None if `enable` changed nothing.

  Raises:
    InputError: PRM_JAX_COMPILATION_CACHE is neither 0 nor 1.
  """
  # Not above: what only asks for the folder doesn't wait for jax.
  import jax

  if why_off(environment) is not None:
    return None
  folder = folder_of(environment)
  try:
    user_cache.make(folder, base=folder.parent.parent.parent)
    _tidy(folder)
  except OSError:
    return None
  jax.config.update("jax_compilation_cache_dir", str(folder))
  jax.config.update("jax_compilation_cache_max_size", MAX_BYTES)
  jax.config.update(
    "jax_persistent_cache_min_compile_time_secs", _MIN_COMPILE_S
  )
  jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
  jax.config.update("jax_raise_persistent_cache_errors", False)
  # A full disk: the program was compiled, and that is all that was asked for.
  warnings.filterwarnings(
    "ignore", "Error writing persistent compilation cache entry"
  )
  return folder


def why_off(environment: Mapping[str, str] = os.environ) -> str | None:
  """Returns why `enable` would change nothing, None if it would.

  Raises:
    InputError: PRM_JAX_COMPILATION_CACHE is neither 0 nor 1.
  """
  switch = environment.get(SWITCH, "")
  if switch not in ("", "0", "1"):
    raise errors.InputError(f"{SWITCH}={switch}: expected 0 (off) or 1 (on)")
  if switch == "0":
    return f"off: {SWITCH}=0"
  if environment.get(OF_JAX) is not None:
    return f"{environment[OF_JAX]} ({OF_JAX})"
  # jax needs it for a folder of bounded size; it comes with tokenizers.
  if importlib.util.find_spec("filelock") is None:
    return "off: pip install filelock"
  return None


def folder_of(environment: Mapping[str, str] = os.environ) -> pathlib.Path:
  """Returns the folder of this jax and this kind of processor.

  Machine code for one processor may crash on another, and homes are shared by
  machines.
  """
  import jax
  import jaxlib.version

  versions = f"jax-{jax.__version__}-{jaxlib.version.__version__}"
  return (
    user_cache.folder_of(environment)
    / "compiled"
    / f"{versions}-{_processor()}"
  )


def cpu_lines(path: str | os.PathLike[str] = "/proc/cpuinfo") -> list[str]:
  """Returns the lines in which Linux describes its processors.

  Args:
    path: The file; on other systems there is none, and no lines.
  """
  try:
    return pathlib.Path(path).read_text(errors="replace").splitlines()
  except OSError:
    return []


def _processor(path: str = "/proc/cpuinfo") -> str:
  """Returns a digest of the processor's model and instructions."""
  names = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
  facts = {platform.machine(), platform.processor()}
  facts |= {x for x in cpu_lines(path) if x.partition(":")[0].strip() in names}
  text = "\n".join(sorted(facts))
  return hashlib.sha256(text.encode()).hexdigest()[:12]


def _tidy(folder: pathlib.Path) -> None:
  """Removes what a killed process left half written, and old folders.

  jax writes the time of an entry after the entry. One without a time would keep
  jax from writing any other.
  """
  names = {entry.name for entry in os.scandir(folder)}
  for name in names:
    key = name.removesuffix("-cache")
    if key != name and f"{key}-atime" not in names:
      (folder / name).unlink(missing_ok=True)
  os.utime(folder)
  others = [x for x in folder.parent.iterdir() if x.is_dir()]
  others.sort(key=lambda x: x.stat().st_mtime, reverse=True)
  for old in others[MAX_FOLDERS:]:
    shutil.rmtree(old, ignore_errors=True)
