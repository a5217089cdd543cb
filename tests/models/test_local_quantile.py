"""Local quantiles against linear programs (HiGHS), R's quantreg, and quantiles of order 0."""

import itertools
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow
from scipy.optimize import linprog

import attnkernel as ak
from attnkernel.priors import ExcludeSelf

HERE = Path(__file__).parent
CSV_FOLDER = Path(ak.__file__).parent / "data" / "csv"
N, M = 61, 7


def sample(dim=1, n=N, m=M):
    rng = np.random.default_rng(dim)
    x = rng.uniform(-1, 1, (n, dim))
    y = np.sin(3 * x[:, 0]) + 0.3 * rng.standard_t(2, n)
    weights = rng.integers(1, 4, n) * (rng.uniform(size=n) < 0.9)
    return x, y, weights * 1.0, rng.uniform(-0.9, 0.9, (m, dim))


def design(differences, order):
    """The monomials of k − q up to a degree, along a new last axis."""
    terms = [np.ones(len(differences))]
    for degree in range(1, order + 1):
        for columns in itertools.combinations_with_replacement(range(differences.shape[1]), degree):
            terms.append(np.prod(differences[:, columns], axis=1))
    return np.stack(terms, axis=1)


def check_loss(residuals, weights, level):
    return np.sum(weights * np.where(residuals < 0, level - 1, level) * residuals)


def highs(terms, y, weights, level):
    """Coefficients of the least check loss by the simplex method, to 1e-10, and this loss."""
    terms, y, weights = (part[weights > 1e-12] for part in (terms, y, weights))
    n, count = terms.shape
    scale = np.max(weights)
    cost = np.r_[np.zeros(2 * count), level * weights, (1 - level) * weights] / scale
    equal = np.hstack([terms, -terms, np.eye(n), -np.eye(n)])
    options = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    found = linprog(cost, A_eq=equal, b_eq=y, method="highs", options=options)
    return found.x[:count] - found.x[count : 2 * count], found.fun * scale


@pytest.mark.parametrize(("dim", "order"), [(1, 1), slow(1, 2), slow(2, 1), slow(1, 0)])
def test_coefficients_are_those_of_the_linear_program(x64, dim, order):
    """At new inputs, with weights of rows, 0 among them; with each row left out; at three levels.
    The loss of the criterion is that of a loop. In one program."""
    x, y, weights, x_new = sample(dim)
    levels, kernel = (0.1, 0.5, 0.8), ak.Gaussian(0.4)

    @jax.jit
    def computed(x_new, x, y, weights):
        found = []
        for level in levels:
            model = ak.LocalQuantile(kernel, level=level, order=order)
            at_new = model.local_fit(x_new, x, y, weights=weights)
            left_out = model.local_fit(x[:M], x, y, prior=ExcludeSelf(), weights=weights)
            loss = ak.LeaveOneOut(weights=weights)(model, x, y)
            found.append((at_new, left_out, model(x_new, x, y, weights=weights), loss))
        return found

    for level, (at_new, left_out, out, loss) in zip(
        levels, computed(*map(jnp.asarray, (x_new, x, y, weights))), strict=True
    ):
        np.testing.assert_allclose(out, at_new.coefficients[:, 0, 0], rtol=1e-12)
        assert np.max(at_new.gap) < 4e-12
        for points, local, hidden in (
            (x_new, at_new, np.full(M, -1)),
            (x[:M], left_out, np.arange(M)),
        ):
            for point, beta, row in zip(points, local.coefficients[..., 0], hidden, strict=True):
                w = weights * np.exp(-0.5 * np.sum(((x - point) / 0.4) ** 2, axis=1))
                w = w * (np.arange(N) != row)
                terms = design(x - point, order)
                expected, least = highs(terms, y, w, level)
                assert check_loss(y - terms @ beta, w, level) <= least * (1 + 1e-12)
                np.testing.assert_allclose(beta, expected, rtol=1e-9, atol=1e-9)
        predicted = []
        for i in range(N):
            w = weights * np.exp(-0.5 * np.sum(((x - x[i]) / 0.4) ** 2, axis=1))
            terms = design(x - x[i], order)
            predicted.append(highs(terms, y, w * (np.arange(N) != i), level)[0][0])
        losses = [check_loss(y[i] - predicted[i], 1.0, level) for i in range(N)]
        np.testing.assert_allclose(loss, np.average(losses, weights=weights), rtol=1e-9)


def table(text):
    """The rows of `lprq.csv`, of shape (levels, inputs, (level, x, fit, slope))."""
    lines = text.splitlines()[1:]
    return np.array([line.split(",") for line in lines], float).reshape(3, 25, 4)


def test_local_linear_quantiles_of_quantreg(x64):
    """quantreg's simplex method ends at a vertex too."""
    data = ak.data.load("mcycle")
    for rows in table((HERE / "lprq.csv").read_text()):
        level, at, fit, slope = rows.T
        local = ak.LocalQuantile(ak.Gaussian(2.5), level=level[0]).local_fit(at, data.x, data.y)
        np.testing.assert_allclose(local.coefficients[:, 0, 0], fit, rtol=0, atol=1e-8)
        np.testing.assert_allclose(local.coefficients[:, 1, 0], slope, rtol=0, atol=1e-8)


@pytest.mark.cli
@pytest.mark.needs_r("quantreg")
def test_the_table_is_what_quantreg_prints():
    command = ["Rscript", "--vanilla", str(HERE / "lprq.R"), str(CSV_FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kept, now = table((HERE / "lprq.csv").read_text()), table(done.stdout)
    np.testing.assert_allclose(now, kept, rtol=1e-8, atol=1e-10)


def test_many_ties_reach_the_least_loss(x64):
    """Eleven inputs, integer labels, a kernel of equal weights: many polynomials are minima."""
    rng = np.random.default_rng(0)
    x, at = np.round(rng.uniform(-1, 1, 200) * 5) / 5, np.linspace(-0.7, 0.7, 5)
    y = np.round(2 * x + rng.normal(size=200))
    for kernel, order in ((ak.Gaussian(0.3), 1), (ak.Boxcar(0.5), 1), (ak.Gaussian(0.3), 2)):
        local = ak.LocalQuantile(kernel, level=0.3, order=order).local_fit(at, x, y)
        of_rows = np.exp(kernel.pairwise(jnp.asarray(at)[:, None], jnp.asarray(x)[:, None]))
        for point, beta, w in zip(at, local.coefficients[..., 0], of_rows, strict=True):
            terms = design((x - point)[:, None], order)
            loss = check_loss(y - terms @ beta, w, 0.3)
            assert loss <= highs(terms, y, w, 0.3)[1] * (1 + 1e-11)


def test_order_0_is_the_quantile_of_weights(x64):
    x, y, weights, x_new = sample()
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(0.3)), x, y, weights=weights)
    expected = ak.quantiles(fit, x_new, [0.2, 0.7])
    for column, level in enumerate((0.2, 0.7)):
        model = ak.LocalQuantile(fit.model.kernel, level=level, order=0)
        found = model(x_new, x, y, weights=weights)
        np.testing.assert_allclose(found, expected[:, column], rtol=1e-12)


def test_quantiles_of_a_fit_of_order_1_are_local_linear(x64):
    """Each level that of `LocalQuantile`; a weight of k is k rows."""
    x, y, weights, x_new = sample()
    levels = [0.1, 0.5, 0.9]
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(0.3), order=1), x, y, weights=weights)
    found = ak.quantiles(fit, x_new, levels)
    rows = np.repeat(np.arange(N), weights.astype(int))
    for column, level in enumerate(levels):
        model = ak.LocalQuantile(fit.model.kernel, level=level)
        expected = model(x_new, x[rows], y[rows])
        np.testing.assert_allclose(found[:, column], expected, rtol=1e-9)
    median = ak.LocalQuantile(fit.model.kernel)
    with pytest.warns(ak.FitWarning, match="has no slope"):
        own = ak.fit(median, x, y)
    np.testing.assert_allclose(ak.quantiles(own, x_new, 0.5)[:, 0], own(x_new), rtol=1e-9)
    assert own.loss <= ak.LeaveOneOut()(median, jnp.asarray(x), jnp.asarray(y))
    with pytest.raises(ValueError, match="a LocalQuantile, or a smoother whose weights"):
        ak.quantiles(ak.fit(ak.BiasReduced(fit.model, 2), x, y, starts=1), x_new, levels)


def test_derivatives_are_those_of_the_polynomial_through_its_labels(x64):
    x, y, _, x_new = sample()
    model = ak.LocalQuantile(ak.Gaussian(0.3), level=0.3)

    @jax.jit
    def slopes(q, lengthscale, y):
        def total(q, lengthscale, y):
            return jnp.sum(ak.LocalQuantile(ak.Gaussian(lengthscale), level=0.3)(q, x, y))

        return jax.grad(total, argnums=(0, 1, 2))(q, lengthscale, y)

    by_query, by_lengthscale, by_label = slopes(jnp.asarray(x_new), 0.3, jnp.asarray(y))
    np.testing.assert_allclose(
        by_query[:, 0], model.local_fit(x_new, x, y).coefficients[:, 1, 0], rtol=1e-9
    )
    assert by_lengthscale == 0
    assert np.sum(by_label != 0) <= 2 * M
    np.testing.assert_allclose(np.sum(by_label), M, rtol=1e-9)  # a constant is reproduced
    ahead = np.sum(model(x_new, x, y + 1e-6 * np.asarray(by_label)))
    change = 1e-6 * np.sum(np.asarray(by_label) ** 2)
    np.testing.assert_allclose(ahead - np.sum(model(x_new, x, y)), change, rtol=1e-4)


def test_windows_without_labels_and_with_one_input(x64):
    x = np.r_[np.zeros(5), 4.0, 4.5]
    y = np.r_[1.0, 5.0, 2.0, 3.0, 4.0, 7.0, 8.0]
    model = ak.LocalQuantile(ak.Boxcar(1.0))
    with pytest.warns(ak.ExtrapolationWarning, match="do not determine all terms"):
        found = model(np.array([0.2, 9.0, 4.25]), x, y)
    np.testing.assert_allclose(found, [3.0, np.nan, 7.5], rtol=1e-9)


def test_float32_several_labels_and_maps(x64):
    x, y, _, x_new = sample()
    model = ak.LocalQuantile(ak.Gaussian(0.3), level=0.7)
    both = np.stack([y, -y], axis=1)
    expected = model(x_new, x, both)
    low = [part.astype(np.float32) for part in (x_new, x, both)]
    found = model(*low)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)
    mapped = jax.jit(jax.vmap(lambda y: model(x_new, x, y), in_axes=1, out_axes=1))(both)
    np.testing.assert_allclose(mapped, expected, rtol=1e-9)
