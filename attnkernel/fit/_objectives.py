"""Objectives: what a fit minimises. Each is a number for a model and labelled data."""

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._checks import is_known
from ..kernels import Kernel
from ..priors import HeldOut, LeaveOneOut as LeaveOneOutMask, Mask


class Objective(eqx.Module):
    """A criterion of a model on data (x, y). To add one, write `__call__`.

    `is_stochastic` says whether it draws random numbers: then `fit` needs a key, and takes a
    fresh one at every step.
    """

    is_stochastic: ClassVar[bool]

    @abc.abstractmethod
    def __call__(
        self,
        model: Any,
        x: Float[Array, "n dim"],
        y: Float[Array, "n"] | Float[Array, "n out"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, ""]:
        """The criterion, to be minimised."""

    def check(self, n: int) -> None:
        """Raise `ValueError` if the objective cannot be evaluated on n rows."""

    def on_sample(self, x: Float[Array, "n dim"], y: Array, starts: int) -> "Sample | None":
        """A much cheaper objective, its minima near those of this one, and as curved; or None.

        A search from so many starts begins on it.
        """
        return None


class Sample(NamedTuple):
    """An objective, and the labelled data that it is of."""

    objective: Objective
    x: Float[Array, "rows dim"]
    y: Array


def arranged(x: Float[Array, "n dim"], y: Array) -> tuple[Float[Array, "n dim"], Array]:
    """The rows with neighbours side by side: far blocks of pairs then weigh nothing.

    Of no consequence to a deterministic objective, but that streaming sums pass over these blocks.
    """
    order = _order(x)
    return x[order], y[order]


def _order(x: Float[Array, "n dim"]) -> Int[Array, " n"]:
    """The rows by their first input, then the others."""
    columns = jax.lax.stop_gradient(x.T[::-1])  # ties by the other inputs: from last to first
    # that of NumPy is many times faster than XLA's
    return jnp.lexsort(columns) if not is_known(x) else jnp.asarray(np.lexsort(np.asarray(columns)))


class HoldOut(Objective):
    r"""Masked hold-out: the error at h random rows, predicted from all others.

    $$ L = \frac1h \sum_{i \in \mathcal{H}} \big\| y_i - \hat f_{-\mathcal{H}}(x_i) \big\|^2,
       \qquad \mathcal{H} \text{ the first } h \text{ of a random permutation of the rows} $$

    A hold-out is a mask on the keys, not a data set of a new shape: `size` may be an array, and
    many sizes then share one compiled program. h queries are evaluated, not n.

    **Arguments:**

    - `size`: h, from 1 to n − 1. An int, or an integer array (traced) together with `at_most`.
    - `at_most`: an upper bound on an array `size`; that many queries are evaluated and those
      beyond h ignored. Default: `size`.

    **Raises:** `ValueError` if h is less than 1, n or more, or above `at_most`.

    **Source:** P. Czyż, *From kernel regression to the transformer* (2024).
    """

    size: int | Int[Array, "..."]
    at_most: int = eqx.field(static=True)
    is_stochastic: ClassVar[bool] = True

    def __init__(self, size: int | ArrayLike, at_most: int | None = None):
        if isinstance(size, bool) or not jnp.issubdtype(jnp.asarray(size).dtype, jnp.integer):
            raise ValueError(f"HoldOut takes a whole number of rows; got {size!r}.")
        if isinstance(size, int | np.integer):
            size, at_most = int(size), int(size) if at_most is None else at_most
        if at_most is None:
            raise ValueError("HoldOut of an array of sizes needs at_most=, the largest of them.")
        if is_known(size) and not (
            1 <= np.min(np.asarray(size)) <= np.max(np.asarray(size)) <= at_most
        ):
            limit = "" if size is at_most else f" and no more than at_most={at_most}"
            raise ValueError(f"HoldOut needs at least 1 row{limit}; got {size}.")
        self.size = size if isinstance(size, int) else jnp.asarray(size)
        self.at_most = at_most

    def check(self, n: int) -> None:
        largest = self.at_most
        if is_known(self.size):
            largest = int(np.max(np.asarray(self.size)))
        if largest >= n or self.at_most > n:
            raise ValueError(
                f"HoldOut({largest}) leaves no row to predict from: there are {n} rows. "
                f"Hold out between 1 and {n - 1} of them; a tenth is {max(1, n // 10)}."
            )

    def __call__(
        self,
        model: Any,
        x: Float[Array, "n dim"],
        y: Float[Array, "n"] | Float[Array, "n out"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, ""]:
        if key is None:
            raise ValueError("HoldOut draws rows at random: pass key=jax.random.PRNGKey(0).")
        n = x.shape[0]
        rows, counted = _first_rows(key, n, self.at_most), jnp.arange(self.at_most) < self.size
        held_out = jnp.zeros(n, bool).at[rows].set(counted)
        error = model(x[rows], x, y, prior=HeldOut(held_out)) - y[rows]
        if error.ndim == 2:
            error, counted = error.ravel(), jnp.repeat(counted, error.shape[1])
        return jnp.sum(jnp.where(counted, error, 0.0) ** 2) / self.size


def _first_rows(key: PRNGKeyArray, n: int, h: int) -> Int[Array, " h"]:
    """The first h of `jax.random.permutation(key, n)`, without the sort where h is 1.

    The permutation sorts the rows by random bits (once up to 1625 rows, then several times), so
    that its first row is where the bits are least. The sort is two thirds of a training step.
    """
    if h == 1 and n <= 1625:
        bits = jax.random.bits(jax.random.split(key)[1], (n,), jnp.uint32)
        return jnp.argmin(bits, keepdims=True)
    return jax.random.permutation(key, n)[:h]


class LeaveOneOut(Objective):
    r"""Leave-one-out cross-validation: each row predicted from all others.

    $$ \mathrm{CV} = \frac1n \sum_{i=1}^{n} \big\| y_i - \hat f_{-i}(x_i) \big\|^2 $$

    It is the limit of `HoldOut(1)` over all choices of the row; deterministic.

    **Source:** Härdle and Marron, *Optimal bandwidth selection in nonparametric regression
    function estimation* (1985).
    """

    is_stochastic: ClassVar[bool] = False

    def __call__(
        self,
        model: Any,
        x: Float[Array, "n dim"],
        y: Float[Array, "n"] | Float[Array, "n out"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, ""]:
        error = model(x, x, y, prior=LeaveOneOutMask()) - jnp.asarray(y)
        return jnp.sum(error**2) / len(error)

    def on_sample(self, x: Float[Array, "n dim"], y: Array, starts: int) -> Sample | None:
        """Of several starts, from 512 rows: the terms of 128 rows, predicted from up to 1024.

        From 131 072 rows, whatever the starts: leave-one-out of 4000 of them.
        """
        n = len(x)
        if n < _MANY and (n < 512 or starts == 1):
            return None
        size, terms = (min(n, 1024), 128) if n < _MANY else (4000, None)
        # even steps along the first input, so that the order of rows does not matter
        rows = _order(x)[_evenly(size, n)]
        return Sample(_Thinned(n, terms), x[rows], y[rows])


_MANY = 2**17  # rows, of which the terms of a few take as long as all terms of fewer rows


def _evenly(size: int, n: int) -> Int[np.ndarray, " size"]:
    """So many of the first n whole numbers, in steps as even as can be."""
    return np.arange(size) * n // size + n // (2 * size)


class _Thinned(Objective):
    r"""`LeaveOneOut` of rows that stand for more, n, of the model that suits so few, N.

    The best lengthscale falls as $n^{-1/(d+4)}$: with N rows it is $(n/N)^{1/(d+4)}$ times as long.
    What it gains falls as $n^{-4/(d+4)}$: by that it is scaled, to be curved as the whole is.

    **Source:** Marron, *Partitioned cross-validation* (1987).
    """

    n: int = eqx.field(static=True)
    terms: int | None = eqx.field(static=True)  # of how many rows; None: all
    is_stochastic: ClassVar[bool] = False

    def __call__(
        self,
        model: Any,
        x: Float[Array, "rows dim"],
        y: Float[Array, "rows"] | Float[Array, "rows out"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, ""]:
        longer = (self.n / len(x)) ** (1.0 / (x.shape[1] + 4))
        is_kernel = lambda node: isinstance(node, Kernel)  # noqa: E731
        suited = jax.tree.map(
            lambda node: node.stretched(longer) if is_kernel(node) else node,
            model,
            is_leaf=is_kernel,
        )
        if self.terms is None:
            return longer**-4 * LeaveOneOut()(suited, x, y)
        rows = jnp.asarray(_evenly(self.terms, len(x)))
        error = suited(x[rows], x, y, prior=_NotOwn(rows)) - jnp.asarray(y)[rows]
        return longer**-4 * jnp.sum(error**2) / len(error)


class _NotOwn(Mask):
    """No query sees its own row, which is `rows[i]`."""

    rows: Int[Array, " queries"]

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return j != self.rows[i]
