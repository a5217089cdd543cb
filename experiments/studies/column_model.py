"""A local polynomial regression by a product of kernels, each the right one of its column."""

from typing import Any, Literal

import numpy as np
from pydantic import Field

import attnkernel as ak

from ..config import BUILT_IN, KERNELS, KernelName, Part


class ColumnModel(Part):
    """Local polynomial regression by a product of kernels, one of each column."""

    kernel: Literal["auto"] | KernelName = Field(
        default="auto",
        description="of quantities, auto is gaussian; columns of words have kernels of categories",
        json_schema_extra={"anyOf": [{"enum": ["auto", *BUILT_IN]}, {"type": "string"}]},
    )
    order: Literal[0, 1, 2] = Field(
        default=1, description="of the local polynomial: 0 constant, 1 linear, 2 quadratic"
    )

    def make(self, data: ak.data.Dataset) -> ak.KernelRegression:
        """The model where its search starts: at rules of thumb."""
        return ak.KernelRegression(self._kernel_of_columns(data), order=self.order)

    def _kernel_of_columns(self, data: ak.data.Dataset) -> ak.kernels.Kernel:
        """Returns the product of kernels of the columns: of quantities this one, of categories that
        of Aitchison and Aitken, of ordered categories that of Li and Racine."""
        dim = data.x.shape[1]
        levels, ordered = data.categories or (None,) * dim, data.ordered or (False,) * dim
        kind = KERNELS["gaussian" if self.kernel == "auto" else self.kernel]
        quantities = [c for c in range(dim) if levels[c] is None]
        factors: list[Any] = []
        if quantities:
            lengths = np.asarray(ak.inference.normal_reference(data.x[:, np.array(quantities)]))
            if dim == 1:
                return kind(lengths[0])
            if kind is ak.Gaussian:  # the product over its columns is one of their distance
                factors.append(kind(lengths).on(*quantities))
            else:
                factors += [kind(at).on(c) for at, c in zip(lengths, quantities, strict=True)]
        for column, words in enumerate(levels):
            if words is not None:
                half = 0.5 * (1.0 - 1.0 / len(words))
                kernel = (
                    ak.kernels.LiRacineOrdered(0.5)
                    if ordered[column]
                    else ak.kernels.AitchisonAitken(half, len(words))
                )
                factors.append(kernel.on(column))
        product = factors[0]
        for factor in factors[1:]:
            product = product * factor
        return product
