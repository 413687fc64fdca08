"""Reinforcement learning of a policy from the rewards of its steps."""
