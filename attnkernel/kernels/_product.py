"""The product of two kernels: their logarithms add."""

import functools
import operator
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.validation import require_instance
from ._base import Kernel
from ._boxes import PointBoxes
from ._columns import OnColumns
from ._wrapper import Wrapper


class Product(Wrapper):
    r"""$\log K(q, k) = \log K_1(q, k) + \log K_2(q, k)$, written `first * second`.

    Either may be an `ak.PerHead` of kernels.

    ```python
    >>> ak.Gaussian(0.3).on(0) * ak.kernels.LiRacine(0.2).on(1)
    Product(
      first=On(kernel=Gaussian(lengthscale=0.3), columns=(0,)),
      second=On(kernel=LiRacine(bandwidth=0.2), columns=(1,))
    )

    ```
    """

    first: Any
    second: Any

    def __check_init__(self):
        for name in ("first", "second"):
            factor = getattr(self, name)
            require_instance(name, getattr(factor, "stack", factor), Kernel, "ak.Gaussian(0.3)")

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        return self.first.log_pair(q, k) + self.second.log_pair(q, k)

    def score_upper_bound(self, boxes: PointBoxes) -> Float[Array, ""]:
        first, second = self.first.score_upper_bound(boxes), self.second.score_upper_bound(boxes)
        # one may say +inf, nothing, of pairs to which the other gives no weight
        none = jnp.isneginf(first) | jnp.isneginf(second)
        return jnp.where(none, -jnp.inf, first + second)

    def precomputed(
        self, q: Float[Array, "*batch queries dim_q"], k: Float[Array, "*batch_k keys dim_k"]
    ) -> tuple[Kernel, Array, Array]:
        """The product of simpler factors, each on its own columns of the points joined."""
        factors = (self.first, self.second)
        simpler = [factor.precomputed(q, k) for factor in factors]
        if all(
            found[0] is (factor.kernel if isinstance(factor, OnColumns) else factor)
            for factor, found in zip(factors, simpler, strict=True)
        ):
            return self, q, k
        (first, q_first, k_first), (second, q_second, k_second) = simpler
        dim, more = q_first.shape[-1], q_second.shape[-1]
        joined = Product(OnColumns(first, range(dim)), OnColumns(second, range(dim, dim + more)))
        return (
            joined,
            jnp.concatenate([q_first, q_second], axis=-1),
            jnp.concatenate([k_first, k_second], axis=-1),
        )

    def pairwise(
        self, q: Float[Array, "queries dim"], k: Float[Array, "keys dim"]
    ) -> Float[Array, "queries keys"]:
        return self.first.pairwise(q, k) + self.second.pairwise(q, k)

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        """The sum of those of its factors, of columns of their own."""
        factors, nodes = [], [self.first, self.second]
        while nodes:
            node = nodes.pop()
            nodes += [node.first, node.second] if isinstance(node, Product) else []
            factors += [] if isinstance(node, Product) else [node]
        columns = [f.columns if isinstance(f, OnColumns) else tuple(range(dim)) for f in factors]
        if sorted(sum(columns, ())) != list(range(dim)):
            raise ValueError(
                f"The integral of a product is known where each column is of one factor; of {dim} "
                f"columns, counted from 0, the factors take {', '.join(map(str, columns))}."
            )
        kernels = [f.kernel if isinstance(f, OnColumns) else f for f in factors]
        volumes = [f.log_normaliser(len(c)) for f, c in zip(kernels, columns, strict=True)]
        return functools.reduce(operator.add, volumes)
