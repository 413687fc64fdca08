"""Does a step-labelled reward model choose better answers than an outcome one?

Command:  make demo    or    prm-jax demo --config=experiments/arithmetic.py
Hardware, time and result: see experiments/README.md.

The config is in the package, so that an installed prm_jax can run it, too.
"""

from prm_jax.demo import default_config

get_config = default_config.get_config
