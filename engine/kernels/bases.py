"""Matrices of Winograd's minimal filtering F(2x2, 3x3), by which `change_basis` takes squares of vectors elsewhere."""

MATRICES = (
    ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),  # B', of the input
    ((1, 1, 1, 0), (0, 1, -1, -1)),  # A', of the products
    ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),  # G, of the weight
)
IMAGE, PRODUCTS, FILTER = range(len(MATRICES))
