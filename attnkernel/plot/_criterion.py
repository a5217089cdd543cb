"""A criterion against the lengthscale, with the minima that a fit found."""

from typing import Any

import numpy as np
from jax.typing import ArrayLike
from matplotlib.axes import Axes

from .._core.validation import require_choice, require_instance
from ..fitting import Fit
from ..kernels import CONVENTIONS, LETTERS, convert_lengthscale
from ..objectives import KFold, LeaveOneOut, Objective, Validation, profile
from ._style import BLUE, ORANGE, axes, paper


def criterion(
    result: Fit,
    lengthscales: ArrayLike | None = None,
    *,
    objective: Objective | None = None,
    convention: str = "standard",
    ax: Axes | None = None,
) -> Axes:
    r"""The criterion $L(\ell)$ against the lengthscale, with the minima that the fit found.

    $$ \ell \mapsto L(\hat f_\ell;\, x, y), \qquad \ell \text{ on a logarithmic axis} $$

    The title names the smallest minimum. If there is none inside the bounds, the smallest value
    found is drawn. Both are drawn for the objective of the fit only, and if it is deterministic;
    otherwise the figure is the curve alone. An equal objective counts as another one, unless it is
    `result.objective` itself.

    ```python
    >>> data = ak.data.load("faithful")
    >>> model = ak.KernelRegression(ak.Gaussian(0.5))
    >>> fit = ak.fit(model, data.x, data.y, objective=ak.LeaveOneOut())
    >>> ak.plot.criterion(fit, np.geomspace(0.1, 2.0, 50)).get_title()
    'smallest leave-one-out error at ℓ = ...'
    ```

    **Arguments:**

    - `result`: one fit of a model with one lengthscale.
    - `lengthscales`: shape (grid,), in units of x. Default: 200 points over `model.search_box(x)`.
    - `objective`: default, that of the fit if it is deterministic, else leave-one-out.
    - `convention`: what the axis shows, ℓ by default, √2 ℓ for "unhalved", else h of
      `kernels.convert_lengthscale`.

    **Raises:** `ValueError` for a model with several lengthscales, or a fixed one if
    `lengthscales` are left out; for a stochastic `objective`, and for a convention of another
    kernel than `Gaussian`.
    """
    require_instance("result", result, Fit, "ak.fit(...)")
    require_choice("convention", convention, CONVENTIONS)
    if np.ndim(getattr(result.model.kernel, "lengthscale", [0.0])) != 0:
        raise ValueError("A criterion is drawn over one lengthscale; this model has none or many.")
    own = not result.objective.is_stochastic
    if objective is None:
        objective = result.objective if own else LeaveOneOut()
    own &= objective is result.objective
    if lengthscales is None:
        if result.model.kernel.lengthscale_parameter.is_fixed:
            raise ValueError("The lengthscale is fixed, and has no search box: pass lengthscales=.")
        lower, upper = (side.kernel.lengthscale for side in result.model.search_box(result.x))
        lengthscales = np.geomspace(float(lower), float(upper), 200)
    values = profile(result.model, result.x, result.y, lengthscales, objective=objective)
    ax = axes(ax)
    letter = LETTERS.get(convention, "h")

    def in_convention(lengthscale: ArrayLike) -> np.ndarray:
        return np.asarray(convert_lengthscale(lengthscale, target=convention))

    ax.plot(in_convention(np.asarray(lengthscales)), np.asarray(values), color=BLUE)
    if own:
        minima, first = result.minima(), ("minimum", "o", ORANGE)
        if not minima:  # the search ended on a bound, or the criterion is flat there
            minima = [(result.model, float(result.loss))]
            first = ("smallest value found", "D", paper())
        best = float(in_convention(minima[0][0].kernel.lengthscale))
        smallest = "smallest" if first[0] == "minimum" else "no interior minimum: smallest"
        name = _criterion_name(objective, result.model)
        ax.set_title(f"{smallest} {name} at {letter} = {best:.4g}")
        for place, (model, loss) in enumerate(minima):
            name, marker, face = ("other minimum", "s", paper()) if place else first
            at = float(in_convention(model.kernel.lengthscale))
            style = {"marker": marker, "markersize": 6, "markerfacecolor": face}
            style |= {"markeredgecolor": ORANGE, "linestyle": "none"}
            ax.plot(at, loss, **style, label=f"{name}: {letter} = {at:.4g}")
        ax.legend()
    ax.set_xscale("log")
    unit = " (squared units of y)" if objective.is_squared_error(result.model) else ""
    name = _criterion_name(objective, result.model)
    words = {"ℓ": "lengthscale ℓ", "h": f"h of {convention}"}.get(letter, letter)
    ax.set(xlabel=f"{words} (units of x)", ylabel=name + unit)
    return ax


def _criterion_name(objective: Objective, model: Any) -> str:
    """Returns the name of a criterion in plots: `leave-one-out error`, `5-fold error`, `AICc`."""
    words = type(objective).__name__
    if not isinstance(objective, Validation):
        return words
    if isinstance(objective, LeaveOneOut | KFold):
        words = f"{objective.folds}-fold" if isinstance(objective, KFold) else "leave-one-out"
    other = "deviance" if objective.score is None else "score"
    return f"{words} {'error' if objective.is_squared_error(model) else other}"
