"""From a folder's chat template to how its model reads conversations, as data.

The program is rendered with small conversations in which every text is a mark
that no template holds. What it writes between two marks is kept
(data/conversation_templates.py). Then it is rendered with other conversations,
hostile texts among them, and refused unless the data write the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
import dataclasses
import itertools
import json
import pathlib
from typing import Any, NamedTuple

from prm_jax import errors
from prm_jax import schema
from prm_jax.data import conversation_templates
from prm_jax.data import templates
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.huggingface import chat_templates
from prm_jax.huggingface import token_names
from prm_jax.huggingface import trial_conversations

Template = conversation_templates.ConversationTemplate
Message = schema.Message
Conversation = trial_conversations.Conversation

# The kinds of slots that are of a turn.
_OF_TURN = frozenset(
  (
    *("thinking", "assistant", "remark", "call", "arguments"),
    *("key", "value", "call_id"),
  )
)
# Those whose texts anybody may have written.
_FREE = ("system", "user", "thinking", "assistant", "remark", "result")
# Renderings in one process, which may write so many characters.
_AT_A_TIME = 500
# The texts in a chat template's code; published ones have about a hundred.
_MOST_WORDS = 500
_NUM_TRIALS = 80
_PADDED = '\n \n{}" \n\n'
# Conversations that show where tools are, and whether thoughts are taken out.
_TOOLS = [
  trial_conversations.of_marks("UAUA", tools=True, system=True),
  trial_conversations.of_marks("UAUA", tools=True),
]
_BLOCKS = trial_conversations.with_blocks(*conversation_templates.THINK)


class Learned(NamedTuple):
  """What was learned of a chat template.

  Args:
    template: How it writes conversations, or None.
    reason: Why there is none, for messages.
  """

  template: Template | None
  reason: str = ""


class _UnlikeError(Exception):
  """Why a chat template isn't of a form that data can have."""


def of_folder(
  folder: pathlib.Path,
  tokenizer: tokenizer_lib.Tokenizer,
  end: str,
  thinking: bool | None = None,
) -> Learned:
  """Returns how a folder's chat template writes conversations.

  Args:
    folder: The Hugging Face folder; it has a chat template.
    tokenizer: Its tokenizer.
    end: The name of the token that ends a turn.
    thinking: The template's `enable_thinking`; None leaves it undefined.
  """
  text, special = chat_templates.source(folder), token_names.special(folder)
  assert text is not None
  chat = chat_templates.Chat(folder, text, special, None, thinking)
  return learn(chat, tokenizer, end)


def learn(
  chat: chat_templates.Chat, tokenizer: tokenizer_lib.Tokenizer, end: str
) -> Learned:
  """Returns how a chat template writes conversations.

  Args:
    chat: The chat template.
    tokenizer: The tokenizer of its folder.
    end: The name of the token that ends a turn.
  """
  names = token_names.controls(chat.folder, tokenizer)
  marked = trial_conversations.marked()
  of_texts = [x for x in marked if not any(y.calls for y in x.messages)]
  reason = ""
  try:
    way, words = _how_asked(chat)
    probe = _Probe(chat, names, end, way, _tried(words))
    probe.ask_all()
    # A template whose calls data can't have may still write texts as data do.
    for conversations in (marked, of_texts):
      try:
        found = probe.checked(probe.template(conversations))
        _check_ids(chat, found, tokenizer, names)
        return Learned(found)
      except _UnlikeError as e:
        reason = reason or str(e)
  except _UnlikeError as e:
    reason = str(e)
  except errors.InputError as e:  # as one that can't be rendered
    return Learned(None, str(e).removeprefix(f"{chat.folder}: "))
  return Learned(None, f"its chat template {reason}")


class _Way(NamedTuple):
  """How a template wants its variables.

  Args:
    empty: The content of a turn without a text.
    as_text: Whether arguments are given as JSON text.
    arguments: How it writes arguments; see conversation_templates.
  """

  empty: str | None = ""
  as_text: bool = False
  arguments: str = "whole"


def _how_asked(chat: chat_templates.Chat) -> tuple[_Way, list[str]]:
  """Returns how a template writes a tool call, and the texts in its code.

  If it writes none, the way is the first.
  """
  conversation = trial_conversations.of_marks("UCTA")
  call = conversation.messages[1].calls[0]
  ((key, value),) = call.arguments.items()
  ways = [_Way(x, y) for y in (False, True) for x in ("", None)]
  ran = chat.run(*(_variables(chat, conversation, x) for x in ways))
  found = []
  for way, reply in zip(ways, ran["replies"], strict=True):
    written = reply.get("text", "")
    if call.name in written and _arguments(call) in written:
      return way, ran["texts"]
    if 0 < written.find(call.name) < written.find(key) < written.find(value):
      found.append(way._replace(arguments="each"))
  return [*found, _Way()][0], ran["texts"]


class _Tried(NamedTuple):
  """A text that a template may change, as it holds a word of its code.

  Args:
    word: The word.
    other: A further word, or "".
    text: The text.
  """

  word: str
  other: str
  text: str


def _tried(words: Sequence[str]) -> list[_Tried]:
  """Returns texts that hold the words of a template's code: within, first, last."""
  words = list(dict.fromkeys((*words, *conversation_templates.THINK)))
  words = [x for x in words if x.strip()]
  if len(words) > _MOST_WORDS:
    raise _UnlikeError(
      f"has {len(words):,} texts in its code; expected {_MOST_WORDS:,} at most"
    )
  tried = [
    _Tried(x, "", text) for x in words for text in (f"a{x}b", f"{x}b", f"a{x}")
  ]
  blocks = [(x, f"</{x[1:]}") for x in words if x[:1] == "<"]
  return [*tried, *(_Tried(x, y, f"{x}a{y}") for x, y in blocks if y in words)]


def _arguments(call: schema.Call) -> str:
  return conversation_templates.json_of(dict(call.arguments))


def _variables(
  chat: chat_templates.Chat,
  conversation: Conversation,
  way: _Way,
  *,
  is_begun: bool = False,
) -> dict[str, Any]:
  """Returns the variables of a conversation, as transformers gives them."""
  switch = {} if chat.thinking is None else dict(enable_thinking=chat.thinking)
  return dict(
    **chat.special,
    **switch,
    messages=[_record(x, way) for x in conversation.messages],
    tools=list(conversation.tools) or None,
    documents=None,
    add_generation_prompt=is_begun,
  )


def _record(message: Message, way: _Way) -> dict[str, Any]:
  record: dict[str, Any] = dict(role=message.role, content=message.text)
  if message.role == "assistant" and not message.text:
    record["content"] = way.empty
  if message.thinking is not None:
    record["reasoning_content"] = message.thinking
  if message.answers is not None:
    record["tool_call_id"] = message.answers
  if message.calls:
    record["tool_calls"] = [
      dict(
        type="function",
        id=x.id,
        function=dict(
          name=x.name,
          arguments=_arguments(x) if way.as_text else dict(x.arguments),
        ),
      )
      for x in message.calls
    ]
  return record


# --- Learning ----------------------------------------------------------------


class _Seen(NamedTuple):
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
class _Notes:
  """What was seen of a template.

  Args:
    between: What is between two slots, by their names.
    slots: Where the texts of slots are, by name.
    left_out: The names of the slots that aren't written.
    forms: How texts are written, by name.
  """

  between: dict[tuple[str, str], list[_Seen]]
  slots: dict[str, list[_Seen]]
  left_out: set[str]
  forms: dict[str, set[str]]

  def short(self, places: Sequence[str]) -> _Notes | None:
    """Returns the notes with these places in names; None if they conflict."""

    def short(name: str) -> str:
      kind, *stands = name.split(":")
      return ":".join([kind, *(x for x in stands if x in places)])

    notes = _Notes(
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


@dataclasses.dataclass(frozen=True)
class _Probe:
  """A chat template, and how it is asked.

  Args:
    chat: The chat template.
    names: The names of the control tokens.
    end: The name of the token that ends a turn.
    way: How its variables are given.
    tried: Texts that it may change.
    known: What it has written, by the JSON of the variables.
  """

  chat: chat_templates.Chat
  names: Sequence[str]
  end: str
  way: _Way
  tried: Sequence[_Tried]
  known: dict[str, str | None] = dataclasses.field(default_factory=dict)

  def texts(
    self, conversations: Sequence[Conversation], *, is_begun: bool = False
  ) -> list[str | None]:
    """Returns what is written for conversations; None is an error.

    Args:
      conversations: The conversations.
      is_begun: Whether the beginning of the next turn follows.
    """
    return self._ask([(x, is_begun) for x in conversations])

  def _ask(
    self, asked: Sequence[tuple[Conversation, bool]]
  ) -> list[str | None]:
    """Returns what is written; each is rendered once."""
    variables = [
      _variables(self.chat, x, self.way, is_begun=is_begun)
      for x, is_begun in asked
    ]
    keys = [json.dumps(x) for x in variables]
    new = [
      x for x in dict(zip(keys, variables)).items() if x[0] not in self.known
    ]
    for start in range(0, len(new), _AT_A_TIME):
      some = new[start : start + _AT_A_TIME]
      replies = self.chat.render(*(x for _, x in some))
      texts = [reply.get("text") for reply in replies]
      self.known.update(zip([key for key, _ in some], texts, strict=True))
    return [self.known[key] for key in keys]

  def ask_all(self) -> None:
    """Renders most of what will be asked, in few processes."""
    marked = trial_conversations.marked()
    begun = [
      x._replace(messages=x.messages[:i])
      for x in marked
      for i, message in enumerate(x.messages)
      if message.role == "assistant"
    ]
    trials = trial_conversations.trials(_NUM_TRIALS)
    around = (x for _, _, text in self.tried for x in _around(_FREE, text))
    asked = [*marked, *_TOOLS, *_BLOCKS, *trials, *around]
    self._ask([*((x, False) for x in asked), *((x, True) for x in begun)])

  def template(self, conversations: Sequence[Conversation]) -> Template:
    """Returns the template, without what it refuses, as conversations show it."""
    whole = self._how_tools_are()
    notes = _Notes(defaultdict(list), defaultdict(list), set(), {})
    texts = self.texts(conversations)
    for conversation, text in zip(conversations, texts, strict=True):
      if text is not None:
        _look(whole, conversation, text, notes)
    notes.forms = self._forms(notes)
    places, short = _places_that_matter(notes)
    forms = {name: form for name, (form,) in short.forms.items()}
    known = dataclasses.replace(
      whole,
      between=tuple(
        conversation_templates.Between(*pair, parts)
        for pair, parts in self._parts(short).items()
      ),
      forms=tuple((x, y) for x, y in forms.items() if y != "as_it_is"),
      places=places,
      left_out=tuple(sorted(short.left_out)),
    )
    return self._with_blocks(known)

  def _how_tools_are(self) -> Template:
    """Returns a template that says how tools are written, and where."""
    whole = Template(
      (),
      places=conversation_templates.PLACES,
      arguments=self.way.arguments,
    )
    asked, texts = _TOOLS[0], self.texts(_TOOLS)
    for form, write in conversation_templates.TOOL_FORMS.items():
      first, second = (write(tool) for tool in asked.tools)
      for text in texts:
        if text is None or not text.count(first) == text.count(second) == 1:
          continue
        system, user = (text.find(x.text) for x in asked.messages[:2])
        at = "last" if text.find(first) > user >= 0 else "first"
        at = "start" if text.find(first) < system else at
        return dataclasses.replace(whole, tool_form=form, tools_at=at)
    return whole

  def _parts(
    self, notes: _Notes
  ) -> dict[tuple[str, str], tuple[templates.TemplatePart, ...]]:
    """Returns what is between slots as parts, with the marks of turns."""
    parts = {}
    begun = self._begun(notes)
    for pair, seen in notes.between.items():
      before, after = (x.partition(":")[0] for x in pair)
      piece = seen[0].piece
      cut: list[templates.TemplatePart]
      if after in _OF_TURN and before not in _OF_TURN:
        at = begun[pair]
        cut = chat_templates.cut(piece[:at], self.names)
        cut += [("step", ""), *chat_templates.cut(piece[at:], self.names)]
      else:
        cut = chat_templates.cut(piece, self.names)
      if before in _OF_TURN and after not in _OF_TURN:
        end = ("control", self.end)
        if end not in cut:
          raise _UnlikeError(f"doesn't end every turn with {self.end!r}")
        cut.insert(cut.index(end) + 1, templates.READ)
      parts[pair] = tuple(cut)
    return parts

  def _begun(self, notes: _Notes) -> dict[tuple[str, str], int]:
    """Returns where a turn's own text begins between two slots, in characters.

    It begins after what the template writes for a model to go on from.
    """
    firsts = {
      pair: seen[0]
      for pair, seen in notes.between.items()
      if pair[1].partition(":")[0] in _OF_TURN
      and pair[0].partition(":")[0] not in _OF_TURN
    }
    prompts = [
      x.conversation._replace(messages=x.conversation.messages[: x.message])
      for x in firsts.values()
    ]
    begun = {}
    written = self.texts(prompts, is_begun=True)
    for (pair, seen), text in zip(firsts.items(), written, strict=True):
      length = len(text or "") - seen.begin
      is_prompt = (text or "").endswith(seen.piece[: max(length, 0)])
      fits = 0 <= length <= len(seen.piece) and is_prompt
      begun[pair] = length if fits else len(seen.piece)
    return begun

  def _forms(self, notes: _Notes) -> dict[str, set[str]]:
    """Returns how texts with white space are written, by the slots' names."""
    firsts = {
      name: seen[0]
      for name, seen in notes.slots.items()
      if name.partition(":")[0] in _FREE
    }
    padded = [
      trial_conversations.with_text(x.conversation, x.piece, _PADDED)
      for x in firsts.values()
    ]
    found: dict[str, set[str]] = {}
    written = zip(firsts.items(), self.texts(padded), strict=True)
    for (name, seen), text in written:
      before = seen.whole[: seen.begin]
      after = seen.whole[seen.begin + len(seen.piece) :]
      forms = [
        form
        for form, write in conversation_templates.FORMS.items()
        if text == f"{before}{write(_PADDED.format(seen.piece))}{after}"
      ]
      if not forms:
        raise _UnlikeError(f"changes {conversation_templates.named(name)}")
      found[name] = {*forms[:1]}
    return found

  def _with_blocks(self, known: Template) -> Template:
    """Returns a template that says whether thoughts are taken out of texts."""
    texts = self.texts(_BLOCKS)
    split = dataclasses.replace(known, splits_thinking=True)
    if None not in texts and texts == [_data(split, x) for x in _BLOCKS]:
      plain = [_data(known, x) for x in _BLOCKS]
      return known if texts == plain else split
    return known

  # --- Checks ---

  def checked(self, known: Template) -> Template:
    """Returns a template that writes other conversations as it should."""
    try:
      self.check(known)
    except _UnlikeError:
      if known.arguments != "each":
        raise
      known = dataclasses.replace(known, arguments="each_as_text")
      self.check(known)
    return dataclasses.replace(known, refuses=self.refuses(known))

  def check(self, known: Template) -> None:
    """Refuses a template that writes other conversations otherwise."""
    trials = list(trial_conversations.trials(_NUM_TRIALS))
    num = 0
    for trial, text in zip(trials, self.texts(trials), strict=True):
      own = _data(known, trial)
      if text is not None and own is not None:
        num += 1
        if own != text:
          raise _UnlikeError(
            "writes a conversation otherwise than its parts: "
            + _differs(own, text)
          )
    if not num:
      raise _UnlikeError("writes none of the conversations it is tried with")

  def refuses(
    self, known: Template
  ) -> tuple[conversation_templates.Refused, ...]:
    """Returns what texts may not hold, because the template looks for it.

    It looks mostly for texts in its own code, so these are tried.
    """
    suspected = self._changed(known, _FREE, self.tried)
    self.texts(
      [
        x
        for kind in _FREE
        for _, _, text in suspected
        for x in _around((kind,), text)
      ]
    )
    found = {
      conversation_templates.Refused(kind, word, other)
      for kind in _FREE
      for word, other, _ in self._changed(known, (kind,), suspected)
    }
    alone = {(x.kind, x.word) for x in found if not x.other}
    return tuple(
      sorted(x for x in found if not x.other or (x.kind, x.word) not in alone)
    )

  def _changed(
    self,
    known: Template,
    kinds: Sequence[str],
    tried: Sequence[_Tried],
  ) -> list[_Tried]:
    """Returns those whose text the template changes in one of the kinds."""
    asked = [
      x
      for _, _, text in tried
      for x in _around(kinds, text)
      if _is_written(known, x)
    ]
    num = len(asked) // max(len(tried), 1)
    changed = [
      None not in (own := _data(known, x), text) and own != text
      for x, text in zip(asked, self.texts(asked), strict=True)
    ]
    return [
      x for i, x in enumerate(tried) if any(changed[i * num : (i + 1) * num])
    ]


def _look(
  whole: Template, conversation: Conversation, text: str, notes: _Notes
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
    own = _Seen(slot.text, conversation, text, start, slot.message)
    notes.slots[slot.name].append(own)
    seen = _Seen(text[at:start], conversation, text, at, slot.message)
    notes.between[before, slot.name].append(seen)
    before, at = slot.name, start + len(slot.text)
  seen = _Seen(text[at:], conversation, text, at, len(conversation.messages))
  notes.between[before, conversation_templates.END].append(seen)


def _places_that_matter(notes: _Notes) -> tuple[tuple[str, ...], _Notes]:
  """Returns the fewest places that tell apart what is written, and the notes."""
  known = conversation_templates.PLACES
  if not any(x.startswith("assistant") for x in notes.slots):
    raise _UnlikeError("writes no conversation of a user and an assistant")
  for num in range(len(known) + 1):
    for places in itertools.combinations(known, num):
      short = notes.short(places)
      if short is not None:
        return places, short
  raise _UnlikeError(
    "writes a message in ways that depend on more than what stands beside it"
  )


def _data(known: Template, conversation: Conversation) -> str | None:
  """Returns what the data write for a conversation; None is nothing."""
  try:
    parts = conversation_templates.parts_of(known, *conversation)
  except errors.InputError:
    return None
  return "".join(content for _, content in parts)


def _around(kinds: Sequence[str], text: str) -> list[Conversation]:
  """Returns conversations whose slots of some kinds hold a text."""
  return trial_conversations.around(
    {kind: text if kind in kinds else "a" for kind in _FREE}
  )


def _is_written(known: Template, conversation: Conversation) -> bool:
  """Returns whether a conversation with these kinds of slots is written."""
  plain = tuple(
    dataclasses.replace(
      x, text="a" if x.text else "", thinking=x.thinking and "a"
    )
    for x in conversation.messages
  )
  return (
    _data(dataclasses.replace(known, refuses=()), Conversation(plain))
    is not None
  )


def _differs(own: str, text: str) -> str:
  """Returns where two texts differ, shortly."""
  at = next(
    (i for i, (a, b) in enumerate(zip(own, text)) if a != b),
    min(len(own), len(text)),
  )
  first = max(at - 20, 0)
  return f"{text[first : at + 20]!r}, not {own[first : at + 20]!r}"


def _check_ids(
  chat: chat_templates.Chat,
  known: Template,
  tokenizer: tokenizer_lib.Tokenizer,
  names: Sequence[str],
) -> None:
  """Refuses a template whose text, encoded whole, has other ids than its parts."""
  whole = token_names.as_published(chat.folder)
  if whole is None:
    return
  for trial in trial_conversations.trials(_NUM_TRIALS // 4):
    try:
      parts = conversation_templates.parts_of(known, *trial)
    except errors.InputError:
      continue
    said = "".join(x for kind, x in parts if kind == "text")
    if any(name in said for name in names):
      continue
    text = "".join(content for _, content in parts)
    ids = token_names.published_ids(chat.folder, whole, text)
    own, _, _ = templates.write_parts("chat", parts, tokenizer)
    if ids != own:
      raise _UnlikeError(
        "has a tokenizer that encodes the parts of a conversation otherwise"
        " than the whole"
      )
