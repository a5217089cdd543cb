r"""Nearest-neighbour bandwidths: each query has a lengthscale of its own, to its m-th nearest key.

$$ \log K(q, k_j) = \log K'\Big(\frac{k_j - q}{h(q)},\, 0\Big), \qquad
   h(q) = \text{the distance from } q \text{ to its } m\text{-th nearest key} $$
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.validation import as_integer, is_real_number, require_instance
from ._base import BatchOfKeys, BatchOfQueries, Embedded, Inputs, Kernel, Keys, Queries, Wrapper


class NearestNeighbours(Embedded, Wrapper):
    r"""A kernel in units of the distance to the m-th nearest of all keys, ties counted.

    Where keys are dense it is narrow, where they are few it is wide. All keys count for the
    distance, those that a prior hides too. Each query sorts its distances to all keys.

    **Arguments:**

    - `kernel`: K', in units of h: `Tricube(1.0)` ends at the m-th nearest key. Its lengthscale is a
      factor of h, and may be fitted.
    - `fraction`: m / n, above 0 and at most 1; m is rounded down, at least 1. Or
    - `neighbours`: m itself. One of the two.

    **Raises:** `ValueError` for none or both of the two, one out of range, or m > n.

    **Source:** Cleveland, *Robust locally weighted regression and smoothing scatterplots* (1979);
    Loader, *Local regression and likelihood* (1999), section 2.2.1.

    ```python
    >>> x = jnp.array([[0.0], [1.0], [2.0], [10.0]])
    >>> kernel = ak.NearestNeighbours(ak.kernels.Triangular(2.0), neighbours=2)
    >>> np.exp(kernel.pairwise(x, x)).round(3)
    array([[1.   , 0.5  , 0.   , 0.   ],
           [0.5  , 1.   , 0.5  , 0.   ],
           [0.   , 0.5  , 1.   , 0.   ],
           [0.375, 0.438, 0.5  , 1.   ]], dtype=float32)

    ```
    """

    # the unit of a query depends on all keys
    is_pairwise: ClassVar[bool] = False  # type: ignore[override]
    is_cheap: ClassVar[bool] = False  # type: ignore[override]

    kernel: Kernel
    fraction: float | None = eqx.field(static=True)
    neighbours: int | None = eqx.field(static=True)

    def __init__(
        self, kernel: Kernel, fraction: float | None = None, *, neighbours: int | None = None
    ):
        if (fraction is None) == (neighbours is None):
            raise ValueError("Say one of fraction=, of all keys, and neighbours=, their number.")
        require_instance("kernel", kernel, Kernel, "ak.kernels.Tricube(1.0)")
        if fraction is not None:
            if not is_real_number(fraction) or not 0 < fraction <= 1:
                raise ValueError(f"fraction must be above 0 and at most 1; got {fraction!r}.")
            fraction = float(fraction)
        if neighbours is not None:
            neighbours = as_integer("neighbours", neighbours, 1)
        self.kernel, self.fraction, self.neighbours = kernel, fraction, neighbours

    def embed(self, q: BatchOfQueries, k: BatchOfKeys) -> tuple[Kernel, Array, Array]:
        """Returns K' in units of h(q), and points with one more coordinate: h(q) for a query, 0 for
        a key."""
        reach = jnp.vectorize(self._distance_to_neighbour, signature="(n,d),(m,d)->(n)")(q, k)
        return (
            _PerQuery(self.kernel),
            jnp.concatenate([q, reach[..., None]], axis=-1),
            jnp.concatenate([k, jnp.zeros_like(k[..., :1])], axis=-1),
        )

    def _distance_to_neighbour(self, q: Queries, k: Keys) -> Float[Array, " queries"]:
        """Returns h(q), the distance of each query to its m-th nearest key; m comes from the
        kernel's `neighbours` or `fraction`."""
        m = self._count_neighbours(k.shape[0])

        def of_query(point: Float[Array, " dim"]) -> Float[Array, ""]:
            steps = jnp.abs(k - point[None, :])
            largest = jnp.max(steps, axis=1)
            # squares of what is far from 1 would overflow or vanish
            unit = jnp.where(largest > 0, largest, 1.0)
            distance = unit * jnp.sqrt(jnp.sum((steps / unit[:, None]) ** 2, axis=1))
            return jnp.sort(jnp.where(largest > 0, distance, 0.0))[m - 1]

        return jax.lax.map(of_query, q, batch_size=min(64, max(1, q.shape[0])))

    def _count_neighbours(self, keys: int) -> int:
        """Returns m; `keys` is the number of keys, n. m is `neighbours`, or `fraction` times n
        rounded down, at least 1; `ValueError` if m > n."""
        # a product such as 0.29 * 100 is rounded to just below 29
        m = self.neighbours or max(1, int((self.fraction or 0.0) * keys + 1e-9))
        if m > keys:
            raise ValueError(f"There are {keys} keys; got neighbours={m}.")
        return m

    def points_of_parts(self, x: Inputs) -> Inputs:
        """Returns n evenly spaced points, equal in all columns, of which m steps have length 1.

        They stand for inputs in units of h, for the search box of K'.
        """
        steps = jnp.arange(len(x), dtype=x.dtype) / self._count_neighbours(len(x))
        return jnp.broadcast_to(steps[:, None], x.shape)


class _PerQuery(Kernel):
    """K' of (k − q) / h(q), where h(q) is the last coordinate of the query. The last coordinate of
    a key is ignored. If h(q) = 0, only keys equal to q have weight."""

    kernel: Kernel

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        step = k[:-1] - q[:-1]
        some = q[-1] > 0
        inside = self.kernel.log_pair(step / jnp.where(some, q[-1], 1.0), jnp.zeros_like(step))
        # h(q) = 0: m keys coincide with the query, and only coincident keys have weight
        at_point = self.kernel.log_pair(jnp.zeros_like(step), jnp.zeros_like(step))
        alone = jnp.where(jnp.all(step == 0), at_point, -jnp.inf)
        return jnp.where(some, inside, alone)
