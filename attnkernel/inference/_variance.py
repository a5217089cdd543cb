r"""The variance of the noise from the residuals of a fit: constant, local in x, or of each row.

Standard errors from labels whose errors are dependent within clusters are

$$ \mathrm{se}(x)^2 = c \sum_g \Big( \sum_{i \in g} L_i(x)\, e_i \Big)^2 $$
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from .._core.arrays import inverse_or_zero
from .._core.pandas_frames import as_pandas
from .._core.rows import NewInputs, Predictions, Rows, bucket_size, cut_rows
from .._core.validation import require_choice
from ..attention import jit_if_pure
from ..fitting import Fit
from ..models import DataSupport, Estimate, LinearSmoother, LocalLikelihood, Smoother
from ..objectives import OtherFolds, Sample, as_group_codes
from ..priors import ExcludeSelf, Mask

Estimator = LinearSmoother | LocalLikelihood  # the models that have an `estimate`
ESTIMATORS = get_args(Estimator)
Noise = Literal["local", "rows", "constant", "hc0", "hc1", "hc2", "hc3"]


def noise_variance(fit: Fit, x_new: ArrayLike | Any) -> Any:
    r"""The variance of the noise at new inputs: a local mean of the squared residuals.

    $$ \hat\sigma^2(x) = \frac{\sum_j K_j(x)\, w_j r_j^2}
       {\sum_j K_j(x)\, (1 - 2 L_{jj} + w_j \sum_l L_{jl}^2 / w_l)}, \qquad r = y - L y $$

    The denominator is the expectation of $w_j r_j^2$ where the variance of $y_j$ is $1 / w_j$, of
    the weights of the fit (1 without any), and the fit has no bias. $K_j$ is $w_j$ times a kernel
    like that of the fit. Its lengthscale is that of the fit times 2, 4, ... or 64, or one of eight
    between the spacing of the inputs and their range. The one with the highest normal likelihood of
    the left-out residuals is chosen. Where no label has weight, $K_j = 1$.

    **Returns:** shape (m,) or (m, out), in squared units of y, of a label of weight 1; of a frame
    of pandas a `Series` or a `DataFrame` with its index and the names of the labels.

    **Raises:** `ValueError` for a fit that is not of a linear smoother with `variance_smoothers`,
    such as a `KernelRegression`, or for a batch of fits.

    **Source:** Ruppert, Wand, Holst and Hössjer, *Local polynomial variance-function estimation*
    (1997).

    ```python
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0))
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), data.x, data.y, objective=ak.LeaveOneOut())
    print(ak.noise_variance(fit, np.array([-1.0, 1.0])))
    ```
    """
    fit = require_smoother_fit(fit)
    at = fit.inputs(x_new)
    out = jit_if_pure(_noise_variance, (fit.model,), *padded_rows(fit, at))
    return as_pandas(cut_rows(out, len(at)), x_new, fit.y_name)


def _noise_variance(model: LinearSmoother, at: NewInputs, rows: Rows) -> Predictions:
    """Returns the noise variance of a label of weight 1 at new inputs `at`, from checked data."""
    rule, squares = RowVariance.of_fit(model, rows, "local")
    return rows.shaped(rule.at(at, squares))


class RowVariance(eqx.Module):
    """A rule for the noise variance of each label, given squared residuals at the inputs of a fit.

    `rule(rule.squares(estimate))` are the variances, for an estimate at these inputs. Only the
    choice of the smoother depends on the labels of the fit: the estimate may be that of simulated
    labels.
    """

    model: LinearSmoother
    rows: Rows
    weights: Float[Array, " n"]  # w: the variance of a label is σ²(x) / w
    expected: Float[Array, " n"]  # expectation of the weighted squared residual, where σ is 1
    leverage: Float[Array, " n"]
    smoother: Any  # of the variance; None unless the noise is local
    noise: Noise = eqx.field(static=True)

    @classmethod
    def of_fit(
        cls, model: LinearSmoother, rows: Rows, noise: str
    ) -> tuple["RowVariance", Float[Array, "n out"]]:
        """Returns the rule of a fit, and the squared residuals of the fit as by `squares`.

        `noise`: as for `bands`. **Raises:** `ValueError` for a noise that the model does not have.
        """
        found = model.estimate(None, rows)
        return cls.of_estimate(found, row_diagnostics(found), noise)

    @classmethod
    def of_estimate(
        cls, found: Estimate, diagnostics: "RowDiagnostics", noise: str
    ) -> tuple["RowVariance", Float[Array, "n out"]]:
        """Returns the results of `of_fit`, from the estimate at the rows of the fit and the
        diagnostics of these rows."""
        require_choice("noise", noise, get_args(Noise))
        model, rows = found.model, found.rows
        leverage, weights = diagnostics.leverage, diagnostics.weights
        # a row that the fit interpolates, alone in its neighbourhood, does not identify its noise
        least = jnp.finfo(leverage.dtype).eps ** 0.5
        expected = jnp.maximum(1.0 - 2.0 * leverage + diagnostics.norms, least)
        expected = jnp.where(weights > 0, expected, 0.0)
        rule = cls(model, rows, weights, expected, leverage, None, cast(Noise, noise))
        squares = rule.squares(found)
        if noise != "local":
            return rule, squares
        if not (smoothers := model.variance_smoothers(rows)):
            raise ValueError(
                f'noise="local" averages squared residuals with one of the variance_smoothers of a '
                f'model; {type(model).__name__} has none: pass noise="constant" or noise="rows".'
            )
        return rule.with_likeliest(smoothers, squares), squares

    def squares(self, found: Estimate) -> Float[Array, "n out"]:
        """The squared residuals of an estimate at the inputs of the fit, times their factors."""
        residuals, factors = self.residuals(found)
        return factors * residuals**2

    def residuals(self, found: Estimate) -> tuple[Float[Array, "n out"], Float[Array, "n 1"]]:
        r"""Residuals of an estimate at the inputs of the fit, and the factors of their squares.

        Residuals are the left-out ones for `"rows"`, else $e_i = y_i - \hat f(x_i)$. Factors are
        $w_i$ for `"local"` and `"constant"`, 1 for `"rows"` and `"hc0"`, $n / (n - \nu)$ for
        `"hc1"`, $1 / (1 - L_{ii})$ for `"hc2"` and its square for `"hc3"`.
        """
        n, least = jnp.sum(self.weights > 0), jnp.finfo(self.leverage.dtype).eps ** 0.5
        left = jnp.maximum(1.0 - self.leverage, least)
        of_all = jnp.maximum(1.0 - jnp.sum(self.leverage) / n, least)
        one, of_weights = jnp.ones_like(left), dict.fromkeys(("local", "constant"), self.weights)
        of_hc = {"hc0": one, "hc1": one / of_all, "hc2": 1.0 / left, "hc3": 1.0 / left**2}
        factors = {"rows": one, **of_weights, **of_hc}[self.noise]
        is_left_out = self.noise == "rows"
        residuals = found.loo_residuals if is_left_out else found.rows.labels - found.value
        return residuals.reshape(len(left), -1), factors[:, None]

    def __call__(self, squares: Float[Array, "n out"]) -> Float[Array, "n out"]:
        """The variance of each label, from the `squares` of all labels."""
        if self.noise == "local":
            at_weight_one = self.at(self.rows.x, squares)
        elif self.noise == "constant":
            at_weight_one = jnp.sum(squares, axis=0, keepdims=True) / jnp.sum(self.expected)
        else:  # of rows: each is its own square
            return squares
        return at_weight_one * inverse_or_zero(self.weights)[:, None]

    def at(
        self, x_new: NewInputs, squares: Float[Array, "n out"], prior: Mask | None = None
    ) -> Float[Array, "m out"]:
        """Returns the local variance of a label of weight 1 at new inputs, from `squares`.

        It needs a rule with the noise `"local"`. Where no label has weight, it is the variance from
        all labels. `prior`: masks rows from the average, such as each row from its own.
        """
        both = jnp.concatenate([squares, self.expected[:, None]], axis=1)
        means = self.smoother(x_new, self.rows.x, both, prior=prior, **self.rows.kwargs)
        total, count = jnp.sum(squares, axis=0, keepdims=True), jnp.sum(self.weights > 0)
        floor = jnp.finfo(squares.dtype).eps * total / count.astype(squares.dtype)
        local, overall = means[:, :-1] / means[:, -1:], total / jnp.sum(self.expected)
        return jnp.maximum(jnp.where(jnp.isnan(local), overall, local), floor)

    def with_likeliest(
        self, smoothers: Sequence[LinearSmoother], squares: Float[Array, "n out"]
    ) -> "RowVariance":
        """Returns the rule with the smoother of the highest normal likelihood of the residuals.

        Each residual is scored with the variance estimated from all other rows.
        """
        has_weight = (self.weights > 0)[:, None]
        scaled = squares / jnp.where(has_weight, self.expected[:, None], 1.0)
        moving, fixed = zip(*(eqx.partition(s, eqx.is_array) for s in smoothers), strict=True)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *moving)

        def with_smoother(i: Array) -> RowVariance:
            own = jax.tree.map(lambda leaf: leaf[i], stacked)
            return dataclasses.replace(self, smoother=eqx.combine(own, fixed[0]))

        def deviance(i: Array) -> Array:
            others = with_smoother(i).at(self.rows.x, squares, ExcludeSelf())
            return jnp.mean(jnp.log(others) + scaled / others, where=has_weight)

        return with_smoother(jnp.argmin(jax.lax.map(deviance, jnp.arange(len(smoothers)))))


class RowDiagnostics(NamedTuple):
    """The figures of each row under a fit with hat matrix L, as in `degrees_of_freedom`.

    `norms` are $w_i \\sum_j L_{ij}^2 / w_j$, `squares` $\\sum_j L_{ij}^2$; j runs over rows with
    positive weight.
    """

    fitted: Array  # in the shape of y; L y for a linear smoother
    leverage: Float[Array, " n"]  # L_ii
    norms: Float[Array, " n"]
    squares: Float[Array, " n"]
    weights: Float[Array, " n"]  # w, 1 where a fit has none
    support: DataSupport


def row_diagnostics(found: Estimate) -> RowDiagnostics:
    """Returns the diagnostics of the rows of a fit, from its estimate there."""
    rows = found.rows
    weights = rows.row_weights(rows.y.dtype)
    columns = [inverse_or_zero(weights)]
    if rows.weights is not None and rows.weights.dtype != bool:  # else both sums are the same
        columns.append(jnp.ones_like(weights))
    sums = found.variance_of(jnp.stack(columns, axis=1))
    norms, squares = weights * sums[:, 0], sums[:, -1]
    return RowDiagnostics(found.value, found.leverage, norms, squares, weights, found.support)


def require_smoother_fit(
    fit: Any, kinds: tuple[type, ...] = (LinearSmoother,), one_label: str = ""
) -> Fit:
    """Returns a single fit of one of these models, with only the rows whose weight is above 0.

    `one_label`: the start of the error message for several labels per row, such as `Quantiles
    are`; empty if several are allowed.

    **Raises:** `ValueError` for anything else.
    """
    if not isinstance(fit, Fit):
        raise ValueError(f"fit must be a Fit, as ak.fit gives it; got a {type(fit).__name__}.")
    if fit.loss.ndim:
        raise ValueError("This is a batch of fits: ask one of them, fit.member(i).")
    if not isinstance(fit.model, kinds):
        others = "".join(f" or a {kind.__name__}" for kind in kinds[1:])
        raise ValueError(
            f"fit must be of a linear smoother, whose hat matrix is known, such as "
            f"ak.KernelRegression{others}; got one of a {type(fit.model).__name__}. For "
            f"intervals of a new label by any model, see ak.conformal."
        )
    if one_label and fit.y.ndim != 1:
        raise ValueError(f"{one_label} of one label per row; y has shape {fit.y.shape}.")
    return drop_weightless(fit)


def padded_rows(fit: Fit, at: NewInputs | None = None) -> tuple[Float[Array, "padded dim"], Rows]:
    """Returns new inputs `at` (default: x) and the rows of a fit.

    Both are padded to a `bucket_size` if `model.can_pad_rows`, no `jit` surrounds the call, and
    each array lies on a single device. `cut_rows` undoes it for the results.
    """
    model, rows, at = fit.model, fit.rows, fit.x if at is None else at
    can_pad = isinstance(model, Smoother) and model.can_pad_rows
    if can_pad and rows.can_use_numpy(model, at):
        rows, at = rows.padded(at)
    return at, rows


def drop_weightless(fit: Fit) -> Fit:
    """Returns the fit with only the rows whose weight is above 0.

    Inside `jit`, where the values of weights are not known, all rows stay.
    """
    kept = Sample(fit.x, fit.y, fit.objective).without_weightless_rows()
    return dataclasses.replace(fit, **kept._asdict())


CLUSTERED_NOISE = ("rows", "hc0", "hc1", "hc2", "hc3")


class Clusters(eqx.Module):
    """The cluster of each row, from 0, and the half-width of an interval in standard errors."""

    codes: Int[Array, " n"]
    half_width: Float[Array, ""]  # a quantile of Student's t
    num_clusters: Int[Array, ""]  # G
    padded_count: int = eqx.field(static=True)  # at least G: data of similar size share it

    @classmethod
    def of_rows(
        cls, clusters: Any, fit: Fit, level: float, noise: str, rows: int, kind: str = "pointwise"
    ) -> "Clusters":
        """Returns the clusters of the rows of a fit, padded to `rows`, a number of rows.

        `clusters`: the cluster of each row of `fit.x`; `level`: the coverage of the interval;
        `noise`, `kind`: as for `bands`.

        **Raises:** `ValueError` unless there are two or more clusters, one for each row; for a
        model that is no linear smoother, a simultaneous band, or a noise not in `CLUSTERED_NOISE`.
        """
        from scipy.special import stdtrit  # noqa: PLC0415  `import attnkernel` needs no SciPy

        if not isinstance(fit.model, LinearSmoother):
            raise ValueError(
                f"clusters= is for linear smoothers; this fit is of a {type(fit.model).__name__}."
            )
        if kind == "simultaneous":
            raise ValueError(
                "A simultaneous band is simulated from independent errors, and clusters= says that "
                'they are not: pass kind="pointwise".'
            )
        require_choice("noise", noise, CLUSTERED_NOISE)
        codes, number = as_group_codes("clusters", clusters)
        if len(codes) != len(fit.x) or number < 2:
            raise ValueError(
                f"clusters must be two or more, one for each of the {len(fit.x)} rows of the fit; "
                f"got {number} of {len(codes)} rows."
            )
        padded = np.pad(codes, (0, rows - len(codes)), mode="edge")
        half_width = np.asarray(stdtrit(number - 1, 0.5 + 0.5 * level), fit.y.dtype)
        parts = (padded, half_width, np.asarray(number, np.int32))
        codes, half_width, total = jax.device_put(parts)
        return cls(codes, half_width, total, bucket_size(number))

    def factor(self, n: Array, trace: Float[Array, ""]) -> Float[Array, ""]:
        r"""Returns the small-sample factor of squared standard errors.

        $\frac{G}{G - 1} \frac{n - 1}{n - \nu}$ for n rows, ν = `trace` and G clusters.
        """
        left = jnp.maximum(n - trace, jnp.finfo(trace.dtype).eps ** 0.5)
        return (n - 1) / left * self.num_clusters / (self.num_clusters - 1)

    def sum_of_squares(
        self, predict: Callable[[Array], Array], errors: Float[Array, "n out"]
    ) -> Float[Array, "m out"]:
        """The squares of the predictions from the errors of one cluster, summed over clusters.

        `predict`: from labels, shape (n, columns), to predictions that are linear in them.
        """
        n, out = errors.shape
        max_labels = 2**22  # numbers of labels at a time, rows times clusters
        size = max(1, min(self.padded_count, max_labels // (n * out)))

        def of_chunk(first: Int[Array, ""]) -> Float[Array, "m out"]:
            own = self.codes[:, None] == first + jnp.arange(size)[None, :]
            labels = jnp.where(own[:, :, None], errors[:, None, :], 0.0)
            found = predict(labels.reshape(n, size * out))
            return jnp.sum(found.reshape(-1, size, out) ** 2, axis=1)

        return jnp.sum(jax.lax.map(of_chunk, jnp.arange(0, self.padded_count, size)), axis=0)

    def errors(self, rule: RowVariance) -> Float[Array, "n out"]:
        """Returns the error eᵢ of each label, whose sums within clusters, weighted by Lᵢ(x), are
        squared.

        With the noise "rows", eᵢ is the error of the prediction from all other clusters, or from
        the mean of all labels if no other cluster is in reach. With another noise, it is the
        residual times the roots of its factor in `RowVariance.residuals` and of `factor`.
        """
        rows = rule.rows
        if rule.noise != "rows":
            factor = self.factor(jnp.sum(rule.weights > 0), jnp.sum(rule.leverage))
            residuals, factors = rule.residuals(rule.model.estimate(None, rows))
            return residuals * jnp.sqrt(factors * factor)
        prior = OtherFolds(self.codes)
        others = rule.model(rows.x, rows.x, rows.y, prior=prior, **rows.kwargs)
        # where no other cluster is in reach the prediction is the mean of all labels
        mean = jnp.average(rows.y, axis=0, weights=rule.weights, keepdims=True)
        return rows.y - jnp.where(jnp.isnan(others), mean, others)
