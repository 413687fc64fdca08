"""Data of others in and out: formats, checks, mixtures, whole data sets."""
