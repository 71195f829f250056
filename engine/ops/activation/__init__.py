"""Activations: rules, compiled kernels and CUDA kernels."""
