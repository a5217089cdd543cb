"""The objective as a function of the lengthscale alone."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_points, as_real_array, require_finite
from .._core.regression_data import require_regression_shapes
from .._core.validation import require_instance, require_positive
from ._objective import Objective, arranged


def profile(
    model: Any, x: ArrayLike, y: ArrayLike, lengthscales: ArrayLike, *, objective: Objective
) -> Float[Array, " grid"]:
    r"""A deterministic objective at each of several lengthscales, $\ell \mapsto L(f_\ell, x, y)$.

    **Arguments:** `model`: with a `kernel` that has one lengthscale; `x`, `y`: as for `fit`;
    `lengthscales`: shape (grid,), in the units of x; `objective`: for example `LeaveOneOut()`.

    **Returns:** shape (grid,), evaluated one after the other, so that memory does not grow.
    """
    require_positive("lengthscales", lengthscales)
    if np.ndim(lengthscales) != 1:
        raise ValueError(
            f"lengthscales must have shape (grid,); got {np.shape(lengthscales)}. For one use "
            f"[lengthscale]."
        )
    require_positive("lengthscales", jnp.asarray(lengthscales))  # also once rounded
    require_instance("objective", objective, Objective, "ak.LeaveOneOut()")
    if not hasattr(getattr(model, "kernel", None), "log_lengthscale"):
        raise ValueError(
            f"model must have a kernel with a lengthscale, such as "
            f"ak.KernelRegression(ak.Gaussian(0.3)); got {model!r}."
        )
    if objective.is_stochastic:
        raise ValueError(f"{type(objective).__name__} is drawn anew each time: it has no profile.")
    if jnp.ndim(model.kernel.log_lengthscale) != 0:
        raise ValueError("A profile is over one lengthscale; this kernel has several.")
    points, labels = as_points("x", x), as_real_array("y", y)
    require_regression_shapes(points, labels)
    require_finite("x", points)
    require_finite("y", labels[:, None] if labels.ndim == 1 else labels)
    points, labels, objective = arranged(points, labels, objective)

    def at(log_lengthscale: Array) -> Array:
        moved = eqx.tree_at(lambda tree: tree.kernel.log_lengthscale, model, log_lengthscale)
        return objective(moved, points, labels)

    logs = jnp.log(jnp.asarray(lengthscales)).astype(model.kernel.log_lengthscale.dtype)
    return jax.lax.map(at, logs)
