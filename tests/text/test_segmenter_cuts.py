"""The cuts of 200 real solutions of each kind are those that were looked at.

  PRM_JAX_DATA=... python tests/text/test_segmenter_cuts.py

writes tests/golden/segmenter_cuts.json anew: for each file and segmenter the
number of steps, and a digest of where they are.
"""

import gzip
import hashlib
import json
import os
import pathlib

import pytest

from prm_jax.text import paragraph_cuts
from prm_jax.text import segmenters
from prm_jax.text import step_cuts
from prm_jax.text import step_spans

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "segmenter_cuts.json"
NAMES = ("paragraph", "line", "sentence", "numbered", "markers")
NUM = 200


def _lines(path):
  with gzip.open(path, "rt", encoding="utf-8") as f:
    return [json.loads(line) for line in f]


def _steps(path):
  with gzip.open(path, "rt", encoding="utf-8") as f:
    return ["\n\n".join(case["steps"]) for case in json.load(f)]


TEXTS = {
  "gsm8k/test.jsonl.gz": lambda path: [x["answer"] for x in _lines(path)],
  "math500/math500.jsonl.gz": lambda path: [
    x["solution"] for x in _lines(path)
  ],
  "processbench/gsm8k.json.gz": _steps,
  "processbench/math.json.gz": _steps,
}


def _cuts(path, file):
  """Returns the number of steps by each segmenter, and a digest of the spans."""
  texts = TEXTS[file](path)[:NUM]
  assert len(texts) == NUM
  found = {}
  for name in NAMES:
    segmenter = segmenters.parse(name)
    spans = [step_spans.spans(text, segmenter) for text in texts]
    for text, places in zip(texts, spans, strict=True):
      rest = text
      for start, end in reversed(places):
        rest = rest[:start] + rest[end:]
      assert not rest.strip()
    digest = hashlib.sha256(json.dumps(spans).encode()).hexdigest()[:16]
    found[name] = dict(steps=sum(map(len, spans)), sha256=digest)
  return found


@pytest.mark.real_data
@pytest.mark.parametrize("file", TEXTS)
def test_real_solutions_are_cut_as_before(file, public_data):
  expected = json.loads(GOLDEN.read_text())[file]
  assert _cuts(public_data(file), file) == expected


@pytest.mark.real_data
def test_every_beginning_of_a_real_solution_has_its_first_cuts(public_data):
  file = "math500/math500.jsonl.gz"
  texts = TEXTS[file](public_data(file))
  texts = [text for text in texts if "[asy]" in text and "\n\n" in text][:25]
  held = 0
  for text in texts:
    cuts = paragraph_cuts.paragraphs(text).places
    held += len(step_cuts.PARAGRAPH_BREAK.findall(text)) - len(cuts)
    for k in range(len(text)):
      beginning = paragraph_cuts.paragraphs(text[:k]).places
      assert beginning == [span for span in cuts if span[1] <= k]
  assert held > 50


if __name__ == "__main__":
  folder = pathlib.Path(os.environ["PRM_JAX_DATA"])
  golden = {file: _cuts(folder / file, file) for file in TEXTS}
  GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")
