"""scaled_dot_product_attention: one operator, in blocks on the CPU, fused on a GPU."""
