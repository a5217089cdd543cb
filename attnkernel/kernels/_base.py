"""A kernel is log K(q, k) of ONE pair of points; everything else follows from that.

To add a kernel, subclass `Kernel` and write `log_pair`. The base class owns the maps over
queries and keys. A kernel of embedded points, such as learned projections of them, is an
`Embedded`; one that holds other kernels is a `Wrapper`.
"""

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import AnyArray
from .._core.parameters import described
from .._core.validation import require_shape

Tree = TypeVar("Tree")
Queries = Float[Array, "queries dim_q"]
Keys = Float[Array, "keys dim_k"]
Scores = Float[Array, "queries keys"]
BatchOfQueries = Float[Array, "*batch queries dim_q"]
BatchOfKeys = Float[Array, "*batch_k keys dim_k"]
Inputs = Float[AnyArray, "n dim"]


class PointBoxes(NamedTuple):
    """All queries with q_low ≤ q ≤ q_high and all keys with k_low ≤ k ≤ k_high, per coordinate.

    ```python
    >>> low, high = jnp.array([0.0]), jnp.array([1.0])
    >>> ak.kernels.PointBoxes(low, high, low + 3.0, high + 3.0).gap()
    Array([2.], dtype=float32)

    ```
    """

    q_low: Float[Array, " dim"]
    q_high: Float[Array, " dim"]
    k_low: Float[Array, " dim"]
    k_high: Float[Array, " dim"]

    def gap(self) -> Float[Array, " dim"]:
        """The least |q − k| in each coordinate; 0 where the boxes overlap in that coordinate."""
        return jnp.maximum(jnp.maximum(self.k_low - self.q_high, self.q_low - self.k_high), 0.0)


class Kernel(eqx.Module):
    r"""A non-negative similarity $K(q, k)$ of two points, held as its logarithm.

    $$ \log K : \mathbb{R}^{d} \times \mathbb{R}^{d} \to [-\infty, \infty) $$

    $-\infty$ says that k carries no weight for q. Constants do not matter to attention: kernels
    are written without their normalising factor.

    `log_pair` is called for all pairs, masked ones too. If its derivative is not finite at one of
    them, as that of log(1 − d²) at d ≥ 1, derivatives of sums over pairs are NaN. Replace d there
    by a safe number, `jnp.log(1 - jnp.where(d < 1, d, 0.0) ** 2)`, and set the result to -∞. (Doing
    so for every kernel would make derivatives of `ak.Periodic` 1.6 times slower.)

    ```python
    class Manhattan(ak.kernels.Kernel):
        def log_pair(self, q, k):
            return -jnp.sum(jnp.abs(q - k))

    x = jnp.array([[0.0, 0.0], [1.0, 2.0]])
    assert Manhattan().pairwise(x, x)[0, 1] == -3.0
    ```
    """

    # Whether log K of a query and a key depends on these two points alone. Rows of weight 0 then
    # change no result, and `ak.fit` pads data with them. False in a kernel that counts or compares
    # keys, as `NearestNeighbours` does.
    is_pairwise: ClassVar[bool] = True
    # Whether repeating `log_pair` costs less than storing its result. 16384² pairs on a CPU,
    # stored → repeated: Matern32 833 → 613 ms, Epanechnikov 695 → 486 ms.
    is_cheap: ClassVar[bool] = False
    # False in a kernel without a length, such as `DotProduct`: `rescaled` leaves it as it is.
    has_length: ClassVar[bool] = True
    __pdoc__ = described

    @abc.abstractmethod
    def log_pair(self, q: Float[Array, " dim_q"], k: Float[Array, " dim_k"]) -> Float[Array, ""]:
        """$\\log K(q, k)$ of one query and one key."""

    def pairwise(self, q: Queries, k: Keys) -> Scores:
        """$S_{ij} = \\log K(q_i, k_j)$ of all pairs."""
        over_keys = jax.vmap(functools.partial(checked_log_pair, self), in_axes=(None, 0))
        return jax.vmap(over_keys, in_axes=(0, None))(q, k)

    def check(self, dim_q: int, dim_k: int) -> None:
        """Raise `ValueError` unless queries and keys of these dimensions can be compared."""
        if dim_q != dim_k:
            raise ValueError(
                f"Queries and keys must have the same dimension; got {dim_q} and {dim_k}. Others "
                f"can be compared after projections: ak.kernels.Projected."
            )

    def precomputed(self, q: BatchOfQueries, k: BatchOfKeys) -> tuple["Kernel", Array, Array]:
        """Returns a simpler kernel and new queries and keys with the same scores.

        A term that depends on one point alone is then computed once per point, not once per pair.
        Default: this kernel, q and k.
        """
        return self, q, k

    def score_upper_bound(self, boxes: PointBoxes) -> Float[Array, ""]:
        """A number that log K(q, k) does not exceed for any query and key in these boxes.

        -inf: no key of the box has weight, and the block is skipped. Default: +inf, no bound.
        """
        return jnp.full((), jnp.inf, boxes.q_low.dtype)

    def search_box(self, x: Inputs, weights: AnyArray | None = None) -> tuple["Kernel", "Kernel"]:
        """The box in which a fit to inputs x may move, as two kernels: lower and upper.

        Each leaf of the two is the bound on that leaf of this kernel; infinite, where a parameter
        is free. Default: all are. A kernel with a lengthscale bounds it to those that inputs x
        identify. Rows with 0 in `weights`, shape (n,), are ignored. A fit outside `jit` passes
        NumPy arrays; functions of `x.__array_namespace__()` then compile nothing.
        """
        return unbounded(self)

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        r"""$\log \int K(q, k)\, \mathrm{d}k$, the same for every q, over points of
        dimension `dim`: K over this integral is a density of k. Categories are summed over.

        This default always raises; a kernel whose integral is known overrides it.

        **Raises:** `ValueError`, where it is infinite, not the same, or not known: by default.
        """
        raise ValueError(
            f"{type(self).__name__} cannot be normalised to a density: its integral is not known, "
            f"or depends on the query. Kernels of the distance can, such as ak.Gaussian, and "
            f"products of columns, such as ak.Gaussian(0.3).on(0) * "
            f"ak.kernels.AitchisonAitken(0.1, 3).on(1)."
        )

    def on(self, *columns: int | str | Sequence[int] | Sequence[str]) -> "Kernel":
        """This kernel of some columns, by number or name: `OnColumns(self, columns)`."""
        from ._wrappers import OnColumns  # noqa: PLC0415  it is a kernel itself

        first = columns[0] if columns else ()
        listed = first if len(columns) == 1 and isinstance(first, Sequence) else columns
        return OnColumns(self, cast(Sequence[int] | Sequence[str], listed))

    def __mul__(self, other: "Kernel") -> "Kernel":
        from ._wrappers import Product  # noqa: PLC0415  it is a kernel itself

        return Product(self, other) if isinstance(other, Kernel) else NotImplemented


class ByMatrix(Kernel):
    """A kernel that is written for all pairs at once, as `pairwise`."""

    def log_pair(self, q: Float[Array, " dim_q"], k: Float[Array, " dim_k"]) -> Float[Array, ""]:
        return self.pairwise(q[None], k[None])[0, 0]


class Embedded(ByMatrix):
    r"""A kernel of embedded points: $\log K(q, k) = \log K'(\varphi(q), \psi(k))$.

    ```python
    class OfLogarithms(ak.kernels.Embedded):
        def embed(self, q, k):
            return ak.Laplace(ak.fixed(1.0)), jnp.log(q), jnp.log(k)

    x = jnp.array([[1.0], [2.0], [4.0]])
    scores = OfLogarithms().pairwise(x, x)
    assert jnp.allclose(scores[0, 1], scores[1, 2])
    ```
    """

    @abc.abstractmethod
    def embed(self, q: BatchOfQueries, k: BatchOfKeys) -> tuple[Kernel, Array, Array]:
        """$K'$, $\\varphi(q)$ and $\\psi(k)$, with any leading batch axes."""

    def precomputed(self, q: BatchOfQueries, k: BatchOfKeys) -> tuple[Kernel, Array, Array]:
        """Returns the `precomputed` of K' at the embedded points φ(q) and ψ(k)."""
        kernel, q, k = self.embed(q, k)
        return kernel.precomputed(q, k)

    def pairwise(self, q: Queries, k: Keys) -> Scores:
        kernel, q, k = self.embed(q, k)
        return kernel.pairwise(q, k)


class Wrapper(Kernel):
    r"""A kernel that holds others, its parts: the fields that are kernels.

    $$ \log K(q, k) = f\big(\log K_1(q, k), \log K_2(q, k), \dots\big) $$

    A fit through it searches the box of each part. `check`, `rescaled`, `category_counts`,
    `is_pairwise` and `is_cheap` are those of the parts. To add one, subclass and write `log_pair`.
    Write `points_of_parts` too if the parts see other points, such as some columns.

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
        """The kernels that it holds, by the names of their fields."""
        fields = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        return {name: part for name in fields if isinstance(part := getattr(self, name), Kernel)}

    def with_parts(self, parts: dict[str, Kernel]) -> "Wrapper":
        """The same wrapper with other kernels, by the names of their fields."""
        return eqx.tree_at(
            lambda kernel: [getattr(kernel, name) for name in parts], self, list(parts.values())
        )

    def check(self, dim_q: int, dim_k: int) -> None:
        for part in self.parts().values():
            part.check(self.dim_of_parts(dim_q), self.dim_of_parts(dim_k))

    @property
    def is_pairwise(self) -> bool:  # type: ignore[override]
        """Whether log K of each part depends on the query and the key alone, not on other keys."""
        return all(part.is_pairwise for part in self.parts().values())

    @property
    def is_cheap(self) -> bool:  # type: ignore[override]
        """Whether repeating `log_pair` of each part costs less than storing its result."""
        return all(part.is_cheap for part in self.parts().values())

    def search_box(self, x: Inputs, weights: AnyArray | None = None) -> tuple["Wrapper", "Wrapper"]:
        """The box of each part for the points that this part compares. Parameters of the wrapper
        itself are free."""
        points = self.points_of_parts(x)
        boxes = {name: part.search_box(points, weights) for name, part in self.parts().items()}
        lower, upper = (
            side.with_parts({name: box[end] for name, box in boxes.items()})
            for end, side in enumerate(unbounded(self))
        )
        return lower, upper

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """Returns the columns that hold codes of categories in any part.

        Each column is mapped to its number of categories, None if that is not known. `dim`: the
        number of columns.
        """
        found = {}
        for part in self.parts().values():
            found |= category_counts(part, self.dim_of_parts(dim))
        return found

    def periods(self, dim: int) -> dict[int, ArrayLike | None]:
        """Returns the columns that the parts compare, each with its period; None: a line.

        A column that several parts compare gets None. If the parts compare other points
        (`points_of_parts`), every one of the `dim` columns gets None.
        """
        if type(self).points_of_parts is not Wrapper.points_of_parts:
            return dict.fromkeys(range(dim))
        found = {}
        for part in self.parts().values():
            for column, period in periods(part, dim).items():
                found[column] = None if column in found else period
        return found


def category_counts(kernel: Kernel, dim: int) -> dict[int, int | None]:
    """Returns the columns, of points of dimension `dim`, that hold codes of categories.

    Each column is mapped to its number of categories, None if that is not known. The polynomial of
    a local fit leaves these columns out. A kernel without the method of this name has none: {}.

    ```python
    >>> kernel = ak.Gaussian(0.3).on(0) * ak.kernels.AitchisonAitken(0.1, 3).on(1)
    >>> ak.kernels.category_counts(kernel, 2)
    {1: 3}

    ```
    """
    method = getattr(kernel, "category_counts", None)
    return {} if method is None else method(dim)


def periods(kernel: Any, dim: int) -> dict[int, ArrayLike | None]:
    """Returns the columns that a kernel compares, each with its period; None: a line.

    A column with a period is compared on a circle of this length. There the polynomial of a local
    fit takes the shortest way round from q to k, so that the fit is the same at 0 and at the
    period. `dim`: the number of columns of the points. A kernel without the method of this name
    compares all columns on lines. For an `ak.PerHead` a period is an array, one number per head.

    ```python
    >>> kernel = ak.Gaussian(0.3).on(0) * ak.Periodic(0.5, period=24.0).on(1)
    >>> ak.kernels.periods(kernel, 2)
    {0: None, 1: 24.0}

    ```
    """
    method = getattr(getattr(kernel, "stack", kernel), "periods", None)
    return dict.fromkeys(range(dim)) if method is None else method(dim)


def shortest_way(difference: Array, period: ArrayLike | None) -> Array:
    r"""Returns $\delta - p \lfloor \delta / p + \tfrac12 \rfloor \in [-p/2, p/2)$, the way
    from q to k round a circle of length p, the `period`. `difference`: $\delta = k - q$, which is
    returned as it is if the period is None."""
    if period is None:
        return difference
    return difference - period * jnp.floor(difference / period + 0.5)


def checked_log_pair(
    kernel: Kernel, q: Float[Array, " dim_q"], k: Float[Array, " dim_k"]
) -> Float[Array, ""]:
    """Returns $\\log K(q, k)$; `ValueError` unless the kernel's `log_pair` gives one number."""
    name = f"{type(kernel).__name__}.log_pair"
    expected = "one number for one pair"
    return require_shape(name, kernel.log_pair(q, k), (), expected, "Sum over the dimensions.")


def unbounded(tree: Tree) -> tuple[Tree, Tree]:
    """Bounds that bind nothing: every inexact leaf of `tree` at -inf, and at +inf.

    ```python
    >>> lower, upper = ak.kernels.unbounded(ak.kernels.Bilinear(jnp.eye(2)))
    >>> lower.matrix[0], upper.matrix[0]
    (Array([-inf, -inf], dtype=float32), Array([inf, inf], dtype=float32))

    ```
    """

    def at(value: float) -> Tree:
        def fill(leaf):
            if not eqx.is_inexact_array(leaf):
                return leaf
            return jax.device_put(np.full(leaf.shape, value, leaf.dtype))  # compiles nothing

        return jax.tree.map(fill, tree)

    return at(-jnp.inf), at(jnp.inf)
