"""Functions that prepare first calls of further models, of tests, and of other estimates.

As in `prepared_calls`, each returns a call to be timed, which returns arrays. Data are cps71, 205
rows; models of two columns take 205 simulated rows.
"""
# ruff: noqa: PLC0415  a process imports only what its contender needs

from collections.abc import Callable
from typing import Any

from .prepared_calls import Timed, fit_cps71, load_cps71

SEED = 0


def fit_model(name: str) -> Timed:
    """A fit by the default criterion of the model, of two columns by AICc."""
    import jax

    import attnkernel as ak

    x, y, _ = load_cps71()
    wide, labels = _two_columns(len(y))
    smoother = ak.KernelRegression(ak.Gaussian(5.0))
    make: dict[str, Callable[[], tuple[Any, ...]]] = {
        "ConditionalDensity": lambda: (
            ak.ConditionalDensity(ak.Gaussian(0.2), ak.Gaussian(0.2)),
            wide,
        ),
        "AdditiveRegression": lambda: (
            ak.AdditiveRegression([ak.Gaussian(0.2), ak.Gaussian(0.2)]),
            wide,
            labels,
        ),
        "PartiallyLinear": lambda: (
            ak.econometrics.PartiallyLinear(
                ak.KernelRegression(ak.Gaussian(0.2), order=1), linear=1
            ),
            wide,
            labels,
        ),
        "LocalLikelihood": lambda: (
            ak.LocalLikelihood(ak.Gaussian(5.0), family=ak.Binomial(), order=1),
            x,
            (y > 13.5).astype(float),
        ),
        "RobustRegression": lambda: (ak.RobustRegression(smoother), x, y),
        "LocalQuantile": lambda: (ak.LocalQuantile(ak.Gaussian(5.0)), x, y),
    }
    model, *data = make[name]()
    needs_penalty = name in ("AdditiveRegression", "PartiallyLinear")
    objective = ak.AICc() if needs_penalty else ak.LeaveOneOut()
    return lambda: [jax.block_until_ready(ak.fit(model, *data, objective=objective)).loss]


def estimate(name: str) -> Timed:
    """A function of `ak.inference` or `ak.econometrics`, of data or of a fit of order 0."""
    import jax

    import attnkernel as ak

    x, y, grid = load_cps71()
    key, tests = jax.random.PRNGKey(SEED), ak.econometrics
    calls: dict[str, Callable[[], list[Any]]] = {
        "specification_test": lambda: [tests.specification_test(x, y, key=key).p_value],
        "discontinuity": lambda: [tests.discontinuity(x, y, cutoff=40.0).estimate],
        "sheather_jones": lambda: [ak.inference.sheather_jones(x)],
        "normal_reference": lambda: [ak.inference.normal_reference(x)],
        "plug_in": lambda: [ak.inference.plug_in(x, y)],
        "density": lambda: [ak.density(grid, x, kernel=ak.Gaussian(5.0))],
    }
    if name in calls:
        return calls[name]
    fitted = fit_cps71(0, x, y)
    of_fit: dict[str, Callable[[], list[Any]]] = {
        "relevance_test": lambda: [tests.relevance_test(fitted, 0, key=key).p_value],
        "average_derivative": lambda: [tests.average_derivative(fitted).estimate],
        "derivative_bands": lambda: [ak.bands(fitted, grid, derivative=1).lower],
        "quantiles": lambda: [ak.quantiles(fitted, grid, [0.1, 0.9])],
    }
    return of_fit[name]


def _two_columns(n: int) -> tuple[Any, Any]:
    """Returns simulated inputs, shape (n, 2), and labels."""
    import numpy as np

    rng = np.random.default_rng(SEED)
    x = rng.uniform(size=(n, 2))
    return x, np.sin(6.0 * x[:, 0]) + x[:, 1] + 0.3 * rng.normal(size=n)
