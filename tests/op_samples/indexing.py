"""Samples of indexing, gathering and scattering."""

import numpy as np

from tests.op_samples.table import Array, X, add, draw, raw, whole

for _count in range(1, 9):
    _names = [whole(0, 2, 3) if n % 2 else whole(0, 2, 2, 1) for n in range(_count)]
    _source = draw(*(2,) * max(_count, 2))
    _places = tuple(range(_count))
    add("index_get", raw("index_get", _places), _source, *_names, reference=lambda x, *i: x[tuple(i)])
    _result = _source[tuple(_names)]
    add("index_backward", raw("index_backward", _places, _source.shape), draw(*_result.shape), *_names)
add("index_get", raw("index_get", (1,)), X, whole(0, 3, 2, 2), reference=lambda x, i: x[:, i])
add("index_get", raw("index_get", (1,)), X, np.zeros(0, np.int64), reference=lambda x, i: x[:, i])
add("index_get", raw("index_get", (0, 2)), X, whole(0, 2, 5), whole(0, 4, 5), reference=lambda x, i, j: x[i, :, j])
add("index_backward", raw("index_backward", (0,), (3, 2)), draw(4, 2), np.array([1, 1, 0, 1]))
add("index_select", raw("index_select", 1), X, whole(0, 3, 5), reference=lambda x, i: x.take(i, 1))
add("index_select", raw("index_select", 1), X, np.zeros(0, np.int64), reference=lambda x, i: x.take(i, 1))
add("gather", raw("gather", 2), X, whole(0, 4, 2, 3, 6), reference=lambda x, i: np.take_along_axis(x, i, 2))
add("gather", raw("gather", 1), X, whole(0, 3, 1, 2, 3), reference=lambda x, i: np.take_along_axis(x[:1, :, :3], i, 1))
_PLACES = np.argsort(draw(2, 3, 4), 2)[:, :, :3]
add("scatter", raw("scatter", 2), X, _PLACES, draw(2, 3, 3))
add("scatter", raw("scatter", 2), X, _PLACES[:1], draw(2, 3, 4))
add("scatter", lambda x, i: x.scatter(2, i, 0.5), X, _PLACES)
add("scatter_add_zeros", raw("scatter_add_zeros", (2, 3, 4), 2), draw(2, 3, 5), whole(0, 4, 2, 3, 5))
add("scatter_add_zeros", raw("scatter_add_zeros", (2, 3, 4), 2), draw(2, 3, 5), whole(0, 4, 1, 2, 3))
add("scatter_zeros", raw("scatter_zeros", (2, 3, 4), 2), draw(2, 3, 3), _PLACES)
_MEETING = whole(0, 4, 2, 3, 5)
for _reduction, _ufunc in {"prod": np.multiply, "amax": np.maximum, "amin": np.minimum}.items():

    def _meet(x: Array, i: Array, s: Array, ufunc: np.ufunc = _ufunc) -> Array:
        made = x.copy()
        a, b, _ = np.ogrid[:2, :3, :5]
        ufunc.at(made, (a, b, i), s)
        return made

    add("scatter_reduce", raw("scatter_reduce", 2, _reduction), X, _MEETING, draw(2, 3, 5), reference=_meet)
_ZEROS = draw(2, 3, 5)
_ZEROS[0, 0], _ZEROS[1, 1, 2] = 0, 0
add("scatter_reduce", raw("scatter_reduce", 2, "prod"), X * (X > -1), _MEETING, _ZEROS, twice=False)
_TABLE, _WORDS = draw(6, 3), np.array([[1, 4, 1], [5, 0, 2]])
add("embedding", raw("embedding", -1, False), _WORDS, _TABLE, reference=lambda i, w: w[i])
add("embedding", raw("embedding", -1, False), np.zeros((0, 2), np.int64), _TABLE, reference=lambda i, w: w[i])
add("embedding", raw("embedding", 1, False), np.array([4, 5, 0]), _TABLE, reference=lambda i, w: w[i])
add("embedding_backward", raw("embedding_backward", 6, -1, False), draw(2, 3, 3), _WORDS)
add("embedding_backward", raw("embedding_backward", 6, 1, True), draw(2, 3, 3), _WORDS)
