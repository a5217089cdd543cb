"""Rules of thumb: lengthscales in closed form, without a search or as its start."""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import (
    Scalar,
    as_points,
    as_real_array,
    index_on_host,
    is_concrete,
    require_finite,
    wider_dtype,
)
from .._core.rows import Rows, pad_points, require_regression_data
from .._core.validation import require_bool
from ..kernels import Gaussian, Kernel
from ..local import Polynomial, local_polynomial
from ..models import KernelRegression
from ..rules import Softmax

MAX_BLOCKS, MIN_BLOCK_ROWS = 5, 20
TRIMMED_SHARE, END_SHARE = 0.01, 0.05  # of rows, and of the range, at each end
QUARTIC_TERMS = 5


def normal_reference(x: ArrayLike, *, robust: bool = True) -> Float[Array, " dim"]:
    r"""The normal-reference rule: a lengthscale of a `Gaussian` for each column of inputs.

    $$ \ell_c = \hat\sigma_c \Big( \frac{4}{(d + 2)\, n} \Big)^{1 / (d + 4)} $$

    It minimises the error of a density of n normal points with independent columns: see `density`.
    For a regression it is a start of a search: it does not use y.

    **Arguments:**

    - `x`: inputs, shape (n, dim) or (n,), n at least 2.
    - `robust`: whether $\hat\sigma$ is the smaller of the standard deviation (with n − 1) and the
      interquartile range over 1.349, its value for normal points, so that two clusters or a long
      tail are not smoothed away. Default: yes. Where the interquartile range is 0, it is the
      standard deviation.

    **Returns:** ℓ, shape (dim,), in the units of x.

    **Raises:** `ValueError` for fewer than 2 rows, a column that is constant, or is not finite.

    **Source:** Silverman, *Density estimation for statistics and data analysis* (1986), 4.14 and
    3.30; the factor is `silverman` of `scipy.stats.gaussian_kde`.

    ```python
    print(ak.inference.normal_reference(np.random.default_rng(0).normal(size=(100, 2))))
    ```
    """
    require_bool("robust", robust)
    points = as_points("x", x)
    n = len(points)
    if n < 2:
        raise ValueError(f"x must have at least 2 rows, for a spread; got {n}.")
    require_finite("x", points)
    points = points.astype(wider_dtype(points.dtype))
    require_varying(points)
    (points,), is_row = pad_points(points)
    return reference_lengthscales(points, is_row, robust=robust)


def require_varying(points: Float[Array, "n dim"]) -> None:
    """Raises `ValueError` if a column is constant; not inside `jit`."""
    if not is_concrete(points):
        return
    extent = np.ptp(np.asarray(points), axis=0)
    if not np.all(extent > 0):
        raise ValueError(
            f"Column {int(np.argmin(extent))} of x (counted from 0) is constant, and does not "
            f"identify a lengthscale. Leave it out."
        )


@eqx.filter_jit
def reference_lengthscales(
    points: Float[Array, "all dim"], is_row: Bool[Array, " all"], *, robust: bool = True
) -> Float[Array, " dim"]:
    """Returns the lengthscales of `normal_reference` of the rows where `is_row`; NaN of a constant
    column."""
    dim, n = points.shape[1], jnp.sum(is_row)
    given = is_row[:, None]
    least = jnp.min(points, axis=0, keepdims=True, where=given, initial=jnp.inf)
    points = jnp.where(given, points - least, 0.0)
    extent = jnp.max(points, axis=0)
    # in units of the extent, whose squares neither vanish nor overflow; NaN for a constant column
    points = points / jnp.where(extent > 0, extent, jnp.nan)[None, :]
    spread = jnp.std(points, axis=0, ddof=1, where=given)
    if robust:
        known = jnp.where(given, points, jnp.nan)
        low, high = jnp.nanquantile(known, jnp.array([0.25, 0.75]), axis=0)
        quartiles = (high - low) / 1.349
        spread = jnp.where(quartiles > 0, jnp.minimum(spread, quartiles), spread)
    return extent * spread * (4.0 / ((dim + 2) * n.astype(points.dtype))) ** (1.0 / (dim + 4))


def plug_in(x: ArrayLike, y: ArrayLike) -> Scalar:
    r"""The direct plug-in lengthscale of a local linear fit of one input, with a `Gaussian`.

    $$ \ell = \Big( \frac{\hat\sigma^2\, (b - a)}{2 \sqrt\pi\, \hat\theta_{22}\, n} \Big)^{1/5},
       \qquad \hat\theta_{22} = \frac1n \sum_{a' \le x_i \le b'} \hat m''(x_i)^2 $$

    It estimates the minimiser of the asymptotic mean integrated squared error for constant noise.
    One hundredth of the rows is left out at each end. n counts the others, a is the smallest and b
    the largest of these n inputs, a′ = a + (b − a)/20, and b′ = b − (b − a)/20.

    The second derivative $\hat m''$ is of local cubics, whose lengthscale comes from
    $\theta_{24} = \frac1n \sum_i m''(x_i) m''''(x_i)$ of quartics in N blocks of rows.
    $\hat\sigma^2$ is that of a local linear fit, RSS over $n - 2\nu + \tilde\nu$. The
    lengthscale of this fit comes from $\hat\theta_{22}$ and the quartics. N ≤ 5 minimises the $C_p$
    of Mallows, each block at least 20 rows. It takes O(n²) time, O(n) memory.

    **Arguments:** `x`: shape (n,) or (n, 1); `y`: shape (n,).

    **Returns:** ℓ, in the units of x.

    **Raises:** `ValueError` for more than one input or label, fewer than 6 different inputs among
    these n rows, or labels without noise or curvature, whose estimates are 0.

    R's `KernSmooth::dpill` differs in two ways: it bins inputs on 401 points and truncates the
    kernel at 4ℓ. With `gridsize = 20001` its ℓ equals that of the truncated kernel to 1e-6, and is
    up to 2 % smaller than ours; with 401 points another 7 %, for whole-number inputs. As there,
    the order of rows decides to which block, or to which side of an end, tied inputs belong.
    Blocks with fewer than 6 different inputs are not considered here.

    **Source:** Ruppert, Sheather and Wand, *An effective bandwidth selector for local least squares
    regression* (1995).

    ```python
    data = ak.data.load("cps71")
    print(ak.inference.plug_in(data.x, data.y))
    ```
    """
    points, labels = as_points("x", x), as_real_array("y", y)
    dtype = wider_dtype(wider_dtype(labels.dtype, points.dtype))
    points, labels = points.astype(dtype), labels.astype(dtype)
    require_regression_data(points, labels)
    if points.shape[1] != 1 or labels.ndim != 1:
        raise ValueError(
            f"The plug-in needs one input and one label; got x {points.shape} and y "
            f"{labels.shape}. For several inputs try ak.inference.normal_reference(x), or a fit."
        )
    column = index_on_host(points, np.s_[:, 0])
    if is_concrete(column):
        column_known = np.sort(np.asarray(column))
        cut = int(TRIMMED_SHARE * len(column))
        different = len(np.unique(column_known[cut : len(column) - cut]))
        if different <= QUARTIC_TERMS:
            raise ValueError(
                f"The plug-in begins with quartics, which need at least {QUARTIC_TERMS + 1} "
                f"different inputs; there are {different}. Try a fit, ak.fit(..., "
                f"objective=ak.LeaveOneOut())."
            )
    found = _plug_in_lengthscale(column, labels)
    if is_concrete(found) and not (np.isfinite(found) and float(found) > 0):
        raise ValueError(
            f"The plug-in came to {float(found)}: the labels have no noise, or no curvature, to "
            f"be estimated. Try a fit, ak.fit(..., objective=ak.LeaveOneOut())."
        )
    return found


@eqx.filter_jit
def _plug_in_lengthscale(
    x: Float[Array, " all"], y: Float[Array, " all"], kernel: Callable[[Array], Kernel] = Gaussian
) -> Scalar:
    """Returns the lengthscale of `plug_in` for a local linear fit, from checked data.

    `kernel`: makes the kernel of the pilot fits from a lengthscale.
    """
    cut = int(TRIMMED_SHARE * len(x))
    rows = jnp.argsort(x, stable=True)[cut : len(x) - cut]
    x, y = x[rows], y[rows]
    n, width = len(x), x[-1] - x[0]
    # in units of the data: powers cannot overflow
    x, y = (x - x[0]) / width, (y - jnp.mean(y)) / jnp.std(y)
    points = x[:, None]

    variance, theta_24 = _estimate_from_quartics(x, y)
    constant = jnp.where(theta_24 > 0, 15.0 / 16.0, 3.0 / 8.0) / math.sqrt(math.pi)
    of_curvature = kernel((constant * variance / (jnp.abs(theta_24) * n)) ** (1 / 7))
    cubics = local_polynomial(
        points, points, y[:, None], Polynomial((of_curvature, None, Softmax()), order=3)
    )
    inner = (x >= END_SHARE) & (x <= 1.0 - END_SHARE)
    theta_22 = jnp.sum(jnp.where(inner, 2.0 * cubics.coefficients[:, 2, 0], 0.0) ** 2) / n

    constant = 0.5 + 2.0 * math.sqrt(2.0) - 4.0 / 3.0 * math.sqrt(3.0)
    constant = (4.0 * constant / math.sqrt(2.0 * math.pi)) ** (1 / 9)
    of_noise = kernel(constant * (variance / (theta_22 * n)) ** (2 / 9))
    lines = KernelRegression(of_noise, order=1)
    found = lines.estimate(None, Rows(points, y[:, None]))
    squares = found.variance_of(jnp.ones_like(y))
    freedom = n - 2.0 * jnp.sum(found.leverage) + jnp.sum(squares)
    variance = jnp.sum((y - found.value) ** 2) / freedom
    return width * (variance / (2.0 * math.sqrt(math.pi) * theta_22 * n)) ** 0.2


def _estimate_from_quartics(x: Float[Array, " n"], y: Float[Array, " n"]) -> tuple[Scalar, Scalar]:
    """Returns the noise variance σ² and θ24, the mean of m″ m⁗, from quartic fits in blocks.

    m is the regression function. `x` is sorted; the number of blocks minimises Mallows' C_p.
    """
    n = len(x)
    most = max(1, min(n // MIN_BLOCK_ROWS, MAX_BLOCKS))
    rows, start = jnp.arange(n), jnp.diff(x, prepend=x[:1] - 1.0) > 0

    def block(pair: tuple[Int[Array, ""], Int[Array, ""]]) -> tuple[Array, Array, Array]:
        """Returns the residual sum of squares and Σ m″ m⁗ of a block, and whether its inputs
        determine a quartic.

        `pair`: the number of blocks, and that of this block, from 0.
        """
        number, j = pair
        each = n // number
        first, end = j * each, jnp.where(j == number - 1, n, (j + 1) * each)
        inside = (rows >= first) & (rows < end)
        middle, half = 0.5 * (x[end - 1] + x[first]), 0.5 * (x[end - 1] - x[first])
        enough = jnp.sum(inside & start & (rows > first)) >= QUARTIC_TERMS
        half = jnp.where(enough, half, 1.0)
        u = jnp.where(inside, (x - middle) / half, 0.0)
        powers = u[:, None] ** jnp.arange(QUARTIC_TERMS)[None, :]
        powers = jnp.where(inside[:, None], powers, 0.0)
        along, corner = jnp.linalg.qr(powers)
        c = jax.scipy.linalg.solve_triangular(corner, along.T @ jnp.where(inside, y, 0.0))
        error = jnp.where(inside, y - powers @ c, 0.0)
        second = (2.0 * c[2] + 6.0 * c[3] * u + 12.0 * c[4] * u**2) / half**2
        products = jnp.where(inside, second, 0.0) * 24.0 * c[4] / half**4
        return jnp.sum(error**2), jnp.sum(products), enough

    pairs = np.array([(number, j) for number in range(1, most + 1) for j in range(number)])
    of_number = jnp.asarray(pairs[:, 0][None, :] == np.arange(1, most + 1)[:, None])
    found = jax.lax.map(block, (jnp.asarray(pairs[:, 0]), jnp.asarray(pairs[:, 1])))
    rss, products = (
        jnp.sum(jnp.where(of_number, part[None, :], 0.0), axis=1) for part in found[:2]
    )
    enough = jnp.all(found[2][None, :] | ~of_number, axis=1)
    number = jnp.arange(1, most + 1)
    largest = jnp.max(jnp.where(enough, number, 1))
    left = n - QUARTIC_TERMS * number
    c_p = (n - QUARTIC_TERMS * largest) * rss / rss[largest - 1] + 2.0 * QUARTIC_TERMS * number - n
    best = jnp.argmin(jnp.where(enough, c_p, jnp.inf))
    return rss[best] / left[best], products[best] / n
