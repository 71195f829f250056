"""Rows of a table, and the adjoint."""
