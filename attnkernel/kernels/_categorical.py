r"""Kernels of categories: points whose columns are names, written as whole numbers.

Two unordered categories are the same or not; two ordered ones are a number of steps apart. A
bandwidth λ says how much other categories count: at 0 only the category of the query counts.
"""

import abc
import math
from collections.abc import Sequence
from typing import ClassVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.arrays import AnyArray
from .._core.parameters import Between, Constant, ConstantOfHeads, Number, between, natural
from .._core.validation import as_integer_tuple
from ._base import Inputs, Kernel, PointBoxes, unbounded
from ._distances import add_up


class Categorical(Kernel):
    r"""A product over columns of a kernel of the steps between two categories.

    $$ \log K(q, k) = \sum_{c=1}^{d} \log K_c(|q_c - k_c|), \qquad q, k \in \mathbb{Z}^d,\
       0 \le \lambda_c \le \lambda_{\max} $$

    To add one, subclass and write `log_of`: log K of one column, which falls with the steps.

    Categories are whole numbers, held as floats: the same where the floats are equal, which is
    exact up to 2²⁴ in float32. They are names: derivatives in q and k are 0. There is no length:
    `rescaled` gives the kernel itself.

    **Arguments:** `bandwidth`: λ, no unit: one number, or shape (dim,): one per column. It is
    trained; `ak.fixed(0.3)` holds it fixed, and either end can only be fixed.

    **Raises:** `ValueError` if a bandwidth is outside its domain, or there are not as many as
    columns of the points.

    ```python
    class SameOrNext(ak.kernels.Categorical):
        def log_of(self, steps, share, rest, column):
            return jnp.where(steps == 0, 0.0, jnp.where(steps == 1, share, -jnp.inf))

    x = jnp.array([[0.0], [1.0], [2.0]])
    assert ak.attention_weights(x, x, kernel=SameOrNext(0.5))[0, 2] == 0.0
    ```
    """

    is_cheap: ClassVar[bool] = True
    has_length: ClassVar[bool] = False
    bandwidth_parameter: Between | Constant | ConstantOfHeads
    categories: int | tuple[int, ...] | None = eqx.field(static=True, default=None)

    def __init__(self, bandwidth: Number):
        limit = self.limit.tolist()
        high = tuple(limit) if isinstance(limit, list) else limit
        hint = "The ends are fixed: ak.fixed(0.0), where the same category alone counts."
        self.bandwidth_parameter = between(
            "bandwidth", bandwidth, 0.0, high, hint, or_low=True, per_dimension=True
        )

    @abc.abstractmethod
    def log_of(self, steps: Array, share: Array, rest: Array, column: int) -> Array:
        """Returns log K of one column, whose number is `column`.

        `steps`: |q − k|; `share`: log(λ / λ_max); `rest`: log(1 − λ / λ_max).
        """

    @property
    def limit(self) -> np.ndarray:
        """λ_max: one number, or one per column, as `categories` is. Default: 1."""
        return np.ones(np.shape(self.categories or 0))

    bandwidth = natural("bandwidth", "λ.")

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        self._require_parameter_shape(len(q))
        if isinstance(self.bandwidth_parameter, Between):
            logs = self.bandwidth_parameter.log_shares()
        else:
            share = jnp.asarray(self.bandwidth, float) / jnp.asarray(self.limit, float)
            logs = jnp.log(share), jnp.log1p(-share)  # of λ / λ_max and of 1 − λ / λ_max
        shares, rests = (jnp.broadcast_to(log, q.shape).astype(q.dtype) for log in logs)
        # one column at a time, in scalars: with arrays all pairs take up to five times as long
        steps = [jax.lax.stop_gradient(jnp.abs(a - b)) for a, b in zip(q, k, strict=True)]
        return add_up([self.log_of(steps[c], shares[c], rests[c], c) for c in range(len(q))])

    def check(self, dim_q: int, dim_k: int) -> None:
        super().check(dim_q, dim_k)
        self._require_parameter_shape(dim_q)

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """Returns all `dim` columns, each with its number of categories; None: not known."""
        counts = np.broadcast_to(np.asarray(self.categories, object), (dim,))
        return dict(enumerate(counts.tolist()))

    def score_upper_bound(self, boxes: PointBoxes) -> Float[Array, ""]:
        """log K at the fewest steps between the boxes, per column: K falls with the steps."""
        steps = boxes.gap()
        return self.log_pair(steps, jnp.zeros_like(steps))

    def search_box(
        self, x: Inputs, weights: AnyArray | None = None
    ) -> tuple["Categorical", "Categorical"]:
        r"""$\lambda / \lambda_{\max}$ from 1e-4 to 1 − 1e-4, for every x.

        A fit stays in this box, where the logit of the ratio is finite. It never reaches λ = 0 or
        $\lambda_{\max}$: fix these by `ak.fixed`. A fixed bandwidth has no bounds.
        """
        self._require_parameter_shape(x.shape[1])
        if self.bandwidth_parameter.is_fixed:
            return unbounded(self)
        where = lambda kernel: kernel.bandwidth_parameter.z  # noqa: E731
        z = where(self)
        ends = np.full(z.shape, math.log(1.0 / 1e-4 - 1.0), z.dtype)
        lower, upper = (eqx.tree_at(where, self, jax.device_put(end)) for end in (-ends, ends))
        return lower, upper

    def _require_parameter_shape(self, dim: int) -> None:
        """Raises `ValueError` unless there is one bandwidth, or one for each of `dim` columns."""
        shape = np.broadcast_shapes(self.bandwidth_parameter.shape, self.limit.shape)
        if len(shape) == 1 and shape != (dim,):
            raise ValueError(
                f"This {type(self).__name__} has {shape[0]} bandwidths, one per column, "
                f"but the points have {dim} columns. Give one number, or {dim} of them; or take "
                f"some columns: kernel.on(0)."
            )


class AitchisonAitken(Categorical):
    r"""A kernel of unordered categories, whose sum over all of them is 1.

    $$ K_c = 1 - \lambda\ (q_c = k_c), \quad \frac{\lambda}{m - 1}\ (q_c \ne k_c), \qquad
       0 \le \lambda \le \frac{m - 1}{m} $$

    At the upper end all categories count alike.

    **Arguments:** `bandwidth`: λ, see `Categorical`; `categories`: m ≥ 2, how many there are: one
    number, or one per column.

    **Source:** Aitchison and Aitken, *Multivariate binary discrimination by the kernel method*
    (1976).

    ```python
    >>> x = jnp.array([[0.0], [1.0], [2.0]])
    >>> np.exp(ak.kernels.AitchisonAitken(0.2, categories=3).pairwise(x[:1], x)).round(3)
    array([[0.8, 0.1, 0.1]], dtype=float32)

    ```
    """

    def __init__(self, bandwidth: Number, categories: int | Sequence[int] | np.ndarray):
        self.categories = _as_counts(categories)
        super().__init__(bandwidth)

    @property
    def limit(self) -> np.ndarray:
        """λ_max = 1 − 1 / m, at which all m categories count alike: a number, or one per column."""
        return np.asarray(1.0 - 1.0 / np.asarray(self.categories, float))

    def log_of(self, steps: Array, share: Array, rest: Array, column: int) -> Array:
        counts = cast("int | tuple[int, ...]", self.categories)
        m = counts[column] if isinstance(counts, tuple) else counts
        # 1 − λ = (1 + (m − 1)(1 − λ/λ_max)) / m
        same = jnp.log1p((m - 1) * jnp.exp(rest))
        return jnp.where(steps == 0, same, share) - math.log(m)

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        """0: the sum over all categories is 1."""
        self._require_parameter_shape(dim)
        return jnp.zeros(())


class LiRacine(Categorical):
    r"""A kernel of unordered categories whose number need not be known.

    $$ K_c = 1\ (q_c = k_c), \quad \lambda\ (q_c \ne k_c), \qquad 0 \le \lambda \le 1 $$

    At λ = 1 all categories count alike.

    **Arguments:** `bandwidth`: λ, see `Categorical`; `categories`: m ≥ 2, how many there are: one
    number, or one per column. Densities need them: the sum of $K_c$ over all is 1 + (m − 1) λ.
    Default: not known.

    **Source:** Li and Racine, *Nonparametric econometrics* (2007), 4.3.

    ```python
    >>> x = jnp.array([[0.0], [1.0], [2.0]])
    >>> np.exp(ak.kernels.LiRacine(0.2).pairwise(x[:1], x)).round(3)
    array([[1. , 0.2, 0.2]], dtype=float32)

    ```
    """

    def __init__(
        self, bandwidth: Number, categories: int | Sequence[int] | np.ndarray | None = None
    ):
        self.categories = None if categories is None else _as_counts(categories)
        super().__init__(bandwidth)

    def log_of(self, steps: Array, share: Array, rest: Array, column: int) -> Array:
        return jnp.where(steps == 0, 0.0, share)

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        r"""$\sum_c \log(1 + (m_c - 1) \lambda_c)$; `ValueError` unless `categories` are given."""
        if self.categories is None:
            raise ValueError(
                "LiRacine can be a density if the number of categories is given: "
                "ak.kernels.LiRacine(0.1, categories=3)."
            )
        self._require_parameter_shape(dim)
        others = np.broadcast_to(self.categories, (dim,)) - 1.0
        return jnp.sum(jnp.log1p(jnp.asarray(others, float) * jnp.asarray(self.bandwidth)))


class WangVanRyzin(Categorical):
    r"""A kernel of ordered categories, whose sum over all whole numbers is 1.

    $$ K_c = 1 - \lambda\ (q_c = k_c), \quad \frac{1 - \lambda}{2} \lambda^{|q_c - k_c|}\
       (q_c \ne k_c), \qquad 0 \le \lambda \le 1 $$

    At λ = 1, K is 0 for every pair: no key has weight. Arguments as in `Categorical`.

    **Source:** Wang and van Ryzin, *A class of smooth estimators for discrete distributions*
    (1981).

    ```python
    >>> x = jnp.array([[0.0], [1.0], [2.0]])
    >>> np.exp(ak.kernels.WangVanRyzin(0.2).pairwise(x[:1], x)).round(3)
    array([[0.8  , 0.08 , 0.016]], dtype=float32)

    ```
    """

    __init__ = Categorical.__init__

    def log_of(self, steps: Array, share: Array, rest: Array, column: int) -> Array:
        return rest + jnp.where(steps == 0, 0.0, _log_of_power(steps, share) - math.log(2.0))

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        """0: the sum over all whole numbers is 1; NaN at λ = 1, where K is 0 everywhere."""
        self._require_parameter_shape(dim)
        return jnp.where(jnp.all(jnp.asarray(self.bandwidth) < 1), 0.0, jnp.nan)


class LiRacineOrdered(Categorical):
    r"""A kernel of ordered categories that falls by the same factor with each step.

    $$ K_c = \lambda^{|q_c - k_c|}, \qquad 0 \le \lambda \le 1 $$

    At λ = 1 all categories count alike. Arguments as in `Categorical`.

    **Source:** Li and Racine, *Nonparametric econometrics* (2007), 4.3.

    ```python
    >>> x = jnp.array([[0.0], [1.0], [2.0]])
    >>> np.exp(ak.kernels.LiRacineOrdered(0.2).pairwise(x[:1], x)).round(3)
    array([[1.  , 0.2 , 0.04]], dtype=float32)

    ```
    """

    __init__ = Categorical.__init__

    def log_of(self, steps: Array, share: Array, rest: Array, column: int) -> Array:
        return jnp.where(steps == 0, 0.0, _log_of_power(steps, share))


def _as_counts(categories: int | Sequence[int] | np.ndarray) -> int | tuple[int, ...]:
    """Returns the number of categories as an integer, or a tuple of one per column; `ValueError` if
    one is below 2."""
    counts = as_integer_tuple("categories", categories, 2)
    return counts if np.ndim(categories) else counts[0]


def _log_of_power(exponent: Float[Array, "..."], log_base: Array) -> Float[Array, "..."]:
    """Returns log(bˢ) = s log b, with s the exponent; −∞, with derivative 0, where b = 0."""
    positive = ~jnp.isneginf(log_base)
    return jnp.where(positive, exponent * jnp.where(positive, log_base, 0.0), -jnp.inf)
