"""Automatic step labels; each labeller takes and returns solutions."""
