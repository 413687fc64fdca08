"""What a run takes from the parameters that it is given."""

import dataclasses
import functools

import jax
from jax import numpy as jnp
import numpy as np
import pytest
import test_loop

from prm_jax import errors
from prm_jax.models import transformer
from prm_jax.training import warm_start


def test_warm_start_takes_the_trunk_and_leaves_the_new_head():
  new, given = (
    test_loop._params(("step",), 0),
    test_loop._params(("outcome",), 1),
  )
  found = warm_start.warm_start(new, given)
  assert found.keys() == new.keys()
  for name in ("embedding", "layers", "final_norm"):
    jax.tree.map(np.testing.assert_array_equal, found[name], given[name])
  jax.tree.map(
    np.testing.assert_array_equal, found["step_head"], new["step_head"]
  )


def test_a_deeper_model_starts_with_the_function_it_was_given():
  deep = dataclasses.replace(test_loop.MODEL, num_layers=3)
  given = test_loop._params(("step",), 1)
  found = warm_start.warm_start(
    test_loop._params(("step",), 0, num_layers=3), given
  )
  logits = [
    jax.jit(functools.partial(transformer.apply, model, method="step_logits"))(
      params, test_loop._batch_at(0)
    )
    for model, params in ((deep, found), (test_loop.MODEL, given))
  ]
  np.testing.assert_allclose(*logits, atol=1e-5)


@pytest.mark.parametrize(
  "changes", [{"d_ff": 12}, {"vocab_size": 17}, {"num_layers": 3}], ids=str
)
def test_warm_start_refuses_other_shapes_in_one_line(changes):
  with pytest.raises(errors.InputError, match="init_from") as e:
    warm_start.warm_start(
      test_loop._params(("step",), 0),
      test_loop._params(("step",), 1, **changes),
    )
  assert "\n" not in str(e.value)


def test_warm_start_refuses_what_has_nothing_in_common():
  with pytest.raises(errors.InputError, match="init_from"):
    warm_start.warm_start(
      test_loop._params(("step",), 0), {"other": jnp.ones(3)}
    )


def test_kernels_arent_taken_without_the_adapters_that_they_go_with():
  given = test_loop._params(("step",), 1, lora_rank=2)
  for changes in ({}, {"lora_rank": 2, "lora_targets": ("up",)}):
    with pytest.raises(errors.InputError, match="adapters") as e:
      warm_start.warm_start(test_loop._params(("step",), 0, **changes), given)
    assert "\n" not in str(e.value)
  # More adapters than there were are as good as new ones.
  given = test_loop._params(("step",), 1, lora_rank=2, lora_targets=("up",))
  found = warm_start.warm_start(
    test_loop._params(("step",), 0, lora_rank=2), given
  )
  up = found["layers"]["mlp"]["up"]
  jax.tree.map(np.testing.assert_array_equal, up, given["layers"]["mlp"]["up"])
