"""What the experiments on reinforcement learning share: policy, PRMs, runs.

Not a command. rl_rewards.py and rl_algorithms.py run on it, with one config and
one --workdir: whichever comes first trains a seed's models for both.

The arithmetic problems are longer than the demo's, six to nine turns, and the
policy makes more errors: a third of its steps are wrong. Most of its right
answers then end right by luck, after a wrong step, so that an outcome reward
rewards what a step reward doesn't. With the demo's error rate, an outcome
reward had every greedy answer right within 24 updates, and the rewards couldn't
be compared.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import itertools
import math
import pathlib
import time
from typing import Any

import labelling_testbed as testbed
import ml_collections
import numpy as np
from scipy import stats

from prm_jax import voting
from prm_jax.demo import demo_run
from prm_jax.policy import sampler as sampler_lib
from prm_jax.records import jsonl
from prm_jax.reports import figure_files
from prm_jax.reports import rl_sweep
from prm_jax.rl import credit
from prm_jax.rl import hacking_monitor
from prm_jax.rl import policy_losses
from prm_jax.rl import rewards as rewards_lib
from prm_jax.rl import rl_config
from prm_jax.rl import rl_run_config
from prm_jax.rl import rollout
from prm_jax.rl import tasks
from prm_jax.runtime import checked_lines
from prm_jax.runtime import config_files
from prm_jax.runtime import files
from prm_jax.scoring import saved
from prm_jax.training import batches
from prm_jax.training import loop
from prm_jax.training import optimizer
from prm_jax.training import train_run
from prm_jax.view import site
from prm_jax.view import view_inputs

WORKDIR = pathlib.Path("runs/rl")
ROW_TOKENS, MAX_NEW_TOKENS = 96, 72
# Step-labelled solutions that the PRM learns from, and the one that is held out.
PRM_SOLUTIONS = 4_000
UPDATES, SMALL_UPDATES = 80, 4
TEST_PROBLEMS, NUM_SAMPLES = 200, 64


def settings(small: bool = False) -> ml_collections.ConfigDict:
  """Returns the demo's config with longer problems, and that of RL."""
  c = config_files.load(pathlib.Path(__file__).parent / "arithmetic.py")
  with c.unlocked():
    c.task.min_turns, c.task.max_turns = 6, 9
    c.task.slip_times_hard, c.task.slip_times_easy = 0.8, 0.4
    c.task.slip_shift = 0.25
    # Words of a verifier's chain, which the shared tokenizer holds, too.
    c.vocabulary = 96
    c.test_problems, c.num_samples = TEST_PROBLEMS, NUM_SAMPLES
    c.max_new_tokens = MAX_NEW_TOKENS
    c.train_problems = 4_000
    c.train_samples = 4
    c.pool_problems, c.verifier_problems = 2_000, 60
    for run in c.runs.values():
      run.packing.sequence_length = run.encoding.max_tokens = ROW_TOKENS
      run.packing.batch_size = 48
    c.runs.base.fit.steps = 600
    c.runs.prm.fit.steps = 500
    c.rl = dict(updates=UPDATES, peak_lr=3e-4)
    if small:
      c.task.min_turns, c.task.max_turns = 2, 3
      c.base_problems, c.annotated_problems = 3_000, 500
      c.train_problems, c.pool_problems = 200, 60
      c.test_problems, c.num_samples = 10, 8
      for run in c.runs.values():
        run.fit.steps = 20
        run.optimizer.warmup_steps = 10
      c.runs.base.fit.steps = 150
      c.rl.updates = SMALL_UPDATES
  return c


@dataclasses.dataclass(frozen=True)
class Models:
  """A seed's checkpoint folders and problem files, and its testbed."""

  bed: testbed.Testbed
  policy: str
  prm: str
  held_out_prm: str
  train: str
  test: str


def prepare(bed: testbed.Testbed) -> Models:
  """Returns what RL starts from; what the workdir holds isn't made again.

  The held-out PRM learns from the other half of the pool, with another seed.
  """
  for name, number in (("prm", 0), ("held_out_prm", 1)):
    part = list(bed.pool[number::2])[:PRM_SOLUTIONS]
    run = bed.config.runs["prm"]
    run = dataclasses.replace(run, seed=run.seed + 100 * number)
    train_run.train(
      run,
      part,
      bed.inputs.tokenizer,
      bed.workdir / name,
      init_from=bed.base,
    )
  # Not those whose solutions the PRMs have seen.
  fresh = bed.inputs.train[bed.c.pool_problems :]
  for name, problems in (("train", fresh), ("test", bed.inputs.test)):
    path = bed.workdir / f"{name}_problems.jsonl"
    if not path.exists():
      jsonl.write_problems(path, problems)
  folder = bed.workdir
  return Models(
    bed,
    policy=str(folder / "policy"),
    prm=str(folder / "prm"),
    held_out_prm=str(folder / "held_out_prm"),
    train=f"problems:{folder / 'train_problems.jsonl'}",
    test=f"problems:{folder / 'test_problems.jsonl'}",
  )


def configured(models: Models, fields: Mapping[str, Any]) -> rl_config.RLConfig:
  """Returns a run of this seed; fields: groups and values that differ."""
  c = models.bed.c.rl
  given = dict(fields)

  def group(name, kind, **usual):
    return kind(**usual | given.pop(name, {}))

  policy = group(
    "optimizer",
    optimizer.OptimizerConfig,
    peak_lr=c.peak_lr,
    warmup_steps=10,
    final_fraction=0.1,
    weight_decay=0.0,
  )
  critic = group(
    "critic_optimizer",
    optimizer.OptimizerConfig,
    peak_lr=1e-3,
    warmup_steps=5,
    weight_decay=0.0,
  )
  rewards = group("rewards", rewards_lib.RewardConfig)
  known = dict(
    seed=models.bed.seed,
    init_from=models.policy,
    rollout=group(
      "rollout",
      rollout.RolloutConfig,
      problems=16,
      samples=8,
      max_tokens=MAX_NEW_TOKENS,
      slots=64,
    ),
    rewards=rewards,
    credit=group("credit", credit.CreditConfig),
    loss=group("loss", policy_losses.LossConfig),
    packing=batches.PackingConfig(8, 256, share_prefixes=True),
    optimizer=policy,
    critic_optimizer=critic,
    implicit_optimizer=policy,
    fit=loop.FitConfig(
      steps=given.pop("updates", c.updates),
      log_every=1,
      eval_every=max(1, c.updates // 20),
      checkpoint_every=max(1, c.updates // 20),
      keep_last=50,
      tensorboard=False,
    ),
    monitor=group("monitor", hacking_monitor.MonitorConfig),
    prm=models.prm,
    held_out_prm=models.held_out_prm,
  )
  return rl_config.RLConfig(**known | given)


def train(
  models: Models, name: str, fields: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the curves of a run of some fields; see read_curves."""
  config = configured(models, fields)
  workdir = models.bed.workdir / name
  problems = tasks.ProblemsConfig(
    models.train, models.test, TEST_PROBLEMS, tasks.ARITHMETIC
  )
  rl_run_config.Run(config, problems).train(workdir)
  return read_curves(workdir, config.monitor)


def read_curves(
  workdir: pathlib.Path, monitor: hacking_monitor.MonitorConfig
) -> dict[str, Any]:
  """Returns a run's curves, as lists by the name of the metric, and alarms.

  eval: at each evaluation, greedy, on the test problems; train: at each
  update, of its samples. alarms: the hacking monitor's, whether
  or not it was set to stop.
  """
  lines = checked_lines.read_metrics(workdir / "metrics.jsonl")
  records = [record for _, record in lines]
  of_kind = {
    kind: [r for r in records if r["kind"] == kind]
    for kind in ("eval", "train")
  }
  alarms = hacking_monitor.replay(of_kind["train"], monitor)
  return dict(
    eval=_columns(of_kind["eval"], EVAL),
    train=_columns(of_kind["train"], TRAIN),
    alarms=[dataclasses.asdict(x) for x in alarms],
  )


def points(
  bed: testbed.Testbed,
  todo: Sequence[str],
  prefix: str,
  fields_of: Callable[[Models, str], Mapping[str, Any] | None],
) -> Iterator[dict[str, Any]]:
  """Yields one variant's curves and last measures after another.

  fields_of: a variant's run, None for the unchanged policy. prefix: of the
  folders of an experiment's runs.
  """
  models = prepare(bed)
  for name in todo:
    start = time.perf_counter()
    folder = pathlib.Path(models.policy)
    curves: dict[str, Any] = {}
    fields = fields_of(models, name)
    if fields is not None:
      folder = bed.workdir / f"{prefix}_{name}"
      curves = train(models, folder.name, fields)
    train_s = time.perf_counter() - start
    best = best_of(models, folder)
    yield dict(
      name=name, train_s=round(train_s, 1), curves=curves, best_of=best
    )
    print(f"{bed.seed} {name}: {train_s:.0f} s, mean {best['mean']:.3f}")


# --- Sample efficiency ------------------------------------------------------

# Accuracies at which two runs are compared. Rounded as the curves are: 0.35 is
# not above a start of 0.35.
LEVELS = np.arange(0.05, 1, 0.05).round(5)


def sampled_tokens(curves: Mapping[str, Any]) -> np.ndarray:
  """Returns how many tokens a run had sampled at each of its evaluations."""
  total = np.cumsum([0.0, *curves["train"]["sampled_tokens"]])
  return total[np.asarray(curves["eval"]["step"], int)]


def efficiency(
  slow: Mapping[str, Any], fast: Mapping[str, Any], metric: str
) -> float:
  """Returns how many times the sampled tokens `slow` takes to get as far.

  The geometric mean over the LEVELS of a greedy metric that neither run has at
  its start and both reach; between evaluations a curve is a straight line, and
  one that falls counts as its highest value so far. NaN for no such level.
  """
  runs = [
    (sampled_tokens(c), np.maximum.accumulate(c["eval"][metric]))
    for c in (slow, fast)
  ]
  low = max(curve[0] for _, curve in runs)
  high = min(curve[-1] for _, curve in runs)
  levels = LEVELS[(low < LEVELS) & (high >= LEVELS)]
  if not levels.size:
    return math.nan
  logs = [
    np.log([testbed.reached(at, curve, y) for y in levels])
    for at, curve in runs
  ]
  return math.exp(float(np.mean(logs[0] - logs[1])))


def factor(
  points: Sequence[Mapping[str, Any]], slow: str, fast: str, metric: str
) -> str:
  """Returns the efficiency of one variant over another, and its 95 % interval.

  The geometric mean over the seeds that have both, and Student's interval of
  its logarithm: seeds represent all randomness. "" without a seed.
  """
  of = {(p["name"], p["seed"]): p["curves"] for p in points}
  seeds = sorted(s for name, s in of if name == slow and (fast, s) in of)
  factors = [efficiency(of[slow, s], of[fast, s], metric) for s in seeds]
  logs = np.log([x for x in factors if math.isfinite(x)])
  if not logs.size:
    return ""
  text = f"{math.exp(logs.mean()):.2f}"
  if logs.size > 1:
    half = stats.t.ppf(0.975, logs.size - 1) * stats.sem(logs)
    ends = (math.exp(logs.mean() + sign * half) for sign in (-1, 1))
    text += " [{:.2f}, {:.2f}]".format(*ends)
  missing = len(seeds) - logs.size
  return text + (f"; {missing} never as far" if missing else "")


# --- Curves and pictures ----------------------------------------------------

EVAL = ("step", "accuracy", "all_steps_correct", "prm_score", "tokens", "steps")
TRAIN = (
  *(
    "step",
    "accuracy",
    "all_steps_correct",
    "prm_return",
    "prm_return_std",
    "prm_score",
    "heldout_prm",
  ),
  *("kl_nats", "entropy_nats", "clipped", "tokens", "steps", "repetition"),
  *("repeated_steps", "distinct", "without_answer", "cut"),
  *("explained_variance", "sampled_tokens", "solutions"),
  *("rollout_s", "scoring_s", "reference_s", "update_s"),
)


def _columns(
  records: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, list[float | None]]:
  columns = {}
  for name in names:
    values = [r.get(name) for r in records]
    if any(x is not None for x in values):
      columns[name] = [
        None if x is None else round(float(x), 5) for x in values
      ]
  return columns


# Metric of the evaluations -> what the name of its picture ends in.
PICTURES = dict(accuracy=".svg", all_steps_correct="_faithful.svg")


def pictures(
  points: Sequence[Mapping[str, Any]],
  output: pathlib.Path,
  *,
  title: str,
  groups: Mapping[str, Sequence[str]],
  labels: Mapping[str, str],
  about: Mapping[str, tuple[str, str]],
) -> None:
  """Writes PICTURES of the first group of variants, and pages of all groups.

  They are next to the output, the pages in NAME_pages; only points with curves
  are drawn, and only variants that are in a group, by their labels. about: what
  the page says of each, with a link.
  """
  runs: dict[str, list[Any]] = {}
  for arm in itertools.chain(*groups.values()):
    own = [p for p in points if p["name"] == arm and p["curves"]]
    if own:
      runs[labels[arm]] = [p["curves"] for p in own]
  if not runs:
    return
  groups = {
    group: [labels[arm] for arm in arms] for group, arms in groups.items()
  }
  first = [arm for arm in next(iter(groups.values())) if arm in runs]
  for metric, ending in PICTURES.items():
    if any(metric in c["eval"] for arm in first for c in runs[arm]):
      figure_files.write(
        output.with_name(output.stem + ending),
        rl_sweep.figure(runs, metric, variants=first),
      )
  details = files.read_json(output)
  named = {labels[arm]: x for arm, x in about.items()}
  del details["points"]
  page = rl_sweep.page(title, runs, groups=groups, about=named, details=details)
  made = site.pages(view_inputs.Inputs(), {output.stem: page})
  site.write(output.with_name(f"{output.stem}_pages"), made)


def run(
  description: str,
  output: pathlib.Path,
  arms: Mapping[str, Any],
  points_of_seed: Callable[..., Iterator[testbed.Point]],
  table: Callable[[Sequence[testbed.Point]], str],
  groups: Mapping[str, Sequence[str]],
  labels: Mapping[str, str],
  about: Mapping[str, tuple[str, str]],
) -> None:
  """Runs the command line of an experiment; its page is titled as described."""
  testbed.run(
    description,
    output,
    tuple(arms),
    points_of_seed,
    table,
    make=settings,
    workdir=WORKDIR,
    pictures=functools.partial(
      pictures,
      title=description,
      groups=groups,
      labels=labels,
      about=about,
    ),
  )


def best_of(models: Models, folder: pathlib.Path) -> dict[str, Any]:
  """Returns how a policy of a folder does, greedy and by best-of-N.

  By the PRM that RL was rewarded by; ranks by the minimum over steps.
  """
  bed = models.bed
  policy = sampler_lib.load(folder)
  rows = demo_run.sample(
    bed.config,
    policy,
    bed.inputs.test,
    bed.config.num_samples,
    bed.config.temperature,
    bed.key(7),
  )
  flat = [s for row in rows for s in row]
  scores = saved.load(pathlib.Path(models.prm)).score(flat)
  shape = len(rows), len(rows[0])
  right = np.array([bool(s.outcome) for s in flat]).reshape(shape)
  ranked = np.array(voting.ranking_scores(scores, "min"))
  counts = [2**k for k in range(shape[1].bit_length())]
  best = voting.best_of_n(ranked.reshape(shape), right, counts)
  return dict(
    num_samples=counts,
    best_of_n=[round(float(x), 5) for x in best.mean(0)],
    mean=round(float(right.mean()), 5),
    any_right=round(float(right.any(1).mean()), 5),
  )
