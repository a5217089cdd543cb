"""A kernel is log K(q, k) of ONE pair of points; everything else follows from that.

To add a kernel, subclass `Kernel` and write `log_pair`. The base class owns the maps over
queries and keys and the product of kernels. A kernel that is a simpler one of other points, such
as learned projections of them, or some of their columns, is an `Embedded`: write `embed`.
"""

import abc
import functools
import operator
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.validation import as_integer_tuple, require_instance, require_shape
from ._boxes import PointBoxes

Tree = TypeVar("Tree")


class Kernel(eqx.Module):
    r"""A non-negative similarity $K(q, k)$ of two points, held as its logarithm.

    $$ \log K : \mathbb{R}^{d} \times \mathbb{R}^{d} \to [-\infty, \infty) $$

    $-\infty$ says that k carries no weight for q. Constants do not matter to attention: kernels
    are written without their normalising factor.
    """

    @abc.abstractmethod
    def log_pair(self, q: Float[Array, " dim_q"], k: Float[Array, " dim_k"]) -> Float[Array, ""]:
        """$\\log K(q, k)$ of one query and one key."""

    def pairwise(
        self, q: Float[Array, "queries dim_q"], k: Float[Array, "keys dim_k"]
    ) -> Float[Array, "queries keys"]:
        """$S_{ij} = \\log K(q_i, k_j)$ of all pairs."""
        over_keys = jax.vmap(functools.partial(number_of_pair, self), in_axes=(None, 0))
        return jax.vmap(over_keys, in_axes=(0, None))(q, k)

    def check(self, dim_q: int, dim_k: int) -> None:
        """Raise `ValueError` unless queries and keys of these dimensions can be compared."""
        if dim_q != dim_k:
            raise ValueError(
                f"Queries and keys must have the same dimension; got {dim_q} and {dim_k}. Others "
                f"can be compared after projections: ak.Projected."
            )

    def precomputed(
        self, q: Float[Array, "*batch queries dim_q"], k: Float[Array, "*batch_k keys dim_k"]
    ) -> tuple["Kernel", Array, Array]:
        """The same similarity as a simpler kernel of other points. Default: as it is.

        What depends on one point alone is then computed once, and not for each of its pairs.
        """
        return self, q, k

    def is_light(self, dim: int) -> bool:
        """Whether `log_pair` takes so few operations that to repeat them costs less than to store
        what they give. Default: no."""
        return False

    def score_upper_bound(self, boxes: PointBoxes) -> Float[Array, ""]:
        """A number that log K(q, k) does not exceed for any query of one box, key of another.

        A streaming method passes over blocks whose weights it proves to vanish. Default: +inf,
        which proves nothing.
        """
        return jnp.full((), jnp.inf, boxes.q_low.dtype)

    def search_box(self, x: Float[Array, "n dim"]) -> tuple["Kernel", "Kernel"]:
        """The box in which a fit to inputs x may move, as two kernels: lower and upper.

        Each leaf of the two is the bound on that leaf of this kernel; infinite, where a parameter
        is free. A kernel with a lengthscale says here which lengthscales x can tell apart.
        """
        return unbounded(self)

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        r"""$\log \int K(q, k)\, \mathrm{d}k$, the same for every q, over points of so many
        dimensions: what makes a density of K. Over columns that are categories, a sum.

        **Raises:** `ValueError`, where it is infinite, not the same, or not known: by default.
        """
        raise ValueError(
            f"{type(self).__name__} is no density of points: its integral is not known, or depends "
            f"on the query. Those of the distance have one, such as ak.Gaussian, and of columns "
            f"their products, such as ak.Gaussian(0.3).on(0) * ak.AitchisonAitken(0.1, 3).on(1)."
        )

    def rescaled(self, factor: ArrayLike) -> "Kernel":
        """The kernel with its lengthscales times a factor f. Default: $K(q / f, k / f)$."""
        return Rescaled(self, factor)

    def categories(self, dim: int) -> dict[int, int | None]:
        """The columns, of points of this dimension, whose numbers are names, not quantities.

        Of each how many names there are, 0, 1, ...; None, if that is not known.
        A local polynomial does not go along them. Default: none.
        """
        return {}

    def on(self, *columns: int | Sequence[int]) -> "On":
        """This kernel of some columns of the points alone: `On(self, columns)`."""
        first = columns[0] if columns else ()
        listed = first if len(columns) == 1 and isinstance(first, Sequence) else columns
        return On(self, cast(Sequence[int], listed))

    def __mul__(self, other: "Kernel") -> "Product":
        return Product(self, other) if isinstance(other, Kernel) else NotImplemented


class Product(Kernel):
    r"""$\log K(q, k) = \log K_1(q, k) + \log K_2(q, k)$, written `first * second`.

    Either may be an `ak.PerHead` of kernels.
    """

    first: Any
    second: Any

    def __check_init__(self):
        for name in ("first", "second"):
            factor = getattr(self, name)
            require_instance(name, getattr(factor, "stack", factor), Kernel, "ak.Gaussian(0.3)")

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        return self.first.log_pair(q, k) + self.second.log_pair(q, k)

    def check(self, dim_q: int, dim_k: int) -> None:
        self.first.check(dim_q, dim_k)
        self.second.check(dim_q, dim_k)

    def is_light(self, dim: int) -> bool:
        return self.first.is_light(dim) and self.second.is_light(dim)

    def score_upper_bound(self, boxes: PointBoxes) -> Float[Array, ""]:
        first, second = self.first.score_upper_bound(boxes), self.second.score_upper_bound(boxes)
        # one may say +inf, nothing, of pairs to which the other gives no weight
        none = jnp.isneginf(first) | jnp.isneginf(second)
        return jnp.where(none, -jnp.inf, first + second)

    def pairwise(
        self, q: Float[Array, "queries dim"], k: Float[Array, "keys dim"]
    ) -> Float[Array, "queries keys"]:
        return self.first.pairwise(q, k) + self.second.pairwise(q, k)

    def search_box(self, x: Float[Array, "n dim"]) -> tuple["Product", "Product"]:
        (lower_1, upper_1), (lower_2, upper_2) = self.first.search_box(x), self.second.search_box(x)
        return Product(lower_1, lower_2), Product(upper_1, upper_2)

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        """The sum of those of its factors, of columns of their own."""
        factors, nodes = [], [self.first, self.second]
        while nodes:
            node = nodes.pop()
            nodes += [node.first, node.second] if isinstance(node, Product) else []
            factors += [] if isinstance(node, Product) else [node]
        columns = [f.columns if isinstance(f, On) else tuple(range(dim)) for f in factors]
        if sorted(sum(columns, ())) != list(range(dim)):
            raise ValueError(
                f"The integral of a product is known where each column is of one factor; of {dim} "
                f"columns, counted from 0, the factors take {', '.join(map(str, columns))}."
            )
        kernels = [f.kernel if isinstance(f, On) else f for f in factors]
        volumes = [f.log_normaliser(len(c)) for f, c in zip(kernels, columns, strict=True)]
        return functools.reduce(operator.add, volumes)

    def rescaled(self, factor: ArrayLike) -> "Product":
        return Product(self.first.rescaled(factor), self.second.rescaled(factor))

    def categories(self, dim: int) -> dict[int, int | None]:
        return self.first.categories(dim) | self.second.categories(dim)


class Embedded(Kernel):
    r"""A kernel of embedded points: $\log K(q, k) = \log K'(\varphi(q), \psi(k))$."""

    @abc.abstractmethod
    def embed(
        self, q: Float[Array, "*batch queries dim_q"], k: Float[Array, "*batch_k keys dim_k"]
    ) -> tuple[Kernel, Array, Array]:
        """$K'$, $\\varphi(q)$ and $\\psi(k)$, with any leading batch axes."""

    def precomputed(
        self, q: Float[Array, "*batch queries dim_q"], k: Float[Array, "*batch_k keys dim_k"]
    ) -> tuple[Kernel, Array, Array]:
        kernel, q, k = self.embed(q, k)
        return kernel.precomputed(q, k)

    def log_pair(self, q: Float[Array, " dim_q"], k: Float[Array, " dim_k"]) -> Float[Array, ""]:
        return self.pairwise(q[None], k[None])[0, 0]

    def pairwise(
        self, q: Float[Array, "queries dim_q"], k: Float[Array, "keys dim_k"]
    ) -> Float[Array, "queries keys"]:
        kernel, q, k = self.embed(q, k)
        return kernel.pairwise(q, k)


class Rescaled(Embedded):
    r"""$\log K(q / f, k / f)$: all lengths of a kernel times a factor f."""

    kernel: Kernel
    factor: ArrayLike

    def embed(
        self, q: Float[Array, "*batch queries dim"], k: Float[Array, "*batch_k keys dim"]
    ) -> tuple[Kernel, Array, Array]:
        return self.kernel, q / self.factor, k / self.factor

    def check(self, dim_q: int, dim_k: int) -> None:
        self.kernel.check(dim_q, dim_k)

    def categories(self, dim: int) -> dict[int, int | None]:
        return self.kernel.categories(dim)


class On(Embedded):
    r"""A kernel of some columns of the points: mixed data are a product of these.

    $$ \log K(q, k) = \log K'(q_C, k_C), \qquad q, k \in \mathbb{R}^d,\
       C \subseteq \{0, \dots, d - 1\} $$

    **Arguments:**

    - `kernel`: K′, of points of as many dimensions as there are columns.
    - `columns`: C, counted from 0, in the order in which K′ takes them; or one number.

    `kernel.on(0, 2)` is `On(kernel, (0, 2))`.

    **Raises:** `ValueError` if a column is not an integer from 0, comes twice, or is beyond the
    columns of the points.
    """

    kernel: Kernel
    columns: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, kernel: Kernel, columns: int | Sequence[int] | np.ndarray):
        require_instance("kernel", kernel, Kernel, "ak.Gaussian(0.3)")
        self.kernel = kernel
        self.columns = as_integer_tuple("columns", columns, 0)
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"Each column can be taken once; got {self.columns}.")

    def embed(
        self, q: Float[Array, "*batch queries dim"], k: Float[Array, "*batch_k keys dim"]
    ) -> tuple[Kernel, Array, Array]:
        return self.kernel, self._of(q), self._of(k)

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        return self.kernel.log_pair(self._of(q), self._of(k))

    def check(self, dim_q: int, dim_k: int) -> None:
        super().check(dim_q, dim_k)
        self._require(dim_q)
        self.kernel.check(len(self.columns), len(self.columns))

    def is_light(self, dim: int) -> bool:
        return self.kernel.is_light(len(self.columns))

    def score_upper_bound(self, boxes: PointBoxes) -> Float[Array, ""]:
        return self.kernel.score_upper_bound(PointBoxes(*map(self._of, boxes)))

    def search_box(self, x: Float[Array, "n dim"]) -> tuple["On", "On"]:
        """Those of K′ for its columns of x."""
        lower, upper = self.kernel.search_box(self._of(x))
        return On(lower, self.columns), On(upper, self.columns)

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        if len(self.columns) < dim:
            raise ValueError(
                f"A kernel on the columns {', '.join(map(str, self.columns))} of {dim}, counted "
                f"from 0, is constant along the others, and its integral infinite: multiply it by "
                f"kernels on these."
            )
        return self.kernel.log_normaliser(dim)

    def rescaled(self, factor: ArrayLike) -> "On":
        return On(self.kernel.rescaled(factor), self.columns)

    def categories(self, dim: int) -> dict[int, int | None]:
        return {self.columns[c]: m for c, m in self.kernel.categories(len(self.columns)).items()}

    def _of(self, x: Float[Array, "*rows dim"]) -> Float[Array, "*rows few"]:
        """The columns of points."""
        self._require(x.shape[-1])
        # slices and no gather: these melt into the loops that read them
        parts = [jax.lax.slice_in_dim(x, c, c + 1, axis=-1) for c in self.columns]
        return jnp.concatenate(parts, axis=-1)

    def _require(self, dim: int) -> None:
        if max(self.columns) >= dim:
            raise ValueError(
                f"A kernel on the columns {', '.join(map(str, self.columns))}, counted from 0, "
                f"needs points of at least {max(self.columns) + 1} dimensions; got {dim}."
            )


def number_of_pair(
    kernel: Kernel, q: Float[Array, " dim_q"], k: Float[Array, " dim_k"]
) -> Float[Array, ""]:
    """$\\log K(q, k)$; `ValueError` where a kernel of the user's own returns no single number."""
    name = f"{type(kernel).__name__}.log_pair"
    expected = "one number for one pair"
    return require_shape(name, kernel.log_pair(q, k), (), expected, "Sum over the dimensions.")


def unbounded(tree: Tree) -> tuple[Tree, Tree]:
    """Bounds that bind nothing: every inexact leaf of `tree` at -inf, and at +inf."""

    def at(value: float) -> Tree:
        def fill(leaf):
            return jnp.full_like(leaf, value) if eqx.is_inexact_array(leaf) else leaf

        return jax.tree.map(fill, tree)

    return at(-jnp.inf), at(jnp.inf)
