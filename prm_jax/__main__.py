"""`python -m prm_jax` is `prm-jax`: for a machine where it isn't installed."""

import sys

from prm_jax.cli import main

if __name__ == "__main__":
  sys.exit(main.command())
