"""Folders of tensors, compared."""

from prm_jax import huggingface


def assert_same(a, b):
  """Asserts that two Hugging Face folders have the same tensors to the bit."""
  old, new = (huggingface.open_tensors(x) for x in (a, b))
  assert sorted(old.names) == sorted(new.names)
  for name in old.names:
    one, other = old.read(name), new.read(name)
    assert one.dtype == other.dtype
    assert one.tobytes() == other.tobytes(), name
