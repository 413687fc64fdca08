"""How a published policy is prompted, and how its text is read, as data.

A template says what is written around a problem, what ends a solution, and how
the policy's text is cut into steps. It is a list of parts, which is saved with
the checkpoint; the kinds of parts are those of data/templates.py:

  problem   the text of the problem
  text      these letters
  control   the id of a control or added token; no text can yield it
  cut       the texts on both sides are encoded separately

Texts without a control or cut between them are encoded as one. A solution is
encoded on its own, after the opening: a policy continues from ids, so the ids
before its own never depend on what it writes.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

from prm_jax import errors
from prm_jax.data import segmenters
from prm_jax.data import templates

KINDS = ("problem", "text", "control", "cut")


@dataclasses.dataclass(frozen=True)
class PolicyTemplate:
  """What is written around a problem, what ends a solution, and its steps.

  Args:
    name: The name of the template.
    opening: The parts before a solution; one of them is the problem.
    ends: The names of the tokens that end a solution. A policy is trained to
      write the first.
    separator: What is written after each step of a solution whose whole text
      isn't known, unless it is the last of a finished one.
    segmenter: How the policy's text is cut into steps.
    strips: Whether white space around the problem is left out, as some chat
      templates do.
    thinking: The names of the tokens that open and close a model's reasoning;
      () if it has none. In a solution's text they are written by their names,
      and no step holds them.
    stop: Texts that end a solution too, such as the opening of the next problem
      after examples. A solution's text ends before them.
  """

  name: str
  opening: tuple[templates.TemplatePart, ...]
  ends: tuple[str, ...]
  separator: str = "\n\n"
  segmenter: segmenters.Segmenter = segmenters.PARAGRAPH
  strips: bool = False
  thinking: tuple[str, ...] = ()
  stop: tuple[str, ...] = ()

  def __post_init__(self):
    kinds = [kind for kind, _ in self.opening]
    if unknown := {*kinds} - {*KINDS}:
      raise errors.InputError(
        f"template {self.name!r}: opening has {', '.join(sorted(unknown))};"
        f" expected {', '.join(KINDS)}"
      )
    if kinds.count("problem") != 1:
      raise errors.InputError(
        f"template {self.name!r}: opening needs one problem"
      )
    if not self.ends:
      raise errors.InputError(
        f"template {self.name!r}: no token ends a solution; name one"
      )
    if len(self.thinking) not in (0, 2):
      raise errors.InputError(
        f"template {self.name!r}: thinking={self.thinking}: expected the names"
        " of two tokens, or none"
      )
    if not self.separator or not all(self.stop):
      raise errors.InputError(
        f"template {self.name!r}: a separator or stop is empty; give it a"
        " character"
      )


def from_record(record: Mapping[str, Any]) -> PolicyTemplate:
  """Returns the template that JSON holds; raises TypeError or ValueError."""
  fields = dict(record)
  fields["opening"] = tuple((str(k), str(x)) for k, x in record["opening"])
  for name in ("ends", "thinking", "stop"):
    if name in fields:
      fields[name] = tuple(str(x) for x in fields[name])
  if "segmenter" in fields:
    fields["segmenter"] = segmenters.from_record(fields["segmenter"])
  return PolicyTemplate(**fields)
