"""Kernels with a lengthscale, whose new ones need `log_pair` alone; conventions of lengthscales."""

import math
import statistics
import warnings
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import i0e
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import AnyArray, is_concrete, namespace_of
from .._core.parameters import Fixed, Number, PositiveParameter, constant, fixed, natural, positive
from .._core.rows import is_positive
from .._core.validation import require_bool, require_choice, require_positive
from ._base import Inputs, Kernel, unbounded
from ._distances import largest_squarable


class SortedGaps(NamedTuple):
    """Statistics of the gaps between neighbours in each sorted column of inputs."""

    spread: Float[AnyArray, " dim"]  # the sum of all gaps: the range
    mean: Float[AnyArray, " dim"]
    median: Float[AnyArray, " dim"]  # of the positive gaps; NaN in a constant column
    isolation: Float[AnyArray, " dim"]  # the largest distance of an input to its nearest neighbour

    @classmethod
    def of(cls, x: Float[AnyArray, "n dim"], weights: AnyArray | None) -> "SortedGaps":
        """Returns the statistics of inputs x, without the rows whose weights are 0."""
        xp, count, isolation = namespace_of(x), np.asarray(len(x)), _isolation(x)
        if weights is not None:  # a copy of another row adds no gap
            has_weight = is_positive(weights)
            count = has_weight.sum()
            isolation = _isolation(xp.where(has_weight[:, None], x, xp.inf))
            x = xp.where(has_weight[:, None], x, x[xp.argmax(has_weight)][None])
        gaps = xp.diff(xp.sort(x, axis=0), axis=0)
        spread = xp.sum(gaps, axis=0)
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # all are NaN
            median = xp.nanmedian(xp.where(gaps > 0, gaps, xp.nan), axis=0)
        return cls(spread, spread / (count - 1).astype(x.dtype), median, isolation)


def _isolation(x: Float[AnyArray, "n dim"]) -> Float[AnyArray, " dim"]:
    """Returns the largest distance of a finite input to its nearest neighbour, in each column."""
    xp = namespace_of(x)
    x = xp.sort(x, axis=0)
    below, above = x[:-1], x[1:]
    gaps = xp.where(xp.isfinite(above), above - xp.where(xp.isfinite(above), below, 0.0), xp.inf)
    end = xp.full_like(x[:1], xp.inf)
    nearest = xp.minimum(xp.concatenate([end, gaps]), xp.concatenate([gaps, end]))
    return xp.max(xp.where(xp.isfinite(nearest), nearest, 0.0), axis=0)


class Scaled(Kernel):
    r"""A kernel with a lengthscale: $\log K(q, k)$ is a function of $(q - k) / \ell$.

    To add one, subclass and write `log_pair`, with `self.lengthscale` for ℓ and finite derivatives
    at q = k. Fits then have a search box for ℓ, plots and reports show ℓ, and configs can name the
    kernel. A kernel of the distance alone is faster as a `Radial`.

    **Arguments:** `lengthscale`: ℓ > 0 in the units of x: one number, or shape (dim,): one per
    dimension. It is trained, also if it is left out; `ak.fixed(0.3)` holds it fixed.

    **Raises:** `ValueError` if a lengthscale is not positive and finite, or there are not as many
    as dimensions of the points.

    ```python
    class Box(ak.kernels.Scaled):
        def log_pair(self, q, k):
            inside = jnp.all(jnp.abs(q - k) < self.lengthscale)
            return jnp.where(inside, 0.0, -jnp.inf)

    x = jnp.array([[0.0, 0.0], [1.5, 1.5]])
    assert ak.attention_weights(x, x, kernel=Box(2.0))[0, 1] == 0.5
    ```
    """

    lengthscale_parameter: PositiveParameter

    def __init__(self, lengthscale: Number = 1.0):
        hint = "It is a distance in the units of x: try a tenth of the range of x."
        self.lengthscale_parameter = positive("lengthscale", lengthscale, hint, per_dimension=True)

    lengthscale = natural("lengthscale", "ℓ, in the units of x.")

    def check(self, dim_q: int, dim_k: int) -> None:
        super().check(dim_q, dim_k)
        self._require_parameter_shape(dim_k)

    def search_box(self, x: Inputs, weights: AnyArray | None = None) -> tuple["Scaled", "Scaled"]:
        r"""Lengthscales that inputs x can tell apart: from half a typical gap to ten ranges.

        Below half the gap between neighbours the estimate is that of the nearest neighbour
        whatever ℓ; beyond ten times the range of x it is the mean of y. Per dimension, the gap is
        the smaller of the mean and of the median gap between distinct neighbours, so that neither
        clusters nor ties hide the fine structure. Kernels of compact support begin where each input
        has a neighbour in reach. A single ℓ takes the widest interval. With one ℓ per dimension,
        that of a constant column has both bounds at 1. Other parameters are free.
        """
        self._require_parameter_shape(x.shape[1])
        xp = namespace_of(x)
        gaps = SortedGaps.of(x, weights)
        spread = gaps.spread
        lower, upper = self._shortest_lengthscale(gaps), 10.0 * spread
        is_constant = spread == 0  # a constant column bounds no lengthscale
        if self.lengthscale_parameter.shape == ():
            lower = xp.min(xp.where(is_constant, xp.inf, lower))
            upper = xp.max(upper)
        else:
            lower, upper = xp.where(is_constant, 1.0, lower), xp.where(is_constant, 1.0, upper)
        low, high = unbounded(self)
        return low.with_lengthscale(lower), high.with_lengthscale(upper)

    def with_lengthscale(self, lengthscale: ArrayLike) -> Any:
        """The kernel with another lengthscale; unchanged if its own lengthscale is fixed."""
        parameter = self.lengthscale_parameter.at(lengthscale)
        return eqx.tree_at(lambda kernel: kernel.lengthscale_parameter, self, parameter)

    def _shortest_lengthscale(self, gaps: SortedGaps) -> Float[AnyArray, " dim"]:
        """Returns the lower end of a search for ℓ, per dimension: half a typical gap."""
        return 0.5 * namespace_of(gaps.mean).minimum(gaps.mean, gaps.median)

    def _require_parameter_shape(self, dim: int) -> None:
        """Raises `ValueError` unless there is one lengthscale, or one per dimension of points of
        `dim` dimensions."""
        shape = self.lengthscale_parameter.shape
        if len(shape) == 1 and shape != (dim,):
            raise ValueError(
                f"This {type(self).__name__} has {shape[0]} lengthscales, one per "
                f"dimension, but the points have {dim} dimensions. Give one number, or {dim} "
                f"of them."
            )


class Periodic(Kernel):
    r"""The periodic kernel, a Gaussian of the chord between points on a circle.

    $$ \log K(q, k) = -2 \sum_{c=1}^{d} \frac{\sin^2\big(\pi (q_c - k_c) / p\big)}{\ell^2} $$

    **Arguments:** `lengthscale`: ℓ, which has no unit: for points close together it is a Gaussian
    with the standard deviation $\ell p / 2 \pi$.
    It is trained; `ak.fixed(1.0)` holds it. `period`: p, in the units of x. A period is a fact, as
    that of a day, and stays as it is, unless `train_period` is true. Both are one positive number,
    default 1.

    **Source:** MacKay, *Introduction to Gaussian processes* (1998), 5.5.

    ```python
    >>> x = jnp.array([[0.0], [0.5], [2.0]])
    >>> np.exp(ak.Periodic(1.0, period=2.0).pairwise(x[:1], x)).round(3)
    array([[1.   , 0.368, 1.   ]], dtype=float32)

    ```
    """

    is_cheap: ClassVar[bool] = True
    lengthscale_parameter: PositiveParameter
    period_parameter: PositiveParameter

    def __init__(
        self, lengthscale: Number = 1.0, period: Number = 1.0, *, train_period: bool = False
    ):
        require_bool("train_period", train_period)
        self.lengthscale_parameter = positive("lengthscale", lengthscale, "Try 1.")
        self.period_parameter = positive("period", period, "It is in the units of x.")
        if not (train_period or isinstance(period, Fixed)) and is_concrete(period):
            self.period_parameter = constant(fixed(period))

    lengthscale = natural("lengthscale")

    period = natural("period", "p, in the units of x.")

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        inverse = jnp.exp(-self.lengthscale_parameter.log()).astype(q.dtype)
        chord = jnp.sin((q - k) * (math.pi / self.period)) * inverse
        overflows = jnp.abs(chord) > largest_squarable(chord.dtype)
        squares = jnp.where(overflows, 0.0, chord) ** 2
        return -2.0 * jnp.sum(jnp.where(overflows, jnp.inf, squares))

    def periods(self, dim: int) -> dict[int, ArrayLike | None]:
        """Returns all `dim` columns, each with the same period p."""
        return dict.fromkeys(range(dim), self.period)

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        r"""$d \log\big(p\, e^{-1/\ell^2} I_0(1/\ell^2)\big)$: the integral is over one period of
        each column. The density is von Mises with concentration $1/\ell^2$."""
        concentration = jnp.exp(-2.0 * self.lengthscale_parameter.log())
        return dim * (jnp.log(i0e(concentration)) + self.period_parameter.log())

    def search_box(
        self, x: Inputs, weights: AnyArray | None = None
    ) -> tuple["Periodic", "Periodic"]:
        """ℓ from 0.01 to 10; p from twice the mean gap of x to twice its range.

        Gap and range are the largest over columns. A fixed parameter keeps its value in both.
        """
        gaps = SortedGaps.of(x, weights)
        spread, mean = gaps.spread.max(), gaps.mean.max()
        where = lambda kernel: (kernel.lengthscale_parameter, kernel.period_parameter)  # noqa: E731
        ends = (0.01, 2.0 * mean), (10.0, 2.0 * spread)
        lower, upper = (
            eqx.tree_at(where, self, [p.at(end) for p, end in zip(where(self), side, strict=True)])
            for side in ends
        )
        return lower, upper


class _Convention(NamedTuple):
    """A convention in which a number h stands for the lengthscale $\\ell = (c h)^p$ of a kernel.

    `kernel`: the name of its class; `factor`: c; `power`: p.
    """

    kernel: str
    factor: float
    power: float = 1.0


_CONVENTIONS = {
    "standard": _Convention("Gaussian", 1.0),
    "unhalved": _Convention("Gaussian", 1.0 / math.sqrt(2.0)),
    "sklearn_gamma": _Convention("Gaussian", 2.0, -0.5),
    "locfit_gauss": _Convention("Gaussian", 1.0 / 2.5),
    "ksmooth_normal": _Convention("Gaussian", 0.25 / statistics.NormalDist().inv_cdf(0.75)),
    "boxcar": _Convention("Boxcar", 1.0),
    "ksmooth_box": _Convention("Boxcar", 0.5),
    "epanechnikov": _Convention("Epanechnikov", 1.0),
    "np_epanechnikov": _Convention("Epanechnikov", math.sqrt(5.0)),
}
CONVENTIONS = tuple(_CONVENTIONS)
LETTERS = {"standard": "ℓ", "unhalved": "√2 ℓ"}  # what h is, if ℓ is that of exp(−d²/2ℓ²)


def convert_lengthscale(
    lengthscale: ArrayLike, *, source: str = "standard", target: str = "standard"
) -> Float[Array, "..."]:
    r"""The number that names the same kernel in another convention.

    $$ h_t = g_t^{-1}\big(g_s(h_s)\big), \qquad \ell = g(h) $$

    g says which lengthscale ℓ of this package a number h names:

    | name | of whom | kernel of the distance d | ℓ |
    |---|---|---|---|
    | `"standard"` | R `np`, statsmodels, kerneljax | `Gaussian`: $\exp(-d^2 / 2 h^2)$ | h |
    | `"unhalved"` | Czyż (2024) | `Gaussian`: $\exp(-(d / h)^2)$ | $h / \sqrt2$ |
    | `"sklearn_gamma"` | scikit-learn's `gamma` | `Gaussian`: $\exp(-h d^2)$ | $1 / \sqrt{2 h}$ |
    | `"locfit_gauss"` | R `locfit`, `"gauss"` | `Gaussian`: $\exp(-(2.5 d / h)^2 / 2)$ | h/2.5 |
    | `"ksmooth_normal"` | R `ksmooth`, `"normal"` | `Gaussian` with quartiles ±h/4 | 0.3706506 h |
    | `"boxcar"` | the half-width | `Boxcar`: $d < h$ | h |
    | `"ksmooth_box"` | R `ksmooth`, `"box"` | `Boxcar`: $d < h / 2$ | h / 2 |
    | `"epanechnikov"` | the half-width; most packages | `Epanechnikov`: $1 - (d / h)^2$ | h |
    | `"np_epanechnikov"` | R `np`, Stata | `Epanechnikov`: $1 - (d / h)^2 / 5$ | $\sqrt5\, h$ |

    The factor of `"ksmooth_normal"` is $1 / (4 \Phi^{-1}(3/4))$; beyond 4ℓ `ksmooth` gives no
    weight. That of `"np_epanechnikov"` makes h a standard deviation.

    **Arguments:** `lengthscale`: $h_s$, any shape, positive, in the units of x (of
    `"sklearn_gamma"`, in one over their square); `source`, `target`: names of the table.

    **Raises:** `ValueError` for a name that is not in the table, names of different kernels, or a
    number ≤ 0.

    ```python
    >>> gamma = ak.kernels.convert_lengthscale(0.5, target="sklearn_gamma")
    >>> round(float(gamma), 3)
    2.0

    ```
    """
    require_positive("lengthscale", lengthscale)
    require_choice("source", source, CONVENTIONS)
    require_choice("target", target, CONVENTIONS)
    one, other = _CONVENTIONS[source], _CONVENTIONS[target]
    if one.kernel != other.kernel:
        same = (name for name, rule in _CONVENTIONS.items() if rule.kernel == one.kernel)
        raise ValueError(
            f"{source!r} names the width of a kernel {one.kernel}, {target!r} that of "
            f"{other.kernel}: no lengthscale makes these two kernels the same. Of {one.kernel} "
            f"there are {', '.join(map(repr, same))}."
        )
    array = jnp.asarray(lengthscale) * 1.0
    require_positive("lengthscale", array)  # also once rounded
    if source == target:
        return array
    lengthscale = (one.factor * array) ** one.power
    return lengthscale ** (1.0 / other.power) / other.factor
