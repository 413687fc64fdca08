"""What all tests share: simulated devices, checked shapes, public data.

pytest reads this file before any test, so what stands here comes before the
first import of jax and of prm_jax.
"""

import os

import xla_flags

# Eight devices on any machine, for the laws about meshes.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = " ".join(
  [os.environ.get("XLA_FLAGS", ""), xla_flags.devices(8)]
).strip()

from collections.abc import Callable
import functools
import gc
import pathlib
import shutil
import tempfile

import hypothesis
import pytest
import typechecker

# Each call in prm_jax is checked against its annotations, shapes included.
typechecker.install("prm_jax")

# Tracing makes many objects and few cycles: looking for those took 8 % of the
# time. What the imports made stays.
gc.set_threshold(200_000, 20, 100)

# A busy machine is no failure. In CI a run can be repeated exactly. Half of the
# usual examples, for time: there are 140 such laws.
hypothesis.settings.register_profile(
  "prm_jax",
  deadline=None,
  derandomize=bool(os.environ.get("CI")),
  max_examples=50,
)
hypothesis.settings.load_profile("prm_jax")


CACHE = "JAX_COMPILATION_CACHE_DIR"


def pytest_configure(config: pytest.Config) -> None:
  """Has each program compiled once in a run, and encodes without a cache.

  Workers and subprocesses find the folder in their environment.
  """
  # Nothing is written to the home of whoever runs the tests.
  os.environ["PRM_JAX_ENCODED_CACHE"] = "0"
  if CACHE not in os.environ:
    os.environ[CACHE] = tempfile.mkdtemp(prefix="prm_jax_compiled_")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    folder = os.environ[CACHE]
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_collection_finish() -> None:
  gc.freeze()


def pytest_sessionfinish() -> None:
  # pytest looks for cycles before it ends, for seconds in each worker. What is
  # still there goes with the process.
  gc.freeze()


@pytest.fixture(scope="session")
def public_data() -> Callable[..., pathlib.Path]:
  """Returns a function from a path below PRM_JAX_DATA to the file.

  Without it the test is skipped. But where CI is set and PRM_JAX_DATA names a
  folder, what is missing there fails the test: nothing is skipped unseen.
  """

  def find(*parts):
    folder = os.environ.get("PRM_JAX_DATA")
    if not folder:
      pytest.skip("set PRM_JAX_DATA to the folder of public data")
    path = pathlib.Path(folder, *parts)
    if not path.exists():
      missing = pytest.fail if os.environ.get("CI") else pytest.skip
      missing(f"PRM_JAX_DATA={folder} holds no {pathlib.Path(*parts)}")
    return path

  return find


@pytest.fixture(scope="session")
def real_weights() -> pathlib.Path:
  """Returns the folder of published models that PRM_JAX_WEIGHTS names."""
  folder = os.environ.get("PRM_JAX_WEIGHTS")
  if not folder:
    pytest.skip("set PRM_JAX_WEIGHTS to a folder of Hugging Face folders")
  return pathlib.Path(folder)


@pytest.fixture(scope="module")
def one_device():
  """Takes one of the eight devices: all of them take eight times the time."""
  import jax

  from prm_jax.models import sharding

  make_mesh = sharding.make_mesh
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      sharding, "make_mesh", lambda shape: make_mesh(shape, jax.devices()[:1])
    )
    yield


@pytest.fixture(scope="module")
def equal_programs():
  """Makes one program of equal configs: jax traces it once, not once a run.

  So a run and its resume share a trace here; in `make faults` they don't.
  """
  from prm_jax.rl import rl_program
  from prm_jax.training import train_config

  def once(make):
    made = {}

    def made_or_make(*args, **kwargs):
      # By their text: 0, 0.0 and False are equal.
      key = repr((args, kwargs))
      if key not in made:
        made[key] = make(*args, **kwargs)
      return made[key]

    return made_or_make

  with pytest.MonkeyPatch.context() as patch:
    for module, name in (
      (train_config, "make_program"),
      (rl_program, "make"),
    ):
      patch.setattr(module, name, once(getattr(module, name)))
    yield


@pytest.fixture(scope="session", autouse=True)
def no_lines_of_progress():
  """Logs no line of progress, however long a busy machine takes for a step.

  A test that counts lines counts those of its law. A test of progress asks for
  lines with `every_s`.
  """
  from prm_jax.runtime import progress

  with pytest.MonkeyPatch.context() as patch:
    rarely = functools.partial(progress.showing, every_s=600)
    patch.setattr(progress, "showing", rarely)
    yield


@pytest.fixture
def printed_log():
  """Prints what the package logs, as the command line does."""
  from prm_jax.cli import output

  with output.printing_log():
    yield
