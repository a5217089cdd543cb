"""Kernel density: the log-mass of attention, without values."""

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_points, require_finite
from .._core.host_arrays import is_concrete
from .._core.validation import require_bool
from ..attention import Auto
from ..kernels import Kernel
from ..methods import Method
from ..priors import Prior
from ._kernel_density import KernelDensity
from ._prediction import on_padded_rows


def density(
    x_new: ArrayLike,
    x: ArrayLike,
    *,
    kernel: Kernel,
    weights: ArrayLike | None = None,
    log: bool = False,
    method: Method = Auto(),
) -> Float[Array, " m"]:
    r"""The kernel density estimate of points, at new points.

    $$ \hat p(q) = \frac{\sum_j a_j K(q, x_j)}{\sum_j a_j \int K(q, u)\, \mathrm{d}u},
       \qquad q, x_j \in \mathbb{R}^d $$

    **Arguments:**

    - `x_new`: q, shape (m, dim) or (m,); `x`: shape (n, dim) or (n,), n at least 1.
    - `kernel`: K, a function of the distance, such as `Gaussian(normal_reference(x))`. Over columns
      of categories the integral is a sum: `AitchisonAitken`, `WangVanRyzin`. Mixed data take a
      product, one factor for each column: `Gaussian(0.3).on(0) * AitchisonAitken(0.1, 3).on(1)`.
    - `weights`: a, of each point, shape (n,), from 0. A weight of 2 counts as two points.
      Default: 1.
    - `log`: whether to return $\log \hat p$, which does not underflow far away. Default: no.
    - `method`: how the sum is evaluated. Default: `Auto()`, which may sum many pairs to a relative
      1e-6; `Blockwise()` is exact.

    **Returns:** shape (m,), in the inverse of the product of the units of x; its logarithm is -inf
    beyond the support of compact kernels.

    **Raises:** `ValueError` for a kernel without a finite known integral: infinite, as `Cauchy` in
    two dimensions or `RationalQuadratic` with α ≤ d/2 (inside `jit`, NaN), or unknown, as
    `Periodic` or `DotProduct`; for no points, or invalid weights.

    **Source:** Parzen, *On estimation of a probability density function and mode* (1962);
    Silverman, *Density estimation for statistics and data analysis* (1986).

    ```python
    x = np.random.default_rng(0).normal(size=100)
    print(ak.density(np.array([0.0, 1.0]), x, kernel=ak.Gaussian(ak.inference.normal_reference(x))))
    ```
    """
    k, q = as_points("x", x), as_points("x_new", x_new)
    require_bool("log", log)
    for name, points in (("x_new", q), ("x", k)):
        require_finite(name, points)
    if not len(k):
        raise ValueError("A density needs at least one point: x has none.")
    model = KernelDensity(kernel, method=method)
    model.kernel.check(q.shape[1], k.shape[1])
    found = on_padded_rows(_density, model, None, weights, q, k, k, log)
    if is_concrete(found) and np.any(np.isnan(found)):
        kernel.log_normaliser(k.shape[1])  # raises where it is infinite
    return found


def _density(
    model: KernelDensity,
    prior: Prior | None,
    weights: Array | None,
    log: bool,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    labels: Array,
) -> Float[Array, " m"]:
    """Returns the density or its logarithm; a function of what `on_padded_rows` passes."""
    log_density = model.log_density(q, k, prior, weights)
    return log_density if log else jnp.exp(log_density)
