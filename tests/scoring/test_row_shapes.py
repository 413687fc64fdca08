"""Which shapes of batches there are."""

import numpy as np
import pytest

from prm_jax.scoring import row_shapes
from prm_jax.serving import limits as limits_lib
from prm_jax.serving import models


@pytest.mark.parametrize("max_tokens,batch_tokens", [(96, 512), (2048, 8192)])
def test_batches_of_a_list_of_lengths_have_the_shapes_that_are_compiled(
  max_tokens, batch_tokens
):
  limits = limits_lib.Limits(
    max_tokens=max_tokens, max_batch_tokens=batch_tokens
  )
  shapes = row_shapes.Shapes(batch_tokens, lengths=models.row_lengths(limits))
  known = set(shapes.all())
  assert len(known) <= 28
  random = np.random.default_rng(0)
  seen = set()
  for _ in range(500):
    tokens = random.integers(1, max_tokens + 1, random.integers(1, 30)).tolist()
    usual = shapes.packed_length(max(tokens))
    length = min(usual, shapes.row_length(sum(tokens)))
    rows = range(-(-sum(tokens) // length))
    batches = list(shapes.batches(rows, length))
    assert [x for chosen, _ in batches for x in chosen] == list(rows)
    for chosen, num in batches:
      assert len(chosen) <= num <= max(2, 1.5 * len(chosen))
      seen.add((length, num))
  assert seen <= known
  assert len(seen) > len(known) / 2


def test_a_row_is_no_shorter_than_what_it_holds():
  for shapes in (
    row_shapes.Shapes(512),
    row_shapes.Shapes(512, sequence_length=48),
    row_shapes.Shapes(512, lengths=(128, 192)),
  ):
    for tokens in range(1, 600):
      assert shapes.row_length(tokens) >= tokens
      assert shapes.packed_length(tokens) >= tokens
