"""Probes: whether the steps that a policy shows are those it uses."""
