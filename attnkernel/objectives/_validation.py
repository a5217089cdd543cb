r"""Cross-validation: the mean error of predictions at rows that they have not seen.

Leave-one-out on a subsample, rescaled so that its minima are near those of all n rows.

With d columns besides those of categories, the best lengthscale falls as $n^{-1/(d+4)}$: with a
sample of N rows it is $(n/N)^{1/(d+4)}$ times as long. The gain of the criterion falls as
$n^{-4/(d+4)}$; that of the sample is multiplied by $(N/n)^{4/(d+4)}$, so that its curvature is that
of all rows.
(Marron, *Partitioned cross-validation*, 1987.)
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._core.arrays import Scalar, as_real_array, can_use_numpy, index_on_host
from .._core.rows import Inputs, Labels, Rows
from .._core.validation import as_integer
from ..attention import jit_if_pure
from ..kernels import Kernel, rescaled
from ..models import LocalLikelihood, Smoother
from ..priors import ExcludeSelf, Mask
from ._objective import Objective, Sample, Validation, input_order

MIN_ROWS = 1024  # from which several starts begin on a sample
MIN_ROWS_OF_ONE_START = 2**17  # leave-one-out of 4000 rows then costs little of a fit


def spread_indices(size: int, n: int) -> Int[np.ndarray, " size"]:
    """Returns one index at random, from a fixed seed, of each of `size` equal parts of n rows.

    Evenly spaced rows of a grid would hold one value of its second input only.
    """
    ends = np.arange(size + 1) * n // size
    return np.random.default_rng(0).integers(ends[:-1], ends[1:])


class _SubsampledLeaveOneOut(Objective):
    """`LeaveOneOut` of a sample drawn from n rows; the model has lengthscales for all n."""

    n: Float[Array, ""]
    of_rows: "LeaveOneOut"

    def __call__(
        self, model: Any, x: Inputs, y: Labels, *, key: PRNGKeyArray | None = None
    ) -> Scalar:
        """Returns leave-one-out of the sample with longer lengthscales, rescaled to n rows."""
        dim = x.shape[1]
        categories = len(model.category_counts(dim)) if isinstance(model, Smoother) else 0
        longer = (self.n / len(x)) ** (1.0 / (dim - categories + 4))
        is_kernel = lambda node: isinstance(node, Kernel)  # noqa: E731
        scale = lambda node: rescaled(node, longer) if is_kernel(node) else node  # noqa: E731
        longer_model = jax.tree.map(scale, model, is_leaf=is_kernel)
        return longer**-4 * self.of_rows(longer_model, x, y)


class FoldValidation(Validation):
    r"""Cross-validation: each row is predicted from the rows that a mask shows to it.

    $$ \mathrm{CV} = \sum_{i \in C} w_i\, S(\hat f_{-i}(x_i), y_i) \Big/ \sum_{i \in C} w_i $$

    C holds all rows, unless `ak.fit` of one data set finds that at the minimum over all rows, or
    over a sample of them, some are predicted by a polynomial of lower order, because the others do
    not determine it (rank-deficient design). Errors at such rows jump where the design becomes
    rank-deficient, and draw the minimum to that place. C then holds the other rows, the same at
    every parameter. In 718 fits of order 1 and 2 to 20 or 60 rows in one or two columns, all with
    such rows, the error of the fitted curve is 0.96 times that with all rows in C. For searches
    restricted to lengthscales at which all rows are determined, it is 1.6 times that.

    `compared` is C as Booleans, shape (n,); None, and if none is True: all rows.
    """

    row_fields: ClassVar[tuple[str, ...]] = ("weights", "compared")
    compared: Bool[Array, "*fits n"] | None = eqx.field(
        default_factory=lambda: None, init=False, repr=False
    )

    def mean(self, scores: Float[Array, " n"]) -> Scalar:
        """Returns the weighted mean of the scores of the rows in C, as the class defines it."""
        if self.compared is None:
            return super().mean(scores)
        compared = self.compared | ~jnp.any(self.compared)
        share = super().mean(compared.astype(scores.dtype))
        return super().mean(jnp.where(compared, scores, 0.0)) / share

    @abc.abstractmethod
    def mask(self, x: Inputs) -> Mask:
        """Returns the mask of the pairs (i, j) in which row i is predicted from row j."""

    def __call__(
        self, model: Any, x: Inputs, y: Labels, *, key: PRNGKeyArray | None = None
    ) -> Scalar:
        self.check(len(x))
        predicted = model(x, x, y, prior=self.mask(x), **self.weight_kwargs())
        return self.mean(self.row_scores(model, predicted, as_real_array("y", y)))


def _polynomial_order(model: Any, data: Sample) -> int:
    """Returns the order of the local polynomials of a model.

    0 for models without them or without an `evaluate` of their own, inside `jit`, and for an array
    on several devices: all rows are then compared.
    """
    order = getattr(getattr(model, "model", model), "order", 0)
    has_support = isinstance(model, Smoother) and type(model).evaluate is not Smoother.evaluate
    return order if has_support and can_use_numpy(model, *data) else 0


def name_compared_rows(model: Any, data: Sample) -> Sample:
    """Returns the sample with `compared` of its objective True for all rows, in place of None.

    Searches with and without some of the rows then share one program. Unchanged if
    `compare_determined_rows` can leave out none.
    """
    if getattr(data.objective, "compared", data) is None and _polynomial_order(model, data):
        return _comparing(np.ones(len(data.x), bool), data)
    return data


def _comparing(rows: np.ndarray, data: Sample) -> Sample:
    """Returns the sample with `compared` of its objective set to `rows`, a Boolean for each."""
    compared, is_none = jax.device_put(rows), lambda leaf: leaf is None
    where = lambda objective: objective.compared  # noqa: E731
    return data._replace(objective=eqx.tree_at(where, data.objective, compared, is_leaf=is_none))


def compare_determined_rows(
    model: Any, data: Sample, loss_at: Callable[[Any, Sample], float]
) -> Sample:
    """Returns the sample whose objective compares only rows that the other rows determine.

    At the others the design of the model's local polynomial is rank-deficient; `compared` of the
    objective becomes False there. Unchanged if there are none, for other objectives than a
    `FoldValidation`, models without polynomials, and inside `jit`.

    `loss_at`: returns the objective of a model and a sample. For labels on a polynomial of the
    inputs it is 0 to rounding if no design is rank-deficient: on 1200 samples below ε^0.75, with
    rank-deficient rows mostly above ε^0.4.
    """
    x, y, objective = data.padded(model)
    order = _polynomial_order(model, data)
    if not (isinstance(objective, FoldValidation) and order):
        return data
    points = np.delete(np.asarray(data.x, float), list(model.category_counts(x.shape[1])), axis=1)
    units = (points - points.mean(axis=0)) / np.maximum(np.ptp(points, axis=0), 1e-300)
    line = 4.0 * units @ np.random.default_rng(0).uniform(0.5, 1.0, units.shape[1])
    labels = (line + (order - 1) * line**2).reshape(-1, *[1] * (y.ndim - 1))
    labels = jnp.asarray(np.broadcast_to(labels, data.y.shape), y.dtype)
    if isinstance(model, LocalLikelihood):
        labels = model.family.mean(labels)
    if loss_at(model, data._replace(y=labels)) < jnp.finfo(y.dtype).eps ** (2 / 3):
        return data
    rows = Rows.read(x, y, objective.weights)
    arguments = (model, objective.mask(rows.x)), rows.x, rows
    deficient = np.asarray(jit_if_pure(type(model).evaluate, *arguments)[1].deficient)[
        : len(data.x)
    ]
    compared = ~deficient
    if objective.compared is not None:
        compared &= np.asarray(objective.compared)[: len(data.x)]
    return _comparing(compared, data) if np.any(deficient) else data


class LeaveOneOut(FoldValidation):
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

    def mask(self, x: Inputs) -> Mask:
        return ExcludeSelf()

    def subsample(self, x: Float[Array, "n dim"], y: Array, starts: int) -> Sample | None:
        """Returns leave-one-out of 1024 rows, 512 in one dimension, if there are at least 1024 and
        several starts; None for fewer, with weights, or with a score of the user.

        From 131 072 rows, for any number of starts: leave-one-out of 4000 rows. (In 96 fits to 3000
        rows of one column, one ends more than 0.02 % above the minimum of a search of all rows. If
        only 128 of 1024 sampled rows are predicted, five do.)
        """
        n, is_large = len(x), len(x) >= MIN_ROWS_OF_ONE_START
        is_small = not is_large and (n < MIN_ROWS or starts == 1)
        if is_small or self.weights is not None or not self._has_known_score():
            return None
        keys = 4000 if is_large else 512 if x.shape[1] == 1 else 1024
        # spread along the first input, so that the order of rows does not matter
        rows = np.asarray(input_order(x))[spread_indices(keys, n)]
        of_sample = _SubsampledLeaveOneOut(jnp.asarray(n, x.dtype), self)
        return Sample(index_on_host(x, rows), index_on_host(y, rows), of_sample)


class KFold(FoldValidation):
    r"""K-fold cross-validation: each row predicted from those of the other folds.

    $$ \mathrm{CV}_k = \frac1n \sum_{i=1}^{n} \big\| y_i - \hat f_{-F(i)}(x_i) \big\|^2 $$

    Deterministic: the r-th row in the order of the inputs is in fold r mod k, so that each fold
    covers all inputs, and the order of rows matters among equal inputs alone. With k = n it is
    `LeaveOneOut`.

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

    def mask(self, x: Inputs) -> Mask:
        order = input_order(x)
        is_counted = self.masked_by_weight(jnp.ones(len(x)))[order]  # zero-weight rows: no rank
        rank = jnp.cumsum(is_counted).astype(int) - 1
        return OtherFolds(jnp.zeros(len(x), int).at[order].set(rank % self.folds))


class OtherFolds(Mask):
    """No query sees a row of its own fold."""

    fold: Int[Array, " n"]

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return self.fold[i] != self.fold[j]
