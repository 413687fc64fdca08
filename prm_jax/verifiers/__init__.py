"""Exact verifiers of the steps of a solution: equations, code, logic."""
