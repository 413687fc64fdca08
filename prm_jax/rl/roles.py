"""The models of a run and what scores its samples, read by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import parameters
from prm_jax.models import kinds
from prm_jax.models import model_config
from prm_jax.policy import codecs
from prm_jax.policy import sampler as sampler_lib
from prm_jax.rl import rewards as rewards_lib
from prm_jax.rl import updates
from prm_jax.runtime import files
from prm_jax.scoring import score_sources
from prm_jax.text import tokenizer as tokenizer_lib

# The programs of a PRM.
_SCORES_STEPS = ("prm", "implicit")


@dataclasses.dataclass(frozen=True)
class Names:
  """What a run's models and scores are, by name.

  Args:
    init_from: The folder of the policy.
    model: The fields of its ModelConfig to change.
    reference: The folder of the reference; "" is the policy itself, "none" no
      model at all.
    critic: The folder whose trunk the critic starts from; "" is the policy's.
    prm: The name of what scores steps, "" for none; see
      score_sources.load_score.
    orm: As prm, of what scores whole solutions by their last step.
    held_out_prm: As prm, of what rewards nothing.
    outcome: The name of a function that rewards solutions, "" for none.
    key: The key of servers.
    score_dtype: The type in which what scores computes, if it is a checkpoint;
      None is its own.
    has_critic: Whether there is a critic with a trunk of its own.
    has_implicit: Whether there is an implicit PRM.
    shares_reference: Whether a reference that is the policy itself may share
      its weights: only adapters are trained.
  """

  init_from: str
  model: Mapping[str, Any]
  reference: str
  critic: str
  prm: str
  orm: str
  held_out_prm: str
  outcome: str
  key: score_sources.Key
  score_dtype: str | None
  has_critic: bool
  has_implicit: bool
  shares_reference: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Roles:
  """The models of a run, and how the policy reads and writes.

  Args:
    models: The models of the roles.
    init_from: The initial parameters of every role that has any, for fit.
    codec: How the policy's prompts are written and its ids are read.
    encoding: The policy's encoding.
    sampling: The policy's default temperature, top_p, top_k and min_p; see
      sampling_defaults.
    prm: The PRM that rewards.
    orm: The ORM that rewards.
    held_out: The PRM that rewards nothing.
    outcome: The function that rewards whole solutions, and what it is.
  """

  models: updates.Models
  init_from: dict[str, Any]
  codec: codecs.Codec
  encoding: Mapping[str, Any]
  sampling: Mapping[str, float]
  prm: score_sources.Loaded | None
  orm: score_sources.Loaded | None
  held_out: score_sources.Loaded | None
  outcome: tuple[schema.OutcomeReward, score_sources.Identity] | None

  @property
  def shares_reference(self) -> bool:
    """Whether the reference is the policy with its adapters off."""
    has_one = self.models.reference is not None
    return has_one and updates.REFERENCE not in self.init_from

  @property
  def identities(self) -> dict[str, score_sources.Identity]:
    """What scores the samples, by the fields that name it."""
    loaded = dict(prm=self.prm, orm=self.orm, held_out_prm=self.held_out)
    known = {k: v.identity for k, v in loaded.items() if v is not None}
    return known | ({"outcome": self.outcome[1]} if self.outcome else {})


def read_roles(names: Names) -> Roles:
  """Returns the models that a run's names stand for.

  Raises:
    InputError: A folder can't be read or isn't of the role's kind, a function
      or server can't be used, or a critic or reference has another vocabulary
      than the policy.
  """
  folder = _folder(names.init_from, "init_from", kinds.POLICIES)
  described = model_json.read_description(folder)
  loaded = sampler_lib.of_description(folder, described)
  params = parameters.load_params(folder, described)
  policy = dataclasses.replace(loaded.config, **names.model)
  begun = _without_new_adapters(policy, loaded.config)

  def other(
    text: str, field: str, programs: Sequence[str]
  ) -> tuple[model_config.ModelConfig, Any]:
    of_role, given = _other(text, field, programs, loaded.tokenizer)
    return model_config.computing_in(of_role, policy.compute_dtype), given

  start = dict(params)
  models = updates.Models(policy)
  if names.reference != "none":
    of_role = begun
    if names.reference:
      of_role, start[updates.REFERENCE] = other(
        names.reference, "reference", kinds.POLICIES
      )
    elif not names.shares_reference or begun.lora_rank:
      start[updates.REFERENCE] = params
    models = models._replace(reference=of_role)
  if names.has_implicit:
    models = models._replace(implicit=begun)
    start[updates.IMPLICIT] = params
  if names.has_critic:
    of_role, trunk = begun, params
    if names.critic:
      of_role, trunk = other(
        names.critic, "critic", ("prm", "orm", *kinds.POLICIES)
      )
    models = models._replace(critic=of_role)
    # Its own head begins at 0: a PRM's logit is no return.
    start[updates.CRITIC] = {
      k: v for k, v in trunk.items() if not k.endswith("_head")
    }
  outcome = names.outcome or None
  return Roles(
    models=models,
    init_from=start,
    codec=loaded.codec,
    encoding=described.encoding,
    sampling=described.sampling,
    prm=_score(names, "prm", _SCORES_STEPS),
    orm=_score(names, "orm", ("orm",)),
    held_out=_score(names, "held_out_prm", _SCORES_STEPS),
    outcome=outcome and score_sources.load_outcome_reward(outcome),
  )


def _without_new_adapters(
  policy: model_config.ModelConfig, saved: model_config.ModelConfig
) -> model_config.ModelConfig:
  """Returns a role without the adapters that only this run gives the policy."""
  return dataclasses.replace(
    policy,
    lora_rank=saved.lora_rank,
    lora_alpha=saved.lora_alpha,
    lora_targets=saved.lora_targets,
  )


def reward_functions(
  roles: Roles,
  verifier: rewards_lib.Verifier,
  problems: Sequence[schema.Solution],
  *,
  max_tokens: int,
  batch_tokens: int,
) -> rewards_lib.RewardFunctions:
  """Returns the functions that score the samples of a run.

  Args:
    roles: The run's models.
    verifier: Checks answers.
    problems: The run's problems.
    max_tokens: The token budget of a solution.
    batch_tokens: The most tokens of a batch of texts.
  """
  prompts = [roles.codec.prompt(problem).tokens for problem in problems]
  # Most texts fit it, so that they take one compiled program. The last step of
  # a completion gets a separator where the text is read.
  sequence_length = max(map(len, prompts)) + max_tokens + 1

  def score(loaded: score_sources.Loaded | None) -> schema.Score | None:
    if loaded is None or loaded.scorer is None:
      return None if loaded is None else loaded.score
    return dataclasses.replace(
      loaded.scorer, sequence_length=sequence_length, batch_tokens=batch_tokens
    ).score

  return rewards_lib.RewardFunctions(
    verifier,
    prm=score(roles.prm),
    orm=score(roles.orm),
    held_out=score(roles.held_out),
    outcome=None if roles.outcome is None else roles.outcome[0],
  )


def _folder(text: str, field: str, programs: Sequence[str]) -> pathlib.Path:
  """Returns the folder that a field names; refuses one of another program."""
  if not text:
    raise errors.InputError(f"{field}: give a checkpoint folder")
  folder = files.local_path(text)
  program = model_json.read_description(folder).program
  if program not in programs:
    raise errors.InputError(
      f"{field}={text}: holds {kinds.with_article(program)}; expected one of"
      f" {', '.join(programs)}"
    )
  return folder


def _other(
  text: str,
  field: str,
  programs: Sequence[str],
  policys: tokenizer_lib.Tokenizer,
) -> tuple[model_config.ModelConfig, Any]:
  """Returns the model and parameters of a role that reads the policy's ids."""
  folder = _folder(text, field, programs)
  described = model_json.read_description(folder)
  tokenizer = model_json.read_tokenizer(folder, described)
  if not tokenizer_lib.same_ids(policys, tokenizer):
    raise errors.InputError(
      f"{field}={text}: has another tokenizer than the policy, whose ids it"
      " must read; give one with the policy's"
    )
  return described.model, parameters.load_params(folder, described)


def _score(
  names: Names, field: str, programs: Sequence[str]
) -> score_sources.Loaded | None:
  """Returns what a field names to score steps; None if it names nothing."""
  name = getattr(names, field)
  if not name:
    return None
  if not score_sources.is_checkpoint(name):
    return score_sources.load(name, key=names.key)
  _folder(str(score_sources.checkpoint_folder(name)), field, programs)
  return score_sources.load(name, compute_dtype=names.score_dtype)
