"""Robust regression against R's lowess and loess, statsmodels, the formula, and removal of rows;
tables of R's packages are what the scripts beside them print."""

import io
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from known_fits import known_fit
from least_squares import local_polynomial
from marks import slow
from refusals import assert_raises
from slopes import assert_slopes
from statsmodels.nonparametric.smoothers_lowess import lowess

import attnkernel as ak
from attnkernel.priors import ExcludeSelf, HeldOut

CSV_FOLDER = Path(ak.__file__).parent / "data" / "csv"
N, M = 61, 11
EPS = np.finfo(np.float64).eps


def sample():
    """Inputs, two columns of labels, weights with 0 among them, new inputs."""
    rng = np.random.default_rng(5)
    x = np.sort(rng.uniform(0, 1, N))
    y = np.sin(6 * x)[:, None] + 0.2 * rng.standard_t(2, (N, 2))
    weights = rng.integers(1, 4, N) * (rng.uniform(size=N) < 0.9)
    return x, y, weights * 1.0, rng.uniform(0, 1, M)


def loess(fraction, order, iterations):
    kernel = ak.NearestNeighbours(ak.kernels.Tricube(1.0), fraction=fraction)
    return ak.RobustRegression(ak.KernelRegression(kernel, order=order), iterations=iterations)


# ---------------------------------------------------------------------------- other packages


@pytest.mark.parametrize(("fraction", "iterations"), [(0.3, 3), slow(0.6, 1)])
def test_lowess_of_statsmodels(x64, fraction, iterations):
    """Without its interpolation, at the rows and at new inputs."""
    x, y, _, x_new = sample()
    y = y[:, 0]
    options = {"frac": fraction, "it": iterations, "return_sorted": False}
    found = np.asarray(loess(fraction, 1, iterations)(np.r_[x, x_new], x, y))
    expected = lowess(y, x, delta=0.0, **options), lowess(y, x, xvals=x_new, **options)
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=0, atol=1e4 * EPS)


@pytest.mark.parametrize(
    ("name", "model"), [slow("loess 2", loess(0.4, 2, 3)), slow("lowess 3", loess(0.3, 1, 3))]
)
def test_lowess_and_loess_of_r(x64, name, model):
    """R takes weights above 0.999 of a reach for 0, and of a residual below 0.001 of the cutoff for
    1: a weight is up to 4e-6 off, and these fits, of labels over a range of 332, 1e-7."""
    table = pd.read_csv(Path(__file__).with_name("lowess.csv"))
    expected = table[table["name"] == name]
    data = np.genfromtxt(CSV_FOLDER / "mcycle.csv", delimiter=",", names=True)
    order = np.argsort(data["times"], kind="stable")
    x, y = data["times"][order], data["accel"][order]
    y[4::10] += 150
    computed = jax.jit(lambda x, y: jnp.stack([model(x, x, y), model.robustness_weights(x, y)]))
    found, delta = np.asarray(computed(x, y))[:, expected["row"]]
    np.testing.assert_allclose(found, expected["fit"], rtol=0, atol=1e-6)
    if "loess" in name.split():
        np.testing.assert_allclose(delta, expected["weight"], rtol=0, atol=4e-6)
        assert np.ptp(expected["weight"]) > 0.9  # outliers among them


# ---------------------------------------------------------------------------- the formula


MEDIAN_OF_ABSOLUTE_NORMAL = 0.6744897501960817


def bisquare(u):
    return np.maximum(1 - (u / (6 * MEDIAN_OF_ABSOLUTE_NORMAL)) ** 2, 0) ** 2


def huber(u):
    return 1 / np.maximum(1, np.abs(u))


def local_constant(lengthscale, x):
    """The function of new inputs and weights of rows that returns the matrix of a smoother."""
    return lambda at, weights: local_polynomial(at, x, lengthscale, weights=weights)


def reweighted(smoother, x_new, x, y, loss, iterations, weights, hidden=False):
    """Fits in loops: predictions at new inputs, and δ. `hidden`: pairs."""
    delta = np.ones(len(x))
    for _ in range(iterations):
        r = y - smoother(x, weights * delta) @ y
        median = np.median(np.repeat(np.abs(r), weights.astype(int)))
        delta = loss(MEDIAN_OF_ABSOLUTE_NORMAL * r / median)
    return smoother(x_new, weights * delta * ~np.asarray(hidden)) @ y, delta


def test_predictions_are_those_of_the_formula(x64):
    """Two columns of labels and both losses, with weights of rows, 0 among them, one of them
    of a wild label; each row left out; rows held out, as if these were removed. In one program."""
    x, y, weights, x_new = sample()
    y[np.flatnonzero(weights == 0)[0]] = 1e6
    held_out = np.arange(N) % 7 == 0
    base = ak.KernelRegression(ak.Gaussian(0.08))
    by_huber = ak.RobustRegression(base, loss=ak.Huber(1.0), iterations=2)
    models = {"bisquare": ak.RobustRegression(base), "huber": by_huber}

    @jax.jit
    def computed(x, y, weights):
        at, row_weights = jnp.concatenate([x, x_new]), {"weights": weights / 7}
        found = {}
        for name, model in models.items():
            delta = model.robustness_weights(x, y, **row_weights)
            found[name] = model(at, x, y, prior=ExcludeSelf(), **row_weights), delta
        model, hidden = models["bisquare"], HeldOut(held_out)
        found["held out"] = model(x_new, x, y, prior=hidden, weights=weights)
        found["held out, no weights"] = model(x_new, x, y, prior=hidden)
        found["deviance"] = model.deviance(y, y + 1.0)
        loss = ak.LeaveOneOut(weights=weights)
        return found | {"loss": loss(models["huber"], x[:, None], y)}

    found = jax.device_get(computed(x, y, weights))
    smoother, hidden = local_constant(0.08, x), np.r_[np.eye(N), np.zeros((M, N))] > 0
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)  # noqa: E731
    at, seen = np.r_[x, x_new], weights > 0
    losses, left_out = {"bisquare": (bisquare, 3), "huber": (huber, 2)}, []
    for column in range(2):
        label = y[:, column]
        for name, (loss, iterations) in losses.items():
            expected, delta = reweighted(smoother, at, x, label, loss, iterations, weights, hidden)
            close(found[name][0][:, column], expected)
            close(found[name][1][seen, column], delta[seen])
        left_out.append(expected[:N])
        for name, of_rows in (("held out", weights), ("held out, no weights", np.ones(N))):
            kept = ~held_out
            part = local_constant(0.08, x[kept])
            rows = x[kept], label[kept], bisquare, 3, of_rows[kept]
            close(found[name][:, column], reweighted(part, x_new, *rows)[0])
    away = np.abs(y - np.transpose(left_out)).sum(axis=1)
    close(found["loss"], np.average(away, weights=weights))
    close(found["deviance"], np.full(N, 2.0))


@pytest.mark.slow
def test_any_linear_smoother_maps_over_labels(x64):
    """Under vmap, around a model without a kernel of its own, around iterations, and, where only
    predictions are asked for, around weights that have no hat matrix."""

    class Line(ak.LinearSmoother):
        def __call__(self, x_new, x, y, *, prior=None, weights=None):
            left = design(x).T * weights[None]
            return design(x_new) @ jnp.linalg.solve(left @ design(x), left @ y)

    def design(x):
        return jnp.stack([jnp.ones(len(x)), jnp.reshape(x, -1)], axis=1)

    x, y, _, x_new = sample()

    def line(at, weights):
        of_rows, of_new = (np.stack([np.ones(len(part)), part], axis=1) for part in (x, at))
        left = of_rows.T * weights
        return of_new @ np.linalg.solve(left @ of_rows, left)

    def twice(at, weights):
        once = local_constant(0.2, x)
        return once(at, weights) @ (2 * np.eye(N) - once(x, weights))

    cases = {line: Line(), twice: ak.models.BiasReduced(ak.KernelRegression(ak.Gaussian(0.2)), 2)}

    peaked = ak.KernelRegression(ak.Gaussian(0.2), rule=ak.Entmax(1.5))

    @jax.jit
    @jax.vmap
    def mapped(y):
        return [ak.RobustRegression(base)(x_new, x, y) for base in (*cases.values(), peaked)]

    *results, of_peaked = mapped(y.T)
    assert np.all(np.isfinite(of_peaked))
    for smoother, found in zip(cases, results, strict=True):
        options = {"loss": bisquare, "iterations": 3, "weights": np.ones(N)}
        expected = [reweighted(smoother, x_new, x, label, **options)[0] for label in y.T]
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_outliers_without_weight_take_no_digits():
    """In float32 labels of 1e8 would leave none in a mean about which sums are centred."""
    x, y, _, x_new = sample()
    outliers = np.arange(N) % 20 == 7
    labels = np.where(outliers, 1e8, y[:, 0])
    model = ak.KernelRegression(ak.Gaussian(0.08), order=1)

    @jax.jit
    def predictions(x_new, x, y):
        robust = ak.RobustRegression(model)
        delta = robust.robustness_weights(x, y)
        return robust(x_new, x, y), model(x_new, x, y, weights=delta), delta

    parts = (part.astype(np.float32) for part in (x_new, x, labels))
    found, expected, delta = jax.device_get(predictions(*parts))
    assert np.all(delta[outliers] == 0)
    np.testing.assert_allclose(found, expected, atol=1e-4)


# ---------------------------------------------------------------------------- properties


@pytest.mark.slow
def test_derivatives_are_those_of_differences(x64):
    """By the lengthscale and by a label, through all iterations."""
    x, y, _, x_new = sample()

    @jax.jit
    @jax.value_and_grad
    def total(at):
        lengthscale, label = at
        model = ak.RobustRegression(ak.KernelRegression(ak.Gaussian(lengthscale), order=1))
        labels = jnp.where(np.arange(N) == 20, label, y[:, 0])
        return jnp.sum(model(x_new, x, labels) ** 2)

    at = np.float64(0.08), y[20, 0]
    slopes = jax.device_get(total(at)[1])
    assert_slopes(slopes, lambda *at: float(total(at)[0]), at, step=1e-6, rtol=1e-5)
    assert np.min(np.abs(slopes)) > 1e-3


def test_labels_that_are_fitted_exactly_have_no_scale(x64):
    """Six labels lie on a line; with one more residual of 0 than others, δ stay 1."""
    x = np.r_[np.arange(6.0), 20.0, 21.0, 22.0]
    y = np.r_[np.zeros(6), 1.0, 5.0, 2.0]

    @jax.jit
    def computed(x, y):
        model = ak.RobustRegression(ak.KernelRegression(ak.kernels.Boxcar(1.5)))
        return model.robustness_weights(x, y), model(x, x, y)

    weights, found = jax.device_get(computed(x, y))
    np.testing.assert_array_equal(weights, np.ones(9))
    near = np.abs(x[:, None] - x) <= 1.5
    np.testing.assert_allclose(found, near @ y / near.sum(axis=1), atol=20 * EPS)


def test_rows_out_of_reach_are_empty_and_refusals_name_what_to_use(x64):
    x, y, _, _ = sample()
    y = y[:, 0]
    model = ak.RobustRegression(ak.KernelRegression(ak.kernels.Boxcar(0.2)))
    found = model(np.array([0.5, 9.0]), x, y)
    np.testing.assert_array_equal(np.isnan(np.asarray(found)), [False, True])
    message = r"Without any it is the model itself"
    assert_raises(message, ak.RobustRegression, model.model, iterations=0)
    arrays = jnp.asarray(x[:, None]), jnp.asarray(y)
    assert_raises(r"Try ak\.LeaveOneOut\(\)", ak.GCV(), model, *arrays)
    fit = known_fit(ak.RobustRegression(ak.KernelRegression(ak.Gaussian(0.1))), x, y)
    for function in (ak.bands, ak.noise_variance):
        assert_raises(r"got one of a RobustRegression\..*ak\.conformal", function, fit, x)


HERE = Path(__file__).parent
needs_r = pytest.mark.needs_r


@pytest.mark.cli
@pytest.mark.parametrize(
    ("name", "atol"),
    [
        pytest.param("locfit", 0.0, marks=needs_r("locfit")),
        pytest.param("lowess", 0.0, marks=needs_r("stats")),
        pytest.param("lprq", 1e-10, marks=[needs_r("quantreg"), pytest.mark.slow]),
    ],
)
def test_the_table_is_what_r_prints(name, atol):
    command = ["Rscript", "--vanilla", str(HERE / f"{name}.R"), str(CSV_FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    printed, kept = map(pd.read_csv, (io.StringIO(done.stdout), HERE / f"{name}.csv"))
    pd.testing.assert_frame_equal(printed, kept, rtol=1e-8, atol=atol)
