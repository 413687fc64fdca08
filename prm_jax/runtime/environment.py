"""The environment of a run: versions, revision, machine, workdir, outputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
import contextlib
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import shutil
import subprocess
import sys
from typing import Any

from etils import epath

from prm_jax import _version
from prm_jax import errors
from prm_jax.runtime import compilation_cache
from prm_jax.runtime import distributed
from prm_jax.runtime import files
from prm_jax.runtime import json_text
from prm_jax.runtime import limits

PACKAGES = (
  "jax",
  "jaxlib",
  "flax",
  "optax",
  "orbax-checkpoint",
  "tensorflow-datasets",
  "array_record",
  "sentencepiece",
  "tokenizers",
  "safetensors",
  "ml_collections",
  "numpy",
  "tensorboardX",
  "math-verify",
  "sympy",
)
# Extra -> a module that it brings, and what it is for.
EXTRAS = {
  "tpu": ("libtpu", "Cloud TPU, and plans for it"),
  "cuda12": ("jax_cuda12_plugin", "NVIDIA GPUs, CUDA 12, and plans for them"),
  "cuda13": ("jax_cuda13_plugin", "NVIDIA GPUs, CUDA 13"),
  "tokamax": ("tokamax", "attention on Hopper and Blackwell GPUs"),
  "gcs": ("gcsfs", "gs:// workdirs of prm-jax train"),
  "verify": ("math_verify", "grading by Math-Verify"),
  "parquet": ("pyarrow", "Parquet files as data"),
  "logic": ("z3", "label verify --verifier=logic"),
  "ray": ("ray", "--engine=ray"),
  "test": ("hypothesis", "the tests"),
  "serve": ("starlette", "prm-jax serve"),
  "plot": ("matplotlib", "--plot of evaluations and searches"),
  "emulator": ("gcp_storage_emulator", "tests of gs:// workdirs"),
  "parity": ("transformers", "tests against transformers"),
  "bench": ("trl", "benchmarks against TRL"),
  "dev": ("mypy", "lint and types"),
  "docs": ("zensical", "the documentation site"),
  "browser": ("playwright", "tests of pages in chromium"),
}


def versions() -> dict[str, str]:
  installed = {
    "python": platform.python_version(),
    "prm_jax": _version.__version__,
  }
  return installed | {name: version_of(name) for name in PACKAGES}


def version_of(package: str) -> str:
  """Returns the version of an installed package, or "missing"."""
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return "missing"


def revision() -> str:
  """Returns the git revision of the code, with + where it was changed."""
  here = pathlib.Path(__file__).parent

  def git(*arguments: str) -> str:
    done = subprocess.run(
      ["git", "-C", str(here), *arguments],
      capture_output=True,
      text=True,
      timeout=10,
      check=True,
    )
    return done.stdout.strip()

  try:
    return git("rev-parse", "HEAD")[:12] + "+" * bool(
      git("status", "--porcelain", "--untracked-files=no", "--", ".")
    )
  except (OSError, subprocess.SubprocessError):
    return "unknown"


def machine() -> dict[str, Any]:
  """Returns processor, memory and devices."""
  import jax

  facts: dict[str, Any] = dict(
    system=f"{platform.system()} {platform.machine()}",
    cores=len(os.sched_getaffinity(0))
    if hasattr(os, "sched_getaffinity")
    else os.cpu_count(),
    devices=f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    cpu=cpu(),
  )
  if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    facts["memory_gib"] = round(pages / 2**30, 1)
  return facts


# Instructions by which sums of floats are rounded otherwise.
_INSTRUCTIONS = ("avx2", "avx512f", "amx_tile")


def cpu(path: files.PathLike = "/proc/cpuinfo") -> str:
  """Returns the processor's model, and which of the wide instructions it has.

  Args:
    path: Where Linux describes its processors; elsewhere there is no such file.
  """
  lines = compilation_cache.cpu_lines(path)
  facts = {
    name.strip(): value.strip()
    for name, _, value in (line.partition(":") for line in lines)
  }
  model = facts.get("model name") or platform.processor() or "unknown"
  has = [x for x in _INSTRUCTIONS if x in facts.get("flags", "").split()]
  return ", ".join([model, *has])


def command() -> str:
  return " ".join(["prm-jax", *sys.argv[1:]])


def describe(config: Any) -> dict[str, Any]:
  """Returns config, versions, revision, machine and command as plain data.

  Args:
    config: an ml_collections.ConfigDict.
  """
  # Not above: `check-device` runs where ml_collections isn't installed.
  from prm_jax.runtime import config_files

  return dict(
    config=config_files.resolved(config),
    versions=versions() | dict(revision=revision()),
    machine=machine(),
    command=command(),
  )


def check_resume(
  workdir: epath.Path | pathlib.Path, *, resume: bool, fresh: bool
) -> None:
  """Refuses a workdir with checkpoints that is neither resumed nor replaced."""
  if (workdir / "checkpoints").is_dir() and not resume and not fresh:
    raise errors.InputError(
      f"{workdir}: holds a run and `resume=False` was given;"
      " add `fresh=True` to replace it"
    )


def check_workdir(
  workdir: pathlib.Path,
  config: Mapping[str, Any],
  *,
  fresh: bool = False,
  may_change: Collection[str] = (),
  may_set: Collection[str] = (),
) -> None:
  """Claims a workdir for a config, or resumes it if it has the same config.

  Args:
    workdir: The folder.
    config: The config, as plain data.
    fresh: Whether the run in it is replaced by the caller. It may have any
      config of the same command, and nothing is written.
    may_change: The fields that may differ, as "model.remat".
    may_set: The texts at the top that may differ if they are empty or missing
      in the workdir.

  Raises:
    InputError: The workdir holds a run of another config, or other files; or
      the config names no program and no runs.
  """
  path = workdir / "config.json"
  # Many programs keep a config.json: ours has a program (train) or runs (demo).
  marks = [name for name in ("program", "runs") if name in config]
  is_new, fault = not path.exists(), ""
  if not marks:
    fault = "the config of its run has no `program`; give one, such as"
    fault += " program='prm'"
  elif not is_new:
    saved = _saved_config(path, marks)
    free = {*may_change, *(name for name in may_set if not saved.get(name))}
    different = sorted(files.differences(saved, config) - free)
    if different and not fresh:
      fault = f"holds a run with other values of {', '.join(different)}; give"
      fault += " another `workdir`, or `fresh=True` to replace it"
  elif workdir.exists() and not workdir.is_dir():
    fault = "is a file; give a folder"
  elif workdir.is_dir() and any(workdir.iterdir()):
    fault = "isn't empty and holds no run of ours; give another `workdir`"
  if fault:
    raise errors.InputError(f"{workdir}: {fault}")
  if is_new and not fresh:
    files.write_json(path, config)


@contextlib.contextmanager
def remove_if_refused(workdir: pathlib.Path) -> Iterator[None]:
  """Removes a new workdir if its run is refused before any save."""
  new = not workdir.exists() or (
    workdir.is_dir() and not any(workdir.iterdir())
  )
  try:
    yield
  except errors.InputError as e:
    # A refused run has written nothing of use; after any other failure the
    # folder stays.
    refused = type(e) is errors.InputError and distributed.is_first()
    if refused and new and not any(workdir.glob("**/checkpoints/*")):
      shutil.rmtree(workdir, ignore_errors=True)
    raise


def _saved_config(
  path: pathlib.Path, marks: Sequence[str]
) -> Mapping[str, Any]:
  """Returns a saved config; refuses one that has none of the marks of ours."""
  try:
    saved = json_text.parse(files.read_text(path, limits.JSON_BYTES))
    if isinstance(saved, dict) and any(name in saved for name in marks):
      return saved
    fault = f": isn't the config of such a run (it has no {marks[0]!r}); give"
    fault += " another `workdir`"
  except json_text.JSONTextError as e:
    fault = f":{e.line}: damaged: {e.reason}; give another `workdir`, or take"
    fault += " the folder away"
  raise errors.InputError(f"{path}{fault}")
