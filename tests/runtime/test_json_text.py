"""JSON is read within its limits, whatever the stack or the text looks like."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax.runtime import files
from prm_jax.runtime import json_text
from prm_jax.runtime import limits

TEXT = st.text(st.sampled_from('[]{}"\\\n,:a\u2028'))
JSON = st.recursive(
  TEXT | st.integers(-9, 9),
  lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
  max_leaves=40,
)


def _depth(value) -> int:
  depth, level = -1, [value]
  while level:
    depth += 1
    level = [
      x
      for outer in level
      if isinstance(outer, dict | list)
      for x in [None, *(outer.values() if isinstance(outer, dict) else outer)]
    ]
  return depth


def _refusal(text: str) -> str:
  with pytest.raises(json_text.JSONTextError) as error:
    json_text.parse(text)
  return str(error.value)


def test_the_deepest_allowed_text_is_read_and_one_level_more_is_not():
  deep = "[" * limits.NESTING + "]" * limits.NESTING
  assert _depth(json_text.parse(deep)) == limits.NESTING
  assert _refusal(f"[{deep}]").startswith("nested too deeply, more than 500")
  mixed = '{"a":[' * 251 + "]}" * 251
  assert "nested too deeply" in _refusal(mixed)
  for open_only in ("[" * 10**6, '{"a":' * 10**6, '[{"":' * 10**6):
    assert "nested too deeply" in _refusal(open_only)


def test_brackets_in_strings_and_one_after_another_are_not_nested():
  inside = {"a": "[{" * 1_000, '"[{\\': ['\\[{"' * 500] * 3}
  assert json_text.parse(json.dumps(inside)) == inside
  wide = [[[i]] for i in range(1_000)]
  assert json_text.parse(json.dumps(wide)) == wide


@given(value=JSON)
def test_nesting_is_counted_as_the_parser_does(value):
  text, depth = json.dumps(value), _depth(value)
  before = limits.NESTING
  try:
    limits.NESTING = depth
    assert json_text.parse(text) == value
    limits.NESTING = depth - 1
    if depth:
      assert "nested too deeply" in _refusal(text)
  finally:
    limits.NESTING = before


def test_the_limit_of_nesting_does_not_depend_on_the_stack():
  deep = "[" * limits.NESTING + "]" * limits.NESTING

  def further(levels: int):
    return further(levels - 1) if levels else json_text.parse(deep)

  assert _depth(further(300)) == limits.NESTING


@pytest.mark.parametrize(
  "text, message",
  [
    ("9" * 301, "a number of 301 characters"),
    ("-" + "9" * 5_000, "a number of 5,001 characters"),
    ("0." + "3" * 10**6, "a number of 1,000,002 characters"),
    ("1e400", "1e400 is beyond the largest number"),
    ("-1e999", "-1e999 is beyond the largest number"),
    ("NaN", "NaN is no number of JSON"),
    ("[-Infinity]", "-Infinity is no number of JSON"),
    ('{"a": 1, "a": 1}', '"a" occurs twice'),
    (r'"\ud800"', "a lone surrogate"),
    ("", "not JSON: Expecting value at column 1"),
  ],
)  # fmt: skip
def test_what_is_not_read_is_said_in_a_line(text, message):
  said = _refusal(text)
  assert message in said and "\n" not in said and len(said) < 200


def test_numbers_within_the_limit_are_read_exactly():
  number = -(10**299) + 1
  assert json_text.parse(str(number)) == number
  assert json_text.parse("[1e308, 5e-324]") == [1e308, 5e-324]


def test_of_another_program_what_only_python_has_is_read():
  text = r'{"a": 1, "a": ["\ud800", -Infinity, 1e400]}'
  read = json_text.parse(text, strict=False)
  assert read == {"a": ["\ud800", -math.inf, math.inf]}
  with pytest.raises(json_text.JSONTextError, match="nested too deeply"):
    json_text.parse("[" * 501, strict=False)


def test_nothing_is_written_that_could_not_be_read(tmp_path):
  deep = json.loads("[" * 501 + "]" * 501)
  with pytest.raises(errors.InputError, match="nested too deeply"):
    files.write_json(tmp_path / "a", deep)
  for _ in range(10_000):
    deep = [deep]
  with pytest.raises(errors.InputError, match="nested too deeply"):
    files.write_records(tmp_path / "a", [{"a": deep}])
  assert list(tmp_path.iterdir()) == []
