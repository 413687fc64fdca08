"""A static site of results: pages, scripts and data in scripts.

Data are scripts, too, so that the pages work from a folder, without a server:
data/index.js has what tables show, data/KIND-N.js some samples, searches, runs or
evaluations, which the page loads when one of them is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import functools
import json
import os
import pathlib
import shutil
from typing import Any

from prm_jax import errors
from prm_jax.probes import faithfulness
from prm_jax.reports import result_page
from prm_jax.runtime import files
from prm_jax.view import view_inputs
from prm_jax.view import view_pages
from prm_jax.view import view_samples
from prm_jax.view import view_searches
from prm_jax.web import assets

# A script has so many samples or others, or fewer with so many characters.
CHUNK_SAMPLES = 100
CHUNK_CHARACTERS = 1 << 19
_STATIC = pathlib.Path(__file__).parent / "static"
_OWN = tuple(sorted(x.name for x in _STATIC.iterdir() if x.is_file()))
_SHARED = tuple(
  x for x in assets.NAMES if x.startswith(("katex/", "base", "st"))
)
# What marks a folder as one that this wrote.
_MARK = b'<meta name="generator" content="prm-jax view">'


def pages(
  inputs: view_inputs.Inputs,
  more: Mapping[str, result_page.Page] | None = None,
) -> dict[str, bytes]:
  """Returns the files of a site.

  Args:
    inputs: What it shows.
    more: Further pages by their names, beside those of evaluations.

  Returns:
    The content of each file by its path; equal inputs have equal bytes.
  """
  made = {name: (_STATIC / name).read_bytes() for name in _OWN}
  page = made["index.html"].replace(b"POLICY", assets.POLICY.encode())
  made["index.html"] = page
  made |= {name: assets.read(name)[0] for name in _SHARED}
  samples = view_samples.build(inputs)
  source = view_samples.truth(samples)
  models = view_samples.models(samples)
  known = view_searches.known_steps(samples) if inputs.searches else {}
  searches = [(n, x) for n, found in inputs.searches.items() for x in found]
  runs = {n: view_pages.of_run(*run) for n, run in inputs.runs.items()}
  evaluations = {
    name: view_pages.of_evaluation(found)
    for name, found in inputs.evaluations.items()
  }
  evaluations |= {n: view_pages.of_people(x) for n, x in inputs.people.items()}
  evaluations |= {
    name: view_pages.of_probed(probed)
    for name, found in inputs.solutions.items()
    if (
      probed := [
        x.solution for x in found if faithfulness.FIELD in x.solution.extra
      ]
    )
  }
  evaluations |= dict(more or {})
  rows = dict(
    samples=[view_samples.row(x, source, models) for x in samples],
    searches=[view_searches.row(*x) for x in searches],
    runs=[dict(key=name) for name in runs],
    evaluations=[dict(key=name) for name in evaluations],
  )
  contents: dict[str, list[Any]] = dict(
    samples=[view_samples.content(x, source) for x in samples],
    searches=[view_searches.content(*x, known) for x in searches],
    runs=[*map(result_page.plain, runs.values())],
    evaluations=[*map(result_page.plain, evaluations.values())],
  )
  for kind, shown in contents.items():
    for number, (first, texts) in enumerate(_chunks(shown)):
      for row in rows[kind][first : first + len(texts)]:
        row["chunk"] = number
      made[f"data/{kind}-{number}.js"] = (
        f'(window.prmData ??= {{}})["{kind}-{number}"] ='
        f" {{first: {first}, items: [\n{','.join(texts)}\n]}};\n"
      ).encode()
  index = dict(
    models=models,
    truth=source,
    searched=[view_searches.file_row(*x) for x in inputs.searches.items()],
    **{kind: _table(of_kind) for kind, of_kind in rows.items()},
  )
  made["data/index.js"] = f"window.prmIndex = {script(index)};\n".encode()
  return made


def script(value: Any) -> str:
  """Returns a value as a JavaScript expression of ASCII characters.

  No text can end a script, or the string that it stands in.

  Args:
    value: The value, of what JSON has.
  """
  text = json.dumps(value, allow_nan=False, separators=(",", ":"))
  return text.replace("<", "\\u003c")


def _chunks(items: Sequence[Any]) -> Iterator[tuple[int, list[str]]]:
  """Yields the first item's number and the texts of successive items."""
  first, texts, size = 0, list[str](), 0
  for text in map(script, items):
    is_full = len(texts) == CHUNK_SAMPLES or size + len(text) > CHUNK_CHARACTERS
    if texts and is_full:
      yield first, texts
      first, texts, size = first + len(texts), [], 0
    texts.append(text)
    size += len(text)
  if texts:
    yield first, texts


def _table(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
  """Returns rows as columns, which name each field once."""
  return {
    name: [row[name] for row in rows] for name in (rows[0] if rows else ())
  }


def write(folder: files.PathLike, made: dict[str, bytes]) -> None:
  """Writes a site into a folder, all of it or nothing.

  Args:
    folder: The folder. One that holds a site, and nothing else, is replaced.
    made: The files of the site.

  Raises:
    InputError: The folder holds something else, or can't be written.
  """
  target = pathlib.Path(os.path.realpath(folder))
  check(folder)
  mine = f"{os.uname().nodename}.{os.getpid()}"
  new, old = (
    target.with_name(f".{target.name[-40:]}.{mine}.{x}") for x in ("new", "old")
  )
  try:
    for name, content in made.items():
      (new / name).parent.mkdir(parents=True, exist_ok=True)
      (new / name).write_bytes(content)
    if target.exists():
      os.rename(target, old)
    os.rename(new, target)
  except OSError as e:
    raise files.unwritable(folder, e) from None
  finally:
    remove = functools.partial(shutil.rmtree, ignore_errors=True)
    remove(new)
    if target.exists():
      remove(old)


def check(folder: files.PathLike) -> None:
  """Refuses a folder that holds anything but a site.

  Args:
    folder: The folder; it need not be there.

  Raises:
    InputError: It is a file, or holds something else.
  """
  path = pathlib.Path(folder)
  if not path.exists():
    return
  if not path.is_dir():
    raise errors.InputError(f"{folder}: isn't a folder; give another `static`")
  found = {x.name for x in path.iterdir()}
  own = {*_OWN, "data", *(x.partition("/")[0] for x in _SHARED)}
  is_site = found <= own and _MARK in _begin(path / "index.html")
  if found and not is_site:
    raise errors.InputError(
      f"{folder}: holds something else than these pages; give an empty folder,"
      " or a new one"
    )


def _begin(path: pathlib.Path) -> bytes:
  try:
    return path.read_bytes()[:2_000]
  except OSError:
    return b""
