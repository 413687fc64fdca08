"""The names of a folder's tokens: its special ones and all controls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
import pathlib
from typing import Any, TYPE_CHECKING

from prm_jax import errors
from prm_jax.runtime import files
from prm_jax.runtime import foreign_files
from prm_jax.runtime import json_text
from prm_jax.text import tokenizer as tokenizer_lib

if TYPE_CHECKING:
  import tokenizers

CONFIG = "tokenizer_config.json"
_TOKENIZER = "tokenizer.json"
_MAP = "special_tokens_map.json"


def read_config(folder: pathlib.Path) -> dict[str, Any]:
  """Returns a folder's tokenizer_config.json; an empty one if it has none."""
  return foreign_files.read_json(folder, CONFIG)


def special(folder: pathlib.Path) -> dict[str, str]:
  """Returns the names of special tokens by their roles, as "bos_token"."""
  record = foreign_files.read_json(folder, _MAP) | read_config(folder)
  named = {
    role: _name(token)
    for role, token in record.items()
    if role.endswith("_token")
  }
  return {role: name for role, name in named.items() if name is not None}


def controls(
  folder: pathlib.Path, tokenizer: tokenizer_lib.Tokenizer
) -> tuple[str, ...]:
  """Returns the names of the tokens that no text yields, in order.

  White space isn't one, even if it is an added token.

  Args:
    folder: The Hugging Face folder.
    tokenizer: Its tokenizer, which says what a text can yield.
  """
  names = {name for name in _added(folder) if name.strip()}
  return tuple(
    sorted(name for name in names if tokenizer.control(name) is not None)
  )


def by_id(
  folder: pathlib.Path, tokenizer: tokenizer_lib.Tokenizer
) -> dict[int, str]:
  """Returns the names of `controls` by their ids."""
  named = {
    tokenizer.control(name): name for name in controls(folder, tokenizer)
  }
  return {i: name for i, name in named.items() if i is not None}


def as_published(folder: pathlib.Path) -> tokenizers.Tokenizer | None:
  """Returns a folder's tokenizer.json as others use it, None without one.

  It finds control tokens in a text.

  Raises:
    InputError: `tokenizers` doesn't read it.
  """
  import tokenizers

  path = foreign_files.find(folder, _TOKENIZER)
  if path is None:
    return None
  try:
    tokenizer = tokenizers.Tokenizer.from_str(files.read_text(path))
  except (KeyboardInterrupt, SystemExit):
    raise
  except BaseException as e:  # a panic of Rust is no Exception
    raise errors.InputError(
      f"{path}: not one that `tokenizers` reads: {str(e).partition(chr(10))[0]}"
    ) from None
  tokenizer.no_truncation()
  tokenizer.no_padding()
  return tokenizer


def published_ids(
  folder: pathlib.Path,
  tokenizer: tokenizers.Tokenizer,
  text: str,
  *,
  add_special_tokens: bool = False,
) -> list[int]:
  """Returns the ids of a text by what `as_published` returned.

  Raises:
    InputError: `tokenizers` fails, as without a token for a character.
  """
  whole = tokenizer_lib.encoding_of(
    tokenizer,
    text,
    f"{folder / _TOKENIZER}",
    advice="an import encodes such texts, so use another tokenizer",
    add_special_tokens=add_special_tokens,
  )
  return list(whole.ids)


def other_ids(
  folder: pathlib.Path, tried: Iterable[tuple[str, str, Iterable[int]]]
) -> str | None:
  """Returns the first text whose ids are others as published, None without one.

  Args:
    folder: The folder; without a tokenizer.json nothing is tried.
    tried: What to call each text, the text, and the ids that we give it.
  """
  whole = as_published(folder)
  if whole is not None:
    for name, text, own in tried:
      if published_ids(folder, whole, text) != list(own):
        return name
  return None


def _added(folder: pathlib.Path) -> Iterator[str]:
  """Yields the names of added and special tokens of all files."""
  yield from special(folder).values()
  record = read_config(folder)
  listed = [record.get("additional_special_tokens")]
  decoder = record.get("added_tokens_decoder")
  listed.append(list(decoder.values()) if isinstance(decoder, Mapping) else [])
  path = foreign_files.find(folder, _TOKENIZER)
  if path is not None:
    spec = json_text.parse(files.read_text(path), strict=False)
    listed.append(spec.get("added_tokens"))
  for tokens in listed:
    for token in tokens if isinstance(tokens, list) else ():
      name = _name(token)
      if name is not None:
        yield name


def _name(token: Any) -> str | None:
  """Returns the text of a token, which some files hold as an object."""
  name = token.get("content") if isinstance(token, Mapping) else token
  return name if isinstance(name, str) else None
