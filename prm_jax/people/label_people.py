"""`prm_jax.LabelPeople`: people judge steps at a page, and all of it is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import logging
import pathlib
import re
import sys
from typing import TYPE_CHECKING

from prm_jax import errors
from prm_jax import schema
from prm_jax.jobs import job_inputs
from prm_jax.jobs import policies
from prm_jax.jobs import report
from prm_jax.jobs import step_scores
from prm_jax.people import judgements
from prm_jax.people import model_order
from prm_jax.people import work_queue
from prm_jax.policy import sampling as sampling_lib
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import verbs

if TYPE_CHECKING:
  from prm_jax.people import desk as desk_lib
  from prm_jax.people import people_folder

_logger = logging.getLogger(__name__)

# A model scores one solution, whose steps are all known.
_SCORED = ("first_error", "per_step")
# The name of a person who works alone.
_ALONE = "me"
_NAME = re.compile(r"[^\W\d_][\w @.-]*")


@dataclasses.dataclass(frozen=True)
class PeopleJob(verbs.Value):
  """What people judge, who they are, and where the work is kept.

  Args:
    input: The solutions to judge; with --policy also problems (with
      --format=jsonl, a line without steps is a problem).
    output: The folder of the work; the same one goes on with it.
    gold: A file of solutions with known ratings or labels, which are hidden
      among the others.
    annotators: A file with a name in each line; each gets a link of their own
      (default: one person, me).
    host: The address to listen at. One that others can reach isn't encrypted;
      rather put a server that speaks HTTPS before ours.
    port: The port to listen at; 0 is any that is free.
    public_url: The address of that server, such as https://labels.example.org,
      which links have and requests may name.
  """

  input: job_inputs.Solutions
  output: verbs.Output
  gold: verbs.Local | None = None
  annotators: verbs.Local | None = None
  host: str = "127.0.0.1"
  port: int = 8081
  public_url: str | None = None

  def _faults(self) -> Iterator[str]:
    yield from super()._faults()
    if self.public_url is None:
      return
    from prm_jax.web import page_http

    # Of a path, a query or the name of a user.
    signs = {*"/?#@"} & {*self.public_url.partition("://")[2].rstrip("/")}
    if signs or not page_http.hosts_of(self.public_url):
      yield (
        f"`public_url={self.public_url}`: expected an address without a path,"
        " such as https://labels.example.org"
      )


@dataclasses.dataclass(frozen=True)
class LabelPeople(work_queue.Design, step_scores.Source, verbs.Verb):
  """Lets people judge the steps of solutions at a page in their browsers.

  Args:
    task: What is asked. first_error: rate steps up to the first wrong one;
      per_step: rate every step; alternatives: rate what solutions of a problem
      go on with, take one or write another; pairs: prefer one of two solutions.
    hold_hours: An item that its person leaves open for so many hours is given
      to another person, too.
    order: Which come first, of those that aren't drawn at random: convincing
      (by the model's score, wrong answers first), uncertain (scores near 0.5)
      or file; without scores, which people_round may write later, it is file.
    policy: For the task alternatives, a model that draws next steps while people
      work, at each path that somebody reaches; --seed seeds them, and
      --max_tokens is of a step.
    sampling: How it samples.
    num_alternatives: How many different next steps it draws at a path, besides
      those of the solutions of --input.

  Example:
    prm-jax label people --input=samples.jsonl --output=labels
  """

  task: judgements.Task = "first_error"
  order: model_order.Order = "convincing"
  hold_hours: verbs.Positive = 24.0
  policy: policies.Policy | files.PathLike | None = None
  sampling: sampling_lib.Sampling = dataclasses.field(
    default_factory=sampling_lib.Sampling
  )
  num_alternatives: verbs.Count = 4

  compiles = True

  def _faults(self) -> Iterator[str]:
    yield from super()._faults()
    if self._has_scores and self.task not in _SCORED:
      yield f"`task={self.task}`: no model scores it; leave out the scores"
    if self.adjudicate and self.task not in ("first_error", "per_step"):
      yield f"`adjudicate=True`: the task {self.task} has no such rule"
    if self.policy is not None and self.task != "alternatives":
      yield f"`task={self.task}`: no policy draws for it; leave out `policy`"

  @property
  def _has_scores(self) -> bool:
    return self.checkpoint is not None or self.scores is not None

  def run(self, job: PeopleJob) -> None:
    """Serves the page until SIGINT or SIGTERM.

    Args:
      job: The files.

    Raises:
      InputError: The folder holds other work, a file can't be used, or the port
        is taken.
    """
    from prm_jax.people import drawn_steps
    from prm_jax.people import people_folder
    from prm_jax.records import jsonl
    from prm_jax.runtime import locks

    model = None if self.checkpoint is None else self.checkpoint.folder
    policy = None
    if self.policy is not None:
      policy = drawn_steps.checked(verbs.made(policies.Policy, self.policy))
    read = [job.input.stored_at, job.gold, job.annotators, model, self.scores]
    if policy is not None and not policy.is_server:
      read.append(files.local_path(policy.source))
    outputs.check(dict(output=job.output), read, are_folders=True)
    names = _names(job.annotators)
    if policy is None:
      given, left_out = job.input.read()
      solutions = [s for s in given if s.steps]
    else:
      given, left_out = job.input.read_some(takes_problems=True)
      solutions = given
      drawn_steps.check_solutions(solutions)
    report.left_out(left_out)
    items = people_folder.items_of(self.task, solutions)
    unused = len(given) - sum(len(x.solutions) for x in items)
    if unused:
      _logger.info(
        f"{unused:,} solutions of `input` make no item: they have no steps, or no"
        " other one to be compared with"
      )
    gold = [] if job.gold is None else [*jsonl.read_solutions(job.gold)]
    # A second server would give the same items to others.
    with locks.held(pathlib.Path(job.output), "letting people judge in it"):
      folder = people_folder.begin(job.output, self.task, self, solutions, gold)
      drawing = drawn_steps.opened(policy, self.sampling, self.seed)
      with drawing as generate:
        self._serve(job, folder, names, generate)

  def _serve(
    self,
    job: PeopleJob,
    folder: people_folder.Folder,
    names: Sequence[str],
    generate: schema.Generate | None,
  ) -> None:
    """Serves the page of a folder until SIGINT or SIGTERM."""
    from prm_jax.people import desk as desk_lib
    from prm_jax.people import people_server
    from prm_jax.runtime import listening

    work = self._work(folder)
    keys = folder.keys(names)
    desk = desk_lib.Desk(
      *(work, folder.store(), keys, generate, self.num_alternatives)
    )
    desk.begin_drawing()
    server = people_server.PeopleServer(
      desk, job.host, job.port, _logger.error, job.public_url
    )
    links = folder.write_links(server.url, keys)

    def ready() -> None:
      pool, gold = len(work.pool.ranked), len(work.pool.gold)
      _logger.info(f"{job.output}: {pool:,} items, {gold:,} gold")
      _logger.info(f"links: {links}; Ctrl-C ends the command")
      if len(keys) == 1 and sys.stdout.isatty():
        # Not into a file that keeps what was printed.
        _logger.info(f"{server.url}#key={next(iter(keys))}")

    try:
      listening.run(server, ready)
    finally:
      desk.close()

  def _work(self, folder: people_folder.Folder) -> desk_lib.Work:
    """Returns the work of a folder, by scores that a round may replace."""
    from prm_jax.people import desk as desk_lib
    from prm_jax.people import people_folder

    items = folder.items()
    golden = people_folder.items_of(self.task, folder.gold())
    everything = (*items, *golden)
    path = folder.path / people_folder.SCORES
    anew = model_order.ScoresFile(
      path, everything, _logger.error, is_known=self._has_scores
    )

    def ranked(scores, shown):
      first = model_order.ordered(items, scores, self.order)
      pool = work_queue.Pool([x.id for x in first], [x.id for x in golden])
      return pool, {k: {"model": x.scores} for k, x in shown.items()}

    def news():
      found = anew.news() if self.task in _SCORED else None
      if found is None:
        return None
      scores, is_whole = found
      _logger.info(f"{path}: gives the order from now on")
      # An item without scores isn't gold, which a person could tell by that.
      return ranked(scores, scores if is_whole else {})

    scores = self._scored(items)
    shown = scores
    if golden:
      # Gold without scores would be known by that; a file may have none of it.
      shown = {}
      if self.checkpoint is not None:
        shown = {**scores, **self._scored(golden)}
    ranks, told = ranked(scores, shown)
    return desk_lib.Work(
      task=self.task,
      items={x.id: x for x in everything},
      pool=ranks,
      design=folder.design,
      scores=told,
      secret=folder.secret,
      hold_hours=self.hold_hours,
      news=news,
    )

  def _scored(
    self, items: Sequence[judgements.Item]
  ) -> Mapping[str, schema.StepScores]:
    """Returns the scores of items of one solution, by their ids."""
    solutions = [x.solutions[0] for x in items if len(x.solutions) == 1]
    if not self._has_scores or not solutions:
      return {}
    rows = self.step_scores(solutions).rows
    return {s.id: row for s, row in zip(solutions, rows, strict=True)}


def _names(path: files.PathLike | None) -> list[str]:
  """Returns the names of a file, or that of one who works alone."""
  if path is None:
    return [_ALONE]
  try:
    text = files.read_bytes(path).decode("utf-8-sig")
  except UnicodeDecodeError:
    raise errors.InputError(f"{path}: isn't UTF-8; save it so") from None
  names = [name.strip() for name in text.splitlines() if name.strip()]
  if not names or len({*names}) < len(names):
    raise errors.InputError(
      f"{path}: expected one name in each line, each of them once"
    )
  for name in names:
    # Names end ids, where "path" and numbers are PRM800K's.
    if not _NAME.fullmatch(name) or name == "path":
      raise errors.InputError(
        f"{path}: {name!r} can't be a name; take letters, digits, blanks, ., -, _"
        " and @, and begin with a letter"
      )
  return names
