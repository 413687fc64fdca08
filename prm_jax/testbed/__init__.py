"""Arithmetic problems whose every step an exact verifier judges."""
