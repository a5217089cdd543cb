"""A report of a fit: what was fitted, how well, and what a reader must know before believing it."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .._core.pandas_frames import shown
from .._core.validation import as_names
from ..fitting._result import Fit, apart, take
from ..models import KernelRegression
from ..priors import ExcludeSelf
from ._bands import degrees_of_freedom, effective_count
from ._variance import of_regression


class Report(NamedTuple):
    r"""The figures of a fit; printed, a table of them.

    `r_squared` is $\big(\sum_i (y_i - \bar y)(\hat y_i - \bar y)\big)^2 / \big(\sum_i (y_i - \bar
    y)^2 \sum_i (\hat y_i - \bar y)^2\big)$, as in R's np; `residual_sd` is $\sqrt{\mathrm{RSS}/n}$,
    in the units of y. `trace` and `residual_df` are those of `degrees_of_freedom`. `alone` counts
    the rows with no other in reach, `deficient` those where the data do not tell all terms of the
    polynomial apart, and `extrapolates` further ones where its error is over ten times that of a
    local mean (`LocalFit`). `least_count` and `median_count` are of `effective_count` at the rows.

    Of the `starts`, `converged`, `diverged` and `at_bound` are counts; `bounds` names the
    parameters of the best one that are on a bound, and `minima` are the minima besides the best:
    models and criteria, the lowest first (of a deterministic criterion).
    """

    rows: int
    order: int
    passes: int
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
    extrapolates: int
    least_count: float
    median_count: float
    starts: int
    converged: int
    diverged: int
    at_bound: int
    is_search: bool
    bounds: tuple[str, ...]
    minima: tuple[tuple[KernelRegression, float], ...]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        kinds = ("local constant", "local linear", "local quadratic")
        passes = f" in {self.passes} passes" if self.passes > 1 else ""
        lines = [
            ("fit", f"{kinds[self.order]}{passes}, {self.kernel}, {self.rows} rows"),
            *(
                (f"lengthscale of {name}", f"{value:.6g}")
                for name, value in self.lengthscales.items()
            ),
            (self.criterion, f"{self.loss:.6g}"),
            ("starts", self._of_starts()),
            *(
                ("other minimum", f"{loss:.6g}, {_in_a_line(model.kernel)}")
                for model, loss in self.minima
            ),
            ("R²", f"{self.r_squared:.4f}"),
            ("residual sd", f"{self.residual_sd:.6g}"),
            ("degrees of freedom", f"{self.trace:.2f}, residual {self.residual_df:.2f}"),
            ("labels per value", f"least {self.least_count:.3g}, median {self.median_count:.3g}"),
        ]
        if self.bounds:
            lines.append(("on a bound", ", ".join(self.bounds)))
        if self.alone:
            lines.append(("no other row in reach", f"of {self.alone} rows"))
        if self.deficient:
            lines.append(("of lower order than asked", f"at {self.deficient} rows"))
        if self.extrapolates:
            lines.append(("extrapolates", f"at {self.extrapolates} rows"))
        wide = max(len(name) for name, _ in lines)
        table = [f"{name:<{wide}}  {value}" for name, value in lines]
        return "\n".join([*table, *(f"warning: {warning}" for warning in self.warnings)])

    def _of_starts(self) -> str:
        counts = (
            (self.converged, "converged"),
            (self.at_bound, "on a bound"),
            (self.diverged, "diverged"),
        )
        of_them = ", ".join(f"{count} {what}" for count, what in counts if count)
        if not self.is_search:
            of_them = ", ".join(filter(None, ["all steps of a given optimiser", of_them]))
        return f"{self.starts}: {of_them or 'none converged'}"


def summarise(fit: Fit, *, names: Sequence[str] | None = None) -> Report:
    """The report of a fitted `KernelRegression` of one label per row: print it.

    **Arguments:** `names`: of the columns of x, with their units, such as those of a `Dataset`.
    Default: those of the fit, else x, or x1, x2, ...

    **Raises:** `ValueError` if there are not as many names as columns, or the fit is another's.
    """
    fit = of_regression(fit)
    freedom, model, given = degrees_of_freedom(fit), fit.model, fit.objective.weight_kwargs()
    assert isinstance(model, KernelRegression)
    if fit.y.ndim != 1:
        raise ValueError(f"A report is of one label per row; y has shape {fit.y.shape}.")
    n, dim = fit.x.shape
    if names is None:
        names = shown(fit.x_names, dim)
    names = as_names("names", names)
    if len(names) != dim:
        raise ValueError(f"names must be {dim}, one for each column; got {list(names)}.")
    local = model.local_fit(fit.x, fit.x, fit.y, **given)
    reach = dataclasses.replace(model, passes=1)  # which no pass widens
    left_out = reach.local_fit(fit.x, fit.x, fit.y, prior=ExcludeSelf(), **given)
    fitted = local.coefficients[:, 0, 0]
    a, b = fit.y - jnp.mean(fit.y), fitted - jnp.mean(fit.y)
    r_squared = jnp.sum(a * b) ** 2 / (jnp.sum(a * a) * jnp.sum(b * b))
    counts, starts = effective_count(fit, fit.x), fit.starts
    return Report(
        rows=n,
        order=model.order,
        passes=model.passes,
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
        extrapolates=int(jnp.sum(local.extrapolates & ~local.deficient)),
        least_count=float(jnp.min(counts)),
        median_count=float(jnp.median(counts)),
        starts=len(starts.loss),
        converged=int(jnp.sum(starts.converged)),
        diverged=int(jnp.sum(starts.diverged)),
        at_bound=int(jnp.sum(starts.at_bound)),
        is_search=fit.is_search,
        bounds=tuple(fit.on_bounds()),
        minima=tuple(_other_minima(fit)),
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


def _other_minima(fit: Fit, tolerance: float = 1e-3) -> list[tuple[KernelRegression, float]]:
    """The minima but the best; nothing is computed where all starts that count met there."""
    if fit.objective.is_stochastic:
        return []
    inside = np.flatnonzero(~np.asarray(fit.starts.at_bound | fit.starts.diverged))
    if all(apart(take(i, fit.starts.end), fit.model) <= tolerance for i in inside):
        return []
    return [found for found in fit.minima(tolerance) if apart(found[0], fit.model) > tolerance]


def _in_a_line(thing: object) -> str:
    return " ".join(repr(thing).split())
