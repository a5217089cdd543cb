"""A report of a fit: its parameters, its criterion, and the warnings that a reader needs.

Parameters are in natural units, named by the columns of x that they belong to.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._core.arrays import inverse_or_zero
from .._core.pandas_frames import display_names
from .._core.parameters import Parameter
from .._core.rows import Rows, cut_rows
from .._core.text_tables import align_columns
from .._core.validation import as_names
from ..attention import jit_if_pure
from ..fitting import Fit, Result
from ..kernels import Kernel, OnColumns, Product
from ..models import Estimate, LocalLikelihood
from ..objectives import LeaveOneOut
from ._degrees_of_freedom import DegreesOfFreedom, sum_degrees_of_freedom
from ._variance import (
    ESTIMATORS,
    Estimator,
    RowDiagnostics,
    padded_rows,
    require_smoother_fit,
    row_diagnostics,
)


def kernel_expression(kernel: Kernel, names: Sequence[Any]) -> str:
    """The kernel as a formula without numbers: `Gaussian.on('age') * AitchisonAitken.on('kind')`.

    `names`: those of the columns that the kernel sees.
    """
    if isinstance(kernel, Product):
        first, second = (kernel_expression(k, names) for k in (kernel.first, kernel.second))
        return f"{first} * {second}"
    if isinstance(kernel, OnColumns):
        own = _names_of_columns(kernel, names)
        inner = kernel_expression(kernel.kernel, own)
        inner = f"({inner})" if isinstance(kernel.kernel, Product) else inner
        return f"{inner}.on({', '.join(map(repr, own))})"
    inner = ", ".join(kernel_expression(each, names) for each in _inner_kernels(kernel))
    return f"{type(kernel).__name__}({inner})" if inner else type(kernel).__name__


def natural_parameters(kernel: Kernel, names: Sequence[str]) -> dict[str, float]:
    """Returns the parameters of a kernel, each number by a name such as `lengthscale of age`.

    Arrays of more than 16 numbers, such as a projection, are left out, unless they have one number
    for each column. A repeated name gets the class of its kernel in front: `Periodic lengthscale of
    age`. `names`: those of the columns that the kernel sees.
    """
    found: dict[str, float] = {}
    for owner, name, value in _named_numbers(kernel, tuple(names)):
        while name in found:
            name = f"{owner} {name}"
        found[name] = value
    return found


def _named_numbers(kernel: Kernel, names: tuple[str, ...]) -> Iterator[tuple[str, str, float]]:
    """Yields (class name of the kernel, name, value) for each parameter, nested kernels included.

    An array gives one item for each number, whose name ends in its column or its index, such as
    `lengthscale of age` or `projection[0, 1]`. Arrays of more than 16 numbers are left out, unless
    they have one number for each column. The value is that of the property of the same name, in
    natural units; without one a field `log_a` is exponentiated. `names`: those of the columns that
    the kernel sees.
    """
    if isinstance(kernel, OnColumns):
        names = _names_of_columns(kernel, names)
    max_listed_numbers = 16  # of an array that has not one for each column
    for field, value in _fields(kernel):
        if not isinstance(value, Parameter) and not eqx.is_inexact_array(value):
            continue
        name = field.removesuffix("_parameter").removeprefix("log_")
        if isinstance(value, Parameter):
            value = value.value
        elif field.startswith("log_"):
            value = np.exp(value)
        numbers = np.asarray(getattr(kernel, name, value))
        places = [f"{list(place)}" for place in np.ndindex(numbers.shape)]
        if numbers.ndim == 0:
            places = [f" of {', '.join(names)}"]
        elif numbers.shape == (len(names),):
            places = [f" of {column}" for column in names]
        if numbers.size <= max_listed_numbers or numbers.shape == (len(names),):
            for place, number in zip(places, numbers.flat, strict=True):
                yield type(kernel).__name__, f"{name}{place}", float(number)
    for inner in _inner_kernels(kernel):
        yield from _named_numbers(inner, names)


def _names_of_columns(kernel: OnColumns, names: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the names of the columns that a kernel sees; `names`: those of all columns."""
    return tuple(c if isinstance(c, str) else names[c] for c in kernel.columns)


def _inner_kernels(kernel: Kernel) -> list[Kernel]:
    """Returns the kernels that are fields of a kernel."""
    return [value for _, value in _fields(kernel) if isinstance(value, Kernel)]


def _fields(kernel: Kernel) -> Iterator[tuple[str, Any]]:
    """Yields the name and value of each dataclass field of a kernel."""
    for field in dataclasses.fields(kernel):  # type: ignore[arg-type]
        yield field.name, getattr(kernel, field.name)


class Report(NamedTuple):
    r"""The figures of a fit; printed, a table of them.

    `rows` is the number of rows with weight. `smoother` is the description of the model, `kernel`
    the formula of its kernel, and `parameters` are the numbers of the kernel in natural units, such
    as `lengthscale of age`. `criterion` is the class name of the objective, and `loss` its value.

    `r_squared` is $\big(\sum_i (y_i - \bar y)(\hat y_i - \bar y)\big)^2 / \big(\sum_i (y_i - \bar
    y)^2 \sum_i (\hat y_i - \bar y)^2\big)$, as in R's np. `left_out_r_squared` is $1 - \sum_i (y_i
    - \hat y_{-i})^2 / \sum_i (y_i - \bar y)^2$, over the rows that others predict. For a linear
    smoother $y_i - \hat y_{-i} = (y_i - \hat y_i) / (1 - L_{ii})$, exact of local polynomials; for
    a `LocalLikelihood` $\hat y_{-i}$ is the mean fitted without row i. `residual_sd` is
    $\sqrt{\mathrm{RSS}/\nu}$, in the units of y, ν being `residual_df`: the sd of a label, if it is
    constant and the fit has no bias. With row weights, divided by their mean, the sums and means
    are weighted. `trace` and `residual_df` are those of `degrees_of_freedom`.
    `isolated_rows` counts the rows with no other in reach, `deficient` those with a rank-deficient
    local design, and `extrapolates` further rows where the polynomial extrapolates (`DataSupport`).
    `least_count` and `median_count` are of `effective_count` at the rows.

    `dropped_rows` counts the rows that `na="drop"` of `fit` left out for missing values.

    `starts` is the number of starts; `diverged` and `pruned` count those with this result,
    `converged` those that converged, inside the bounds or on one, and `at_bound` those that ended
    on one, whatever their result. `bounds` names the parameters of the best start that are on a
    bound. `minima` are the minima besides the best, as pairs of a model and its criterion, the
    lowest first; empty for a stochastic criterion. `is_search` is False if a given optimiser took
    all its steps.
    `warnings` are sentences.

    ```python
    data = ak.data.load("mcycle")
    report = ak.summarise(ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), data.x, data.y))
    assert 0.0 < report.r_squared < 1.0
    ```
    """

    rows: int
    smoother: str
    kernel: str
    parameters: dict[str, float]
    criterion: str
    loss: float
    r_squared: float
    left_out_r_squared: float
    residual_sd: float
    trace: float
    residual_df: float
    isolated_rows: int
    deficient: int
    extrapolates: int
    least_count: float
    median_count: float
    starts: int
    converged: int
    diverged: int
    pruned: int
    at_bound: int
    is_search: bool
    bounds: tuple[str, ...]
    minima: tuple[tuple[Estimator, float], ...]
    warnings: tuple[str, ...]
    dropped_rows: int = 0

    def __str__(self) -> str:
        smoother = ", ".join(filter(None, (self.smoother, self.kernel)))
        lines = [
            ("fit", f"{smoother}, {self.rows} rows"),
            *((name, f"{value:.6g}") for name, value in self.parameters.items()),
            (self.criterion, f"{self.loss:.6g}"),
            ("starts", self._starts_text()),
            *(
                (
                    "other minimum",
                    " ".join(f"{loss:.6g}, {getattr(model, 'kernel', model)!r}".split()),
                )
                for model, loss in self.minima
            ),
            *table_of_numbers(self),
        ]
        if self.dropped_rows:
            lines.append(("dropped rows", f"{self.dropped_rows}, with missing values"))
        if self.bounds:
            lines.append(("on a bound", ", ".join(self.bounds)))
        warnings = (f"warning: {warning}" for warning in self.warnings)
        return "\n".join([*align_columns(lines), *warnings])

    def _starts_text(self) -> str:
        """Returns how the starts ended, such as `10: 9 converged, 2 on a bound`; those on a
        bound may have converged."""
        counts = (
            (self.converged, "converged"),
            (self.at_bound, "on a bound"),
            (self.diverged, "diverged"),
            (self.pruned, "stopped early for lower ones"),
        )
        of_them = ", ".join(f"{count} {what}" for count, what in counts if count)
        if not self.is_search:
            of_them = ", ".join(filter(None, ["all steps of a given optimiser", of_them]))
        return f"{self.starts}: {of_them or 'none converged'}"


def table_of_numbers(report: Report) -> list[tuple[str, str]]:
    """Returns the lines (name, text) of a printed report for R², the residual sd, degrees of
    freedom, effective counts and flagged rows; the texts include definitions."""
    squares = "1 − squared left-out errors / squares about the mean"
    flags = (
        ("no other row in reach", report.isolated_rows),
        ("rank-deficient", report.deficient),
        ("extrapolates", report.extrapolates),
    )
    return [
        ("R²", f"{report.r_squared:.4f}, squared correlation of label and fit"),
        ("left-out R²", f"{report.left_out_r_squared:.4f}, {squares}"),
        ("residual sd", f"{report.residual_sd:.6g}, √(squared residuals / residual df)"),
        ("degrees of freedom", f"{report.trace:.2f}, residual {report.residual_df:.2f}"),
        ("labels per value", f"least {report.least_count:.3g}, median {report.median_count:.3g}"),
        *((name, f"at {count} rows") for name, count in flags if count),
    ]


def summarise(fit: Fit, *, names: Sequence[str] | None = None) -> Report:
    """The report of a fitted linear smoother with one label per row; `print` shows a table.

    **Arguments:** `fit`: of a linear smoother, such as a `KernelRegression`, or of a
    `LocalLikelihood`, whose degrees of freedom are approximate; `names`: of the
    columns of x, with their units, such as those of a `Dataset`. Default: those of the fit, else x,
    or x1, x2, ...

    **Returns:** a `Report`.

    **Raises:** `ValueError` if there are not as many names as columns, for another model, several
    labels per row, or a batch of fits.

    ```python
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0))
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), data.x, data.y, objective=ak.LeaveOneOut())
    print(ak.summarise(fit))
    ```
    """
    return report_of(fit, measure_rows(fit), names)


class Measured(NamedTuple):
    """The quantities at the rows of a fit from which a report is made; `rows` are diagnostics.

    `loo_empty` and `loo_residuals` belong to the prediction of each row from all others, as in
    `measure_estimate`.
    """

    rows: RowDiagnostics
    freedom: DegreesOfFreedom
    loo_empty: Bool[Array, " n"]
    loo_residuals: Float[Array, " n"]
    counts: Float[Array, " n"]  # effective numbers of labels


def measure_rows(fit: Fit) -> Measured:
    """Returns the quantities at the rows of a fit that `report_of` needs.

    **Raises:** `ValueError` for another model, several labels per row, or a batch of fits.
    """
    fit = require_smoother_fit(fit, ESTIMATORS, one_label="A report is")
    found = jit_if_pure(_measure_rows, (fit.model,), *padded_rows(fit))
    return cut_rows(found, len(fit.x))


def report_of(fit: Fit, measured: Any, names: Sequence[str] | None = None) -> Report:
    """Returns the report of a fit; `measured`: its `measure_rows`; `names`: as `summarise`."""
    fit = require_smoother_fit(fit, ESTIMATORS)
    n, dim = fit.x.shape
    if names is None:
        names = display_names(fit.x_names, dim)
    names = as_names("names", names)
    if len(names) != dim:
        raise ValueError(f"names must be {dim}, one for each column; got {list(names)}.")
    found, freedom, loo_empty, loo_residuals, counts = jax.tree.map(np.asarray, measured)
    model, results, y = fit.model, np.asarray(fit.starts.result), np.asarray(fit.y, float)
    weights = found.weights.astype(float)
    mean = np.average(y, weights=weights)
    a, b = y - mean, found.fitted - mean
    products = ((p * q) @ weights for p, q in ((a, b), (a, a), (b, b)))
    is_predicted = np.isfinite(loo_residuals) & ~loo_empty
    squares = (loo_residuals**2, (y - mean) ** 2)
    left_out, about = (np.sum(weights * part, where=is_predicted) for part in squares)
    with np.errstate(divide="ignore", invalid="ignore"):  # no other row in reach; no residual df
        left_out_r_squared = float(1.0 - left_out / about)
        squares = n * np.average((a - b) ** 2, weights=weights)
        residual_sd = float(np.sqrt(squares / freedom.residual))
    kernel = getattr(model, "kernel", None)
    kernel = kernel if isinstance(kernel, Kernel) else None
    return Report(
        rows=n,
        smoother=model.description,
        kernel="" if kernel is None else kernel_expression(kernel, names),
        parameters={} if kernel is None else natural_parameters(kernel, names),
        criterion=type(fit.objective).__name__,
        loss=float(fit.loss),
        r_squared=float(next(products) ** 2 / (next(products) * next(products))),
        left_out_r_squared=left_out_r_squared,
        residual_sd=residual_sd,
        trace=float(freedom.trace),
        residual_df=float(freedom.residual),
        isolated_rows=int(np.sum(loo_empty)),
        deficient=int(np.sum(found.support.deficient)),
        extrapolates=int(np.sum(found.support.extrapolates & ~found.support.deficient)),
        least_count=float(np.min(counts)),
        median_count=float(np.median(counts)),
        starts=len(results),
        converged=int(np.sum(np.isin(results, (Result.CONVERGED, Result.AT_BOUND)))),
        diverged=int(np.sum(results == Result.DIVERGED)),
        pruned=int(np.sum(results == Result.PRUNED)),
        at_bound=int(np.sum(np.asarray(fit.starts.at_bound))),
        is_search=not np.any(results == Result.TRAINED),
        bounds=tuple(fit.on_bounds()),
        minima=() if fit.objective.is_stochastic else tuple(fit.minima(others=True)),
        warnings=(*fit.warnings(), *_warnings_of_interpolation(fit, float(freedom.residual))),
        dropped_rows=fit.dropped_rows,
    )


def _measure_rows(model: Estimator, _: Array, rows: Rows) -> Measured:
    """Returns the quantities that a report needs at the rows, from checked data."""
    estimate = model.estimate(None, rows)
    return measure_estimate(estimate, row_diagnostics(estimate))


def measure_estimate(estimate: Estimate, found: RowDiagnostics) -> Measured:
    """Returns the quantities that a report needs, from the estimate at the rows of a fit and the
    diagnostics of these rows.

    Left-out residuals of a linear smoother are residuals over one less the leverage, exact for
    local polynomials. Those of a `LocalLikelihood` are from fits without each row.
    """
    if isinstance(estimate.model, LocalLikelihood):
        loo_residuals = estimate.loo_residuals
    else:  # exact of local polynomials; of others a fit without each row would cost n fits
        left = jnp.maximum(1.0 - found.leverage, jnp.finfo(found.leverage.dtype).eps ** 0.5)
        loo_residuals = (estimate.rows.labels - found.fitted) / left
    counts = inverse_or_zero(found.squares)
    freedom = sum_degrees_of_freedom(found)
    return Measured(found, freedom, estimate.loo_empty, loo_residuals, counts)


def _warnings_of_interpolation(fit: Fit, residual: float) -> tuple[str, ...]:
    """Returns one text if fewer than one degree of freedom is left for the residuals, else ().

    `residual`: the residual degrees of freedom. The text suggests only what the fit does not do
    already.
    """
    if residual >= 1.0:
        return ()
    advice = {
        "more rows": True,
        "fewer columns": fit.x.shape[1] > 1,
        "a lower order": getattr(fit.model, "order", 0) > 0,
        "objective=ak.LeaveOneOut()": not isinstance(fit.objective, LeaveOneOut),
    }
    return (
        f"residual degrees of freedom {residual:.2f}: the fit passes through nearly all labels, so "
        f"that standard errors and limits tell nothing about new ones. Try "
        f"{' or '.join(words for words, is_new in advice.items() if is_new)}.",
    )
