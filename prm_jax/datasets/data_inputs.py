"""What a verb on data reads, and how it makes targets of it, as values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
import dataclasses
import pathlib
from typing import Literal, TYPE_CHECKING

from prm_jax import errors
from prm_jax import schema
from prm_jax.runtime import verbs

if TYPE_CHECKING:
  from prm_jax.datasets import decontamination

# encoding.NEUTRAL and AFTER_FIRST_ERROR; that module loads numpy.
Neutral = Literal["good", "bad", "ignore", "three_way"]
AfterFirstError = Literal["ignore", "bad", "keep"]
# The metadata of the file that is read, and of the sources of test sets.
FILE = dict(is_positional=True)
AGAINST = dict(metavar="FORMAT:FILE")


@dataclasses.dataclass(frozen=True)
class Source(verbs.Value):
  """A file or folder of solutions in any format.

  Args:
    path: A file or folder; - is the standard input.
    format: The format of FILE; docs/data.md lists the formats, such as jsonl
      and prm800k.
    map: Where FILE, of any other form, has the fields of a solution: problem
      and steps, and if it has them id, labels, ratings, first_error (from 0) or
      first_error_from_1, answer, outcome, source, annotator; docs/data.md has
      separator, none, rows and numbers. For other commands write
      --format='map(...)'.
    words: The rating of each word, if the ratings that `map` names are words, as
      in good=1,ok=0,bad=-1.
  """

  path: verbs.Input
  format: str = "jsonl"
  map: str | None = dataclasses.field(
    default=None, metadata=dict(metavar="problem=FIELD,steps=FIELD,..")
  )
  words: str | None = dataclasses.field(
    default=None, metadata=dict(metavar="WORD=RATING,..")
  )

  def __post_init__(self):
    super().__post_init__()
    if self.map is not None and self.format != "jsonl":
      raise errors.InputError(
        f"`map`: says what the form is; leave out `format={self.format}`"
      )
    if self.words is not None and self.map is None:
      raise errors.InputError("`words`: they are those of `map`; give it, too")

  @property
  def format_name(self) -> str:
    """The name of the format, as sources.reader takes it."""
    if self.map is None:
      return self.format
    words = ""
    if self.words is not None:
      words = ",words=" + self.words.replace("=", ":").replace(",", ";")
    return f"map({self.map}{words})"

  @property
  def stored_at(self) -> pathlib.Path:
    """Where the file is, in other formats the folder."""
    from prm_jax.records import sources

    return sources.stored_at(self.path)

  def read(self) -> tuple[list[schema.Solution], Counter[str]]:
    """Returns the solutions, and what the reader left out, by reason."""
    from prm_jax.records import sources

    return sources.read(self.format_name, self.path)

  def stream(self, left_out: Counter[str]) -> Iterator[schema.Solution]:
    """Returns the solutions one by one.

    Args:
      left_out: Counts what the reader leaves out, by reason.
    """
    from prm_jax.records import sources

    return sources.stream(self.format_name, self.path, left_out)


def index(against: Sequence[str]) -> decontamination.Index | None:
  """Returns the problems of test sets; None if there is no test set.

  Args:
    against: The sources, each "FORMAT:FILE".
  """
  from prm_jax.datasets import decontamination
  from prm_jax.records import sources

  if not against:
    return None
  return decontamination.index(sources.read_sources(against))
