"""From solutions to batches: encoding, packing, and `batch_at(step)`."""
