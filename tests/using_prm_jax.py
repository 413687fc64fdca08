"""A user's program that calls every public name; `make lint` checks its types.

tests/test_public_api.py runs it.
"""

from collections.abc import Sequence
import pathlib
from typing import Any

import prm_jax
from prm_jax import schema

# A PRM of a few thousand parameters, and a policy of the same size.
MODEL: dict[str, Any] = dict(
  d_model=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, d_ff=24
)
PRM: dict[str, Any] = dict(
  program="prm",
  seed=0,
  model=MODEL,
  tokenizer=dict(kind="bytes"),
  encoding=dict(max_tokens=128),
  packing=dict(batch_size=8, sequence_length=128),
  optimizer=dict(peak_lr=1e-3),
  fit=dict(steps=2, tensorboard=False),
)


def solutions() -> list[prm_jax.Solution]:
  problem = "2 + 3 * 4"
  return [
    prm_jax.Solution(
      f"right{i}",
      problem,
      ("3 * 4 = 12", "2 + 12 = 14"),
      labels=(1.0, 1.0),
      extra=dict(reference_answer="14"),
    )
    for i in range(2)
  ] + [
    prm_jax.Solution(
      f"wrong{i}",
      problem,
      ("2 + 3 = 5", "5 * 4 = 20"),
      labels=(0.0, 0.0),
      extra=dict(reference_answer="14"),
    )
    for i in range(2)
  ]


def train(workdir: pathlib.Path) -> prm_jax.Scorer:
  model = prm_jax.train(PRM, solutions(), workdir)
  assert isinstance(model, prm_jax.Scorer)
  return model


def train_policy(workdir: pathlib.Path) -> prm_jax.Sampler:
  """Trains a policy that ends its texts soon, as it learns fast."""
  config = PRM | dict(program="sft", optimizer=dict(peak_lr=0.1))
  verb = prm_jax.Train(config, workdir, resume=False)
  model = verb(solutions())
  assert isinstance(model, prm_jax.Sampler)
  return model


def score(folder: str) -> prm_jax.StepScores:
  prm = prm_jax.load(folder)
  assert isinstance(prm, prm_jax.Scorer)
  of_all: list[prm_jax.StepScores] = prm.score(iter(solutions()))
  of_one: prm_jax.StepScores = prm.score("2 + 3", ["2 + 3 = 5"])
  as_function: schema.Score = prm.score
  best: prm_jax.Solution = prm_jax.best_of_n(solutions(), as_function)
  assert best == prm_jax.best_of_n(solutions(), prm, aggregate="min")
  by_name: schema.Score = prm_jax.load_score(folder)
  assert by_name(solutions()) == of_all
  cached: schema.Score = prm_jax.CachedScorer(prm, cache_tokens=64).score
  assert len(cached(solutions())) == 4
  verb: schema.Score = prm_jax.Score(folder, layout="packed")
  assert len(verb(solutions())) == 4
  assert len(of_all) == 4 and len(of_one) == 1
  assert of_one.logits is not None and of_one.spans is None
  return of_one


def sample(folder: str, file: str) -> list[prm_jax.Solution]:
  policy = prm_jax.load(folder)
  assert isinstance(policy, prm_jax.Sampler)
  problem = prm_jax.Problem("p", "2 + 3", answer="5")
  sampling = prm_jax.Sampling(max_tokens=8, temperature=0.7)
  assert prm_jax.write_problems(file, [problem]) == 1
  assert prm_jax.read_problems(file) == [problem]
  sampled = policy.sample(problem, n=2, sampling=sampling, seed=1)
  assert prm_jax.write_solutions(file, sampled) == 2
  assert prm_jax.read_solutions(file) == sampled
  return sampled


def label_without_rollouts(folder: str) -> list[prm_jax.Solution]:
  """Labels by one policy, and scores by two: here one and itself."""
  labelled = prm_jax.CPMI(folder, form="cumulative")(solutions())
  reference = prm_jax.ReferencePolicy(folder, step_score="mean")
  scores = prm_jax.Score(folder, reference=reference)(labelled)
  assert all(x == 0.5 for row in scores for x in row.scores)
  return labelled


def label(policy: prm_jax.Sampler) -> list[prm_jax.Solution]:
  sampling = prm_jax.Sampling(max_tokens=4)

  def complete(
    prefixes: Sequence[prm_jax.Solution], n: int
  ) -> list[list[prm_jax.Solution]]:
    return [[prefix] * n for prefix in prefixes]

  generate: prm_jax.Generate = complete
  prm_jax.label(solutions(), generate, completions=2)
  return prm_jax.label(solutions(), policy, sampling, completions=2)


def search(policy: str, prm: str) -> list[prm_jax.Solution]:
  problem = prm_jax.Problem("p", "2 + 3", answer="5")
  search = prm_jax.Search(
    policy=policy,
    scorer=prm,
    rule=prm_jax.Beam(keep=1, expand=2),
    limits=prm_jax.Limits(max_steps=2, budget_tokens=40),
    max_step_tokens=4,
  )
  verify = prm_jax.Verify(
    policy=policy,
    scorer=prm,
    threshold=0.99,
    attempts=1,
    limits=prm_jax.Limits(budget_tokens=4),
  )
  return search([problem]) + verify([problem])


def data_sets(file: str, folder: str) -> dict[str, Any]:
  prm_jax.write_solutions(file, solutions())
  (built,) = prm_jax.Build("jsonl", folder, input=file)()
  assert built.is_dir()
  labelled = prm_jax.Convert("stepwise", fill=True)(solutions())
  others = [prm_jax.Solution(f"p{i}", f"{i} + 1", ("1",)) for i in range(20)]
  train, test = prm_jax.Split(share=0.5)(labelled + others)
  assert len(train) + len(test) == 24
  (first,) = prm_jax.Inspect(limit=1)(labelled)
  assert "right0" in first and "4 solutions" in prm_jax.Stats()(labelled)
  return prm_jax.Examine(max_tokens=64)(labelled)


def exchange(folder: str, to: str) -> str:
  facts = prm_jax.Export(folder, f"{to}/theirs")()
  imported = prm_jax.Import(f"{to}/theirs", f"{to}/ours")()
  assert imported.description.program == "prm"
  return facts.template


def refused() -> str:
  try:
    prm_jax.Solution("1", "p", ("a",), labels=(7.0,))
  except prm_jax.InputError as e:
    return str(e)
  return ""


def rewards() -> float:
  returns = prm_jax.returns.__name__, prm_jax.advantages.__name__
  return float(len(returns)) + float(prm_jax.losses.PQM_MARGIN)
