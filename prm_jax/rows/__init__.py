"""Rows of a batch: examples packed, loaded and kept."""
