"""Losses over class indices."""
