"""The methods of Tensor; importing it attaches them. `engine.methods.table` lists them."""

from engine.methods.table import attach

attach()
