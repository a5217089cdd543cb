"""The widths of bands in standard errors, and the bias correction of the fits in their middle."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Float, PRNGKeyArray

from .._core.rows import Rows
from .._core.validation import as_integer_tuple
from ..fitting import Fit
from ..models import LinearSmoother

MIN_RELIABLE_COUNT = 3.0  # labels, from which nominal 95 % bands covered .93 to .955


def critical_value(
    level: Float[Array, ""],
    rows: Rows,
    draws: int,
    key: PRNGKeyArray | None,
    noise_and_error: Callable[[Float[Array, "n size"]], tuple[Array, Array]],
) -> Float[Array, ""]:
    """Returns the half-width of a band of the coverage `level`, in standard errors.

    Without a `key` a quantile of the normal distribution; else that of the maximum of
    |noise of the fit| / standard error over all inputs, of `draws` simulations.

    `noise_and_error`: from standard normal numbers, one column per simulation, the noise of the fit
    to labels y and its standard error, each shape (m, size) or (m, 1).
    """
    if key is None:
        return norm.ppf(0.5 + 0.5 * level)
    y = rows.y
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
    """Returns the order of the derivative along each of `dim` columns; `ValueError` where the
    model, or the one of its bias correction, has no such derivative."""
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
    dim, names = fit.x.shape[1], fit.x_names or ()
    if isinstance(component, str) and component in names:
        column = names.index(component)
    elif (
        isinstance(component, int | np.integer)
        and not isinstance(component, bool)
        and component in range(dim)
    ):
        column = int(component)
    else:
        known = f", or one of {list(names)}" if names else ""
        raise ValueError(
            f"component must be the number of a column, from 0 to {dim - 1}{known}; got "
            f"{component!r}."
        )
    model = fit.model
    if not isinstance(model, LinearSmoother) or model.component(column) is None:
        raise ValueError(
            f"component= is defined for an AdditiveRegression; this fit is of a "
            f"{type(model).__name__}. Leave it out for a band of the mean."
        )
    return column
