"""Trains a policy, given a config, problems and a verifier.

Only this module joins the RL program, its models, its rewards and `fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import logging
import pathlib
import tempfile

import jax

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import saves
from prm_jax.models import sharding
from prm_jax.policy import codecs
from prm_jax.rl import experience
from prm_jax.rl import hacking_monitor
from prm_jax.rl import measure
from prm_jax.rl import reward_record
from prm_jax.rl import rewards as rewards_lib
from prm_jax.rl import rl_config
from prm_jax.rl import rl_program
from prm_jax.rl import roles as roles_lib
from prm_jax.rl import sample_files
from prm_jax.rl import tasks
from prm_jax.rl import updates
from prm_jax.training import loop
from prm_jax.training import program as program_lib

_logger = logging.getLogger(__name__)

_NO_ADVANTAGE = (
  "no token of the rollout has an advantage, so the policy learns nothing from"
  " it: every return is 0 or its baseline (as clip_delta's are if all scores"
  " are above credit.threshold); zero_advantages counts such rollouts"
)
SHOWN_METRICS = (
  *("accuracy", "prm_return", "prm_score", "heldout_prm", "kl_nats"),
  *("entropy_nats", "clipped", "tokens", "steps", "distinct", "grad_norm"),
)


def check(
  config: rl_config.RLConfig,
  problems: Sequence[schema.Solution],
  held_out: Sequence[schema.Solution],
  verifier: rewards_lib.Verifier,
) -> None:
  """Refuses what doesn't go together, before any model is read.

  Args:
    config: The run.
    problems: Its problems.
    held_out: Those of its evaluations.
    verifier: Checks answers, and steps if it can.

  Raises:
    InputError: The config doesn't fit the devices, the problems or the
      verifier, or a held-out problem is trained on.
  """
  sharding.mesh_for(config.mesh, config.packing.batch_size)
  tasks.check_disjoint(problems, held_out)
  errors.raise_first(_misfits(config.rewards, problems, verifier))


def _misfits(
  rewards: rewards_lib.RewardConfig,
  problems: Sequence[schema.Solution],
  verifier: rewards_lib.Verifier,
) -> Iterator[str]:
  """Yields which rewards problems and verifier can't give."""
  answered = any(map(tasks.has_answer, problems))
  if rewards.verifier and verifier.needs_answers and not answered:
    yield (
      f"problems.train: none of its {len(problems):,} problems has an answer,"
      f" which rewards.verifier={rewards.verifier} compares with; give"
      ' "answer" fields, or set it to 0'
    )
  if rewards.exact and verifier.exact is None:
    yield (
      f"rewards.exact={rewards.exact}: the verifier of these problems"
      " doesn't know right steps; set it to 0"
    )


def train(
  config: rl_config.RLConfig,
  roles: roles_lib.Roles,
  workdir: pathlib.Path,
  *,
  problems: Sequence[schema.Solution],
  held_out: Sequence[schema.Solution],
  verifier: rewards_lib.Verifier,
  fresh: bool = False,
  on_start: Callable[[], None] = lambda: None,
) -> program_lib.TrainState:
  """Trains a policy or resumes its training; returns the last state.

  Args:
    config: The run; `check` has passed it.
    roles: The models that config.roles names.
    workdir: The folder for checkpoints, metrics and samples.
    problems: Solutions without steps, as tasks.read_problems returns them.
    held_out: The problems of the evaluations; none of them is trained on.
    verifier: Checks answers, and steps if it can.
    fresh: Whether to replace what the workdir holds, instead of resuming it.
    on_start: Called when nothing can be refused any more.

  Raises:
    InputError: The folder holds a run of another policy or other rewards, the
      problems don't fit the rows, or too many updates in a row had no finite
      gradient.
  """
  name = workdir.name
  first = 0 if fresh else max(saves.saved_steps(workdir), default=0)
  scored_by = reward_record.of(roles.identities, verifier.identity)
  if first:
    _check_same_policy(roles, workdir)
    reward_record.check_same(workdir, scored_by)
  collector = make_collector(
    config,
    roles.models,
    codec=roles.codec,
    problems=problems,
    functions=roles_lib.reward_functions(
      roles,
      verifier,
      problems,
      max_tokens=config.rollout.max_tokens,
      batch_tokens=config.packing.batch_size * config.packing.sequence_length,
    ),
    writer=sample_files.Samples(workdir, first),
  )
  _logger.info(f"{name}: {collector.describe()}")

  def describe_policy():
    on_start()
    model_json.write_description(workdir, describe(roles, workdir))
    reward_record.write(workdir, scored_by)

  return loop.fit(
    make_program(config, roles.models, shares_reference=roles.shares_reference),
    collector,
    config.fit,
    loop.Hooks(
      workdir=workdir,
      key=jax.random.key(config.seed),
      mesh=sharding.mesh_for(config.mesh, config.packing.batch_size),
      init_from=roles.init_from,
      donate=True,
      fresh=fresh,
      measure=measure.Measure(collector, held_out),
      callback=watch(config.monitor, name),
      on_start=describe_policy,
      shown=SHOWN_METRICS,
      name=name,
    ),
  )


def _check_same_policy(roles: roles_lib.Roles, workdir: pathlib.Path) -> None:
  """Refuses to resume if the saves are of another policy than init_from's."""
  with tempfile.TemporaryDirectory() as folder:
    now = describe(roles, pathlib.Path(folder))
  names = model_json.differences(
    model_json.read_description(workdir), now, workdir
  )
  if names:
    raise errors.InputError(
      f"{workdir}: its policy was another one than that of init_from:"
      f" {', '.join(names)} differ; put the folder of init_from back as it was,"
      " or give `fresh=True`"
    )


def make_program(
  config: rl_config.RLConfig,
  models: updates.Models,
  *,
  shares_reference: bool = False,
) -> program_lib.Program:
  """Returns the program of a config's updates; see rl.rl_program.make."""
  return rl_program.make(
    models,
    loss=config.loss,
    shape=config.shape,
    update=config.update,
    shares_reference=shares_reference,
  )


def make_collector(
  config: rl_config.RLConfig,
  models: updates.Models,
  *,
  codec: codecs.Codec,
  problems: Sequence[schema.Solution],
  functions: rewards_lib.RewardFunctions,
  writer: experience.Writer | None = None,
) -> experience.Collector:
  """Returns the collector that makes a config's rollouts.

  Args:
    config: The run.
    models: The models of its roles.
    codec: How the policy's prompts are written and its ids are read.
    problems: The problems to sample solutions of.
    functions: The functions that score the samples.
    writer: Called with each rollout's solutions and their scores.
  """
  return experience.Collector(
    rollout=config.rollout,
    shape=config.shape,
    rewards=config.rewards,
    credit=config.credit,
    loss=config.loss,
    models=models,
    codec=codec,
    problems=problems,
    functions=functions,
    key=jax.random.key(config.seed),
    seed=config.seed,
    epochs=config.epochs,
    implicit_beta=config.implicit_beta,
    writer=writer,
  )


def watch(config: hacking_monitor.MonitorConfig, name: str) -> loop.Callback:
  """Returns a function that checks every update's records for hacking.

  It also reports, once, a rollout that gave no token an advantage.
  """
  known: set[str] = set()

  def check(records):
    last = records[-1] if records else {}
    if last.get("zero_advantages") and _NO_ADVANTAGE not in known:
      _logger.warning(f"{name}: step {last['step']}: {_NO_ADVANTAGE}")
      known.add(_NO_ADVANTAGE)
    alarms = hacking_monitor.alarms(records, config)
    for alarm in alarms:
      if alarm.kind not in known:
        _logger.warning(f"{name}: step {alarm.update}: {alarm.text}")
        known.add(alarm.kind)
    acting = hacking_monitor.acting(alarms, config)
    if acting is None:
      return None
    back = config.action == "rollback"
    return loop.StopDecision(acting.text, acting.turn if back else None)

  return check


def describe(
  roles: roles_lib.Roles, folder: pathlib.Path
) -> model_json.Description:
  """Returns what a user of the checkpoints as a policy must know."""
  return model_json.Description(
    program="rl",
    model=roles.models.policy,
    encoding=roles.encoding,
    tokenizer=roles.codec.tokenizer.save(folder),
    sampling=roles.sampling,
  )
