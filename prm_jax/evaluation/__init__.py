"""Measures of reward models: of steps, of first errors, of choosing among N."""
