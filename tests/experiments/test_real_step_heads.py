"""Laws of what a head reads of a base that isn't trained."""

import pathlib

import numpy as np
import pytest

from prm_jax import schema

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"


@pytest.fixture(autouse=True)
def _on_path(monkeypatch):
  monkeypatch.syspath_prepend(str(EXPERIMENTS))


def test_a_step_is_read_at_its_own_tokens():
  import real_step_heads

  # "a", " 1", the blank lines, and a token that begins in them: "\nb" and ".".
  spans = [(0, 1), (1, 3), (3, 6), (6, 8), (8, 9)]
  found = real_step_heads.tokens_of_steps(spans, ("a 1", "", "b."))
  assert found == [[0, 1], [1], [3, 4]]


def test_what_was_read_comes_back_and_is_not_read_again(tmp_path):
  import real_step_heads

  rows = [np.arange(6.0).reshape(2, 3), np.ones((1, 3))]
  made = dict.fromkeys(("last", "mean", "expected"), rows)
  path = tmp_path / "base-set.npz"
  first = real_step_heads.kept(path, lambda: made)
  again = real_step_heads.kept(path, lambda: pytest.fail("read again"))
  for found in (first, again):
    for name in made:
      for a, b in zip(found[name], rows, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_head_finds_what_tells_right_from_wrong():
  import real_step_heads

  random = np.random.default_rng(0)
  solutions, rows = [], []
  for i in range(60):
    labels = (random.random(4) < 0.5).astype(float)
    noise = random.normal(size=(4, 2))
    rows.append(np.stack([labels + 0.1 * noise[:, 0], noise[:, 1]], axis=1))
    solutions.append(
      schema.Solution(
        f"{i}", f"p{i}", ("a",) * 4, labels=tuple(labels.tolist())
      )
    )
  head, penalty = real_step_heads.fit(rows, solutions)
  assert penalty in real_step_heads.PENALTIES
  right = np.concatenate([s.labels for s in solutions]) > 0.5
  scores = np.concatenate([head(x) for x in rows])
  assert scores[right].min() > scores[~right].max()
