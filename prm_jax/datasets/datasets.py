"""`prm_jax.Convert`, `Split` and `Build`: data sets that become other ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
import dataclasses
import logging
import pathlib
import sys
from typing import Any, Literal

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets import data_inputs
from prm_jax.runtime import outputs
from prm_jax.runtime import verbs

_logger = logging.getLogger(__name__)
# segmenters.KINDS without tokens, which needs a tokenizer.
Segmenter = Literal["paragraph", "line", "sentence", "numbered", "markers"]


@dataclasses.dataclass(frozen=True)
class ConvertJob(verbs.Value):
  """Which solutions are converted, and where they go.

  Args:
    file: The solutions to convert.
    output: The file to write; - is the standard output, and messages go to
      stderr (a file is written whole or not at all, the standard output isn't).
    controls: With --format=prmbench and --to=jsonl, also write the right
      solutions that `eval prmbench` scores as controls, so that another scorer
      scores them.
  """

  file: data_inputs.Source = dataclasses.field(metadata=data_inputs.FILE)
  output: verbs.OutputOrStdout
  controls: bool = False


@dataclasses.dataclass(frozen=True)
class Convert(verbs.Verb):
  """Writes a file of solutions in another format.

  Args:
    to: The format to write; docs/data.md lists the formats, such as jsonl and
      prm800k.
    neutral: Turn ratings into labels; the value says what PRM800K's rating 0
      becomes: good (label 1), bad (label 0), ignore (no label) or three_way
      (label 0.5). Needed if the file has ratings and --to is of labels, as all
      but jsonl, prm800k, chat, atif and agent_process_bench are (default:
      ratings stay ratings).
    after_first_error: With --neutral, what becomes of the labels after the
      first wrong step: ignore (no label), bad (label 0) or keep (default: they
      are kept).
    fill: Cut off the steps after a solution's last label, and label earlier
      steps without a label as right.
    skip: Leave out solutions that the new format can't hold, and count them.
    segmenter: Cut the turns of unlabelled trajectories into steps: paragraph,
      line, sentence, numbered or markers; only jsonl holds them (default: a
      turn is a step).
    annotators: What becomes of several people's labels of one solution: each
      (they stay as many solutions), vote (a step has the label of more than
      half) or mean (the mean of its labels, a soft label).
    principle: Take the labels of this principle of a judge's rubric, or of
      overall, from solutions of `label judge --rubric` (docs/judge.md); a
      solution without them gets no labels.

  Example:
    prm-jax data convert samples.jsonl --to=stepwise --output=stepwise.jsonl
  """

  to: str
  neutral: data_inputs.Neutral | None = None
  after_first_error: data_inputs.AfterFirstError | None = None
  fill: bool = False
  skip: bool = False
  segmenter: Segmenter | None = None
  annotators: Literal["each", "vote", "mean"] = "each"
  principle: str | None = None

  def __post_init__(self):
    super().__post_init__()
    if self.neutral is None and self.after_first_error is not None:
      raise errors.InputError(
        f"`after_first_error={self.after_first_error}`: is a part of the label"
        " policy; give `neutral` with it"
      )
    from prm_jax.datasets import convert

    convert.writer(self.to)

  def _options(self) -> dict[str, Any]:
    from prm_jax.text import encoding
    from prm_jax.text import segmenters

    cut = None if self.segmenter is None else segmenters.parse(self.segmenter)
    policy = None
    if self.neutral is not None:
      policy = encoding.LabelPolicy(
        self.neutral, self.after_first_error or "keep"
      )
    return dict(
      policy=policy,
      fill=self.fill,
      skip=self.skip,
      segmenter=cut,
      merge=self.annotators,
      principle=self.principle,
    )

  def __call__(
    self, solutions: Iterable[schema.Solution]
  ) -> list[schema.Solution]:
    """Returns the solutions that a file of the format gets.

    Args:
      solutions: The solutions.

    Raises:
      InputError: The format can't hold one of them.
    """
    from prm_jax.datasets import convert

    ready = [
      *convert.prepared(solutions, self.to, Counter(), **self._options())
    ]
    for solution in ready:
      convert.check(solution, self.to)
    return ready

  def run(self, job: ConvertJob) -> None:
    """Converts the solutions of a file, and reads them back.

    Args:
      job: The files.
    """
    from prm_jax.datasets import convert

    source = job.file
    done = convert.convert(
      (source.format_name, source.path),
      self.to,
      job.output,
      controls=job.controls,
      **self._options(),
    )
    told = convert.texts(done, source.path, job.output, self.to)
    verbs.log_text(_logger, "\n".join(told))


@dataclasses.dataclass(frozen=True)
class SplitJob(verbs.Value):
  """Which solutions are split, and where the parts go.

  Args:
    file: The solutions to split.
    train: The training set to write.
    test: The test set to write.
  """

  file: data_inputs.Source = dataclasses.field(metadata=data_inputs.FILE)
  train: verbs.Output
  test: verbs.Output


@dataclasses.dataclass(frozen=True)
class Split(verbs.Verb):
  """Splits solutions into a training set and a test set, by their problems.

  All solutions of a problem are in one of the two.

  Args:
    against: A test set; the command is refused if --train would hold one of its
      problems, see --skip; repeat the option for each test set.
    to: The format to write; docs/data.md lists the formats, such as jsonl and
      prm800k.
    share: The share of the problems that go to --test.
    skip: Leave problems that --against holds out of --train, instead of
      refusing the file; those in --test stay.

  Example:
    prm-jax data split labelled.jsonl --train=train.jsonl --test=test.jsonl
  """

  against: tuple[str, ...] = dataclasses.field(
    default=(), metadata=data_inputs.AGAINST
  )
  to: str = "jsonl"
  share: float = 0.1
  skip: bool = False

  def __post_init__(self):
    super().__post_init__()
    from prm_jax.datasets import convert

    convert.writer(self.to)
    if not 0 < self.share < 1:
      raise errors.InputError(
        f"`share={self.share}`: give a share between 0 and 1"
      )

  def __call__(
    self, solutions: Sequence[schema.Solution]
  ) -> tuple[list[schema.Solution], list[schema.Solution]]:
    """Returns the training set and the test set.

    Args:
      solutions: The solutions.

    Raises:
      InputError: A part would be empty, the training set holds a problem of
        `against`, or the format can't hold a solution.
    """
    from prm_jax.datasets import convert

    solutions = list(solutions)
    _, side_of = convert.divided(
      *(solutions, self.to, self.share, Counter(), "solutions"),
      against=data_inputs.index(self.against),
      skip=self.skip,
    )
    sides = [side_of(solution) for solution in solutions]
    train, test = (
      [s for s, side in zip(solutions, sides) if side == name]
      for name in ("train", "test")
    )
    return train, test

  def run(self, job: SplitJob) -> None:
    """Splits the solutions of a file.

    Args:
      job: The files.
    """
    from prm_jax.datasets import convert
    from prm_jax.records import sources

    source = job.file
    outputs.check(
      dict(train=job.train, test=job.test),
      [source.stored_at, *sources.paths_of(self.against)],
    )
    done = convert.split(
      (source.format_name, source.path),
      *(self.to, job.train, job.test, self.share),
      against=data_inputs.index(self.against),
      skip=self.skip,
    )
    told = convert.split_texts(done, job.train, job.test)
    verbs.log_text(_logger, "\n".join(told))


@dataclasses.dataclass(frozen=True)
class Build(verbs.Verb):
  """Writes a data set as ArrayRecord files.

  Training reads their records one by one, without loading all of them.

  Args:
    name: A published data set (prm800k, math_shepherd, processbench or gsm8k),
      or the format of --input; docs/data.md lists the formats, such as jsonl
      and prm800k.
    output: The folder in which the data set is written.
    input: A folder with the files of the published data set, or one file in the
      format NAME; needed if NAME is a format (default: the published files are
      downloaded).

  Example:
    prm-jax data build jsonl --input=labelled.jsonl --output=runs/data
  """

  name: str = dataclasses.field(metadata=data_inputs.FILE)
  output: verbs.Output
  input: verbs.Local | None = None

  def __call__(self) -> list[pathlib.Path]:
    """Builds the data set; returns its folders, one for each of its configs.

    Raises:
      InputError: There is no such data set or format, its file can't be read,
        or the data set is there already.
    """
    # Not above: the other commands don't wait for TFDS.
    from prm_jax.datasets import tfds_builders
    from prm_jax.datasets import tfds_records
    from prm_jax.records import sources

    tfds_records.quiet(sys.stderr.isatty())
    given = None if self.input is None else sources.find(self.input)
    outputs.check(dict(output=self.output), [given], are_folders=True)
    published = self.name in tfds_builders.BUILDERS
    if published and (given is None or given.is_dir()):
      return tfds_builders.build(self.name, self.output, manual=given)
    if given is None:
      raise errors.InputError(
        f"{self.name}: give `input=FILE` in that format, or one of"
        f" {', '.join(tfds_builders.BUILDERS)}"
      )
    left_out: Counter[str] = Counter()
    rows = sources.reader(self.name)(given, left_out)
    name = pathlib.Path(given.name.removesuffix(".gz")).stem
    parts = dict(train=rows)
    return [tfds_records.write(self.output, name, parts, left_out)]

  def run(self) -> None:
    """Builds the data set, and says where it is."""
    for folder in self():
      _logger.info(f"dataset: {folder}")
