"""What a checkpoint folder holds; saves that are checked, and parameters that are read."""
