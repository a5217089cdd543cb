"""Bands: a curve between two limits, printed as a table, and widths in standard errors."""

from collections.abc import Callable, Hashable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._core.arrays import is_concrete
from .._core.pandas_frames import (
    QueryFrame,
    column_number,
    display_names,
    is_frame,
    is_series,
    join_columns,
)
from .._core.rows import Rows
from .._core.text_tables import align_columns
from .._core.validation import as_integer_tuple
from ..fitting import Fit
from ..models import LinearSmoother


class Bands(eqx.Module):
    r"""A curve between two limits at inputs x: shapes (m, dim), and (m,) or (m, out).

    - `centre`, `standard_error`, `lower`, `upper`: in the units of y.
    - `level`: the nominal coverage; `kind`: `"pointwise"`, `"simultaneous"` or `"conformal"`.
    - `effective_count`, shape (m,): that of the centre, $1 / \sum_j L_j(x)^2$.
    - `reliable`, shape (m,): whether the effective count is at least 3 and the local polynomial is
      neither `deficient` nor `extrapolates` (`DataSupport`). Elsewhere the coverage of a band is
      below its level. Both are None for conformal intervals, whose coverage does not depend on
      them.
    - `is_bias_corrected`: whether the centre is that of the robust bias correction.
    - `derivative`: the order along each column of the derivative that is estimated, in units of y
      over those of x, or None for a band of the mean. The effective count is that of the mean.
    - `component`: the column of an additive fit whose curve is estimated, or None.
    - `rows`: the frame of the new inputs, None for arrays; `x_names`, `y_name`: those of the fit.

    `print` shows a table of the rows, and `frame()` returns them as a `DataFrame`.

    ```python
    >>> data = ak.data.load("mcycle")
    >>> fit = ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), data.x, data.y)
    >>> bands = ak.bands(fit, jnp.array([10.0, 30.0]))
    >>> bands.description, bands.lower.shape
    ('95 % pointwise, bias-corrected', (2,))

    ```
    """

    x: Float[Array, "m dim"]
    centre: Float[Array, "*rows"]
    standard_error: Float[Array, "*rows"]
    lower: Float[Array, "*rows"]
    upper: Float[Array, "*rows"]
    level: float = eqx.field(static=True)
    kind: str = eqx.field(static=True)
    effective_count: Float[Array, " m"] | None = None
    reliable: Bool[Array, " m"] | None = None
    is_bias_corrected: bool = eqx.field(static=True, default=False)
    derivative: tuple[int, ...] | None = eqx.field(static=True, default=None)
    component: int | None = eqx.field(static=True, default=None)
    rows: QueryFrame | None = eqx.field(static=True, repr=False, default=None)
    x_names: tuple[Hashable, ...] | None = eqx.field(static=True, repr=False, default=None)
    y_name: Hashable = eqx.field(static=True, repr=False, default=None)

    @property
    def description(self) -> str:
        """The level, the kind, and `estimated` if it is not empty, as text.

        Such as `95 % pointwise, bias-corrected, first derivative along age`.
        """
        corrected = ", bias-corrected" if self.is_bias_corrected else ""
        estimated = f", {self.estimated}" if self.estimated else ""
        return f"{100 * self.level:.4g} % {self.kind}{corrected}{estimated}"

    @property
    def estimated(self) -> str:
        """The estimated quantity as text; empty for the mean.

        Such as `first derivative along age`, `derivative (1, 1)`, or `curve of age`.
        """
        if self.component is not None:
            return f"curve of {display_names(self.x_names, self.x.shape[1])[self.component]}"
        if self.derivative is None:
            return ""
        along = np.flatnonzero(self.derivative)
        if len(along) > 1:
            return f"derivative {self.derivative}"
        (column,) = along
        name = ("first", "second")[self.derivative[column] - 1]
        of = f" along {display_names(self.x_names, len(self.derivative))[column]}"
        return f"{name} derivative{of if len(self.derivative) > 1 else ''}"

    def frame(self) -> Any:
        """A `DataFrame`: the columns of x, then `centre`, `standard_error`, `lower`, `upper`, and
        `reliable` unless it is None.

        It has the index of the frame of new inputs, if they were one. With several labels each of
        the four curves has a column for each label, such as `lower of wage`.
        """
        return join_columns(self.rows, self.x, self._columns())

    def __str__(self) -> str:
        if not all(eqx.is_array(leaf) and is_concrete(leaf) for leaf in jax.tree.leaves(self)):
            return repr(self)
        shown_parts = ("centre", "lower", "upper", "reliable")
        found = self._columns().items()
        columns = self._input_columns() | {
            key: of for key, of in found if key.startswith(shown_parts)
        }
        m = len(self.x)
        max_printed_rows = 10  # of a longer band the first and the last rows are printed
        half = max_printed_rows // 2
        rows = range(m) if m <= max_printed_rows else [*range(half), *range(m - half, m)]
        cells = [[name, *(_cell_text(values[i]) for i in rows)] for name, values in columns.items()]
        table = list(zip(*cells, strict=True))
        if m > max_printed_rows:
            table.insert(1 + half, ("...",) * len(cells))
        lines = align_columns(table, str.rjust)
        return "\n".join([f"{self.description}, {m} inputs", *lines])

    def _input_columns(self) -> dict[str, np.ndarray]:
        """Returns the columns of the inputs by name; categories of a frame stay text."""
        if self.rows is None:
            names = display_names(self.x_names, self.x.shape[1])
            return dict(zip(names, np.asarray(self.x).T, strict=True))
        frame = self.rows.frame
        frame = frame.to_frame() if is_series(frame) else frame
        return {str(name): frame[name].to_numpy() for name in frame.columns}

    def _columns(self) -> dict[str, np.ndarray]:
        """Returns centre, standard error and limits by name, one column per label, and `reliable`
        unless it is None."""
        found = {}
        for part in ("centre", "standard_error", "lower", "upper"):
            values = np.asarray(getattr(self, part))
            if values.ndim == 1:
                found[part] = values
                continue
            names = self.y_name if isinstance(self.y_name, tuple) else range(values.shape[1])
            found |= {f"{part} of {name}": values[:, i] for i, name in enumerate(names)}
        if self.reliable is not None:
            found["reliable"] = np.asarray(self.reliable)
        return found

    @classmethod
    def of_fit(cls, fit: Fit, x_new: Any, *parts: Any, **named: Any) -> "Bands":
        """Returns a band with the column names of a fit, and the index of `x_new` if it is a frame.

        `parts`, `named`: the fields of the band, as for `Bands`.
        """
        rows = QueryFrame(x_new) if is_frame(x_new) else None
        names = {"rows": rows, "x_names": fit.x_names, "y_name": fit.y_name}
        return cls(*parts, **named, **names)


def _cell_text(value: Any) -> str:
    """Returns a table entry as text: yes or no for a Boolean, six digits for a float."""
    if isinstance(value, np.bool_):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


MIN_RELIABLE_COUNT = 3.0  # labels, from which nominal 95 % bands covered .93 to .955


def critical_value(
    level: Float[Array, ""],
    rows: Rows,
    simulation: tuple[int, PRNGKeyArray | None],
    noise_and_error: Callable[[Float[Array, "n size"]], tuple[Array, Array]],
) -> Float[Array, ""]:
    """Returns the half-width of a band of the coverage `level`, in standard errors.

    `simulation`: the number of draws, and a key. Without a key the half-width is a quantile of the
    normal distribution. With a key it is a quantile, over the draws, of the maximum over all inputs
    of |simulated noise of the fit| / standard error.

    `noise_and_error`: maps standard normal numbers, one column per simulation, to the noise of the
    fit at the inputs and its standard error, each shape (m, size) or (m, 1).

    **Raises:** `ValueError` for a key with several labels per row.
    """
    (draws, key), y = simulation, rows.y
    if key is None:
        return norm.ppf(0.5 + 0.5 * level)
    if y.shape[1] != 1:
        raise ValueError(f"Simultaneous bands are of one label per row; y has shape {y.shape}.")
    max_simulated_numbers = 2**24  # at a time
    size = max(1, min(draws, max_simulated_numbers // len(y)))

    def simulate(key: PRNGKeyArray) -> Float[Array, " size"]:
        noise, error = noise_and_error(jax.random.normal(key, (len(y), size), y.dtype))
        return jnp.nanmax(jnp.abs(noise) / jnp.where(error > 0, error, jnp.inf), axis=0)

    found = jax.lax.map(simulate, jax.random.split(key, -(-draws // size)))
    return jnp.nanquantile(found.ravel()[:draws], level)


def bias_corrected(model: Any, rows: Rows) -> Any:
    """Returns the model of the robust bias correction, for the number of rows with weight.

    **Raises:** `ValueError` where the model has no correction.
    """
    corrected = model.bias_corrected(rows.count, rows.x.shape[1])
    if corrected is None:
        raise ValueError(
            f"The robust bias correction needs a local polynomial of a higher order than the fit, "
            f"up to 2, and is defined for a KernelRegression or a LocalLikelihood of order 0 or 1; "
            f"this fit is {model.description}: pass corrected=False."
        )
    return corrected


def as_derivative(derivative: Any, model: Any, dim: int, corrected: bool) -> tuple[int, ...]:
    """Returns the order of the derivative along each of `dim` columns.

    **Raises:** `ValueError` unless `derivative` has one order for each column, 0 for those of
    categories; and where the model, or with `corrected` that of its bias correction, has no such
    derivative.
    """
    orders = as_integer_tuple("derivative", derivative, 0)
    if corrected:  # of which only the order matters here
        higher = eqx.filter_eval_shape(lambda model: model.bias_corrected(2, dim), model)
        model = model if higher is None else higher
    found = model.derivative(orders) if isinstance(model, LinearSmoother) else None
    if found is None:
        raise ValueError(
            f"derivative= is defined for a KernelRegression; this fit is of a "
            f"{type(model).__name__}. Leave it out for a band of the mean."
        )
    found.check_columns(dim)
    return orders


def as_component(component: Any, fit: Fit) -> int:
    """Returns the number of a column, given by number or name; `ValueError` where there is no such
    column, or the model is no sum of curves."""
    column = column_number("component", component, fit.x.shape[1], fit.x_names)
    model = fit.model
    if not isinstance(model, LinearSmoother) or model.component(column) is None:
        raise ValueError(
            f"component= is defined for an AdditiveRegression; this fit is of a "
            f"{type(model).__name__}. Leave it out for a band of the mean."
        )
    return column
