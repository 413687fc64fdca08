"""A policy that writes: what is asked of it, and how its tokens are drawn."""
