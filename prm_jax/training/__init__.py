"""Training programs, each a value, and the one host loop that runs them."""
