"""Cuts of a text give places of its own characters, and lose no word."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax.data import segmenters

TEXTS = st.text(st.sampled_from("ab \n\t\r\u2028é🙂"), max_size=40)


@given(TEXTS, st.sampled_from(segmenters.NAMES))
def test_spans_are_in_order_and_hold_every_letter(text, name):
  spans = segmenters.spans(text, name)
  last = 0
  for start, end in spans:
    assert last <= start < end
    assert text[start:end] == text[start:end].strip()
    last = end
  kept = "".join(text[start:end] for start, end in spans)
  assert "".join(kept.split()) == "".join(text.split())


@pytest.mark.parametrize(
  "name, steps",
  [
    ("paragraphs", ["First\nof two lines.", "Second.", "Third."]),
    ("lines", ["First", "of two lines.", "Second.", "Third."]),
  ],
)
def test_blank_lines_end_paragraphs_and_line_ends_lines(name, steps):
  text = "\nFirst\nof two lines.\n\nSecond.\n \t\n\n  Third.\n\n"
  spans = segmenters.spans(text, name)
  assert [text[start:end] for start, end in spans] == steps


def test_an_unknown_cut_is_refused():
  with pytest.raises(errors.InputError, match="paragraphs, lines"):
    segmenters.spans("a", "sentences")
