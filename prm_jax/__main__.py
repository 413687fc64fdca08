"""`python -m prm_jax` is `prm-jax`: for a machine where it isn't installed."""

import sys

from prm_jax import cli

if __name__ == "__main__":
  sys.exit(cli.main())
