"""Matrices of Winograd's minimal filtering F(2x2, 3x3) and F(2x2, 2x2), by which `change_basis` takes squares of
vectors elsewhere.
"""

MATRICES = (
    # of filters of three taps: B', of the input; A', of the products; G, of the weight
    ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    ((1, 1, 1, 0), (0, 1, -1, -1)),
    ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
    # the same of two
    ((1, -1, 0), (0, 1, 0), (0, 1, -1)),
    ((1, 1, 0), (0, 1, -1)),
    ((1, 0), (1, 1), (0, 1)),
)
IMAGE_OF_THREE, PRODUCTS_OF_THREE, FILTER_OF_THREE, IMAGE_OF_TWO, PRODUCTS_OF_TWO, FILTER_OF_TWO = range(len(MATRICES))
