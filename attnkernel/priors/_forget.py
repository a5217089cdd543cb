"""Forget gates: a causal prior that decays by a factor of each row between key and query."""

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from .._core.arrays import as_real_array
from .._core.host_arrays import is_concrete
from .._core.log_decay import CumulativeDecay, cumulative_decay
from ._base import Prior
from ._block import PositionBlock


class Forget(Prior):
    r"""Decay by forget gates, causal: the product of the gates of all rows after the key.

    $$ \log \pi(i, j) = \sum_{l = j + 1}^{i} \log f_l, \quad j \le i, \qquad
       \pi(i, j) = 0, \quad j > i $$

    $f_l \in [0, 1]$ is the gate of row l; a gate of 0 hides all earlier rows. Later keys are
    hidden: `Causal()` beside it changes nothing. Softmax attention with gates computed from the
    rows is the forgetting transformer; gates of one value are `Alibi` and `Causal()`.

    **Arguments:** `log_gates`: log f ≤ 0, shape (keys,), a parameter to fit; if a fit moves one
    above 0, it counts as 0. Gates of heads, shape (heads, keys):
    `ak.PerHead(eqx.filter_vmap(ak.priors.Forget)(log_gates))`.

    **Raises:** `ValueError` if a gate is above 1 or none at all.

    **Source:** Lin, Nikishin, He and Courville, *Forgetting transformer: softmax attention with a
    forget gate* (2025).

    ```python
    >>> i = jnp.arange(3)
    >>> np.exp(ak.priors.Forget(jnp.log(jnp.array([0.9, 0.5, 0.25]))).pairwise(i, i))
    array([[1.   , 0.   , 0.   ],
           [0.5  , 1.   , 0.   ],
           [0.125, 0.25 , 1.   ]], dtype=float32)

    ```
    """

    log_gates: Float[Array, " keys"]

    def __init__(self, log_gates: ArrayLike):
        array = as_real_array("log_gates", log_gates)
        if array.ndim != 1:
            raise ValueError(
                f"log_gates must have one number per key, shape (keys,); got shape {array.shape}. "
                f"For heads: ak.PerHead(eqx.filter_vmap(ak.priors.Forget)(log_gates))."
            )
        if is_concrete(array) and not np.all(np.asarray(array) <= 0):
            raise ValueError(
                f"log_gates must be at most 0, and none NaN; their maximum is "
                f"{np.max(np.asarray(array)):.4g}. Pass logarithms, such as jax.nn.log_sigmoid(x)."
            )
        self.log_gates = array

    def check(self, queries: int, keys: int) -> None:
        if self.log_gates.shape != (keys,) or queries > keys:
            raise ValueError(
                f"log_gates must have one number per key, and each query be one of their rows; got "
                f"shape {self.log_gates.shape} for {queries} queries and {keys} keys."
            )

    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        decay = self._decay()
        later = jnp.maximum(i, j)  # above the diagonal 0, without a derivative
        return jnp.where(j > i, -jnp.inf, decay.at(later).minus(decay.at(j)))

    def score_upper_bound(self, block: PositionBlock) -> Float[Array, ""]:
        decay = self._decay()
        nearest = decay.at(block.i_low).minus(decay.at(block.j_high))
        bound = jnp.where(block.i_low > block.j_high, nearest, 0.0)
        return jnp.where(block.i_high < block.j_low, -jnp.inf, bound)

    def _decay(self) -> CumulativeDecay:
        """Returns the cumulative sums of the logarithms."""
        return cumulative_decay(jnp.minimum(self.log_gates, 0.0))
