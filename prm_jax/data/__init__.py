"""From solutions to batches: the step ledger, packing, and `batch_at(step)`."""
