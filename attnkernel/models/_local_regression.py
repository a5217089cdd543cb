"""What regressions by local polynomials share: least squares, likelihoods and quantiles."""

import abc
import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import AnyArray
from .._core.rows import Inputs, NewInputs, Predictions, Rows
from ..kernels import Kernel, category_counts, rescaled
from ..local import LikelihoodFit, LocalFit, QuantileFit
from ..priors import Prior
from ..rules import Rule
from ._data import with_bounds_of, with_weights
from ._empty import OnEmpty, fill_empty
from ._estimate import DataSupport
from ._prediction import RowsRegression, predict_with_warning
from ._smoother import Smoother


class LocalRegression(RowsRegression, Smoother):
    """A regression by polynomials, fitted around each input with the weights of a kernel."""

    kernel: eqx.AbstractVar[Kernel]
    rule: eqx.AbstractVar[Rule]
    order: eqx.AbstractVar[int]
    on_empty: eqx.AbstractVar[OnEmpty]

    def predict(self, q: NewInputs, rows: Rows, prior: Prior | None) -> Predictions:
        """Predictions from checked data."""
        self.check_labels(rows.y)
        return predict_with_warning(_predict, self, prior, q, rows)

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
        """Predictions at queries, of checked arrays, and their polynomials."""

    def polynomials(self, q: Array, k: Array, v: Array, prior: Prior | None) -> Any:
        """The local polynomials at queries, of checked arrays."""
        return self.fitted(q, k, v, prior)[1]

    @property
    def description(self) -> str:
        """`local constant`, `local linear` or `local quadratic`."""
        return ("local constant", "local linear", "local quadratic")[self.order]

    def bias_corrected(self, rows: ArrayLike, dim: int) -> "LocalRegression | None":
        r"""The local quadratic fit with $n^{1/(d + 4) - 1/(d + 3)}$ times the lengthscales.

        d counts the columns that hold no categories: the rates do not depend on the others (Racine
        and Li, 2004). None for order 2, above which there is no higher one. See `ak.bands`.
        """
        if self.order == 2:
            return None
        n, d = jnp.asarray(rows, float), len(self.columns_of_quantities(dim))
        kernel = rescaled(self.kernel, n ** (1.0 / (d + 4) - 1.0 / (d + 3)))
        return dataclasses.replace(self, kernel=kernel, order=2)

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """The columns of x that hold codes of categories, those of the kernel."""
        return category_counts(self.kernel, dim)

    @property
    def can_pad_rows(self) -> bool:
        """Whether the kernel is pairwise."""
        return self.kernel.is_pairwise

    def search_box(self, x: Inputs, weights: AnyArray | None = None) -> tuple[Any, Any]:
        """The box for a fit, as two models: the kernel's `search_box(x)`, all else free."""
        return with_bounds_of("kernel", self, self.kernel.search_box(x, weights))

    def filled(
        self, out: Array, empty: Array, q: NewInputs, rows: Rows, prior: Prior | None
    ) -> Float[Array, "m out"]:
        """Predictions with `on_empty` applied where no label has weight; `prior`: with weights."""
        return fill_empty(out, empty, q, rows, prior, self.on_empty).astype(q.dtype)

    def columns_of_quantities(self, dim: int) -> tuple[int, ...]:
        """The variables of the polynomials among `dim` columns: those that hold no categories."""
        names = category_counts(self.kernel, dim)
        return tuple(column for column in range(dim) if column not in names)


def support_of(local: LocalFit | LikelihoodFit | QuantileFit) -> DataSupport:
    """Returns how well the data determine local polynomials."""
    return DataSupport(local.empty, local.deficient, local.extrapolates)


def _predict(
    model: LocalRegression, prior: Prior | None, q: NewInputs, rows: Rows
) -> tuple[Predictions, DataSupport]:
    """Returns predictions from checked data, and how well the data determine them."""
    prior = with_weights(prior, rows)
    out, local = model.fitted(q, rows.x, rows.y, prior)
    return rows.shaped(model.filled(out, local.empty, q, rows, prior)), support_of(local)
