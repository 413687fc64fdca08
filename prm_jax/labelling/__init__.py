"""Step labels without people: each labeller takes and returns solutions."""
