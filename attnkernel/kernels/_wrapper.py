"""Kernels made of other kernels: what is known of the parts is known of the whole."""

import dataclasses

import equinox as eqx
from jax.typing import ArrayLike
from jaxtyping import Float

from .._core.host_arrays import AnyArray
from ._base import Kernel, unbounded


class Wrapper(Kernel):
    r"""A kernel that holds others, its parts: the fields that are kernels.

    $$ \log K(q, k) = f\big(\log K_1(q, k), \log K_2(q, k), \dots\big) $$

    A fit through it searches the box of each part, and `rescaled`, `is_light`, `check` and
    `category_counts` are those of the parts. To add one, subclass and write `log_pair`. Write
    `points_of_parts` too if the parts see other points, such as some columns.

    ```python
    class SquareRoot(ak.kernels.Wrapper):
        kernel: ak.kernels.Kernel

        def log_pair(self, q, k):
            return 0.5 * self.kernel.log_pair(q, k)

    x = jnp.array([[0.0], [1.0]])
    assert SquareRoot(ak.Laplace(1.0)).pairwise(x, x)[0, 1] == -0.5
    ```
    """

    def points_of_parts(self, x: Float[AnyArray, "n dim"]) -> Float[AnyArray, "n dim_part"]:
        """The points that the parts compare, of inputs x. Default: x."""
        return x

    def dim_of_parts(self, dim: int) -> int:
        """The dimension of the points that the parts compare. Default: `dim`."""
        return dim

    def parts(self) -> dict[str, Kernel]:
        """The kernels that it holds, by field."""
        fields = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        return {name: part for name in fields if isinstance(part := getattr(self, name), Kernel)}

    def with_parts(self, parts: dict[str, Kernel]) -> "Wrapper":
        """The same wrapper of other kernels, by field."""
        return eqx.tree_at(
            lambda kernel: [getattr(kernel, name) for name in parts], self, list(parts.values())
        )

    def check(self, dim_q: int, dim_k: int) -> None:
        for part in self.parts().values():
            part.check(self.dim_of_parts(dim_q), self.dim_of_parts(dim_k))

    def is_light(self, dim: int) -> bool:
        return all(part.is_light(self.dim_of_parts(dim)) for part in self.parts().values())

    @property
    def is_pairwise(self) -> bool:
        return all(part.is_pairwise for part in self.parts().values())

    def search_box(
        self, x: Float[AnyArray, "n dim"], weights: AnyArray | None = None
    ) -> tuple["Wrapper", "Wrapper"]:
        """The box of each part, for the points that it sees; other parameters are free."""
        points = self.points_of_parts(x)
        boxes = {name: part.search_box(points, weights) for name, part in self.parts().items()}
        lower, upper = (
            side.with_parts({name: box[end] for name, box in boxes.items()})
            for end, side in enumerate(unbounded(self))
        )
        return lower, upper

    def rescaled(self, factor: ArrayLike) -> "Wrapper":
        """The wrapper of its parts, each with its lengthscales times the factor."""
        return self.with_parts({n: part.rescaled(factor) for n, part in self.parts().items()})

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """All categories of all parts."""
        found = {}
        for part in self.parts().values():
            found |= part.category_counts(self.dim_of_parts(dim))
        return found
