"""A checkpoint folder: saves that are checked, and parameters that are read."""
