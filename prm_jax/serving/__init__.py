"""Step scores over HTTP: `prm-jax serve`."""
