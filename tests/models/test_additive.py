"""Additive and partially linear fits, against backfitting and Robinson's formula in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from marks import slow

import attnkernel as ak

N = 30  # padded to 32
ELL = (0.15, 0.2, 0.3)


def sample():
    rng = np.random.default_rng(1)
    x = rng.uniform(size=(N, 3))
    y = 5.0 + np.sin(5 * x[:, 0]) + x[:, 1] ** 2 + 0.3 * rng.normal(size=N)
    return x, y, rng.uniform(0.5, 2.0, N)


def smoother(at, x, ell, order, weights):
    """The hat matrix of a local polynomial in one dimension."""
    rows = []
    for q in at:
        root = np.sqrt(weights * np.exp(-0.5 * ((x - q) / ell) ** 2))
        basis = root[:, None] * (x - q)[:, None] ** np.arange(order + 1)
        rows.append(np.linalg.pinv(basis)[0] * root)
    return np.array(rows)


def backfit(x, y, order, weights):
    """The curves at the rows and at new inputs, by sweeps until nothing moves."""
    share = weights / weights.sum()
    mean = share @ y
    hats = [smoother(x[:, j], x[:, j], ell, order, weights) for j, ell in enumerate(ELL)]
    curves = np.zeros((3, N))
    for _ in range(5000):
        before = curves.copy()
        for j in range(3):
            others = curves.sum(axis=0) - curves[j]
            curves[j] = hats[j] @ (y - mean - others)
            curves[j] -= share @ curves[j]
        if np.max(np.abs(curves - before)) < 1e-14:
            break
    at, partial = AT(), [y - mean - curves.sum(axis=0) + curve for curve in curves]
    new = [
        smoother(at[:, j], x[:, j], ELL[j], order, weights) @ partial[j]
        - share @ (hats[j] @ partial[j])
        for j in range(3)
    ]
    return mean + curves.sum(axis=0), np.array(new).T, mean


def AT():
    return np.random.default_rng(2).uniform(size=(5, 3))


def additive(order=1):
    return ak.AdditiveRegression([ak.Gaussian(ell) for ell in ELL], order=order)


@pytest.mark.parametrize("order", [0, 1])
def test_an_additive_fit_is_the_limit_of_backfitting(x64, order):
    x, y, weights = sample()
    fitted, curves, mean = backfit(x, y, order, weights)
    model = additive(order)
    out = model(np.concatenate([x, AT()]), x, y, weights=weights)
    np.testing.assert_allclose(out[:N], fitted, rtol=1e-9)
    np.testing.assert_allclose(out[N:], mean + curves.sum(axis=1), rtol=1e-9)
    found = model.components(AT(), x, y, weights=weights)
    plain = model.components(x, x, y, weights=weights)
    np.testing.assert_allclose(found, curves, atol=1e-9)
    np.testing.assert_allclose(np.average(plain, axis=0, weights=weights), 0.0, atol=1e-10)


def test_leverages_of_an_additive_fit(x64):
    """A row of weight 0 is no row, and the hat matrix is that of labels that are unit vectors."""
    x, y, _ = sample()
    model = additive()
    hat = np.array([model(x, x, unit) for unit in np.eye(N)]).T
    fitted, leverage = model.fitted_and_leverage(x, y)
    np.testing.assert_allclose(fitted, hat @ y, rtol=1e-9)
    np.testing.assert_allclose(leverage, np.diag(hat), rtol=1e-8)
    more = np.concatenate([x, AT()])
    zero = np.r_[np.ones(N), np.zeros(5)]
    np.testing.assert_allclose(
        model(AT(), more, np.r_[y, np.full(5, 1e3)], weights=zero), model(AT(), x, y), rtol=1e-9
    )


@pytest.mark.slow
def test_bands_and_reports_of_an_additive_fit(x64):
    x, y, _ = sample()
    model = additive()
    fit = ak.fit(model, x, y, objective=ak.AICc(), optimizer=optax.sgd(0.0), steps=1)
    band = ak.bands(fit, AT(), corrected=False, noise="constant")
    rows = fit.model.effective_weights(AT(), x)
    own = fit.model.effective_weights(x, x)
    rest = np.eye(N) - own
    variance = np.sum((rest @ y) ** 2) / np.trace(rest.T @ rest)
    np.testing.assert_allclose(
        band.standard_error, np.sqrt(variance * np.sum(rows**2, axis=1)), rtol=1e-8
    )
    report = str(ak.summarise(fit, names=["a", "b", "c"]))
    assert "additive, local linear" in report
    assert "lengthscale of b" in report


def test_bands_of_the_curves_of_an_additive_fit(x64):
    x, y, weights = sample()
    given = {"objective": ak.AICc(), "optimizer": optax.sgd(0.0), "steps": 1}
    fit = ak.fit(additive(), x, y, **given, weights=weights).named(("a", "b", "c"), "wage")
    named = {"corrected": False, "noise": "constant"}
    bands = [ak.bands(fit, AT(), component=which, **named) for which in ("b", 1)]
    whole = ak.bands(fit, AT(), **named)
    curves = fit.model.components(AT(), x, y, weights=weights)[:, 1]
    rows = np.asarray(fit.model.component_weights(AT(), x, weights=weights)[1])
    own = np.asarray(fit.model.effective_weights(AT(), x, weights=weights))
    ratio = np.sqrt(np.sum(rows**2 / weights, axis=1) / np.sum(own**2 / weights, axis=1))
    for band in bands:
        np.testing.assert_allclose(band.centre, curves, rtol=1e-9)
        np.testing.assert_allclose(band.standard_error, ratio * whole.standard_error, rtol=1e-8)
        assert band.description == "95 % pointwise, curve of b"
    for options, sentence in (
        (named | {"component": "d"}, "from 0 to 2, or one of .'a', 'b', 'c'"),
        (named | {"component": 3}, "got 3"),
        ({"component": 0, "noise": "constant"}, "corrected=False"),
    ):
        with pytest.raises(ValueError, match=sentence):
            ak.bands(fit, AT(), **options)
    plain = ak.fit(ak.KernelRegression(ak.Gaussian(0.3)), x, y, **given)
    with pytest.raises(ValueError, match="AdditiveRegression; this fit is of a KernelRegression"):
        ak.bands(plain, AT(), component=0, corrected=False)


@pytest.mark.slow
def test_lengthscales_by_aicc(x64):
    """The lengthscale of a column without effect is as long as can be."""
    x, y, _ = sample()
    with pytest.warns(ak.FitWarning, match=r"upper bound: kernels\[2\]\.lengthscale"):
        fit = ak.fit(additive(0), x, y, objective=ak.AICc(), starts=1)
    ells = [float(kernel.lengthscale) for kernel in fit.model.kernels]
    assert ells[0] < 0.3
    assert ells[2] > 1.0


def test_held_out_rows_are_not_seen_and_leave_one_out_is_refused(x64):
    x, y, _ = sample()
    hidden = np.arange(N) % 3 == 0
    out = additive()(AT(), x, y, prior=ak.priors.HeldOut(jnp.asarray(hidden)))
    np.testing.assert_allclose(out, additive()(AT(), x[~hidden], y[~hidden]), rtol=1e-9)
    for model in (additive(), ak.PartiallyLinear(ak.KernelRegression(ak.Gaussian(0.2)), linear=0)):
        with pytest.raises(ValueError, match=r"objective=ak\.AICc"):
            model(x, x, y, prior=ak.priors.ExcludeSelf())


def test_categories_enter_as_their_means(x64):
    """A bandwidth of 0 fits each category by itself: least squares with a mean for each."""
    x, _, _ = sample()
    x = np.c_[np.arange(N) % 2, np.arange(N) // 2 % 3].astype(float)
    y = np.random.default_rng(0).normal(size=N)
    model = ak.AdditiveRegression([ak.LiRacine(ak.fixed(0.0))] * 2)
    design = np.c_[x[:, :1] == 0, x[:, :1] == 1, x[:, 1:] == 1, x[:, 1:] == 2].astype(float)
    expected = design @ np.linalg.lstsq(design, y)[0]
    np.testing.assert_allclose(model(x, x, y), expected, atol=1e-4)  # (I − S) is singular


def test_what_is_not_identified_is_refused(x64):
    x, y, _ = sample()
    model = ak.PartiallyLinear(ak.KernelRegression(ak.Gaussian(0.2)), linear=(0, 1))
    twice = np.c_[x[:, 0], 2.0 * x[:, 0] + 1.0, x[:, 2]]
    for sentence, call in {
        "linear combinations": lambda: additive()(x, twice, y),
        "3 kernels": lambda: additive()(x[:, :2], x[:, :2], y),
        "not identified": lambda: model.coefficients(twice, y),
        "others for the smoother": lambda: model(x[:, :2], x[:, :2], y),
        "up to 3000 rows": lambda: additive()(x, np.tile(x, (200, 1)), np.tile(y, 200)),
    }.items():
        with pytest.raises(ValueError, match=sentence):
            call()
    assert np.all(np.isnan(model(x, twice, y)))


@functools.cache
def partially_linear():
    return ak.PartiallyLinear(ak.KernelRegression(ak.Gaussian(0.2), order=1), linear=(0, 2))


@pytest.mark.parametrize("weighted", [True, slow(False)])
def test_coefficients_are_those_of_robinson(x64, weighted):
    x, y, weights = sample()
    weights = weights if weighted else np.ones(N)
    z, w = x[:, [0, 2]], np.diag(weights)
    left = np.eye(N) - smoother(x[:, 1], x[:, 1], 0.2, 1, weights)
    zt = left @ z
    b = np.linalg.solve(zt.T @ w @ zt, zt.T @ w @ left)
    model = partially_linear()
    found = model.coefficients(x, y, weights=weights)
    np.testing.assert_allclose(found.estimate, b @ y, rtol=1e-9)
    at = AT()
    rows = smoother(at[:, 1], x[:, 1], 0.2, 1, weights)
    expected = at[:, [0, 2]] @ b @ y + rows @ (y - z @ b @ y)
    np.testing.assert_allclose(model(at, x, y, weights=weights), expected, rtol=1e-9)
    hat = np.asarray(model.effective_weights(x, x, weights=weights))
    rest = np.eye(N) - hat
    counts = np.trace(rest.T @ w @ rest @ np.linalg.inv(w))
    variance = np.sum(weights * (rest @ y) ** 2) / counts
    error = np.sqrt(variance * np.sum(b**2 / weights, axis=1))
    np.testing.assert_allclose(found.standard_error, error, rtol=1e-8)
    each = (rest @ y) ** 2 / (1 - 2 * np.diag(hat) + weights * (hat**2 @ (1 / weights)))
    robust = model.coefficients(x, y, weights=weights, noise="rows").standard_error
    np.testing.assert_allclose(robust, np.sqrt(b**2 @ each), rtol=1e-8)


@pytest.mark.slow
def test_standard_errors_are_those_of_repeated_samples(x64):
    x, _, _ = sample()
    noise = 0.3 * jax.random.normal(jax.random.PRNGKey(0), (N, 4000), float)
    model = partially_linear()
    y = 2.0 * x[:, :1] + 3.0 * x[:, 1:2] + np.asarray(noise)
    rows = np.asarray(model._coefficient_rows(jnp.asarray(x), jnp.ones(N)))
    one = model.coefficients(x, y[:, 0])
    sd = np.std(rows @ y, axis=1)
    sizes = [np.asarray(model.coefficients(x, y[:, i]).standard_error) for i in range(100)]
    assert one.estimate.shape == (2,)
    np.testing.assert_allclose(np.sqrt(np.mean(np.square(sizes), axis=0)), sd, rtol=0.1)
