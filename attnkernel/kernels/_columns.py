"""A kernel of some columns of the points."""

from collections.abc import Hashable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from .._core.host_arrays import AnyArray, namespace_of
from .._core.validation import as_integer_tuple, require_instance
from ._base import Embedded, Kernel
from ._boxes import PointBoxes
from ._wrapper import Wrapper

Tree = TypeVar("Tree")


class OnColumns(Embedded, Wrapper):
    r"""A kernel of some columns of the points: mixed data are a product of these.

    $$ \log K(q, k) = \log K'(q_C, k_C), \qquad q, k \in \mathbb{R}^d,\
       C \subseteq \{0, \dots, d - 1\} $$

    **Arguments:**

    - `kernel`: K′, of points of as many dimensions as there are columns.
    - `columns`: C, counted from 0, in the order in which K′ takes them; or one number. Or names
      of the columns of a frame of pandas, which `fit` replaces by their numbers.

    `kernel.on(0, 2)` is `OnColumns(kernel, (0, 2))`.

    **Raises:** `ValueError` if a column is neither an integer from 0 nor a name, comes twice, is
    not among the columns of the points, or has a name but the points are no frame.

    ```python
    >>> import attnkernel as ak
    >>> kernel = ak.Gaussian(2.0).on("temperature") * ak.kernels.LiRacine(0.3).on("month")

    ```
    """

    kernel: Kernel
    columns: tuple[int, ...] | tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self, kernel: Kernel, columns: int | str | Sequence[int] | Sequence[str] | np.ndarray
    ):
        require_instance("kernel", kernel, Kernel, "ak.Gaussian(0.3)")
        self.kernel = kernel
        listed = [columns] if isinstance(columns, str) else columns
        if isinstance(listed, Sequence) and listed and all(isinstance(c, str) for c in listed):
            self.columns = tuple(str(c) for c in listed)
        else:
            self.columns = as_integer_tuple("columns", listed, 0)
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"Each column can be taken once; got {self.columns}.")

    def embed(
        self, q: Float[Array, "*batch queries dim"], k: Float[Array, "*batch_k keys dim"]
    ) -> tuple[Kernel, Array, Array]:
        return self.kernel, self.points_of_parts(q), self.points_of_parts(k)

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        return self.kernel.log_pair(self.points_of_parts(q), self.points_of_parts(k))

    def check(self, dim_q: int, dim_k: int) -> None:
        Kernel.check(self, dim_q, dim_k)
        self._require_columns(dim_q)
        Wrapper.check(self, dim_q, dim_k)

    def score_upper_bound(self, boxes: PointBoxes) -> Float[Array, ""]:
        return self.kernel.score_upper_bound(PointBoxes(*map(self.points_of_parts, boxes)))

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        self._require_columns(dim)
        if len(self.columns) < dim:
            raise ValueError(
                f"A kernel on the columns {', '.join(map(str, self.columns))} of {dim}, counted "
                f"from 0, is constant along the others, and its integral infinite: multiply it by "
                f"kernels on these."
            )
        return self.kernel.log_normaliser(dim)

    def category_counts(self, dim: int) -> dict[int, int | None]:
        self._require_columns(dim)
        counts = self.kernel.category_counts(len(self.columns))
        return {int(self.columns[c]): count for c, count in counts.items()}

    def dim_of_parts(self, dim: int) -> int:
        return len(self.columns)

    def points_of_parts(self, x: Float[AnyArray, "*rows dim"]) -> Float[AnyArray, "*rows dim_part"]:
        """The columns of points."""
        self._require_columns(x.shape[-1])
        # slices and no gather: these melt into the loops that read them
        parts = [x[..., c : c + 1] for c in map(int, self.columns)]
        return namespace_of(x).concatenate(parts, axis=-1)

    def numbered(self, names: Sequence[Hashable]) -> "OnColumns":
        """The kernel with the numbers of its columns in place of their names."""
        unknown = [c for c in self.columns if isinstance(c, str) and names.count(c) != 1]
        if unknown:
            raise ValueError(
                f"A kernel on the column {unknown[0]!r} needs exactly one column of that name; x "
                f"has {list(names)}."
            )
        columns = tuple(names.index(c) if isinstance(c, str) else c for c in self.columns)
        OnColumns(self.kernel, columns)._require_columns(len(names))
        return OnColumns(number_columns(self.kernel, [names[c] for c in columns]), columns)

    def _require_columns(self, dim: int) -> None:
        """Raises `ValueError` unless all columns of the kernel are numbers below `dim`, the number
        of columns of the points; a fit to a frame replaces names by numbers."""
        named = [c for c in self.columns if isinstance(c, str)]
        if named:
            raise ValueError(
                f"A kernel on the column {named[0]!r} needs a fit to a frame of pandas, which has "
                f"names: ak.fit(model, frame, y). With arrays, count the columns from 0."
            )
        if max(map(int, self.columns)) >= dim:
            raise ValueError(
                f"A kernel on the columns {', '.join(map(str, self.columns))}, counted from 0, "
                f"needs points of at least {max(map(int, self.columns)) + 1} dimensions; got {dim}."
            )


def number_columns(tree: Tree, names: Sequence[Hashable]) -> Tree:
    """Returns the tree with the numbers of columns in place of their names in every `OnColumns`."""

    def number(node: Any) -> Any:
        return node.numbered(names) if isinstance(node, OnColumns) else node

    return jax.tree.map(number, tree, is_leaf=lambda node: isinstance(node, OnColumns))
