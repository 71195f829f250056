"""Matrix products and what is composed of them."""
