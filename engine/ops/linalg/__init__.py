"""Factorisations and solutions of systems of matrices."""
