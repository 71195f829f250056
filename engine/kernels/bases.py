"""Matrices of Winograd's minimal filtering F(2x2, 3x3), by which `change_basis` takes squares of vectors elsewhere."""

MATRICES = (
    ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),  # B', of the input
    ((1, 1, 1, 0), (0, 1, -1, -1)),  # A', of the products
    ((1, 0), (1, 1), (1, -1), (0, -1)),  # A, of the output's gradient
    ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),  # G, of the weight
    ((1, 0.5, 0.5, 0), (0, 0.5, -0.5, 0), (0, 0.5, 0.5, 1)),  # G', of the weight's gradient
)
IMAGE, PRODUCTS, SLOPES, FILTER, FILTER_SLOPES = range(len(MATRICES))
