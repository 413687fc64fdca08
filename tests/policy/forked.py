"""Calls a loaded model in forked children; a script for test_forks.py.

It prints a line for each call, and none for one that hangs for some seconds.
First come a child forked after a load that failed, and one forked after JAX ran
for its user alone.
"""

import os
import pathlib
import signal
import sys
import warnings

import jax
from jax import numpy as jnp

import prm_jax
from prm_jax import errors
from prm_jax.huggingface import export_model
from prm_jax.policy import rollout_engine

# JAX warns of a fork itself.
warnings.simplefilter("ignore")


def in_child(name, call):
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


def main():
  folder = pathlib.Path(sys.argv[2])
  load = lambda: prm_jax.load(folder / "prm")  # noqa: E731
  try:
    prm_jax.load(folder / "missing")
  except errors.InputError:
    in_child("after a failed load", load)
  jnp.ones(3).sum().block_until_ready()
  in_child("after other work", load)
  prm = prm_jax.load(folder / "prm")
  policy = prm_jax.load(folder / "policy")
  problem = prm_jax.Solution("a", "1 + 1", ())
  solution = prm_jax.Solution(
    "a", "1 + 1", ("2",), extra=dict(reference_answer="2")
  )
  sampling = prm_jax.Sampling(max_tokens=4)
  calls = dict(
    load=load,
    score=lambda: prm.score("1 + 1", ["2"]),
    cached=lambda: prm_jax.CachedScorer(prm, cache_tokens=256),
    sample=lambda: policy.sample("1 + 1", sampling=sampling),
    log_likelihood=lambda: policy.log_likelihoods([problem], ["2"]),
    engine=lambda: rollout_engine.of(policy).generate(
      [problem], 1, sampling, jax.random.key(0)
    ),
    label=lambda: prm_jax.label([solution], policy, sampling),
    train=lambda: prm_jax.train({}, [solution], folder / "run"),
    export=lambda: export_model.export_folder(folder / "prm", folder / "hf"),
  )
  prm.score("1 + 1", ["2"])
  for name, call in calls.items():
    in_child(name, call)


if __name__ == "__main__":
  main()
