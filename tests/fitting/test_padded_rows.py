"""Fits of data sets of similar size share compiled programs, and padding changes no result."""

import numpy as np
import pytest

import attnkernel as ak
from attnkernel._core import row_buckets

CASES = {  # objective, order, columns, starts
    "leave-one-out": (ak.LeaveOneOut(), 0, 1, 10),
    "leave-one-out of lines in two columns": (ak.LeaveOneOut(), 1, 2, 1),
    "AICc of lines": (ak.AICc(), 1, 1, 1),
    "GCV in two columns": (ak.GCV(), 0, 2, 10),
    "folds": (ak.KFold(4), 0, 1, 1),
    "AICc of bias-reduced lines": (ak.AICc(), 1, 1, 1),
    "leave-one-out, bias-reduced": (ak.LeaveOneOut(), 0, 1, 1),
}


def data(n, dim):
    rng = np.random.default_rng(n)
    x = rng.uniform(size=(n, dim))
    y = np.sin(6 * x).sum(axis=1) + 0.1 * rng.normal(size=n)
    return x, y, rng.uniform(0.5, 2.0, n)


def fit(n, case, weighted):
    objective, order, dim, starts = CASES[case]
    x, y, weights = data(n, dim)
    model = ak.KernelRegression(ak.Gaussian(np.full(dim, 0.3)), order=order)
    model = ak.BiasReduced(model, 4) if "bias-reduced" in case else model
    options = {"objective": objective, "weights": weights if weighted else None}
    return ak.fit(model, x, y, **options, starts=starts)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_padded_fit_equals_one_of_the_rows_alone(x64, monkeypatch, case, weighted):
    padded = fit(37, case, weighted)
    assert padded.x.shape[0] == 37
    assert (padded.objective.weights is not None) == weighted
    monkeypatch.setattr(row_buckets, "MAX_PADDED_ROWS", 0)
    alone = fit(37, case, weighted)
    np.testing.assert_allclose(padded.loss, alone.loss, rtol=1e-9)
    np.testing.assert_allclose(
        padded.model.kernel.lengthscale, alone.model.kernel.lengthscale, rtol=1e-5
    )


def local_polynomial(at, fit):
    """Predictions of a fit without weights, by NumPy."""
    x, lengthscale = np.asarray(fit.x, float)[:, 0], float(fit.model.kernel.lengthscale[0])
    order = fit.model.order
    roots = [np.exp(-0.25 * ((x - q) / lengthscale) ** 2) for q in at]
    return [np.polyfit(x - q, fit.y, order, w=w)[-1] for q, w in zip(at, roots, strict=True)]


@pytest.mark.parametrize("case", ["leave-one-out", "AICc of lines"])
def test_another_number_of_rows_of_a_bucket_compiles_nothing(programs, case):
    first, second = fit(33, case, False), fit(39, case, False)
    first(np.linspace(0.0, 1.0, 18)), first.minima()
    programs.clear()
    third = fit(36, case, False)
    at = np.linspace(0.0, 1.0, 23)
    found, _ = third(at), third.minima()
    assert not programs
    np.testing.assert_allclose(found, local_polynomial(at, third), rtol=1e-3, atol=1e-4)
    assert len({float(each.loss) for each in (first, second, third)}) == 3


def test_bias_reduced_fits_share_a_program_too(programs):
    case = "AICc of bias-reduced lines"
    first = fit(33, case, False)
    programs.clear()
    second = fit(38, case, False)
    assert not programs
    assert float(first.loss) != float(second.loss)


class MeanOfAll(ak.Objective):
    """An objective of a user's own, which reads every row and no weights."""

    is_stochastic = False

    def __call__(self, model, x, y, *, key=None):
        assert x.shape[0] == 37
        return ((y - model(x, x, y, prior=ak.priors.ExcludeSelf())) ** 2).mean()


def test_rows_are_not_padded_where_something_may_read_them(x64):
    x, y, _ = data(37, 1)
    alone = ak.fit(ak.KernelRegression(ak.Gaussian(0.3)), x, y, objective=MeanOfAll())
    padded = ak.fit(ak.KernelRegression(ak.Gaussian(0.3)), x, y)
    np.testing.assert_allclose(alone.loss, padded.loss, rtol=1e-9)
    kernel = ak.NearestNeighbours(ak.Tricube(1.0), fraction=0.3)
    model = ak.KernelRegression(kernel.on(0) * ak.Gaussian(0.5))
    assert not model.can_pad_rows
    np.testing.assert_allclose(
        model(x, x, y), ak.attend(x, x, y[:, None], kernel=model.kernel)[:, 0], rtol=1e-9
    )
