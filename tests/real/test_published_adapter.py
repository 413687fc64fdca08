"""The adapter that is committed, on the published base that it belongs to.

`make real` runs these.
"""

import json
import re

import numpy as np
import published
import pytest

import prm_jax

pytestmark = [pytest.mark.real_weights, pytest.mark.timeout(900)]

ADAPTER = published.ROOT / "adapters/smollm2-135m-prm"


@pytest.fixture(scope="module")
def joined(real_weights, tmp_path_factory):
  """Returns the checkpoint of base and adapter."""
  base = published.folder_of(real_weights, published.SMOL)
  folder = tmp_path_factory.mktemp("joined") / "prm"
  words = ("import", f"--from={ADAPTER}", f"--base={base}", f"--to={folder}")
  published.command(*words)
  return folder


def test_a_fixed_solution_has_the_scores_that_are_published(joined):
  fixed = json.loads((ADAPTER / "fixed_solution.json").read_text())
  prm = prm_jax.load(joined, compute_dtype="float32")
  scores = prm.score(fixed["problem"], fixed["steps"]).scores
  np.testing.assert_allclose(scores, fixed["step_scores"], atol=1e-4)


def test_peft_gives_the_scores_on_transformers(real_weights, tmp_path):
  pytest.importorskip("peft")
  base = published.folder_of(real_weights, published.SMOL)
  words = ("import", f"--from={ADAPTER}", f"--base={base}", "--verify")
  done = published.command(*words, f"--to={tmp_path / 'prm'}")
  print(done.out)
  largest = re.search(r"scores differ from transformers' by (\S+)", done.out)
  assert float(largest[1]) <= 1e-4


def test_the_card_names_the_base_by_its_digest(real_weights):
  base = published.folder_of(real_weights, published.SMOL)
  digest = published.digest(base / "model.safetensors")
  assert digest in (ADAPTER / "README.md").read_text()
