"""The base class of local polynomial regressions, and predictions where no label has weight."""

import abc
import dataclasses
from typing import Any, Literal, cast, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import AnyArray, wider_dtype
from .._core.rows import Inputs, NewInputs, Predictions, Rows
from .._core.tracing import is_symbolic
from .._core.validation import require_choice
from ..attention import Auto, as_order, with_automatic_axes
from ..kernels import Kernel, category_counts, rescaled
from ..local import LikelihoodFit, LocalFit, Polynomial, QuantileFit
from ..priors import Prior
from ..rules import Rule, Softmax
from ._linear_smoother import DataSupport, Estimate
from ._smoother import Smoother, require_parts, with_bounds_of, with_weights

OnEmpty = Literal["nan", "nearest", "mean", "raise"]


def known_policy(on_empty: str) -> OnEmpty:
    """Returns the policy; `ValueError` unless it is one of `OnEmpty`."""
    require_choice("on_empty", on_empty, get_args(OnEmpty))
    return cast(OnEmpty, on_empty)


def fill_empty(
    out: Float[Array, "m out"],
    empty: Bool[Array, " m"],
    q: NewInputs,
    rows: Rows,
    prior: Prior | None,
    on_empty: OnEmpty,
) -> Float[Array, "m out"]:
    """Returns the predictions `out`, in which rows with `empty` follow the policy `on_empty`.

    The policy "raise" raises a `RuntimeError` if any row is empty, and else returns `out`.
    """
    return with_automatic_axes(_fill_empty, (prior, on_empty), out, empty, q, rows)


@eqx.filter_jit
def _fill_empty(
    parts: tuple[Prior | None, OnEmpty], out: Array, empty: Array, q: Array, rows: Rows
) -> Float[Array, "m out"]:
    """Returns `out` with its rows replaced where `empty`; `parts`: the prior and the policy."""
    (prior, on_empty), k = parts, rows.x
    if on_empty == "raise":
        return eqx.error_if(
            out,
            jnp.any(empty),
            "A query has no label within reach of its kernel. Try a larger lengthscale, or "
            'on_empty="nan", "nearest" or "mean".',
        )
    if on_empty == "nan" or k.shape[0] == 0:
        return jnp.where(empty[:, None], jnp.nan, out)

    def fill() -> Float[Array, "m out"]:
        # squares of distances, and sums of labels, overflow half precision
        points, keys, labels = (part.astype(wider_dtype(part.dtype)) for part in (q, k, rows.y))

        def fallback_label(i: Int[Array, ""], point: Float[Array, " dim"]) -> Float[Array, " out"]:
            log = jnp.zeros(keys.shape[0], labels.dtype)
            if prior is not None:
                log = prior.pairwise(i[None], jnp.arange(keys.shape[0]))[0]
            if on_empty == "nearest":
                seen = ~jnp.isneginf(log)
                gaps = jnp.where(seen[:, None], jnp.abs(keys - point[None, :]), jnp.inf)
                unit = jnp.min(jnp.max(gaps, axis=1))  # the nearest squared is then of order 1
                squares = jnp.sum((gaps / jnp.where(unit > 0, unit, 1.0)) ** 2, axis=1)
                log = jnp.where(squares == jnp.min(squares), log, -jnp.inf)
            seen = ~jnp.isneginf(log)
            weights = jax.nn.softmax(jnp.where(jnp.any(seen), log, 0.0))
            visible = jnp.where(seen[:, None], labels, 0.0)
            found = jnp.sum(weights[:, None] * visible, axis=0)
            return jnp.where(jnp.any(seen), found, jnp.nan)

        # chunks of 64 queries: never an array of queries x keys
        each = lambda row: fallback_label(*row)  # noqa: E731
        size = None if is_symbolic(q.shape[0]) else 64
        fallback = jax.lax.map(each, (jnp.arange(q.shape[0]), points), batch_size=size)
        return jnp.where(empty[:, None], fallback.astype(out.dtype), out)

    # only if needed: the fallbacks take longer than the predictions
    return jax.lax.cond(jnp.any(empty), fill, lambda: out)


class LocalRegression(Smoother):
    """A regression by polynomials, fitted around each input with the weights of a kernel."""

    kernel: Kernel
    rule: Rule = eqx.field(default=Softmax(), kw_only=True)
    order: int = eqx.field(default=0, kw_only=True, static=True, converter=as_order)
    on_empty: OnEmpty = eqx.field(default="nan", kw_only=True, static=True, converter=known_policy)

    def __check_init__(self):
        require_parts(self.kernel, self.rule, Auto())

    def predict(self, q: NewInputs, rows: Rows, prior: Prior | None) -> Predictions:
        """Predictions from checked data, with the warnings of the base class.

        **Raises:** `ValueError` for labels that the model cannot have.
        """
        self.check_labels(rows.y)
        return super().predict(q, rows, prior)

    def evaluate(
        self, prior: Prior | None, q: NewInputs, rows: Rows
    ) -> tuple[Predictions, DataSupport]:
        """Predictions from checked data, with `on_empty` applied, and their `DataSupport`."""
        prior = with_weights(prior, rows)
        out, local = self.fitted(q, rows.x, rows.y, prior)
        return rows.shaped(self.filled(out, local.empty, q, rows, prior)), support_of(local)

    def local_fit(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> Any:
        """The local polynomials at new inputs; arguments as for the call.

        Where no label has weight, coefficients are 0.

        **Returns:** a `LocalFit`, a `QuantileFit`, or a `LikelihoodFit` on the scale of the link.
        """
        q, rows = self.read(x_new, x, y, weights)
        self.check_labels(rows.y)
        return self.polynomials(q, rows.x, rows.y, with_weights(prior, rows))

    @abc.abstractmethod
    def fitted(
        self, q: Array, k: Array, v: Array, prior: Prior | None
    ) -> tuple[Float[Array, "m out"], LocalFit | LikelihoodFit | QuantileFit]:
        """Returns predictions at queries, before `on_empty`, and the local polynomials.

        Arrays are checked: inputs q and k, labels v. `prior`: with the weights of the rows.
        """

    def polynomials(self, q: Array, k: Array, v: Array, prior: Prior | None) -> Any:
        """Returns the local polynomials at queries, from checked arrays; arguments of `fitted`."""
        return self.fitted(q, k, v, prior)[1]

    @property
    def description(self) -> str:
        """`local constant`, `local linear` or `local quadratic`."""
        return ("local constant", "local linear", "local quadratic")[self.order]

    def bias_corrected(self, rows: ArrayLike, dim: int) -> "LocalRegression | None":
        r"""The local quadratic fit with $n^{1/(d + 4) - 1/(d + 3)}$ times the lengthscales.

        `rows`: the number n of labelled rows; `dim`: the number of columns of x, of which d hold no
        categories: the rates do not depend on the others (Racine and Li, 2004). None for order 2:
        order 3 is not implemented. See `ak.bands`.
        """
        if self.order == 2:
            return None
        n, d = jnp.asarray(rows, float), len(self.columns_of_quantities(dim))
        kernel = rescaled(self.kernel, n ** (1.0 / (d + 4) - 1.0 / (d + 3)))
        return dataclasses.replace(self, kernel=kernel, order=2)

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """Returns the `category_counts` of the kernel: {column: number of categories, or None}."""
        return category_counts(self.kernel, dim)

    @property
    def can_pad_rows(self) -> bool:  # type: ignore[override]
        """Whether rows with False in `weights` are ignored: where the kernel `is_pairwise`."""
        return self.kernel.is_pairwise

    def search_box(self, x: Inputs, weights: AnyArray | None = None) -> tuple[Any, Any]:
        """The box for a fit, as two models: the kernel's `search_box(x)`, all else free."""
        return with_bounds_of("kernel", self, self.kernel.search_box(x, weights))

    def filled(
        self, out: Array, empty: Array, q: NewInputs, rows: Rows, prior: Prior | None
    ) -> Float[Array, "m out"]:
        """Predictions with `on_empty` applied where no label has weight; `prior`: with weights."""
        return fill_empty(out, empty, q, rows, prior, self.on_empty).astype(q.dtype)

    def polynomial(self, k: Float[AnyArray, "n dim"], prior: Prior | None) -> Polynomial:
        """Returns the `Polynomial`: kernel, prior, rule, order and columns; k: the labelled inputs.

        The order is 0 if all columns hold categories.
        """
        columns = self.columns_of_quantities(k.shape[1])
        weights = self.kernel, prior, self.rule
        return Polynomial(weights, self.order if columns else 0, columns)

    def columns_of_quantities(self, dim: int) -> tuple[int, ...]:
        """Returns the indices of the columns without categories: the variables of the polynomials.

        `dim`: the number of all columns.
        """
        names = category_counts(self.kernel, dim)
        return tuple(column for column in range(dim) if column not in names)


class LocalEstimate(Estimate):
    """An estimate from the local polynomials, or local likelihoods, of queries."""

    q: NewInputs
    prior: Prior | None  # with the weights of rows
    local: Any  # a `LocalFit` or `LikelihoodFit`

    @property
    def weights(self) -> Float[Array, "m n"]:
        """$L_j(x)$, from the predictions of an identity matrix."""
        eye = jnp.eye(len(self.rows.x), dtype=self.q.dtype)
        return self.model.fitted(self.q, self.rows.x, eye, self.prior)[0]


def support_of(local: LocalFit | LikelihoodFit | QuantileFit) -> DataSupport:
    """Returns the flags `empty`, `deficient` and `extrapolates` of local polynomials."""
    return DataSupport(local.empty, local.deficient, local.extrapolates)
