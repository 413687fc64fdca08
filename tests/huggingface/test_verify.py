"""`import --verify` says what it compared, and fails where it can't or differs.

test_verify_parity.py compares with transformers itself.
"""

import sys

import numpy as np
import pytest
import test_import_export

from prm_jax import errors
from prm_jax.cli import main
from prm_jax.huggingface import verify


def _import(tmp_path):
  theirs = test_import_export._theirs(tmp_path / "theirs")
  words = ["import", f"--from={theirs}", f"--to={tmp_path / 'ours'}"]
  return main.main([*words, "--verify"])


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without_transformers_it_ends_with_one_line_and_keeps_the_import(
  missing, tmp_path, monkeypatch, capsys
):
  for name in ("torch", "transformers"):
    present = None if name == missing else sys.modules[__name__]
    monkeypatch.setitem(sys.modules, name, present)
  assert _import(tmp_path) == 1
  said = capsys.readouterr().err
  assert said.count("\n") == 1
  assert f"{missing} isn't installed, so nothing was compared" in said
  assert "ours was imported, and is kept" in said
  assert (tmp_path / "ours" / "model.json").is_file()


def test_without_peft_an_adapter_isnt_compared(monkeypatch):
  for name in ("torch", "transformers"):
    monkeypatch.setitem(sys.modules, name, sys.modules[__name__])
  monkeypatch.setitem(sys.modules, "peft", None)
  verify._require()
  with pytest.raises(errors.InputError, match="peft isn't installed"):
    verify._require("peft")


@pytest.mark.parametrize("off", [0.0, 1e-3, 0.02, np.nan])
def test_a_difference_above_the_tolerance_is_an_error(
  off, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(verify, "_require", lambda: None)
  ours = verify._our_log_probs
  computed = []

  def remember(*arguments):
    computed[:] = ours(*arguments)
    return computed

  def others(source, base, texts):
    # The first id has no log-probability: nothing predicts it.
    assert [len(x) for x in computed] == [len(x) - 1 for x in texts]
    return [x + off * (i == 1) for i, x in enumerate(computed)]

  monkeypatch.setattr(verify, "_our_log_probs", remember)
  monkeypatch.setattr(verify, "_their_log_probs", others)
  within = off in (0.0, 1e-3)
  assert _import(tmp_path) == (0 if within else 1)
  out, err = capsys.readouterr()
  said = out if within else err
  largest = {0.0: "0", 1e-3: "0.001", 0.02: "0.02"}.get(off, "inf")
  assert f"log-probabilities differ from transformers' by {largest} at" in said
  assert ("verified: " in out) == within
  assert err.count("\n") == (0 if within else 1)
  assert (tmp_path / "ours" / "model.json").is_file()
