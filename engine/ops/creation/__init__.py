"""Tensors from nothing (`factories`) and from data."""
