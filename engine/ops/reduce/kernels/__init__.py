"""Compiled CPU kernels (Numba), on raw NumPy arrays."""
