"""From solutions to batches: the encoder, packing, and `batch_at(step)`."""
