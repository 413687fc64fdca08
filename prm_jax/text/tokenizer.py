"""Text to ids and back, with control ids that no text can produce.

There are three kinds with one protocol: SentencePiece, Hugging Face
`tokenizer.json` and plain bytes. `encode` never yields a control id, so a
solution that contains `</s>`, `<sep>` or `<|im_start|>` is plain text to all of
them. The libraries of the first two are imported when they are used: a machine
without them can still train on and score ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import pathlib
import reprlib
from typing import Any, Protocol, runtime_checkable

import numpy as np

from prm_jax import errors
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.runtime import foreign_files
from prm_jax.runtime import json_text as json_text_lib
from prm_jax.runtime import progress
from prm_jax.text import foreign_tokenizers
from prm_jax.text import text_cuts

SEPARATOR_PIECE = "<sep>"
# `tokenizers` holds Python's lock while it encodes one text, but not while it
# encodes a batch. From so many characters on that is worth a batch's start.
_LARGE_CHARS = 4_096
Ids = Sequence[int] | np.ndarray
Span = tuple[int, int]


@runtime_checkable
class Tokenizer(Protocol):
  """Text to ids and back.

  vocab_size counts all ids, among them bos, eos and separator. text_ids counts
  the ids that a text can yield: 0 to text_ids - 1. bos_name is None if bos is
  an id that we added.
  """

  vocab_size: int
  text_ids: int
  bos_name: str | None
  bos: int
  eos: int
  separator: int

  def __hash__(self) -> int: ...

  def encode(self, text: str) -> list[int]:
    """Returns the ids of a text; none of them is a control id."""
    ...

  def encode_with_spans(self, text: str) -> tuple[list[int], list[Span]]:
    """Returns the ids, and the characters of each: (first, one after the last).

    So a place in the text becomes a place among the ids, whatever the ids are.
    All ids of a character have that character. An id without one, such as a
    space that the tokenizer adds, has the next character. No id has a character
    that the tokenizer drops; of characters that it joins to one, it may have
    the first alone. Neither number ever decreases.
    """
    ...

  def control(self, name: str) -> int | None:
    """Returns the id of a control or added token by its name, or None.

    A name that a text can yield isn't one.
    """
    ...

  def decode(self, ids: Ids) -> str:
    """Returns the text of ids; control ids and unknown ids add nothing."""
    ...

  def save(self, folder: pathlib.Path) -> dict[str, Any]:
    """Writes its file, if any; returns the description that `load` takes."""
    ...


class Bytes:
  """One id per UTF-8 byte; the controls are 256, 257 and 258."""

  vocab_size, bos, eos, separator = 259, 256, 257, 258
  text_ids = 256
  bos_name: str | None = None

  def encode(self, text: str) -> list[int]:
    # A lone surrogate has no UTF-8 form; it becomes "?", one byte.
    return list(text.encode("utf-8", "replace"))

  def encode_with_spans(self, text: str) -> tuple[list[int], list[Span]]:
    sizes = [len(character.encode("utf-8", "replace")) for character in text]
    spans = [(i, i + 1) for i, size in enumerate(sizes) for _ in range(size)]
    return self.encode(text), spans

  def control(self, name: str) -> int | None:
    del name
    return None

  def decode(self, ids: Ids) -> str:
    return bytes(i for i in ids if i < 256).decode("utf-8", "replace")

  def save(self, folder: pathlib.Path) -> dict[str, Any]:
    del folder
    return dict(kind="bytes")


class SentencePiece:
  """A SentencePiece model; text never yields control ids.

  Control ids that the model lacks follow its vocabulary.

  Args:
    model: The serialised model.
    path: Where the model was read, for messages.
  """

  def __init__(self, model: bytes, *, path: files.PathLike = "tokenizer.model"):
    import sentencepiece

    self._model = model
    try:
      self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError:
      raise errors.InputError(
        f"{path}: not a SentencePiece model; give a file that its trainer wrote"
      ) from None
    free = size = self._pieces.vocab_size()
    ids = []
    separator = self._pieces.piece_to_id(SEPARATOR_PIECE)
    if not self._pieces.is_control(separator):
      separator = -1
    for own in (self._pieces.bos_id(), self._pieces.eos_id(), separator):
      ids.append(own if own >= 0 else free)
      free += own < 0
    self.bos, self.eos, self.separator = ids
    self._size = self.text_ids = size
    self.vocab_size = free
    bos = self._pieces.bos_id()
    self.bos_name = self._pieces.id_to_piece(bos) if bos >= 0 else None

  @property
  def processor(self) -> Any:
    """The library's own object, which has the raw vocabulary."""
    return self._pieces

  def encode(self, text: str) -> list[int]:
    return self._pieces.encode(text.encode("utf-8", "replace").decode())

  def encode_with_spans(self, text: str) -> tuple[list[int], list[Span]]:
    text = text.encode("utf-8", "replace").decode()
    pieces = self._pieces.encode(text, return_type="proto").pieces
    sizes = [self._num_bytes(piece.id, piece.piece) for piece in pieces]
    ends = list(itertools.accumulate(sizes))
    first, last = self._characters(text)
    spans = [
      (first[end - size], last[end - 1]) for size, end in zip(sizes, ends)
    ]
    return [piece.id for piece in pieces], spans

  def _num_bytes(self, token: int, piece: str) -> int:
    """Returns how many bytes of the normalized text a piece has."""
    return 1 if self._pieces.is_byte(token) else len(piece.encode())

  def _characters(self, text: str) -> tuple[list[int], list[int]]:
    """Returns where in the text each byte of its normalized form comes from.

    Two lists: the first character, and one after the last.
    """
    # What a piece says of its place leaves out the last character if that
    # became several of which the piece has only the first.
    normal, places = self._pieces.normalize(text, with_offsets=True)
    num_bytes = [len(character.encode()) for character in normal]
    first = np.repeat(places[:-1], num_bytes)
    return first.tolist(), np.minimum(first + 1, len(text)).tolist()

  def control(self, name: str) -> int | None:
    piece = self._pieces.piece_to_id(name)
    return piece if self._pieces.is_control(piece) else None

  def decode(self, ids: Ids) -> str:
    return self._pieces.decode([int(i) for i in ids if i < self._size])

  def save(self, folder: pathlib.Path) -> dict[str, Any]:
    with files.replacing(folder / "tokenizer.model", "wb") as f:
      f.write(self._model)
    return dict(
      kind="sentencepiece",
      file="tokenizer.model",
      sha256=hashlib.sha256(self._model).hexdigest(),
    )


class HuggingFace:
  """A `tokenizer.json`; text never yields its added tokens.

  `encode_special_tokens` lets through only added tokens that are not marked
  special, so every added token that isn't mere white space is marked special
  first. A name that the model's own vocabulary holds (Unigram, WordLevel, or a
  plain token such as `ки`) would still be found in a text; the text is then cut
  inside the name. Control ids without a name follow the vocabulary.

  Args:
    json_text: The content of the file.
    bos: The name of bos, or None.
    eos: The name of eos, or None.
    separator: The name of the separator, or None.
    path: Where the text was read, for messages.
  """

  def __init__(
    self,
    json_text: str,
    *,
    bos: str | None = None,
    eos: str | None = None,
    separator: str | None = None,
    path: files.PathLike = "tokenizer.json",
  ):
    self._json_text, self._path = json_text, path
    self._names = dict(bos=bos, eos=eos, separator=separator)
    if separator is not None and separator in (bos, eos):
      raise errors.InputError(
        f"{path}: {separator!r} can't be the separator and bos or eos"
        " too; name another or none"
      )
    import tokenizers

    try:
      spec = json_text_lib.parse(json_text, strict=False)
      # It writes control ids, which we do ourselves, or leaves white space out
      # of the places of tokens.
      spec["post_processor"] = None
      added = spec.get("added_tokens", ())
      for token in added:
        token["special"] = bool(token["special"] or token["content"].strip())
      self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(spec))
    except (KeyboardInterrupt, SystemExit):
      raise
    # tokenizers raises nothing narrower, and a panic of Rust is no Exception.
    except BaseException as e:
      reason = str(e).partition("\n")[0]
      raise errors.InputError(
        f"{path}: not one that `tokenizers` reads: {reason};"
        " give a Hugging Face tokenizer.json"
      ) from None
    self._tokenizer.encode_special_tokens = True
    self._tokenizer.no_truncation()
    self._tokenizer.no_padding()
    # Not from `get_vocab`, which copies all names.
    own = spec["model"]["vocab"]
    ids_of_model = own.values() if isinstance(own, dict) else range(len(own))
    added_ids = self._tokenizer.get_added_tokens_decoder()
    self._size = self.text_ids = free = max((*ids_of_model, *added_ids)) + 1
    ids = []
    for role, name in self._names.items():
      token = None if name is None else self._tokenizer.token_to_id(name)
      if name is not None and token is None:
        raise errors.InputError(
          f"{path}: no token {name!r} for {role}; name one it has"
        )
      ids.append(free if token is None else token)
      free += token is None
    self.bos, self.eos, self.separator = ids
    self.vocab_size, self.bos_name = free, bos
    # The id of unknown text is no name; only a text can yield it.
    unknown = spec["model"].get("unk_token")
    names = {t["content"] for t in added if t["content"].strip()} - {unknown}
    untypable = {self._tokenizer.token_to_id(name) for name in names}
    self._kept = _kept(spec)
    self._has_cuts = text_cuts.are_known(spec)
    self._controls = frozenset(ids)
    self._untypable = untypable - {spec["model"].get("unk_id")} | self._controls

  @property
  def processor(self) -> Any:
    """The library's own object, which has the raw vocabulary and decoder."""
    return self._tokenizer

  @property
  def controls(self) -> frozenset[int]:
    """The ids of bos, eos and the separator."""
    return self._controls

  @property
  def path(self) -> files.PathLike:
    """Where the file was read, for messages."""
    return self._path

  def parts(self, text: str) -> list[str]:
    """Returns texts whose ids, one after another, are the text's."""
    return text_cuts.parts(text) if self._has_cuts else [text]

  def encode(self, text: str) -> list[int]:
    return [x for _, part in self._encodings(text) for x in part.ids]

  def encode_with_spans(self, text: str) -> tuple[list[int], list[Span]]:
    parts = self._encodings(text)
    self._check_drops_nothing(text)
    ids, spans, first, last = [], [], 0, 0
    for begin, part in parts:
      ids += part.ids
      for start, end in part.offsets:
        first, last = max(first, begin + start), max(last, begin + end)
        spans.append((first, last))
    return ids, spans

  def _check_drops_nothing(self, text: str) -> None:
    """Refuses a text of which the tokenizer would leave a character out.

    `tokenizers` then reports other places than the tokens have.
    """
    if self._kept is None:
      return
    if self._has_cuts and self._plain.issuperset(text):
      return
    text = text.encode("utf-8", "replace").decode()
    if all(map(self._kept.has, self._symbols(text))):
      return
    single = [x for x in text if not all(map(self._kept.has, self._symbols(x)))]
    raise errors.InputError(
      f"{self._path}: has no token for"
      f" {ascii(single[0]) if single else 'a character'} in"
      f" {reprlib.repr(text)}, so the places of what follows aren't known; take"
      " the character out, or use a template whose steps are encoded alone"
    )

  @functools.cached_property
  def _plain(self) -> frozenset[str]:
    """The ASCII characters that aren't left out, whatever is around them.

    What a text is cut into doesn't matter there: all of it is looked up as bytes.
    """
    assert self._kept is not None
    ascii_ = map(chr, range(128))
    return frozenset(
      x for x in ascii_ if all(map(self._kept.has, self._symbols(x)))
    )

  def _symbols(self, text: str) -> set[str]:
    """Returns what of a text the model looks up, character by character."""
    normalizer = self._tokenizer.normalizer
    if normalizer is not None:
      text = normalizer.normalize_str(text)
    splitter = self._tokenizer.pre_tokenizer
    if splitter is None:
      return {*text}
    return {x for piece, _ in splitter.pre_tokenize_str(text) for x in piece}

  def _encodings(self, text: str, start: int = 0) -> list[tuple[int, Any]]:
    """Returns the parts of a text, cut inside names, and where each starts.

    A part is a tokenizers.Encoding.
    """
    text = text.encode("utf-8", "replace").decode()
    whole = encoding_of(
      self._tokenizer,
      text,
      f"{self._path}",
      advice="take the text out, or use another tokenizer",
    )
    if self._untypable.isdisjoint(whole.ids):
      return [(start, whole)]
    cuts = []
    for token, (first, end) in zip(whole.ids, whole.offsets, strict=True):
      if token in self._untypable and end - first > 1:
        cuts.append((first + end) // 2)
      elif token in self._controls:
        raise errors.InputError(
          f"{self._path}: the text {text[first:end]!r} is token {token}, a"
          " control; name another token for it, or none"
        )
    if not cuts:
      return [(start, whole)]
    parts = itertools.pairwise([0, *cuts, len(text)])
    return [
      part for a, b in parts for part in self._encodings(text[a:b], start + a)
    ]

  def control(self, name: str) -> int | None:
    token = self._tokenizer.token_to_id(name)
    return token if token in self._untypable else None

  def decode(self, ids: Ids) -> str:
    return self._tokenizer.decode(
      [int(i) for i in ids if i < self._size and i not in self._controls],
      skip_special_tokens=True,
    )

  def save(self, folder: pathlib.Path) -> dict[str, Any]:
    with files.replacing(folder / "tokenizer.json") as f:
      f.write(self._json_text)
    return dict(
      kind="huggingface",
      file="tokenizer.json",
      sha256=hashlib.sha256(self._json_text.encode()).hexdigest(),
      **self._names,
    )


@dataclasses.dataclass(frozen=True)
class _Kept:
  """The only characters that a tokenizer doesn't leave out.

  Attributes:
    characters: Those with a token of their own.
    of_bytes: The bytes with a token: a character of these alone is kept, too.
    around: What the model writes around a character that it looks up.
  """

  characters: frozenset[str]
  of_bytes: frozenset[int]
  around: tuple[str, str]

  def has(self, character: str) -> bool:
    if character in self.characters:
      return True
    inside, last = self.around
    looked_up = f"{inside}{character}{last}".encode("utf-8", "replace")
    return self.of_bytes.issuperset(looked_up)


def _kept(spec: Mapping[str, Any]) -> _Kept | None:
  """Returns the only characters that a tokenizer.json doesn't leave out.

  None if it leaves none out: it has an id for unknown ones, or for every byte.
  """
  from tokenizers import pre_tokenizers

  model = spec["model"]
  if model.get("type", "BPE") != "BPE":
    return None
  if model.get("unk_token") is not None:
    return None
  # Of the added tokens, a text yields those that aren't special: white space.
  added = spec.get("added_tokens", ())
  own = {t["content"] for t in added if not t["special"]}
  vocabulary = own | model["vocab"].keys()
  if {*pre_tokenizers.ByteLevel.alphabet()} <= vocabulary:
    return None
  of_bytes: Iterable[int] = range(256) if model.get("byte_fallback") else ()
  of_bytes = {x for x in of_bytes if f"<0x{x:02X}>" in model["vocab"]}
  if len(of_bytes) == 256:
    return None
  # Inside a word and at its end a character may have a name of its own.
  inside = model.get("continuing_subword_prefix") or ""
  last = model.get("end_of_word_suffix") or ""
  characters = frozenset(
    x
    for name in vocabulary
    if len(x := name.removeprefix(inside).removesuffix(last)) == 1
    and {x, inside + x, x + last, inside + x + last} <= vocabulary
  )
  return _Kept(characters, frozenset(of_bytes), (inside, last))


def encoding_of(
  tokenizer: Any,
  text: str,
  where: str,
  *,
  advice: str,
  add_special_tokens: bool = False,
) -> Any:
  """Returns what `tokenizers` makes of a text, a tokenizers.Encoding.

  Args:
    tokenizer: A tokenizers.Tokenizer.
    text: The text. A long one is encoded without Python's lock.
    where: The tokenizer's file, for the message.
    advice: What helps if it fails, for the message.
    add_special_tokens: Whether the tokens around a text are added.

  Raises:
    InputError: `tokenizers` fails, as without a token for a character.
  """
  try:
    if len(text) < _LARGE_CHARS:
      return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    (whole,) = tokenizer.encode_batch(
      [text], add_special_tokens=add_special_tokens
    )
    return whole
  except (KeyboardInterrupt, SystemExit):
    raise
  except BaseException as e:  # a panic of Rust is no Exception
    raise errors.InputError(
      f"{where}: `tokenizers` fails on {reprlib.repr(text)}:"
      f" {str(e).partition(chr(10))[0]}; {advice}"
    ) from None


def load(folder: pathlib.Path, spec: Mapping[str, Any]) -> Tokenizer:
  """Returns the tokenizer that `save` described.

  Raises:
    InputError: The file is missing or isn't the one that was saved.
  """
  kinds = ("bytes", "sentencepiece", "huggingface")
  checks.check_choice(f"{folder}: tokenizer kind", spec["kind"], kinds)
  if spec["kind"] == "bytes":
    return Bytes()
  path = folder / spec["file"]
  content = files.read_bytes(path)
  if hashlib.sha256(content).hexdigest() != spec["sha256"]:
    raise errors.InputError(
      f"{path}: not the tokenizer that the model was trained with;"
      " restore the original file"
    )
  if spec["kind"] == "sentencepiece":
    return SentencePiece(content, path=path)
  names = {k: spec[k] for k in ("bos", "eos", "separator")}
  return HuggingFace(content.decode(), **names, path=path)


def from_folder(folder: pathlib.Path) -> Tokenizer:
  """Returns the tokenizer of a Hugging Face folder.

  It reads tokenizer.json, or else tokenizer.model. The names of bos and eos
  come from tokenizer_config.json. The file is tried first, as
  `foreign_tokenizers.check` does.

  Raises:
    InputError: The folder has neither file, or one that can't be read or used.
  """
  path = foreign_files.find(folder, "tokenizer.json")
  if path is not None:
    foreign_tokenizers.check(path)
    names = _special_names(folder)
    return HuggingFace(files.read_text(path), **names, path=path)
  path = foreign_files.find(folder, "tokenizer.model")
  if path is None:
    raise errors.InputError(
      f"{folder}: has neither tokenizer.json nor tokenizer.model; copy the"
      " model's tokenizer there"
    )
  foreign_tokenizers.check(path)
  return SentencePiece(files.read_bytes(path), path=path)


def _special_names(folder: pathlib.Path) -> dict[str, str | None]:
  """Returns the names of bos and eos in a folder's tokenizer_config.json."""
  names: dict[str, str | None] = dict(bos=None, eos=None)
  path = foreign_files.find(folder, "tokenizer_config.json")
  if path is None:
    return names
  record = files.read_json(path)
  for role in names:
    token = record.get(f"{role}_token")
    # Older files hold the whole token: its text and how it is stripped.
    name = token.get("content") if isinstance(token, dict) else token
    if name is not None and not isinstance(name, str):
      raise errors.InputError(
        f"{path}: {role}_token is {token!r}; expected a token's text"
      )
    names[role] = name
  return names


def train_sentencepiece(
  texts: Iterable[str], vocab_size: int, *, model_type: str = "bpe"
) -> SentencePiece:
  """Returns a SentencePiece tokenizer trained on texts.

  bpe and unigram fall back to bytes, so nothing is unknown, and keep every
  space and line break. word has one id for each space-separated word, for texts
  of few words; other words are unknown.

  Raises:
    InputError: There is no text, or the vocabulary can't hold its characters.
  """
  import sentencepiece

  model = io.BytesIO()
  fields: dict[str, Any] = dict(
    sentence_iterator=iter(texts),
    model_writer=model,
    vocab_size=vocab_size,
    model_type=model_type,
    unk_id=0,
    bos_id=1,
    eos_id=2,
    pad_id=-1,
    control_symbols=[SEPARATOR_PIECE],
    byte_fallback=model_type != "word",
    character_coverage=1.0,
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
    split_digits=True,
    hard_vocab_limit=False,
    num_threads=1,
    minloglevel=2,
    # It would leave out longer texts without a word.
    max_sentence_length=1 << 30,
    use_all_vocab=model_type == "word",
  )
  try:
    with progress.showing("tokenizer", None, "text", first="learning"):
      sentencepiece.SentencePieceTrainer.train(**fields)
  except (RuntimeError, ValueError) as e:
    # A number that it can't hold is a ValueError.
    reason = str(e).rpartition("] ")[2].strip().replace("\n", " ")
    raise errors.InputError(
      f"can't train a {model_type} vocabulary of {vocab_size}:"
      f" {reason or 'is there any text?'}"
    ) from None
  return SentencePiece(model.getvalue())
