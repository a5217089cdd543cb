"""The periodic kernel: a Gaussian of the chord between points on a circle."""

import math

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.host_arrays import AnyArray
from .._core.parameter_arguments import Number, positive
from .._core.parameters import PositiveParameter, described
from ._base import Kernel
from ._distances import MIN_PRODUCT_DIM, add_up, broadcast_columns, largest_squarable
from ._scaled import SortedGaps


class Periodic(Kernel):
    r"""The periodic kernel, a Gaussian of the chord between points on a circle.

    $$ \log K(q, k) = -2 \sum_{c=1}^{d} \frac{\sin^2\big(\pi (q_c - k_c) / p\big)}{\ell^2} $$

    **Arguments:** `lengthscale`: ℓ, in units of $p / \pi$ for points close together: no unit.
    `period`: p, in the units of x. Both are one positive number, default 1, and trained;
    `ak.fixed(1.0)` holds either fixed.

    **Source:** MacKay, *Introduction to Gaussian processes* (1998), 5.5.

    ```python
    >>> x = jnp.array([[0.0], [0.5], [2.0]])
    >>> np.exp(ak.Periodic(1.0, period=2.0).pairwise(x[:1], x)).round(3)
    array([[1.   , 0.368, 1.   ]], dtype=float32)

    ```
    """

    lengthscale_parameter: PositiveParameter
    period_parameter: PositiveParameter
    __pdoc__ = described

    def __init__(self, lengthscale: Number = 1.0, period: Number = 1.0):
        self.lengthscale_parameter = positive("lengthscale", lengthscale, "Try 1.")
        self.period_parameter = positive("period", period, "It is in the units of x.")

    @property
    def lengthscale(self) -> float | Float[Array, "..."]:
        return self.lengthscale_parameter.value

    @property
    def period(self) -> float | Float[Array, "..."]:
        """p, in the units of x."""
        return self.period_parameter.value

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        return self._sum_over_columns(tuple(q), tuple(k))

    def pairwise(
        self, q: Float[Array, "queries dim"], k: Float[Array, "keys dim"]
    ) -> Float[Array, "queries keys"]:
        return self._sum_over_columns(*broadcast_columns(q, k))

    def is_light(self, dim: int) -> bool:
        return dim < MIN_PRODUCT_DIM

    def _sum_over_columns(self, q: tuple[Array, ...], k: tuple[Array, ...]) -> Float[Array, "..."]:
        """Returns log K(q, k) = −2 Σ_c sin²(π (q_c − k_c) / p) / ℓ².
        `q` and `k` hold one array for each coordinate c; these broadcast against each other."""
        per_unit = math.pi / self.period
        inverse = jnp.exp(-self.lengthscale_parameter.log()).astype(q[0].dtype)
        chords = [jnp.sin((a - b) * per_unit) * inverse for a, b in zip(q, k, strict=True)]
        far = [
            jnp.abs(chord) > largest_squarable(chord.dtype) for chord in chords
        ]  # their squares overflow
        squares = [
            jnp.where(beyond, jnp.inf, jnp.where(beyond, 0.0, chord) ** 2)
            for chord, beyond in zip(chords, far, strict=True)
        ]
        return -2.0 * add_up(squares)

    def search_box(
        self, x: Float[AnyArray, "n dim"], weights: AnyArray | None = None
    ) -> tuple["Periodic", "Periodic"]:
        """ℓ from 0.01 to 10; periods from twice a typical gap of x to twice its range."""
        gaps = SortedGaps.of(x, weights)
        spread, mean = gaps.spread.max(), gaps.mean.max()
        where = lambda kernel: (kernel.lengthscale_parameter, kernel.period_parameter)  # noqa: E731
        ends = (0.01, 2.0 * mean), (10.0, 2.0 * spread)
        lower, upper = (
            eqx.tree_at(where, self, [p.at(end) for p, end in zip(where(self), side, strict=True)])
            for side in ends
        )
        return lower, upper

    def rescaled(self, factor: ArrayLike) -> "Periodic":
        longer = self.lengthscale_parameter.times(factor)
        return eqx.tree_at(lambda kernel: kernel.lengthscale_parameter, self, longer)
