"""A criterion against the lengthscale, and the minima that a fit found."""

import numpy as np
from jax.typing import ArrayLike
from matplotlib.axes import Axes

from .._core.validation import require_choice, require_instance, require_positive
from ..fitting import Fit
from ..kernels import convert_lengthscale
from ..kernels._conventions import CONVENTIONS
from ..objectives import GCV, LeaveOneOut, Objective, profile, squared_error
from ._style import BLUE, ORANGE, axes, paper


def criterion(
    result: Fit,
    lengthscales: ArrayLike | None = None,
    *,
    objective: Objective | None = None,
    convention: str = "standard",
    ax: Axes | None = None,
) -> Axes:
    """A criterion against the lengthscale, with the minima that the fit found, if it is the fit's.

    **Arguments:** `lengthscales`: where to evaluate it; default, 200 points over
    `model.search_box(x)`. `objective`: default, that of the fit if deterministic, else
    leave-one-out; of another than the fit's only the curve is drawn. `convention`: what a
    lengthscale means on the axis; see `kernels.convert_lengthscale`.
    """
    require_instance("result", result, Fit, "ak.fit(...)")
    require_choice("convention", convention, CONVENTIONS)
    if objective is not None:
        require_instance("objective", objective, Objective, "ak.LeaveOneOut()")
    if lengthscales is not None:
        require_positive("lengthscales", lengthscales)
        if np.ndim(lengthscales) != 1:
            raise ValueError(f"lengthscales must have shape (grid,); got {np.shape(lengthscales)}.")
    ax = axes(ax)
    if np.ndim(result.model.kernel.lengthscale) != 0:
        raise ValueError("A criterion is drawn over one lengthscale; this model has several.")
    own = not result.objective.is_stochastic
    if objective is None:
        objective = result.objective if own else LeaveOneOut()
    own &= objective is result.objective
    if lengthscales is None:
        lower, upper = (side.kernel.lengthscale for side in result.model.search_box(result.x))
        lengthscales = np.geomspace(float(lower), float(upper), 200)
    values = profile(result.model, result.x, result.y, lengthscales, objective=objective)

    def shown(lengthscale: ArrayLike) -> np.ndarray:
        return np.asarray(convert_lengthscale(lengthscale, target=convention))

    ax.plot(shown(np.asarray(lengthscales)), np.asarray(values), color=BLUE)
    if own:
        marks = [
            ("minimum", "o", ORANGE),
            *[("other minimum", "s", paper())] * len(result.starts.loss),
        ]
        minima = result.minima()
        if not minima:  # the search ended on a bound, or where the criterion is flat
            minima, marks = (
                [(result.model, float(result.loss))],
                [("least value found", "D", paper())],
            )
        for (model, loss), (name, marker, face) in zip(minima, marks, strict=False):
            at = float(shown(model.kernel.lengthscale))
            ax.plot(
                at,
                loss,
                marker=marker,
                markersize=6,
                markerfacecolor=face,
                markeredgecolor=ORANGE,
                linestyle="none",
                label=f"{name}: ℓ = {at:.4g}",
            )
        ax.legend()
    ax.set_xscale("log")
    squared = isinstance(objective, GCV) or getattr(objective, "score", None) is squared_error
    name = type(objective).__name__ + (" (squared units of y)" if squared else "")
    ax.set(xlabel="lengthscale ℓ (units of x)", ylabel=name)
    return ax
