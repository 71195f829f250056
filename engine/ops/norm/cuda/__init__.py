"""CUDA kernels: sources, and what launches them."""
