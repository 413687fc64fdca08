"""What prm_jax makes of an imported policy: ours.py FOLDER FILE DTYPE.

As theirs.py, without `below`.
"""

import json
import pathlib
import sys

import numpy as np

from prm_jax.policy import log_likelihood
from prm_jax.policy import sampler


def main(folder: str, path: str, dtype: str) -> None:
  policy = sampler.load(folder, compute_dtype=dtype)
  texts = [
    np.asarray(ids, np.int32)
    for ids in json.loads(pathlib.Path(path).read_text())["texts"]
  ]
  found = log_likelihood.of_ids(policy.config, policy.params, texts)
  print(json.dumps(dict(log_probs=[x[1:].tolist() for x in found])))


if __name__ == "__main__":
  main(*sys.argv[1:])
