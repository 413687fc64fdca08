"""The process and its files: what is read and written, within which limits."""
