"""Training programs, each of which is a value, and the loop that runs them."""
