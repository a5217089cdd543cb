"""Robust regression against R's lowess and loess, statsmodels, the formula, and removal of rows."""

import csv
import subprocess
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from statsmodels.nonparametric.smoothers_lowess import lowess

import attnkernel as ak
from attnkernel.models._robustness_weights import weighted_median
from attnkernel.priors import ExcludeSelf, HeldOut

HERE = Path(__file__).parent
CSV_FOLDER = Path(ak.__file__).parent / "data" / "csv"
N, M = 61, 11


def sample(n=N, m=M, columns=1):
    rng = np.random.default_rng(5)
    x = np.sort(rng.uniform(0, 1, n))
    y = np.sin(6 * x)[:, None] + 0.2 * rng.standard_t(2, (n, columns))
    weights = rng.integers(1, 4, n) * (rng.uniform(size=n) < 0.9)
    return x, y[:, 0] if columns == 1 else y, weights * 1.0, rng.uniform(0, 1, m)


def loess(fraction, order, iterations):
    kernel = ak.NearestNeighbours(ak.Tricube(1.0), fraction=fraction)
    return ak.RobustRegression(ak.KernelRegression(kernel, order=order), iterations=iterations)


# ---------------------------------------------------------------------------- other packages


@pytest.mark.parametrize(("fraction", "iterations"), [(0.3, 3), (0.6, 1)])
def test_lowess_of_statsmodels(x64, fraction, iterations):
    """Without its interpolation, at the rows and at new inputs."""
    x, y, _, x_new = sample()
    options = {"frac": fraction, "it": iterations, "return_sorted": False}
    found = loess(fraction, 1, iterations)(np.r_[x, x_new], x, y)
    np.testing.assert_allclose(found[:N], lowess(y, x, delta=0.0, **options), rtol=0, atol=1e-13)
    at_new = lowess(y, x, xvals=x_new, **options)
    np.testing.assert_allclose(found[N:], at_new, rtol=0, atol=1e-13)


def table(text):
    """The rows of `lowess.csv` by name: row, fit, robustness weight (NaN for lowess)."""
    found = {}
    for line in csv.DictReader(text.splitlines()):
        numbers = [float(line[name]) for name in ("row", "fit", "weight")]
        found.setdefault(line["name"], []).append(numbers)
    return {key: np.array(rows).T for key, rows in found.items()}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("lowess 1", loess(0.3, 1, 1)),
        ("lowess 3", loess(0.3, 1, 3)),
        ("loess 1", loess(0.4, 1, 3)),
        ("loess 2", loess(0.4, 2, 3)),
    ],
)
def test_lowess_and_loess_of_r(x64, name, model):
    """R takes weights above 0.999 of a reach for 0, and of a residual below 0.001 of the cutoff for
    1: a weight is up to 4e-6 off, and these fits, of labels over a range of 332, 1e-7."""
    row, fit, weight = table((HERE / "lowess.csv").read_text())[name]
    data = np.genfromtxt(CSV_FOLDER / "mcycle.csv", delimiter=",", names=True)
    order = np.argsort(data["times"], kind="stable")
    x, y = data["times"][order], data["accel"][order]
    y[4::10] += 150
    found = np.asarray(model(x, x, y))[row.astype(int)]
    np.testing.assert_allclose(found, fit, rtol=0, atol=1e-6)
    if "loess" in name.split():
        delta = np.asarray(model.robustness_weights(x, y))[row.astype(int)]
        np.testing.assert_allclose(delta, weight, rtol=0, atol=4e-6)
        assert np.ptp(weight) > 0.9  # outliers among them


@pytest.mark.cli
@pytest.mark.needs_r("stats")
def test_the_table_is_what_r_prints():
    command = ["Rscript", "--vanilla", str(HERE / "lowess.R"), str(CSV_FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kept, now = (table(text) for text in ((HERE / "lowess.csv").read_text(), done.stdout))
    assert kept.keys() == now.keys()
    for key, rows in kept.items():
        np.testing.assert_allclose(now[key], rows, rtol=1e-8)


# ---------------------------------------------------------------------------- the formula


def reweighted(x_new, x, y, loss, iterations, weights, hidden=None, lengthscale=0.08):
    """Local constant fits in loops: predictions at new inputs, and δ. `hidden`: pairs."""

    def fit(at, of_rows):
        kernel = np.exp(-0.5 * ((at[:, None] - x) / lengthscale) ** 2) * of_rows
        return kernel @ y / kernel.sum(axis=1)

    delta = np.ones(len(x))
    for _ in range(iterations):
        r = y - fit(x, weights * delta)
        sigma = np.median(np.repeat(np.abs(r), weights.astype(int))) / 0.6744897501960817
        delta = np.asarray(loss.weight(jnp.asarray(r / sigma)))
    of_pairs = (weights * delta) * (1.0 if hidden is None else ~hidden)
    return fit(x_new, of_pairs), delta


def test_predictions_are_those_of_the_formula(x64):
    """Of both losses, with weights of rows, 0 among them, one of them of a wild label; with each
    row left out; with rows held out, as if these were removed. In one program."""
    x, y, weights, x_new = sample()
    y[np.flatnonzero(weights == 0)[0]] = 1e6
    held_out = np.arange(N) % 7 == 0
    base = ak.KernelRegression(ak.Gaussian(0.08))
    models = {
        "bisquare": ak.RobustRegression(base),
        "huber": ak.RobustRegression(base, loss=ak.Huber(1.0), iterations=2),
    }

    @jax.jit
    def computed(x_new, x, y, weights):
        found = {}
        for name, model in models.items():
            found[name] = model(x_new, x, y, weights=weights)
            found[f"{name} weights"] = model.robustness_weights(x, y, weights=weights)
        model = models["bisquare"]
        found["left out"] = model(x, x, y, prior=ExcludeSelf(), weights=weights)
        hidden = HeldOut(jnp.asarray(held_out))
        found["held out"] = model(x_new, x, y, prior=hidden, weights=weights)
        found["held out, no weights"] = model(x_new, x, y, prior=hidden)
        loss = ak.LeaveOneOut(weights=weights)
        return found | {"loss": loss(model, x[:, None], y)}

    found = computed(x_new, x, y, weights)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)  # noqa: E731
    for name, model in models.items():
        of_loss = model.loss, model.iterations
        prediction, delta = reweighted(x_new, x, y, *of_loss, weights)
        close(found[name], prediction)
        close(found[f"{name} weights"][weights > 0], delta[weights > 0])
    bisquare = ak.Bisquare(), 3
    left_out, _ = reweighted(x, x, y, *bisquare, weights, hidden=np.eye(N, dtype=bool))
    close(found["left out"], left_out)
    close(found["loss"], np.average(np.abs(y - left_out), weights=weights))
    for name, of_rows in (("held out", weights), ("held out, no weights", np.ones(N))):
        kept = ~held_out
        expected, _ = reweighted(x_new, x[kept], y[kept], *bisquare, of_rows[kept])
        close(found[name], expected)


def test_a_weight_of_k_is_k_rows(x64):
    x, y, weights, x_new = sample()
    model = ak.RobustRegression(ak.KernelRegression(ak.Gaussian(0.08), order=1))
    rows = np.repeat(np.arange(N), weights.astype(int))
    found = model(x_new, x, y, weights=weights)
    np.testing.assert_allclose(found, model(x_new, x[rows], y[rows]), rtol=1e-11)
    np.testing.assert_allclose(found, model(x_new, x, y, weights=weights / 7), rtol=1e-11)


def test_medians(x64):
    """Of repeated values, of an even and an odd number, and with weights of 0 on both sides."""
    rng = np.random.default_rng(0)
    median = jax.jit(weighted_median)
    for _ in range(50):
        values, weights = rng.integers(0, 9, 8) * 1.0, rng.integers(0, 4, 8)
        if not weights.any():
            continue
        expected = np.median(np.repeat(values, weights))
        assert median(values, 1.0 * weights) == expected
        assert median(values, weights / 10) == expected
    assert median(np.r_[1.0, 2.0, 3.0, 9.0], np.ones(4)) == 2.5


# ---------------------------------------------------------------------------- properties


def test_columns_of_labels_have_weights_of_their_own(x64):
    x, y, weights, x_new = sample(columns=2)
    model = ak.RobustRegression(ak.KernelRegression(ak.Gaussian(0.08)))
    both = model(x_new, x, y, weights=weights), model.robustness_weights(x, y, weights=weights)
    for column in range(2):
        one = y[:, column]
        each = (
            model(x_new, x, one, weights=weights),
            model.robustness_weights(x, one, weights=weights),
        )
        for together, apart in zip(both, each, strict=True):
            np.testing.assert_allclose(together[:, column], apart, rtol=1e-11)
    assert model.deviance(y, y + 1.0).tolist() == pytest.approx([2.0] * N)


def test_derivatives_are_those_of_differences(x64):
    """By the lengthscale and by a label, through all iterations."""
    x, y, _, x_new = sample()
    model = ak.RobustRegression(ak.KernelRegression(ak.Gaussian(0.08), order=1))

    @jax.jit
    @jax.value_and_grad
    def total(moved):
        lengthscale, y = moved
        at = eqx.tree_at(lambda m: m.model.kernel, model, ak.Gaussian(lengthscale))
        return jnp.sum(at(x_new, x, y) ** 2)

    point = jnp.asarray(0.08), jnp.asarray(y)
    _, (of_lengthscale, of_labels) = total(point)
    step, row = 1e-6, 20
    of_labels = np.asarray(of_labels)
    for slope, change in (
        (of_lengthscale, (step, 0.0)),
        (of_labels[row], (0.0, step * (np.arange(N) == row))),
    ):
        ahead, behind = (
            total((point[0] + sign * change[0], point[1] + sign * change[1]))[0] for sign in (1, -1)
        )
        assert float(slope) == pytest.approx(float(ahead - behind) / (2 * step), rel=1e-5)
        assert abs(slope) > 1e-3


def test_any_linear_smoother_maps_over_labels(x64):
    """Under vmap, in float32, around a model without a kernel of its own, and around iterations."""

    class Line(ak.LinearSmoother):
        def __call__(self, x_new, x, y, *, prior=None, weights=None):
            design = lambda x: jnp.stack([jnp.ones(len(x)), jnp.reshape(x, -1)], axis=1)  # noqa: E731
            left = design(x).T * weights[None]
            return design(x_new) @ jnp.linalg.solve(left @ design(x), left @ y)

    x, y, _, x_new = sample()
    line = np.asarray(ak.RobustRegression(Line(), iterations=40)(x_new, x, 2 * x + 0.1 * y**3))
    straight = np.polyval(np.polyfit(x_new, line, 1), x_new)
    np.testing.assert_allclose(line, straight, rtol=1e-9)
    for base in (Line(), ak.BiasReduced(ak.KernelRegression(ak.Gaussian(0.2)), 2)):
        model = ak.RobustRegression(base)
        labels = np.stack([y, y[::-1]])
        mapped = jax.jit(jax.vmap(lambda y, model=model: model(x_new, x, y)))(labels)
        for one, expected in zip(labels, mapped, strict=True):
            np.testing.assert_allclose(model(x_new, x, one), expected, rtol=1e-9)
    low = [part.astype(np.float32) for part in (x_new, x, y)]
    model = ak.RobustRegression(ak.KernelRegression(ak.Gaussian(0.08), order=1))
    found = model(*low)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, model(x_new, x, y), atol=2e-4)


def test_outliers_do_not_move_the_fit(x64):
    """Every ninth label is moved by 1000. The first fit moves by about 1000 / 9 with it, so that
    six medians of the residuals are 670: the outliers have no weight from then on. Of one in seven
    the six medians are as large as the outliers in the first fit."""
    x, _, _, x_new = sample()
    y = np.sin(6 * x) + 0.05 * np.cos(97 * x) + 1000.0 * (np.arange(N) % 9 == 4)
    model = ak.KernelRegression(ak.Gaussian(0.1), order=1)
    robust = ak.RobustRegression(model)
    assert np.max(np.abs(robust(x_new, x, y) - np.sin(6 * x_new))) < 0.2
    assert np.max(np.abs(model(x_new, x, y) - np.sin(6 * x_new))) > 100
    delta = robust.robustness_weights(x, y)
    np.testing.assert_array_equal(delta == 0, np.arange(N) % 9 == 4)


def test_labels_that_are_fitted_exactly_have_no_scale(x64):
    """Six labels lie on a line; with one more residual of 0 than others, δ stay 1."""
    x = np.r_[np.arange(6.0), 20.0, 21.0, 22.0]
    y = np.r_[np.zeros(6), 1.0, 5.0, 2.0]
    model = ak.RobustRegression(ak.KernelRegression(ak.Boxcar(1.5)))
    np.testing.assert_array_equal(model.robustness_weights(x, y), np.ones(9))
    np.testing.assert_allclose(model(x, x, y), model.model(x, x, y), atol=1e-15)


def test_rows_out_of_reach_are_empty_and_refusals_name_what_to_use(x64):
    x, y, _, _ = sample()
    model = ak.RobustRegression(ak.KernelRegression(ak.Boxcar(0.2)))
    found = model(np.array([0.5, 9.0]), x, y)
    assert np.isfinite(found[0])
    assert np.isnan(found[1])
    with pytest.raises(ValueError, match=r"Without any it is the model itself"):
        ak.RobustRegression(model.model, iterations=0)
    fit = ak.fit(ak.RobustRegression(ak.KernelRegression(ak.Gaussian(0.1))), x, y, starts=1)
    for function in (ak.bands, ak.noise_variance):
        with pytest.raises(ValueError, match=r"got one of a RobustRegression\..*ak\.conformal"):
            function(fit, x)
    lower, upper = (getattr(ak.conformal(fit, x, level=0.9), side) for side in ("lower", "upper"))
    assert 0.85 < np.mean((lower <= y) & (y <= upper)) < 0.95
    with pytest.raises(ValueError, match=r"Try ak\.LeaveOneOut\(\)"):
        ak.GCV()(model, jnp.asarray(x)[:, None], jnp.asarray(y))
