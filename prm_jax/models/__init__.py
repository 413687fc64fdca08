"""The decoder and its heads; the only package that imports flax.linen."""
