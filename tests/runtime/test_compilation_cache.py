"""Compiled programs are kept for the next start, and change no number."""

import os
import pathlib
import subprocess
import sys

import pytest

from prm_jax import errors
from prm_jax.runtime import compilation_cache
from prm_jax.runtime import user_cache

PROGRAM = """
import sys
import jax
from prm_jax.runtime import compilation_cache
from prm_jax.runtime import user_cache
assert str(compilation_cache.enable()) == sys.argv[1]
hits = []
jax.monitoring.register_event_listener(
  lambda event, **more: hits.append(event.rpartition("/")[2])
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
x = jax.numpy.linspace(-2, 2, 4096).reshape(64, 64)
y = jax.jit(lambda x: jax.nn.softmax(x @ jax.numpy.sin(x)).sum(0))(x)
print(y.tobytes().hex(), "cache_hits" in hits)
"""


@pytest.fixture
def home(tmp_path):
  """Returns the environment of a user whose cache folder is empty."""
  environment = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("JAX_COMPILATION", "JAX_PERSISTENT"))
  }
  environment.pop(compilation_cache.SWITCH, None)
  return environment | dict(XDG_CACHE_HOME=str(tmp_path / "cache"))


def run(home, *, enables=True):
  folder = compilation_cache.folder_of(home) if enables else None
  done = subprocess.run(
    [sys.executable, "-c", PROGRAM, str(folder)],
    env=home,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  bits, hit = done.stdout.split()
  return bits, hit == "True", done.stderr


def test_a_loaded_program_gives_the_bits_of_a_fresh_one_also_from_damaged_files(
  home,
):
  fresh = run(home)
  folder = compilation_cache.folder_of(home)
  for part in (folder, folder.parent, folder.parent.parent):
    assert part.stat().st_mode & 0o777 == 0o700
  assert fresh[1:] == (False, "")
  assert run(home) == (fresh[0], True, "")
  # A killed process leaves an entry without its time.
  entries = sorted(folder.glob("*-cache"))
  for entry in entries:
    entry.write_bytes(entry.read_bytes()[:100])
    entry.with_name(entry.name.replace("-cache", "-atime")).unlink()
  assert run(home) == (fresh[0], False, "")
  assert run(home) == (fresh[0], True, "")
  # What is damaged otherwise is compiled again, and said.
  for entry in entries:
    whole = bytearray(entry.read_bytes())
    whole[len(whole) // 2] ^= 1
    entry.write_bytes(whole)
  bits, hit, warned = run(home)
  assert (bits, hit) == (fresh[0], False)
  assert "Error reading persistent compilation cache entry" in warned


def test_a_folder_that_cannot_be_made_costs_nothing_but_the_cache(home):
  pathlib.Path(home["XDG_CACHE_HOME"]).write_text("a file")
  bits, hit, warned = run(home, enables=False)
  assert bits and not hit and warned == ""


def test_a_folder_that_others_can_write_to_is_not_used(home, monkeypatch):
  folder = compilation_cache.folder_of(home)
  base = pathlib.Path(home["XDG_CACHE_HOME"])
  user_cache.make(folder, base)
  user_cache.make(folder, base)
  for part in (folder, folder.parent, folder.parent.parent):
    part.chmod(0o770)
    with pytest.raises(PermissionError, match="another user"):
      user_cache.make(folder, base)
    part.chmod(0o700)
  base.chmod(0o777)
  with pytest.raises(PermissionError, match="another user"):
    user_cache.make(folder, base)
  base.chmod(0o1777)
  user_cache.make(folder, base)
  folder.rename(base / "elsewhere")
  folder.symlink_to(base / "elsewhere")
  with pytest.raises(PermissionError, match="another user"):
    user_cache.make(folder, base)
  folder.unlink()
  monkeypatch.setattr(os, "geteuid", lambda: 12345)
  with pytest.raises(PermissionError, match="another user"):
    user_cache.make(folder, base)


def test_the_folder_depends_on_the_processor_and_old_ones_are_removed(
  home, tmp_path
):
  info = "model\t: {}\nflags\t: fpu avx{}\ncpu MHz\t: {}\n"
  digests = []
  for text in (("1", "2", "9"), ("1", "2", "8"), ("1", "512", "9")):
    path = tmp_path / "cpuinfo"
    path.write_text(info.format(*text))
    digests.append(compilation_cache._processor(str(path)))
  assert digests[0] == digests[1] != digests[2]
  folder = compilation_cache.folder_of(home)
  user_cache.make(folder, folder.parent.parent.parent)
  for k in range(6):
    old = folder.parent / f"jax-{k}"
    old.mkdir()
    os.utime(old, (k, k))
  compilation_cache._tidy(folder)
  left = sorted(x.name for x in folder.parent.iterdir())
  assert left == [folder.name, "jax-3", "jax-4", "jax-5"]
  relative = home | dict(XDG_CACHE_HOME="here", HOME="/nowhere")
  base = pathlib.Path(os.path.expanduser("~")) / ".cache"
  assert compilation_cache.folder_of(relative).is_relative_to(base)


def test_a_users_own_choice_wins(home):
  off = home | {compilation_cache.SWITCH: "0"}
  assert compilation_cache.why_off(off) == "off: PRM_JAX_COMPILATION_CACHE=0"
  own = home | {compilation_cache.OF_JAX: "/of/mine"}
  assert compilation_cache.why_off(own) == (
    "/of/mine (JAX_COMPILATION_CACHE_DIR)"
  )
  assert compilation_cache.why_off(home) is None
  for environment in (off, own):
    assert compilation_cache.enable(environment) is None
  with pytest.raises(errors.InputError, match="expected 0"):
    compilation_cache.enable(home | {compilation_cache.SWITCH: "yes"})
