"""Batch, group and layer normalisation."""

from engine.ops.norm import lines as lines
