"""Densities as models: what they share, and the bounds of their lengthscales."""

import abc
from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_points, as_real_array, require_finite, wider_dtype
from .._core.host_arrays import AnyArray, namespace_of
from .._core.regression_data import as_weights, is_positive
from ..attention import attend
from ..kernels import Gaussian, Kernel, Radial
from ..methods import Method
from ..priors import ExcludeSelf, Prior
from ._data import with_weights
from ._prediction import on_padded_rows
from ._smoother import Smoother

SHORTEST_SHARE = 0.1  # of the lengthscale beyond which every density is oversmoothed


def log_mean_kernel(
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    kernel: Kernel,
    prior: Prior | None,
    weights: ArrayLike | None,
    method: Method,
) -> Float[Array, " m"]:
    """Returns the logarithm of the weighted mean of K(q, k_j) over the points that q sees."""
    parts: dict[str, Any] = {"method": method, "return_log_mass": True}
    empty, both = k[:, :0], with_weights(prior, weights, k)
    log_mass = attend(q, k, empty, kernel=kernel, prior=both, **parts)[1]
    return log_mass - _log_seen(q, k, prior, weights, parts).astype(log_mass.dtype)


def _log_seen(
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    prior: Prior | None,
    weights: ArrayLike | None,
    parts: dict[str, Any],
) -> Float[Array, "..."]:
    """Returns the logarithm of the sum of the weights that each query sees."""
    dtype = wider_dtype(k.dtype)  # a sum of weights may overflow half precision
    each = jnp.ones(len(k), dtype) if weights is None else as_weights(weights, len(k))
    each = each.astype(dtype)
    if prior is None:
        return jnp.log(jnp.sum(each))
    if isinstance(prior, ExcludeSelf) and len(q) == len(k):
        return jnp.log(jnp.sum(each) - each)
    flat = Gaussian(1.0)  # of points at one place: K = 1
    both = with_weights(prior, weights, k)
    return attend(0.0 * q, 0.0 * k, k[:, :0], kernel=flat, prior=both, **parts)[1]


class DensityModel(Smoother):
    """A density of points x, fitted without labels: `ak.fit(model, x)`.

    The prediction is the logarithm of the density, and the default score of left-out rows minus
    that: `ak.LeaveOneOut()` is likelihood cross-validation.

    ```python
    >>> isinstance(ak.KernelDensity(ak.Gaussian(0.3)), ak.models.DensityModel)
    True

    ```
    """

    method: eqx.AbstractVar[Method]

    def __call__(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike | None = None,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> Float[Array, " m"]:
        """The logarithm of the density at new points; -inf where none is in reach.

        **Arguments:** `x_new`: shape (m,) or (m, dim); `x`: points, shape (n,) or (n, dim); `y`:
        ignored; `prior`: which points each query sees; `weights`: of points, shape (n,), from 0.
        """
        q, k = as_points("x_new", x_new), as_points("x", x)
        for name, points in (("x_new", q), ("x", k)):
            require_finite(name, points)
        if not len(k):
            raise ValueError("A density needs at least one point: x has none.")
        self.check_points(q, k)
        return on_padded_rows(_log_density, self, prior, weights, q, k, k, True)

    @abc.abstractmethod
    def check_points(self, q: Float[Array, "m dim"], k: Float[Array, "n dim"]) -> None:
        """Raises `ValueError` for new points q or points k that the model cannot have."""

    @abc.abstractmethod
    def log_density(
        self,
        q: Float[Array, "m dim"],
        k: Float[Array, "n dim"],
        prior: Prior | None,
        weights: Array | None,
    ) -> Float[Array, " m"]:
        """Returns the logarithm of the density at checked points q, from points k."""

    @property
    def can_pad_rows(self) -> bool:
        return True

    def deviance(self, prediction: ArrayLike, y: ArrayLike) -> Float[Array, " n"]:
        """Minus the log-density of each row: what a fit averages."""
        return -as_real_array("prediction", prediction)


def _log_density(
    model: DensityModel,
    prior: Prior | None,
    weights: Array | None,
    _: bool,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    labels: Array,
) -> Float[Array, " m"]:
    """Returns `log_density`; a function of the arguments that `on_padded_rows` passes."""
    return model.log_density(q, k, prior, weights)


def density_box(
    kernel: Kernel, x: Float[AnyArray, "n dim"], weights: AnyArray | None
) -> tuple[Any, Any]:
    """Returns the box of a kernel, whose lengthscale, if it is of the distance, is not below a
    tenth of 1.144 σ n^(−1/(d + 4)): repeated points would make 0 the best."""
    lower, upper = kernel.search_box(x, weights)
    if not isinstance(kernel, Radial) or kernel.metric_parameter is not None:
        return lower, upper
    xp = namespace_of(x)
    here = xp.ones(len(x), bool) if weights is None else is_positive(weights)
    count = xp.sum(here).astype(x.dtype)
    centre = xp.sum(xp.where(here[:, None], x, 0.0), axis=0) / count
    squares = xp.where(here[:, None], (x - centre[None, :]) ** 2, 0.0)
    spread = xp.sqrt(xp.sum(squares, axis=0) / (count - 1.0))
    least = SHORTEST_SHARE * 1.144 * spread * count ** (-1.0 / (x.shape[1] + 4))
    if kernel.lengthscale_parameter.shape == ():
        least = xp.min(xp.where(spread > 0, least, xp.inf))
    return with_lengthscale(
        lower, xp.maximum(xp.asarray(cast(Any, lower).lengthscale), least)
    ), upper


def with_lengthscale(kernel: Any, lengthscale: AnyArray) -> Any:
    """Returns the kernel with another lengthscale."""
    parameter = kernel.lengthscale_parameter.at(lengthscale)
    return eqx.tree_at(lambda kernel: kernel.lengthscale_parameter, kernel, parameter)
