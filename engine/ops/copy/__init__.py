"""Copies between layouts, dtypes and devices."""
