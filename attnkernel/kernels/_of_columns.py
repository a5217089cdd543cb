"""The product of kernels that suits the columns of a table: one factor for each kind of column."""

import functools
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._core.arrays import as_numpy_if_concrete, as_points, is_concrete, require_finite, value_text
from .._core.pandas_frames import Categories, Names, column_number, frame_to_numbers, is_frame
from ._base import Kernel
from ._categorical import AitchisonAitken, LiRacineOrdered
from ._radial_kernels import Gaussian
from ._scaled import Periodic, Scaled


def of_columns(
    x: Any, *, kernel: type[Scaled] = Gaussian, periods: Mapping[Any, float] | None = None
) -> Kernel:
    r"""Returns a product of kernels, one for each column of a table, at which a fit can start.

    $$ \log K(q, k) = \sum_{c=1}^d \log K_c(q_c, k_c) $$

    | column c | $K_c$ |
    |---|---|
    | quantity | `kernel`, ℓ 0.3 standard deviations of the column |
    | with a period p | `Periodic(0.5, p)` |
    | m categories | `AitchisonAitken(λ, m)`, λ half of its largest value $1 - 1/m$ |
    | ordered categories | `LiRacineOrdered(0.5)` |

    `ak.fit(frame, "y ~ x + g")` and `python -m experiments fit` take it.

    **Arguments:** `x`: a frame of pandas, of which columns of dtype category are categories, or an
    array of quantities, shape (n, dim). `kernel`: the class of the kernels of quantities.
    `periods`: by name or number of a column, in its units.

    **Raises:** `ValueError` for a quantity with one value in all rows, and for an unknown column.

    ```python
    >>> x = np.array([[1.0, 1.0], [2.0, 23.0], [4.0, 12.0]])  # the second column holds hours
    >>> kernel = ak.kernels.of_columns(x, periods={1: 24.0})
    >>> kernel.first.columns, kernel.second.columns
    ((1,), (0,))

    ```
    """
    if not (isinstance(kernel, type) and issubclass(kernel, Scaled)):
        raise ValueError(f"kernel must be a class such as ak.Gaussian; got {value_text(kernel)}.")
    if not isinstance(periods, Mapping | None):
        raise ValueError(f"periods must be such as {{'hour': 24.0}}; got {value_text(periods)}.")
    names: Any = None
    categories: Categories = ()
    ordered = ()
    if is_frame(x):
        ordered = tuple(hasattr(column, "cat") and column.cat.ordered for _, column in x.items())
        x, names, categories = frame_to_numbers("x", x)
    points = as_points("x", x)
    require_finite("x", points)
    circles = {
        column_number("periods", column, points.shape[1], names): period
        for column, period in (periods or {}).items()
    }
    return product_of_columns(points, kernel, circles, categories, ordered, names)


def product_of_columns(
    points: Any,
    kernel: type[Scaled],
    periods: Mapping[int, float],
    categories: Categories = (),
    ordered: tuple[bool, ...] = (),
    names: Names | None = None,
) -> Kernel:
    """Returns the product of `of_columns` for checked points, shape (n, dim).

    `periods`: by number of the column. `categories`: for each column its categories, None for a
    quantity. `ordered`: for each column whether its categories are ordered. Either may be empty if
    there are none. `names`: those of the columns, for errors. `ValueError` for a quantity with one
    value in all rows, unless the points are traced.
    """
    dim, points = points.shape[1], as_numpy_if_concrete(points)
    levels, ordered = categories or (None,) * dim, ordered or (False,) * dim
    quantities = [c for c in range(dim) if levels[c] is None and c not in periods]
    factors: list[Any] = [Periodic(0.5, period).on(c) for c, period in periods.items()]
    if quantities:
        lengths = 0.3 * points[:, np.array(quantities)].std(axis=0)
        for c in np.flatnonzero(lengths == 0.0)[:1] if is_concrete(lengths) else ():
            column = repr(names[quantities[c]]) if names else quantities[c]
            raise ValueError(f"Column {column} of x has one value in all rows: leave it out.")
        if dim == 1:
            return kernel(lengths[0])
        if kernel is Gaussian:  # the product over its columns is one of their distance
            factors.append(kernel(lengths).on(*quantities))
        else:
            factors += [kernel(at).on(c) for at, c in zip(lengths, quantities, strict=True)]
    for column, words in enumerate(levels):
        if words is not None:
            half = 0.5 * (1.0 - 1.0 / len(words))
            factor = LiRacineOrdered(0.5) if ordered[column] else AitchisonAitken(half, len(words))
            factors.append(factor.on(column))
    return functools.reduce(operator.mul, factors)
