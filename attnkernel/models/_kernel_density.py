"""Kernel densities as models: lengthscales by likelihood cross-validation, bounded supports."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.host_arrays import AnyArray, is_concrete, namespace_of
from .._core.validation import is_real_number, require_instance, value_text
from ..attention import Auto
from ..kernels import Compact, Gaussian, Kernel, Radial
from ..methods import Method
from ..priors import Prior
from ._data import with_bounds_of
from ._density_model import DensityModel, density_box, log_mean_kernel, with_lengthscale

IMAGE_PERIODS = 3  # on either side; beyond, a Gaussian of the length of the support has 3e-12 left


class KernelDensity(DensityModel):
    r"""A kernel density estimate as a model: its call returns the logarithm of the density.

    $$ \log \hat f(q) = \log \frac{\sum_j a_j \pi(q, j)\, K(q, x_j)}
       {\sum_j a_j \pi(q, j) \int K(q, u)\, \mathrm{d}u}, \qquad q, x_j \in \mathbb{R}^d $$

    `ak.fit(model, x)` minimises $-\frac1n \sum_i \log \hat f_{-i}(x_i)$, likelihood
    cross-validation, and with `objective=ak.objectives.UnbiasedCV()` an estimate of the integrated
    squared error. `np.exp(fit(x_new))` is the density. Repeated points make both favour a
    lengthscale near 0: a fit does not go below a tenth of 1.144 σ n^(−1/(d + 4)), as R's `bw.ucv`.

    **Arguments:**

    - `kernel`: K, as for `ak.density`.
    - `support`: (a, b), the interval that holds all points of a single column; one end may be
      infinite. The density is 0 outside, and inside the sum over the reflections of q at the ends,
      so that it integrates to 1. With two finite ends K is a `Gaussian` with a lengthscale up to
      b − a, or of compact support. Default: all numbers.
    - `method`: how sums are evaluated. Default: `Auto()`.

    **Raises:** `ValueError` for a kernel without a known integral, for points outside the support,
    and for a support of several columns.

    **Source:** Silverman, *Density estimation for statistics and data analysis* (1986), 2.10 and
    3.4.

    ```python
    x = np.random.default_rng(0).exponential(size=200)
    fit = ak.fit(ak.KernelDensity(ak.Gaussian(0.3), support=(0.0, np.inf)), x)
    print(fit.model.kernel, np.exp(fit(np.array([0.0, 1.0]))))
    ```
    """

    kernel: Kernel
    support: tuple[float, float] | None = eqx.field(static=True)
    method: Method

    def __init__(
        self,
        kernel: Kernel,
        *,
        support: tuple[float, float] | None = None,
        method: Method = Auto(),
    ):
        require_instance("kernel", kernel, Kernel, "ak.Gaussian(0.3)")
        require_instance("method", method, Method, "ak.attention.Auto()")
        self.kernel, self.method = kernel, method
        self.support = None if support is None else _as_support(support, kernel)

    def check_points(self, q: Float[Array, "m dim"], k: Float[Array, "n dim"]) -> None:
        self.kernel.check(q.shape[1], k.shape[1])
        if self.support is None:
            return
        if k.shape[1] != 1:
            raise ValueError(f"A support is of one column; x has {k.shape[1]}.")
        low, high = self.support
        if is_concrete(k) and not np.all((np.asarray(k) >= low) & (np.asarray(k) <= high)):
            raise ValueError(f"x must lie in the support, between {low:g} and {high:g}.")

    def log_density(
        self,
        q: Float[Array, "m dim"],
        k: Float[Array, "n dim"],
        prior: Prior | None,
        weights: Array | None,
    ) -> Float[Array, " m"]:
        log_integral = self.kernel.log_normaliser(k.shape[1])
        parts = (self.kernel, prior, weights, self.method)
        if self.support is None:
            found = log_mean_kernel(q, k, *parts)
            return found - log_integral.astype(found.dtype)
        inside = (q >= self.support[0]) & (q <= self.support[1])
        images = self._images(jnp.where(inside, q, k[:1]))
        logs = jnp.stack([log_mean_kernel(each, k, *parts) for each in images])
        found = jax.nn.logsumexp(logs, axis=0) - log_integral.astype(logs.dtype)
        return jnp.where(inside[:, 0], found, -jnp.inf)

    def _images(self, q: Float[Array, "m 1"]) -> list[Float[Array, "m 1"]]:
        """Returns q and its reflections at the ends of the support."""
        assert self.support is not None
        low, high = self.support
        if math.isinf(low) or math.isinf(high):
            end = low if math.isinf(high) else high
            return [q, 2.0 * end - q]
        shifts = 2.0 * (high - low) * np.arange(-IMAGE_PERIODS, IMAGE_PERIODS + 1)
        return [each + shift for each in (q, 2.0 * low - q) for shift in shifts.tolist()]

    def category_counts(self, dim: int) -> dict[int, int | None]:
        return self.kernel.category_counts(dim)

    def search_box(
        self, x: Float[AnyArray, "n dim"], weights: AnyArray | None = None
    ) -> tuple[Any, Any]:
        """The box of the kernel; a lengthscale of a `Gaussian` or another kernel of the distance is
        at least a tenth of 1.144 σ n^(−1/(d + 4)), and at most the length of a bounded support."""
        lower, upper = density_box(self.kernel, x, weights)
        if self.support is not None and not any(map(math.isinf, self.support)):
            xp, length = namespace_of(x), self.support[1] - self.support[0]
            longest = xp.minimum(xp.asarray(upper.lengthscale), xp.asarray(length, x.dtype))
            upper = with_lengthscale(upper, longest)
        return with_bounds_of("kernel", self, (lower, upper))


def _as_support(support: Any, kernel: Kernel) -> tuple[float, float]:
    """Returns the ends of an interval; `ValueError` unless one is finite and the kernel fits."""
    ends = tuple(support) if isinstance(support, tuple | list) else ()
    valid = len(ends) == 2 and all(
        is_real_number(end) or (isinstance(end, float) and math.isinf(end)) for end in ends
    )
    low, high = map(float, ends) if valid else (0.0, 0.0)
    if not low < high or (math.isinf(low) and math.isinf(high)):
        raise ValueError(
            f"support must be the two ends of an interval, of which one may be infinite, such as "
            f"(0.0, np.inf); got {value_text(support)}."
        )
    if not isinstance(kernel, Radial) or kernel.metric_parameter is not None:
        raise ValueError(
            f"A support reflects a kernel of the distance of one column, such as ak.Gaussian(0.3); "
            f"kernel is {kernel}."
        )
    if math.isfinite(low) and math.isfinite(high):
        if not isinstance(kernel, Gaussian | Compact):
            raise ValueError(
                f"With a support of two finite ends kernel must be ak.Gaussian or of compact "
                f"support: the reflections of {kernel} do not end."
            )
        longest = kernel.lengthscale
        if is_concrete(longest) and np.any(np.asarray(longest) > high - low):
            raise ValueError(
                f"The lengthscale of the kernel is {float(np.max(np.asarray(longest))):.6g}: it "
                f"must be at most the length of the support, {high - low:.6g}."
            )
    return low, high
