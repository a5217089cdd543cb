"""A kernel is log K(q, k) of ONE pair of points; everything else follows from that.

To add a kernel, subclass `Kernel` and write `log_pair`. The base class owns the maps over
queries and keys. A kernel of embedded points, such as learned projections of them, is an
`Embedded`; one that holds other kernels is a `Wrapper`.
"""

import abc
import functools
from collections.abc import Sequence
from typing import TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.host_arrays import AnyArray
from .._core.validation import require_shape
from ._boxes import PointBoxes

Tree = TypeVar("Tree")


class Kernel(eqx.Module):
    r"""A non-negative similarity $K(q, k)$ of two points, held as its logarithm.

    $$ \log K : \mathbb{R}^{d} \times \mathbb{R}^{d} \to [-\infty, \infty) $$

    $-\infty$ says that k carries no weight for q. Constants do not matter to attention: kernels
    are written without their normalising factor.

    ```python
    class Manhattan(ak.kernels.Kernel):
        def log_pair(self, q, k):
            return -jnp.sum(jnp.abs(q - k))

    x = jnp.array([[0.0, 0.0], [1.0, 2.0]])
    assert Manhattan().pairwise(x, x)[0, 1] == -3.0
    ```
    """

    @abc.abstractmethod
    def log_pair(self, q: Float[Array, " dim_q"], k: Float[Array, " dim_k"]) -> Float[Array, ""]:
        """$\\log K(q, k)$ of one query and one key."""

    def pairwise(
        self, q: Float[Array, "queries dim_q"], k: Float[Array, "keys dim_k"]
    ) -> Float[Array, "queries keys"]:
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

    def precomputed(
        self, q: Float[Array, "*batch queries dim_q"], k: Float[Array, "*batch_k keys dim_k"]
    ) -> tuple["Kernel", Array, Array]:
        """The same similarity as a simpler kernel of other points. Default: as it is.

        A term that depends on one point alone is then computed once, and not for each of its pairs.
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

    @property
    def is_pairwise(self) -> bool:
        """Whether log K of a query and a key depends on these two points alone. Default: True.

        Rows of weight 0 then change no result, and `ak.fit` pads data with them. Return False in a
        kernel that counts or compares keys, as `NearestNeighbours` does.
        """
        return True

    def search_box(
        self, x: Float[AnyArray, "n dim"], weights: AnyArray | None = None
    ) -> tuple["Kernel", "Kernel"]:
        """The box in which a fit to inputs x may move, as two kernels: lower and upper.

        Each leaf of the two is the bound on that leaf of this kernel; infinite, where a parameter
        is free. A kernel with a lengthscale bounds it to those that inputs x identify. Rows with 0
        in `weights`, shape (n,), are ignored. A fit outside `jit` passes NumPy arrays; functions
        of `x.__array_namespace__()` then compile nothing.
        """
        return unbounded(self)

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        r"""$\log \int K(q, k)\, \mathrm{d}k$, the same for every q, over points of so many
        dimensions: what makes a density of K. Over columns that are categories, a sum.

        **Raises:** `ValueError`, where it is infinite, not the same, or not known: by default.
        """
        raise ValueError(
            f"{type(self).__name__} is no density of points: its integral is not known, or depends "
            f"on the query. Those of the distance have one, such as ak.Gaussian, and products of "
            f"columns, such as ak.Gaussian(0.3).on(0) * ak.kernels.AitchisonAitken(0.1, 3).on(1)."
        )

    def rescaled(self, factor: ArrayLike) -> "Kernel":
        """The kernel with its lengthscales times a factor f. Default: $K(q / f, k / f)$."""
        from ._rescaled import Rescaled  # noqa: PLC0415  it is a kernel itself

        return Rescaled(self, factor)

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """The columns, of points of this dimension, whose numbers are names, not quantities.

        Each column is mapped to its number of names, 0, 1, ...; None if that is not known. The
        polynomial of a local fit leaves these columns out. Default: none.
        """
        return {}

    def on(self, *columns: int | str | Sequence[int] | Sequence[str]) -> "Kernel":
        """This kernel of some columns, by number or name: `OnColumns(self, columns)`."""
        from ._columns import OnColumns  # noqa: PLC0415  it is a kernel itself

        first = columns[0] if columns else ()
        listed = first if len(columns) == 1 and isinstance(first, Sequence) else columns
        return OnColumns(self, cast(Sequence[int] | Sequence[str], listed))

    def __mul__(self, other: "Kernel") -> "Kernel":
        from ._product import Product  # noqa: PLC0415  it is a kernel itself

        return Product(self, other) if isinstance(other, Kernel) else NotImplemented


class Embedded(Kernel):
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
