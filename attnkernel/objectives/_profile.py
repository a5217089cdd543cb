"""The objective as a function of the lengthscale alone."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_real_array
from .._core.parameters import Positive, log_of
from .._core.rows import Inputs, Labels, Rows
from .._core.validation import require_instance, require_positive
from ..attention import jit_if_pure
from ._objective import Objective, Sample


def profile(
    model: Any, x: ArrayLike, y: ArrayLike, lengthscales: ArrayLike, *, objective: Objective
) -> Float[Array, " grid"]:
    r"""The profile of a deterministic objective, $\ell \mapsto L(f_\ell, x, y)$.

    ```python
    data = ak.data.load("mcycle")
    model = ak.KernelRegression(ak.Gaussian(1.0))
    at = jnp.array([0.5, 1.0, 2.0])
    losses = ak.profile(model, data.x, data.y, at, objective=ak.LeaveOneOut())
    ```

    **Arguments:**

    - `model`: has a `kernel` with one lengthscale, which is replaced.
    - `x`, `y`: as for `fit`.
    - `lengthscales`: shape (grid,), in the units of x.
    - `objective`: for example `LeaveOneOut()`.

    **Returns:** shape (grid,). Lengthscales are evaluated one after the other, so that memory does
    not grow with the grid.

    **Raises:** `ValueError` if a lengthscale is not positive, the kernel has no or several
    lengthscales, or the objective is stochastic.
    """
    require_positive("lengthscales", lengthscales)
    if np.ndim(lengthscales) != 1:
        raise ValueError(
            f"lengthscales must have shape (grid,); got {np.shape(lengthscales)}. For one use "
            f"[lengthscale]."
        )
    at = as_real_array("lengthscales", lengthscales)
    require_positive("lengthscales", at)  # also once rounded
    require_instance("objective", objective, Objective, "ak.LeaveOneOut()")
    if not hasattr(getattr(model, "kernel", None), "lengthscale_parameter"):
        raise ValueError(
            f"model must have a kernel with a lengthscale, such as "
            f"ak.KernelRegression(ak.Gaussian(0.3)); got {model!r}."
        )
    if objective.is_stochastic:
        raise ValueError(f"{type(objective).__name__} draws rows at random: it has no profile.")
    if model.kernel.lengthscale_parameter.shape:
        raise ValueError("A profile is over one lengthscale; this kernel has several.")
    rows = Rows.read(x, y)
    sample = Sample(rows.x, rows.labels, objective).sorted_by_input().padded(model)
    points, labels, objective = sample
    parts = (model, objective, log_of(at, jnp.result_type(float)))
    return jit_if_pure(_losses, parts, points, labels)


def _losses(
    model: Any, objective: Objective, logs: Float[Array, " grid"], x: Inputs, y: Labels
) -> Float[Array, " grid"]:
    """Returns the objective for the logarithms of lengthscales, one after the other."""

    def at(lengthscale: Positive) -> Array:
        moved = eqx.tree_at(lambda tree: tree.kernel.lengthscale_parameter, model, lengthscale)
        return objective(moved, x, y)

    return jax.lax.map(at, Positive(logs, 0))
