"""What commands on files have in common: inputs, shards, journals, outputs."""
