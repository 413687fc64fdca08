"""From a folder's chat template to how its model reads conversations, as data.

The program is rendered with small conversations in which every text is a mark
that no template holds. What it writes between two marks is kept
(text/conversation_templates.py). Then it is rendered with other conversations,
hostile texts among them, and refused unless the data write the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
import dataclasses
import pathlib
from typing import NamedTuple

from prm_jax import errors
from prm_jax import schema
from prm_jax.huggingface import chat_templates
from prm_jax.huggingface import conversation_notes as notes_lib
from prm_jax.huggingface import conversation_renderings as renderings_lib
from prm_jax.huggingface import token_names
from prm_jax.huggingface import trial_conversations
from prm_jax.text import conversation_templates
from prm_jax.text import templates
from prm_jax.text import tokenizer as tokenizer_lib

Template = conversation_templates.ConversationTemplate
Message = schema.Message
Conversation = trial_conversations.Conversation
UnlikeError = notes_lib.UnlikeError

# The kinds of slots that are of a turn.
_OF_TURN = frozenset(
  (
    *("thinking", "assistant", "remark", "call", "arguments"),
    *("key", "value", "call_id"),
  )
)
# Those whose texts anybody may have written.
_FREE = ("system", "user", "thinking", "assistant", "remark", "result")
# The texts in a chat template's code; published ones have about a hundred.
_MOST_WORDS = 500
_NUM_TRIALS = 80
_PADDED = '\n \n{}" \n\n'
# Conversations that show where tools are, and whether thoughts are taken out.
_TOOLS = [
  trial_conversations.of_marks("UAUA", tools=True, system=True),
  trial_conversations.of_marks("UAUA", tools=True),
  trial_conversations.of_marks("UCTA"),
]
# The only length of ids that a template is known to ask for, and other ids.
_ID_LENGTH = 9
_IDS = [trial_conversations.with_ids(_TOOLS[2], x) for x in ("Zq1", "Zq" * 9)]
# What may be white space alone, or nothing, where a template may ask for it.
_BLANKS = dict(system=("\n", " ", ""), remark=("\n", " "), thinking=("\n", " "))
_BLOCKS = trial_conversations.with_blocks(*conversation_templates.THINK)


class Learned(NamedTuple):
  """What was learned of a chat template.

  Args:
    template: How it writes conversations, or None.
    reason: Why there is none, for messages.
  """

  template: Template | None
  reason: str = ""


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
  reason = ""
  try:
    way, words = renderings_lib.how_asked(chat)
    probe = _Probe(
      renderings_lib.Renderings(chat, way), names, end, _tried(words)
    )
    marked = trial_conversations.marked(way.arguments != "whole")
    of_texts = [x for x in marked if not any(y.calls for y in x.messages)]
    probe.ask_all(marked)
    # A template whose calls data can't have may still write texts as data do.
    for conversations in (marked, of_texts):
      try:
        found = probe.checked(probe.template(conversations))
        _check_ids(chat, found, tokenizer, names)
        return Learned(found)
      except UnlikeError as e:
        reason = reason or str(e)
  except UnlikeError as e:
    reason = str(e)
  except errors.InputError as e:  # as one that can't be rendered
    return Learned(None, str(e).removeprefix(f"{chat.folder}: "))
  return Learned(None, f"its chat template {reason}")


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
    raise UnlikeError(
      f"has {len(words):,} texts in its code; expected {_MOST_WORDS:,} at most"
    )
  tried = [
    _Tried(x, "", text) for x in words for text in (f"a{x}b", f"{x}b", f"a{x}")
  ]
  blocks = [(x, f"</{x[1:]}") for x in words if x[:1] == "<"]
  return [*tried, *(_Tried(x, y, f"{x}a{y}") for x, y in blocks if y in words)]


# --- Learning ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Probe:
  """A chat template whose conversations are learned.

  Args:
    written: What it writes.
    names: The names of the control tokens.
    end: The name of the token that ends a turn.
    tried: Texts that it may change.
  """

  written: renderings_lib.Renderings
  names: Sequence[str]
  end: str
  tried: Sequence[_Tried]

  def ask_all(self, marked: Sequence[Conversation]) -> None:
    """Renders most of what will be asked, in few processes."""
    begun = [
      x._replace(messages=x.messages[:i])
      for x in marked
      for i, message in enumerate(x.messages)
      if message.role == "assistant"
    ]
    trials = trial_conversations.trials(_NUM_TRIALS)
    around = (x for _, _, text in self.tried for x in _around(_FREE, text))
    blank = (x for kind in _BLANKS for x in _with_blank(kind))
    asked = [*marked, *_TOOLS, *_IDS, *_BLOCKS, *blank, *trials, *around]
    self.written.of([*((x, False) for x in asked), *((x, True) for x in begun)])

  def template(self, conversations: Sequence[Conversation]) -> Template:
    """Returns the template, without what it refuses, as conversations show it."""
    whole = self._how_tools_are()
    notes = notes_lib.Notes(defaultdict(list), defaultdict(list), set(), {})
    texts = self.written.texts(conversations)
    for conversation, text in zip(conversations, texts, strict=True):
      if text is not None:
        notes_lib.look(whole, conversation, text, notes)
    notes.forms = self._forms(notes)
    places, short = notes_lib.places_that_matter(notes)
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
    return self._with_ids(self._with_blanks(self._with_blocks(known)))

  def _how_tools_are(self) -> Template:
    """Returns a template that says how tools are written, and where."""
    whole = Template(
      (),
      places=conversation_templates.PLACES,
      arguments=self.written.way.arguments,
    )
    asked, texts = _TOOLS[0], self.written.texts(_TOOLS[:2])
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
    self, notes: notes_lib.Notes
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
          raise UnlikeError(f"doesn't end every turn with {self.end!r}")
        cut.insert(cut.index(end) + 1, templates.READ)
      parts[pair] = tuple(cut)
    return parts

  def _begun(self, notes: notes_lib.Notes) -> dict[tuple[str, str], int]:
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
    written = self.written.texts(prompts, is_begun=True)
    for (pair, seen), text in zip(firsts.items(), written, strict=True):
      length = len(text or "") - seen.begin
      is_prompt = (text or "").endswith(seen.piece[: max(length, 0)])
      fits = 0 <= length <= len(seen.piece) and is_prompt
      begun[pair] = length if fits else len(seen.piece)
    return begun

  def _forms(self, notes: notes_lib.Notes) -> dict[str, set[str]]:
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
    written = zip(firsts.items(), self.written.texts(padded), strict=True)
    for (name, seen), text in written:
      before = seen.whole[: seen.begin]
      after = seen.whole[seen.begin + len(seen.piece) :]
      forms = [
        form
        for form, write in conversation_templates.FORMS.items()
        if text == f"{before}{write(_PADDED.format(seen.piece))}{after}"
      ]
      if not forms:
        raise UnlikeError(f"changes {conversation_templates.named(name)}")
      found[name] = {*forms[:1]}
    return found

  def _with_blocks(self, known: Template) -> Template:
    """Returns a template that says whether thoughts are taken out of texts."""
    texts = self.written.texts(_BLOCKS)
    split = dataclasses.replace(known, splits_thinking=True)
    if None not in texts and texts == [_data(split, x) for x in _BLOCKS]:
      plain = [_data(known, x) for x in _BLOCKS]
      return known if texts == plain else split
    return known

  def _with_blanks(self, known: Template) -> Template:
    """Returns a template that says what becomes of texts of white space."""
    blank = []
    for kind in _BLANKS:
      asked = _with_blank(kind)
      written = self.written.texts(asked)
      for what in ("", *conversation_templates.BLANK):
        tried = dataclasses.replace(known, blank=((kind, what),))
        own = [_data(tried, x) for x in asked]
        if all(a in (None, b) for a, b in zip(own, written) if b is not None):
          blank += [(kind, what)] if what else []
          break
    return dataclasses.replace(known, blank=tuple(blank))

  def _with_ids(self, known: Template) -> Template:
    """Returns a template that says how long the ids of calls are."""
    short, long = _IDS
    ids = self.written.texts([_TOOLS[2]])[0], *self.written.texts([short, long])
    if ids[0] is not None and ids[1:] == (None, None):
      return dataclasses.replace(known, id_length=_ID_LENGTH)
    return known

  # --- Checks ---

  def checked(self, known: Template) -> Template:
    """Returns a template that writes other conversations as it should."""
    try:
      self.check(known)
    except UnlikeError:
      if known.arguments != "each":
        raise
      known = dataclasses.replace(known, arguments="each_as_text")
      self.check(known)
    return dataclasses.replace(known, refuses=self.refuses(known))

  def check(self, known: Template) -> None:
    """Refuses a template that writes other conversations otherwise."""
    trials = list(trial_conversations.trials(_NUM_TRIALS))
    num = 0
    for trial, text in zip(trials, self.written.texts(trials), strict=True):
      own = _data(known, trial)
      if text is not None and own is not None:
        num += 1
        if own != text:
          raise UnlikeError(
            "writes a conversation otherwise than its parts: "
            + _differs(own, text)
          )
    if not num:
      raise UnlikeError("writes none of the conversations it is tried with")

  def refuses(
    self, known: Template
  ) -> tuple[conversation_templates.Refused, ...]:
    """Returns what texts may not hold, because the template looks for it.

    It looks mostly for texts in its own code, so these are tried.
    """
    suspected = self._changed(known, _FREE, self.tried)
    self.written.texts(
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
    self, known: Template, kinds: Sequence[str], tried: Sequence[_Tried]
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
      for x, text in zip(asked, self.written.texts(asked), strict=True)
    ]
    return [
      x for i, x in enumerate(tried) if any(changed[i * num : (i + 1) * num])
    ]


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


def _with_blank(kind: str) -> list[Conversation]:
  """Returns conversations whose slots of a kind are blank, with tools, too."""
  return [
    x._replace(tools=tools)
    for text in _BLANKS[kind]
    for x in _around((kind,), text)
    for tools in ((), _TOOLS[0].tools)
  ]


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

  def tried() -> Iterator[tuple[str, str, list[int]]]:
    for trial in trial_conversations.trials(_NUM_TRIALS // 4):
      try:
        parts = conversation_templates.parts_of(known, *trial)
      except errors.InputError:
        continue
      said = "".join(x for kind, x in parts if kind == "text")
      if not any(name in said for name in names):
        text = "".join(content for _, content in parts)
        yield "", text, templates.write_parts("chat", parts, tokenizer)[0]

  if token_names.other_ids(chat.folder, tried()) is not None:
    raise UnlikeError(
      "has a tokenizer that encodes the parts of a conversation otherwise than"
      " the whole"
    )
