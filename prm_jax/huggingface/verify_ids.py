"""Compares the ids of a folder's tokenizer with those of transformers.

transformers may make the tokenizer by its class and not as tokenizer.json says,
for instance with a normaliser of its own. Ordinary English doesn't show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import pathlib
import unicodedata

from prm_jax import errors
from prm_jax.text import tokenizer as tokenizer_lib

_Encode = Callable[[str], list[int]]

# None holds the name of a control token, which transformers reads as the token.
TEXTS = (
  # Decomposed, then characters that a normal form replaces or reorders.
  *("cafe\u0301", "Poincare\u0301 and Ga\u030arding", "x\u0304 = 4", "n\u0303"),
  *("e\u0301\u0327 a\u0323\u0302", "\u1112\u1161\u11ab", "\u0915\u093c"),
  *("\u304b\u3099", "\u0627\u0653", "\u212b \u2126 \u212a", "\u0958", "\u2260"),
  "=\u0338",
  *("ﬁnd ﬀ", "x² + y₃", "½ of 1⁄2", "ＡＢ１２", "ⅣⅤ", "𝒳 ∈ ℝ", "①", "…"),
  # White space, and what isn't seen.
  *(
    " a",
    "  a",
    "a  b   c    d",
    "a\tb",
    "a\r\nb",
    "a\rb",
    "a\n\n\nb",
    "a \n b",
  ),
  *(
    "\n",
    "a\u00a0b",
    "a\u2009b",
    "a\u3000b",
    "a\u2028b",
    "a\u200bb",
    "\ufeffa",
  ),
  *("a\u200db", "a\u00adb", "\u202eabc"),
  # Letters, digits and signs that are cut at different places.
  *("1234567890", "3.14159", "1,000", "١٢٣", "DON'T I'LL", "it's", "it’s"),
  *("İstanbul ı", "ẞ ß", "Ω ω ς", "数学", "гипотеза", "שלום", "ไทย"),
  *(
    "👩‍👩‍👧 🇩🇪 👍🏽",
    "\\frac{1}{2}",
    "$$x^2$$",
    "a_b__c",
    "→∀∃",
    "```py\nx=1\n```",
  ),
)


@dataclasses.dataclass(frozen=True)
class Ids:
  """The texts of which transformers has other ids.

  Args:
    by: The name of transformers' class.
    num_texts: How many texts were tried.
    other: Those whose ids differ.
    form: The Unicode normal form that explains all of them; None if none does.
    normalises_there: Whether transformers brings texts into it, and not
      tokenizer.json, or the other way round.
    failure: Why transformers has no ids; "" if it has.
  """

  by: str
  num_texts: int
  other: tuple[str, ...]
  form: str | None = None
  normalises_there: bool = True
  failure: str = ""

  @property
  def agrees(self) -> bool:
    return not self.other and not self.failure

  def __str__(self) -> str:
    if self.failure:
      return f"ids weren't compared: {self.failure}"
    if not self.other:
      return f"the ids of {self.num_texts} texts are those of its {self.by}"
    shortest = min(self.other, key=len)
    points = " ".join(f"U+{ord(x):04X}" for x in shortest)
    said = (
      f"{len(self.other)} of {self.num_texts} texts have other ids than"
      f" transformers' {self.by} gives, such as {points}: "
    )
    if self.form is None:
      return said + "it isn't made as tokenizer.json says; compare the two"
    if self.normalises_there:
      return said + (
        f"{self.by} brings texts into {self.form}, tokenizer.json doesn't; for"
        f' its ids set "normalizer": {{"type": "{self.form}"}} there and import'
        " again"
      )
    return (
      said + f"tokenizer.json brings texts into {self.form}, {self.by} doesn't"
    )


def compare(
  folder: pathlib.Path, tokenizer: tokenizer_lib.Tokenizer, texts: Sequence[str]
) -> Ids | None:
  """Returns of which texts transformers has other ids.

  Args:
    folder: The Hugging Face folder with the tokenizer's files.
    tokenizer: What was imported from it.
    texts: Ordinary texts, which are tried beside TEXTS.

  Returns:
    The texts; None if the folder has no tokenizer's file, as of bytes.
  """
  if isinstance(tokenizer, tokenizer_lib.Bytes):
    return None
  ours: dict[str, list[int]] = {}
  for text in (*texts, *TEXTS):
    try:
      ours[text] = list(tokenizer.encode(text))
    except errors.InputError:
      continue  # has a character without a token, which we refuse
  try:
    theirs, by = _theirs(folder)
    other = tuple(text for text, ids in ours.items() if theirs(text) != ids)
    form, there = _normal_form(other, ours, tokenizer, theirs)
  except Exception as e:  # whatever is in such a folder
    reason = (str(e).strip() or type(e).__name__).splitlines()[0]
    failure = f"transformers can't use {folder}'s tokenizer: {reason[:200]}"
    return Ids("", 0, (), failure=failure)
  return Ids(by, len(ours), other, form, there)


def _normal_form(
  other: Sequence[str],
  ours: dict[str, list[int]],
  tokenizer: tokenizer_lib.Tokenizer,
  theirs: _Encode,
) -> tuple[str | None, bool]:
  """Returns the form that explains the differences, and if it is theirs."""
  for form in ("NFC", "NFKC", "NFD", "NFKD"):
    normal = {text: unicodedata.normalize(form, text) for text in other}
    if other and all(
      list(tokenizer.encode(normal[x])) == theirs(x) for x in other
    ):
      return form, True
    if other and all(theirs(normal[x]) == ours[x] for x in other):
      return form, False
  return None, True


def _theirs(folder: pathlib.Path) -> tuple[_Encode, str]:
  """Returns how transformers encodes a text, and the name of its class."""
  import transformers

  transformers.logging.set_verbosity_error()
  tokenizer = transformers.AutoTokenizer.from_pretrained(
    str(folder), trust_remote_code=False, local_files_only=True
  )

  def encode(text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])

  return encode, type(tokenizer).__name__
