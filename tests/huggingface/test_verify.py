"""`import --verify` says what it compared, and fails where it can't or differs.

test_verify_parity.py compares with transformers itself.
"""

import json
import sys
import unicodedata

import numpy as np
import pytest
import test_import_export
import tokenizers

from prm_jax import errors
from prm_jax.cli import main
from prm_jax.huggingface import verify
from prm_jax.huggingface import verify_ids
from prm_jax.text import tokenizer as tokenizer_lib


def _same(folder):
  """Returns what reads tokenizer.json as it is, as transformers may."""
  whole = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

  def encode(text):
    return whole.encode(text, add_special_tokens=False).ids

  return encode, "Qwen2Tokenizer"


def _with_form(form):
  """Returns what brings texts into a form first, as Qwen2Tokenizer does."""

  def theirs(folder):
    encode, name = _same(folder)
    return lambda x: encode(unicodedata.normalize(form, x)), name

  return theirs


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
  monkeypatch.setattr(verify_ids, "_theirs", _same)
  within = off in (0.0, 1e-3)
  assert _import(tmp_path) == (0 if within else 1)
  out, err = capsys.readouterr()
  said = out if within else err
  largest = {0.0: "0", 1e-3: "0.001", 0.02: "0.02"}.get(off, "inf")
  assert f"log-probabilities differ from transformers' by {largest} at" in said
  assert ("verified: " in out) == within
  assert err.count("\n") == (0 if within else 1)
  assert (tmp_path / "ours" / "model.json").is_file()


def _ids_compared(tmp_path, monkeypatch, theirs, normalizer=None):
  folder = tmp_path / "theirs"
  folder.mkdir()
  spec = json.loads(test_import_export.recipes.json_of("qwen"))
  spec["normalizer"] = normalizer
  (folder / "tokenizer.json").write_text(json.dumps(spec))
  monkeypatch.setattr(verify_ids, "_theirs", theirs)
  tokenizer = tokenizer_lib.from_folder(folder)
  return verify_ids.compare(folder, tokenizer, ["a problem"])


@pytest.mark.parametrize("form", ["NFC", "NFKC", "NFD"])
def test_a_normal_form_on_one_side_is_named_with_a_text_by_its_code_points(
  form, tmp_path, monkeypatch
):
  ids = _ids_compared(tmp_path, monkeypatch, _with_form(form))
  decomposed = "cafe\u0301"
  assert (decomposed in ids.other) == (form != "NFD")
  assert (ids.form, ids.normalises_there) == (form, True)
  assert f'set "normalizer": {{"type": "{form}"}} there' in str(ids)
  shortest = min(ids.other, key=len)
  points = [f"U+{ord(x):04X}" for x in shortest]
  assert " ".join(points) + ": Qwen2Tokenizer brings" in str(ids)


def test_a_tokenizers_own_normal_form_is_seen_and_told_apart(
  tmp_path, monkeypatch
):
  ids = _ids_compared(tmp_path, monkeypatch, _same, dict(type="NFC"))
  assert ids.agrees
  assert str(ids).startswith(f"the ids of {ids.num_texts} texts are those of")

  def plainly(folder):
    spec = json.loads((folder / "tokenizer.json").read_text())
    whole = tokenizers.Tokenizer.from_str(
      json.dumps(spec | dict(normalizer=None))
    )
    return lambda x: whole.encode(x, add_special_tokens=False).ids, "Plain"

  (tmp_path / "other").mkdir()
  other = _ids_compared(
    tmp_path / "other", monkeypatch, plainly, dict(type="NFC")
  )
  assert (other.form, other.normalises_there) == ("NFC", False)
  assert "tokenizer.json brings texts into NFC, Plain doesn't" in str(other)


def test_ids_that_no_normal_form_explains_are_said_to_differ(
  tmp_path, monkeypatch
):
  ids = _ids_compared(tmp_path, monkeypatch, lambda _: (lambda x: [], "Other"))
  assert len(ids.other) == ids.num_texts and ids.form is None
  assert "it isn't made as tokenizer.json says" in str(ids)


def test_a_tokenizer_that_transformers_cant_use_is_named(tmp_path, monkeypatch):
  def theirs(folder):
    raise ValueError("no such class\nTraceback")

  ids = _ids_compared(tmp_path, monkeypatch, theirs)
  assert not ids.agrees
  assert str(ids).startswith("ids weren't compared: transformers can't use")
  assert str(ids).endswith("tokenizer: no such class")


def test_other_ids_are_a_warning_and_the_import_is_verified(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(verify, "_require", lambda: None)
  ours = verify._our_log_probs
  computed = []

  def remember(*x):
    return computed.extend(ours(*x)) or computed

  monkeypatch.setattr(verify, "_our_log_probs", remember)
  monkeypatch.setattr(verify, "_their_log_probs", lambda *_: computed)
  monkeypatch.setattr(verify_ids, "_theirs", _with_form("NFC"))
  assert _import(tmp_path) == 0
  out, err = capsys.readouterr()
  assert "verified: " in out
  assert err.count("\n") == 1
  assert err.startswith("warning: verify: ") and "into NFC" in err


def test_no_text_holds_what_only_one_side_reads_as_a_token():
  assert len(set(verify_ids.TEXTS)) == len(verify_ids.TEXTS)
  assert not any("<" in text or "[" in text for text in verify_ids.TEXTS)
  for form in ("NFC", "NFKC"):
    assert any(unicodedata.normalize(form, x) != x for x in verify_ids.TEXTS)
