"""Convolution: `operator` has rules and derivatives, `functions` the public names; on the CPU `cpu`, on
a GPU `gpu`.
"""
