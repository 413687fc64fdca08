"""A judge's rubric as data: principles, the prompt about them, and its reader.

Of each step the judge writes a critique and a score by every principle, and one
in all (`overall`), which labels don't depend on. A score below
schema.THRESHOLD is an error. docs/judge.md says how scores become labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import hashlib
import json
import pathlib
import re
import tomllib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.labelling import judge_prompts
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.runtime import limits

# The judge's grade in all, which stands beside those of the principles.
OVERALL = "overall"
MOST_PRINCIPLES = 32
MOST_CHARACTERS = 2_000
MOST_WEIGHT = 1_000_000  # Sums stay finite.
_DEFAULT_TEMPLATE = "processbench"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclasses.dataclass(frozen=True)
class Principle:
  """What a step is graded by.

  Args:
    name: Its name: small letters, digits and _.
    means: What it asks of a step, in words.
    error: What counts as an error, in words.
    weight: Its weight in the mean that is a step's label.
    fatal: Whether an error makes the labels of its step, and of all later
      steps, 0.

  Raises:
    InputError: A field is out of range.
  """

  name: str
  means: str
  error: str = ""
  weight: float = 1.0
  fatal: bool = False

  def __post_init__(self):
    errors.raise_first(self._faults())

  def _faults(self) -> Iterator[str]:
    if not _NAME.fullmatch(self.name) or self.name == OVERALL:
      yield (
        f"name={self.name[:60]!r}: expected small letters, digits and _, at"
        f" most 40, and not {OVERALL}"
      )
    if not self.means.strip():
      yield "means is empty; say what the principle asks of a step"
    for name in ("means", "error"):
      if len(getattr(self, name)) > MOST_CHARACTERS:
        yield f"{name}: more than {MOST_CHARACTERS:,} characters; shorten it"
    if not 0 <= self.weight <= MOST_WEIGHT:
      yield f"weight={str(self.weight)[:20]}: expected 0 to {MOST_WEIGHT:,}"


@dataclasses.dataclass(frozen=True)
class Rubric:
  """The principles by which a judge grades steps.

  Args:
    principles: The principles, in the order in which the judge is asked.

  Raises:
    InputError: There is none, or too many, two have one name, or no weight is
      above 0.
  """

  principles: tuple[Principle, ...]

  def __post_init__(self):
    errors.raise_first(self._faults())

  def _faults(self) -> Iterator[str]:
    names = [x.name for x in self.principles]
    if not 1 <= len(names) <= MOST_PRINCIPLES:
      yield f"{len(names)} principles; give 1 to {MOST_PRINCIPLES}"
    for i, name in enumerate(names):
      if name in names[:i]:
        yield f"principles[{i}]: the name {name} comes twice; give another"
    if not sum(x.weight for x in self.principles):
      yield "no principle has a weight above 0; give one to at least one"

  @property
  def digest(self) -> str:
    """A digest of all that it says, the same for a JSON and a TOML file."""
    texts = [dataclasses.asdict(x) for x in self.principles]
    for x in texts:
      x["weight"] = float(x["weight"])
    text = json.dumps(texts, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

  def labels(self, scores: Mapping[str, Sequence[float]]) -> tuple[float, ...]:
    """Returns the label of each step, given the scores of each principle.

    It is the weighted mean of the step's scores, and 0 from the first step on
    that has an error by a fatal principle.

    Args:
      scores: By the name of a principle, the score of each step.
    """
    fatal = [scores[x.name] for x in self.principles if x.fatal]
    weights = [x.weight for x in self.principles]
    rows = [scores[x.name] for x in self.principles]
    found, is_wrong = [], False
    for k, values in enumerate(zip(*rows, strict=True)):
      is_wrong = is_wrong or any(x[k] < schema.THRESHOLD for x in fatal)
      found.append(0.0 if is_wrong else judge_prompts.mean(values, weights))
    return tuple(found)


# --- The file ---------------------------------------------------------------


def read(path: files.PathLike) -> Rubric:
  """Returns the rubric in a file.

  Args:
    path: A JSON or TOML file of `principles`, each with fields of Principle.

  Raises:
    InputError: It holds something else.
  """
  record = _record(path)
  try:
    if unknown := sorted(record.keys() - {"principles"}):
      raise errors.InputError(
        f"unknown field {unknown[0][:60]!r}; there is only principles"
      )
    given = record.get("principles")
    if not isinstance(given, list):
      raise errors.InputError("principles must be a list of objects")
    return Rubric(tuple(_principle(i, x) for i, x in enumerate(given)))
  except errors.InputError as e:
    raise errors.InputError(f"{path}: {e}") from None


def _record(path: files.PathLike) -> Mapping[str, Any]:
  ending = pathlib.Path(path).suffix
  if ending == ".json":
    return files.read_json(path)
  if ending != ".toml":
    raise errors.InputError(
      f"{path}: expected a file that ends in .json or .toml"
    )
  try:
    text = files.read_text(path, limits.JSON_BYTES)
    return tomllib.loads(text.removeprefix("\ufeff"))
  except RecursionError:
    raise errors.InputError(f"{path}: nested too deeply; flatten it") from None
  except ValueError as e:
    raise errors.InputError(f"{path}: not TOML: {e}; correct it") from None


def _principle(i: int, given: Any) -> Principle:
  known = [x.name for x in dataclasses.fields(Principle)]
  try:
    if not isinstance(given, dict):
      raise errors.InputError(f"expected an object of {', '.join(known)}")
    if unknown := sorted(given.keys() - {*known}):
      raise errors.InputError(
        f"unknown field {unknown[0][:60]!r}; there are {', '.join(known)}"
      )
    for name in ("name", "means"):
      if name not in given:
        raise errors.InputError(f"{name} is missing; give it")
    checks.check_types(Principle, given)
    return Principle(**given)
  except errors.InputError as e:
    raise errors.InputError(f"principles[{i}]: {e}") from None


# --- The prompt -------------------------------------------------------------


def template_of(
  name: str, rubric: files.PathLike | None
) -> judge_prompts.Template:
  """Returns the template of this name, or that of a rubric's file.

  Args:
    name: The name of a template.
    rubric: The file, or None.

  Raises:
    InputError: Both are given, or the file holds no rubric.
  """
  if rubric is None:
    return judge_prompts.TEMPLATES[name]
  if name != _DEFAULT_TEMPLATE:
    raise errors.InputError(
      f"`template={name}`: `rubric` has a prompt of its own; leave one out"
    )
  return template(read(rubric))


def template(rubric: Rubric) -> judge_prompts.Template:
  """Returns how a judge is asked by a rubric.

  Args:
    rubric: The rubric.
  """
  principles = "\n".join(map(_line, rubric.principles))
  names = [x.name for x in rubric.principles]
  form = "\n".join(f"{x} | SCORE | CRITIQUE" for x in (*names, OVERALL))
  return judge_prompts.Template(
    name="rubric",
    prompt="Here are a problem and somebody's solution, cut into {count}"
    " paragraphs that are numbered from 1. It may be unfinished.\n\n"
    + judge_prompts.TASK
    + "Grade every paragraph by these principles:\n\n"
    # A brace is a text's own.
    + principles.replace("{", "{{").replace("}", "}}")
    + "\n\nWrite the grades of paragraph 1 in this form:\n\n<analysis_1>\n"
    + form
    + "\n</analysis_1>\n\n"
    "then the same lines about paragraph 2 between <analysis_2> and"
    " </analysis_2>, and so on for all {count}, also after an error.\n\n"
    "SCORE is a number from 0 to 1: 1 if nothing is wrong by this principle, or"
    " if it doesn't apply; below 0.5 if the paragraph has an error by it."
    " CRITIQUE is a sentence or two that say why, without a line break. Judge"
    f" each principle by itself. The last line, {OVERALL}, is your grade of the"
    " paragraph as a whole. Write nothing else, and use these tags for nothing"
    " else.",
    step="<paragraph_{number}>\n{text}\n</paragraph_{number}>",
    read=lambda text, num_steps: _read(rubric, text, num_steps),
    rubric=rubric.digest,
  )


def _line(x: Principle) -> str:
  text = f"- {x.name}: {x.means.strip()}"
  return f"{text} An error: {x.error.strip()}" if x.error.strip() else text


# --- The answer -------------------------------------------------------------

_TAG = re.compile(r"</?analysis_[0-9]+>")
_SCORE = re.compile(r"-?(?:[0-9]{1,6}(?:\.[0-9]{0,12})?|\.[0-9]{1,12})")


def _read(
  rubric: Rubric, text: str, num_steps: int
) -> judge_prompts.Verdict | str:
  """Returns the grades that a judge's text gives, or why it gives none."""
  answer = text.rpartition("</think>")[2]
  blocks = _blocks(answer, num_steps)
  if isinstance(blocks, str):
    return blocks
  names = [*(x.name for x in rubric.principles), OVERALL]
  steps = []
  for block in blocks:
    grades = _grades(block, names)
    if isinstance(grades, str):
      return grades
    steps.append(grades)
  scores = {name: tuple(x[name][0] for x in steps) for name in names}
  labels = rubric.labels(scores)
  principles = {OVERALL: scores[OVERALL]} | {
    x.name: _alone(x).labels(scores) for x in rubric.principles
  }
  return judge_prompts.Verdict(
    schema.first_error(labels),
    labels=labels,
    principles={
      name: judge_prompts.Grades(
        principles[name], scores[name], tuple(x[name][1] for x in steps)
      )
      for name in names
    },
  )


def _alone(principle: Principle) -> Rubric:
  return Rubric((dataclasses.replace(principle, weight=1.0),))


def _blocks(answer: str, num_steps: int) -> list[str] | str:
  """Returns the text about each step, or why that isn't known."""
  tags = list(_TAG.finditer(answer))
  if not tags:
    return "no_verdict"
  numbers = range(1, len(tags) // 2 + 1)
  expected = [
    x for i in numbers for x in (f"<analysis_{i}>", f"</analysis_{i}>")
  ]
  if [x[0] for x in tags] != expected:
    return "out_of_order"
  if len(numbers) != num_steps:
    is_short = len(numbers) < num_steps
    return "fewer_verdicts_than_steps" if is_short else "out_of_range"
  pairs = zip(tags[::2], tags[1::2], strict=True)
  return [answer[a.end() : b.start()] for a, b in pairs]


def _grades(
  block: str, names: Sequence[str]
) -> dict[str, tuple[float, str]] | str:
  """Returns score and critique by each name, or why one isn't known."""
  grades: dict[str, tuple[float, str]] = {}
  last = None
  for line in block.splitlines():
    line = line.strip()
    if line.startswith("|"):  # a table's row
      line = line.strip("|")
    name, *cells = line.split("|", 2)
    name = name.strip(" \t*`#-").lower()
    if name not in names or not cells:
      if last is not None and line.strip("`|-: "):  # no fence, no table's rule
        before, critique = grades[last]
        grades[last] = before, f"{critique}\n{line}"
      continue
    score = _score(cells[0].strip(" \t*`"))
    if isinstance(score, str):
      return score
    if name in grades:
      return "contradicting_verdicts"
    grades[name] = score, "".join(cells[1:]).strip()
    last = name
  return grades if len(grades) == len(names) else "missing_principle"


def _score(text: str) -> float | str:
  if not _SCORE.fullmatch(text):
    return "not_a_score"
  return float(text) if 0 <= float(text) <= 1 else "score_out_of_range"


# --- What was graded --------------------------------------------------------


def graded_by(solution: schema.Solution) -> list[str]:
  """Returns the names of what a solution was graded by, with OVERALL.

  Args:
    solution: A solution that a judge with a rubric labels.

  Raises:
    InputError: Its grades have another form.
  """
  return [*_principles(solution)]


def of_principle(
  solution: schema.Solution, name: str
) -> schema.Solution | None:
  """Returns the solution with the labels of one principle.

  Args:
    solution: A solution as a judge with a rubric labels it.
    name: The name of a principle, or OVERALL.

  Returns:
    The solution; None if no judge graded it by a rubric.

  Raises:
    InputError: The rubric has no such principle, or the grades aren't one for
      each step.
  """
  if solution.extra.get(judge_prompts.GRADED) is None:
    return None
  principles, where = _principles(solution), _where(solution)
  if name not in principles:
    raise errors.InputError(
      f"{where}: no principle {name[:60]!r}; there are {', '.join(principles)}"
    )
  grades = principles[name]
  labels = grades.get("labels") if isinstance(grades, dict) else None
  if not isinstance(labels, list | tuple) or len(labels) != len(solution.steps):
    raise errors.InputError(
      f"{where}: {name} hasn't a label for each of {len(solution.steps)} steps;"
      " label the solution again"
    )
  return dataclasses.replace(solution, labels=tuple(labels), ratings=None)


def _principles(solution: schema.Solution) -> Mapping[str, Any]:
  """Returns the grades of a graded solution by the name of a principle."""
  graded = solution.extra[judge_prompts.GRADED]
  principles = graded.get("principles") if isinstance(graded, dict) else None
  if not isinstance(principles, dict):
    raise errors.InputError(
      f"{_where(solution)}: holds no principles; label it again"
    )
  return principles


def _where(solution: schema.Solution) -> str:
  return f"solution {solution.id!r}: {judge_prompts.GRADED}"
