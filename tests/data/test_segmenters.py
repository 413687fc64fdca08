"""Cuts of a text give places of its own characters, and lose no word."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax.data import segmenters

BLANK = " \t\r\n"
TEXTS = st.text(st.sampled_from("ab \n\t\r\u2028é🙂"), max_size=40)


@given(TEXTS, st.sampled_from(segmenters.KINDS))
def test_spans_are_in_order_and_hold_every_letter(text, kind):
  spans = segmenters.spans(text, segmenters.Segmenter(kind))
  last = 0
  for start, end in spans:
    assert last <= start < end
    assert text[start:end] == text[start:end].strip(BLANK)
    last = end
  kept = "".join(text[start:end] for start, end in spans)
  without = str.maketrans("", "", BLANK)
  assert kept.translate(without) == text.translate(without)


@pytest.mark.parametrize(
  "kind, steps",
  [
    ("paragraph", ["First\nof two lines.", "Second.", "Third."]),
    ("line", ["First", "of two lines.", "Second.", "Third."]),
  ],
)
def test_blank_lines_end_paragraphs_and_line_ends_lines(kind, steps):
  text = "\nFirst\nof two lines.\n\nSecond.\n \t\n\n  Third.\n\n"
  spans = segmenters.spans(text, segmenters.Segmenter(kind))
  assert [text[start:end] for start, end in spans] == steps


def test_an_unknown_cut_is_refused():
  with pytest.raises(errors.InputError, match="paragraph, line"):
    segmenters.Segmenter("sentences")
