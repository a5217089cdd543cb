"""A kernel is log K(q, k) of ONE pair of points; everything else follows from that.

To add a kernel, subclass `Kernel` and write `log_pair`. The base class owns the maps over
queries and keys and the product of kernels. A kernel that is a simpler one of other points, such
as learned projections of them, is an `Embedded`: write `embed`.
"""

import abc
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

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
        over_keys = jax.vmap(self.log_pair, in_axes=(None, 0))
        return jax.vmap(over_keys, in_axes=(0, None))(q, k)

    def check(self, dim_q: int, dim_k: int) -> None:
        """Raise `ValueError` unless queries and keys of these dimensions can be compared."""
        if dim_q != dim_k:
            raise ValueError(
                f"Queries and keys must have the same dimension; got {dim_q} and {dim_k}. Others "
                f"can be compared after projections: ak.Projected."
            )

    def reduced(
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

    def upper_bound(
        self,
        q_low: Float[Array, " dim"],
        q_high: Float[Array, " dim"],
        k_low: Float[Array, " dim"],
        k_high: Float[Array, " dim"],
    ) -> Float[Array, ""]:
        """A number that log K(q, k) does not exceed for any query of one box, key of another.

        A streaming method passes over blocks whose weights it proves to vanish. Default: +inf,
        which proves nothing.
        """
        return jnp.full((), jnp.inf, q_low.dtype)

    def bounds(self, x: Float[Array, "n dim"]) -> tuple["Kernel", "Kernel"]:
        """The box in which a fit to inputs x may move, as two kernels: lower and upper.

        Each leaf of the two is the bound on that leaf of this kernel; infinite, where a parameter
        is free. A kernel with a lengthscale says here which lengthscales x can tell apart.
        """
        return unbounded(self)

    def stretched(self, factor: float) -> "Kernel":
        """The kernel with its lengthscales times a factor f. Default: $K(q / f, k / f)$."""
        return Stretched(self, factor)

    def __mul__(self, other: "Kernel") -> "Product":
        return Product(self, other)


class Product(Kernel):
    r"""$\log K(q, k) = \log K_1(q, k) + \log K_2(q, k)$, written `first * second`."""

    first: Kernel
    second: Kernel

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        return self.first.log_pair(q, k) + self.second.log_pair(q, k)

    def check(self, dim_q: int, dim_k: int) -> None:
        self.first.check(dim_q, dim_k)
        self.second.check(dim_q, dim_k)

    def is_light(self, dim: int) -> bool:
        return self.first.is_light(dim) and self.second.is_light(dim)

    def upper_bound(
        self,
        q_low: Float[Array, " dim"],
        q_high: Float[Array, " dim"],
        k_low: Float[Array, " dim"],
        k_high: Float[Array, " dim"],
    ) -> Float[Array, ""]:
        box = (q_low, q_high, k_low, k_high)
        return self.first.upper_bound(*box) + self.second.upper_bound(*box)

    def pairwise(
        self, q: Float[Array, "queries dim"], k: Float[Array, "keys dim"]
    ) -> Float[Array, "queries keys"]:
        return self.first.pairwise(q, k) + self.second.pairwise(q, k)

    def bounds(self, x: Float[Array, "n dim"]) -> tuple["Product", "Product"]:
        (lower_1, upper_1), (lower_2, upper_2) = self.first.bounds(x), self.second.bounds(x)
        return Product(lower_1, lower_2), Product(upper_1, upper_2)

    def stretched(self, factor: float) -> "Product":
        return Product(self.first.stretched(factor), self.second.stretched(factor))


class Embedded(Kernel):
    r"""A kernel of embedded points: $\log K(q, k) = \log K'(\varphi(q), \psi(k))$."""

    @abc.abstractmethod
    def embed(
        self, q: Float[Array, "*batch queries dim_q"], k: Float[Array, "*batch_k keys dim_k"]
    ) -> tuple[Kernel, Array, Array]:
        """$K'$, $\\varphi(q)$ and $\\psi(k)$, with any leading batch axes."""

    def reduced(
        self, q: Float[Array, "*batch queries dim_q"], k: Float[Array, "*batch_k keys dim_k"]
    ) -> tuple[Kernel, Array, Array]:
        kernel, q, k = self.embed(q, k)
        return kernel.reduced(q, k)

    def log_pair(self, q: Float[Array, " dim_q"], k: Float[Array, " dim_k"]) -> Float[Array, ""]:
        return self.pairwise(q[None], k[None])[0, 0]

    def pairwise(
        self, q: Float[Array, "queries dim_q"], k: Float[Array, "keys dim_k"]
    ) -> Float[Array, "queries keys"]:
        kernel, q, k = self.embed(q, k)
        return kernel.pairwise(q, k)


class Stretched(Embedded):
    r"""$\log K(q / f, k / f)$: all lengths of a kernel times a factor f."""

    kernel: Kernel
    factor: float

    def embed(
        self, q: Float[Array, "*batch queries dim"], k: Float[Array, "*batch_k keys dim"]
    ) -> tuple[Kernel, Array, Array]:
        return self.kernel, q / self.factor, k / self.factor

    def check(self, dim_q: int, dim_k: int) -> None:
        self.kernel.check(dim_q, dim_k)


def unbounded(tree: Tree) -> tuple[Tree, Tree]:
    """Bounds that bind nothing: every inexact leaf of `tree` at -inf, and at +inf."""

    def at(value: float) -> Tree:
        def fill(leaf):
            return jnp.full_like(leaf, value) if eqx.is_inexact_array(leaf) else leaf

        return jax.tree.map(fill, tree)

    return at(-jnp.inf), at(jnp.inf)
