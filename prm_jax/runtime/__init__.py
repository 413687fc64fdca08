"""The process and its files: what is read and written, and within which limits."""
