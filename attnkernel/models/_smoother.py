"""Smoothers: regressions that predict from labelled inputs in reach of a kernel, or of all."""

import abc
from typing import Any

import equinox as eqx
from jax.typing import ArrayLike

from .._core.arrays import AnyArray
from .._core.rows import Inputs, Predictions
from ..kernels import unbounded
from ..priors import Prior
from ._data import with_bounds_of
from ._prediction import RowsRegression


class Smoother(eqx.Module):
    """A regression whose data are arguments of the call. Its kinds are `LinearSmoother`,
    `LocalLikelihood`, `LocalQuantile` and `RobustRegression`.

    `ak.fit` and inference ask a model for the methods below, each of which has a default.

    ```python
    >>> isinstance(ak.KernelRegression(ak.Gaussian(0.3)), ak.models.Smoother)
    True

    ```
    """

    @abc.abstractmethod
    def __call__(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> Predictions:
        """Predictions at new inputs; arguments as for `KernelRegression`."""

    @property
    def description(self) -> str:
        """The kind of smoother in a few words, for tables."""
        return type(self).__name__

    def check_labels(self, y: ArrayLike) -> None:
        """Raises `ValueError` for labels that the model cannot have. Default: none."""

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """The columns of x that hold codes of categories, as in `ak.kernels.category_counts`."""
        return {}

    def bias_corrected(self, rows: ArrayLike, dim: int) -> "Smoother | None":
        """The smoother whose fit is the centre of a bias-corrected band.

        None, the default: the model has no such correction, and `ak.bands` needs `corrected=False`.

        **Arguments:** `rows`: n; `dim`: the number of columns of x.
        """
        return None

    @property
    def can_pad_rows(self) -> bool:
        """Whether all methods ignore the rows that have False in `weights`, up to rounding.

        Rows are then padded to a `bucket_size`, so that data sets of similar size share compiled
        programs. Default: no.
        """
        return False

    def search_box(self, x: Inputs, weights: AnyArray | None = None) -> tuple[Any, Any]:
        """The box for a fit, as two models; rows with weight 0 are ignored. Default: no bounds."""
        return unbounded(self)


class SmootherWrapper(RowsRegression, Smoother):
    """A smoother that holds another one, its `model`."""

    model: eqx.AbstractVar[Any]  # a `LinearSmoother`

    @property
    def kernel(self) -> Any:
        """The kernel of the model; None if it has none."""
        return getattr(self.model, "kernel", None)

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """The columns of x that hold codes of categories, those of the model."""
        return self.model.category_counts(dim)

    @property
    def can_pad_rows(self) -> bool:
        """Whether the model can."""
        return self.model.can_pad_rows

    def search_box(self, x: Inputs, weights: AnyArray | None = None) -> tuple[Any, Any]:
        """The box for a fit, as two models: that of the model, all else free."""
        return with_bounds_of("model", self, self.model.search_box(x, weights))
