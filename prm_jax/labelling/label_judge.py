"""`prm_jax.Judge`: labels by a language model that is asked about each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import functools
import logging
from typing import Any

from prm_jax.jobs import journaled
from prm_jax.jobs import policies
from prm_jax.labelling import judge_prompts
from prm_jax.labelling import label_job
from prm_jax.labelling import label_plan
from prm_jax.labelling import llm_judge
from prm_jax.labelling import rubrics
from prm_jax.runtime import files
from prm_jax.runtime import verbs

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Judge(label_job.Labeller):
  """Labels each step by asking a language model about it.

  Args:
    policy: The model that judges.
    template: The prompt for the judge, and how its answer is read
      (docs/judge.md).
    votes: The number of answers to ask for about each solution.
    min_votes: Don't label a solution with fewer readable answers than this.
    vote: How votes become labels (docs/judge.md): the share of those by which
      all steps so far are correct, the majority's first error, or the
      log_likelihood of the verdict's words (templates dial and thinkprm only).
    rubric: A JSON or TOML file of principles: the judge grades each step by
      each of them, instead of --template (docs/judge.md).
    keep_texts: Also write the judge's answers to --output.

  Example:
    prm-jax label judge --policy=http://localhost:8000/v1 --model=NAME --chat \\
      --input=samples.jsonl --output=labelled.jsonl
  """

  template: judge_prompts.TemplateName = "processbench"
  votes: verbs.Count = 1
  min_votes: verbs.Count = 1
  vote: llm_judge.Vote = "share"
  rubric: verbs.Input | None = None
  keep_texts: bool = False

  kind = "judge"
  needs_reference = False

  def __post_init__(self):
    super().__post_init__()
    self._check(weighs_words=self.vote == "log_likelihood")

  @functools.cached_property
  def _template(self) -> judge_prompts.Template:
    return rubrics.template_of(self.template, self.rubric)

  @property
  def _also_read(self) -> list[files.PathLike | None]:
    return [self.rubric]

  def _check(self, weighs_words: bool) -> None:
    how = self.votes, self.min_votes, self.vote
    llm_judge.check(self._template, *how, weighs_words)

  def run(self, job: label_job.PolicyJob) -> None:
    """Labels the solutions of a file.

    Args:
      job: The files.
    """
    self.label_file(job)

  def _options(self) -> dict[str, Any]:
    options = dict(template=self._template.name) | self._voting()
    if self.rubric is not None:
      options["rubric"] = self._template.rubric
    return options

  def _voting(self) -> dict[str, Any]:
    names = ("votes", "min_votes", "vote", "keep_texts")
    return {name: getattr(self, name) for name in names}

  def _planned(self, task, lengths):
    by_words = self.vote == "log_likelihood"
    policy = self._policy
    tells = not (policy.is_server and policy.server.chat)
    self._check(weighs_words=by_words and tells)
    how = self._template, self.votes, by_words, lengths
    return label_plan.judge(task.solutions, *how)

  @contextlib.contextmanager
  def _labelling(
    self,
    writer: policies.Writer,
    references: Mapping[str, str],
    counts: Counter[str],
  ) -> Iterator[label_job.Label]:
    del references, counts
    by_words = self.vote == "log_likelihood"
    log_likelihoods = writer.log_likelihoods if by_words else None
    # Before any work: a server may give no log-probabilities.
    self._check(weighs_words=log_likelihoods is not None)

    def label(solutions, tell):
      return llm_judge.label(
        *(solutions, writer.bind(tell)),
        self._template,
        log_likelihoods=log_likelihoods,
        **self._voting(),
      )

    yield label

  def _report(
    self,
    job: label_job.LabelJob,
    task: label_job.Task,
    done: journaled.Done,
  ) -> None:
    """Says also how far each principle agrees with the labels that were there."""
    super()._report(job, task, done)
    answers = done.work.get("verdicts", 0)
    if answers and done.work["unparsable"] == answers:
      _logger.info(
        "no answer could be read, so there are no labels: read the answers with"
        " `keep_texts`, and ask another judge, or give more `max_tokens`"
      )
    if self.rubric is None:
      return
    from prm_jax.evaluation import tables
    from prm_jax.labelling import principle_agreement

    rows = principle_agreement.measured(done.solutions, task.solutions)
    if rows:
      told = tables.lines(principle_agreement.table(rows))
      what = "first errors that are also those of the labels that these replace"
      verbs.log_text(_logger, "\n".join(["", what, "", *told]))
