"""Smoothers around another one, from which they have kernel, bounds and categories."""

from typing import Any

import equinox as eqx
from jaxtyping import Float

from .._core.host_arrays import AnyArray
from ._data import with_bounds_of
from ._smoother import Smoother


class SmootherWrapper(Smoother):
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

    def search_box(
        self, x: Float[AnyArray, "n dim"], weights: AnyArray | None = None
    ) -> tuple[Any, Any]:
        """The box for a fit, as two models: that of the model, all else free."""
        return with_bounds_of("model", self, self.model.search_box(x, weights))
