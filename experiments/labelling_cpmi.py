"""Are labels without rollouts as good as Monte-Carlo labels at equal cost?

Command:  python experiments/labelling_cpmi.py
          [--output=docs/results/labelling_cpmi.json] [--seeds=0,1,2]
          [--workdir=runs/labelling] [--only=labels,prm_cpmi,...] [--small]
          [--table]
Hardware, time and result: see experiments/README.md.

On the arithmetic testbed, from the policy that wrote the solutions: CPMI
(`label cpmi`: its released form, alone, and two that show the steps before),
the log-ratio of a policy after a short RL run by right answers and that policy
before it (`score --reference`, the progress advantage), and Monte-Carlo labels
of 1, 2, 4 and 8 rollouts a step. The cost is the tokens that go through a
model, computed once each, whether read or written, and seconds after a first
call that compiles; the RL run is told apart.

labels: of 1,000 solutions, against the exact verifier, as
labelling_monte_carlo.py compares: steps up to the first wrong one, without the
last. First errors are named by a threshold that is chosen on the solutions of
one half of the problems, on the other half. prm_*: PRMs, with the same updates,
of soft labels of 4,000 solutions, and of as many with 8 rollouts as cost what
CPMI's labels of 4,000 do.

The rules, written before any result. Over three seeds:
1. A label says something of a step if its AUROC is above that of the step's
   place alone, earlier ones above later ones, in every seed.
2. A label is as good as Monte-Carlo's at equal cost if its AUROC is at least
   that of the largest K whose tokens aren't more than its own (K = 1 if none
   is), in every seed; worse if it is below in every seed; else this is open.
3. A PRM of CPMI's labels (form alone) is better than that of Monte-Carlo's at
   equal tokens if step AUROC and best of 64 by the minimum are both higher in
   every seed; worse if both are lower in every seed; else this is open.

controls have no rule: they were added when the labels of seed 0 had been seen,
where the log-ratio names nearly every error. They are what the two policies say
alone, and the log-ratio after RL runs of 5 and 20 updates. Nor has cost: CPU
seconds, added since seconds by the clock say little beside other work.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import pathlib
import time
from typing import Any

import labelling_testbed as testbed
import numpy as np

from prm_jax import schema
from prm_jax.evaluation import processbench_metrics
from prm_jax.evaluation import step_metrics
from prm_jax.jobs import opened_policies
from prm_jax.jobs import policies
from prm_jax.labelling import cpmi
from prm_jax.labelling import monte_carlo
from prm_jax.policy import log_likelihood
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampling as sampling_lib
from prm_jax.records import jsonl
from prm_jax.rl import credit
from prm_jax.rl import policy_losses
from prm_jax.rl import rewards
from prm_jax.rl import rl_config
from prm_jax.rl import rl_run_config
from prm_jax.rl import rollout
from prm_jax.rl import tasks
from prm_jax.runtime import checked_lines
from prm_jax.scoring import saved
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.testbed import arithmetic
from prm_jax.text import template
from prm_jax.training import batches
from prm_jax.training import loop
from prm_jax.training import optimizer

OUTPUT = "docs/results/labelling_cpmi.json"
SOLUTIONS, PRM_SOLUTIONS = 1_000, 4_000
COMPLETIONS = (1, 2, 4, 8)
FORMS = ("alone", "increment", "cumulative")
# Times the testbed's updates of a PRM.
TIMES = 2
RL_UPDATES, SMALL_RL_UPDATES = 80, 2
# Of shorter RL runs, whose policies are worse.
FEWER_UPDATES = (5, 20)
# Solutions that are labelled once before the time is taken.
WARM = 64
PRMS = ("prm_cpmi", "prm_monte_carlo", "prm_advantage")
NAMES = ("labels", "controls", "cost", *PRMS)

Values = list[list[float | None]]


@dataclasses.dataclass(frozen=True)
class Labelled:
  """Solutions with labels of one kind, and what they cost."""

  solutions: Sequence[schema.Solution]
  tokens: int
  seconds: float
  cpu_seconds: float

  @property
  def values(self) -> Values:
    return [list(s.labels or ()) for s in self.solutions]


def points_of_seed(
  bed: testbed.Testbed, todo: Sequence[str]
) -> Iterator[dict[str, Any]]:
  """Yields a seed's labels, and the PRMs of three kinds of them."""
  trained = rl_policy(bed, RL_UPDATES)
  if "labels" in todo:
    yield labels(bed, trained)
  if "controls" in todo:
    yield controls(bed)
  if "cost" in todo:
    yield cost(bed, trained)
  for name in todo:
    if name not in PRMS:
      continue
    labelled = _for_prm(bed, trained, name)
    start = time.perf_counter()
    scorer = testbed.train(
      bed, f"cpmi_{name}", labelled.solutions, soft=True, times=TIMES
    )
    point = dict(
      name=name,
      solutions=len(labelled.solutions),
      tokens=labelled.tokens,
      label_s=round(labelled.seconds, 1),
      train_s=round(time.perf_counter() - start, 1),
      **testbed.measure(bed, scorer),
    )
    print(f"{bed.seed} {name}: AUROC {point['step_auroc']:.4f}", flush=True)
    yield point


def labels(bed: testbed.Testbed, trained: pathlib.Path) -> dict[str, Any]:
  """Returns the quality and the cost of each kind of labels."""
  exact = bed.pool[:SOLUTIONS]
  kinds: dict[str, dict[str, Any]] = {}

  def add(name: str, values: Values, tokens: int, seconds: float) -> None:
    kinds[name] = compare(exact, values) | dict(
      tokens=tokens, seconds=round(seconds, 2)
    )
    print(f"{bed.seed} {name}: {kinds[name]}", flush=True)

  add("position", processbench_metrics.step_index(exact), 0, 0)
  for form in FORMS:
    made = cpmi_labels(bed, exact, form)
    add(f"cpmi_{form}", made.values, made.tokens, made.seconds)
    # The same pass read without wrong answers.
    right = [
      [_share(x) for x in s.extra[cpmi.FIELD]["right"]] for s in made.solutions
    ]
    add(f"cpmi_{form}_right_only", right, made.tokens, made.seconds)
  for how in ("increment", "mean", "cumulative"):
    made = advantage_labels(bed, trained, exact, how)
    add(f"advantage_{how}", made.values, made.tokens, made.seconds)
  add("advantage_min", advantage_min(bed, trained, exact), made.tokens, 0)
  for k in COMPLETIONS:
    made = monte_carlo_labels(bed, exact, k)
    add(f"monte_carlo_{k}", made.values, made.tokens, made.seconds)
  return dict(
    name="labels", solutions=len(exact), kinds=kinds, rl=rl_cost(trained)
  )


def controls(bed: testbed.Testbed) -> dict[str, Any]:
  """Returns what else the policies say, by the updates of the RL run."""
  exact = bed.pool[:SOLUTIONS]
  by_updates = {}
  for updates in (*FEWER_UPDATES, RL_UPDATES):
    trained = rl_policy(bed, updates)
    ratio = advantage_labels(bed, trained, exact, "increment")
    own, other = (
      [[_share(float(x.mean())) for x in row] for row in rows]
      for rows in step_log_probs(bed, trained, exact)
    )
    by_updates[str(updates)] = dict(
      rl=rl_cost(trained),
      advantage_increment=compare(exact, ratio.values),
      trained_alone=compare(exact, own),
      reference_alone=compare(exact, other),
    )
    print(f"{bed.seed} {updates}: {by_updates[str(updates)]}", flush=True)
  return dict(name="controls", by_updates=by_updates)


def cost(bed: testbed.Testbed, trained: pathlib.Path) -> dict[str, Any]:
  """Returns the CPU seconds of some kinds of labels, after a first call."""
  exact = bed.pool[:SOLUTIONS]
  made = dict(
    cpmi_alone=cpmi_labels(bed, exact, "alone"),
    cpmi_cumulative=cpmi_labels(bed, exact, "cumulative"),
    advantage_increment=advantage_labels(bed, trained, exact, "increment"),
    monte_carlo_1=monte_carlo_labels(bed, exact, 1),
    monte_carlo_8=monte_carlo_labels(bed, exact, COMPLETIONS[-1]),
  )
  return dict(
    name="cost", cpu_s={k: round(x.cpu_seconds, 1) for k, x in made.items()}
  )


def compare(exact: Sequence[schema.Solution], values: Values) -> dict[str, Any]:
  """Returns the AUROC of steps' values, and how many first errors they name.

  The solutions of one half of the problems choose the threshold; those of the
  other half are named.
  """
  steps = step_metrics.evaluate(
    [row[:-1] for row in values],
    [list(s.labels or ())[:-1] for s in exact],
    problems=[s.problem for s in exact],
    num_resamples=200,
  )
  ids = {p: i for i, p in enumerate(dict.fromkeys(s.problem for s in exact))}
  halves = [
    [
      (row, schema.first_error(s.labels or ()))
      for row, s in zip(values, exact, strict=True)
      if ids[s.problem] % 2 == half and None not in row
    ]
    for half in (0, 1)
  ]
  (tuning, tuning_truth), (rows, truth) = (
    zip(*half, strict=True) for half in halves
  )
  threshold = processbench_metrics.tune_threshold(tuning, tuning_truth)
  named = processbench_metrics.evaluate(
    rows, truth, threshold=threshold, num_resamples=2
  )
  hits = sum(named[f"acc_{x}"] * named[f"num_{x}"] for x in ("err", "cor"))
  return dict(
    auroc=steps["auroc"],
    auroc_interval=steps["auroc_interval"],
    first_error=hits / len(truth),
    threshold=threshold,
    solutions=sum(None not in row for row in values),
  )


# --- Labels -----------------------------------------------------------------


def cpmi_labels(
  bed: testbed.Testbed, solutions: Sequence[schema.Solution], form: cpmi.Form
) -> Labelled:
  options = cpmi.Options(form=form, force="answer")
  references = {s.problem: arithmetic.answer(s.problem) for s in solutions}
  policy = policies.Policy(str(bed.workdir / "policy"))
  counts: Counter[str] = Counter()
  nothing = sampling_lib.Sampling(max_tokens=1, temperature=1.0)
  with opened_policies.opened(policy, nothing, 0, None, counts) as writer:
    assert writer.weigher is not None  # a folder tells

    def label() -> list[schema.Solution]:
      counts.clear()
      found, _ = cpmi.label(solutions, writer.weigher, references, options)
      return cpmi.with_labels(found, options)

    label()
    made, *seconds = _timed(label)
  return Labelled(made, counts["forward_tokens"], *seconds)


def advantage_labels(
  bed: testbed.Testbed,
  trained: pathlib.Path,
  solutions: Sequence[schema.Solution],
  how: str,
) -> Labelled:
  """Returns labels by the log-ratio, as `score --reference` gives them."""
  scorer = _pair(bed, trained, how)
  scorer.score(solutions)
  scores, *seconds = _timed(lambda: scorer.score(solutions))
  made = [
    dataclasses.replace(s, labels=x.scores)
    for s, x in zip(solutions, scores, strict=True)
  ]
  tokens = 2 * sum(len(scorer.encode(s).tokens) for s in solutions)
  return Labelled(made, tokens, *seconds)


def advantage_min(
  bed: testbed.Testbed,
  trained: pathlib.Path,
  solutions: Sequence[schema.Solution],
) -> Values:
  """Returns the difference of the least log-probabilities in each step.

  The default of the paper's code where it looks for the step of a failure.
  """
  own, other = step_log_probs(bed, trained, solutions)
  return [
    [_share(a.min() - b.min()) for a, b in zip(*rows, strict=True)]
    for rows in zip(own, other, strict=True)
  ]


def step_log_probs(
  bed: testbed.Testbed,
  trained: pathlib.Path,
  solutions: Sequence[schema.Solution],
) -> list[list[list[np.ndarray]]]:
  """Returns the log-probabilities of each step's tokens, of both policies."""
  scorer = _pair(bed, trained, "increment")
  encoded = [scorer.encode(s) for s in solutions]
  reference = scorer.params["reference"]
  own = {k: v for k, v in scorer.params.items() if k != "reference"}
  return [
    [
      np.split(row[x.prompt_tokens : x.step_end[-1] + 1], _cuts(x))
      for row, x in zip(
        log_likelihood.of_ids(
          scorer.config, params, [x.tokens for x in encoded]
        ),
        encoded,
        strict=True,
      )
    ]
    for params in (own, reference)
  ]


def _cuts(encoded: template.EncodedSolution) -> np.ndarray:
  """Returns where steps after the first begin, counted from the first."""
  return encoded.step_end[:-1] + 1 - encoded.prompt_tokens


def monte_carlo_labels(
  bed: testbed.Testbed, solutions: Sequence[schema.Solution], completions: int
) -> Labelled:
  def label(some: Sequence[schema.Solution]) -> tuple[Any, Any]:
    engine = rollout_engine.of(bed.policy)
    sampling = bed.config.sampling(bed.config.temperature)
    generate = testbed.Completer(engine, sampling, bed.key(2))
    found, _ = monte_carlo.label(
      some,
      generate,
      arithmetic.verify,
      monte_carlo.Options(completions),
      find_answer=arithmetic.final_answer,
    )
    return found, generate.work

  label(solutions[:WARM])
  (made, work), *seconds = _timed(lambda: label(solutions))
  return Labelled(made, work.prefilled + work.decoded, *seconds)


def _for_prm(
  bed: testbed.Testbed, trained: pathlib.Path, name: str
) -> Labelled:
  """Returns a PRM's labels; Monte-Carlo's cost what CPMI's do."""
  pool = bed.pool[:PRM_SOLUTIONS]
  if name == "prm_advantage":
    made = advantage_labels(bed, trained, pool, "increment")
    # By the z-score, as CPMI's.
    log_odds = [
      [float(np.log(x) - np.log1p(-x)) for x in np.clip(row, 1e-6, 1 - 1e-6)]
      for row in made.values
    ]
    given = [
      dataclasses.replace(s, extra={cpmi.FIELD: dict(reward=row)})
      for s, row in zip(made.solutions, log_odds, strict=True)
    ]
    labelled = cpmi.with_labels(given, cpmi.Options())
    return dataclasses.replace(made, solutions=labelled)
  made = cpmi_labels(bed, pool, "alone")
  if name == "prm_cpmi":
    return made
  most = COMPLETIONS[-1]
  some = monte_carlo_labels(bed, pool[: SOLUTIONS // 4], most)
  count = int(made.tokens * len(some.solutions) / some.tokens)
  return monte_carlo_labels(bed, pool[: max(count, 1)], most)


def _share(x: float) -> float:
  """Returns the sigmoid: measures take numbers in [0, 1]."""
  return float(1 / (1 + np.exp(-x)))


def _timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
  """Returns a result, its seconds by the clock, and its CPU seconds."""
  start, cpu = time.perf_counter(), time.process_time()
  result = work()
  return result, time.perf_counter() - start, time.process_time() - cpu


# --- The trained policy -----------------------------------------------------


def rl_policy(bed: testbed.Testbed, updates: int) -> pathlib.Path:
  """Returns the folder of the policy after RL by right answers.

  On problems that aren't the pool's, with a KL to the policy before.
  """
  is_whole = updates == RL_UPDATES
  folder = bed.workdir / ("cpmi_rl" if is_whole else f"cpmi_rl_{updates}")
  if bed.c.pool_problems < 100:
    updates = SMALL_RL_UPDATES
  for name, problems in (
    ("rl_train", bed.inputs.train[bed.c.pool_problems :]),
    ("rl_test", bed.inputs.test),
  ):
    path = bed.workdir / f"{name}.jsonl"
    if not path.exists():
      jsonl.write_problems(path, problems)
  policy = optimizer.OptimizerConfig(
    peak_lr=3e-4, warmup_steps=10, final_fraction=0.1, weight_decay=0.0
  )
  config = rl_config.RLConfig(
    seed=bed.seed,
    init_from=str(bed.workdir / "policy"),
    rollout=rollout.RolloutConfig(
      problems=16, samples=8, max_tokens=52, slots=64
    ),
    rewards=rewards.RewardConfig(verifier=1.0, format=0.2),
    credit=credit.CreditConfig(baseline="leave_one_out"),
    loss=policy_losses.LossConfig(kl_placement="reward", kl=0.02),
    packing=batches.PackingConfig(8, 256, share_prefixes=True),
    optimizer=policy,
    critic_optimizer=policy,
    implicit_optimizer=policy,
    fit=loop.FitConfig(
      steps=updates,
      log_every=1,
      eval_every=updates,
      checkpoint_every=updates,
      tensorboard=False,
    ),
  )
  problems = tasks.ProblemsConfig(
    f"problems:{bed.workdir / 'rl_train.jsonl'}",
    f"problems:{bed.workdir / 'rl_test.jsonl'}",
    100,
    tasks.ARITHMETIC,
  )
  if not (folder / "seconds.json").exists():
    _, seconds, _ = _timed(
      lambda: rl_run_config.Run(config, problems).train(folder)
    )
    (folder / "seconds.json").write_text(f"{seconds:.1f}\n")
  return folder


def rl_cost(folder: pathlib.Path) -> dict[str, Any]:
  """Returns what the RL run sampled, its seconds, and what it reached."""
  records = [x for _, x in checked_lines.read_metrics(folder / "metrics.jsonl")]
  evals = [x for x in records if x["kind"] == "eval"]
  return dict(
    sampled_tokens=sum(
      x.get("sampled_tokens", 0) for x in records if x["kind"] == "train"
    ),
    seconds=float((folder / "seconds.json").read_text()),
    accuracy=[x.get("accuracy") for x in evals],
  )


def _pair(
  bed: testbed.Testbed, trained: pathlib.Path, how: str
) -> scorer_lib.Scorer:
  return saved.load_pair(trained, bed.workdir / "policy", step_score=how)


# --- Table ------------------------------------------------------------------


def table(points: Sequence[testbed.Point]) -> str:
  """Returns Markdown: the labels, the verdicts by the rules, the PRMs."""
  labelled = [p for p in points if p["name"] == "labels"]
  if not labelled:
    return "no points yet"
  rows = [("labels", "tokens a solution", "seconds", "AUROC", "first error, %")]
  for name in labelled[0]["kinds"]:
    own = [p["kinds"][name] for p in labelled]
    rows.append(
      (
        name,
        testbed.mean(
          [x["tokens"] / p["solutions"] for x, p in zip(own, labelled)],
          digits=0,
        ),
        testbed.mean([x["seconds"] for x in own]),
        testbed.mean([x["auroc"] for x in own], digits=3),
        testbed.mean([x["first_error"] for x in own], 100),
      )
    )
  parts = [testbed.markdown(rows), *verdicts(labelled)]
  if seen := [p["by_updates"] for p in points if p["name"] == "controls"]:
    parts.append(testbed.markdown(_controls_table(seen)))
  prms = [("PRM", "solutions", "step AUROC", "first error, %", "best of 64, %")]
  for name in PRMS:
    own = [p for p in points if p["name"] == name]
    if own:
      prms.append(
        (
          name,
          testbed.mean([p["solutions"] for p in own], digits=0),
          testbed.mean([p["step_auroc"] for p in own], digits=3),
          testbed.mean([p["first_error_accuracy"] for p in own], 100),
          testbed.mean([p["best_of_n"]["min"][-1] for p in own], 100),
        )
      )
  return "\n\n".join([*parts, testbed.markdown(prms), prm_verdict(points)])


def _controls_table(seen: Sequence[Mapping[str, Any]]) -> list[Any]:
  rows: list[Any] = [
    ("RL updates", "right", "log-ratio", "trained alone", "reference alone")
  ]
  for updates in seen[0]:
    own = [x[updates] for x in seen]
    rows.append(
      (
        updates,
        testbed.mean([x["rl"]["accuracy"][-1] for x in own], digits=2),
        *(
          testbed.mean([x[name]["auroc"] for x in own], digits=3)
          for name in (
            *("advantage_increment", "trained_alone", "reference_alone"),
          )
        ),
      )
    )
  return rows


def verdicts(labelled: Sequence[testbed.Point]) -> list[str]:
  """Returns what rules 1 and 2 say of each kind without rollouts."""
  out = []
  for name in labelled[0]["kinds"]:
    if name.startswith(("monte_carlo", "position")):
      continue
    says, pairs = [], []
    for p in labelled:
      own = p["kinds"][name]
      says.append(own["auroc"] > p["kinds"]["position"]["auroc"])
      k = equal_cost(p["kinds"], own["tokens"])
      pairs.append((own["auroc"], p["kinds"][f"monte_carlo_{k}"]["auroc"], k))
    as_good = [a >= b for a, b, _ in pairs]
    word = (
      "as good" if all(as_good) else "worse" if not any(as_good) else "open"
    )
    ks = ", ".join(str(k) for _, _, k in pairs)
    out.append(
      f"{name}: says something: {'yes' if all(says) else 'no'};"
      f" against K = {ks}: {word}"
    )
  return ["\n".join(out)]


def equal_cost(kinds: Mapping[str, Mapping[str, Any]], tokens: int) -> int:
  """Returns the largest K whose labels don't cost more tokens, or 1."""
  fits = [
    k for k in COMPLETIONS if kinds[f"monte_carlo_{k}"]["tokens"] <= tokens
  ]
  return max(fits, default=COMPLETIONS[0])


def prm_verdict(points: Sequence[testbed.Point]) -> str:
  """Returns what rule 3 says."""
  by = {(p["name"], p["seed"]): p for p in points}
  seeds = [s for n, s in by if n == "prm_cpmi" and ("prm_monte_carlo", s) in by]
  higher = [
    a > b
    for s in seeds
    for a, b in zip(
      *(
        (by[n, s]["step_auroc"], by[n, s]["best_of_n"]["min"][-1])
        for n in ("prm_cpmi", "prm_monte_carlo")
      ),
      strict=True,
    )
  ]
  lower = [not x for x in higher]
  if not seeds:
    return "PRM of CPMI's labels: not run"
  word = "better" if all(higher) else "worse" if all(lower) else "open"
  return f"PRM of CPMI's labels: {word} ({len(seeds)} seeds)"


if __name__ == "__main__":
  testbed.run(__doc__.splitlines()[0], OUTPUT, NAMES, points_of_seed, table)
