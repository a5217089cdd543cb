"""The default of `KernelRegressor`: candidates by order and kind of lengthscales, against NumPy."""

import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from least_squares import local_polynomial
from marks import slow

import attnkernel as ak
from attnkernel.sklearn import KernelRegressor
from attnkernel.sklearn._candidates import fit_on_line

# the lengthscale of a column without effect ends on its upper bound, which is a warning
pytestmark = pytest.mark.filterwarnings("ignore::attnkernel.FitWarning")

N, M, D = 31, 7, 2
rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, (N, D))
Y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=N)


def curve(x, rng):
    return np.sin(9 * x[:, 0]) + 0.1 * rng.normal(size=len(x))  # column 1 has no effect


def ripple(x, rng):  # without the penalty, two lengthscales would be chosen
    return np.sin(6 * np.hypot(*(x.T - 0.5))) + 0.1 * rng.normal(size=len(x))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "is_common", "order"), [(ripple, True, 1), slow(curve, False, None)]
)
def test_auto_takes_the_least_criterion_penalised_by_the_number_of_lengthscales(
    of, is_common, order
):
    """A common lengthscale is in standard deviations: the units of columns do not matter."""
    draw = np.random.default_rng(3)
    x = draw.uniform(size=(40, 2))
    y = of(x, draw)
    units = np.array([1e-3, 1e3])
    model = KernelRegressor(starts=2).fit(x * units, y)
    criteria = {}
    deviation = x.std(0)
    for p in (0, 1):
        for per_dimension in (False, True):
            # inputs with standard deviations of 1
            one = KernelRegressor(order=p, per_dimension=per_dimension, starts=2)
            loss = one.fit(x / deviation, y).fit_.loss
            criteria[p, per_dimension] = np.log(loss) + (1 + per_dimension) * np.log(40) / 40
    best = min(criteria, key=criteria.get)
    assert best[1] is not is_common
    assert order is None or best[0] == order
    assert model.order_ == best[0]
    relative = model.lengthscale_ / (units * deviation)
    assert np.isclose(*relative, rtol=1e-12, atol=0) == is_common
    inside = draw.uniform(0.3, 0.7, (M, 2))
    expected = local_polynomial(inside, x, relative * deviation, model.order_) @ y
    np.testing.assert_allclose(model.predict(inside * units), expected, rtol=1e-6)
    assert pickle.loads(pickle.dumps(model)).order_ == model.order_


@pytest.mark.slow
def test_auto_compiles_one_program_for_each_order(programs):
    x = np.random.default_rng(5).uniform(size=(37, 3))
    y = np.sin(6 * x[:, 0]) + x[:, 1]
    programs.clear()
    model = KernelRegressor().fit(x, y)
    assert len(programs) == 2
    # the lengthscales of the candidate with one factor are those of the least criterion
    deviation, least = x.std(0), np.inf
    for factor in np.geomspace(0.1, 30.0, 200):
        seen = [np.arange(37) != i for i in range(37)]
        rows = [
            local_polynomial(x[i : i + 1], x[s], factor * deviation, 1) @ y[s]
            for i, s in enumerate(seen)
        ]
        least = min(least, np.mean((np.ravel(rows) - y) ** 2))
    assert np.log(model.fit_.loss) + 3 * np.log(37) / 37 <= np.log(least) + np.log(37) / 37 + 1e-6


@pytest.mark.parametrize("is_inside", [True, False])
def test_the_minimum_on_a_line_is_that_of_its_profile(x64, is_inside):
    draw = np.random.default_rng(1)
    x = draw.uniform(size=(50, 2))
    y = np.sin(5 * x[:, 0]) + 0.2 * draw.normal(size=50)
    scale, interval = np.array([1.0, 3.0]), (0.02, 1.0) if is_inside else (0.3, 1.0)

    def model(t):
        return ak.KernelRegression(ak.Gaussian(t * scale))

    fit = fit_on_line(model, interval, jnp.asarray(x), jnp.asarray(y), ak.LeaveOneOut())
    at = np.geomspace(*interval, 2000)
    losses = []
    for t in at:
        weights = np.exp(-0.5 * np.sum(((x[:, None] - x) / (t * scale)) ** 2, axis=2))
        np.fill_diagonal(weights, 0.0)
        losses.append(np.mean((weights @ y / weights.sum(1) - y) ** 2))
    np.testing.assert_allclose(fit.loss, min(losses), rtol=1e-6)
    expected = at[np.argmin(losses)] * scale
    np.testing.assert_allclose(fit.model.kernel.lengthscale, expected, rtol=5e-3)
    results = ak.fitting.Result
    assert fit.starts.result[0] == (results.CONVERGED if is_inside else results.AT_BOUND)


def test_auto_compares_criteria_with_a_logarithm():
    class Shifted(ak.objectives.Objective):
        is_stochastic = False

        def __call__(self, model, x, y, *, key=None):
            return ak.LeaveOneOut()(model, x, y) - 100.0

    with pytest.raises(ValueError, match=r'"auto".*logarithm.*got Shifted'):
        KernelRegressor(objective=Shifted()).fit(X, Y)
    assert KernelRegressor(lengthscale=0.5).fit(X, Y).order_ == 0
