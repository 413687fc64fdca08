"""What a training step needs on chips that aren't here.

The step that `fit` runs is compiled ahead of time for a TPU topology or for
GPUs, on a machine that has neither, and read: memory, FLOPs, collectives.
"""
