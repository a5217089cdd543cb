"""Kernel densities: the log-mass of attention, without values, as a function and as models."""

import abc
import functools
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._core.arrays import AnyArray, as_real_array, is_concrete, namespace_of, wider_dtype
from .._core.rows import Inputs, NewInputs, Rows, is_positive
from .._core.validation import as_integer, is_real_number, require_bool, require_key, value_text
from ..attention import Auto, attend
from ..kernels import Compact, Gaussian, Kernel, Radial, category_counts
from ..methods import Method
from ..priors import ExcludeSelf, Prior
from ..rules import Softmax
from ._smoother import Smoother, on_padded_rows, require_parts, with_bounds_of, with_weights


def log_mean_kernel(
    prior: Prior | None, q: NewInputs, rows: Rows, kernel: Kernel, method: Method
) -> Float[Array, " m"]:
    """Returns the logarithm of the weighted mean of K(q, k_j) over the points that q sees.

    It is -inf where every K is 0, and NaN where q sees no point.
    """
    parts: dict[str, Any] = {"method": method, "return_log_mass": True}
    k, both = rows.x, with_weights(prior, rows)
    empty = k[:, :0]
    log_mass = attend(q, k, empty, kernel=kernel, prior=both, **parts)[1]
    # of the weights that each query sees, whose sum may overflow half precision
    each = rows.row_weights(wider_dtype(k.dtype))
    if prior is None:
        log_seen = jnp.log(jnp.sum(each))
    elif isinstance(prior, ExcludeSelf) and len(q) == len(k):
        log_seen = jnp.log(jnp.sum(each) - each)
    else:
        flat = Gaussian(1.0)  # of points at one place: K = 1
        log_seen = attend(0.0 * q, 0.0 * k, empty, kernel=flat, prior=both, **parts)[1]
    return log_mass - log_seen.astype(log_mass.dtype)


def read_points(x_new: Any, x: Any, weights: Any) -> tuple[NewInputs, Rows]:
    """Returns the new points, and x with its weights as `Rows`, whose labels are x too.

    Raises `ValueError` as `Rows.read`, and if x has no point.
    """
    rows, names = Rows.read_named(x, x, weights)
    q = rows.queries(x_new, {}, names)
    if not len(rows.x):
        raise ValueError("A density needs at least one point: x has none.")
    return q, rows


class DensityModel(Smoother):
    """A density of points x, fitted without labels: `ak.fit(model, x)`.

    The prediction is the logarithm of the density. The default score of a left-out row is minus
    this logarithm: `ak.LeaveOneOut()` is likelihood cross-validation.

    ```python
    >>> isinstance(ak.KernelDensity(ak.Gaussian(0.3)), ak.models.DensityModel)
    True

    ```
    """

    method: eqx.AbstractVar[Method]
    can_pad_rows: ClassVar[bool] = True

    def __call__(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike | None = None,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> Float[Array, " m"]:
        """The logarithm of the density at new points; -inf where no point is in reach, NaN where
        the prior hides all.

        **Arguments:** `x_new`: shape (m,) or (m, dim); `x`: points, shape (n,) or (n, dim); `y`:
        ignored; `prior`: which points each query sees; `weights`: of points, shape (n,), from 0.
        """
        q, rows = read_points(x_new, x, weights)
        self.check_points(q, rows.x)
        return on_padded_rows(type(self).log_density, self, prior, q, rows)

    @abc.abstractmethod
    def check_points(self, q: NewInputs, k: Float[Array, "n dim"]) -> None:
        """Raises `ValueError` for new points q or points k that the model cannot have."""

    @abc.abstractmethod
    def log_density(self, prior: Prior | None, q: NewInputs, rows: Rows) -> Float[Array, " m"]:
        """Returns the logarithm of the density at checked points q, from those of the rows."""

    def deviance(self, prediction: ArrayLike, y: ArrayLike) -> Float[Array, " n"]:
        """Minus the log-density of each row, which is its `prediction`: what a fit averages.

        `y` is ignored.
        """
        return -as_real_array("prediction", prediction)


def density_box(kernel: Kernel, x: Inputs, weights: AnyArray | None) -> tuple[Any, Any]:
    """Returns the bounds of a kernel in a fit, as two kernels (lower, upper).

    The lengthscale of a `Radial` kernel without a metric is at least a tenth of
    1.144 σ n^(−1/(d + 4)): repeated points would make 0 the best. σ is the standard deviation of
    a column of x, for one lengthscale the smallest above 0; n counts the points with weight.
    """
    lower, upper = kernel.search_box(x, weights)
    if not isinstance(kernel, Radial) or kernel.metric_parameter is not None:
        return lower, upper
    xp = namespace_of(x)
    here = xp.ones(len(x), bool) if weights is None else is_positive(weights)
    count = xp.sum(here).astype(x.dtype)
    centre = xp.sum(xp.where(here[:, None], x, 0.0), axis=0) / count
    squares = xp.where(here[:, None], (x - centre[None, :]) ** 2, 0.0)
    spread = xp.sqrt(xp.sum(squares, axis=0) / (count - 1.0))
    shortest_share = 0.1  # of the lengthscale beyond which every density is oversmoothed
    least = shortest_share * 1.144 * spread * count ** (-1.0 / (x.shape[1] + 4))
    if kernel.lengthscale_parameter.shape == ():
        least = xp.min(xp.where(spread > 0, least, xp.inf))
    lower = cast(Any, lower)
    return lower.with_lengthscale(xp.maximum(xp.asarray(lower.lengthscale), least)), upper


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

    - `kernel`: K, as for `ak.density`; `ak.Periodic(0.5, 24.0)` for points round a circle.
    - `support`: (a, b), the interval that holds all points of a single column, or a list of one for
      each column; ends may be infinite. The density is 0 outside, and inside the sum over the
      reflections of q at the ends, so that it integrates to 1. With two finite ends K is a
      `Gaussian` with a lengthscale up to b − a, or of compact support; such a column takes 14 sums
      in place of one, two of them 196. Default: all numbers.
    - `method`: how sums are evaluated. Default: `Auto()`.

    **Raises:** `ValueError` for a kernel without a known integral, for points outside the support,
    and for a support of another number of columns.

    **Source:** Silverman, *Density estimation for statistics and data analysis* (1986), 2.10 and
    3.4.

    ```python
    x = np.random.default_rng(0).exponential(size=200)
    fit = ak.fit(ak.KernelDensity(ak.Gaussian(0.3), support=(0.0, np.inf)), x)
    print(fit.model.kernel, np.exp(fit(np.array([0.0, 1.0]))))
    print(fit.model.cdf(np.array([1.0]), x), fit.model.sample(jax.random.PRNGKey(0), 3, x))
    ```
    """

    kernel: Kernel
    support: tuple[tuple[float, float], ...] | None = eqx.field(static=True)
    method: Method

    def __init__(
        self,
        kernel: Kernel,
        *,
        support: tuple[float, float] | Sequence[tuple[float, float]] | None = None,
        method: Method = Auto(),
    ):
        require_parts(kernel, Softmax(), method)
        self.kernel, self.method = kernel, method
        self.support = None if support is None else _as_support(support, kernel)

    def check_points(self, q: NewInputs, k: Float[Array, "n dim"]) -> None:
        """Raises `ValueError` if q and k do not fit the kernel, or k does not lie in the support.

        New points q may lie outside the support. Inside `jit` positions are not checked.
        """
        self.kernel.check(q.shape[1], k.shape[1])
        if self.support is None:
            return
        if k.shape[1] != len(self.support):
            raise ValueError(
                f"support needs an interval for each column of x; it has {len(self.support)}, and "
                f"x has {k.shape[1]}."
            )
        columns = np.asarray(k).T if is_concrete(k) else ()
        for column, (low, high) in zip(columns, self.support, strict=False):
            if not np.all((column >= low) & (column <= high)):
                raise ValueError(f"x must lie in the support, between {low:g} and {high:g}.")

    def log_density(self, prior: Prior | None, q: NewInputs, rows: Rows) -> Float[Array, " m"]:
        log_integral = self.kernel.log_normaliser(rows.x.shape[1])
        parts = (rows, self.kernel, self.method)
        if self.support is None:
            found = log_mean_kernel(prior, q, *parts)
            return found - log_integral.astype(found.dtype)
        low, high = np.asarray(self.support, q.dtype).T[:, None]
        inside = (q >= low) & (q <= high)
        q, of_columns = jnp.where(inside, q, rows.x[:1]), map(_reflections, self.support)
        images = np.array(list(itertools.product(*of_columns)), q.dtype)  # sign and shift by column

        def of_image(image: Float[Array, "dim 2"]) -> Float[Array, " m"]:
            return log_mean_kernel(prior, image[None, :, 0] * q + image[None, :, 1], *parts)

        logs = jax.lax.map(of_image, jnp.asarray(images))
        found = jax.nn.logsumexp(logs, axis=0) - log_integral.astype(logs.dtype)
        return jnp.where(jnp.all(inside, axis=1), found, -jnp.inf)

    def cdf(
        self, x_new: ArrayLike, x: ArrayLike, *, weights: ArrayLike | None = None
    ) -> Float[Array, " m"]:
        r"""The distribution function of the density, of a `Gaussian` without a metric.

        $$ \hat F(q) = \sum_j a_j \prod_c \Phi\Big( \frac{q_c - x_{jc}}{\ell_c} \Big) \Big/
           \sum_j a_j $$

        With a support the terms of the reflections are added. Arguments as of the call.

        **Raises:** `ValueError` for another kernel.
        """
        self._gaussian_lengthscale()
        q, rows = read_points(x_new, x, weights)
        self.check_points(q, rows.x)
        return on_padded_rows(_cdf, self, None, q, rows)

    def sample(
        self, key: PRNGKeyArray, number: int, x: ArrayLike, *, weights: ArrayLike | None = None
    ) -> Float[Array, "number dim"]:
        """Independent draws from the density, of a `Gaussian` without a metric.

        **Arguments:** `key`: a PRNG key; `number`: of draws, at least 1; others as of the call.

        **Raises:** `ValueError` for another kernel.
        """
        lengthscale = self._gaussian_lengthscale()
        require_key("key", key)
        number, (_, rows) = as_integer("number", number, 1), read_points(x, x, weights)
        self.check_points(rows.x, rows.x)
        shape = (number, rows.x.shape[1])
        of_row, of_noise = jax.random.split(key)
        shares = rows.row_weights(rows.x.dtype)
        chosen = jax.random.choice(of_row, len(rows.x), shape[:1], p=shares / jnp.sum(shares))
        noise = jax.random.normal(of_noise, shape, rows.x.dtype)
        return self._folded(rows.x[chosen] + jnp.broadcast_to(lengthscale, shape) * noise)

    def _gaussian_lengthscale(self) -> Float[Array, "..."]:
        """Returns the lengthscale; `ValueError` unless K is a `Gaussian` without a metric."""
        if type(self.kernel) is not Gaussian or self.kernel.metric_parameter is not None:
            raise ValueError(
                f"Distribution functions and draws are of ak.Gaussian(...), without a metric; "
                f"kernel is {self.kernel}."
            )
        return self.kernel.lengthscale

    def _folded(self, x: Float[Array, "m dim"]) -> Float[Array, "m dim"]:
        """Returns points, those outside the support reflected into it at its ends."""
        columns = [_folded(*both) for both in zip(x.T, self.support or (), strict=False)]
        return jnp.stack(columns, axis=1) if columns else x

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """Returns the `category_counts` of the kernel: {column: number of categories, or None}."""
        return category_counts(self.kernel, dim)

    def search_box(self, x: Inputs, weights: AnyArray | None = None) -> tuple[Any, Any]:
        """Returns the box for a fit, as two models with the bounds of the kernel.

        A lengthscale of a `Gaussian` or another kernel of the distance is at least a tenth of
        1.144 σ n^(−1/(d + 4)), and at most the length of a bounded support.
        """
        lower, upper = density_box(self.kernel, x, weights)
        if self.support is not None:
            xp, longest = namespace_of(x), np.subtract(*np.transpose(self.support)[::-1])
            longest = longest if xp.ndim(upper.lengthscale) else np.min(longest)
            longest = xp.minimum(xp.asarray(upper.lengthscale), xp.asarray(longest, x.dtype))
            upper = upper.with_lengthscale(longest)
        return with_bounds_of("kernel", self, (lower, upper))


def _reflections(interval: tuple[float, float]) -> list[tuple[int, float]]:
    """Returns the reflections of a number x at the finite ends of an interval, as (sign, shift).

    An image is sign · x + shift; one of them is x itself. With two finite ends, images are up to
    `IMAGE_PERIODS` periods away, where a period is twice the length of the interval.
    """
    low, high = interval
    if math.isinf(low) or math.isinf(high):
        end = low if math.isinf(high) else high
        return [(1, 0.0)] if math.isinf(end) else [(1, 0.0), (-1, 2.0 * end)]
    shifts = (2.0 * (high - low) * np.arange(-IMAGE_PERIODS, IMAGE_PERIODS + 1)).tolist()
    return [(1, shift) for shift in shifts] + [(-1, 2.0 * low + shift) for shift in shifts]


def _folded(x: Float[Array, " m"], interval: tuple[float, float]) -> Float[Array, " m"]:
    """Returns numbers, those outside an interval reflected into it at its ends."""
    low, high = interval
    if math.isfinite(low) and math.isfinite(high):
        beyond = jnp.mod(x - low, 2.0 * (high - low))
        return low + jnp.minimum(beyond, 2.0 * (high - low) - beyond)
    if math.isfinite(low):
        return low + jnp.abs(x - low)
    return x if math.isinf(high) else high - jnp.abs(high - x)


def _as_support(support: Any, kernel: Kernel) -> tuple[tuple[float, float], ...]:
    """Returns the interval (low, high) of each column.

    Raises `ValueError` for invalid intervals, if no end is finite, and if the kernel cannot be
    reflected at such ends. Between two finite ends it also raises for a lengthscale above their
    distance.
    """
    given = list(support) if isinstance(support, tuple | list) else []
    of_columns = given if given and isinstance(given[0], tuple | list) else [given]
    valid = all(
        isinstance(ends, tuple | list)
        and len(ends) == 2
        and all(is_real_number(e) or (isinstance(e, float) and math.isinf(e)) for e in ends)
        and ends[0] < ends[1]
        for ends in of_columns
    )
    if not valid or np.all(np.isinf(of_columns)):
        raise ValueError(
            f"support must be the two ends of an interval, of which one may be infinite, such as "
            f"(0.0, np.inf), or a list of one for each column; got {value_text(support)}."
        )
    if not isinstance(kernel, Radial) or kernel.metric_parameter is not None:
        raise ValueError(
            f"A support reflects a kernel of the distance, such as ak.Gaussian(0.3); kernel is "
            f"{kernel}."
        )
    intervals = tuple((float(low), float(high)) for low, high in of_columns)
    lengths = np.array([high - low for low, high in intervals])
    if np.any(np.isfinite(lengths)):
        if not isinstance(kernel, Gaussian | Compact):
            raise ValueError(
                f"With a support of two finite ends kernel must be ak.Gaussian or of compact "
                f"support: the reflections of {kernel} do not end."
            )
        longest = kernel.lengthscale
        if is_concrete(longest) and np.any(np.asarray(longest) > lengths):
            raise ValueError(
                f"The lengthscale of the kernel is {float(np.max(np.asarray(longest))):.6g}: it "
                f"must be at most the length of the support, {np.min(lengths):.6g}."
            )
    return intervals


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
    `DotProduct`; for no points, or invalid weights.

    **Source:** Parzen, *On estimation of a probability density function and mode* (1962);
    Silverman, *Density estimation for statistics and data analysis* (1986).

    ```python
    x = np.random.default_rng(0).normal(size=100)
    print(ak.density(np.array([0.0, 1.0]), x, kernel=ak.Gaussian(ak.inference.normal_reference(x))))
    ```
    """
    require_bool("log", log)
    q, rows = read_points(x_new, x, weights)
    model = KernelDensity(kernel, method=method)
    model.kernel.check(q.shape[1], rows.x.shape[1])
    found = on_padded_rows(KernelDensity.log_density if log else _density, model, None, q, rows)
    if is_concrete(found) and np.any(np.isnan(found)):
        kernel.log_normaliser(rows.x.shape[1])  # raises where it is infinite
    return found


def _density(
    model: KernelDensity, prior: Prior | None, q: NewInputs, rows: Rows
) -> Float[Array, " m"]:
    """Returns the density from checked data."""
    return jnp.exp(model.log_density(prior, q, rows))


def _cdf(model: KernelDensity, _: None, q: NewInputs, rows: Rows) -> Float[Array, " m"]:
    """Returns `KernelDensity.cdf` from checked data."""
    weights, lengthscale = rows.row_weights(q.dtype), model._gaussian_lengthscale()
    support = model.support or ((-math.inf, math.inf),) * q.shape[1]
    lengthscales = jnp.broadcast_to(lengthscale, q.shape[1:])

    def below(c: int, point: Float[Array, " dim"]) -> Float[Array, " n"]:
        """Returns for each row the share of its mass below a point in column c, with images."""
        low, high = support[c]
        at, missing = jnp.clip(point[c], low, high), float(math.isinf(low) and math.isfinite(high))
        signs, shifts = np.array(_reflections(support[c]), q.dtype).T[:, :, None]
        steps = (signs * at + shifts - rows.x[None, :, c]) / lengthscales[c]
        return missing + jnp.sum(signs * jax.scipy.special.ndtr(steps), axis=0)

    def share_below(point: Float[Array, " dim"]) -> Float[Array, ""]:
        of_rows = functools.reduce(operator.mul, [below(c, point) for c in range(q.shape[1])])
        return jnp.sum(weights * of_rows) / jnp.sum(weights)

    return jax.lax.map(share_below, q, batch_size=64)
