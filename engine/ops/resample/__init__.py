"""Separable linear maps along spatial axes: interpolation, adaptive averages."""
