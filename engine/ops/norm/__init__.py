"""Batch, group and layer normalisation."""
