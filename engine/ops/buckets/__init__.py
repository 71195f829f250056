"""What is done to buckets of gradients on a GPU."""
