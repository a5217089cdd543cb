"""`NearestNeighbours`: the lengthscale of a query is its distance to the m-th nearest key."""

import jax
import numpy as np
import pytest

import attnkernel as ak


@pytest.mark.parametrize(
    ("options", "m"), [({"neighbours": 4}, 4), ({"fraction": 0.29}, 5), ({"fraction": 0.01}, 1)]
)
def test_the_unit_of_a_query_is_its_distance_to_the_nearest_keys(x64, options, m):
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(7, 2)), rng.normal(size=(19, 2))
    kernel = ak.NearestNeighbours(ak.Tricube(1.3), **options)
    found = jax.jit(lambda q, k: ak.attention_weights(q, k, kernel=kernel))(q, k)
    distance = np.linalg.norm(q[:, None] - k, axis=-1)
    unit = 1.3 * np.sort(distance, axis=1)[:, [m - 1]]
    expected = np.where(distance < unit, 1 - (distance / unit) ** 3, 0.0) ** 3
    np.testing.assert_allclose(found, expected / expected.sum(axis=1, keepdims=True), rtol=1e-9)
    assert ((found > 0).sum(axis=1) >= m).all()
