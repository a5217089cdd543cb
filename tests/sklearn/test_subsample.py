"""The search of `KernelRegressor` on a sample of the rows, and the lengthscales for all of them."""

import numpy as np
import pytest
from least_squares import local_polynomial
from marks import slow

import attnkernel as ak
from attnkernel.sklearn import KernelClassifier, KernelRegressor

pytestmark = pytest.mark.filterwarnings("ignore::attnkernel.FitWarning")

N, M = 230, 60


def draw(n, dim, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(n, dim))
    return x, np.sin(6 * x[:, 0]) + x[:, -1] + 0.1 * rng.normal(size=n)


@pytest.mark.parametrize(
    ("options", "bias"),
    [
        ({"order": 0}, 2),
        slow({"order": 2}, 4),
        slow({"order": 1, "iterations": 2, "objective": "gcv"}, 4),
    ],
)
def test_lengthscales_of_a_sample_shrink_at_the_rate_of_the_best_ones(options, bias):
    x, y = draw(N, 2)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, N)
    options = {"per_dimension": False, "starts": 1, **options}
    model = KernelRegressor(subsample=M, **options).fit(x, y, sample_weight=weights)
    order = np.lexsort(x.T[::-1])
    of_sample = [np.flatnonzero(np.all(x == row, axis=1))[0] for row in np.array(model.fit_.x)]
    part = np.searchsorted(np.arange(M + 1) * N // M, np.argsort(order)[of_sample], "right")
    assert list(part) == list(range(1, M + 1))  # one row of each of M equal parts
    rows = x[of_sample], y[of_sample], weights[of_sample]
    of_rows = KernelRegressor(subsample=None, **options).fit(*rows)
    shrunk = of_rows.lengthscale_ * (M / N) ** (1 / (2 + 2 * bias))
    np.testing.assert_allclose(model.lengthscale_, shrunk, rtol=1e-9)


@pytest.mark.slow
def test_predictions_are_from_all_rows():
    x, y = draw(N, 2)
    model = KernelRegressor(order=1, starts=1, subsample=M).fit(x, y)
    at = np.random.default_rng(2).uniform(0.3, 0.7, (5, 2))
    expected = local_polynomial(at, x, np.broadcast_to(model.lengthscale_, 2), 1) @ y
    np.testing.assert_allclose(model.predict(at), expected, rtol=1e-7)


@pytest.mark.slow
def test_a_sample_of_a_grid_holds_every_value_of_its_second_column():
    grid = np.stack(np.meshgrid(np.arange(60.0), np.arange(4.0), indexing="ij"), -1).reshape(-1, 2)
    model = KernelRegressor(order=0, starts=1, subsample=60).fit(grid, grid[:, 1] ** 2)
    counts = np.unique(np.array(model.fit_.x)[:, 1], return_counts=True)[1]
    assert len(counts) == 4
    assert min(counts) > 5


@pytest.mark.slow
def test_rows_are_sampled_only_where_no_fast_sum_applies():
    x, y = draw(2500, 1)
    few = {"starts": 1, "subsample": M}
    assert len(KernelRegressor(order=0, **few).fit(x, y).fit_.x) == len(x)
    assert len(KernelRegressor("cauchy", order=0, **few).fit(x, y).fit_.x) == M


def test_another_number_of_rows_compiles_nothing_in_the_search(programs):
    model = KernelRegressor(order=0, starts=1, subsample=M)
    model.fit(*draw(N, 2))
    programs.clear()
    model.fit(*draw(N + 60, 2, seed=4))
    assert len(programs) == 0


@pytest.mark.slow
def test_a_classifier_and_a_kernel_object_are_sampled():
    x, y = draw(N, 2)
    labels = np.where(y > np.median(y), "high", "low")
    for model, target in (
        (KernelClassifier(starts=1, subsample=M), labels),
        (KernelRegressor(ak.kernels.Matern32(0.3), order=0, starts=1, subsample=M), y),
    ):
        fitted = model.fit(x, target)
        assert len(fitted.fit_.x) == M
        assert fitted.score(x, target) > 0.8


def test_a_sample_of_two_rows_is_refused():
    with pytest.raises(ValueError, match="subsample"):
        KernelRegressor(subsample=2).fit(*draw(N, 1))
