"""Step rewards for other people's trainers (docs/integrations.md).

No module here imports jax: a trainer's process may need the accelerator's
memory for itself.
"""
