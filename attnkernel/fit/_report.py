"""A report of a fit: what was fitted, how well, and what a reader must know before believing it."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .._frames import shown
from ..models import KernelRegression
from ..priors import LeaveOneOut as LeaveOneOutMask
from ._inference import degrees_of_freedom
from ._result import Fit


class Report(NamedTuple):
    r"""The figures of a fit; printed, a table of them.

    `r_squared` is $\big(\sum_i (y_i - \bar y)(\hat y_i - \bar y)\big)^2 / \big(\sum_i (y_i - \bar
    y)^2 \sum_i (\hat y_i - \bar y)^2\big)$, as in R's np; `residual_sd` is $\sqrt{\mathrm{RSS}/n}$,
    in the units of y. `trace` and `residual_df` are those of `degrees_of_freedom`. `alone` counts
    the rows with no other in reach, `deficient` those where the data do not tell all terms of the
    polynomial apart.
    """

    rows: int
    order: int
    kernel: str
    lengthscales: dict[str, float]
    criterion: str
    loss: float
    r_squared: float
    residual_sd: float
    trace: float
    residual_df: float
    alone: int
    deficient: int
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        kinds = ("local constant", "local linear", "local quadratic")
        lines = [
            ("fit", f"{kinds[self.order]}, {self.kernel}, {self.rows} rows"),
            *(
                (f"lengthscale of {name}", f"{value:.6g}")
                for name, value in self.lengthscales.items()
            ),
            (self.criterion, f"{self.loss:.6g}"),
            ("R²", f"{self.r_squared:.4f}"),
            ("residual sd", f"{self.residual_sd:.6g}"),
            ("degrees of freedom", f"{self.trace:.2f}, residual {self.residual_df:.2f}"),
        ]
        if self.alone:
            lines.append(("no other row in reach", f"of {self.alone} rows"))
        if self.deficient:
            lines.append(("of lower order than asked", f"at {self.deficient} rows"))
        wide = max(len(name) for name, _ in lines)
        table = [f"{name:<{wide}}  {value}" for name, value in lines]
        return "\n".join([*table, *(f"warning: {warning}" for warning in self.warnings)])


def summarise(fit: Fit, *, names: Sequence[str] | None = None) -> Report:
    """The report of a fitted `KernelRegression` of one label per row: print it.

    **Arguments:** `names`: of the columns of x, with their units, such as those of a `Dataset`.
    Default: those of the fit, else x, or x1, x2, ...

    **Raises:** `ValueError` if there are not as many names as columns, or the fit is another's.
    """
    freedom, model, given = degrees_of_freedom(fit), fit.model, fit.objective.given()
    assert isinstance(model, KernelRegression)
    if fit.y.ndim != 1:
        raise ValueError(f"A report is of one label per row; y has shape {fit.y.shape}.")
    n, dim = fit.x.shape
    if names is None:
        names = shown(fit.x_names, dim)
    if len(names) != dim:
        raise ValueError(f"There are {dim} columns; got {len(names)} names: {list(names)}.")
    local = model.local_fit(fit.x, fit.x, fit.y, **given)
    left_out = model.local_fit(fit.x, fit.x, fit.y, prior=LeaveOneOutMask(), **given)
    fitted = local.coefficients[:, 0, 0]
    a, b = fit.y - jnp.mean(fit.y), fitted - jnp.mean(fit.y)
    r_squared = jnp.sum(a * b) ** 2 / (jnp.sum(a * a) * jnp.sum(b * b))
    return Report(
        rows=n,
        order=model.order,
        kernel=type(model.kernel).__name__,
        lengthscales=_lengthscales(model, names),
        criterion=type(fit.objective).__name__,
        loss=float(fit.loss),
        r_squared=float(r_squared),
        residual_sd=float(jnp.sqrt(fit.objective.mean_square(fit.y - fitted))),
        trace=float(freedom.trace),
        residual_df=float(freedom.residual),
        alone=int(jnp.sum(jnp.isneginf(left_out.log_mass))),
        deficient=int(jnp.sum(local.deficient)),
        warnings=tuple(fit.warnings()),
    )


def _lengthscales(model: KernelRegression, names: Sequence[str]) -> dict[str, float]:
    """Those of a kernel that has them, one for each column or one for all."""
    lengthscale = getattr(model.kernel, "lengthscale", None)
    if lengthscale is None:
        return {}
    values = np.atleast_1d(np.asarray(lengthscale))
    if len(values) == 1:
        return {", ".join(names): float(values[0])}
    return {name: float(value) for name, value in zip(names, values, strict=True)}
