"""Results as pages that a person reads: samples, searches, runs, evaluations."""
