"""Is this machine right, and how fast: what `prm-jax check-device` runs.

check_run.py starts worker processes and keeps their results; suite.py lists the
checks; machine.py, attention_checks.py, model_checks.py, training.py, speed.py,
inference.py and peers.py have them. Only jax, flax, optax, orbax, etils,
jaxtyping and numpy are needed.
"""
