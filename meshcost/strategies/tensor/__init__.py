"""Tensor parallelism, with and without sequence parallelism."""
