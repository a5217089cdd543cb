"""Local polynomials against least squares written out, against statsmodels and R's np."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from statsmodels.nonparametric.kernel_regression import KernelReg

import attnkernel as ak
from attnkernel.models._local import local_polynomial
from attnkernel.models._monomials import exponents
from attnkernel.priors import LeaveOneOut, Where

N, M = 83, 31


def sample(dim, out=None):
    rng = np.random.default_rng(dim)
    shape = (N,) if out is None else (N, out)
    return rng.uniform(-2, 2, (N, dim)), rng.normal(size=shape), rng.uniform(-2.2, 2.2, (M, dim))


def design(q, k, order):
    """The monomials of k - q up to a degree, written out."""
    d, dim = k - q, k.shape[1]
    terms = [np.ones(len(k))]
    for degree in range(1, order + 1):
        for columns in itertools.combinations_with_replacement(range(dim), degree):
            terms.append(np.prod(d[:, columns], axis=1))
    return np.stack(terms, axis=1)


def least_squares(x_new, x, y, lengthscale, order, weights=1.0):
    """Coefficients at each query, and the rows of the hat matrix."""
    coefficients, rows = [], []
    for q in x_new:
        w = weights * np.exp(-0.5 * np.sum(((x - q) / lengthscale) ** 2, axis=1))
        root, basis = np.sqrt(w)[:, None], design(q, x, order)
        inverse = np.linalg.pinv(root * basis)
        rows.append((inverse * root.T)[0])
        coefficients.append(inverse @ (root * y.reshape(len(y), -1)))
    return np.array(coefficients), np.array(rows)


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("exact", [2**20, 100])
def test_coefficients_are_those_of_least_squares(x64, monkeypatch, dim, order, exact):
    """With a middle for each query, and with one for many."""
    monkeypatch.setattr("attnkernel.models._local._EXACT", exact)
    monkeypatch.setattr("attnkernel.models._local._FEW", 5)
    x, y, x_new = sample(dim, out=5)
    model = ak.KernelRegression(ak.Gaussian(0.7), order=order)
    local = model.local_fit(x_new, x, y)
    expected, _ = least_squares(x_new, x, y, 0.7, order)
    np.testing.assert_allclose(local.coefficients, expected, rtol=1e-9, atol=1e-10)
    assert local.coefficients.shape[1] == len(exponents(dim, order))
    assert not np.any(local.deficient)
    np.testing.assert_allclose(model(x_new, x, y), expected[:, 0], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_hat_matrix_noise_and_leave_one_out(x64, order):
    x, y, x_new = sample(2)
    weights = np.random.default_rng(7).uniform(0.2, 3.0, N)
    model = ak.KernelRegression(ak.Gaussian(0.8), order=order)
    _, hat = least_squares(x, x, y, 0.8, order, weights)
    fitted, diagonal = model.smooth(x, y, weights=weights)
    np.testing.assert_allclose(fitted, hat @ y, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(diagonal, np.diag(hat), rtol=1e-9)
    left_out = model(x, x, y, prior=LeaveOneOut(), weights=weights)
    np.testing.assert_allclose(y - left_out, (y - hat @ y) / (1 - np.diag(hat)), rtol=1e-8)
    variance = np.random.default_rng(8).uniform(0.1, 2.0, (N, 2))
    _, rows = least_squares(x_new, x, y, 0.8, order, weights)
    np.testing.assert_allclose(
        model.noise(x_new, x, variance, weights=weights), rows**2 @ variance, rtol=1e-9
    )


def test_weights_count_rows(x64):
    x, y, x_new = sample(1)
    counts = np.random.default_rng(2).integers(0, 4, N)
    model = ak.KernelRegression(ak.Gaussian(0.5), order=1)
    repeated = model(x_new, np.repeat(x, counts, axis=0), np.repeat(y, counts))
    np.testing.assert_allclose(model(x_new, x, y, weights=counts), repeated, rtol=1e-10)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("method", [ak.Dense(), ak.Blockwise(16, 16)])
def test_gradients_by_differences(x64, order, method):
    x, y, x_new = map(jnp.asarray, sample(2))

    def loss(log_lengthscale, x, y):
        kernel = ak.Gaussian(jnp.exp(log_lengthscale))
        model = ak.KernelRegression(kernel, order=order, method=method)
        return jnp.sum(jnp.sin(model(x_new, x, y)))

    at = jnp.log(jnp.array([0.9, 1.1]))
    rng = np.random.default_rng(1)
    arguments = (at, x, y)
    slopes = jax.grad(loss, (0, 1, 2))(*arguments)
    for i, argument in enumerate(arguments):
        step = jnp.asarray(rng.normal(size=argument.shape))
        moved = [
            loss(*arguments[:i], argument + sign * 1e-6 * step, *arguments[i + 1 :])
            for sign in (1, -1)
        ]
        expected = (moved[0] - moved[1]) / 2e-6
        np.testing.assert_allclose(jnp.sum(slopes[i] * step), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", [1, 2])
def test_a_polynomial_is_reproduced(x64, order):
    """Whatever the lengthscale, and where the data lie: at 1e6 too."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (N, 2))
    y = 1.5 + x @ np.array([2.0, -3.0])
    if order == 2:
        y = y + 0.5 * x[:, 0] ** 2 - 2.0 * x[:, 0] * x[:, 1]
    for shift, lengthscale in ((0.0, 0.4), (0.0, 30.0), (1e6, 0.4)):
        model = ak.KernelRegression(ak.Gaussian(lengthscale), order=order)
        np.testing.assert_allclose(model(x + shift, x + shift, y), y, atol=1e-6 * (1 + shift / 1e3))


def test_float32_at_its_extremes():
    """Rows of few neighbours, far away, alike: never NaN, and what can be told is right."""
    x, y, _ = sample(1)
    for scale in (1e-30, 1.0, 1e15):
        for lengthscale in (1e-3, 0.3, 1e3):
            model = ak.KernelRegression(ak.Gaussian(scale * lengthscale), order=1)
            points = (scale * x).astype(np.float32)
            out, slopes = eqx.filter_jit(
                eqx.filter_value_and_grad(lambda m, p=points: jnp.mean(m(p, p, y.astype("f")) ** 2))
            )(model)
            assert np.isfinite(out)
            assert np.isfinite(slopes.kernel.log_lengthscale)
    alike = ak.KernelRegression(ak.Gaussian(0.3), order=2)(x[:5], np.ones_like(x), y)
    # the ridge is the root of the precision, and rounding is divided by it
    np.testing.assert_allclose(alike, np.full(5, np.mean(y)), atol=1e-3)


def test_what_the_data_do_not_tell_is_said(x64):
    x = np.array([0.0, 0.0, 5.0, 5.1, 5.2])
    y = np.array([1.0, 3.0, 4.0, 5.0, 6.0])
    model = ak.KernelRegression(ak.Epanechnikov(1.0), order=1)
    local = model.local_fit(np.array([0.3, 5.1, 20.0]), x, y)
    np.testing.assert_array_equal(local.deficient[:2], [True, False])
    assert local.condition[0] > 1e10 > local.condition[1]
    np.testing.assert_allclose(local.coefficients[0, :, 0], [2.0, 0.0], atol=1e-6)
    assert np.isneginf(local.log_mass[2])
    assert np.isnan(model(np.array([20.0]), x, y)[0])


@pytest.mark.parametrize("order", [1, 2])
def test_noise_where_the_data_hardly_tell(order):
    """In a gap, beyond the data, of one input: weights are those of the fit, squared one by one."""
    x = np.r_[np.linspace(0, 1, 12), np.linspace(3, 4, 11)].astype("f")[:, None]
    x_new = np.array([0.5, 1.9, 2.2, 5.0, 9.0], "f")[:, None]
    model = ak.KernelRegression(ak.Gaussian(0.3), order=order)
    weights = model(x_new, x, np.eye(23, dtype="f"))
    np.testing.assert_allclose(
        model.noise(x_new, x, np.ones(23, "f")), np.sum(weights**2, axis=1), rtol=2e-3
    )
    alike = np.full(4, 3.0, "f")
    far = np.array([3.0, 10.0, 40.0], "f")
    np.testing.assert_allclose(
        model.noise(far, alike, np.ones(4, "f")), np.full(3, 0.25), rtol=1e-3
    )
    np.testing.assert_array_equal(model(far, alike, np.full(4, 1e6, "f")), np.full(3, 1e6))


def test_the_prior_of_a_query_stays_with_it(x64, monkeypatch):
    """Queries are taken in another order than given: of many pairs, in two dimensions."""
    monkeypatch.setattr("attnkernel.models._local._EXACT", 100)
    monkeypatch.setattr("attnkernel.models._local._FEW", 5)
    x, y, _ = sample(2)
    odd = Where(lambda i, j: (i + j) % 2 == 0)
    model = ak.KernelRegression(ak.Gaussian(0.5), order=1)
    out = model(x, x, y, prior=odd)
    for rows in (slice(0, None, 2), slice(1, None, 2)):
        np.testing.assert_allclose(out[rows], model(x[rows], x[rows], y[rows]), rtol=1e-9)


def test_batches_have_polynomials_of_their_own(x64):
    x, y, x_new = sample(2, out=3)
    solve = functools.partial(
        local_polynomial, kernel=ak.Gaussian(0.9), rule=ak.Softmax(), method=ak.Auto(), order=1
    )
    queries = jnp.stack([x_new, x_new + 0.1])[:, None]
    keys = jnp.stack([x, 0.9 * x, x[::-1]])
    found = solve(queries, keys, jnp.asarray(y))
    assert found.coefficients.shape == (2, 3, M, 3, 3)
    one = solve(queries[1, 0], keys[2], jnp.asarray(y))
    np.testing.assert_allclose(found.coefficients[1, 2], one.coefficients, rtol=1e-9, atol=1e-11)


def statsmodels_test_data():
    """The 60 points of statsmodels' own test, of which R's np gives the bandwidths."""
    draw, n = np.random.RandomState(123456), 60
    draw.binomial(2, 0.7, size=(n, 1)), draw.binomial(3, 0.7, size=(n, 1))
    first, second = draw.normal(size=(n, 1)), draw.normal(10, 1, size=(n, 1))
    draw.normal(10, 2, size=(n, 1))
    y = 0.3 + 1.2 * first + 3.7 * second + draw.normal(size=(n, 1))
    return np.hstack([first, second]), y[:, 0]


@pytest.mark.parametrize(
    ("order", "bandwidths"), [(0, [0.6163835, 0.1649656]), (1, [1.717891, 2.449415])]
)
def test_leave_one_out_bandwidths_of_np(x64, order, bandwidths):
    x, y = statsmodels_test_data()
    model = ak.KernelRegression(ak.Gaussian(np.ones(2)), order=order)
    fit = ak.fit(model, x, y, objective=ak.LeaveOneOut())
    np.testing.assert_allclose(fit.model.kernel.lengthscale, bandwidths, rtol=2e-6)


# statsmodels warns of its own future random numbers, which nothing here draws
@pytest.mark.filterwarnings("ignore:After 0.17:FutureWarning")
@pytest.mark.parametrize(("order", "kind"), [(0, "lc"), (1, "ll")])
def test_fits_of_statsmodels(x64, order, kind):
    x, y = statsmodels_test_data()
    bandwidths = np.array([0.7, 0.9])
    peer = KernelReg(y, x, "cc", reg_type=kind, bw=bandwidths)
    expected, slopes = peer.fit(x)
    model = ak.KernelRegression(ak.Gaussian(bandwidths), order=order)
    np.testing.assert_allclose(model(x, x, y), expected, rtol=1e-12)
    if order:
        coefficients = model.local_fit(x, x, y).coefficients
        np.testing.assert_allclose(coefficients[:, 1:, 0], slopes, rtol=1e-9, atol=1e-10)


def test_orders_that_are_not():
    with pytest.raises(ValueError, match=r"order must be 0 .*; got 3"):
        ak.KernelRegression(ak.Gaussian(1.0), order=3)
    model = ak.KernelRegression(ak.Gaussian(1.0), order=1, method=ak.Fourier())
    with pytest.raises(ValueError, match="certifies weighted means"):
        model(np.arange(3.0), np.arange(3.0), np.arange(3.0))
    sparse = ak.KernelRegression(ak.Gaussian(1.0), rule=ak.Entmax(1.5))
    with pytest.raises(ValueError, match="hat matrix"):
        sparse.smooth(np.arange(3.0), np.arange(3.0))


@pytest.mark.parametrize("order", [1, 2])
def test_a_sink_moves_no_polynomial(x64, order):
    """It scales all weights alike: of few labels and of many, their noise, and the hat matrix."""
    x, y, x_new = sample(1)
    plain = ak.KernelRegression(ak.Gaussian(0.7), order=order)
    sunk = ak.KernelRegression(ak.Gaussian(0.7), order=order, rule=ak.Softmax(sink_mass=20.0))
    many = np.tile(y[:, None], 16)
    for of in (
        lambda model: model(x_new, x, y),
        lambda model: model(x_new, x, many),
        lambda model: model.noise(x_new, x, np.ones(N)),
        lambda model: model.smooth(x, y)[1],
    ):
        np.testing.assert_allclose(of(sunk), of(plain), rtol=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_query_that_is_not_finite_harms_no_neighbour(x64, monkeypatch, bad):
    monkeypatch.setattr("attnkernel.models._local._EXACT", 100)
    x, y, x_new = sample(1)
    model = ak.KernelRegression(ak.Gaussian(0.7), order=1)
    found = jax.jit(lambda q: model(q, x, y))(jnp.asarray(x_new).at[3].set(bad))
    expected = model(x_new, x, y).at[3].set(jnp.nan)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("order", [1, 2])
def test_many_labels_are_each_alone(x64, order):
    """Summed by the weights of the fit, and by moments."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(23, 2)), 50.0 + rng.normal(size=(23, 17))
    model = ak.KernelRegression(ak.Gaussian(0.9), order=order)
    seen = {"prior": ak.priors.LeaveOneOut(), "weights": rng.uniform(size=23)}
    alone = np.stack([model(x, x, labels, **seen) for labels in y.T], axis=1)
    np.testing.assert_allclose(model(x, x, y, **seen), alone, rtol=1e-9)
    slope, sums = (
        jax.grad(lambda k, y=y: jnp.sum(k(x, x, y, **seen)[:, :3]))(model).kernel.log_lengthscale
        for y in (y, y[:, :3])
    )
    np.testing.assert_allclose(slope, sums, rtol=1e-8)


@pytest.mark.parametrize("order", [1, 2])
def test_a_middle_far_from_its_queries_loses_no_estimate(x64, monkeypatch, order):
    """Moments moved by many lengthscales cancel to less than nothing: no root of them is taken."""
    rng = np.random.default_rng(2)
    x = rng.integers(0, 5, (89, 3)) * np.array([1.0, 10.0, 0.1])
    y = rng.normal(size=89)
    model = ak.KernelRegression(ak.Gaussian(jnp.array([3e-3, 4.0, 2e-3])), order=order)
    monkeypatch.setattr("attnkernel.models._local._FEW", 31)
    found = []
    for exact in (2**20, 100):
        monkeypatch.setattr("attnkernel.models._local._EXACT", exact)
        jax.clear_caches()
        found.append(model.local_fit(x, x, y))
        slope = jax.grad(
            lambda scale: jnp.sum(model.__class__(ak.Gaussian(scale), order=order)(x, x, y))
        )
        assert np.all(np.isfinite(slope(model.kernel.lengthscale)))
    alone, together = found
    assert np.all(together.deficient)
    assert np.all(np.isfinite(together.coefficients))
    np.testing.assert_allclose(together.coefficients[:, 0], alone.coefficients[:, 0], atol=1e-5)
