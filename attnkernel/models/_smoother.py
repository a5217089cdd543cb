"""Base classes of regressions: arguments of a call, compiled predictions, bounds of a fit.

Data sets of similar size share compiled programs.
"""

import operator
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import AnyArray, Scalar, wider_dtype
from .._core.rows import Inputs, NewInputs, Predictions, Rows, cut_rows
from .._core.validation import require_instance
from ..attention import jit_if_pure
from ..kernels import Kernel, unbounded
from ..local import warn_of_extrapolation
from ..methods import Method
from ..priors import HeldOut, KeyWeights, Mask, PairMask, Prior, require_prior
from ..rules import Rule


def require_parts(kernel: Any, rule: Any, method: Any) -> None:
    """Raises `ValueError` unless they are a kernel, a rule and a method."""
    require_instance("kernel", kernel, Kernel, "ak.Gaussian(0.3)")
    require_instance("rule", rule, Rule, "ak.Softmax()")
    require_instance("method", method, Method, "ak.attention.Auto()")


def with_weights(prior: Prior | None, rows: Rows) -> Prior | None:
    """Returns one prior: `prior` times the weights of the rows; None if there are neither.

    Rows with weight 0 or False are hidden. `ValueError` unless `prior` is None or a prior.
    """
    if prior is not None:
        require_prior("prior", prior)
    weights = rows.weights
    if weights is None:
        return prior
    if weights.dtype == bool:
        held_out = HeldOut(~weights)
        if prior is None:
            return held_out
        return prior & held_out if isinstance(prior, Mask) else prior * held_out
    row_prior = KeyWeights(_log_of_weights(weights))
    return row_prior if prior is None else prior * row_prior


def hide_rows(rows: Rows, mask: PairMask) -> Rows:
    """Returns the rows with weight 0 where `mask.allowed` is False: hidden from every query.

    Other factors of the mask are ignored.
    """
    if mask.allowed is None:
        return rows
    weights = rows.row_weights(wider_dtype(rows.x.dtype))
    return rows.with_weights(jnp.where(mask.allowed, weights, 0.0))


@jax.jit
def _log_of_weights(weights: Float[Array, " n"]) -> Float[Array, " n"]:
    """Returns log w, -inf where w = 0, and NaN for w < 0, which only `jit` lets pass."""
    zero = weights == 0
    return jnp.where(zero, -jnp.inf, jnp.log(jnp.where(zero, 1, weights)))


def with_bounds_of(field: str, model: Any, bounds: tuple[Any, Any]) -> tuple[Any, Any]:
    """Returns the box for a fit, as two models (lower, upper).

    The named field has the two `bounds`; all other leaves are -inf and inf.
    """
    lower, upper = unbounded(model)
    where = operator.attrgetter(field)
    return eqx.tree_at(where, lower, bounds[0]), eqx.tree_at(where, upper, bounds[1])


def between_bounds(share: Scalar | float, own: Any, lower: Any, upper: Any) -> Any:
    """Returns a tree at this share of the way from its lower to its upper bounds; leaves without
    finite bounds keep their own values."""

    def leaf(own: Any, low: Any, high: Any) -> Any:
        if not eqx.is_inexact_array(own):
            return own
        is_bounded = jnp.isfinite(low) & jnp.isfinite(high)
        low, high = (jnp.where(is_bounded, end, own) for end in (low, high))
        return (low + share * (high - low)).astype(own.dtype)

    return jax.tree.map(leaf, own, lower, upper)


class RowsRegression(eqx.Module):
    """Base of regressions: a call reads its arguments once as queries and `Rows`, then predicts."""

    def __call__(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> Any:
        """Predictions at new inputs from labelled ones.

        **Arguments:**

        - `x_new`: shape (m, dim) or (m,); `x`: shape (n, dim) or (n,).
        - `y`: labels, shape (n,) or (n, out).
        - `prior`: which labels each prediction may see, for example `ak.priors.ExcludeSelf()` for
          predictions at x itself. Default: all.
        - `weights`: of each row, shape (n,), from 0; what they mean, the class says. Rows with
          weight 0 are ignored. Default: 1.

        **Returns:** shape (m,) or (m, out), in the units of y and the dtype of `x_new`, unless the
        class says otherwise.

        **Raises:** `ValueError` if shapes do not fit together, a number is not finite, a weight is
        negative, or the model cannot have such a label.
        """
        q, rows = self.read(x_new, x, y, weights)
        if prior is not None:
            require_prior("prior", prior)
        return self.predict(q, rows, prior)

    def predict(self, q: NewInputs, rows: Rows, prior: Prior | None) -> Any:
        """Predictions from checked data, by default those of `evaluate` through `on_padded_rows`.

        Outside `jit` it warns where predictions of order 1 or 2 extrapolate or the local design is
        rank-deficient.
        """
        model: Any = self
        out, support = on_padded_rows(type(self).evaluate, model, prior, q, rows)
        warn_of_extrapolation(model.description, support, wider_dtype(out.dtype))
        return out

    def evaluate(self, prior: Prior | None, q: NewInputs, rows: Rows) -> tuple[Predictions, Any]:
        """Predictions from checked data, and their `DataSupport`.

        Default: raises `NotImplementedError`. A subclass has this, `predict` or `__call__`.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither `__call__` nor `predict`.")

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """Returns {column: number of its categories} for the columns of x that hold codes.

        None: the number is not known. `dim`: the number of columns of x. Default: no such columns.
        """
        return {}

    def read(
        self, x_new: ArrayLike, x: ArrayLike, y: ArrayLike, weights: ArrayLike | None = None
    ) -> tuple[NewInputs, Rows]:
        """The queries and the labelled rows of the arguments of a call.

        **Raises:** `ValueError` as `Rows.read`, for new inputs that are not finite, for invalid
        codes of categories, and for widths that do not fit the kernel.
        """
        rows, names = Rows.read_named(x, y, weights)
        q = rows.queries(x_new, self.category_counts(rows.x.shape[1]), names)
        self.check_widths(q, rows.x)
        return q, rows

    def check_widths(self, x_new: Array, x: Array) -> None:
        """Raises `ValueError`, with both shapes, if their widths do not fit the kernel.

        A model without a `Kernel` in the field `kernel`, such as one with a `PerHead`, accepts all.
        """
        kernel = getattr(self, "kernel", None)
        if isinstance(kernel, Kernel):
            try:
                kernel.check(x_new.shape[-1], x.shape[-1])
            except ValueError as error:
                sentence = f"x_new {x_new.shape} and x {x.shape} do not fit the kernel. {error}"
                raise ValueError(sentence) from None

    def queries_at(self, x_new: ArrayLike | None, rows: Rows) -> NewInputs:
        """Returns new inputs as points, shape (m, dim); None: the inputs of the rows.

        Raises `ValueError` as `Rows.queries`.
        """
        if x_new is None:
            return rows.x
        return rows.queries(x_new, self.category_counts(rows.x.shape[1]))


def on_padded_rows(
    function: Callable[..., Any], model: Any, prior: Prior | None, q: NewInputs, rows: Rows
) -> Any:
    """Returns `function(model, prior, q, rows)`, arrays with a row for each query.

    The call is one compiled program, unless a part holds a Python function (`jit_if_pure`).
    Queries and rows are padded to a `bucket_size`, and results cut, if all of this holds: no `jit`
    surrounds the call, there is no prior, `model.can_pad_rows`, and each array lies on one device.
    Data of similar size then share the program.
    """
    m = q.shape[0]  # a size, or a symbol of one in an export
    can_pad = prior is None and model.can_pad_rows and rows.can_use_numpy(model, q)
    if can_pad:
        rows, q = rows.padded(q)
    found = jit_if_pure(function, (model, prior), q, rows)
    return cut_rows(found, m) if can_pad else found


class Smoother(RowsRegression):
    """A regression whose data are arguments of the call. Its kinds are `LinearSmoother`,
    `LocalLikelihood`, `LocalQuantile`, `RobustRegression` and `DensityModel`.

    To add one, write `__call__`, or `predict`, which gets checked data. `ak.fit` and inference ask
    a model for the methods below, each of which has a default.

    ```python
    >>> isinstance(ak.KernelRegression(ak.Gaussian(0.3)), ak.models.Smoother)
    True

    ```
    """

    # Whether all methods ignore the rows that have False in `weights`, up to rounding. Rows are
    # then padded to a `bucket_size`, so that data sets of similar size share compiled programs.
    can_pad_rows: ClassVar[bool] = False

    @property
    def description(self) -> str:
        """The kind of smoother in a few words, for tables."""
        return type(self).__name__

    def check_labels(self, y: ArrayLike) -> None:
        """Raises `ValueError` for labels that the model cannot have. Default: accepts all."""

    def bias_corrected(self, rows: ArrayLike, dim: int) -> "Smoother | None":
        """The smoother whose fit is the centre of a bias-corrected band.

        None, the default: the model has no such correction, and `ak.bands` needs `corrected=False`.

        **Arguments:** `rows`: the number n of labelled rows; `dim`: the number of columns of x.
        """
        return None

    def search_box(self, x: Inputs, weights: AnyArray | None = None) -> tuple[Any, Any]:
        """Returns the box for a fit, as two models: one holds all lower bounds, one all upper ones.

        Rows of x with weight 0 are ignored. Default: -inf and inf.
        """
        return unbounded(self)


class SmootherWrapper(Smoother):
    """A smoother that holds another one, its `model`."""

    model: eqx.AbstractVar[Any]  # a `LinearSmoother`

    @property
    def kernel(self) -> Any:
        """The kernel of the model; None if it has none."""
        return getattr(self.model, "kernel", None)

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """Returns the `category_counts` of the inner model."""
        return self.model.category_counts(dim)

    @property
    def can_pad_rows(self) -> bool:  # type: ignore[override]
        """Whether the inner model ignores rows with False in `weights`: they may pad the data."""
        return self.model.can_pad_rows

    def search_box(self, x: Inputs, weights: AnyArray | None = None) -> tuple[Any, Any]:
        """Returns the box for a fit, as two wrappers: bounds of the inner model, all else free."""
        return with_bounds_of("model", self, self.model.search_box(x, weights))
