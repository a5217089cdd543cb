"""The periodic kernel: a Gaussian of the chord between points on a circle."""

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from ._base import Kernel
from ._distances import MANY, add_up, columns, largest
from ._scaled import log_single


class Periodic(Kernel):
    r"""The periodic kernel, a Gaussian of the chord between points on a circle.

    $$ \log K(q, k) = -2 \sum_{c=1}^{d} \frac{\sin^2\big(\pi (q_c - k_c) / p\big)}{\ell^2} $$

    **Arguments:** `lengthscale`: ℓ, in units of $p / \pi$ for points close together: no unit.
    `period`: p, in the units of x. Both one positive number; default 1.

    **Source:** MacKay, *Introduction to Gaussian processes* (1998), 5.5.
    """

    log_lengthscale: Float[Array, ""]
    log_period: Float[Array, ""]

    def __init__(self, lengthscale: ArrayLike = 1.0, period: ArrayLike = 1.0):
        self.log_lengthscale = log_single("lengthscale", lengthscale)
        self.log_period = log_single("period", period)

    @property
    def lengthscale(self) -> Float[Array, ""]:
        return jnp.exp(self.log_lengthscale)

    @property
    def period(self) -> Float[Array, ""]:
        """p, in the units of x."""
        return jnp.exp(self.log_period)

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        return self._log(tuple(q), tuple(k))

    def pairwise(
        self, q: Float[Array, "queries dim"], k: Float[Array, "keys dim"]
    ) -> Float[Array, "queries keys"]:
        return self._log(*columns(q, k))

    def is_light(self, dim: int) -> bool:
        return dim < MANY

    def _log(self, q: tuple[Array, ...], k: tuple[Array, ...]) -> Float[Array, "..."]:
        per_unit, inverse = jnp.pi / self.period, jnp.exp(-self.log_lengthscale)
        chords = [jnp.sin((a - b) * per_unit) * inverse for a, b in zip(q, k, strict=True)]
        far = [jnp.abs(chord) > largest(chord.dtype) for chord in chords]  # their squares overflow
        squares = [
            jnp.where(beyond, jnp.inf, jnp.where(beyond, 0.0, chord) ** 2)
            for chord, beyond in zip(chords, far, strict=True)
        ]
        return -2.0 * add_up(squares)

    def search_box(self, x: Float[Array, "n dim"]) -> tuple["Periodic", "Periodic"]:
        """ℓ from 0.01 to 10; periods from twice a typical gap of x to twice its range."""
        gaps = jnp.diff(jnp.sort(x, axis=0), axis=0)
        spread = jnp.max(jnp.sum(gaps, axis=0))
        logs = jnp.log(jnp.stack([2.0 * spread / gaps.shape[0], 2.0 * spread]))
        where = lambda kernel: (kernel.log_lengthscale, kernel.log_period)  # noqa: E731
        lengths = jnp.log(jnp.array([0.01, 10.0], self.log_lengthscale.dtype))
        periods = logs.astype(self.log_period.dtype)
        return tuple(eqx.tree_at(where, self, (lengths[i], periods[i])) for i in (0, 1))

    def rescaled(self, factor: ArrayLike) -> "Periodic":
        log = self.log_lengthscale + jnp.log(jnp.asarray(factor, self.log_lengthscale.dtype))
        return eqx.tree_at(lambda kernel: kernel.log_lengthscale, self, log)
