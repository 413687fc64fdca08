"""Each recipe against its paper's formula, written out in numpy."""

import dataclasses
import pathlib
from typing import NamedTuple

import jax
from jax import numpy as jnp
import numpy as np
import pytest
import rl_tiny

from prm_jax import errors
from prm_jax.policy import sampler
from prm_jax.rl import advantages
from prm_jax.rl import credit
from prm_jax.rl import policy_losses
from prm_jax.rl import recipes
from prm_jax.rl import rewards
from prm_jax.rl import rows

NAMES = [k for k, v in vars(recipes).items() if isinstance(v, recipes.Recipe)]
DOCS = pathlib.Path(__file__).parents[2] / "docs"
MAX_TOKENS = 9
# What earlier rollouts returned, for REINFORCE.
EARLIER = np.array([1.0, 0.0, 0.5, 1.0])


class Solution(NamedTuple):
  """scores: P(correct) of steps, which end at the tokens `ends`."""

  length: int
  scores: list[float]
  ends: list[int]
  right: bool | None
  token_rewards: np.ndarray
  values: np.ndarray


def _solutions(num, seed=0):
  random = np.random.default_rng(seed)
  made = []
  for i in range(num):
    length = int(random.integers(4, MAX_TOKENS + 1))
    steps = int(random.integers(1, 4))
    cuts = np.sort(random.choice(length - 1, steps - 1, replace=False))
    made.append(
      Solution(
        length,
        random.random(steps).tolist(),
        [*cuts.tolist(), length - 1],
        (True, False, True, False, True, True)[i],
        random.normal(size=length),
        random.random(length),
      )
    )
  return made


def _case(name):
  """Returns solutions, how many a problem has, and which of them count."""
  made = _solutions(6)
  if name == "one of a problem":
    return made[:2], 1, [0, 1]
  if name == "all alike":
    one = made[0]._replace(scores=[0.7] * len(made[0].scores))
    return [one] * 6, 3, list(range(6))
  if name == "one that doesn't count":
    nan = [float("nan")] * len(made[4].scores)
    made[4] = made[4]._replace(scores=nan, right=None)
    return made, 3, [0, 1, 2, 3, 5]
  return made, 3, list(range(6))


CASES = ("usual", "one of a problem", "all alike", "one that doesn't count")


def _padded(values):
  out = np.zeros((len(values), MAX_TOKENS), np.float32)
  for row, given in zip(out, values, strict=True):
    row[: len(given)] = given
  return out


def _assigned(recipe, solutions, samples):
  """Returns what our code makes of them, and the tokens that count."""
  completions = [
    sampler.Completion(
      np.ones(s.length, np.int32), np.zeros(s.length, np.float32), "end"
    )
    for s in solutions
  ]
  outputs = rewards.RewardOutputs(
    prm=[s.scores for s in solutions],
    ends=[np.array(s.ends) for s in solutions],
    exact=None,
    own_ends=[np.array(s.ends) for s in solutions],
    orm=None,
    right=[s.right for s in solutions],
    held_out=None,
    answered=[True] * len(solutions),
  )
  given, _ = rewards.collect(
    outputs,
    completions,
    recipe.rewards,
    samples=samples,
    max_tokens=MAX_TOKENS,
  )
  given = dataclasses.replace(
    given,
    tokens=_padded([s.token_rewards for s in solutions]),
    values=_padded([s.values for s in solutions]),
  )
  mean = advantages.MovingMean(
    jnp.float32(EARLIER.sum()), jnp.float32(EARLIER.size)
  )
  assigned = credit.assign(
    given,
    mean,
    config=recipe.credit,
    samples=samples,
    max_tokens=MAX_TOKENS,
    implicit_weight=recipe.rewards.implicit,
  )
  mask = given.token_mask & given.counts[:, None]
  return jax.device_get(assigned), mask


# --- Advantages, of the solutions of one problem --------------------------------


def _others(values, i):
  """Returns the mean of all but one; of none, 0."""
  rest = np.delete(values, i)
  return rest.mean() if rest.size else 0.0


def _right(group):
  return np.array([float(s.right) for s in group])


def _at_all_tokens(numbers, group):
  pairs = zip(numbers, group, strict=True)
  return [np.full(s.length, number) for number, s in pairs]


def _from_steps(values, s):
  """Returns at each token the sum over the steps that end there or later."""
  pairs = list(zip(values, s.ends, strict=True))
  return np.array(
    [sum(v for v, end in pairs if end >= t) for t in range(s.length)]
  )


def reinforce(group):
  return _at_all_tokens(_right(group) - EARLIER.mean(), group)


def rloo(group):
  r = _right(group)
  return _at_all_tokens([x - _others(r, i) for i, x in enumerate(r)], group)


def ppo(group):
  found = []
  for s in group:
    r = np.append(np.zeros(s.length - 1), float(s.right))
    v = np.append(s.values, 0.0)
    deltas = r + v[1:] - v[:-1]
    powers = 0.95 ** np.arange(s.length)
    found.append(
      np.array(
        [(deltas[t:] * powers[: s.length - t]).sum() for t in range(s.length)]
      )
    )
  return found


def grpo(group):
  r = _right(group)
  return _at_all_tokens((r - r.mean()) / (r.std() or 1), group)


def grpo_process(group):
  every = np.concatenate([s.scores for s in group])
  spread = every.std() if np.ptp(every) else 1
  return [
    _from_steps((np.array(s.scores) - every.mean()) / spread, s) for s in group
  ]


def dr_grpo(group):
  r = _right(group)
  return _at_all_tokens(r - r.mean(), group)


def clip_delta(group):
  returns = []
  for s in group:
    clipped = np.minimum(np.array(s.scores) - 0.5, 0)
    # What telescopes: the step's own score; of the last step, the answer, none.
    own = [*clipped[:-1], 0.0]
    steps = np.searchsorted(s.ends, np.arange(s.length))
    returns.append(np.array([own[k] for k in steps]) + float(s.right))
  whole = np.array([r[0] for r in returns])
  return [r - _others(whole, i) for i, r in enumerate(returns)]


def prime(group, largest):
  means = np.array([s.token_rewards.mean() / largest for s in group])
  r = _right(group)
  found = []
  for i, s in enumerate(group):
    process = s.token_rewards / largest - _others(means, i)
    outcome = r[i] - _others(r, i)
    found.append(5 * np.cumsum(process[::-1])[::-1] + 5 * outcome)
  return found


def pure(group):
  soft = []
  for s in group:
    r = 2 * np.array(s.scores) - 1
    w = np.exp(-r / 0.1)
    soft.append(w / w.sum() * r)
  right, found = _right(group), []
  for i, s in enumerate(group):
    rest = [j for j in range(len(group)) if j != i]
    tokens = sum(group[j].length for j in rest)
    price = sum(soft[j].sum() for j in rest) / max(tokens, 1)
    sizes = np.diff([-1, *s.ends])
    steps = _from_steps(soft[i] - price * sizes, s)
    found.append(steps + right[i] - _others(right, i))
  return found


def pure_verl(group):
  """Before it is whitened."""
  returns = []
  for s in group:
    r = 2 * np.array(s.scores) - 1
    w = np.exp(-r / 0.1)
    returns.append(_from_steps(w / w.sum() * r, s) + float(s.right))
  sums = np.array([x.sum() for x in returns])
  return [x - _others(sums, i) / MAX_TOKENS for i, x in enumerate(returns)]


PAPERS = dict(
  REINFORCE=reinforce,
  RLOO=rloo,
  PPO=ppo,
  GRPO=grpo,
  GRPO_PROCESS=grpo_process,
  DR_GRPO=dr_grpo,
  CLIP_DELTA=clip_delta,
  PURE=pure,
  PURE_VERL=pure_verl,
)


def _by_paper(name, solutions, samples, counting):
  """Returns the advantages of all tokens, 0 at those that don't count."""
  groups = [
    [i for i in counting if i // samples == problem]
    for problem in range(len(solutions) // samples)
  ]
  if name == "PRIME":
    groups = [
      own
      for own in groups
      if 0.2 <= np.mean([bool(solutions[i].right) for i in own]) <= 0.8
    ]
    returns = [
      np.abs(np.cumsum(solutions[i].token_rewards[::-1])).max()
      for own in groups
      for i in own
    ]
    largest = max(returns, default=1.0)
  out = np.zeros((len(solutions), MAX_TOKENS))
  mask = np.zeros(out.shape, bool)
  for own in groups:
    group = [solutions[i] for i in own]
    rows_of = prime(group, largest) if name == "PRIME" else PAPERS[name](group)
    for i, row in zip(own, rows_of, strict=True):
      out[i, : len(row)], mask[i, : len(row)] = row, True
  if name in ("PRIME", "PURE_VERL") and mask.any():  # whitened
    out = np.where(mask, out - out[mask].mean(), 0)
    out /= out[mask].std()
  return out, mask


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_the_advantages_of_a_recipe_are_the_papers(name, case):
  solutions, samples, counting = _case(case)
  recipe = vars(recipes)[name]
  found, mask = _assigned(recipe, solutions, samples)
  expected, expected_mask = _by_paper(name, solutions, samples, counting)
  np.testing.assert_array_equal(mask, expected_mask)
  np.testing.assert_allclose(found.advantages, expected, atol=2e-4)


@pytest.mark.parametrize("name", ["RLOO", "GRPO", "GRPO_PROCESS", "DR_GRPO"])
def test_solutions_that_fare_alike_teach_nothing_at_all(name):
  solutions, samples, _ = _case("all alike")
  found, _ = _assigned(vars(recipes)[name], solutions, samples)
  assert not found.advantages.any()


# --- The objective ----------------------------------------------------------


def _of_clip(ratio, a):
  return -np.minimum(ratio * a, np.clip(ratio, 0.8, 1.2) * a)


def _mean_over(loss, mask, how):
  lengths = mask.sum(1)
  real = lengths > 0
  if how == "tokens":
    return loss[mask].mean()
  if how == "solutions":
    return np.mean((loss * mask).sum(1)[real] / lengths[real])
  return (loss * mask).sum() / (real.sum() * MAX_TOKENS)


AGGREGATED = dict(
  REINFORCE="constant",
  RLOO="constant",
  DR_GRPO="constant",
  GRPO="solutions",
  GRPO_PROCESS="solutions",
)


@pytest.mark.parametrize("name", NAMES)
def test_the_objective_of_a_recipe_is_the_papers(name):
  random = np.random.default_rng(1)
  recipe = vars(recipes)[name]
  lengths = np.array([3, 9, 5, 0, 7, 1])  # 0: one that doesn't count
  mask = np.arange(MAX_TOKENS) < lengths[:, None]
  new, old, reference = random.normal(-1, 0.3, (3, *mask.shape))
  a = random.normal(size=mask.shape)
  if name in ("REINFORCE", "RLOO"):
    loss = -a * new
  else:
    loss = _of_clip(np.exp(new - old), a)
  if name.startswith("GRPO"):
    apart = reference - new
    loss = loss + 0.04 * (np.exp(apart) - apart - 1)
  expected = _mean_over(loss, mask, AGGREGATED.get(name, "tokens"))
  config = recipe.loss
  weights = rows.loss_weights(
    mask,
    np.zeros(len(mask), int),
    loss_aggregation=config.loss_aggregation,
    max_tokens=MAX_TOKENS,
  )
  given = [np.asarray(x, np.float32) for x in (new, old, a)]
  total, _, _ = policy_losses.POLICY_LOSSES[config.kind].sums(
    jnp.asarray(given[0]), *given[1:], weights, config
  )
  if config.kl_placement == "loss":
    distance = policy_losses.kl(
      given[0],
      reference.astype(np.float32),
      weights,
      estimator=config.kl_estimator,
    )
    total += config.kl * (distance * weights).sum()
  assert float(total) == pytest.approx(expected, rel=1e-5)


# --- Configs ----------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_a_part_of_a_run(name):
  recipe = vars(recipes)[name]
  known = rl_tiny.config(prm="-")
  run = dataclasses.replace(known, **recipe._asdict())
  assert (run.rewards, run.credit, run.loss) == recipe
  one = dataclasses.replace(known.rollout, samples=1)
  if recipe.credit.needs.compares_solutions:
    with pytest.raises(errors.InputError, match="take 2 or more"):
      dataclasses.replace(run, rollout=one)
  else:
    assert dataclasses.replace(run, rollout=one)


def test_the_docs_name_every_recipe():
  text = (DOCS / "rl.md").read_text()
  assert not [name for name in NAMES if f"`{name}`" not in text]
