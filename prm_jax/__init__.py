"""prm_jax: process supervision in JAX."""

__version__ = "0.1.0"
