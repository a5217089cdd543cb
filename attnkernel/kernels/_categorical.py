r"""Kernels of categories: points whose columns are names, written as whole numbers.

Two names are the same or not; of ordered ones, a number of steps apart. A bandwidth λ says how
much other categories count: at 0 the same one alone does.
"""

import abc
import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import wadler_lindig as wl
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_float64, is_concrete, wider_dtype
from .._core.validation import as_integer_tuple
from ._base import Kernel
from ._boxes import PointBoxes
from ._distances import MANY, add_up, columns

_EDGE = 1e-4  # of λ_max: as close a fit comes to either end


class Categorical(Kernel):
    r"""A product over columns of a kernel of the steps between two categories.

    $$ \log K(q, k) = \sum_{c=1}^{d} \log K_c(|q_c - k_c|), \qquad q, k \in \mathbb{Z}^d,\
       0 \le \lambda_c \le \lambda_{\max} $$

    To add one, subclass and write `log_of`: log K of one column, which falls with the steps.

    Categories are whole numbers, held as floats: the same where the floats are equal, which is
    exact up to 2²⁴ in float32. They are names: derivatives in q and k are 0. There is no length:
    `rescaled` gives the kernel itself.

    **Arguments:** `bandwidth`: λ, no unit: one number, or shape (dim,): one per column. It is held
    as the logit z of its share, $\lambda = \lambda_{\max} / (1 + e^{-z})$, so that no step of any
    optimiser can leave the domain. Both ends may be given, z = ±∞: there derivatives in z are 0.

    **Raises:** `ValueError` if a bandwidth is outside its domain, or there are not as many as
    columns of the points.
    """

    logit: Float[Array, "*dim"]

    def __init__(self, bandwidth: ArrayLike):
        self.logit = _logit(type(self).__name__, bandwidth, self.limit)

    @abc.abstractmethod
    def log_of(self, steps: Array, share: Array, rest: Array, column: int) -> Array:
        """log K of a column, from |q − k| of pairs and log(λ / λ_max), log(1 − λ / λ_max)."""

    @property
    def limit(self) -> np.ndarray:
        """λ_max: one number, or one per column."""
        return np.ones(())

    @property
    def bandwidth(self) -> Float[Array, "*dim"]:
        """λ."""
        return jax.nn.sigmoid(self.logit) * self.limit.astype(self.logit.dtype)

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        return self._log(tuple(q), tuple(k))

    def pairwise(
        self, q: Float[Array, "queries dim"], k: Float[Array, "keys dim"]
    ) -> Float[Array, "queries keys"]:
        return self._log(*columns(q, k))

    def _log(self, q: tuple[Array, ...], k: tuple[Array, ...]) -> Float[Array, "..."]:
        dim = len(q)
        self._require_dimensions(dim)
        shares, rests = (
            jnp.broadcast_to(_log_sigmoid(z), (dim,)) for z in (self.logit, -self.logit)
        )
        steps = [jax.lax.stop_gradient(jnp.abs(a - b)) for a, b in zip(q, k, strict=True)]
        return add_up([self.log_of(steps[c], shares[c], rests[c], c) for c in range(dim)])

    def check(self, dim_q: int, dim_k: int) -> None:
        super().check(dim_q, dim_k)
        self._require_dimensions(dim_q)

    def is_light(self, dim: int) -> bool:
        return dim < MANY

    def categories(self, dim: int) -> dict[int, int | None]:
        """All columns."""
        return dict.fromkeys(range(dim))

    def score_upper_bound(self, boxes: PointBoxes) -> Float[Array, ""]:
        """log K of the fewest steps between the two boxes: K falls with them."""
        steps = boxes.gap()
        return self.log_pair(steps, jnp.zeros_like(steps))

    def search_box(self, x: Float[Array, "n dim"]) -> tuple["Categorical", "Categorical"]:
        r"""$\lambda / \lambda_{\max}$ from 1e-4 to 1 − 1e-4, whatever x: finite in the logit.

        A fit begins and ends there. An end itself, such as λ = 0, is to be given, not found.
        """
        self._require_dimensions(x.shape[1])
        end = jnp.full_like(self.logit, math.log(1.0 / _EDGE - 1.0))
        where = lambda kernel: kernel.logit  # noqa: E731
        return eqx.tree_at(where, self, -end), eqx.tree_at(where, self, end)

    def rescaled(self, factor: ArrayLike) -> "Categorical":
        return self  # it has no length

    def _require_dimensions(self, dim: int) -> None:
        if self.logit.ndim == 1 and self.logit.shape != (dim,):
            raise ValueError(
                f"This {type(self).__name__} has {self.logit.shape[0]} bandwidths, one per column, "
                f"but the points have {dim} columns. Give one number, or {dim} of them; or take "
                f"some columns: kernel.on(0)."
            )

    def __pdoc__(self, **kwargs) -> wl.AbstractDoc | None:
        """`LiRacine(bandwidth=0.3)` where the value is known, shapes elsewhere."""
        if not isinstance(self.logit, jax.Array) or not is_concrete(self.logit):
            return None
        if self.logit.ndim > 1 or self.logit.size > 8:
            return None
        values = [f"{value:.4g}" for value in self.bandwidth.ravel().tolist()]
        bandwidth = f"[{', '.join(values)}]" if self.logit.ndim else values[0]
        return wl.TextDoc(f"{type(self).__name__}(bandwidth={bandwidth}{self._others()})")

    def _others(self) -> str:
        """Arguments besides the bandwidth, as they are written."""
        return ""


class AitchisonAitken(Categorical):
    r"""A kernel of unordered categories, whose sum over all of them is 1.

    $$ K_c = 1 - \lambda\ (q_c = k_c), \quad \frac{\lambda}{m - 1}\ (q_c \ne k_c), \qquad
       0 \le \lambda \le \frac{m - 1}{m} $$

    At the upper end all categories count alike.

    **Arguments:** `bandwidth`: λ, see `Categorical`; `categories`: m ≥ 2, how many there are: one
    number, or one per column.

    **Source:** Aitchison and Aitken, *Multivariate binary discrimination by the kernel method*
    (1976).
    """

    counts: int | tuple[int, ...] = eqx.field(static=True)

    def __init__(self, bandwidth: ArrayLike, categories: int | Sequence[int] | np.ndarray):
        counts = as_integer_tuple("categories", categories, 2)
        self.counts = counts if np.ndim(categories) else counts[0]
        super().__init__(bandwidth)

    @property
    def limit(self) -> np.ndarray:
        return np.asarray(1.0 - 1.0 / np.asarray(self.counts, float))

    def log_of(self, steps: Array, share: Array, rest: Array, column: int) -> Array:
        m = self.counts[column] if isinstance(self.counts, tuple) else self.counts
        # 1 − λ = (1 + (m − 1)(1 − λ/λ_max)) / m
        same = jnp.log1p((m - 1) * jnp.exp(rest))
        return jnp.where(steps == 0, same, share) - math.log(m)

    def categories(self, dim: int) -> dict[int, int | None]:
        """All columns."""
        return dict(enumerate(np.broadcast_to(self.counts, (dim,)).tolist()))

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        """0: the sum over all categories is 1."""
        self._require_dimensions(dim)
        return jnp.zeros((), self.logit.dtype)

    def _others(self) -> str:
        return f", categories={self.counts}"


class LiRacine(Categorical):
    r"""A kernel of unordered categories whose number need not be known.

    $$ K_c = 1\ (q_c = k_c), \quad \lambda\ (q_c \ne k_c), \qquad 0 \le \lambda \le 1 $$

    At λ = 1 all categories count alike. Arguments as in `Categorical`.

    **Source:** Li and Racine, *Nonparametric econometrics* (2007), 4.3.
    """

    __init__ = Categorical.__init__

    def log_of(self, steps: Array, share: Array, rest: Array, column: int) -> Array:
        return jnp.where(steps == 0, 0.0, share)


class WangVanRyzin(Categorical):
    r"""A kernel of ordered categories, whose sum over all whole numbers is 1.

    $$ K_c = 1 - \lambda\ (q_c = k_c), \quad \frac{1 - \lambda}{2} \lambda^{|q_c - k_c|}\
       (q_c \ne k_c), \qquad 0 \le \lambda \le 1 $$

    At λ = 1 it is 0 of every pair: no key has weight. Arguments as in `Categorical`.

    **Source:** Wang and van Ryzin, *A class of smooth estimators for discrete distributions*
    (1981).
    """

    __init__ = Categorical.__init__

    def log_of(self, steps: Array, share: Array, rest: Array, column: int) -> Array:
        return rest + jnp.where(steps == 0, 0.0, _times(steps, share) - math.log(2.0))

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        """0: the sum over all whole numbers is 1; at λ = 1 it is none."""
        self._require_dimensions(dim)
        return jnp.where(jnp.all(self.bandwidth < 1), 0.0, jnp.nan).astype(self.logit.dtype)


class LiRacineOrdered(Categorical):
    r"""A kernel of ordered categories that falls by the same factor with each step.

    $$ K_c = \lambda^{|q_c - k_c|}, \qquad 0 \le \lambda \le 1 $$

    At λ = 1 all categories count alike. Arguments as in `Categorical`.

    **Source:** Li and Racine, *Nonparametric econometrics* (2007), 4.3.
    """

    __init__ = Categorical.__init__

    def log_of(self, steps: Array, share: Array, rest: Array, column: int) -> Array:
        return jnp.where(steps == 0, 0.0, _times(steps, share))


def _times(steps: Float[Array, "..."], log: Array) -> Float[Array, "..."]:
    """steps · log, which is -inf with derivative 0 where log is."""
    some = ~jnp.isneginf(log)
    return jnp.where(some, steps * jnp.where(some, log, 0.0), -jnp.inf)


def _log_sigmoid(z: Float[Array, "*dim"]) -> Float[Array, "*dim"]:
    """log(1 / (1 + e^−z)), with derivatives 0 at ±∞."""
    finite = jnp.isfinite(z)
    inner = jax.nn.log_sigmoid(jnp.where(finite, z, 0.0))
    return jnp.where(finite, inner, jnp.where(z < 0, -jnp.inf, 0.0))


def _logit(name: str, bandwidth: ArrayLike, limit: np.ndarray) -> Float[Array, "*dim"]:
    """z, from λ and λ_max; ±∞ at the ends, with derivatives 0."""
    given = as_float64("bandwidth", bandwidth, "a real number") if is_concrete(bandwidth) else None
    shape, ranks = np.shape(bandwidth), {np.ndim(bandwidth), limit.ndim}
    if len(shape) > 1 or (ranks == {1} and shape != limit.shape):
        expected = "one per column" if limit.ndim == 0 else f"{limit.size}, one per column"
        raise ValueError(
            f"bandwidth must be one number or {expected}; got shape {shape}. For several heads "
            f"make a stack of kernels with eqx.filter_vmap."
        )
    if given is not None:
        most = limit * (1.0 + 1e-6)  # it may come rounded to float32
        if not np.all((given >= 0) & (given <= most)):
            raise ValueError(
                f"The bandwidth of {name} must lie from 0, where the same category alone counts, "
                f"to {np.round(limit, 6).tolist()}; got {given.tolist()}."
            )
    share = jnp.asarray(bandwidth)
    share = share.astype(wider_dtype(share.dtype, jnp.result_type(float)))
    share = jnp.broadcast_to(share, np.broadcast_shapes(shape, limit.shape))
    share = share / limit.astype(share.dtype)
    inside = (share > 0) & (share < 1)
    within = jnp.where(inside, share, 0.5)
    ends = jnp.where(share < 0.5, -jnp.inf, jnp.inf)
    return jnp.where(inside, jnp.log(within) - jnp.log1p(-within), ends)
