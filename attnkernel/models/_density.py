"""Kernel density: the log-mass of attention, without values."""

import math

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_points, require_finite
from .._core.regression_data import as_weights
from .._core.validation import require_bool, require_instance
from ..attention import Auto, attend
from ..kernels import Kernel
from ..methods import Method
from ._data import with_weights


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
    print(ak.density(np.array([0.0, 1.0]), x, kernel=ak.Gaussian(ak.normal_reference(x))))
    ```
    """
    k, q = as_points("x", x), as_points("x_new", x_new)
    require_bool("log", log)
    require_instance("kernel", kernel, Kernel, "ak.Gaussian(0.3)")
    for name, points in (("x_new", q), ("x", k)):
        require_finite(name, points)
    if not len(k):
        raise ValueError("A density needs at least one point: x has none.")
    kernel.check(q.shape[1], k.shape[1])
    log_integral, log_total = kernel.log_normaliser(k.shape[1]), math.log(len(k))
    prior = with_weights(None, weights, k)
    if weights is not None:
        log_total = jnp.log(jnp.sum(as_weights(weights, len(k))))
    parts = {"kernel": kernel, "prior": prior, "method": method}
    _, log_mass = attend(q, k, k[:, :0], **parts, return_log_mass=True)
    log_density = log_mass - (log_integral + log_total).astype(log_mass.dtype)
    return log_density if log else jnp.exp(log_density)
