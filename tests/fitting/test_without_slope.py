"""Criteria without a slope, as of weights that are 0 or 1: searched on a grid, never converged."""

import re

import jax
import numpy as np
import pytest
from marks import slow

import attnkernel as ak

BOXCAR = ak.KernelRegression(ak.kernels.Boxcar(0.3))
SAID = "no slope in a parameter.*: kernel.lengthscale"


def sample(seed, n=60):
    rng = np.random.default_rng(seed)
    x = rng.random(n) if seed % 2 else rng.normal(size=n)
    return x, np.sin(6 * x) + 0.3 * rng.normal(size=n)


def least_of_all_widths(distances, y, lower=0.0):
    """Leave-one-out with every set of neighbours that a width from `lower` can give, by NumPy."""
    np.fill_diagonal(distances, np.inf)
    best = np.inf
    for width in np.unique(distances[np.isfinite(distances)]):
        weights = distances <= width * (1 + 1e-12)
        if width > lower and np.all(weights.any(axis=1)):
            best = min(best, np.mean((y - weights @ y / weights.sum(axis=1)) ** 2))
    return best


@pytest.mark.filterwarnings("ignore:the best value found lies on a bound")
@pytest.mark.parametrize("seed", [0, slow(1)])
def test_boxcar_is_fitted_over_all_its_widths(x64, seed):
    x, y = sample(seed)
    with pytest.warns(ak.FitWarning, match=SAID):
        fit = ak.fit(BOXCAR, x, y, objective=ak.LeaveOneOut())
    lower = float(BOXCAR.search_box(np.asarray(fit.x))[0].kernel.lengthscale)
    assert float(fit.loss) <= 1.001 * least_of_all_widths(np.abs(x[:, None] - x), y, lower)
    again = jax.jit(ak.LeaveOneOut().__call__)(fit.model, fit.x, fit.y)
    np.testing.assert_allclose(fit.loss, again, rtol=1e-12)
    losses = np.asarray(fit.starts.loss)
    assert fit.history["loss"][-1] == float(fit.loss) == np.min(losses)
    assert not np.any(fit.starts.converged)


@pytest.mark.slow
def test_nearest_neighbours_of_a_boxcar_are_fitted_over_all_its_widths(x64):
    x, y = sample(1)
    model = ak.KernelRegression(ak.NearestNeighbours(ak.kernels.Boxcar(1.0), neighbours=8))
    with pytest.warns(ak.FitWarning, match="no slope in a parameter.*: kernel.kernel.lengthscale"):
        fit = ak.fit(model, x, y, objective=ak.LeaveOneOut())
    distances = np.abs(x[:, None] - x)
    distances /= np.sort(distances, axis=1)[:, 7:8]
    assert float(fit.loss) <= 1.001 * least_of_all_widths(distances, y)


@pytest.mark.filterwarnings("ignore::attnkernel.FitWarning")
def test_a_grid_along_one_parameter_and_a_search_along_the_other(x64):
    x = np.random.default_rng(0).random((50, 2))
    y = np.sin(6 * x[:, 0]) + np.cos(3 * x[:, 1]) + 0.2 * np.random.default_rng(1).normal(size=50)
    model = ak.KernelRegression(ak.kernels.Boxcar(0.3).on(0) * ak.Gaussian(0.3).on(1))
    fit = ak.fit(model, x, y, objective=ak.LeaveOneOut())
    (sentence,) = fit.warnings()
    assert sentence.endswith(": kernel.first.kernel.lengthscale.")
    assert float(fit.loss) <= 1.01 * least_on_a_grid(x, y, np.geomspace(0.02, 5.0, 60))


def least_on_a_grid(x, y, lengthscales):
    """The least leave-one-out criterion over widths of a box and lengthscales, by NumPy."""
    first, second = (np.abs(x[:, None, d] - x[None, :, d]) for d in range(2))
    np.fill_diagonal(first, np.inf)
    near = (first < lengthscales[:, None, None]) * 1.0
    bells = np.exp(-0.5 * (second / lengthscales[:, None, None]) ** 2)
    mass = np.einsum("aij,bij->abi", near, bells)
    total = np.einsum("aij,bij,j->abi", near, bells, y)
    has_all = (mass > 0).all(axis=2)  # every row has a neighbour
    return np.min(np.mean((y - total[has_all] / mass[has_all]) ** 2, axis=1))


@pytest.mark.slow
def test_starts_alone_are_compared_inside_transformations_and_of_many_fits(x64):
    x, y = sample(0)
    fit = jax.jit(lambda x, y: ak.fit(BOXCAR, x, y, objective=ak.LeaveOneOut()))(x, y)
    assert not np.any(fit.starts.converged)
    assert any(re.search(SAID, sentence) for sentence in fit.warnings())
    with pytest.warns(ak.FitWarning, match="starts were compared.*: kernel.lengthscale"):
        ak.fit_many(
            BOXCAR,
            np.stack([x, x])[:, :, None],
            np.stack([y, -y]),
            objective=ak.LeaveOneOut(),
            in_axes=(None, 0, None),
            key=jax.device_put(np.zeros((2, 2), np.uint32)),
        )


def test_a_slope_is_not_missed_where_there_is_one(x64):
    x, y = sample(3)
    model = ak.KernelRegression(ak.Gaussian(0.3))
    fit = ak.fit(model, x, y, objective=ak.LeaveOneOut(), starts=2)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(fit.starts.without_slope))
    assert fit.warnings() == []
