"""Does a PRM of Monte-Carlo labels choose better among a real policy's programs?

Command:  prm-jax import --role=policy --policy_template=plain --segmenter=line
          --from=Qwen/Qwen2.5-Coder-0.5B-Instruct --to=runs/bases/qwen_code
          PRM_JAX_DATA=... python experiments/code_prm.py sample
          PRM_JAX_DATA=... python experiments/code_prm.py label
          PRM_JAX_DATA=... python experiments/code_prm.py judge [--seeds=0,1,2]
          [--policy=runs/bases/qwen_code] [--workdir=runs/code_prm]
          [--results=docs/results/code_prm]
          python experiments/code_prm.py --table
Rules, hardware, time and result: see experiments/README.md.

The policy completes HumanEval's prompts. A step is a line. Half of the problems,
chosen by a hash, have Monte-Carlo labels by their unit tests, from prefixes at
line ends, and train a PRM (adapters and a head on the policy's own weights). On
the others the PRM chooses one of 8 programs. What is written by one command is
read by the next, and what is there is not made again.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import copy
import dataclasses
import gzip
import json
import logging
import pathlib
import random
import shutil
import time
from typing import Any

import jax
import numpy as np
import real_best_of_n
import real_prm
import real_prm_gsm8k

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.evaluation import best_of_n
from prm_jax.evaluation import step_metrics
from prm_jax.labelling import monte_carlo
from prm_jax.policy import drawing
from prm_jax.policy import rollout_engine
from prm_jax.policy import sampler as sampler_lib
from prm_jax.records import jsonl
from prm_jax.records import sources as sources_lib
from prm_jax.runtime import files
from prm_jax.text import template as template_lib
from prm_jax.training import batches
from prm_jax.training import train_config as train_config_lib
from prm_jax.verifiers import solution_code

DATA = "humaneval/HumanEval.jsonl.gz"
SAMPLES, TOKENS, TEMPERATURE, TOP_P = 8, 256, 0.8, 0.95
# What begins after a function: HumanEval's own stops, and a code fence.
STOP = tuple(
  "\n" + x
  for x in ("class ", "def ", "#", "@", "if ", "print", "assert", "```")
)
ENDS = ("<|im_end|>", "<|endoftext|>")
# Of each problem so many different programs are labelled, by so many rollouts.
LABELLED, ROLLOUTS = 6, 4
# So many problems' programs are labelled at a time.
AT_ONCE = 8
RATE, EPOCHS, ROW_TOKENS = 3e-4, 2, 1024
TIME_S = 3.0
TRAIN, TEST = "train", "test"
# Of the test problems' programs that pass, so many are read.
READ = 30


def tasks() -> list[dict[str, Any]]:
  """Returns HumanEval's rows, in the order of a hash; the first half trains."""
  with gzip.open(sources_lib.find(DATA), "rt", encoding="utf-8") as f:
    rows = [json.loads(line) for line in f]
  rows.sort(key=lambda x: real_prm_gsm8k.hashed("code_prm", x["task_id"]))
  for i, row in enumerate(rows):
    row["part"] = TRAIN if 2 * i < len(rows) else TEST
  return rows


def policy_of(folder: pathlib.Path) -> sampler_lib.Sampler:
  """Returns the policy, which continues a prompt until its function ends."""
  policy = sampler_lib.load(folder)
  template = dataclasses.replace(
    policy.template, opening=(("problem", ""),), ends=ENDS, stop=STOP
  )
  return dataclasses.replace(policy, template=template)


def sampling() -> drawing.Sampling:
  return drawing.Sampling(
    temperature=TEMPERATURE, top_p=TOP_P, max_tokens=TOKENS
  )


def in_lines(solution: schema.Solution) -> schema.Solution:
  """Returns a program whose steps are its lines, with their line breaks.

  So a prefix ends where a line does, and doesn't say how the next is indented.
  Blank lines belong to the line before them.
  """
  text = solution.raw_text or ""
  spans: list[schema.Span] = []
  end = 0
  for line in text.splitlines(keepends=True):
    start, end = end, end + len(line)
    if line.strip():
      spans.append((start, end))
    elif spans:
      spans[-1] = (spans[-1][0], end)
  return dataclasses.replace(
    solution, spans=tuple(spans), steps=tuple(text[a:b] for a, b in spans)
  )


# --- Tests and outputs --------------------------------------------------------


class Tests:
  """HumanEval's unit tests, and what programs return on their inputs."""

  def __init__(self, rows: Sequence[dict[str, Any]], checker):
    self._rows = {row["prompt"]: row for row in rows}
    self._calls: dict[str, str] = {}
    self._checker = checker

  def passes(self, solutions: Sequence[schema.Solution]) -> list[bool | None]:
    """Returns whether each passes its problem's tests: a schema.Verify."""
    return [self._passes(s) for s in solutions]

  def outputs(self, solution: schema.Solution) -> str | None:
    """Returns a digest of what a program returns on the tests' inputs.

    The tests' expectations aren't asked. None if it doesn't run.
    """
    row = self._rows[solution.problem]
    name = row["entry_point"]
    if name not in self._calls:
      self._calls[name] = repr(inputs_of(row))
    tests = _OUTPUTS.format(calls=self._calls[name], name=name)
    reason = self._asked(solution, dict(tests=tests)).reason
    _, mark, digest = reason.rpartition("raises Outputs")
    return digest if mark else None

  def _passes(self, solution: schema.Solution) -> bool | None:
    row = self._rows[solution.problem]
    extra = dict(test=row["test"], entry_point=row["entry_point"])
    label = self._asked(solution, extra).label
    return None if label is None else label == 1

  def _asked(self, solution: schema.Solution, extra: dict[str, Any]):
    code = solution.problem + (solution.raw_text or "")
    whole = schema.Solution(solution.id, "", (code,), extra=extra)
    return self._checker.verify(whole)[-1]


# An exception's name is all that the tests' process tells of it.
_OUTPUTS = """
from hashlib import sha256
found = []
for args in {calls}:
  try:
    found.append(repr({name}(*args)))
  except Exception as e:
    found.append(type(e).__name__)
digest = sha256(repr(found).encode()).hexdigest()[:16]
raise type("Outputs" + digest, (Exception,), {{}})
"""


def inputs_of(row: dict[str, Any]) -> list[tuple[Any, ...]]:
  """Returns the inputs that a problem's tests give its own solution."""
  calls: list[tuple[Any, ...]] = []
  world: dict[str, Any] = {}
  exec(row["prompt"] + row["canonical_solution"] + row["test"], world)

  def recorded(*args):
    calls.append(copy.deepcopy(args))
    return world[row["entry_point"]](*args)

  # Some tests draw their inputs.
  random.seed(0)
  world["check"](recorded)
  return calls


@contextlib.contextmanager
def tests_of(rows: Sequence[dict[str, Any]]) -> Iterator[Tests]:
  with solution_code.Checker(time_s=TIME_S) as checker:
    yield Tests(rows, checker)


# --- Commands -----------------------------------------------------------------


def sample(policy: sampler_lib.Sampler, output: pathlib.Path) -> None:
  """Writes the programs of each problem: outcome, and outputs as the answer."""
  rows = tasks()
  starts = [
    schema.Solution(x["task_id"], x["prompt"], (), extra=dict(part=x["part"]))
    for x in rows
  ]
  engine = rollout_engine.of(policy)
  begun = time.process_time()
  drawn, _ = engine.generate(starts, SAMPLES, sampling(), jax.random.key(0))
  took = time.process_time() - begun
  programs = [in_lines(s) for row in drawn for s in row]
  with tests_of(rows) as tests:
    outcomes = tests.passes(programs)
    outputs = [tests.outputs(s) for s in programs]
  kept = [
    dataclasses.replace(s, outcome=outcome, answer=answer, extra=_short(s))
    for s, outcome, answer in zip(programs, outcomes, outputs, strict=True)
  ]
  output.parent.mkdir(parents=True, exist_ok=True)
  jsonl.write_solutions(output, kept)
  print(f"{len(kept)} programs, {took:.0f} CPU s")


def _short(solution: schema.Solution) -> dict[str, Any]:
  names = ("part", *schema.STATISTICS, schema.SAMPLED)
  return {k: v for k, v in solution.extra.items() if k in names}


def label(
  policy: sampler_lib.Sampler,
  samples: Sequence[schema.Solution],
  workdir: pathlib.Path,
  output: pathlib.Path,
) -> None:
  """Writes the training problems' programs with labels, and what they took."""
  engine = rollout_engine.of(policy)
  chosen = list(to_label(samples).values())
  options = monte_carlo.Options(completions=ROLLOUTS)
  work: Counter[str] = Counter()
  labelled: list[schema.Solution] = []
  workdir.mkdir(parents=True, exist_ok=True)

  def generate(prefixes, n):
    return engine.generate(prefixes, n, sampling(), jax.random.key(1))[0]

  with tests_of(tasks()) as tests:
    for i in range(0, len(chosen), AT_ONCE):
      path = workdir / f"{i}.jsonl"
      if not path.exists():
        begun = time.process_time()
        programs = [
          s for of_problem in chosen[i : i + AT_ONCE] for s in of_problem
        ]
        found, done = monte_carlo.label(
          programs, generate, tests.passes, options
        )
        if done["unverifiable"] == done["rollouts"]:
          raise errors.InputError(
            "no program could be tested: see `prm-jax label verify"
            " --verifier=code`, which says why"
          )
        done["cpu_s"] = round(time.process_time() - begun)
        files.write_json(path.with_suffix(".json"), done)
        jsonl.write_solutions(path, found)
      labelled += jsonl.read_solutions(path)
      work.update(files.read_json(path.with_suffix(".json")))
      print(f"{len(labelled)} programs, {dict(work)}", flush=True)
  files.write_json(output.with_suffix("").with_suffix(".json"), dict(work))
  jsonl.write_solutions(output, labelled)


def to_label(
  samples: Sequence[schema.Solution],
) -> dict[str, list[schema.Solution]]:
  """Returns the programs to label of each training problem, each text once."""
  of_problem: dict[str, dict[str, schema.Solution]] = {}
  for s in samples:
    if s.extra["part"] == TRAIN and s.steps:
      of_problem.setdefault(s.problem, {}).setdefault(s.raw_text or "", s)
  return {
    problem: list(distinct.values())[:LABELLED]
    for problem, distinct in of_problem.items()
  }


def config_of(
  base: pathlib.Path,
  template: template_lib.Template,
  seed: int,
  solutions: Sequence[schema.Solution],
) -> train_config_lib.TrainConfig:
  """Returns the config of a seed's PRM, which reads what the policy wrote."""
  c = real_prm.get_config()
  c.packing.update(batch_size=1, sequence_length=ROW_TOKENS)
  c.encoding.update(max_tokens=ROW_TOKENS, truncation="drop")
  c.objective.labels.after_first_error = "keep"
  arm = real_prm.Arm(base.name, "lora", (RATE,), remat="full")
  config = real_prm.train_config(c, arm, RATE, seed, base)
  encoding = dataclasses.replace(config.encoding, template=template)
  tokenizer = model_json.read_tokenizer(base, model_json.read_description(base))
  rows, _ = batches.encode_rows(
    config.objective, config.packing, encoding, solutions, tokenizer, seed
  )
  updates = EPOCHS * rows.rows_per_epoch
  return dataclasses.replace(
    config,
    encoding=encoding,
    fit=dataclasses.replace(config.fit, steps=updates, log_every=10),
    optimizer=dataclasses.replace(
      config.optimizer, warmup_steps=max(1, updates // 10)
    ),
  )


def trained(
  policy: pathlib.Path,
  labelled: Sequence[schema.Solution],
  tests: list[schema.Solution],
  seed: int,
  workdir: pathlib.Path,
) -> dict[str, Any]:
  """Returns the log-odds of the test programs' lines by a seed's PRM."""
  template = policy_of(policy).template
  config = config_of(policy, template, seed, labelled)
  shutil.rmtree(workdir, ignore_errors=True)
  done = real_prm.train_and_score(
    *(config, labelled, dict(tests=tests), policy, workdir),
    scored_length=ROW_TOKENS,
  )
  logits = [np.round(x.astype(float), 5).tolist() for x in done.logits["tests"]]
  log = [{k: x.get(k) for k in ("step", "loss_nats")} for x in done.log]
  return dict(logits=logits, training=log, seconds=done.seconds)


def judged(
  tests: list[schema.Solution], logits: Sequence[Sequence[float]]
) -> dict[str, Any]:
  """Returns how often each way to choose among N programs is right.

  Args:
    tests: The test problems' programs, with outcomes, outputs as answers.
    logits: The log-odds of their lines.
  """
  rows = [
    schema.StepScores(
      tuple((1 / (1 + np.exp(-np.array(x)))).tolist()), tuple(x)
    )
    for x in logits
  ]
  found = real_best_of_n.judged(tests, rows)
  passes = np.array([bool(s.outcome) for s in tests])
  problems = [s.problem for s in tests]
  by = dict(
    prm_min=[min(x) for x in logits],
    likelihood=[s.extra["log_prob_mean"] for s in tests],
    shortest_text=[-len(s.raw_text or "") for s in tests],
  )
  found["within_problems"] = within(by, passes, problems)
  return found


def within(
  scores: Mapping[str, Sequence[float]],
  passes: np.ndarray,
  problems: Sequence[str],
) -> dict[str, Any]:
  """Returns each score's AUROC of passing within problems, and the PRM's lead.

  It is the mean over the problems that have both, with intervals over them.
  """
  groups: dict[str, list[int]] = {}
  for i, problem in enumerate(problems):
    groups.setdefault(problem, []).append(i)
  of_problem: dict[str, list[float]] = {name: [] for name in scores}
  for group in groups.values():
    right = passes[group]
    if right.all() or not right.any():
      continue
    for name, values in scores.items():
      x = np.asarray(values, float)[group]
      of_problem[name].append(step_metrics.auroc(x, right))
  curves = {name: np.array(x)[:, None] for name, x in of_problem.items()}
  curves["prm_min_minus_shortest_text"] = (
    curves["prm_min"] - curves["shortest_text"]
  )
  bounds = best_of_n.intervals(curves)
  return {
    name: dict(mean=float(x.mean()), interval=bounds[name][0], problems=len(x))
    for name, x in curves.items()
  }


def to_read(tests: Sequence[schema.Solution]) -> list[schema.Solution]:
  """Returns the programs to read: of each problem the first that passes."""
  first: dict[str, schema.Solution] = {}
  for s in tests:
    if s.outcome:
      first.setdefault(s.problem, s)
  chosen = sorted(
    first.values(), key=lambda s: real_prm_gsm8k.hashed("read", s.id)
  )
  return chosen[:READ]


def table(result: dict[str, Any]) -> str:
  """Returns the accuracies of all seeds as a Markdown table."""
  parts = []
  for seed, found in result["seeds"].items():
    lines = real_best_of_n.table(found)
    told = "; ".join(
      f"{name.replace('_', ' ')} {x['mean']:.3f}"
      f" [{x['interval'][0]:.3f}, {x['interval'][1]:.3f}]"
      for name, x in found["within_problems"].items()
    )
    parts.append(f"Seed {seed}\n\n{lines}\n\nAUROC within problems: {told}")
  return "\n\n".join(parts)


def main() -> None:
  parser = argparse.ArgumentParser()
  commands = ("sample", "label", "judge", "read")
  parser.add_argument("what", choices=commands, nargs="?")
  parser.add_argument(
    "--policy", type=pathlib.Path, default="runs/bases/qwen_code"
  )
  parser.add_argument("--workdir", type=pathlib.Path, default="runs/code_prm")
  parser.add_argument("--results", default="docs/results/code_prm")
  parser.add_argument("--seeds", default="0,1,2")
  parser.add_argument("--table", action="store_true")
  args = parser.parse_args()
  logging.basicConfig(level=logging.INFO, format="%(message)s")
  samples = pathlib.Path(f"{args.results}_samples.jsonl.gz")
  labels = pathlib.Path(f"{args.results}_labels.jsonl.gz")
  result = pathlib.Path(f"{args.results}.json")
  if args.table:
    print(table(files.read_json(result)))
    return
  if args.what == "sample":
    sample(policy_of(args.policy), samples)
    return
  if args.what is None:
    parser.error(f"give one of {', '.join(commands)}, or --table")
  drawn = jsonl.read_solutions(samples)
  if args.what == "label":
    policy = policy_of(args.policy)
    label(policy, drawn, args.workdir / "labels", labels)
    return
  tests = [s for s in drawn if s.extra["part"] == TEST and s.steps]
  if args.what == "read":
    for s in to_read(tests):
      print(f"=== {s.id}\n{s.problem}{s.raw_text}")
    return
  labelled = jsonl.read_solutions(labels)
  found: dict[str, Any] = files.read_json(result) if result.exists() else {}
  found.setdefault("seeds", {})
  for seed in args.seeds.split(","):
    if seed in found["seeds"]:
      continue
    folder = args.workdir / f"seed-{seed}"
    of_seed = trained(args.policy, labelled, tests, int(seed), folder)
    logits = of_seed.pop("logits")
    found["seeds"][seed] = of_seed | judged(tests, logits) | dict(logits=logits)
    found["command"] = "python experiments/code_prm.py judge"
    files.write_json(result, found)
  print(table(found))


if __name__ == "__main__":
  main()
