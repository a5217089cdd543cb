"""`NearestNeighbours`: the lengthscale of a query is its distance to the m-th nearest key."""

import jax
import numpy as np

import attnkernel as ak
from attnkernel.kernels import Tricube


def test_the_unit_of_a_query_is_its_distance_to_the_nearest_keys(x64):
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(7, 2)), rng.normal(size=(19, 2))
    options = {4: {"neighbours": 4}, 5: {"fraction": 0.29}, 1: {"fraction": 0.01}}
    kernels = {m: ak.NearestNeighbours(Tricube(1.3), **each) for m, each in options.items()}

    @jax.jit
    def weights(q, k):
        return {m: ak.attention_weights(q, k, kernel=kernel) for m, kernel in kernels.items()}

    distance = np.linalg.norm(q[:, None] - k, axis=-1)
    for m, found in jax.device_get(weights(q, k)).items():
        unit = 1.3 * np.sort(distance, axis=1)[:, [m - 1]]
        expected = np.where(distance < unit, 1 - (distance / unit) ** 3, 0.0) ** 3
        expected /= expected.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-15)
        assert ((found > 0).sum(axis=1) >= m).all()
