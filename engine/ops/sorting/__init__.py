"""Order: sort, topk, quantiles, unique, histograms."""
