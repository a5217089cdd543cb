"""Numbers that are not finite inside `jit`, where no check sees them: NaN in their own rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laws import OneOfKernels
from marks import slow

import attnkernel as ak
from attnkernel.kernels import Boxcar, Matern32, Triangular, Tricube
from attnkernel.methods import Blockwise, Dense
from attnkernel.rules import Uniform

KEYS = np.linspace(0.0, 1.0, 11)[:, None]
VALUES = np.arange(11.0)[:, None]
QUERIES = np.array([[np.nan], [0.5], [np.inf]])
SEVERAL = (
    ak.Gaussian(0.3),
    ak.Laplace(0.3),
    Matern32(0.3),
    ak.Epanechnikov(0.3),
    Tricube(0.3),
)
NEAREST = ak.NearestNeighbours(Boxcar(1.0), neighbours=3)
RULES = (ak.Softmax(), ak.Entmax(1.5), Uniform())


@pytest.mark.parametrize(("method", "rules"), [(Blockwise(2, 3), RULES[:1]), slow(Dense(), RULES)])
def test_a_query_that_is_not_finite_is_nan_in_its_own_row_alone(x64, method, rules):
    @jax.jit
    def rows(queries):
        def of_kernel(kernel, rules):
            parts = {"kernel": kernel, "method": method}
            return jnp.stack(
                [ak.attend(queries, KEYS, VALUES, rule=rule, **parts)[:, 0] for rule in rules]
            )

        of_several = jax.lax.map(lambda i: of_kernel(OneOfKernels(SEVERAL, i), rules), np.arange(5))
        return jnp.concatenate([*of_several, of_kernel(NEAREST, RULES)])

    found, valid = jax.device_get((rows(QUERIES), rows(np.tile(QUERIES[1], (3, 1)))))
    assert found.shape == (5 * len(rules) + 3, 3)
    assert np.all(np.isnan(found[:, [0, 2]]))
    np.testing.assert_allclose(found[:, 1], valid[:, 1], rtol=1e-12)
    assert np.all(np.isfinite(valid))


@pytest.mark.parametrize("method", [Dense(), Blockwise(2, 3)])
def test_a_key_that_is_not_a_number_is_not_ignored(x64, method):
    kernels = (ak.Epanechnikov(0.3), Matern32(0.3), Triangular(0.3), Tricube(0.3))

    @jax.jit
    def both(keys):
        hidden = ak.priors.HeldOut(jnp.arange(11) == 0)

        def of_kernel(i):
            parts = {"v": VALUES, "kernel": OneOfKernels(kernels, i), "method": method}
            query = jnp.array([[0.5]])
            return ak.attend(query, keys, **parts), ak.attend(query, keys, prior=hidden, **parts)

        return jax.lax.map(of_kernel, np.arange(4))

    plain, masked = both(np.where(np.arange(11)[:, None] == 0, np.nan, KEYS))
    assert plain.shape == masked.shape == (4, 1, 1)
    assert np.all(np.isnan(plain))
    assert np.all(np.isfinite(masked))


def test_weights_of_an_infinite_query_are_nan():
    weights = jax.jit(lambda q: ak.attention_weights(q, KEYS, kernel=ak.Gaussian(0.3)))(QUERIES)
    weights = np.asarray(weights)
    assert np.all(np.isnan(weights[np.array([0, 2])]))
    np.testing.assert_allclose(np.sum(weights[1]), 1.0, rtol=1e-6)


@pytest.mark.parametrize("policy", ["nearest", "mean"])
def test_a_policy_for_empty_rows_does_not_answer_for_an_invalid_query(policy):
    model = ak.KernelRegression(Boxcar(0.05), on_empty=policy)
    found = np.asarray(jax.jit(lambda q: model(q, KEYS, VALUES))(QUERIES))
    assert np.all(np.isnan(found[np.array([0, 2])]))
