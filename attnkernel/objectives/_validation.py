"""Cross-validation: the mean error of predictions at rows that they have not seen."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._core.arrays import as_real_array
from .._core.validation import as_integer
from ..priors import ExcludeSelf, Mask
from ._objective import Sample, Validation
from ._rows import input_order
from ._subsample import sample_of_leave_one_out


class LeaveOneOut(Validation):
    r"""Leave-one-out cross-validation: each row predicted from all others.

    $$ \mathrm{CV} = \frac1n \sum_{i=1}^{n} \big\| y_i - \hat f_{-i}(x_i) \big\|^2 $$

    It is the mean of `HoldOut(1)` over all choices of the row; deterministic; in units of y².
    Several labels per row are summed. Another `score`, such as `absolute_error`, replaces the
    square. The default of a `LocalLikelihood` is the deviance of its family, that of a
    `RobustRegression` the absolute error.

    ```python
    data = ak.data.load("mcycle")
    loss = ak.LeaveOneOut()(ak.KernelRegression(ak.Gaussian(3.0)), data.x, data.y)
    ```

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
        predicted = model(x, x, y, prior=ExcludeSelf(), **self.weight_kwargs())
        return self.mean(self.row_scores(model, predicted, as_real_array("y", y)))

    def subsample(self, x: Float[Array, "n dim"], y: Array, starts: int) -> Sample | None:
        """Returns leave-one-out of 1024 rows, if there are as many and several starts.

        In one dimension 128 of its terms. From 131 072 rows, for any number of starts:
        leave-one-out of 4000 rows.
        """
        if self.weights is not None or not self._has_own_score():
            return None
        return sample_of_leave_one_out(x, y, starts, self.score)


class FoldValidation(Validation):
    r"""Cross-validation by folds: each row is predicted from the rows that a mask shows to it."""

    is_stochastic: ClassVar[bool] = False

    @abc.abstractmethod
    def mask(self, x: Float[Array, "n dim"]) -> Mask:
        """Returns which rows each row may see."""

    def __call__(
        self,
        model: Any,
        x: Float[Array, "n dim"],
        y: Float[Array, "n"] | Float[Array, "n out"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, ""]:
        self.check_row_fields(len(x))
        predicted = model(x, x, y, prior=self.mask(x), **self.weight_kwargs())
        return self.mean(self.row_scores(model, predicted, as_real_array("y", y)))


class KFold(FoldValidation):
    r"""K-fold cross-validation: each row predicted from those of the other folds.

    $$ \mathrm{CV}_k = \frac1n \sum_{i=1}^{n} \big\| y_i - \hat f_{-F(i)}(x_i) \big\|^2 $$

    Deterministic: the r-th row in the order of the inputs is in fold r mod k, so that each fold
    covers all inputs and the order of rows does not matter. With k = n it is `LeaveOneOut`.

    ```python
    data = ak.data.load("mcycle")
    loss = ak.KFold(10)(ak.KernelRegression(ak.Gaussian(3.0)), data.x, data.y)
    ```

    **Arguments:** `folds`: k, from 2 to n. Default 5.

    **Raises:** `ValueError` if there are fewer rows than folds, or fewer than 2 folds.

    **Source:** Stone, *Cross-validatory choice and assessment of statistical predictions* (1974).
    """

    folds: int = eqx.field(default=5, static=True)

    def __check_init__(self):
        as_integer("folds", self.folds, 2)

    def check(self, n: int) -> None:
        super().check(n)
        if self.folds > n:
            raise ValueError(
                f"KFold({self.folds}) needs as many rows; there are {n}. Try LeaveOneOut()."
            )

    def mask(self, x: Float[Array, "n dim"]) -> Mask:
        order = input_order(x)
        is_counted = self.masked_by_weight(jnp.ones(len(x)))[order]  # zero-weight rows: no rank
        rank = jnp.cumsum(is_counted).astype(int) - 1
        return OtherFolds(jnp.zeros(len(x), int).at[order].set(rank % self.folds))


class OtherFolds(Mask):
    """No query sees a row of its own fold."""

    fold: Int[Array, " n"]

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return self.fold[i] != self.fold[j]
