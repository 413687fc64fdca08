"""Encoded data that were kept are those that would be made again."""

import dataclasses
import hashlib
import logging
import os

import numpy as np
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.rows import encoded_cache
from prm_jax.text import encoding
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.training import batches
from prm_jax.training import prm
from prm_jax.training import programs

TOKENIZER = tokenizer_lib.Bytes()


def _solutions(num=24):
  return [
    schema.Solution(
      str(k),
      f"problem {k % 5}",
      ("one step", "another", f"the last {k % 7}"),
      labels=(1.0, 1.0, float(k % 2)),
      outcome=bool(k % 2),
    )
    for k in range(num)
  ]


def _config(
  program="prm",
  *,
  read=encoding.EncodingConfig(max_tokens=64),
  length=64,
  trees=False,
  **objective,
):
  """Returns what encode_rows takes of a run's config."""
  kind = programs.KINDS[program].objective
  packing = batches.PackingConfig(4, length, share_prefixes=trees)
  return kind(**objective), packing, read


def _rows(config, cache, *, digest="d", sources=None, **more):
  return batches.encode_rows(
    *config,
    *(_solutions(), TOKENIZER, 0, sources),
    cache=cache,
    digest=digest,
    **more,
  )


def _assert_same(a, b):
  assert len(a.segments) == len(b.segments)
  for x, y in zip(a.segments, b.segments):
    for field in dataclasses.fields(x):
      mine, theirs = getattr(x, field.name), getattr(y, field.name)
      if mine is None or theirs is None:
        assert mine is theirs
        continue
      assert mine.dtype == theirs.dtype
      np.testing.assert_array_equal(mine, theirs)


PAIRS = dict(program="prm", loss="bradley_terry")
RUNS = dict(
  trees=dict(trees=True),
  chains=dict(trees=False),
  pairs=PAIRS | dict(trees=True),
  solutions=PAIRS | dict(pairs="solutions", length=128),
  outcomes=dict(program="orm"),
)


@pytest.mark.parametrize("kind", RUNS)
def test_kept_rows_are_bit_for_bit_those_that_are_made(kind, tmp_path):
  config = _config(**RUNS[kind])
  cache = encoded_cache.Cache(tmp_path)
  made, counts = _rows(config, None)
  for _ in range(2):
    rows, again = _rows(config, cache)
    _assert_same(rows, made)
    assert again == counts and list(again) == list(counts)
  assert len([*tmp_path.iterdir()]) == 1


def test_kept_sources_are_those_that_are_made(tmp_path):
  numbers = np.arange(24, dtype=np.int32) % 2
  sources = batches.Sources(("a", "b"), numbers, (1.0, 2.0))
  config = _config(trees=True)
  made, _ = _rows(config, None, sources=sources)
  for _ in range(2):
    rows, _ = _rows(config, encoded_cache.Cache(tmp_path), sources=sources)
    _assert_same(rows, made)
    np.testing.assert_array_equal(rows.sources, made.sources)
    assert rows.weights == (1.0, 2.0)


def test_what_was_kept_is_read_unless_it_is_asked_for_anew(
  tmp_path, monkeypatch
):
  encoded = []
  examples = encoding.prm_examples
  monkeypatch.setattr(
    prm.encoding,
    "prm_examples",
    lambda *args, **fields: encoded.append(1) or examples(*args, **fields),
  )
  cache = encoded_cache.Cache(tmp_path)
  for fresh, num in ((False, 1), (False, 1), (True, 2), (False, 2)):
    _rows(_config(), cache, fresh=fresh)
    assert len(encoded) == num


def test_all_that_could_change_the_rows_has_an_entry_of_its_own(tmp_path):
  cache = encoded_cache.Cache(tmp_path)
  numbers = np.arange(24, dtype=np.int32) % 2
  others = (
    dict(),
    dict(read=encoding.EncodingConfig(max_tokens=56)),
    dict(read=encoding.EncodingConfig("separator", 64)),
    dict(read=encoding.EncodingConfig(template="skywork")),
    dict(labels=encoding.LabelPolicy(after_first_error="bad")),
    dict(program="orm"),
    dict(trees=True),
    dict(trees=True, length=80),
    dict(digest="other"),
    dict(sources=batches.Sources(("a", "b"), numbers)),
  )
  for num, changes in enumerate(others, 1):
    given = {k: v for k, v in changes.items() if k in ("digest", "sources")}
    fields = {k: v for k, v in changes.items() if k not in given}
    _rows(_config(**fields), cache, **given)
    assert len([*tmp_path.iterdir()]) == num
  # Of chains the rows' length matters to no segment.
  _rows(_config(length=80), cache)
  assert len([*tmp_path.iterdir()]) == len(others)


def test_a_damaged_entry_is_made_again_and_one_line_says_so(tmp_path, caplog):
  cache = encoded_cache.Cache(tmp_path)
  made, _ = _rows(_config(), cache)
  (path,) = tmp_path.iterdir()
  content = path.read_bytes()
  for place in range(30, len(content), len(content) // 20):
    caplog.clear()
    changed = bytearray(content)
    changed[place] ^= 4
    path.write_bytes(changed)
    rows, _ = _rows(_config(), cache)
    _assert_same(rows, made)
    assert len([x for x in caplog.records if x.levelname == "WARNING"]) <= 1
  path.write_bytes(content[: len(content) // 2])
  caplog.clear()
  _rows(_config(), cache)
  (warning,) = caplog.records
  assert warning.getMessage() == f"{path}: damaged; it is made again"
  assert path.read_bytes()


def test_the_oldest_entries_make_room_and_large_ones_are_not_kept(
  tmp_path, caplog
):
  caplog.set_level(logging.INFO)
  cache = encoded_cache.Cache(tmp_path)
  paths = []
  for k in range(4):
    _rows(_config(), cache, digest=str(k))
    (path,) = {*tmp_path.iterdir()} - {*paths}
    os.utime(path, (k, k))
    paths.append(path)
  _rows(_config(), cache, digest="0")  # it is used: now it's the newest
  old = tmp_path / ".segments.host.1.tmp"
  old.write_bytes(b"half")
  os.utime(old, (0, 0))
  size = paths[0].stat().st_size
  small = encoded_cache.Cache(tmp_path, 3 * size)
  _rows(_config(), small, digest="4")
  left = {*tmp_path.iterdir()}
  assert left & {*paths} == {paths[0], paths[3]} and len(left) == 3
  assert sum(x.stat().st_size for x in left) <= 3 * size
  caplog.clear()
  tiny = encoded_cache.Cache(tmp_path, 100)
  _rows(_config(), tiny, digest="5")
  assert {*tmp_path.iterdir()} == left
  assert "encoded data isn't kept: " in caplog.text


def test_two_that_keep_the_same_at_once_leave_one_good_entry(tmp_path):
  cache = encoded_cache.Cache(tmp_path)
  rows, counts = _rows(_config(), None)
  made = rows.segments, np.zeros(len(rows.segments), np.int32), counts

  def compute():
    # The other one is done while this one encodes.
    encoded_cache.kept(cache, {}, lambda: made)
    return made

  encoded_cache.kept(cache, {}, compute)
  assert len([*tmp_path.iterdir()]) == 1

  def never():
    raise AssertionError

  segments, _, again = encoded_cache.kept(cache, {}, never)
  _assert_same(dataclasses.replace(rows, segments=segments), rows)
  assert again == counts


def test_a_folder_that_can_not_be_used_is_one_warning_and_no_cache(
  tmp_path, caplog
):
  home = dict(XDG_CACHE_HOME=str(tmp_path))
  cache = encoded_cache.opened(home)
  assert cache.folder == tmp_path / "prm_jax" / "encoded"
  assert cache.max_bytes == 4096 << 20 and not caplog.records
  small = encoded_cache.opened(home | {encoded_cache.SWITCH: "7"})
  assert small.max_bytes == 7 << 20
  assert encoded_cache.opened(home | {encoded_cache.SWITCH: "0"}) is None
  with pytest.raises(errors.InputError, match="expected how many MiB"):
    encoded_cache.opened(home | {encoded_cache.SWITCH: "much"})
  assert not caplog.records
  cache.folder.chmod(0o777)  # another user could change what is in it
  assert encoded_cache.opened(home) is None
  (warning,) = caplog.records
  assert warning.getMessage().startswith("encoded data isn't kept: ")
  caplog.clear()
  (tmp_path / "file").write_text("")
  assert (
    encoded_cache.opened(dict(XDG_CACHE_HOME=str(tmp_path / "file"))) is None
  )
  assert len(caplog.records) == 1


def test_a_format_has_the_same_arrays_as_ever():
  """If they are meant to change, raise encoded_cache.FORMAT and the digest.

  What was kept by a version before would be read otherwise.
  """
  whole = hashlib.sha256()
  for fields in (
    *RUNS.values(),
    dict(read=encoding.EncodingConfig(template="skywork")),
    dict(read=encoding.EncodingConfig("separator", 40, "truncate")),
    dict(program="sft", trees=True),
  ):
    rows, _ = _rows(_config(**fields), None)
    for segment in rows.segments:
      for name, x in sorted(vars(segment).items()):
        whole.update(name.encode())
        whole.update(b"" if x is None else x.dtype.str.encode() + x.tobytes())
  assert (encoded_cache.FORMAT, whole.hexdigest()[:16]) == (
    1,
    "c19becd082090cdc",
  )
