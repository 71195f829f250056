"""Convolution: `operator` has rules and derivatives, `functions` the public names; on the CPU `columns` and `direct`,
on a GPU `gpu`.
"""
