"""Reading and writing at places: `x[...]`, index tensors along an axis, masks."""
