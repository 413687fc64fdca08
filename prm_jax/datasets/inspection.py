"""`prm_jax.Examine`, `Inspect` and `Stats`: solutions as training sees them.

They are here, not in data/: a checkpoint folder may say how they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import logging
import pathlib
from typing import Any, ClassVar, Literal, TYPE_CHECKING

from prm_jax import errors
from prm_jax import schema
from prm_jax.datasets import data_inputs
from prm_jax.jobs import report
from prm_jax.runtime import outputs
from prm_jax.runtime import verbs

if TYPE_CHECKING:
  from prm_jax.text import encoding
  from prm_jax.text import tokenizer as tokenizer_lib

_logger = logging.getLogger(__name__)
# encoding.SCORE_POSITIONS and TRUNCATIONS; that module loads numpy.
ScorePosition = Literal["last_token", "separator"]
Truncation = Literal["truncate", "drop"]


@dataclasses.dataclass(frozen=True)
class InspectJob(verbs.Value):
  """Which solutions are looked at.

  Args:
    file: The solutions.
  """

  file: data_inputs.Source = dataclasses.field(metadata=data_inputs.FILE)


@dataclasses.dataclass(frozen=True)
class ExamineJob(verbs.Value):
  """Which solutions are examined, and where the results go.

  Args:
    file: The solutions to examine.
    output: The JSON file to write the results to; - is the standard output, and
      messages go to stderr (a file is written whole or not at all, the standard
      output isn't).
  """

  file: data_inputs.Source = dataclasses.field(metadata=data_inputs.FILE)
  output: verbs.OutputOrStdout | None = None


@dataclasses.dataclass(frozen=True)
class _Reader(verbs.Verb):
  """What reads solutions as training does.

  Args:
    checkpoint: The checkpoint folder whose tokenizer and encoding are used
      (default: bytes as tokens).
    neutral: What PRM800K's rating 0 becomes: good (label 1), bad (label 0),
      ignore (no label) or three_way (label 0.5).
    after_first_error: What becomes of the labels after the first wrong step:
      ignore (no label), bad (label 0) or keep (they stay as they are).
  """

  checkpoint: verbs.Local | None = None
  neutral: data_inputs.Neutral = "good"
  after_first_error: data_inputs.AfterFirstError = "ignore"

  is_printed: ClassVar[bool] = True

  def _labels(self) -> encoding.LabelPolicy:
    from prm_jax.text import encoding

    return encoding.LabelPolicy(self.neutral, self.after_first_error)

  def _reading(
    self,
  ) -> tuple[tokenizer_lib.Tokenizer, encoding.EncodingConfig] | None:
    """Returns how the checkpoint's model reads solutions."""
    if self.checkpoint is None:
      return None
    from prm_jax.checkpoints import model_json
    from prm_jax.text import encoding

    folder = pathlib.Path(self.checkpoint)
    description = model_json.read_description(folder)
    where = folder / model_json.DESCRIPTION
    return (
      model_json.read_tokenizer(folder, description),
      encoding.saved_encoding(description.encoding, where),
    )


@dataclasses.dataclass(frozen=True)
class Inspect(_Reader):
  """Prints the first solutions: tokens, score positions and labels.

  Args:
    limit: The number of solutions to print.
    score_position: The token at which a step's score is read, if --checkpoint
      isn't given: last_token (of the step's text) or separator (the token after
      it).

  Example:
    prm-jax data inspect labelled.jsonl --limit=1
  """

  limit: verbs.Natural = 3
  score_position: ScorePosition = "last_token"

  def __call__(self, solutions: Sequence[schema.Solution]) -> list[str]:
    """Returns the text of each of the first solutions.

    Args:
      solutions: The solutions.
    """
    from prm_jax.datasets import preview

    reading = self._reading() or _bytes(self.score_position)
    return [
      preview.show(s, *reading, self._labels()) for s in solutions[: self.limit]
    ]

  def run(self, job: InspectJob) -> None:
    """Prints the first solutions of a file.

    Args:
      job: The file.
    """
    solutions, left_out = job.file.read()
    for text in self(solutions):
      verbs.log_text(_logger, text)
    rest = len(solutions) - self.limit
    if rest > 0:
      _logger.info(f"({rest} more solutions; `limit` shows more)")
    report.left_out(left_out)


@dataclasses.dataclass(frozen=True)
class Stats(_Reader):
  """Counts the solutions, steps and labels, and shows their lengths.

  Args:
    score_position: The token at which a step's score is read, if --checkpoint
      isn't given: last_token (of the step's text) or separator (the token after
      it).

  Example:
    prm-jax data stats labelled.jsonl
  """

  score_position: ScorePosition = "last_token"

  def __call__(self, solutions: Sequence[schema.Solution]) -> str:
    """Returns the counts, as text.

    Args:
      solutions: The solutions.
    """
    from prm_jax.datasets import preview

    reading = self._reading() or _bytes(self.score_position)
    return preview.stats(solutions, *reading, self._labels())

  def run(self, job: InspectJob) -> None:
    """Prints the counts of a file.

    Args:
      job: The file.
    """
    solutions, left_out = job.file.read()
    verbs.log_text(_logger, self(solutions))
    report.left_out(left_out)


@dataclasses.dataclass(frozen=True)
class Examine(_Reader):
  """Finds errors in solutions that make training or its evaluation wrong.

  Args:
    against: A test set; problems of FILE that it also holds are an error;
      repeat the option for each test set.
    max_tokens: The longest solution that training takes, in tokens of
      --checkpoint, which conversations need, or in bytes without it (default:
      the checkpoint's; without it lengths aren't checked).
    truncation: What training does with a longer solution: drop (leave it out)
      or truncate (cut off its last steps); needs --checkpoint or --max_tokens
      (default: the checkpoint's, or drop without one).
    allow: A check whose failure is only a warning: contamination, conflicts,
      outcome_conflicts, blank_steps, blank_problems, no_steps or no_targets;
      repeat the option for each check.

  Example:
    prm-jax data doctor labelled.jsonl --against=processbench:gsm8k.json
  """

  against: tuple[str, ...] = dataclasses.field(
    default=(), metadata=data_inputs.AGAINST
  )
  max_tokens: verbs.Natural | None = None
  truncation: Truncation | None = None
  allow: tuple[str, ...] = dataclasses.field(
    default=(), metadata=dict(metavar="CHECK")
  )

  def __post_init__(self):
    super().__post_init__()
    if (
      self.truncation is not None
      and self.checkpoint is None
      and self.max_tokens is None
    ):
      raise errors.InputError(
        f"`truncation={self.truncation}`: give `max_tokens` or `checkpoint`"
        " with it"
      )
    if self.allow:
      from prm_jax.datasets import validation

      unknown = sorted({*self.allow} - {*validation.CHECKS})
      if unknown:
        raise errors.InputError(
          f"`allow={unknown[0]}`: expected one of"
          f" {', '.join(validation.CHECKS)}"
        )

  def __call__(self, solutions: Iterable[schema.Solution]) -> dict[str, Any]:
    """Returns the findings; see validation.examine.

    Args:
      solutions: The solutions.
    """
    from prm_jax.datasets import validation
    from prm_jax.text import encoding
    from prm_jax.text import tokenizer as tokenizer_lib

    tokenizer, config = self._reading() or (None, None)
    if self.max_tokens is not None:
      if self.checkpoint is None:
        solutions = self._plain(solutions)
      tokenizer = tokenizer or tokenizer_lib.Bytes()
      config = dataclasses.replace(
        config or encoding.EncodingConfig(), max_tokens=self.max_tokens
      )
    if self.truncation is not None and config is not None:
      config = dataclasses.replace(config, truncation=self.truncation)
    return validation.examine(
      solutions,
      self._labels(),
      tokenizer=tokenizer,
      encoding_config=config,
      against=data_inputs.index(self.against),
      allow=self.allow,
    )

  def _plain(
    self, solutions: Iterable[schema.Solution]
  ) -> Iterator[schema.Solution]:
    """Yields solutions; refuses a conversation, which has no length in bytes."""
    for solution in solutions:
      if solution.messages is not None:
        raise errors.InputError(
          f"`max_tokens={self.max_tokens}`: solution {solution.id!r} is a"
          " conversation, which has a length only as a model's chat template"
          " writes it; give `checkpoint` with it"
        )
      yield solution

  def run(self, job: ExamineJob) -> None:
    """Prints the findings in a file, and writes them.

    Args:
      job: The files.

    Raises:
      InputError: A check has failed.
    """
    from prm_jax.datasets import validation
    from prm_jax.records import sources
    from prm_jax.runtime import environment
    from prm_jax.runtime import files

    source = job.file
    outputs.check(
      dict(output=job.output),
      [source.stored_at, self.checkpoint, *sources.paths_of(self.against)],
    )
    left_out: Counter[str] = Counter()
    results = self(source.stream(left_out))
    results["left_out"] = dict(left_out)
    text = validation.table(results)
    if job.output is not None:
      details = dict(
        command=environment.command(), versions=environment.versions()
      )
      about = dict(file=str(source.path), format=source.format_name)
      files.write_json(job.output, about | results | dict(run=details))
      text += f"\n\nresults: {job.output}"
    failed = validation.errors(results)
    try:
      verbs.log_text(_logger, text)
    finally:  # Also if nobody reads the text.
      if failed:
        raise errors.InputError(
          f"{source.path}: {', '.join(failed)}: fix it as the table says, or"
          f" accept with `allow={failed[0]}`"
        )


def _bytes(
  score_position: str,
) -> tuple[tokenizer_lib.Tokenizer, encoding.EncodingConfig]:
  """Returns how solutions are read without a checkpoint: as bytes."""
  from prm_jax.text import encoding
  from prm_jax.text import tokenizer as tokenizer_lib

  return tokenizer_lib.Bytes(), encoding.EncodingConfig(
    score_position=score_position, max_tokens=None
  )
