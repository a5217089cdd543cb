r"""The choice among orders, and between a common lengthscale and one per column, by a criterion.

$$ \hat m = \arg\min_m \Big( \log L_m + p_m \frac{\log n}{n} \Big) $$

$L_m$ is the criterion of candidate m at its minimum, $p_m$ its number of lengthscales, n the number
of distinct inputs. The second term is that of Schwarz (1978): a minimum over more lengthscales is
lower by chance. AICc takes the place of $\log L$.

The minimum of an objective along a line of parameters, such as one factor of all lengthscales.

$$ \hat t = \arg\min_{a \le t \le b} L(f_{\theta(t)}, x, y) $$

The points of the line are evaluated by the compiled program of a search of all parameters from one
start, so that both together compile one program.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize_scalar

from .._core.arrays import as_numpy_if_concrete, to_jax
from ..fitting import (
    Fit,
    Options,
    Result,
    collect_outcome,
    fit,
    flat_rows,
    prepare_searches,
    take,
    unravel_rows,
)
from ..objectives import KFold, LeaveOneOut, Objective, Penalised, Sample

AUTO = "auto"


class Candidate(NamedTuple):
    """A fitted candidate.

    `is_common`: whether one number is fitted for all lengthscales: their value, or a common factor.
    """

    fit: Fit
    order: int
    is_common: bool
    warnings: tuple[warnings.WarningMessage, ...]

    @property
    def penalised(self) -> float:
        """The logarithm of the criterion, plus p log(n) / n for n rows and p parameters.

        A criterion with `is_logarithm`, such as AICc, is its own logarithm. Lengthscales that are
        `is_common` count as one. +inf if the logarithm is NaN or infinite.
        """
        loss, n = float(self.fit.loss), len(self.fit.x)
        size = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(self.fit.model, eqx.is_array)))
        if self.is_common:
            size -= np.size(self.fit.model.kernel.lengthscale) - 1
        log = loss if self.fit.objective.is_logarithm else float(np.log(loss))
        return log + size * np.log(n) / n if np.isfinite(log) else np.inf


def require_comparable(objective: Objective) -> None:
    """Raises `ValueError` unless it is a `LeaveOneOut`, `KFold` or `Penalised` (GCV, AICc).

    "auto" compares candidates by the logarithm of these.
    """
    if not isinstance(objective, LeaveOneOut | KFold | Penalised):
        raise ValueError(
            f'"auto" compares criteria by their logarithm: objective must be "leave-one-out", '
            f'"gcv", "aicc" or ak.KFold(k); got {type(objective).__name__}. Try order=0 and '
            f"per_dimension=True."
        )


def fit_candidates(
    smoother: Callable[..., Any],
    kernel: type,
    data: tuple[Float[np.ndarray, "n dim"], np.ndarray, np.ndarray | None],
    orders: tuple[int, ...],
    per_dimension: tuple[bool, ...],
    objective: Objective,
    starts: int | None,
) -> Candidate:
    """Returns the candidate with the least penalised criterion, and gives its warnings.

    `smoother`: the model of a kernel and an order; `kernel`: its class; `data`: inputs, labels and
    weights. `orders`, `per_dimension`: the values to choose from. If `per_dimension` has both, the
    common lengthscale is in standard deviations of the columns, and the search of one per column
    begins there. This is its only start if `starts` is None: on eleven data sets of scikit-learn
    ten starts end at the same minimum, and take up to eight times as long. Both use one compiled
    program: the first fit of diabetes, 442 x 10, takes 0.64 of the CPU seconds that it takes with a
    program for each. Further parameters of a kernel, such as a shape, are fitted with one
    lengthscale per column only.
    """
    x, y, weights = data
    n, dim = x.shape
    deviation = np.std(x, axis=0)
    weighted = objective if weights is None else objective.with_weights(to_jax(weights))
    found: list[Candidate] = []

    def keep(order: int, is_common: bool, search: Callable[[], Fit]) -> Array:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found.append(Candidate(search(), order, is_common, tuple(caught)))
        return found[-1].fit.model.kernel.lengthscale

    for order in orders:
        of_order = functools.partial(smoother, order=order)
        begin: Any = deviation * n ** (-1 / (dim + 4))
        number = starts
        if per_dimension == (False,):
            begin = np.sqrt(np.mean(begin**2))
        if len(per_dimension) > 1:
            ends = of_order(kernel(1.0)).search_box(x / deviation)
            interval = tuple(float(end.kernel.lengthscale) for end in ends)

            def proportional(t: float, of_order: Any = of_order) -> Any:
                return of_order(kernel(deviation * t))

            rows = *to_jax((x, y)), weighted
            search = functools.partial(fit_on_line, proportional, interval, *rows)
            begin, number = keep(order, True, search), starts or 1
        parts: dict[str, Any] = {"weights": weights, "objective": objective, "starts": number}
        search = functools.partial(fit, of_order(kernel(begin)), x, y, **parts)
        keep(order, np.ndim(begin) == 0, search)
    best = min(found, key=lambda candidate: candidate.penalised)
    for warning in best.warnings:
        warnings.warn(warning.message, warning.category, stacklevel=1)
    return best


GRID_POINTS = 13  # of log t
TOLERANCE = 1e-4  # of log t


def fit_on_line(
    models: Callable[[float], Any],
    interval: tuple[float, float],
    x: Array,
    y: Array,
    objective: Objective,
) -> Fit:
    """Returns the fit with the least objective of the models at t between two positive ends.

    `models`: the model at each t, all of one structure; a parameter that leaves the search box of
    the model stays 1 % of the half-width inside its bound. The objective is minimised over a grid
    of log t, then between the neighbours of its best point. The result is `AT_BOUND` if the
    minimum is at an end of the interval.
    """
    low, high = np.log(interval)
    options = Options(starts=1).with_defaults(models(float(np.exp(low))), objective)
    data = Sample(x, y, objective)
    searches = prepare_searches(models(float(np.exp(low))), data, options)
    box, losses = searches.problem.box, []
    assert box is not None

    def free(log_t: float) -> Any:
        parameters = eqx.filter(models(float(np.exp(log_t))), eqx.is_inexact_array)
        return box.unconstrain(as_numpy_if_concrete(parameters))

    def loss(log_t: float) -> float:
        found = float(searches.losses_and_gradients(flat_rows(free(log_t), 0)[None])[0][0])
        losses.append(found)
        return found

    grid = np.linspace(low, high, GRID_POINTS)
    values = np.array([loss(point) for point in grid])
    place = int(np.argmin(values))
    ends = grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)]
    finer: Any = minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": TOLERANCE})
    best, least = (
        (finer.x, finer.fun) if finer.fun < values[place] else (grid[place], values[place])
    )
    end = unravel_rows(flat_rows(free(best), 0)[None], take(0, searches.z))
    is_at_end = min(best - low, high - best) < 2 * TOLERANCE
    result = np.array([Result.AT_BOUND if is_at_end else Result.CONVERGED])
    history = {"loss": np.minimum.accumulate(losses)[None]}
    steps = np.array([len(losses)])
    outcome = collect_outcome(searches.problem, end, end, np.array([least]), steps, result, history)
    return Fit(*outcome._replace(objective=objective), x, y)
