r"""Criteria in closed form, of linear smoothers and of densities; `profile`, any criterion as a
function of the lengthscale.

Criteria of rows whose inputs repeat are sums over the distinct inputs; exact. With k labels of mean
$\bar y_g$ at an input $x_g$, a weighted regression of the means gives the same fit $\hat f$, and
each label the leverage $L_{gg} / k$. Without one of the labels the weight of the others at its
input is k − 1. With the fit $\hat f_g$ of such weights to the means, and b the leverage of their
mean in it,

$$ \sum_{i \in g} (y_i - \hat f_{-i}(x_i))^2 = k\, (\bar y_g - \hat f_g)^2
   + \Big( 1 + \frac{b}{k - 1} \Big)^2 \sum_{i \in g} (y_i - \bar y_g)^2 $$
"""

import abc
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._core.arrays import Scalar, as_real_array, can_use_numpy, put_like
from .._core.parameters import Positive, log_of
from .._core.rows import Inputs, Labels, Rows
from .._core.validation import require_instance, require_positive
from ..attention import jit_if_pure
from ..kernels import Gaussian, rescaled
from ..losses import squared_error
from ..models import KernelDensity, KernelRegression, LinearSmoother
from ..priors import ExcludeSelf, Prior
from ..rules import Softmax
from ._objective import Objective, Sample
from ._validation import LeaveOneOut


class Penalised(Objective):
    r"""A criterion of the residual sum of squares and of the trace of the hat matrix L.

    $$ \hat y = L y, \qquad \hat\sigma^2 = \frac{\mathrm{RSS}}{n}, \qquad
       \nu = \operatorname{tr} L = \sum_i L_{ii} $$

    To add one, subclass it and write `penalty`; set `is_logarithm` if the criterion is a logarithm
    and not in units of y². The model must be a `LinearSmoother`. With row
    weights, RSS/n is the weighted mean square, and n counts the rows with positive weight.

    ```python
    class RiceT(ak.objectives.Penalised):  # infinite from half as many degrees of freedom as rows
        def penalty(self, mean_square, trace, n):
            left = 1.0 - 2.0 * trace / n
            return jnp.where(left > 0, mean_square / jnp.where(left > 0, left, 1.0), jnp.inf)

    data = ak.data.load("mcycle")
    model = ak.KernelRegression(ak.Gaussian(3.0))
    fit = ak.fit(model, data.x, data.y, objective=RiceT())
    assert 1.0 < fit.model.kernel.lengthscale < 2.0  # 1.22; 1.09 by GCV
    ```

    **Source:** Rice, *Bandwidth choice for nonparametric regression* (1984), for the example.
    """

    can_pad_rows: ClassVar[bool] = True  # n, ν and RSS are those of the rows with weight

    def is_squared_error(self, model: Any) -> bool:
        """Whether the criterion is in squared units of the labels: unless it is a logarithm."""
        return not self.is_logarithm

    @abc.abstractmethod
    def penalty(self, mean_square: Scalar, trace: Scalar, n: ArrayLike) -> Scalar:
        """Returns the criterion from RSS/n, ν and n."""

    def __call__(
        self, model: Any, x: Inputs, y: Labels, *, key: PRNGKeyArray | None = None
    ) -> Scalar:
        """Returns the `penalty` of the fit; `ValueError` for a model without a hat matrix."""
        if not isinstance(model, LinearSmoother):
            raise ValueError(
                f"{type(self).__name__} needs the hat matrix of a linear smoother, such as "
                f"ak.KernelRegression; {type(model).__name__} has none. Try ak.LeaveOneOut()."
            )
        rows = Rows.read(x, y, self.weights)
        found = model.estimate(None, rows)
        mean_square = self.mean(squared_error(found.value, rows.labels))
        return self.penalty(mean_square, jnp.sum(found.leverage), rows.count)


class GCV(Penalised):
    r"""Generalised cross-validation.

    $$ \mathrm{GCV} = \frac{\mathrm{RSS} / n}{(1 - \nu / n)^2} $$

    Leave-one-out with each leverage $L_{ii}$ replaced by their mean; in units of y². Infinite if
    ν ≥ n.

    ```python
    data = ak.data.load("mcycle")
    loss = ak.GCV()(ak.KernelRegression(ak.Gaussian(3.0)), data.x, data.y)
    ```

    **Source:** Craven and Wahba, *Smoothing noisy data with spline functions* (1979).
    """

    def penalty(self, mean_square: Scalar, trace: Scalar, n: ArrayLike) -> Scalar:
        left = 1.0 - trace / n
        is_left = left > 16.0 * jnp.finfo(left.dtype).eps  # beyond the rounding of the trace
        return jnp.where(is_left, mean_square / jnp.where(is_left, left, 1.0) ** 2, jnp.inf)


class AICc(Penalised):
    r"""The corrected criterion of Akaike for linear smoothers.

    $$ \mathrm{AIC_c} = \log \frac{\mathrm{RSS}}{n} + \frac{1 + \nu / n}{1 - (\nu + 2) / n} $$

    It chooses longer lengthscales than cross-validation in small samples; the same formula as in
    R's np. Infinite if ν + 2 ≥ n, or if the residuals are 0.

    ```python
    data = ak.data.load("mcycle")
    loss = ak.AICc()(ak.KernelRegression(ak.Gaussian(3.0)), data.x, data.y)
    ```

    **Source:** Hurvich, Simonoff and Tsai, *Smoothing parameter selection in nonparametric
    regression using an improved Akaike information criterion* (1998).
    """

    is_logarithm: ClassVar[bool] = True

    def penalty(self, mean_square: Scalar, trace: Scalar, n: ArrayLike) -> Scalar:
        left = 1.0 - (trace + 2.0) / n
        is_finite = (left > 0) & (mean_square > 0)
        log = jnp.log(jnp.where(is_finite, mean_square, 1.0))
        ratio = (1.0 + trace / n) / jnp.where(is_finite, left, 1.0)
        return jnp.where(is_finite, log + ratio, jnp.inf)


class UnbiasedCV(Objective):
    r"""Unbiased (least-squares) cross-validation of a `KernelDensity`.

    $$ \mathrm{UCV} = \int \hat f^2 - \frac2{n^2} \sum_{i \ne j} K(x_i, x_j), \qquad
       \int \hat f^2 = \frac1{n^2} \sum_{i, j} (K * K)(x_i - x_j) $$

    with $\int K = 1$. Its expectation is that of $\int (\hat f - f)^2$ less the constant
    $\int f^2$, to order 1/n. For a `Gaussian` of any number of columns, whose K ∗ K is a Gaussian
    of √2 ℓ, on a bounded support too. In the inverse units of x.

    It is the criterion of R's `bw.ucv`, which rounds points to 1000 cells.

    **Raises:** `ValueError` for another model or kernel.

    **Source:** Scott and Terrell, *Biased and unbiased cross-validation in density estimation*
    (1987).

    ```python
    x = ak.data.load("faithful").x
    fit = ak.fit(ak.KernelDensity(ak.Gaussian(0.3)), x, objective=ak.objectives.UnbiasedCV())
    print(fit.model.kernel)
    ```
    """

    can_pad_rows: ClassVar[bool] = True

    def __call__(
        self, model: Any, x: Inputs, y: Labels, *, key: PRNGKeyArray | None = None
    ) -> Scalar:
        """Returns UCV of the points x; y is ignored. `ValueError` for another model or kernel."""
        if not isinstance(model, KernelDensity) or type(model.kernel) is not Gaussian:
            raise ValueError(
                f"UnbiasedCV is for ak.KernelDensity(ak.Gaussian(...)), whose squares have a known "
                f"integral; model is {model}. Try ak.LeaveOneOut(), likelihood cross-validation."
            )
        kernel = rescaled(model.kernel, math.sqrt(2.0))
        wider = eqx.tree_at(lambda model: model.kernel, model, kernel)
        squares = self.mean(jnp.exp(wider(x, x, **self.weight_kwargs())))
        left_out = jnp.exp(model(x, x, prior=ExcludeSelf(), **self.weight_kwargs()))
        weights = Rows(x, x, self.weights).row_weights(x.dtype)
        # a left-out density divides by the weights of the others, the sum over i ≠ j by all
        return squares - 2.0 * self.mean(left_out * (1.0 - weights / jnp.sum(weights)))


def profile(
    model: Any, x: ArrayLike, y: ArrayLike, lengthscales: ArrayLike, *, objective: Objective
) -> Float[Array, " grid"]:
    r"""The profile of a deterministic objective, $\ell \mapsto L(f_\ell, x, y)$.

    ```python
    data = ak.data.load("mcycle")
    model = ak.KernelRegression(ak.Gaussian(1.0))
    at = jnp.array([0.5, 1.0, 2.0])
    losses = ak.profile(model, data.x, data.y, at, objective=ak.LeaveOneOut())
    ```

    **Arguments:**

    - `model`: has a `kernel` with one lengthscale, which is replaced.
    - `x`, `y`: as for `fit`.
    - `lengthscales`: shape (grid,), in the units of x.
    - `objective`: for example `LeaveOneOut()`.

    **Returns:** shape (grid,). Lengthscales are evaluated one after the other, so that memory does
    not grow with the grid.

    **Raises:** `ValueError` if a lengthscale is not positive, the kernel has no or several
    lengthscales, or the objective is stochastic.
    """
    if np.ndim(lengthscales) != 1:
        raise ValueError(
            f"lengthscales must have shape (grid,); got {np.shape(lengthscales)}. For one use "
            f"[lengthscale]."
        )
    at = as_real_array("lengthscales", lengthscales)
    require_positive("lengthscales", at)
    require_instance("objective", objective, Objective, "ak.LeaveOneOut()")
    if not hasattr(getattr(model, "kernel", None), "lengthscale_parameter"):
        raise ValueError(
            f"model must have a kernel with a lengthscale, such as "
            f"ak.KernelRegression(ak.Gaussian(0.3)); got {model!r}."
        )
    if objective.is_stochastic:
        raise ValueError(f"{type(objective).__name__} draws rows at random: it has no profile.")
    if model.kernel.lengthscale_parameter.shape:
        raise ValueError("A profile is over one lengthscale; this kernel has several.")
    rows = Rows.read(x, y)
    sample = Sample(rows.x, rows.labels, objective).sorted_by_input().padded(model)
    points, labels, objective = sample
    parts = (model, objective, log_of(at, jnp.result_type(float)))
    return jit_if_pure(_losses, parts, points, labels)


def _losses(
    model: Any, objective: Objective, logs: Float[Array, " grid"], x: Inputs, y: Labels
) -> Float[Array, " grid"]:
    """Returns the objective at each lengthscale. `logs`: the logarithms of the lengthscales."""

    def at(lengthscale: Positive) -> Array:
        moved = eqx.tree_at(lambda tree: tree.kernel.lengthscale_parameter, model, lengthscale)
        return objective(moved, x, y)

    return jax.lax.map(at, Positive(logs, 0))


class _WithoutOneLabel(Prior):
    """A prior at distinct inputs: query i sees its own input without one of the labels there.

    The weight of its own input is (k − 1) / k for k labels (`counts`); that of others is 1.
    """

    counts: Float[Array, " inputs"]

    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        others = self.counts[i] - 1.0
        log = jnp.log(jnp.where(others > 0, others, 1.0) / self.counts[i])
        return jnp.where(i == j, jnp.where(others > 0, log, -jnp.inf), 0.0)


class OfDistinctInputs(Objective):
    """A criterion of rows with repeated inputs, called with the distinct inputs and the means of
    their labels."""

    of: Objective  # `LeaveOneOut` or a `Penalised`; the weights are those of this object
    counts: Float[Array, " inputs"]
    squares: Float[Array, " inputs"]  # of the labels about their mean, summed
    compared: Bool[Array, " inputs"] | None = None  # as of a `FoldValidation`
    row_fields: ClassVar[tuple[str, ...]] = ("weights", "counts", "squares", "compared")
    can_pad_rows: ClassVar[bool] = True  # sums are those of the rows with weight

    def __call__(
        self, model: Any, x: Inputs, y: Labels, *, key: PRNGKeyArray | None = None
    ) -> Scalar:
        """Returns the criterion of all rows. `x`: distinct inputs; `y`: mean labels there."""
        weights = self.masked_by_weight(self.counts)
        if self.weights is not None:
            weights = weights * self.weights.astype(weights.dtype)
        rows = Rows.read(x, y, weights)
        scored = weights if self.compared is None else jnp.where(self.compared, weights, 0.0)
        share = scored / jnp.where(weights > 0, self.counts, 1.0) / jnp.sum(scored)
        if isinstance(self.of, Penalised):
            found = model.estimate(None, rows)
            sums = self.counts * squared_error(found.value, rows.labels) + self.squares
            trace, n = jnp.sum(found.leverage), jnp.sum(self.masked_by_weight(self.counts))
            return self.of.penalty(jnp.sum(share * sums), trace, n)
        found = model.estimate(x, rows, prior=_WithoutOneLabel(self.counts))
        of_one = found.leverage / jnp.maximum(self.counts - 1.0, 1.0)  # b / (k − 1)
        within = jnp.where(self.squares > 0, (1.0 + of_one) ** 2 * self.squares, 0.0)
        sums = self.counts * squared_error(found.value, rows.labels) + within
        return jnp.sum(jnp.where(share > 0, share * sums, 0.0))


def merge_equal_rows(
    keys: np.ndarray, labels: Float[np.ndarray, "n out"], weights: Float[np.ndarray, " n"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns (first, set of each row, total weights, means) of the sets of equal rows of `keys`.

    The first: for each set, in sorted order, the index of its first row. The second: for each row,
    the index of its set. The others: for each set, the sum of weights, and the weighted mean of
    labels, shape (sets, out).
    """
    _, first, of_row = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    of_row = of_row.reshape(-1)  # of two axes in NumPy 2.0
    total, sums = np.bincount(of_row, weights), np.zeros((len(first), labels.shape[1]))
    # relative to the first label of a set, so that the mean of equal labels is exact
    np.add.at(sums, of_row, weights[:, None] * (labels - labels[first][of_row]))
    return first, of_row, total, labels[first] + sums / total[:, None]


def at_distinct_inputs(model: Any, data: Sample) -> Sample:
    """Returns the sample with rows of equal input and equal weight merged into one.

    Its objective is then an `OfDistinctInputs`. Rows are merged only for a `KernelRegression` with
    a `Softmax` and `can_pad_rows`, and a `Penalised` criterion or `LeaveOneOut` of squared errors.
    Otherwise the sample is returned unchanged, as it is inside `jit`, and unless 3 to
    min(n / 2, 4096) rows remain.
    """
    x, y, objective = data
    has_formula = isinstance(objective, Penalised) or (
        type(objective) is LeaveOneOut and objective.score in (None, squared_error)
    )
    is_smoother = type(model) is KernelRegression and isinstance(model.rule, Softmax)
    can_merge = has_formula and is_smoother and model.can_pad_rows
    if not (can_merge and can_use_numpy(model, x, y, objective.weights)):
        return data
    keys, weights = np.asarray(x), objective.weights
    if weights is not None:
        keys = np.column_stack([keys, np.asarray(weights)])
    labels = np.asarray(y, np.float64).reshape(len(keys), -1)  # many labels of a large mean
    first, of_row, counts, means = merge_equal_rows(keys, labels, np.ones(len(keys)))
    most = min(len(keys) // 2, 4096)  # beyond, a search begins on a sample of all rows
    if not 3 <= len(first) <= most:
        return data
    squares = np.bincount(of_row, np.sum((labels - means[of_row]) ** 2, axis=1))
    sums = [part.astype(y.dtype) for part in (means.reshape(-1, *y.shape[1:]), counts, squares)]
    at, means, counts, squares = put_like(x, (np.asarray(x)[first], *sums))
    weights = weights if weights is None else put_like(x, np.asarray(weights)[first])
    compared = getattr(objective, "compared", None)
    compared = compared if compared is None else put_like(x, np.asarray(compared)[first])
    merged = OfDistinctInputs(objective, counts, squares, compared, weights=weights)
    return Sample(at, means, merged)
