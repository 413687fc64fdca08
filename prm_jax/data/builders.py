"""Published data as TFDS datasets: ArrayRecord files, read by number.

  prm800k (configs phase1, phase2)   math_shepherd   processbench   gsm8k

They need no TensorFlow. The files come from their public homes or from a
manual folder; `checksums.tsv` beside this file holds what is known of them.

A record is one Solution in our JSON form, as the one feature "solution".
Nothing is lost (labels may be null, further fields may be anything), and it
reads fast: 67 us to a Solution against 153 us for decoding the same fields as
features of their own. Records keep the order of the files, so that solutions
of one problem stay together; training shuffles by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import dataclasses
import json
import logging
import pathlib
import tempfile
from typing import Any

import tensorflow_datasets as tfds

from prm_jax import schema
from prm_jax.formats import gsm8k
from prm_jax.formats import math_shepherd
from prm_jax.formats import prm800k
from prm_jax.formats import processbench

# A published file, and what it leaves out -> its solutions.
Reader = Callable[[pathlib.Path, Counter[str]], Iterable[schema.Solution]]

FEATURE = "solution"
VERSION = tfds.core.Version("1.0.0")
# TFDS finds the checksums beside it. What it computes itself needs
# importlib_resources, which it doesn't install.
CODE = pathlib.Path(__file__)
NOTES: dict[str, str] = {"1.0.0": "One solution in prm_jax's JSON per record."}

_PRM800K = (
  "https://media.githubusercontent.com/media/openai/prm800k/main/prm800k/data/"
)
_MATH_SHEPHERD = (
  "https://huggingface.co/datasets/peiyi9979/Math-Shepherd/resolve/main/"
)
_PROCESSBENCH = (
  "https://huggingface.co/datasets/Qwen/ProcessBench/resolve/main/"
)
_GSM8K = (
  "https://raw.githubusercontent.com/openai/grade-school-math/master/"
  "grade_school_math/data/"
)


def record(solution: schema.Solution) -> dict[str, str]:
  """Returns the features of a record."""
  written = schema.record_from_solution(solution)
  try:
    return {FEATURE: json.dumps(written, ensure_ascii=False, allow_nan=False)}
  except ValueError as e:
    raise schema.InputError(
      f"solution {solution.id!r}: can't be written as JSON: {e}; write null"
    ) from None


def solution(features: Mapping[str, Any], where: str) -> schema.Solution:
  """Returns the solution of a record; the inverse of the above.

  Raises:
    InputError: the record is another dataset's, or damaged.
  """
  try:
    fields = json.loads(features[FEATURE])
  except (KeyError, TypeError, ValueError):
    raise schema.InputError(
      f'{where}: no feature "{FEATURE}" that holds JSON; build the data with'
      " prm-jax data build"
    ) from None
  return schema.solution_from_record(fields, where)


def _info(
  builder: tfds.core.DatasetBuilder,
  description: str,
  homepage: str = "",
  citation: str = "",
) -> tfds.core.DatasetInfo:
  # Not dataset_info_from_configs(): it wants a package per builder.
  return tfds.core.DatasetInfo(
    builder=builder,
    description=description,
    features=tfds.features.FeaturesDict({FEATURE: tfds.features.Text()}),
    homepage=homepage or None,
    citation=citation or None,
    disable_shuffling=True,
  )


def _files(
  dl_manager: tfds.download.DownloadManager, base: str, names: Mapping[str, str]
) -> dict[str, pathlib.Path]:
  """Returns each split's file.

  names: split -> file below the address `base`, or in the manual folder, where
  it may be gzipped. A manual folder may hold some splits only: what it lacks
  is said.

  Raises:
    InputError: the manual folder holds none of them.
  """
  try:
    folder = pathlib.Path(dl_manager.manual_dir)
  except AssertionError:  # there is none, or nothing in it
    found = dl_manager.download({s: base + f for s, f in names.items()})
    return {split: pathlib.Path(path) for split, path in found.items()}
  there: dict[str, pathlib.Path] = {}
  for split, name in names.items():
    for path in (folder / name, folder / f"{name}.gz"):
      if path.is_file():
        there.setdefault(split, path)
  if not there:
    raise _Missing(
      f"{folder}: holds none of {', '.join(names.values())}, as they are or"
      " gzipped; put them there"
    )
  missing = ", ".join(n for s, n in names.items() if s not in there)
  if missing:
    print(f"{folder}: has no {missing}; those splits aren't built")
  return there


def _examples(
  solutions: Iterable[schema.Solution], left_out: Counter[str], where: str
) -> Iterator[tuple[int, dict[str, str]]]:
  """Yields numbered records; says in the end what was left out."""
  count = 0
  for count, one in enumerate(solutions, 1):
    yield count - 1, record(one)
  said = ", ".join(f"{n:,} {why}" for why, n in sorted(left_out.items()) if n)
  print(f"{where}: {count:,} solutions" + f"; left out: {said}" * bool(said))


def _published(
  path: pathlib.Path, name: str, reader: Reader
) -> Iterator[tuple[int, dict[str, str]]]:
  """Yields the records of a file whose published name is `name`."""
  left_out: Counter[str] = Counter()
  with _named(path, name) as named:
    yield from _examples(reader(named, left_out), left_out, named.name)


@contextlib.contextmanager
def _named(path: pathlib.Path, name: str) -> Iterator[pathlib.Path]:
  """Gives a file its published name, which is a part of ids, for a while.

  What was downloaded is named after its address and checksum.
  """
  with tempfile.TemporaryDirectory() as folder:
    link = pathlib.Path(folder, name + ".gz" * (path.suffix == ".gz"))
    link.symlink_to(path.resolve())
    yield link


# --- The datasets -----------------------------------------------------------


class Prm800k(tfds.core.GeneratorBasedBuilder):
  """People's ratings of steps and of alternatives to them; trees as rows."""

  code_path = CODE
  VERSION = VERSION
  RELEASE_NOTES = NOTES
  BUILDER_CONFIGS = [  # noqa: RUF012
    tfds.core.BuilderConfig(
      name="phase1", description="Chosen paths with all rated alternatives."
    ),
    tfds.core.BuilderConfig(
      name="phase2", description="Labelled up to the first error."
    ),
  ]
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    "Put phase1_train.jsonl, phase1_test.jsonl, phase2_train.jsonl and"
    " phase2_test.jsonl of github.com/openai/prm800k (prm800k/data; the files"
    " are in Git LFS) into the folder, as they are or gzipped."
  )

  def _info(self) -> tfds.core.DatasetInfo:
    return _info(
      self,
      "PRM800K: step-level ratings of model solutions of MATH problems.",
      "https://github.com/openai/prm800k",
      """@article{lightman2023lets,
  title={Let's Verify Step by Step},
  author={Lightman, Hunter and Kosaraju, Vineet and Burda, Yura and Edwards,
    Harri and Baker, Bowen and Lee, Teddy and Leike, Jan and Schulman, John and
    Sutskever, Ilya and Cobbe, Karl},
  journal={arXiv preprint arXiv:2305.20050},
  year={2023}
}""",
    )

  def _split_generators(self, dl_manager):
    phase = self.builder_config.name
    names = {s: f"{phase}_{s}.jsonl" for s in ("train", "test")}
    files = _files(dl_manager, _PRM800K, names)
    return {s: self._generate_examples(files[s], names[s]) for s in files}

  def _generate_examples(self, path, name):
    return _published(
      path, name, lambda path, left_out: prm800k.read(path, left_out=left_out)
    )


class MathShepherd(tfds.core.GeneratorBasedBuilder):
  """Steps judged by Monte-Carlo completions."""

  code_path = CODE
  VERSION = VERSION
  RELEASE_NOTES = NOTES
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    "Put math-shepherd.jsonl of huggingface.co/datasets/peiyi9979/Math-Shepherd"
    " into the folder, as it is or gzipped."
  )

  def _info(self) -> tfds.core.DatasetInfo:
    return _info(
      self,
      "Math-Shepherd: solutions of GSM8K and MATH problems, steps labelled by"
      " whether a completion from there reaches the right answer.",
      "https://huggingface.co/datasets/peiyi9979/Math-Shepherd",
      """@article{wang2023math,
  title={Math-Shepherd: Verify and Reinforce LLMs Step-by-step without Human
    Annotations},
  author={Wang, Peiyi and Li, Lei and Shao, Zhihong and Xu, R. X. and Dai,
    Damai and Li, Yifei and Chen, Deli and Wu, Y. and Sui, Zhifang},
  journal={arXiv preprint arXiv:2312.08935},
  year={2023}
}""",
    )

  def _split_generators(self, dl_manager):
    names = {"train": "math-shepherd.jsonl"}
    files = _files(dl_manager, _MATH_SHEPHERD, names)
    return {s: self._generate_examples(files[s], names[s]) for s in files}

  def _generate_examples(self, path, name):
    return _published(
      path,
      name,
      lambda path, left_out: math_shepherd.read(path, left_out=left_out),
    )


class Processbench(tfds.core.GeneratorBasedBuilder):
  """Real solutions with the index of the first wrong step; not to train on."""

  code_path = CODE
  VERSION = VERSION
  RELEASE_NOTES = NOTES
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    "Put gsm8k.json, math.json, olympiadbench.json and omnimath.json of"
    " huggingface.co/datasets/Qwen/ProcessBench into the folder, as they are"
    " or gzipped; some of them will do."
  )

  def _info(self) -> tfds.core.DatasetInfo:
    return _info(
      self,
      "ProcessBench: where is the first error? For evaluation only.",
      "https://huggingface.co/datasets/Qwen/ProcessBench",
      """@article{zheng2024processbench,
  title={ProcessBench: Identifying Process Errors in Mathematical Reasoning},
  author={Zheng, Chujie and Zhang, Zhenru and Zhang, Beichen and Lin, Runji and
    Lu, Keming and Yu, Bowen and Liu, Dayiheng and Zhou, Jingren and Lin,
    Junyang},
  journal={arXiv preprint arXiv:2412.06559},
  year={2024}
}""",
    )

  def _split_generators(self, dl_manager):
    subsets = ("gsm8k", "math", "olympiadbench", "omnimath")
    names = {s: f"{s}.json" for s in subsets}
    files = _files(dl_manager, _PROCESSBENCH, names)
    return {s: self._generate_examples(files[s], names[s]) for s in files}

  def _generate_examples(self, path, name):
    return _published(
      path, name, lambda path, left_out: processbench.read(path)
    )


class Gsm8k(tfds.core.GeneratorBasedBuilder):
  """Questions with their reference solutions, one step per line."""

  # TFDS has a gsm8k of its own, with other features.
  name = "gsm8k_solutions"
  code_path = CODE
  VERSION = VERSION
  RELEASE_NOTES = NOTES
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    "Put train.jsonl and test.jsonl of github.com/openai/grade-school-math"
    " (grade_school_math/data) into the folder, as they are or gzipped."
  )

  def _info(self) -> tfds.core.DatasetInfo:
    return _info(
      self,
      "GSM8K: grade-school word problems with worked solutions.",
      "https://github.com/openai/grade-school-math",
      """@article{cobbe2021training,
  title={Training Verifiers to Solve Math Word Problems},
  author={Cobbe, Karl and Kosaraju, Vineet and Bavarian, Mohammad and Chen,
    Mark and Jun, Heewoo and Kaiser, Lukasz and Plappert, Matthias and Tworek,
    Jerry and Hilton, Jacob and Nakano, Reiichiro and Hesse, Christopher and
    Schulman, John},
  journal={arXiv preprint arXiv:2110.14168},
  year={2021}
}""",
    )

  def _split_generators(self, dl_manager):
    names = {s: f"{s}.jsonl" for s in ("train", "test")}
    files = _files(dl_manager, _GSM8K, names)
    return {s: self._generate_examples(files[s], names[s]) for s in files}

  def _generate_examples(self, path, name):
    return _published(path, name, lambda path, left_out: gsm8k.read(path))


BUILDERS: dict[str, type[tfds.core.GeneratorBasedBuilder]] = {
  "prm800k": Prm800k,
  "math_shepherd": MathShepherd,
  "processbench": Processbench,
  "gsm8k": Gsm8k,
}


# --- Any solutions ----------------------------------------------------------


@dataclasses.dataclass
class Given(tfds.core.BuilderConfig):
  """splits: what is written, read once; left_out: filled meanwhile."""

  splits: Mapping[str, Iterable[schema.Solution]] = dataclasses.field(
    default_factory=dict
  )
  left_out: Counter[str] = dataclasses.field(default_factory=Counter)


# Unregistered: without its config it is nothing.
class Solutions(  # type: ignore[call-arg]
  tfds.core.GeneratorBasedBuilder, skip_registration=True
):
  """Solutions from anywhere; the config names them."""

  code_path = CODE
  VERSION = VERSION
  RELEASE_NOTES = NOTES

  def _info(self) -> tfds.core.DatasetInfo:
    return _info(self, "Solutions in prm_jax's JSON form.")

  def _split_generators(self, dl_manager):
    del dl_manager
    given = self.builder_config
    return {split: self._generate_examples(split) for split in given.splits}

  def _generate_examples(self, split):
    given = self.builder_config
    where = f"{given.name} {split}"
    return _examples(given.splits[split], given.left_out, where)


def write(
  folder: schema.PathLike,
  name: str,
  splits: Mapping[str, Iterable[schema.Solution]],
  left_out: Counter[str] | None = None,
) -> pathlib.Path:
  """Writes solutions below a folder; returns the folder of the dataset.

  left_out: what the readers of the splits count while they are read.

  Raises:
    InputError: the dataset is there already, or there is no solution.
  """
  counts = Counter[str]() if left_out is None else left_out
  given = Given(name=name, version=VERSION, splits=splits, left_out=counts)
  return _prepare(
    Solutions(config=given, data_dir=str(folder), file_format="array_record"),
    tfds.download.DownloadConfig(),
  )


def build(
  name: str,
  folder: schema.PathLike,
  *,
  manual: pathlib.Path | None = None,
) -> list[pathlib.Path]:
  """Builds all configs of a published dataset; returns their folders.

  manual: a folder that holds the published files; without it they are
  downloaded. Configs of which it holds nothing are left out, and named.

  Raises:
    InputError: the dataset is there already, no file is in `manual`, or one
      can't be downloaded or read.
  """
  kind = BUILDERS[name]
  built, missing = [], []
  for config in kind.BUILDER_CONFIGS or [None]:
    builder = kind(
      config=config, data_dir=str(folder), file_format="array_record"
    )
    download = tfds.download.DownloadConfig(
      manual_dir=None if manual is None else str(manual)
    )
    try:
      built.append(_prepare(builder, download))
    except _Missing as e:
      missing.append(e)
  if not built:
    raise missing[0]
  for reason in missing:
    print(f"not built: {reason}")
  return built


class _Missing(schema.InputError):
  """A manual folder holds no file of a dataset."""


def _prepare(
  builder: tfds.core.DatasetBuilder, download: tfds.download.DownloadConfig
) -> pathlib.Path:
  """Writes a dataset, all or nothing; returns its folder."""
  folder = pathlib.Path(builder.data_dir)
  if builder.is_prepared():
    raise schema.InputError(
      f"{folder}: is there already; remove the folder to build it again"
    )
  try:
    builder.download_and_prepare(
      download_config=download, file_format="array_record"
    )
  except AssertionError as e:
    if "No examples" not in str(e):
      raise
    raise schema.InputError(f"{folder}: a split would hold no solution") from e
  except tfds.core.download.download_manager.NonMatchingChecksumError as e:
    raise schema.InputError(
      f"{folder}: a file isn't the published one: {_line(e)}; compare it by"
      " hand and give it in a manual folder"
    ) from e
  except OSError as e:
    raise schema.InputError(
      f"{folder}: can't be built: {_line(e)}; without a network, put the files"
      " into a manual folder"
    ) from e
  return folder


def quiet(bars: bool) -> None:
  """Silences TFDS's advice, and its progress bars unless they are wanted."""
  logging.getLogger("absl").setLevel(logging.ERROR)
  if not bars:
    tfds.disable_progress_bar()


def _line(e: Exception) -> str:
  return " ".join(str(e).split())[:300]
