"""How far a PRM's log-odds differ between forms of scoring, and from float32.

  python benchmarks/rounding.py --checkpoint=DIR [--transformers=FOLDER]
  [--solutions=16] [--output=FILE.json]

Solutions of PRM800K's phase-2 sample, 4 of a problem, are scored alone, in
batches of 4 padded rows, packed, as trees, and by CachedScorer step after step,
in float32 and bfloat16. A language model gets the template token_classification
and a random head, scaled to log-odds of mean 0 and standard deviation 2. The
hidden states of transformers, with our head, come from FOLDER, the same model's
Hugging Face folder. Nothing is timed.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any

import numpy as np
import peer
import results
import train_step

from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.scoring import cached_scorer
from prm_jax.scoring import scorer as scorer_lib
from prm_jax.text import encoding
from prm_jax.training import programs

EACH = 4  # solutions of a problem
_ONE_ROW = dict(sequence_length=1024, batch_tokens=1024)
FORMS: dict[str, dict[str, Any]] = dict(
  alone=dict(sequence_length=256, batch_tokens=1),
  batches=dict(sequence_length=512, batch_tokens=2048),
  packed=dict(layout="packed", **_ONE_ROW),
  trees=dict(layout="tree", **_ONE_ROW),
)


def log_odds(
  form: str, model: scorer_lib.Scorer, solutions: Sequence[schema.Solution]
) -> np.ndarray:
  """Returns the log-odds of all steps, in the order of the solutions."""
  if form in FORMS:
    rows = dataclasses.replace(model, **FORMS[form]).score(solutions)
  else:
    cached = cached_scorer.CachedScorer(model)
    for num in range(1, 1 + max(len(s.steps) for s in solutions)):
      rows = cached.score(
        [dataclasses.replace(s, steps=s.steps[:num]) for s in solutions]
      )
  return np.concatenate([np.asarray(row.logits) for row in rows])


def by_transformers(
  folder: pathlib.Path,
  model: scorer_lib.Scorer,
  solutions: Sequence[schema.Solution],
) -> np.ndarray:
  """Returns the log-odds, alone, from transformers' hidden states."""
  torch = peer.torch()
  import transformers

  dtype = model.config.compute_dtype
  trunk = transformers.AutoModel.from_pretrained(folder, dtype=dtype).eval()
  head, found = model.params["step_head"], []
  for encoded in map(model.encode, solutions):
    with torch.inference_mode():
      ids = torch.tensor(encoded.tokens[None], dtype=torch.long)
      hidden = trunk(input_ids=ids).last_hidden_state[0].float().numpy()
    found.append(hidden[encoded.step_end] @ head["kernel"] + head["bias"])
  return np.concatenate(found)[:, 0]


def load(
  folder: pathlib.Path, solutions: Sequence[schema.Solution]
) -> scorer_lib.Scorer:
  """Returns a PRM in float32; a language model gets a random head."""
  about = model_json.read_description(folder)
  if programs.KINDS[about.program].scores is not None:
    return scorer_lib.load(folder, compute_dtype="float32")
  kernel = np.random.default_rng(0).normal(size=(about.model.d_model, 1))
  head = dict(kernel=kernel.astype(np.float32), bias=np.zeros(1, np.float32))
  params = {**programs.load_params(folder, about), "step_head": head}
  tokenizer = model_json.read_tokenizer(folder, about)
  shape = dataclasses.replace(about.model, compute_dtype="float32")
  how = encoding.EncodingConfig(template="token_classification")
  model = scorer_lib.Scorer(
    "prm", shape, params, tokenizer, encoding.with_template(how, tokenizer)
  )
  found = log_odds("alone", model, solutions)
  head["kernel"] *= np.float32(2 / found.std())
  head["bias"] -= np.float32(2 / found.std() * found.mean())
  return model


def compared(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
  """Returns how far log-odds and probabilities differ, and sides of 1/2."""
  p, q = 1 / (1 + np.exp(-a)), 1 / (1 + np.exp(-b))
  sizes: dict[str, float] = dict(other_side=int(((a > 0) != (b > 0)).sum()))
  for name, x in (("log_odds", abs(a - b)), ("probability", abs(p - q))):
    sizes[f"{name}_p99"] = float(f"{np.percentile(x, 99):.2g}")
    sizes[f"{name}_max"] = float(f"{x.max():.2g}")
  return sizes


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--checkpoint", type=pathlib.Path, required=True)
  parser.add_argument("--transformers", type=pathlib.Path)
  parser.add_argument("--solutions", type=int, default=16)
  parser.add_argument("--output", type=pathlib.Path, help="results as JSON")
  args = parser.parse_args()
  result = results.provenance("rounding.py", args)
  result["versions"] |= peer.versions()
  by_problem: dict[str, list[schema.Solution]] = defaultdict(list)
  for s in peer.read(train_step.PHASE2):
    if s.steps:
      found = schema.Solution(s.id, s.problem, s.steps)
      by_problem[s.problem].append(found)
  solutions = [
    s for own in by_problem.values() if len(own) >= EACH for s in own[:EACH]
  ][: args.solutions]
  model = load(args.checkpoint, solutions)
  exact = log_odds("alone", model, solutions)
  result["counts"] = dict(
    solutions=len(solutions),
    problems=len({s.problem for s in solutions}),
    steps=len(exact),
    tokens=sum(len(model.encode(s).tokens) for s in solutions),
    log_odds_std=round(float(exact.std()), 4),
  )
  print(result["counts"], flush=True)
  result["differences"] = {}
  for dtype in ("float32", "bfloat16"):
    shape = dataclasses.replace(model.config, compute_dtype=dtype)
    typed = dataclasses.replace(model, config=shape)
    alone = exact if dtype == "float32" else log_odds("alone", typed, solutions)
    for form in (*FORMS, "cached", "transformers"):
      if form == "transformers" and args.transformers is None:
        continue
      if form == "transformers":
        found = by_transformers(args.transformers, typed, solutions)
      else:
        found = alone if form == "alone" else log_odds(form, typed, solutions)
      for base, to in (("alone", alone), ("float32", exact)):
        if found is not to and not (base == "alone" and to is exact):
          sizes = compared(found, to)
          result["differences"][f"{dtype}: {form} to {base}"] = sizes
          print(f"{dtype}: {form} to {base}: {sizes}", flush=True)
  results.finish(result, args.output)


if __name__ == "__main__":
  results.run(main)
