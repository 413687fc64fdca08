"""Calls a loaded model in forked children; a script for test_forks.py.

It prints a line for each call, and none for one that hangs for some seconds.
"""

import os
import pathlib
import signal
import sys
import tempfile
import warnings

import jax
import random_models

import prm_jax
from prm_jax import errors
from prm_jax.inference import engine as engine_lib

# JAX warns of a fork itself.
warnings.simplefilter("ignore")


def main():
  folder = random_models.write(pathlib.Path(tempfile.mkdtemp()))
  prm = prm_jax.load(folder / "prm")
  policy = prm_jax.load(folder / "policy")
  problem = prm_jax.Solution("a", "1 + 1", ())
  solution = prm_jax.Solution(
    "a", "1 + 1", ("2",), extra=dict(reference_answer="2")
  )
  sampling = prm_jax.Sampling(max_tokens=4)
  calls = dict(
    load=lambda: prm_jax.load(folder / "prm"),
    score=lambda: prm.score("1 + 1", ["2"]),
    cached=lambda: prm_jax.CachedScorer(prm, cache_tokens=256),
    sample=lambda: policy.sample("1 + 1", sampling=sampling),
    log_likelihood=lambda: policy.log_likelihoods([problem], ["2"]),
    engine=lambda: engine_lib.of(policy).generate(
      [problem], 1, sampling, jax.random.key(0)
    ),
    label=lambda: prm_jax.label([solution], policy, sampling),
    train=lambda: prm_jax.train({}, [solution], folder / "run"),
  )
  prm.score("1 + 1", ["2"])
  for name, call in calls.items():
    pid = os.fork()
    if not pid:
      signal.alarm(int(sys.argv[1]))
      try:
        call()
        print(f"{name}: done", flush=True)
      except errors.InputError as e:
        print(f"{name}: {e}", flush=True)
      os._exit(0)
    os.waitpid(pid, 0)


if __name__ == "__main__":
  main()
