"""The extremes: lengthscales and values of any size, in float32, beside float64."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnkernel as ak
from attnkernel import priors

N = 17
LENGTHSCALES = (1e-30, 1e-15, 1e-6, 1e-2, 1.0, 1e6, 1e15, 1e30)
KERNELS = (
    ak.Gaussian,
    ak.Laplace,
    ak.Matern32,
    ak.Matern52,
    ak.RationalQuadratic,
    ak.Cauchy,
    ak.Periodic,
    ak.Boxcar,
    ak.Triangular,
    ak.Epanechnikov,
    ak.Triweight,
    ak.Tricube,
    ak.Cosine,
)
SORTED = (ak.Laplace, ak.Boxcar, ak.Triangular, ak.Epanechnikov, ak.Biweight, ak.Triweight)


@pytest.fixture(params=["stored", "by key"])
def weights(request):
    """How streaming sums see their weights: as for few pairs, or as for many."""
    if request.param == "by key":
        request.getfixturevalue("force_unmaterialised")


def sample(shift, dim=1):
    rng = np.random.default_rng(3)
    x = rng.uniform(-3, 3, (N, dim)) + shift
    x[5] = x[6]  # duplicates
    return x, rng.normal(size=(N, 1))


def outcome(make, method, x, y):
    """Compiled once for all lengthscales: value, log-mass, gradient, JVP in log ℓ."""

    def predict(log_lengthscale, x, y):
        kernel = eqx.tree_at(lambda kernel: kernel.log_lengthscale, make(1.0), log_lengthscale)
        return ak.attend(
            x,
            x,
            y,
            kernel=kernel,
            prior=priors.LeaveOneOut(),
            method=method,
            return_log_mass=True,
        )

    def number(*arguments):
        value, log_mass = predict(*arguments)
        return jnp.sum(value) + jnp.sum(jnp.where(jnp.isneginf(log_mass), 0.0, log_mass))

    def all_of_them(log_lengthscale, x, y):
        one = (jnp.ones_like(log_lengthscale),)
        change = jax.jvp(lambda ell: predict(ell, x, y), (log_lengthscale,), one)[1]
        gradient = jax.grad(number, (0, 1, 2))(log_lengthscale, x, y)
        return *predict(log_lengthscale, x, y), gradient, change

    compiled = jax.jit(all_of_them)
    return [compiled(jnp.log(jnp.asarray(ell, x.dtype)), x, y) for ell in LENGTHSCALES]


@pytest.mark.parametrize(
    ("make", "method"),
    [
        *(
            pytest.param(make, method, marks=[] if i % 2 == j else pytest.mark.slow)
            for i, make in enumerate(KERNELS)
            for j, method in enumerate([ak.Dense(), ak.Blockwise(4, 8)])
        ),
        *((make, ak.Sorted()) for make in SORTED),
    ],
)
def test_no_nan_at_any_lengthscale_in_float32(make, method):
    assert_finite(make, method)


def assert_finite(make, method):
    x, y = (jnp.asarray(a, jnp.float32) for a in sample(shift=1e6))
    for value, log_mass, gradient, change in outcome(make, method, x, y):
        assert np.isfinite(value).all()
        assert not np.isnan(log_mass).any()
        for leaf in jax.tree.leaves((gradient, change)):
            assert np.isfinite(leaf).all()


@pytest.mark.parametrize("make", [ak.Gaussian, ak.Epanechnikov])
def test_no_nan_where_weights_are_never_stored(make, force_unmaterialised):
    assert_finite(make, ak.Blockwise(4, 8))


@pytest.mark.parametrize(
    ("make", "method"),
    [
        *((make, ak.Blockwise(4, 8)) for make in (ak.Gaussian, ak.Matern52, ak.Triweight)),
        *((make, ak.Sorted()) for make in (ak.Laplace, ak.Triangular, ak.Triweight)),
    ],
)
def test_float32_agrees_with_float64(make, method):
    x, y = sample(shift=0.0)
    single = outcome(make, method, jnp.float32(x), jnp.float32(y))
    with jax.enable_x64(True):
        rounded = (jnp.asarray(np.float32(a), float) for a in (x, y))
        double = outcome(make, ak.Dense(), *rounded)
    for ours, reference in list(zip(single, double, strict=True))[1:]:
        seen = ~np.isneginf(ours[1])  # beyond 1e19 lengthscales float32 sees no key
        np.testing.assert_allclose(ours[0][seen], reference[0][seen], rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("method", [ak.Dense(), ak.Blockwise(4, 8)])
def test_values_of_any_size(method, weights):
    x, _ = sample(shift=0.0)
    x = jnp.asarray(x, jnp.float32)
    for size in (0.0, 1e-30, 1e30):
        y = jnp.full((N, 1), size, jnp.float32)
        out = ak.attend(x, x, y, kernel=ak.Gaussian(0.5), method=method)
        np.testing.assert_allclose(out, y, rtol=1e-5)


@pytest.mark.parametrize("method", [ak.Dense(), ak.Blockwise(4, 8)])
def test_one_key_and_a_single_far_query(method, weights):
    key, label = jnp.zeros((1, 1)), jnp.full((1, 1), 7.0)
    far = jnp.array([[0.0], [1e3], [1e15]])
    out = ak.attend(far, key, label, kernel=ak.Gaussian(1e-3), method=method)
    np.testing.assert_array_equal(out[:, 0], 7.0)
    gradient = jax.grad(
        lambda q: jnp.sum(ak.attend(q, key, label, kernel=ak.Gaussian(1e-3), method=method))
    )(far)
    np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.parametrize("method", [ak.Dense(), ak.Blockwise(4, 8)])
def test_nan_in_a_query_stays_in_its_row(method, weights):
    x, y = (jnp.asarray(a, jnp.float32) for a in sample(shift=0.0))
    poisoned = x.at[3].set(jnp.nan)
    out = jax.jit(lambda q: ak.attend(q, x, y, kernel=ak.Gaussian(0.3), method=method))(poisoned)
    clean = ak.attend(x, x, y, kernel=ak.Gaussian(0.3), method=method)
    others = np.arange(N) != 3
    assert np.isnan(out[3]).all()
    np.testing.assert_allclose(out[others], clean[others], rtol=1e-6)


@pytest.mark.parametrize("method", [ak.Dense(), ak.Blockwise(16, 16)])
def test_large_values_nearer_than_all_keys_before_them(method, weights):
    """Weights that have room below the shift so far may leave none for what they weigh."""
    k = jnp.concatenate([jnp.full(16, 7.5), jnp.zeros(16)])[:, None]
    q = jnp.stack([jnp.zeros(1), jnp.full(1, 7.5)])
    v = jnp.full((32, 1), 1e30)
    out = ak.attend(q, k, v, kernel=ak.Gaussian(1.0), method=method)
    np.testing.assert_allclose(out, 1e30, rtol=1e-5)
