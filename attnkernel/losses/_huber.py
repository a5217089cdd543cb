"""Huber's loss: the square of small residuals, and the absolute value of large ones."""

from typing import ClassVar

import jax.numpy as jnp

from ._base import Numbers, Tuned


class Huber(Tuned):
    r"""Huber's loss: quadratic up to the cutoff, linear beyond it.

    $$ w(u) = \min\Big(1, \frac{c}{|u|}\Big), \qquad \psi(u) = \max(-c, \min(c, u)) $$

    Every label keeps an influence, of at most c $\hat\sigma$. The loss is convex.

    ```python
    >>> ak.Huber(1.0).weight(jnp.array([0.0, 0.5, 4.0]))
    Array([1.  , 1.  , 0.25], dtype=float32)

    ```

    **Arguments:** `cutoff`: c, in standard deviations $\hat\sigma$. Default: 1.345, for which the
    variance of a fit to normal labels is 5 % above that of least squares.

    **Raises:** `ValueError` for a cutoff that is not positive.

    **Source:** Huber, *Robust estimation of a location parameter* (1964).
    """

    default_cutoff: ClassVar[float] = 1.345
    __init__ = Tuned.__init__

    def weight(self, u: Numbers) -> Numbers:
        size = jnp.abs(u)
        is_large = size > self.cutoff
        return jnp.where(is_large, self.cutoff / jnp.where(is_large, size, 1.0), 1.0)

    def influence(self, u: Numbers) -> Numbers:
        return jnp.clip(u, -self.cutoff, self.cutoff)
