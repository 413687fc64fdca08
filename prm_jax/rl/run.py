"""From a config and checkpoint folders to a trained policy.

The only place where the RL program, its models, its judges and `fit` meet.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import math
import pathlib
from typing import Any

import jax
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.data import sources
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.data.formats import jsonl
from prm_jax.grading import answers
from prm_jax.grading import pool
from prm_jax.inference import engine as engine_lib
from prm_jax.inference import sampler as sampler_lib
from prm_jax.inference import scorer as scorer_lib
from prm_jax.models import config as model_config
from prm_jax.models import sharding
from prm_jax.rl import config as rl_config
from prm_jax.rl import experience
from prm_jax.rl import hacking_monitor
from prm_jax.rl import metrics
from prm_jax.rl import program as rl_program
from prm_jax.rl import rewards as rewards_lib
from prm_jax.runtime import files
from prm_jax.testbed import arithmetic
from prm_jax.training import loop
from prm_jax.training import metrics_log
from prm_jax.training import program as program_lib
from prm_jax.training import programs as programs_lib

DIAL = "dial"
# Of each rollout so many solutions are written to samples.jsonl.
SHOWN = 4
SHOWN_METRICS = (
  *("accuracy", "prm_return", "prm_score", "heldout_prm", "kl_nats"),
  *("entropy_nats", "clipped", "tokens", "steps", "distinct", "grad_norm"),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Roles:
  """The models of a run, read from their folders, and the policy's words.

  init_from: parameters of every role that has any, for fit to begin with.
  """

  models: rl_program.Models
  init_from: dict[str, Any]
  tokenizer: tokenizer_lib.Tokenizer
  encoding: Mapping[str, Any]
  prm: scorer_lib.Scorer | None
  orm: scorer_lib.Scorer | None
  held_out: scorer_lib.Scorer | None


def read_roles(config: rl_config.RLConfig) -> Roles:
  """Returns the models that a config names.

  Raises:
    InputError: a folder can't be read, isn't of the role's kind, or a critic
      or reference has another vocabulary than the policy.
  """
  folder = _folder(config.init_from, "init_from", programs_lib.POLICIES)
  loaded = sampler_lib.load(folder)
  params, tokenizer = loaded.params, loaded.tokenizer
  policy = dataclasses.replace(loaded.config, **config.model)
  # Adapters that only this run gives the policy are no part of other roles.
  adapters = ("lora_rank", "lora_alpha", "lora_targets")
  begun = dataclasses.replace(
    policy, **{name: getattr(loaded.config, name) for name in adapters}
  )
  start = dict(params)
  reference = implicit = critic = None
  if config.reference != "none":
    reference, start[rl_program.REFERENCE] = begun, params
    if config.reference:
      reference, start[rl_program.REFERENCE] = _other(
        config.reference, "reference", programs_lib.POLICIES, loaded
      )
  if config.rewards.implicit:
    implicit, start[rl_program.IMPLICIT] = begun, params
  if config.loss.critic == "separate":
    critic, trunk = begun, params
    if config.critic:
      critic, trunk = _other(
        config.critic, "critic", ("prm", "orm", *programs_lib.POLICIES), loaded
      )
    # Its own head begins at 0: a PRM's logit is no return.
    start[rl_program.CRITIC] = {
      k: v for k, v in trunk.items() if not k.endswith("_head")
    }
  return Roles(
    models=rl_program.Models(policy, critic, implicit, reference),
    init_from=start,
    tokenizer=tokenizer,
    encoding=model_json.read_description(folder).encoding,
    prm=_scorer(config.prm, "prm", ("prm", "implicit")),
    orm=_scorer(config.orm, "orm", ("orm",)),
    held_out=_scorer(config.held_out_prm, "held_out_prm", ("prm", "implicit")),
  )


def _folder(text: str, field: str, programs: Sequence[str]) -> pathlib.Path:
  """Returns the folder that a field names; refuses one of another program."""
  if not text:
    raise errors.InputError(f"{field}: give a checkpoint folder")
  folder = files.local_path(text)
  program = model_json.read_description(folder).program
  if program not in programs:
    raise errors.InputError(
      f"{field}={text}: holds a {program}; expected one of"
      f" {', '.join(programs)}"
    )
  return folder


def _other(
  text: str,
  field: str,
  programs: Sequence[str],
  policy: sampler_lib.Sampler,
) -> tuple[model_config.ModelConfig, Any]:
  """Returns model and parameters of a role that reads the policy's ids."""
  folder = _folder(text, field, programs)
  described = model_json.read_description(folder)
  tokenizer = model_json.read_tokenizer(folder, described)
  if not _same_ids(policy.tokenizer, tokenizer):
    raise errors.InputError(
      f"{field}={text}: has another tokenizer than the policy, whose ids it"
      " must read; give one with the policy's"
    )
  return described.model, programs_lib.load_params(folder, described)


def _same_ids(a: tokenizer_lib.Tokenizer, b: tokenizer_lib.Tokenizer) -> bool:
  """Returns whether two tokenizers have the same ids for the same texts."""
  controls = [(x.vocab_size, x.bos, x.eos, x.separator) for x in (a, b)]
  ids = range(a.text_ids)
  return controls[0] == controls[1] and all(
    a.decode([i]) == b.decode([i]) for i in ids
  )


def _scorer(
  text: str, field: str, programs: Sequence[str]
) -> scorer_lib.Scorer | None:
  return scorer_lib.load(_folder(text, field, programs)) if text else None


@contextlib.contextmanager
def judges_of(
  config: rl_config.RLConfig, roles: Roles, sequence_length: int
) -> Iterator[rewards_lib.Judges]:
  """Yields the judges; a grader's process lives as long.

  packing.sequence_length: what most texts fit, so that they take one compiled program.
  """

  def score(scorer):
    if scorer is None:
      return None
    batch_tokens = config.rows * config.sequence_length
    return dataclasses.replace(
      scorer, sequence_length=sequence_length, batch_tokens=batch_tokens
    ).score

  models: dict[str, Any] = dict(
    prm=score(roles.prm), orm=score(roles.orm), held_out=score(roles.held_out)
  )
  if config.problems.grader == DIAL:
    yield rewards_lib.Judges(
      verify=arithmetic.verify,
      find_answer=arithmetic.final_answer,
      exact=arithmetic.verifier,
      **models,
    )
    return
  if config.rewards.exact:
    raise errors.InputError(
      f"rewards.exact={config.rewards.exact}: only problems.grader={DIAL!r}"
      " knows the right steps; set it to 0"
    )
  with pool.Grader(config.problems.grader) as grader:

    def verify(solutions):
      references = [s.extra.get(schema.REFERENCE) for s in solutions]
      grades = pool.grade_solutions(grader, solutions, references)
      return pool.outcomes(grades)

    yield rewards_lib.Judges(
      verify=verify,
      find_answer=lambda steps: answers.extract(list(steps)),
      **models,
    )


def read_problems(
  source: str,
) -> tuple[list[schema.Solution], dict[str, int]]:
  """Returns the problems of a source, solutions without steps, and counts.

  dial:SPLIT:COUNT draws problems of the testbed, problems:FILE has them in our
  own form, and any corpus (FORMAT:FILE) gives those of its right solutions;
  each text once, with the first answer that any of its records has. Counts:
  "met before", records whose text was there already; "without an answer",
  problems; "of wrong solutions", a corpus's records that give no problem.

  Raises:
    InputError: there is none.
  """
  kind, colon, path = source.partition(":")
  found: dict[str, schema.Solution] = {}
  counts: collections.Counter[str] = collections.Counter()

  def add(problem, id_, answer):
    extra = {schema.REFERENCE: answer}
    known = found.get(problem)
    counts["met before"] += known is not None
    if known is None or known.extra[schema.REFERENCE] is None:
      found[problem] = schema.Solution(id_, problem, (), extra=extra)

  if kind == DIAL:
    for p in _dial_problems(source, path):
      add(p.problem, p.id, p.answer)
  elif kind == "problems" and colon:
    for p in jsonl.read_problems(path):
      add(p.problem, p.id, p.answer)
  else:
    for s in sources.open_source(source):
      if s.outcome and s.answer is not None:
        add(s.problem, s.id, s.answer)
      else:
        counts["of wrong solutions"] += 1
  if not found:
    raise errors.InputError(
      f"{source}: holds no problem with a right answer; give problems:FILE"
      ' with "answer" fields, or a corpus of right solutions'
    )
  problems = list(found.values())
  counts["without an answer"] = sum(not _has_answer(p) for p in problems)
  return problems, {what: n for what, n in counts.items() if n}


def _has_answer(problem: schema.Solution) -> bool:
  return problem.extra[schema.REFERENCE] is not None


def _dial_problems(source: str, text: str) -> list[schema.Problem]:
  split, _, count = text.partition(":")
  if not count.isdecimal():
    raise errors.InputError(
      f"{source}: expected dial:SPLIT:COUNT, such as dial:train:2000"
    )
  random = np.random.default_rng(0)
  return arithmetic.problems(int(count), split, arithmetic.Task(), random)


@dataclasses.dataclass(frozen=True, eq=False)
class Measure:
  """How well a state's policy answers held-out problems, greedily.

  accuracy, faithful, prm_score ... as in metrics.of_rollout
  """

  collector: experience.Collector
  problems: Sequence[schema.Solution]

  def __call__(self, state: program_lib.TrainState) -> dict[str, float]:
    c, judges = self.collector.config, self.collector.judges
    engine = dataclasses.replace(
      self.collector.engine(state.params),
      prompt_tokens=max(map(len, self._prompts)),
    )
    greedy = sampler_lib.Sampling(c.rollout.max_tokens, 0.0)
    requests = [
      engine_lib.Request(str(i), prompt, 1)
      for i, prompt in enumerate(self._prompts)
    ]
    rows, _ = engine.complete(requests, greedy, self.collector.key)
    found = [row[0] for row in rows]
    solutions = [
      sampler_lib.solution(p, x, 0, self.collector.tokenizer)
      for p, x in zip(self.problems, found, strict=True)
    ]
    judged = rewards_lib.judge(
      solutions, found, self.collector.tokenizer, judges, c.rewards
    )
    told = [x for x in judged.right if x is not None]
    out = dict(
      accuracy=float(np.mean(told)) if told else math.nan,
      tokens=float(np.mean([len(x.tokens) for x in found])),
      steps=float(np.mean([len(s.steps) for s in solutions])),
      without_answer=float(np.mean([not x for x in judged.answered])),
      sampled_solutions=float(int(state.step) * c.rollout.num_solutions),
    )
    if judged.exact is not None:
      out["faithful"] = metrics.faithful(judged)
    if judged.prm is not None:
      scores = [x for row in judged.prm for x in row]
      out["prm_score"] = float(np.mean(scores)) if scores else math.nan
    return out

  @functools.cached_property
  def _prompts(self):
    return sampler_lib.prompts(self.problems, self.collector.tokenizer)


def watch(config: rl_config.RLConfig, name: str) -> loop.Watch:
  """Returns what looks at every update: the hacking monitor."""
  said: set[str] = set()

  def look(records):
    found = hacking_monitor.alarms(records, config.monitor)
    for alarm in found:
      if alarm.kind not in said:
        print(f"{name}: step {alarm.update}: {alarm.text}", flush=True)
        said.add(alarm.kind)
    acting = hacking_monitor.acting(found, config.monitor)
    if acting is None:
      return None
    back = config.monitor.action == "rollback"
    return loop.StopDecision(acting.text, acting.turn if back else None)

  return look


class Samples:
  """samples.jsonl: a few solutions of each rollout, with what they were given.

  first: the step that the run goes on from. Records from there on, of rollouts
  that are made again, are dropped before the first one is written.
  """

  def __init__(self, workdir: pathlib.Path, first: int):
    self._path, self._first = workdir / "samples.jsonl", first
    self._begun = False

  def __call__(self, step, solutions, judged, rewards, credit) -> None:
    if not self._begun:
      metrics_log.keep_records(self._path, lambda r: r["step"] < self._first)
      self._begun = True
    chosen = np.linspace(0, len(solutions) - 1, min(SHOWN, len(solutions)))
    with open(self._path, "a", encoding="utf-8") as f:
      for i in sorted({int(x) for x in chosen}):
        s = solutions[i]
        record = dict(
          step=step,
          id=s.id,
          problem=s.problem,
          steps=list(s.steps),
          stopped=s.extra["stopped"],
          right=judged.right[i],
          prm=None if judged.prm is None else _plain(judged.prm[i]),
          exact=None if judged.exact is None else _plain(judged.exact[i]),
          outcome_reward=_plain([rewards.outcome[i]])[0],
          total_return=_plain([credit.total[i]])[0],
          counts=bool(rewards.counts[i]),
        )
        f.write(files.dump_json(record, f"{self._path}: {s.id}"))


def _plain(values) -> list[float | None]:
  """Returns numbers for JSON, null for what isn't finite."""
  return [float(x) if math.isfinite(x) else None for x in values]


def train(
  config: rl_config.RLConfig,
  workdir: pathlib.Path,
  *,
  fresh: bool = False,
  begin: Callable[[], None] = lambda: None,
) -> program_lib.TrainState:
  """Trains, or goes on training, a policy; returns the last state.

  Raises:
    InputError: a folder, the problems or the config can't be used, or updates
      stayed without a finite gradient.
  """
  name = workdir.name
  mesh = sharding.make_mesh(config.mesh)
  sharding.check_rows(config.rows, mesh)
  roles = read_roles(config)
  problems, held_out = _read_both(config, name)
  prompts = sampler_lib.prompts(problems, roles.tokenizer)
  # The last step of a completion gets a separator where the text is read.
  sequence_length = max(map(len, prompts)) + config.rollout.max_tokens + 1
  with judges_of(config, roles, sequence_length) as judges:
    first = 0 if fresh else max(saves.saved_steps(workdir), default=0)
    collector = experience.Collector(
      config=config,
      models=roles.models,
      tokenizer=roles.tokenizer,
      problems=problems,
      judges=judges,
      key=jax.random.key(config.seed),
      sink=Samples(workdir, first),
    )
    longest = collector.prompt_tokens
    print(
      f"{name}: the longest prompt has {longest} tokens; an update takes"
      f" {config.rollout.num_solutions} solutions in up to"
      f" {collector.microbatches * config.minibatches} microbatches of"
      f" {config.rows} x {config.sequence_length} tokens",
      flush=True,
    )

    def begins():
      begin()
      model_json.write_description(workdir, describe(config, roles, workdir))

    return loop.fit(
      rl_program.make(roles.models, config),
      collector,
      config.fit,
      workdir=workdir,
      key=jax.random.key(config.seed),
      mesh=mesh,
      init_from=roles.init_from,
      fresh=fresh,
      measure=Measure(collector, held_out),
      watch=watch(config, name),
      begin=begins,
      shown=SHOWN_METRICS,
      name=name,
    )


def describe(
  config: rl_config.RLConfig, roles: Roles, folder: pathlib.Path
) -> model_json.Description:
  """Returns what the checkpoints need to be used as a policy."""
  return model_json.Description(
    program="rl",
    model=roles.models.policy,
    encoding=roles.encoding,
    tokenizer=roles.tokenizer.save(folder),
  )


def _read_both(
  config: rl_config.RLConfig, name: str
) -> tuple[list[schema.Solution], list[schema.Solution]]:
  """Returns the problems to train on, and those held out, and says how many.

  Raises:
    InputError: they overlap, or none has an answer that a reward needs.
  """
  problems, of_train = read_problems(config.problems.train)
  held_out, of_evaluation = read_problems(config.problems.evaluation)
  held_out = held_out[: config.problems.num_evaluation]
  _check_disjoint(config, problems, held_out)
  if config.rewards.verifier and not any(map(_has_answer, problems)):
    raise errors.InputError(
      f"problems.train={config.problems.train}: none of its"
      f" {len(problems):,} problems has an answer, which rewards.verifier="
      f'{config.rewards.verifier} compares with; give "answer" fields, or set'
      " it to 0"
    )
  for what, found, counts in (
    ("problems", problems, of_train),
    ("held out", held_out, of_evaluation),
  ):
    more = "".join(f", {n:,} {kind}" for kind, n in counts.items())
    print(f"{name}: {len(found):,} {what}{more}", flush=True)
  return problems, held_out


def _check_disjoint(config, problems, held_out) -> None:
  seen = {p.problem for p in problems}
  both = sum(p.problem in seen for p in held_out)
  if both:
    raise errors.InputError(
      f"problems.evaluation={config.problems.evaluation}: {both} of its problems"
      " are trained on; give others"
    )
