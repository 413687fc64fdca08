"""What renderings of marked conversations tell of a chat template."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
import dataclasses
import itertools
from typing import NamedTuple

from prm_jax.huggingface import trial_conversations
from prm_jax.text import conversation_templates

Conversation = trial_conversations.Conversation


class UnlikeError(Exception):
  """Why a chat template isn't of a form that data can have."""


class Seen(NamedTuple):
  """Where a text between two slots was seen.

  Args:
    piece: The text.
    conversation: The conversation.
    whole: What is written for it.
    begin: Where the text begins in it, in characters.
    message: The index of the message after it; the number of messages at the
      end.
  """

  piece: str
  conversation: Conversation
  whole: str
  begin: int
  message: int


@dataclasses.dataclass
class Notes:
  """What was seen of a template.

  Args:
    between: What is between two slots, by their names.
    slots: Where the texts of slots are, by name.
    left_out: The names of the slots that aren't written.
    forms: How texts are written, by name.
  """

  between: dict[tuple[str, str], list[Seen]]
  slots: dict[str, list[Seen]]
  left_out: set[str]
  forms: dict[str, set[str]]

  def short(self, places: Sequence[str]) -> Notes | None:
    """Returns the notes with these places in names; None if they conflict."""

    def short(name: str) -> str:
      kind, *stands = name.split(":")
      return ":".join([kind, *(x for x in stands if x in places)])

    notes = Notes(
      defaultdict(list),
      defaultdict(list),
      {short(x) for x in self.left_out},
      defaultdict(set),
    )
    for (before, after), seen in self.between.items():
      notes.between[short(before), short(after)] += seen
    for name, seen in self.slots.items():
      notes.slots[short(name)] += seen
    for name, forms in self.forms.items():
      notes.forms[short(name)] |= forms
    one_each = all(
      len({x.piece for x in seen}) == 1 for seen in notes.between.values()
    )
    one_form = all(len(forms) == 1 for forms in notes.forms.values())
    is_plain = not notes.slots.keys() & notes.left_out
    return notes if one_each and one_form and is_plain else None


def look(
  whole: conversation_templates.ConversationTemplate,
  conversation: Conversation,
  text: str,
  notes: Notes,
) -> None:
  """Notes where the slots of a conversation are written, and what is between.

  A conversation tells nothing of what is between if a text of it is left out, is
  written twice or in another order.
  """
  slots = list(conversation_templates.slots(whole, *conversation))
  found = [(x, text.find(x.text)) for x in slots if x.text in text]
  starts = [start for _, start in found]
  if any(text.count(slot.text) > 1 for slot, _ in found):
    return
  if starts != sorted(starts):
    # A system turn that is written elsewhere isn't written where it stands.
    notes.left_out |= {x.name for x in slots if x.kind == "system"}
    return
  missing = [x for x in slots if x.text not in text]
  notes.left_out |= {x.name for x in missing}
  if any(x.kind not in conversation_templates.OPTIONAL for x in missing):
    return
  before, at = conversation_templates.START, 0
  for slot, start in found:
    own = Seen(slot.text, conversation, text, start, slot.message)
    notes.slots[slot.name].append(own)
    seen = Seen(text[at:start], conversation, text, at, slot.message)
    notes.between[before, slot.name].append(seen)
    before, at = slot.name, start + len(slot.text)
  seen = Seen(text[at:], conversation, text, at, len(conversation.messages))
  notes.between[before, conversation_templates.END].append(seen)


def places_that_matter(notes: Notes) -> tuple[tuple[str, ...], Notes]:
  """Returns the fewest places that tell apart what is written, and the notes."""
  known = conversation_templates.PLACES
  if not any(x.startswith("assistant") for x in notes.slots):
    raise UnlikeError("writes no conversation of a user and an assistant")
  for num in range(len(known) + 1):
    for places in itertools.combinations(known, num):
      short = notes.short(places)
      if short is not None:
        return places, short
  raise UnlikeError(
    "writes a message in ways that depend on more than what stands beside it"
  )
