"""A shard is decided by the text of a problem, and by nothing else."""

import hashlib

import pytest

from prm_jax import errors
from prm_jax.jobs import shards


def test_a_shard_is_named_by_the_problems_text_alone():
  digest = hashlib.sha256(b"What is 2 + 3 * 4?").hexdigest()
  for count in (1, 3, 1_000):
    holders = [
      i
      for i in range(count)
      if shards.Shard(i, count).holds("What is 2 + 3 * 4?")
    ]
    assert holders == [int(digest, 16) % count]


@pytest.mark.parametrize("text", ["3/2", "2/2", "0/0", "1", "-1/2", "a/b", "/"])
def test_a_shard_that_cant_be_is_refused(text):
  with pytest.raises(errors.InputError, match="expected i/n with 0 <= i < n"):
    shards.parse(text)
