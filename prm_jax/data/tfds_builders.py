"""Published data as TFDS datasets: ArrayRecord files, read by number.

  prm800k (configs phase1, phase2)   math_shepherd   processbench   gsm8k

They need no TensorFlow. The files come from their public homes or from a
manual folder; `checksums.tsv` beside this file holds what is known of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import pathlib
import tempfile

import tensorflow_datasets as tfds

from prm_jax import errors
from prm_jax import schema
from prm_jax.data import tfds_records
from prm_jax.data.formats import gsm8k
from prm_jax.data.formats import math_shepherd
from prm_jax.data.formats import prm800k
from prm_jax.data.formats import processbench
from prm_jax.runtime import files as files_lib

# A published file, and what it leaves out -> its solutions.
Reader = Callable[[pathlib.Path, Counter[str]], Iterable[schema.Solution]]

# TFDS finds the checksums beside it. What it computes itself needs
# importlib_resources, which it doesn't install.
CODE = pathlib.Path(__file__)

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


def _published(
  path: pathlib.Path, name: str, reader: Reader
) -> Iterator[tuple[int, dict[str, str]]]:
  """Yields the records of a file whose published name is `name`."""
  left_out: Counter[str] = Counter()
  with _named(path, name) as named:
    yield from tfds_records.examples(
      reader(named, left_out), left_out, named.name
    )


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
  VERSION = tfds_records.VERSION
  RELEASE_NOTES = tfds_records.NOTES
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
    return tfds_records.info(
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
  VERSION = tfds_records.VERSION
  RELEASE_NOTES = tfds_records.NOTES
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    "Put math-shepherd.jsonl of huggingface.co/datasets/peiyi9979/Math-Shepherd"
    " into the folder, as it is or gzipped."
  )

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds_records.info(
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
  VERSION = tfds_records.VERSION
  RELEASE_NOTES = tfds_records.NOTES
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    "Put gsm8k.json, math.json, olympiadbench.json and omnimath.json of"
    " huggingface.co/datasets/Qwen/ProcessBench into the folder, as they are"
    " or gzipped; some of them will do."
  )

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds_records.info(
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
  VERSION = tfds_records.VERSION
  RELEASE_NOTES = tfds_records.NOTES
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    "Put train.jsonl and test.jsonl of github.com/openai/grade-school-math"
    " (grade_school_math/data) into the folder, as they are or gzipped."
  )

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds_records.info(
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


def build(
  name: str,
  folder: files_lib.PathLike,
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
      built.append(tfds_records.prepare(builder, download))
    except _Missing as e:
      missing.append(e)
  if not built:
    raise missing[0]
  for reason in missing:
    print(f"not built: {reason}")
  return built


class _Missing(errors.InputError):
  """A manual folder holds no file of a dataset."""
