r"""The minimum of an objective along a line of parameters, such as one factor of all lengthscales.

$$ \hat t = \arg\min_{a \le t \le b} L(f_{\theta(t)}, x, y) $$

The points of the line are evaluated by the compiled program of a search of all parameters from one
start, so that both together compile one program.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array
from scipy.optimize import minimize_scalar

from .._core.host_arrays import as_numpy_if_concrete
from ..fitting import (
    Data,
    Fit,
    Options,
    Result,
    collect_outcome,
    flat_rows,
    prepare_searches,
    take,
    unravel_rows,
)
from ..objectives import Objective

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

    `models`: the model at each t, all of one structure. The objective is minimised over a grid of
    log t, then between the neighbours of its best point. The result is `AT_BOUND` if that is an
    end of the interval.
    """
    low, high = np.log(interval)
    options = Options(starts=1).with_defaults(models(float(np.exp(low))), objective, len(x))
    data = Data(x, y, objective)
    searches = prepare_searches(models(float(np.exp(low))), data, options)
    box, losses = searches.problem.box, []
    assert box is not None

    def free(log_t: float) -> Any:
        parameters = eqx.filter(models(float(np.exp(log_t))), eqx.is_inexact_array)
        return box.free(as_numpy_if_concrete(parameters))

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
