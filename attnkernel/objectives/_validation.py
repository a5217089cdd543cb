"""Cross-validation: the error at rows that a prediction has not seen, left to no chance."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._core.arrays import as_real_array
from .._core.regression_data import as_weights
from .._core.validation import as_integer
from ..kernels import Kernel
from ..priors import ExcludeSelf, Mask
from ._objective import Objective, Sample, Validation, by_input
from ._scores import squared_error


class LeaveOneOut(Validation):
    r"""Leave-one-out cross-validation: each row predicted from all others.

    $$ \mathrm{CV} = \frac1n \sum_{i=1}^{n} \big\| y_i - \hat f_{-i}(x_i) \big\|^2 $$

    It is the limit of `HoldOut(1)` over all choices of the row; deterministic. Of several labels
    a row, the sum over them. `score`: another one in place of the square, such as `log_score`.

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
        predicted = model(x, x, y, prior=ExcludeSelf(), **self.given())
        return self.mean(self.scored(predicted, as_real_array("y", y)))

    def on_sample(self, x: Float[Array, "n dim"], y: Array, starts: int) -> Sample | None:
        """Of several starts, from 1024 rows: the terms of 128 of them, predicted from 1024.

        From 131 072 rows, whatever the starts: leave-one-out of 4000 of them.
        """
        n = len(x)
        if self.weights is not None or self.score is not squared_error:
            return None
        if n < _MANY and (n < 1024 or starts == 1):
            return None
        size, terms = (1024, 128) if n < _MANY else (4000, None)
        # even steps along the first input, so that the order of rows does not matter
        rows = by_input(x)[_evenly(size, n)]
        return Sample(_Thinned(n, terms), x[rows], y[rows])


class KFold(Validation):
    r"""K-fold cross-validation: each row predicted from those of the other folds.

    $$ \mathrm{CV}_k = \frac1n \sum_{i=1}^{n} \big\| y_i - \hat f_{-F(i)}(x_i) \big\|^2 $$

    Deterministic: ordered by their inputs, rows go to the folds in turn, so that each fold is
    spread over all inputs and the order of rows does not matter. With k = n it is `LeaveOneOut`.

    **Arguments:** `folds`: k, from 2 to n. Default 5.

    **Raises:** `ValueError` if there are fewer rows than folds, or fewer than 2 folds.

    **Source:** Stone, *Cross-validatory choice and assessment of statistical predictions* (1974).
    """

    folds: int = eqx.field(default=5, static=True)
    is_stochastic: ClassVar[bool] = False

    def __check_init__(self):
        as_integer("folds", self.folds, 2)

    def check(self, n: int) -> None:
        if self.folds > n:
            raise ValueError(
                f"KFold({self.folds}) needs as many rows; there are {n}. Try LeaveOneOut()."
            )

    def __call__(
        self,
        model: Any,
        x: Float[Array, "n dim"],
        y: Float[Array, "n"] | Float[Array, "n out"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, ""]:
        if self.weights is not None:
            as_weights(self.weights, len(x))
        order = by_input(x)
        counts = self.counted(jnp.ones(len(x)))[order]  # a row of weight 0 takes nobody's turn
        turn = jnp.cumsum(counts).astype(int) - 1
        fold = jnp.zeros(len(x), int).at[order].set(turn % self.folds)
        predicted = model(x, x, y, prior=_OtherFolds(fold), **self.given())
        return self.mean(self.scored(predicted, as_real_array("y", y)))


class _OtherFolds(Mask):
    """No query sees a row of its own fold."""

    fold: Int[Array, " n"]

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return self.fold[i] != self.fold[j]


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
        error = suited(x[rows], x, y, prior=_NotOwn(rows)) - as_real_array("y", y)[rows]
        return longer**-4 * jnp.sum(error**2) / len(error)


class _NotOwn(Mask):
    """No query sees its own row, which is `rows[i]`."""

    rows: Int[Array, " queries"]

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return j != self.rows[i]
