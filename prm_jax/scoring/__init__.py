"""A reward model that reads: steps in, one score for each out."""
