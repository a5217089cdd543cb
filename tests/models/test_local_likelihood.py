"""Local likelihood against R's locfit, Newton's method in NumPy, and removal of rows."""

import csv
import functools
import itertools
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow

import attnkernel as ak
from attnkernel.priors import ExcludeSelf

HERE = Path(__file__).parent
CSV_FOLDER = Path(ak.__file__).parent / "data" / "csv"
FAMILIES = {"binomial": ak.Binomial(), "poisson": ak.Poisson(), "gamma": ak.Gamma()}
N, M = 61, 11


def labels_of(name, eta, rng):
    """Labels of a family whose linear predictor is η."""
    if name == "binomial":
        return rng.binomial(3, 1.0 / (1.0 + np.exp(-eta))) / 3.0
    return rng.poisson(np.exp(eta)) * 1.0 if name == "poisson" else rng.gamma(2.0, np.exp(eta) / 2)


def sample(name, dim=2, n=N, m=M):
    rng = np.random.default_rng(len(name) + dim)
    x = rng.uniform(-2, 2, (n, dim))
    y = labels_of(name, 0.5 + np.sin(x[:, 0]), rng)
    weights = rng.integers(1, 4, n) * (rng.uniform(size=n) < 0.9)
    return x, y, weights.astype(float), rng.uniform(-1.8, 1.8, (m, dim))


# ---------------------------------------------------------------------------- the formula


def design(differences, order):
    """The monomials of k - q up to a degree, along a new last axis."""
    terms = [np.ones(differences.shape[:-1])]
    for degree in range(1, order + 1):
        for columns in itertools.combinations_with_replacement(
            range(differences.shape[-1]), degree
        ):
            terms.append(np.prod(differences[..., columns], axis=-1))
    return np.stack(terms, axis=-1)


# of y and η: the score, its negative derivative; of η: the mean
FORMULAS = {
    "binomial": (
        lambda y, eta: (y - 1 / (1 + np.exp(-eta)), 1 / (2 + 2 * np.cosh(eta))),
        lambda eta: 1 / (1 + np.exp(-eta)),
        lambda mean: np.log(mean / (1 - mean)),
    ),
    "poisson": (lambda y, eta: (y - np.exp(eta), np.exp(eta)), np.exp, np.log),
    "gamma": (lambda y, eta: (y * np.exp(-eta) - 1, y * np.exp(-eta)), np.exp, np.log),
}


def newton(name, x_new, x, y, lengthscale, order, weights):
    """Coefficients at new inputs, (queries, terms); `weights` broadcast against (queries, keys)."""
    derivatives, _, link = FORMULAS[name]
    weights = np.broadcast_to(weights, (len(x_new), len(x)))
    found = []
    for point, w in zip(x_new, weights, strict=True):
        w = w * np.exp(-0.5 * np.sum(((x - point) / lengthscale) ** 2, axis=1))
        terms = design(x - point, order)
        beta = np.zeros(terms.shape[1])
        beta[0] = link(np.sum(w * y) / np.sum(w))
        for _ in range(60):
            score, curvature = derivatives(y, terms @ beta)
            step = np.linalg.solve((terms.T * (w * curvature)) @ terms, terms.T @ (w * score))
            beta = beta + min(1.0, 1.0 / np.max(np.abs(step))) * step
        found.append(beta)
    return np.array(found)


@pytest.mark.parametrize(
    ("name", "order"),
    [("binomial", 1), ("poisson", 2), slow("binomial", 2), slow("poisson", 1), ("gamma", 1)],
)
def test_coefficients_maximise_the_local_likelihood(x64, name, order):
    """At new inputs, at rows with each left out, and with weights of rows, 0 among them."""
    x, y, weights, x_new = sample(name)
    model = ak.LocalLikelihood(ak.Gaussian(0.9), family=FAMILIES[name], order=order)

    @jax.jit
    def computed(x_new, x, y, weights):
        at_new = model.local_fit(x_new, x, y, weights=weights)
        left_out = model.local_fit(x, x, y, prior=ExcludeSelf(), weights=weights)
        loss = ak.LeaveOneOut(weights=weights)(model, x, y)
        return at_new, left_out, model(x_new, x, y, weights=weights), loss

    at_new, left_out, mean, loss = computed(x_new, x, y, weights)
    expected = newton(name, x_new, x, y, 0.9, order, weights)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-10)
    close(at_new.coefficients[..., 0], expected)
    close(mean, FORMULAS[name][1](expected[:, 0]))
    others = weights * (1 - np.eye(N))
    removed = newton(name, x, x, y, 0.9, order, others)
    close(left_out.coefficients[..., 0], removed)
    deviance = FAMILIES[name].deviance(
        jnp.asarray(FORMULAS[name][1](removed[:, 0])), jnp.asarray(y)
    )
    close(loss, np.average(deviance, weights=weights))
    assert not np.any(at_new.deficient | at_new.empty)


# ---------------------------------------------------------------------------- R's locfit


def locfit_cases():
    """The data of `locfit.R`: inputs, labels, weights, kernel."""
    wage, faithful = (
        np.genfromtxt(CSV_FOLDER / f"{name}.csv", delimiter=",", names=True, dtype=None)
        for name in ("wage1", "faithful")
    )
    exper, educ = wage["exper"], wage["educ"]
    married = wage["married"] == "Married"
    distinct, group = np.unique(exper, return_inverse=True)
    trials = np.bincount(group).astype(float)
    return {
        "binomial": (distinct, np.bincount(group, married) / trials, trials, ak.Gaussian(20 / 2.5)),
        "poisson": (exper, educ, np.ones_like(exper), ak.Tricube(15.0)),
        "gamma": (
            faithful["eruptions"],
            faithful["waiting"] * 1.0,
            np.ones(len(faithful)),
            ak.Gaussian(2 / 2.5),
        ),
    }


def locfit_table(text):
    """The rows of `locfit.csv` by family and order: row, fit, standard error, left-out fit."""
    found = {}
    for line in csv.DictReader(text.splitlines()):
        numbers = [float(line[name]) for name in ("row", "fit", "se", "left_out")]
        found.setdefault((line["family"], int(line["order"])), []).append(numbers)
    return {key: np.array(rows).T for key, rows in found.items()}


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("binomial", 0),
        ("binomial", 1),
        ("poisson", 2),
        ("gamma", 2),
        *[slow(*case) for case in (("binomial", 2), ("poisson", 0), ("poisson", 1))],
        *[slow("gamma", order) for order in (0, 1)],
    ],
)
def test_means_and_left_out_means_equal_those_of_locfit(x64, name, order):
    """locfit stops its Newton steps at a relative 1e-6. Order 0 needs none."""
    x, y, weights, kernel = locfit_cases()[name]
    row, fit, _, left_out = locfit_table((HERE / "locfit.csv").read_text())[name, order]
    model = ak.LocalLikelihood(kernel, family=FAMILIES[name], order=order)

    @jax.jit
    def computed(x, y, weights):
        left_out = model(x, x, y, prior=ExcludeSelf(), weights=weights)
        return model(x, x, y, weights=weights), left_out

    found = np.asarray(computed(x, y, weights))[:, row.astype(int)]
    np.testing.assert_allclose(found, [fit, left_out], rtol=2e-6 if order else 1e-13)


@pytest.mark.cli
@pytest.mark.needs_r("locfit")
def test_the_table_is_what_locfit_prints():
    command = ["Rscript", "--vanilla", str(HERE / "locfit.R"), str(CSV_FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kept, now = (locfit_table(text) for text in ((HERE / "locfit.csv").read_text(), done.stdout))
    assert kept.keys() == now.keys()
    for key, rows in kept.items():
        np.testing.assert_allclose(now[key], rows, rtol=1e-8)


# ---------------------------------------------------------------------------- properties


@pytest.mark.parametrize("name", FAMILIES)
def test_order_0_is_the_local_mean(x64, name):
    x, y, weights, x_new = sample(name)
    model = ak.LocalLikelihood(ak.Gaussian(0.9), family=FAMILIES[name])
    mean = ak.KernelRegression(ak.Gaussian(0.9))(x_new, x, y, weights=weights)
    np.testing.assert_allclose(model(x_new, x, y, weights=weights), mean, rtol=1e-14)
    eta = model.local_fit(x_new, x, y, weights=weights).coefficients[:, 0, 0]
    np.testing.assert_allclose(FAMILIES[name].mean(eta), mean, rtol=1e-12)


def test_a_weight_of_k_is_k_equal_rows_and_of_0_none(x64):
    x, y, weights, x_new = sample("binomial")
    model = ak.LocalLikelihood(ak.Gaussian(0.9), family=ak.Binomial(), order=1)
    found = model(x_new, x, y, weights=weights)
    repeated = np.repeat(np.arange(N), weights.astype(int))
    np.testing.assert_allclose(found, model(x_new, x[repeated], y[repeated]), rtol=1e-10)
    others = np.where(weights > 0, y, 1.0 - y)
    np.testing.assert_array_equal(found, model(x_new, x, others, weights=weights))
    kept = weights > 0
    np.testing.assert_allclose(found, model(x_new, x[kept], y[kept], weights=weights[kept]))


def test_labels_and_queries_are_fitted_one_by_one(x64):
    x, y, _, x_new = sample("poisson")
    both = np.stack([y, y[::-1] + 1.0], axis=1)
    model = ak.LocalLikelihood(ak.Gaussian(0.9), family=ak.Poisson(), order=1)
    found = model(x_new, x, both)
    assert found.shape == (M, 2)
    for column in range(2):
        np.testing.assert_allclose(found[:, column], model(x_new, x, both[:, column]), rtol=1e-12)
    assert model(x_new[:0], x, both).shape == (0, 2)


def test_chunks_of_queries_do_not_change_the_fit(x64, monkeypatch):
    x, y, _, x_new = sample("gamma")
    model = ak.LocalLikelihood(ak.Gaussian(0.9), family=ak.Gamma(), order=1)
    whole = model(x_new, x, y)
    monkeypatch.setattr("attnkernel.attention._windows.MAX_CHUNK_NUMBERS", 1000)
    jax.clear_caches()
    np.testing.assert_allclose(model(x_new, x, y), whole, rtol=1e-13)
    jax.clear_caches()


@pytest.mark.parametrize(("name", "order"), [("binomial", 1), ("gamma", 1), slow("poisson", 2)])
def test_derivatives_equal_finite_differences(x64, name, order):
    """First in the lengthscale, inputs, labels and queries; second in the lengthscale."""
    x, y, _, x_new = sample(name)
    y = 0.1 + 0.8 * y

    @jax.jit
    def computed(log_lengthscale, x, y, x_new):
        def loss(log_lengthscale, x, y, x_new):
            kernel = ak.Gaussian(jnp.exp(log_lengthscale))
            model = ak.LocalLikelihood(kernel, family=FAMILIES[name], order=order)
            return jnp.sum(jnp.sin(model(x_new, x, y)))

        arguments = log_lengthscale, x, y, x_new
        return jax.grad(loss, (0, 1, 2, 3))(*arguments), jax.hessian(loss)(*arguments)

    def expected_loss(log_lengthscale, x, y, x_new):
        beta = newton(name, x_new, x, y, np.exp(log_lengthscale), order, 1.0)
        return np.sum(np.sin(FORMULAS[name][1](beta[:, 0])))

    at = (np.float64(0.1), x, y, x_new)
    slopes, curvature = computed(*map(jnp.asarray, at))
    rng = np.random.default_rng(1)
    for argument, slope in enumerate(slopes):
        direction = rng.normal(size=np.shape(at[argument]))

        def moved(step, argument=argument, direction=direction):
            changed = list(at)
            changed[argument] = at[argument] + step * direction
            return expected_loss(*changed)

        expected = (moved(1e-5) - moved(-1e-5)) / 2e-5
        np.testing.assert_allclose(np.sum(slope * direction), expected, rtol=1e-6, atol=1e-8)
    low, middle, high = (expected_loss(0.1 + step, x, y, x_new) for step in (-1e-3, 0, 1e-3))
    np.testing.assert_allclose(curvature, (low - 2 * middle + high) / 1e-6, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------------- hard windows


@pytest.mark.parametrize(("dtype", "least"), [("float64", 1e-13), ("float32", 1e-5)])
@pytest.mark.parametrize("order", [1, slow(2)])
def test_separated_labels_have_a_bounded_fit_and_finite_derivatives(x64, dtype, least, order):
    """Labels 0 left of 1 and 1 right of it, within a hole of the design: the maximum is at
    infinity in windows of both, and where all labels are equal."""
    x = np.concatenate([np.linspace(0.0, 0.8, 9), np.linspace(1.2, 2.0, 9)]).astype(dtype)
    y = (x > 1).astype(dtype)
    x_new = np.array([0.0, 0.9, 1.1, 2.0], dtype)

    @jax.jit
    def computed(lengthscale, x_new, x, y):
        def predict(lengthscale, y):
            model = ak.LocalLikelihood(
                ak.Epanechnikov(lengthscale), family=ak.Binomial(), order=order
            )
            return model(x_new, x, y)

        loss = lambda *at: ak.LeaveOneOut()(  # noqa: E731
            ak.LocalLikelihood(ak.Epanechnikov(at[0]), family=ak.Binomial(), order=order),
            x[:, None],
            at[1],
        )
        return (
            predict(lengthscale, y),
            jax.jacrev(predict, (0, 1))(lengthscale, y),
            jax.grad(loss, (0, 1))(lengthscale, y),
        )

    mean, *slopes = computed(jnp.asarray(0.7, dtype), x_new, x, y)
    assert mean.dtype == dtype
    assert 0.0 <= mean[0] < least
    assert mean[1] < 0.5 < mean[2]
    assert 1.0 - least < mean[3] <= 1.0
    assert all(np.all(np.isfinite(part)) for part in jax.tree.leaves(slopes))


def test_counts_of_zero_in_reach_predict_zero(x64):
    x = np.linspace(0.0, 4.0, 41)
    y = np.where(x > 2, 5.0, 0.0)
    model = ak.LocalLikelihood(ak.Epanechnikov(0.5), family=ak.Poisson(), order=1)
    mean = model(np.array([1.0, 3.0]), x, y)
    np.testing.assert_allclose(mean, [0.0, 5.0], rtol=1e-12, atol=1e-100)
    settled = model.local_fit(np.array([1.0]), x, y).coefficients[0, :, 0]
    np.testing.assert_array_equal(settled, [jnp.log(ak.Poisson().inside(jnp.zeros(()))), 0.0])
    assert np.isfinite(ak.LeaveOneOut()(model, jnp.asarray(x)[:, None], jnp.asarray(y)))


@pytest.mark.parametrize("order", [0, 1])
def test_empty_windows_follow_the_policy(x64, order):
    x, y = np.linspace(0.0, 1.0, 11), np.linspace(1.0, 2.0, 11)
    predict = lambda on_empty: ak.LocalLikelihood(  # noqa: E731
        ak.Boxcar(0.25), family=ak.Gamma(), order=order, on_empty=on_empty
    )(np.array([0.5, 7.0]), x, y)
    assert np.isnan(predict("nan")[1])
    np.testing.assert_allclose(predict("nearest")[1], 2.0)
    np.testing.assert_allclose(predict("mean"), [predict("nan")[0], 1.5])
    with pytest.raises(Exception, match="no label within reach"):
        jax.block_until_ready(predict("raise"))


def test_a_design_that_does_not_determine_the_slope_gives_the_local_mean(x64):
    """Two rows at one input: order 1 is of lower order there, with a flag and a warning."""
    x, y = np.array([0.0, 0.0, 1.0, 1.2]), np.array([2.0, 4.0, 1.0, 1.0])
    model = ak.LocalLikelihood(ak.Boxcar(0.5), family=ak.Poisson(), order=1)
    local = model.local_fit(np.zeros(1), x, y)
    assert local.deficient[0]
    np.testing.assert_allclose(local.coefficients[0, 0, 0], np.log(3.0), rtol=1e-12)
    with pytest.warns(ak.ExtrapolationWarning, match="local linear, Poisson"):
        model(np.zeros(1), x, y)


def test_float32_is_near_float64(x64):
    x, y, _, x_new = sample("binomial")
    model = ak.LocalLikelihood(ak.Gaussian(0.9), family=ak.Binomial(), order=1)
    single = model(*(part.astype(np.float32) for part in (x_new, x, y)))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, model(x_new, x, y), atol=1e-5)


# ---------------------------------------------------------------------------- fit


def test_fit_minimises_the_leave_one_out_deviance(x64):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, 90)
    y = rng.binomial(1, 1 / (1 + np.exp(-2.5 * np.sin(2 * x)))).astype(float)
    fit = ak.fit(ak.LocalLikelihood(ak.Gaussian(0.5), family=ak.Binomial(), order=1), x, y)
    lengthscales = np.geomspace(0.1, 4.0, 60)
    losses = ak.objectives.profile(fit.model, fit.x, fit.y, lengthscales, objective=fit.objective)
    assert fit.loss <= np.min(losses) + 1e-9
    assert np.min(losses) < min(losses[0], losses[-1])
    (best, loss), *_ = fit.minima()
    np.testing.assert_allclose(best.kernel.lengthscale, fit.model.kernel.lengthscale)
    np.testing.assert_allclose(loss, ak.LeaveOneOut()(fit.model, fit.x, fit.y))
    squared = ak.LeaveOneOut(score=ak.squared_error)(fit.model, fit.x, fit.y)
    left_out = fit.model(x, x, y, prior=ExcludeSelf())
    np.testing.assert_allclose(squared, np.mean((y - left_out) ** 2))


def test_another_number_of_rows_in_a_bucket_compiles_nothing(x64, programs):
    """A fit and a prediction, which equal those without padding."""
    model = ak.LocalLikelihood(ak.Gaussian(0.5), family=ak.Poisson(), order=1)
    found = []
    for n in (50, 53):
        rng = np.random.default_rng(n)
        x, x_new = rng.uniform(-2, 2, n), rng.uniform(-2, 2, n - 40)
        y = labels_of("poisson", 2.0 + np.sin(2 * x), rng)
        before = len(programs)
        fit = ak.fit(model, x, y)
        found.append(fit(x_new))
        assert n == 50 or programs[before:] == []
    unpadded = jax.jit(lambda x, y: fit.model(x_new, x, y))(x, y)
    np.testing.assert_allclose(found[1], unpadded, rtol=1e-10)
    loss = jax.jit(lambda *data: ak.LeaveOneOut()(fit.model, *data))(fit.x, fit.y)
    np.testing.assert_allclose(fit.loss, loss, rtol=1e-10)


# ---------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("family", "bad", "words"),
    [
        (ak.Binomial(), 1.5, r"from 0 to 1 for the family Binomial; row 3 .* has 1.5"),
        (ak.Poisson(), -1.0, r"at least 0 for the family Poisson; row 3 .* has -1.0"),
        (ak.Gamma(), 0.0, r"above 0 for the family Gamma; row 3 .* has 0.0"),
    ],
)
def test_labels_that_a_family_does_not_have_are_refused(x64, family, bad, words):
    x, y = np.linspace(0.0, 1.0, 9), np.where(np.arange(9) == 3, bad, np.linspace(0.2, 0.8, 9))
    model = ak.LocalLikelihood(ak.Gaussian(0.5), family=family, order=1)
    for call in (
        lambda: ak.fit(model, x, y),
        lambda: model(x, x, y),
        lambda: model.local_fit(x, x, y),
        lambda: ak.LeaveOneOut()(model, jnp.asarray(x)[:, None], jnp.asarray(y)),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    weights = (np.arange(9) != 3).astype(float)  # a row of weight 0 is not there
    assert np.all(np.isfinite(model(x, x, y, weights=weights)))


def test_a_family_is_an_object(as_users_run_it):
    with pytest.raises(ValueError, match="family must be a Family"):
        ak.LocalLikelihood(ak.Gaussian(0.5), family="binomial")
    model = ak.LocalLikelihood(ak.Gaussian(0.5), family=ak.Binomial())
    with pytest.raises(ValueError, match="needs the hat matrix"):
        ak.AICc()(model, jnp.ones((4, 1)), jnp.ones(4))
