"""Other shapes by copying: cat, stack, flip, padding."""
