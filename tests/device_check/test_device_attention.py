"""Cases cover all pairs; the limits let right kernels pass, and no wrong one."""

import collections
import dataclasses
import functools
import importlib.util
import itertools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from prm_jax.device_check import attention_checks as attention_lib
from prm_jax.device_check import cases
from prm_jax.device_check import check_results
from prm_jax.device_check import check_worker
from prm_jax.device_check import chip_limits
from prm_jax.device_check import kernels
from prm_jax.models import attention
from prm_jax.models import blockwise_attention
from prm_jax.models import splash_attention
from prm_jax.models import tree_attention_kernels

SETTING = check_results.Setting("quick", "cpu", "cpu", 1)
SMALL = dict(head_dim=16, queries_per_key=2, tokens=96, kv_heads=2)


def _case(mask, dtype="float32", **changes):
  name = f"tiny_{mask}_{dtype}"
  return cases.Case(name=name, mask=mask, dtype=dtype, **{**SMALL, **changes})


def _result(case, kind):
  [found], _ = check_worker.run(attention_lib._check(case, kind), SETTING)
  return found


# --- Cases ------------------------------------------------------------------


def test_few_cases_hold_every_pair_of_levels():
  found = cases.covering()
  assert 18 <= len(found) + len(cases.PUBLISHED) <= 27
  seen = {
    (a, getattr(case, a), b, getattr(case, b))
    for case in found
    for a, b in itertools.combinations(cases.FACTORS, 2)
  }
  for a, b in itertools.combinations(cases.FACTORS, 2):
    for x, y in itertools.product(cases.FACTORS[a], cases.FACTORS[b]):
      assert (a, x, b, y) in seen


def test_full_has_all_324_and_the_published_shapes_first():
  assert len({case.name for case in cases.every()}) == 324
  setting = check_results.Setting("full", "gpu", "NVIDIA H200", 1)
  names = [c.name for c in attention_lib.checks(setting) if c.required]
  assert len(names) == len(set(names)) == 5 + 324 + 6
  assert all("qwen2_5" in n for n in names[:2]) and "llama3" in names[2]
  kinds = collections.Counter(n.split(".")[1] for n in names)
  assert kinds == dict(tree=5 + 324, reference=6)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("mode", check_results.MODES)
def test_every_kind_that_auto_may_take_is_required(platform, mode):
  setting = check_results.Setting(mode, platform, platform, 1)
  found = attention_lib.checks(setting)
  kinds = {c.name.split(".")[1] for c in found if c.required}
  lengths = (64, 128, 512, 1024, 4096, 16_384)
  assert kinds == {
    attention.suited(platform, tokens, dtype)
    for tokens in lengths
    for dtype in cases.FACTORS["dtype"]
  }


@pytest.mark.parametrize("mask", cases.FACTORS["mask"])
def test_rows_say_who_sees_whom_as_parents_do(mask):
  rows = cases.make_rows(_case(mask, tokens=192))
  window = None
  if rows.window is not None:
    window = attention.Window(
      jnp.asarray(rows.positions), jnp.asarray(rows.window)
    )
  found = attention.visibility(jnp.asarray(rows.visible_until), window)
  np.testing.assert_array_equal(found, rows.sees)
  roots = rows.positions == 0
  assert (roots.sum() == 2) == (mask == "causal")
  branches = rows.sees.sum() < np.tril(rows.sees[:1] * 0 + 1).sum() * 2
  assert branches == (mask != "causal")


# --- The plain formula and its limits ---------------------------------------


@pytest.mark.parametrize("mask", ["tree", "softcap"])
def test_the_plain_formula_is_the_reference_and_its_gradient(mask, monkeypatch):
  monkeypatch.setattr(
    attention_lib, "_MOST_LOGITS", 2 * 96 * 12
  )  # several chunks
  attention_lib.plain_attention.clear_cache()
  case = _case(mask)
  rows = cases.make_rows(case)
  q, k, v, d_out = attention_lib._inputs(case)
  plain = attention_lib.plain_attention(
    q, k, v, d_out, jnp.asarray(rows.sees), softcap=case.softcap
  )
  attend = functools.partial(
    attention.reference,
    visible_until=jnp.asarray(rows.visible_until),
    softcap=case.softcap,
  )
  out, vjp = jax.vjp(attend, q, k, v)
  expected = attention_lib.Tensors(out, *vjp(d_out))
  for x, y in zip(plain.exact, expected, strict=True):
    np.testing.assert_allclose(x, y, atol=2e-5)
  for scale, x in zip(plain.scales, plain.exact, strict=True):
    assert scale.shape == x.shape[:-1] and (scale > 0).all()


@pytest.mark.parametrize("keys", [1, 64])
def test_a_sum_of_rounded_terms_keeps_its_limit_and_not_a_tenth_of_it(keys):
  rng = np.random.default_rng(0)
  weights = rng.random((2000, keys)).astype(np.float32)
  values = rng.standard_normal((keys, 64))
  rounded = np.asarray(jnp.asarray(weights).astype("bfloat16"), np.float64)
  scale = np.sqrt(weights**2 @ (values**2).sum(-1))
  error = np.linalg.norm((rounded - weights) @ values, axis=-1) / scale
  assert 0.1 < error.max() / chip_limits.ROUNDOFF["bfloat16"] <= 1


@pytest.mark.parametrize("kind", ["reference", "blocks", "tree"])
@pytest.mark.parametrize("dtype", cases.FACTORS["dtype"])
def test_right_kernels_keep_the_limits_with_room(kind, dtype):
  found = _result(_case("window", dtype), kind)
  assert found.status == "pass", found
  assert found.number < 0.7 * found.limit


# --- A wrong line -----------------------------------------------------------


def _one_too_many(sees):
  """Has every query see the key behind the last one that it may see."""

  def changed(self, queries, keys):
    right = (keys.index <= queries.index) & (queries.index <= keys.until)
    return right if self.size is None else right & sees(self, queries, keys)

  return changed


def _no_window(self, queries, keys):
  return (keys.index <= queries.index) & (queries.index < keys.until)


def _blocks_one_too_many(self, i, j):
  R, S = self.q.shape[1], self.k.shape[1]
  queries, keys = i * S + jnp.arange(R) % S, j * S + jnp.arange(S)
  return (keys <= queries[:, None]) & (queries[:, None] <= self.until[j])


def _reference_one_too_many(visible_until, window=None):
  index = jnp.arange(visible_until.shape[1])
  query, key = index[:, None], index[None, :]
  return (key <= query) & (query <= visible_until[:, None, :])


@pytest.mark.parametrize("dtype", cases.FACTORS["dtype"])
@pytest.mark.parametrize(
  ("kind", "mask", "where", "name", "line"),
  [
    (
      *("tree", "packed", tree_attention_kernels.Row, "sees"),
      _one_too_many(tree_attention_kernels.Row.sees),
    ),
    ("tree", "window", tree_attention_kernels.Row, "sees", _no_window),
    (
      "blocks",
      "tree",
      blockwise_attention._Head,
      "sees",
      _blocks_one_too_many,
    ),
    ("reference", "packed", attention, "visibility", _reference_one_too_many),
  ],
)
def test_one_changed_mask_line_fails_its_check_and_names_the_case(
  kind, mask, where, name, line, dtype, monkeypatch
):
  monkeypatch.setattr(where, name, line)
  case = _case(mask, dtype)
  found = _result(case, kind)
  assert found.status == "fail"
  assert found.name == f"attention.{kind}.tiny_{mask}_{dtype}"
  assert found.number > found.limit


def test_an_ignored_soft_cap_and_a_swapped_head_fail(monkeypatch):
  attend = attention.attend

  def uncapped(q, k, v, until, kind, window, *, softcap):
    return attend(q, k, v, until, kind, window)

  def swapped(q, k, v, until, kind, window, *, softcap):
    return attend(q, k[:, :, ::-1], v, until, kind, window)

  for wrong, mask in ((uncapped, "softcap"), (swapped, "causal")):
    monkeypatch.setattr(attention, "attend", wrong)
    assert _result(_case(mask, "bfloat16"), "reference").status == "fail"


def test_a_result_that_is_no_number_fails(monkeypatch):
  attend = attention.attend

  def broken(*args, **kwargs):
    return attend(*args, **kwargs).at[0, 3].set(jnp.nan)

  monkeypatch.setattr(attention, "attend", broken)
  found = _result(_case("causal"), "reference")
  assert found.status == "fail" and found.number is None
  assert "nan" in found.note


# --- A kernel that is to come --------------------------------------------------


GPU = check_results.Setting("quick", "gpu", "NVIDIA H100 80GB HBM3", 1)


def _coming(setting):
  checks = attention_lib.checks(setting)
  return [c for c in checks if c.name.startswith("attention.tokamax")]


@pytest.mark.parametrize("is_there", [False, True])
def test_tokamaxs_kernel_is_checked_where_it_is_and_isnt_required(
  is_there, monkeypatch
):
  monkeypatch.setattr(attention_lib, "has_tokamax", lambda _: is_there)
  coming = _coming(GPU)
  assert all(c.stage == "kernels" and not c.required for c in coming)
  assert not any("float32" in c.name for c in coming)
  names = {c.name for c in coming}
  rest = [c for c in attention_lib.checks(GPU) if c.name not in names]
  assert all(c.stage == "right" and c.required for c in rest)
  assert not _coming(SETTING)
  if not is_there:
    [absent] = coming
    [found], _ = check_worker.run(absent, GPU)
    assert found.status == "not run" and "pip install" in found.note


def test_a_b200_has_no_room_for_256_channels(monkeypatch):
  monkeypatch.setattr(attention_lib, "has_tokamax", lambda _: True)
  standard = dataclasses.replace(GPU, mode="standard")
  for capability, has_room in ((9.0, True), (10.0, False)):
    monkeypatch.setattr(attention_lib, "_capability", lambda x=capability: x)
    names = [c.name for c in _coming(standard)]
    assert any(".c256_" in name for name in names) == has_room


def test_kernels_take_turns_on_causal_packed_and_tree_rows():
  rows = {
    name: kernels.visible_until(name, 2, 512, 100) for name in kernels.ROWS
  }
  is_packed = {
    name: np.asarray(splash_attention.is_packed(jnp.asarray(until))).tolist()
    for name, until in rows.items()
  }
  assert is_packed["causal"] == is_packed["packed"] == [True, True]
  assert False in is_packed["tree"]
  assert (rows["causal"] == 512).all() and (rows["packed"] < 512).any()


@pytest.mark.skipif(
  importlib.util.find_spec("tokamax") is None,
  reason="tokamax isn't installed: it needs Python 3.12 (make newest)",
)
def test_tokamax_in_its_plain_form_passes_and_is_timed(monkeypatch):
  monkeypatch.setattr(attention_lib, "has_tokamax", lambda _: True)
  for check in _coming(GPU):
    assert check.run(SETTING).passed, check.name
  timed = [c for c in kernels.checks(SETTING) if c.name.endswith("tree")]
  [found] = [check.run(SETTING) for check in timed]
  assert [*found.details["ratios"]] == ["tokamax"] and found.number > 0
