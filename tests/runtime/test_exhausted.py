"""A full disk, too many open files and too little memory are told apart."""

import errno
import os

import pytest

from prm_jax import errors
from prm_jax.checkpoints import integrity
from prm_jax.checkpoints import manager
from prm_jax.runtime import exhausted
from prm_jax.runtime import files


def _tensorstores(number):
  """Returns an error of TensorStore, which calls all of them the same."""
  text = os.strerror(number)
  return ValueError(
    f"RESOURCE_EXHAUSTED: Failed to open: {text} [source locations='x.cc:1']"
    f" [os_error_code='{number}']"
  )


KINDS = [
  (errno.ENOSPC, errors.DiskFullError, "disk is full"),
  (errno.EDQUOT, errors.DiskFullError, "disk is full"),
  (errno.EMFILE, errors.InputError, "ulimit -n"),
  (errno.ENFILE, errors.InputError, "ulimit -n"),
  (errno.ENOMEM, errors.InputError, "not enough memory"),
]


@pytest.mark.parametrize(("number", "kind", "words"), KINDS)
def test_each_is_named_whoever_reports_it(number, kind, words):
  wrapped = RuntimeError("a save failed")
  wrapped.__cause__ = _tensorstores(number)
  for error in (
    OSError(number, os.strerror(number), "some/file"),
    _tensorstores(number),
    wrapped,
  ):
    refused = exhausted.refusal(error)
    assert type(refused) is kind and words in str(refused)
    assert "\n" not in str(refused)


def test_memory_is_named_as_python_numpy_and_xla_report_it():
  xla = RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")
  for error in (MemoryError(), MemoryError("Unable to allocate 9 TiB"), xla):
    assert "not enough memory" in str(exhausted.refusal(error))


def test_other_errors_are_no_ones_but_for_a_path_that_is_refused():
  for error in (ValueError("x"), RuntimeError("INTERNAL"), OSError("x")):
    assert exhausted.refusal(error) is None
  long = OSError(errno.ENAMETOOLONG, "File name too long", "name")
  assert str(exhausted.refusal(long)).startswith("name: File name too long")


@pytest.mark.parametrize(("number", "kind", "words"), KINDS[:4])
def test_a_file_and_a_save_say_the_same(number, kind, words, tmp_path):
  error = files.unwritable("f", OSError(number, os.strerror(number)))
  assert type(error) is kind
  checkpoints = manager.Checkpoints(tmp_path)
  with pytest.raises(kind) as caught, checkpoints._writing():
    raise _tensorstores(number)
  assert type(caught.value) is kind and words in str(caught.value)
  checkpoints.close()


def test_a_save_that_cant_be_opened_now_isnt_damaged():
  """Else a run would set it aside."""
  many = integrity.unreadable("s", _tensorstores(errno.EMFILE))
  assert type(many) is errors.InputError and "ulimit -n" in str(many)
  other = integrity.unreadable("s", _tensorstores(errno.EIO))
  assert type(other) is errors.DamagedError
