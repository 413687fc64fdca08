"""Is this machine right, and how fast: what `prm-jax check-device` runs.

run.py starts worker processes and keeps their results; suite.py lists the
checks; machine.py, attention.py, models.py, training.py, speed.py, inference.py
and peers.py have them. Only jax, flax, optax, orbax, etils, jaxtyping and numpy
are needed.
"""
