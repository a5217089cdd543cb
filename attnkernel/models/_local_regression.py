"""What regressions by local polynomials share: least squares, likelihoods and quantiles."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.host_arrays import AnyArray
from ..kernels import Kernel
from ..local import LikelihoodFit, LocalFit, QuantileFit
from ..priors import Prior
from ..rules import Rule
from ._data import with_bounds_of
from ._empty import OnEmpty, fill_empty
from ._smoother import DataSupport, Smoother


class LocalRegression(Smoother):
    """A regression by polynomials, fitted around each input with the weights of a kernel."""

    kernel: eqx.AbstractVar[Kernel]
    rule: eqx.AbstractVar[Rule]
    order: eqx.AbstractVar[int]
    on_empty: eqx.AbstractVar[OnEmpty]

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
        kernel = self.kernel.rescaled(n ** (1.0 / (d + 4) - 1.0 / (d + 3)))
        return dataclasses.replace(self, kernel=kernel, order=2)

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """The columns of x that hold codes of categories, those of the kernel."""
        return self.kernel.category_counts(dim)

    @property
    def can_pad_rows(self) -> bool:
        """Whether the kernel is pairwise."""
        return self.kernel.is_pairwise

    def search_box(
        self, x: Float[AnyArray, "n dim"], weights: AnyArray | None = None
    ) -> tuple[Any, Any]:
        """The box for a fit, as two models: the kernel's `search_box(x)`, all else free."""
        return with_bounds_of("kernel", self, self.kernel.search_box(x, weights))

    def filled(
        self,
        out: Float[Array, "m out"],
        local: LocalFit | LikelihoodFit | QuantileFit,
        q: Float[Array, "m dim"],
        k: Float[Array, "n dim"],
        v: Float[Array, "n out"],
        prior: Prior | None,
    ) -> Float[Array, "m out"]:
        """Predictions with `on_empty` applied where no label has weight."""
        return fill_empty(out, local.empty, q, k, v, prior, self.on_empty).astype(q.dtype)

    def columns_of_quantities(self, dim: int) -> tuple[int, ...]:
        """The variables of the polynomials among `dim` columns: those that hold no categories."""
        names = self.kernel.category_counts(dim)
        return tuple(column for column in range(dim) if column not in names)


def support_of(local: LocalFit | LikelihoodFit | QuantileFit) -> DataSupport:
    """Returns how well the data determine local polynomials."""
    return DataSupport(local.empty, local.deficient, local.extrapolates)
