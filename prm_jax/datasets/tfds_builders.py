"""Published data as TFDS data sets: ArrayRecord files, read by number.

  prm800k (configs phase1, phase2)   math_shepherd   processbench   gsm8k

They need no TensorFlow. The files are downloaded or come from a folder that the
user names; `checksums.tsv` in this folder has their sizes and checksums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
import contextlib
import logging
import pathlib
import tempfile

import tensorflow_datasets as tfds

from prm_jax import errors
from prm_jax.datasets import tfds_records
from prm_jax.records import sources
from prm_jax.runtime import files as files_lib

_logger = logging.getLogger(__name__)

# TFDS finds the checksums beside it. What it computes itself needs
# importlib_resources, which it doesn't install.
CODE = pathlib.Path(__file__)


def _files(
  dl_manager: tfds.download.DownloadManager, base: str, names: Mapping[str, str]
) -> dict[str, pathlib.Path]:
  """Returns each split's file.

  names: split -> file below the address `base`, or in the manual folder, where
  it may be gzipped. A manual folder may hold some splits only; those that it
  lacks are printed.

  Raises:
    InputError: the manual folder holds none of them.
  """
  try:
    folder = pathlib.Path(dl_manager.manual_dir)
  except AssertionError:  # there is none, or nothing in it
    paths = dl_manager.download({s: base + f for s, f in names.items()})
    return {split: pathlib.Path(path) for split, path in paths.items()}
  present: dict[str, pathlib.Path] = {}
  for split, name in names.items():
    for path in (folder / name, folder / f"{name}.gz"):
      if path.is_file():
        present.setdefault(split, path)
  if not present:
    raise _Missing(
      f"{folder}: holds none of {', '.join(names.values())}, as they are or"
      " gzipped; put them there"
    )
  missing = ", ".join(n for s, n in names.items() if s not in present)
  if missing:
    _logger.info(f"{folder}: has no {missing}; those splits aren't built")
  return present


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


# Unregistered: what it builds is a class below.
class _Published(  # type: ignore[call-arg]
  tfds.core.GeneratorBasedBuilder, skip_registration=True
):
  """What the builders of published files share.

  format_name: which reader of records.sources reads its files. base: the address
  below which they are. names: of each split's file.
  """

  code_path = CODE
  VERSION = tfds_records.VERSION
  RELEASE_NOTES = tfds_records.NOTES
  format_name: str
  description: str
  homepage: str
  citation: str
  base: str
  names: Mapping[str, str]

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds_records.info(
      self, self.description, self.homepage, self.citation
    )

  def _split_generators(self, dl_manager):
    files = _files(dl_manager, self.base, self.names)
    return {s: self._generate_examples(files[s], self.names[s]) for s in files}

  def _generate_examples(self, path, name):
    left_out: Counter[str] = Counter()
    with _named(path, name) as file:
      solutions = sources.reader(self.format_name)(file, left_out)
      yield from tfds_records.examples(solutions, left_out, file.name)


class Prm800k(_Published):
  """Human ratings of steps and of alternatives to them; a row is a tree."""

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
  format_name = "prm800k"
  description = (
    "PRM800K: step-level ratings of model solutions of MATH problems."
  )
  homepage = "https://github.com/openai/prm800k"
  citation = """@article{lightman2023lets,
  title={Let's Verify Step by Step},
  author={Lightman, Hunter and Kosaraju, Vineet and Burda, Yura and Edwards,
    Harri and Baker, Bowen and Lee, Teddy and Leike, Jan and Schulman, John and
    Sutskever, Ilya and Cobbe, Karl},
  journal={arXiv preprint arXiv:2305.20050},
  year={2023}
}"""
  base = (
    "https://media.githubusercontent.com/media/openai/prm800k/main/prm800k"
    "/data/"
  )

  @property
  def names(self) -> Mapping[str, str]:  # type: ignore[override]
    phase = self.builder_config.name
    return {s: f"{phase}_{s}.jsonl" for s in ("train", "test")}


class MathShepherd(_Published):
  """Steps judged by Monte-Carlo completions."""

  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    "Put math-shepherd.jsonl of huggingface.co/datasets/peiyi9979/Math-Shepherd"
    " into the folder, as it is or gzipped."
  )
  format_name = "math_shepherd"
  description = (
    "Math-Shepherd: solutions of GSM8K and MATH problems, steps labelled by"
    " whether a completion from there reaches the right answer."
  )
  homepage = "https://huggingface.co/datasets/peiyi9979/Math-Shepherd"
  citation = """@article{wang2023math,
  title={Math-Shepherd: Verify and Reinforce LLMs Step-by-step without Human
    Annotations},
  author={Wang, Peiyi and Li, Lei and Shao, Zhihong and Xu, R. X. and Dai,
    Damai and Li, Yifei and Chen, Deli and Wu, Y. and Sui, Zhifang},
  journal={arXiv preprint arXiv:2312.08935},
  year={2023}
}"""
  base = f"{homepage}/resolve/main/"
  names = {"train": "math-shepherd.jsonl"}  # noqa: RUF012


class Processbench(_Published):
  """Real solutions with the index of the first wrong step, for evaluation."""

  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    "Put gsm8k.json, math.json, olympiadbench.json and omnimath.json of"
    " huggingface.co/datasets/Qwen/ProcessBench into the folder, as they are"
    " or gzipped; some of them will do."
  )
  format_name = "processbench"
  description = "ProcessBench: where is the first error? For evaluation only."
  homepage = "https://huggingface.co/datasets/Qwen/ProcessBench"
  citation = """@article{zheng2024processbench,
  title={ProcessBench: Identifying Process Errors in Mathematical Reasoning},
  author={Zheng, Chujie and Zhang, Zhenru and Zhang, Beichen and Lin, Runji and
    Lu, Keming and Yu, Bowen and Liu, Dayiheng and Zhou, Jingren and Lin,
    Junyang},
  journal={arXiv preprint arXiv:2412.06559},
  year={2024}
}"""
  base = f"{homepage}/resolve/main/"
  names = {  # noqa: RUF012
    s: f"{s}.json" for s in ("gsm8k", "math", "olympiadbench", "omnimath")
  }


class Gsm8k(_Published):
  """Questions with their reference solutions, one step per line."""

  # TFDS has a gsm8k of its own, with other features.
  name = "gsm8k_solutions"
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    "Put train.jsonl and test.jsonl of github.com/openai/grade-school-math"
    " (grade_school_math/data) into the folder, as they are or gzipped."
  )
  format_name = "gsm8k"
  description = "GSM8K: grade-school word problems with worked solutions."
  homepage = "https://github.com/openai/grade-school-math"
  citation = """@article{cobbe2021training,
  title={Training Verifiers to Solve Math Word Problems},
  author={Cobbe, Karl and Kosaraju, Vineet and Bavarian, Mohammad and Chen,
    Mark and Jun, Heewoo and Kaiser, Lukasz and Plappert, Matthias and Tworek,
    Jerry and Hilton, Jacob and Nakano, Reiichiro and Hesse, Christopher and
    Schulman, John},
  journal={arXiv preprint arXiv:2110.14168},
  year={2021}
}"""
  base = (
    "https://raw.githubusercontent.com/openai/grade-school-math/master/"
    "grade_school_math/data/"
  )
  names = {s: f"{s}.jsonl" for s in ("train", "test")}  # noqa: RUF012


BUILDERS = {
  builder.format_name: builder
  for builder in (Prm800k, MathShepherd, Processbench, Gsm8k)
}


def build(
  name: str, folder: files_lib.PathLike, *, manual: pathlib.Path | None = None
) -> list[pathlib.Path]:
  """Builds all configs of a published data set; returns their folders.

  Args:
    name: The name of the data set.
    folder: The folder in which the data sets are written.
    manual: A folder with the published files; None downloads them. Configs
      without a file there are left out and named.

  Raises:
    InputError: The data set is there already, no file is in `manual`, or one
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
    _logger.info(f"not built: {reason}")
  return built


class _Missing(errors.InputError):
  """A manual folder holds no file of a dataset."""
