"""Kernels at lengthscales from 1e-30 to 1e30 and values of any size: float32 beside float64."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_formulas import FORMULAS
from laws import OneOfKernels
from marks import slow

import attnkernel as ak
from attnkernel import priors
from attnkernel.kernels import Biweight, Boxcar, Cauchy, Triangular, Tricube, Triweight
from attnkernel.methods import Blockwise, Dense, Sorted

N = 17
LENGTHSCALES = (1e-30, 1e-15, 1e-6, 1e-2, 1.0, 1e6, 1e15, 1e30)
KERNELS = (*FORMULAS, ak.Periodic)
# a formula of each kind: of squares, of roots, of logarithms, of sines, and compact ones
REPRESENTATIVE = (ak.Gaussian, ak.Matern52, Cauchy, ak.Periodic, Boxcar, Tricube)
OTHERS = tuple(make for make in KERNELS if make not in REPRESENTATIVE)
SORTED = (ak.Laplace, Boxcar, Triangular, ak.Epanechnikov, Biweight, Triweight)
BLOCKWISE = Blockwise(4, 8)


def sample(shift):
    rng = np.random.default_rng(3)
    x = rng.uniform(-3, 3, (N, 1)) + shift
    x[5] = x[6]  # duplicates
    return x, rng.normal(size=(N, 1))


@functools.cache
def with_derivatives(makes, method):
    """Value, log-mass, gradient, JVP in log ℓ: one program for all kernels and lengthscales.

    The results begin with two axes, of kernels and of lengthscales.
    """

    def predict(index, log_lengthscale, x, y):
        where = lambda kernel: kernel.lengthscale_parameter.z  # noqa: E731
        kernels = tuple(eqx.tree_at(where, make(1.0), log_lengthscale) for make in makes)
        kernel = OneOfKernels(kernels, index) if len(makes) > 1 else kernels[0]
        prior = priors.ExcludeSelf()
        return ak.attend(x, x, y, kernel=kernel, prior=prior, method=method, return_log_mass=True)

    def number(*arguments):
        value, log_mass = predict(*arguments)
        return jnp.sum(value) + jnp.sum(jnp.where(jnp.isneginf(log_mass), 0.0, log_mass))

    @jax.jit
    def compiled(indices, log_lengthscales, x, y):
        def evaluated(pair):
            index, log = pair
            change = jax.jvp(lambda ell: predict(index, ell, x, y), (log,), (jnp.ones_like(log),))
            return *change, jax.grad(number, (1, 2, 3))(index, log, x, y)

        return jax.lax.map(evaluated, (indices, log_lengthscales))

    def in_float32(x, y):
        shape = len(makes), len(LENGTHSCALES)
        logs = np.broadcast_to(np.log(LENGTHSCALES), shape).astype(np.float32)
        results = compiled(np.indices(shape)[0].ravel(), logs.ravel(), np.float32(x), np.float32(y))
        axes = lambda leaf: leaf.reshape(*shape, *leaf.shape[1:])  # noqa: E731
        return jax.tree.map(axes, jax.device_get(results))

    return in_float32


def assert_finite(function, x, y):
    (value, log_mass), *derivatives = function(x, y)
    assert np.isfinite(value).all()
    assert not np.isnan(log_mass).any()
    for leaf in jax.tree.leaves(derivatives):
        assert np.isfinite(leaf).all()


CASES = [
    pytest.param(REPRESENTATIVE, Dense(), id="dense"),
    slow(OTHERS, Dense(), id="dense, others"),
    slow((ak.Gaussian,), BLOCKWISE, id="gaussian, blockwise"),
    slow(KERNELS, BLOCKWISE, id="blockwise"),
    *(slow((make,), Sorted(), id=f"{make.__name__}, sorted") for make in SORTED),
]


@pytest.mark.parametrize(("makes", "method"), CASES)
def test_no_nan_at_any_lengthscale_in_float32(makes, method):
    assert_finite(with_derivatives(makes, method), *sample(shift=1e6))


def leave_one_out_in_numpy(make, lengthscale, x, y):
    with np.errstate(divide="ignore"):
        scores = FORMULAS[make](np.abs(x - x.T) / lengthscale)
    np.fill_diagonal(scores, -np.inf)
    highest = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(highest), 0.0, highest))
    return weights @ y / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)


@pytest.mark.parametrize(("makes", "method"), CASES)
def test_float32_agrees_with_float64(makes, method):
    x, y = (np.float32(a) for a in sample(shift=0.0))
    (values, log_masses), *_ = with_derivatives(makes, method)(x, y)
    for make, value, log_mass in zip(makes, values, log_masses, strict=True):
        if make not in FORMULAS:
            continue
        # beyond 1e19 lengthscales float32 sees no key
        for of_ell, mass, ell in zip(value[1:], log_mass[1:], LENGTHSCALES[1:], strict=True):
            seen = ~np.isneginf(mass)
            expected = leave_one_out_in_numpy(make, ell, x.astype(float), y.astype(float))
            np.testing.assert_allclose(of_ell[seen], expected[seen], rtol=2e-3, atol=1e-4)


# --- values of any size ---


@pytest.mark.parametrize(
    ("method", "path"),
    [(Dense(), None), slow(BLOCKWISE, None), slow(BLOCKWISE, "force_unmaterialised")],
)
def test_one_key_and_a_single_far_query(method, path, request):
    if path is not None:
        request.getfixturevalue(path)

    @jax.jit
    def value_and_gradient(q, key, label):
        def value(q):
            return ak.attend(q, key, label, kernel=ak.Gaussian(1e-3), method=method)

        return value(q), jax.grad(lambda q: jnp.sum(value(q)))(q)

    far, key, label = (np.float32(a) for a in ([[0.0], [1e3], [1e15]], [[0.0]], [[7.0]]))
    out, gradient = value_and_gradient(far, key, label)
    np.testing.assert_array_equal(out[:, 0], 7.0)
    np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.parametrize("path", ["dense", "blockwise", slow("unmaterialised")])
def test_values_of_any_size(path, request):
    """Also where the shift is that of far keys, the first block, below which the weights of near
    ones fit but not their values."""
    if path == "unmaterialised":
        request.getfixturevalue("force_unmaterialised")
    method = Dense() if path == "dense" else BLOCKWISE

    @jax.jit
    def attended(lengthscale, q, k, v):
        return ak.attend(q, k, v, kernel=ak.Gaussian(lengthscale), method=method)

    (x, _), far_first = sample(shift=0.0), np.where(np.arange(N) < 8, 7.5, 0.0)[:, None]
    cases = [(0.5, x, x, size) for size in (0.0, 1e-30, 1e30)]
    for *parts, size in (*cases, (1.0, far_first[::-1], far_first, 1e30)):
        out = attended(*map(np.float32, (*parts, np.full((N, 1), size))))
        np.testing.assert_allclose(out, np.full((N, 1), np.float32(size)), rtol=1e-5)


@pytest.mark.slow
def test_no_nan_where_weights_are_never_stored(force_unmaterialised):
    makes = ak.Gaussian, ak.kernels.Epanechnikov
    assert_finite(with_derivatives.__wrapped__(makes, BLOCKWISE), *sample(shift=1e6))
