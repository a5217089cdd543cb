"""A search for the lengthscale of a compact kernel begins where each input has a neighbour."""

import jax
import numpy as np

import attnkernel as ak

X = np.array([0.0, 1.0, 2.0, 4.0, 8.0])[:, None]


def test_each_input_has_a_neighbour_at_the_lower_bound(x64):
    kinds = ak.kernels.Boxcar, ak.Epanechnikov, ak.kernels.Tricube
    weights = np.array([1.0, 1.0, 2.0, 0.0, 1.0])
    cases = {
        "rows": ((X, None), 1.01 * 4.0),
        "a row without weight": ((X, weights), 1.01 * 6.0),
        "booleans": ((X, weights > 0), 1.01 * 6.0),
        "every row twice": ((np.repeat(X, 2, axis=0), None), 0.5 * 8 / 9),
    }
    search = jax.jit(lambda *parts: [kind(1.0).search_box(*parts) for kind in kinds])
    for name, (parts, expected) in cases.items():
        for lower, upper in (*search(*parts), ak.kernels.Tricube(1.0).search_box(*parts)):
            np.testing.assert_allclose(lower.lengthscale, expected, rtol=1e-12, err_msg=name)
            np.testing.assert_allclose(upper.lengthscale, 80.0, rtol=1e-12, err_msg=name)


def test_each_column_has_a_bound_of_its_own(x64):
    x = np.concatenate([X, X[::-1] ** 2], axis=1)
    lower, _ = ak.Epanechnikov(np.ones(2)).search_box(x)
    np.testing.assert_allclose(lower.lengthscale, [4.04, 1.01 * 48.0], rtol=1e-12)
