"""From a folder's chat template to how a published ORM reads a solution, as data.

A published outcome reward model reads a whole chat: the problem is the user's
turn, the solution the assistant's, and the score is that of the last token that
isn't padding. As in chat_templates, the program is rendered once, at import.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
import itertools
import pathlib

from prm_jax import errors
from prm_jax import schema
from prm_jax.huggingface import chat_templates
from prm_jax.huggingface import token_names
from prm_jax.text import policy_text
from prm_jax.text import templates
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text import trial_texts

# The texts in a chat template's code; published ones have about a hundred.
_MOST_WORDS = 500
_REMEDY = "; write one that does into chat_template.jinja"


def template(
  folder: pathlib.Path,
  tokenizer: tokenizer_lib.Tokenizer,
  *,
  pad: int | None,
  system: str | None = None,
) -> policy_text.PolicyTemplate:
  """Returns how an ORM's folder says that a solution is read.

  Args:
    folder: The Hugging Face folder.
    tokenizer: Its tokenizer.
    pad: The id of padding: transformers reads the last token that isn't it.
      None reads the last token.
    system: The system turn; None is the template's own.

  Raises:
    InputError: The folder has no chat template, or one that isn't of the form
      that data can have.
  """
  text = chat_templates.source(folder)
  if text is None:
    raise errors.InputError(
      f"{folder}: an outcome reward model without a chat template, so how it"
      f" reads a solution isn't known{_REMEDY}"
    )
  names = token_names.controls(folder, tokenizer)
  special = token_names.special(folder)
  chat = chat_templates.Chat(folder, text, special, system, None, _REMEDY)
  opening, closing, strips, system, words = _around(chat)
  after = chat_templates.cut(closing, names)
  ends = [content for kind, content in after if kind == "control"]
  ends = ends[:1] or [special.get("eos_token", "")]
  if ends[0] not in names:
    raise chat.refused("ends an assistant's turn without a control token")
  pad_name = token_names.by_id(folder, tokenizer).get(
    -1 if pad is None else pad
  )
  while after and after[-1] == ("control", pad_name):
    after.pop()
  thinks = all(name in names for name in chat_templates.THINK)
  opened = opening.replace(chat_templates.SYSTEM, system)
  read = policy_text.PolicyTemplate(
    "chat",
    chat_templates.parts_of(opening, names, system),
    tuple(ends),
    strips=strips,
    thinking=chat_templates.THINK if thinks else (),
    # If only padding follows, the solution's own last token is read.
    closing=tuple(after) or (templates.CUT,),
    one_text=True,
    refuses=_changed(chat, words, opened, closing),
  )
  _check_padding(folder, read, tokenizer, pad)
  _check_ids(folder, read, tokenizer)
  return read


def _around(
  chat: chat_templates.Chat,
) -> tuple[str, str, bool, str, Sequence[str]]:
  """Returns what a chat template writes around a problem and its solution.

  Returns:
    What comes before the solution, with marks in place of problem and system
    turn; what comes after it; whether the problem is stripped; the text of the
    system turn; and the texts that the template's code holds.
  """
  marked = None if chat.system is None else chat_templates.SYSTEM
  # Each solution is one of a plain problem, and each problem has a solution.
  pairs = [
    *((trial_texts.PROBLEMS[0], answer) for answer in trial_texts.SOLUTIONS),
    *((problem, trial_texts.SOLUTIONS[0]) for problem in trial_texts.PROBLEMS),
  ]
  ran = chat.run(
    chat.asked(chat_templates.PROBLEM, marked, answer=chat_templates.ANSWER),
    *(chat.asked(problem, chat.system, answer=x) for problem, x in pairs),
  )
  first, *others = ran["replies"]
  whole = chat.text_of(first)
  chat.check_once(whole, chat_templates.PROBLEM, "the problem")
  chat.check_once(whole, chat_templates.ANSWER, "an assistant's turn")
  if marked is not None:
    chat.check_once(whole, marked, "a system turn")
  opening, _, closing = whole.partition(chat_templates.ANSWER)
  texts = [
    (problem, f"{answer}{closing}", chat.text_of(other))
    for (problem, answer), other in zip(pairs, others, strict=True)
  ]
  otherwise = "changes a problem or a solution, or what is around it"
  strips, system = chat.strips(opening, texts, otherwise)
  return opening, closing, strips, system, ran["texts"]


def _changed(
  chat: chat_templates.Chat, words: Sequence[str], opening: str, closing: str
) -> tuple[str, ...]:
  """Returns the words that a chat template doesn't write as they are.

  A template changes what a text holds only if it looks for it, as Qwen3's looks
  for </think> to move a model's reasoning. What it looks for is mostly a text in
  its code: so a problem and a solution are rendered with each of them, in other
  letters' cases, too. White space is tried within a text alone.

  Args:
    chat: The chat template.
    words: The texts in its code.
    opening: What comes before a solution, with a mark in place of the problem.
    closing: What comes after it.

  Raises:
    InputError: The template has too many texts, or changes several together.
  """
  blank = [(x, f"a{x}b") for x in words if x and not x.strip()]
  words = tuple(
    x for x in dict.fromkeys((*words, *chat_templates.THINK)) if x.strip()
  )
  if len(words) > _MOST_WORDS:
    raise chat.refused(
      f"has {len(words):,} texts in its code; expected {_MOST_WORDS:,} at most"
    )
  single = [(x.strip(), text) for x in words for text in _holding(x)]
  single += blank
  cases = {x: ys for x in words if (ys := _cases(x))}
  joined = [(x, "a".join([*ys, ys[0]]).strip()) for x, ys in cases.items()]
  # Two runs, of which each may write so many characters.
  met = _differ(chat, joined, opening, closing)
  if not met and not _differ(
    chat, [*single, *_together(words)], opening, closing
  ):
    return ()
  others = [y for x in cases if x in met for y in cases[x]]
  single += [(y.strip(), text) for y in others for text in _holding(y)]
  changed = _least(_differ(chat, single, opening, closing))
  kept = [x for x in words if not any(y in x for y in changed)]
  together = _differ(chat, _together(kept), opening, closing)
  if "" in together:
    raise chat.refused("changes a text that holds several words of its code")
  return tuple(sorted(_least(changed | together)))


def _together(words: Sequence[str]) -> list[tuple[str, str]]:
  """Returns a text of all words, and those between a word and its end."""
  pairs = itertools.product(words, words)
  blocks = [(x, f"{x}a{y}") for x, y in pairs if y == f"</{x[1:]}"]
  return [("", "a".join(["", *words, ""])), *blocks]


def _cases(word: str) -> list[str]:
  """Returns a word in the other cases of letters that texts have."""
  cases = (word.upper(), word.title(), word.capitalize(), word.lower())
  return [x for x in dict.fromkeys(cases) if x != word]


def _holding(word: str) -> list[str]:
  """Returns texts that hold a word: within, first and last."""
  return [f"a{word}b", f"{word.strip()}b", f"a{word.strip()}"]


def _least(words: Set[str]) -> set[str]:
  """Returns the words that hold no other of them."""
  return {x for x in words if not any(y in x for y in words - {x})}


def _differ(
  chat: chat_templates.Chat,
  tried: Sequence[tuple[str, str]],
  opening: str,
  closing: str,
) -> set[str]:
  """Returns the words whose texts a chat template changes.

  Args:
    chat: The chat template.
    tried: Words and texts that hold them.
    opening: See `_changed`.
    closing: See `_changed`.
  """
  pairs = [(word, text, "a") for word, text in tried]
  pairs += [(word, "a", text) for word, text in tried]
  replies = chat.render(
    *(chat.asked(p, chat.system, answer=x) for _, p, x in pairs)
  )
  return {
    word
    for (word, p, x), reply in zip(pairs, replies, strict=True)
    if reply.get("text")
    != f"{chat_templates.filled(opening, p, '')}{x}{closing}"
  }


def _check_ids(
  folder: pathlib.Path,
  template: policy_text.PolicyTemplate,
  tokenizer: tokenizer_lib.Tokenizer,
) -> None:
  """Refuses a template whose text, encoded whole, has other ids than its parts.

  Raises:
    InputError: The ids differ, as beside a control token that takes the white
      space next to it.
  """
  names = token_names.controls(folder, tokenizer)
  texts = [content for kind, content in template.opening if kind == "text"]
  # A system turn with the name of a control: a text to us, a control to others.
  if any(name in text for text in texts for name in names):
    return
  problem = trial_texts.PROBLEMS[0]
  thoughts = [f"{x}b" for x in template.thinking]
  thoughts.append(f"{'a'.join(template.thinking)}b")

  def tried() -> Iterator[tuple[str, str, list[int]]]:
    for answer in (*trial_texts.SOLUTIONS, *trial_texts.IN_SPACE, *thoughts):
      if not any(word in answer for word in template.refuses):
        parts = (*template.opening, ("text", answer), *template.closing)
        text = "".join(problem if kind == "problem" else x for kind, x in parts)
        solution = schema.Solution("", problem, (answer,))
        own = template.write(solution, tokenizer)
        yield answer, text, own.tokens.tolist()

  other = token_names.other_ids(folder, tried())
  if other is not None:
    raise errors.InputError(
      f"{folder}: its tokenizer encodes the parts of the chat template otherwise"
      f" than the whole, for {other[:20]!r}; such a tokenizer isn't supported"
      " for an outcome reward model"
    )


def _check_padding(
  folder: pathlib.Path,
  template: policy_text.PolicyTemplate,
  tokenizer: tokenizer_lib.Tokenizer,
  pad: int | None,
) -> None:
  """Refuses padding that the last token of a chat is, or may be.

  transformers would skip it, and read the token before.

  Raises:
    InputError: The chat ends with the token, or with a solution that may.
  """
  if pad is None:
    return
  if any(kind == "control" for kind, _ in template.closing):
    may_end = template.write_closing(tokenizer)[-1] == pad
  else:
    # An id that no tokenizer has, such as -1, is no text.
    may_end = pad >= 0 and tokenizer.decode([pad]) != ""
  if may_end:
    raise errors.InputError(
      f"{folder}: pad_token_id={pad} is a token of ordinary text, with which a"
      " chat may end; name a token of its own in config.json"
    )
