"""Units that convert into each other exactly, in one table."""

from __future__ import annotations

from fractions import Fraction

from prm_jax.grading import equality

# Of each dimension its units, and how many of the first one each of them is.
# The names are those of grading.equality; an ounce is a mass.
_TABLE: dict[str, dict[str, str]] = dict(
  length=dict(
    m="1",
    mm="1/1000",
    cm="1/100",
    km="1000",
    **{"in": "127/5000", "ft": "381/1250", "yd": "1143/1250"},
    mi="201168/125",
  ),
  mass=dict(
    g="1",
    mg="1/1000",
    kg="1000",
    lb="45359237/100000",
    oz="45359237/1600000",
  ),
  time=dict(s="1", min="60", h="3600", day="86400", week="604800"),
  # Neither is a number of days.
  calendar=dict(month="1", year="12", decade="120", century="1200"),
  volume=dict(
    l="1",
    ml="1/1000",
    gal="473176473/125000000",
    quart="473176473/500000000",
    pint="473176473/1000000000",
    cup="473176473/2000000000",
  ),
  money=dict(usd="1", cent="1/100"),
  euros=dict(eur="1"),
  pounds=dict(gbp="1"),
  yen=dict(jpy="1"),
  rupees=dict(inr="1"),
  angle=dict(deg="1"),
)
# Factors without a dimension.
_FACTORS = {
  "%": "1/100",
  "dozen": "12",
  "hundred": "100",
  "thousand": "1000",
  "million": "1000000",
  "billion": "1000000000",
  "trillion": "1000000000000",
}
_SPELLINGS = {
  name: unit
  for unit, names in dict(
    s="sec secs",
    min="mins",
    h="hr hrs",
    week="wk wks",
    year="yr yrs",
    decade="decade decades",
    century="century centuries",
    quart="quart quarts qt",
    pint="pint pints",
    cup="cup cups",
    lb="lbs",
    mi="miles",
    dozen="dozen dozens",
    hundred="hundred",
    thousand="thousand",
    million="million",
    billion="billion",
    trillion="trillion",
  ).items()
  for name in names.split()
}
# Words that prose has for something else.
_PROSE = ("in", "per", "unit", "units", "sq", "square", "cu", "cubic")
_DIMENSIONS = {
  unit: dimension for dimension, of in _TABLE.items() for unit in of
}
_SCALES = {
  unit: Fraction(scale)
  for of in (*_TABLE.values(), _FACTORS)
  for unit, scale in of.items()
}


def find(word: str, *, is_attached: bool = False) -> str | None:
  """Returns the unit that a word after a number is, None if it is none.

  Args:
    word: The word.
    is_attached: Whether no blank is before it: 5m has a unit, 5 m may have.
  """
  if word in equality.UNIT_LETTERS:
    return equality.UNIT_LETTERS[word]
  if word.lower() in _PROSE and not (word == "in" and is_attached):
    return None
  unit = _SPELLINGS.get(word.lower()) or equality.unit_of(word)
  return unit if unit in _SCALES else None


def dimension(unit: str) -> str | None:
  """Returns the dimension of a unit, None for a factor such as %."""
  return _DIMENSIONS.get(unit)


def scale(unit: str) -> Fraction:
  """Returns how many of its dimension's first unit a unit is."""
  return _SCALES[unit]


def scales(dimension: str) -> tuple[Fraction, ...]:
  """Returns the scale of each unit of a dimension."""
  return tuple(_SCALES[unit] for unit in _TABLE[dimension])
