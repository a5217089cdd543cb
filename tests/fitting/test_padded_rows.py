"""Fits of data sets of similar size share compiled programs, and padding changes no result."""

import jax
import numpy as np
import pytest
from marks import slow

import attnkernel as ak
from attnkernel._core import rows as row_buckets
from attnkernel.fitting._options import Options
from attnkernel.fitting._problem import build_problem
from attnkernel.objectives import Sample

EPS = np.finfo(np.float64).eps
CASES = {  # objective, order, columns
    "leave-one-out": (ak.LeaveOneOut(), 0, 1),
    "leave-one-out of lines in two columns": (ak.LeaveOneOut(), 1, 2),
    "AICc of lines": (ak.AICc(), 1, 1),
    "GCV in two columns": (ak.GCV(), 0, 2),
    "folds": (ak.KFold(4), 0, 1),
    "AICc of bias-reduced means": (ak.AICc(), 0, 1),
    "leave-one-out of bias-reduced lines": (ak.LeaveOneOut(), 1, 1),
}


def data(n, dim=1):
    rng = np.random.default_rng(n)
    x = rng.uniform(size=(n, dim))
    y = np.sin(6 * x).sum(axis=1) + 0.1 * rng.normal(size=n)
    return x, y, rng.uniform(0.5, 2.0, n)


def model_of(case):
    _, order, dim = CASES[case]
    model = ak.KernelRegression(ak.Gaussian(np.full(dim, 0.3)), order=order)
    return ak.models.BiasReduced(model, 4) if "bias-reduced" in case else model


def fit(n, case, weighted=False):
    x, y, weights = data(n, CASES[case][2])
    options = {"objective": CASES[case][0], "weights": weights if weighted else None}
    return ak.fit(model_of(case), x, y, **options, starts=1)


def problem_of(case, weighted):
    """The starts of a search of 37 rows, and the problem that it minimises."""
    x, y, weights = data(37, CASES[case][2])
    x, y, weights = jax.device_put((x, y, weights))
    objective = CASES[case][0].with_weights(weights) if weighted else CASES[case][0]
    parts = Sample(x, y, objective)
    options = Options(starts=3).with_defaults(model_of(case), objective, 37)
    return build_problem(model_of(case), parts, options, None)


def evaluated(cases):
    """For each case its starts, its box, and its criterion at the starts, by one program."""
    problems = [problem_of(case, weighted) for case, weighted in cases]

    @jax.jit
    def computed(problems):
        return [jax.lax.map(problem.loss, z) for z, problem in problems]

    rows = {problem.x.shape[0] for _, problem in problems}
    losses = computed(problems)
    found = [(z, problem.box, loss) for (z, problem), loss in zip(problems, losses, strict=True)]
    return rows, found


@pytest.mark.slow
@pytest.mark.parametrize("turn", [0, slow(1)])
def test_a_padded_fit_minimises_the_criterion_of_the_rows_alone(x64, monkeypatch, turn):
    """With and without weights: from the same starts, in the same box."""
    cases = [(case, (turn + i) % 2 == 0) for i, case in enumerate(CASES)][: 6 + turn]
    rows, padded = evaluated(cases)
    assert rows == {40}
    monkeypatch.setattr(row_buckets, "MAX_PADDED_ROWS", 0)
    rows, alone = evaluated(cases)
    assert rows == {37}
    for case, found, expected in zip(cases, padded, alone, strict=True):
        leaves = map(jax.tree.leaves, (found, expected))
        for one, other in zip(*leaves, strict=True):
            scale = np.max(np.abs(other))
            np.testing.assert_allclose(one, other, atol=1e4 * EPS * scale, err_msg=str(case))


@pytest.mark.slow
def test_a_padded_fit_of_weighted_rows_equals_one_of_the_rows_alone(x64, monkeypatch):
    padded = fit(37, "GCV in two columns", weighted=True)
    assert padded.x.shape[0] == len(padded.objective.weights) == 37
    monkeypatch.setattr(row_buckets, "MAX_PADDED_ROWS", 0)
    alone = fit(37, "GCV in two columns", weighted=True)
    np.testing.assert_allclose(padded.loss, alone.loss, rtol=1e-9)
    lengthscales = (fit.model.kernel.lengthscale for fit in (padded, alone))
    np.testing.assert_allclose(*lengthscales, rtol=1e-5)


def local_polynomial(at, fit):
    """Predictions of a fit without weights, by NumPy."""
    x, lengthscale = np.asarray(fit.x, float)[:, 0], float(fit.model.kernel.lengthscale[0])
    order = fit.model.order
    roots = [np.exp(-0.25 * ((x - q) / lengthscale) ** 2) for q in at]
    return [np.polyfit(x - q, fit.y, order, w=w)[-1] for q, w in zip(at, roots, strict=True)]


def test_another_number_of_rows_of_a_bucket_compiles_nothing(programs):
    case = "AICc of lines"
    first, second = fit(33, case), fit(39, case)
    first(np.linspace(0.0, 1.0, 18)), first.minima()
    programs.clear()
    third = fit(36, case)
    at = np.linspace(0.0, 1.0, 23)
    found, _ = third(at), third.minima()
    assert not programs
    np.testing.assert_allclose(found, local_polynomial(at, third), rtol=1e-3, atol=1e-4)
    assert len({float(each.loss) for each in (first, second, third)}) == 3


def test_bias_reduced_fits_share_a_program_too(programs):
    first = fit(33, "AICc of bias-reduced means")
    programs.clear()
    second = fit(38, "AICc of bias-reduced means")
    assert not programs
    assert float(first.loss) != float(second.loss)


class MeanOfAll(ak.objectives.Objective):
    """An objective of a user's own, which reads every row and no weights."""

    is_stochastic = False

    def __call__(self, model, x, y, *, key=None):
        assert x.shape[0] == 37
        return ((y - model(x, x, y, prior=ak.priors.ExcludeSelf())) ** 2).mean()


def test_rows_are_not_padded_where_something_may_read_them(x64):
    x, y, _ = data(37)
    model = ak.KernelRegression(ak.Gaussian(0.3))
    alone = ak.fit(model, x, y, objective=MeanOfAll(), starts=2)
    padded = ak.fit(model, x, y, starts=2)
    np.testing.assert_allclose(alone.loss, padded.loss, rtol=1e-9)
    assert padded.x.shape[0] == 37
    assert padded.objective.weights is None
    kernel = ak.NearestNeighbours(ak.kernels.Tricube(1.0), fraction=0.3)
    model = ak.KernelRegression(kernel.on(0) * ak.Gaussian(0.5))
    assert not model.can_pad_rows
    found, expected = jax.jit(
        lambda x, y: (model(x, x, y), ak.attend(x, x, y[:, None], kernel=model.kernel)[:, 0])
    )(x, y)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
