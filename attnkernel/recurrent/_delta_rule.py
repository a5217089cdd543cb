r"""The delta rule: one gradient step of least squares for each row, solved for a chunk at a time.

Within a chunk the steps are one unit lower triangular system for the corrections u (the WY or UT
form of a product of Householder-like factors):

$$ u_t + \beta_t \sum_{j < t} \big(k_t^\top D(e^{c_t - c_j}) k_j\big)\, u_j
   = \beta_t \big(v_t - S_0^\top D(e^{c_t}) k_t\big) $$
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.arrays import is_concrete, precise_matmul
from .._core.log_decay import cumulative_decay
from ._base import Estimator, MatrixState, Row, add_to_decayed
from ._linear_attention import decay_products, decayed_sums, join_triangular


class DeltaRule(Estimator):
    r"""Online least squares: each row moves the coefficients one gradient step towards its value.

    $$ S_t = D(\alpha_t) S_{t-1} + \beta_t k_t \big(v_t - (D(\alpha_t) S_{t-1})^\top k_t\big)^\top,
       \qquad \mathrm{out}_t = S_t^\top q_t $$

    The step of size β on the loss ½‖v − Sᵀk‖², $S \in \mathbb{R}^{d \times d_v}$, $k \in
    \mathbb{R}^d$, $v \in \mathbb{R}^{d_v}$. With $\beta_t = 1 / \|k_t\|^2$ the prediction at the
    last key is its value. Steps are stable for $0 \le \beta_t \|k_t\|^2 \le 2$; others are
    refused. α is weight decay: one number per row is the gated delta rule, one per row and channel
    is Kimi delta attention.

    **Source:** Widrow and Hoff, *Adaptive switching circuits* (1960); Schlag, Irie and Schmidhuber,
    *Linear transformers are secretly fast weight programmers* (2021); Yang et al., *Parallelizing
    linear transformers with the delta rule* (2024), *Gated delta networks* (2025); Kimi Team, *Kimi
    linear* (2025).

    ```python
    >>> k, v = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), jnp.array([[1.0], [2.0], [5.0]])
    >>> out, state = ak.recurrent.regress(k, k, v, estimator=ak.recurrent.DeltaRule(), rate=1.0)
    >>> state.matrix[:, 0]  # the last value of each key
    Array([5., 2.], dtype=float32)

    ```
    """

    def initial_state(self, dim: int, dim_v: int, dtype: Any = None) -> MatrixState:
        return MatrixState(jnp.zeros((dim, dim_v), dtype))

    def update(self, state: MatrixState, row: Row) -> MatrixState:
        error = row.v - precise_matmul(row.k * jnp.exp(row.log_decay), state.matrix)
        added = jnp.outer(row.rate * row.k, error)
        return MatrixState(add_to_decayed(state.matrix, row.log_decay[:, None], added))

    def read(self, state: MatrixState, q: Float[Array, " dim"]) -> Float[Array, " dim_v"]:
        return precise_matmul(q, state.matrix)

    def advance(self, state: MatrixState, rows: Row) -> tuple[Array, MatrixState]:
        decay, rate = cumulative_decay(rows.log_decay), rows.rate[:, None]
        products = jnp.tril(decay_products(rows.k, rows.k, decay), -1)
        errors = rows.v - precise_matmul(rows.k * jnp.exp(decay.total()), state.matrix)
        inverse = inverse_of_unit_lower(rate * products)
        return decayed_sums(state, rows, precise_matmul(inverse, rate * errors))

    def check(self, k: Any, log_decay: Any, rate: Any) -> None:
        """Raises `ValueError` if `rate`, β, is None, or a row breaks 0 ≤ β‖k‖² ≤ 2, up to rounding.

        Traced values are not checked, nor is `log_decay`.
        """
        if rate is None:
            raise ValueError(
                "DeltaRule needs rate=, the step β of each row, such as 0.5 / jnp.sum(k**2, -1); "
                "1 / jnp.sum(k**2, -1) fits each row exactly."
            )
        if not is_concrete(k, rate):
            return
        keys, steps = np.asarray(k, float), np.asarray(rate, float)
        steps = steps * np.sum(keys**2, axis=-1)
        slack = 1 + 100 * float(jnp.finfo(k.dtype).eps)
        if np.any(wrong := ~((steps >= 0) & (steps <= 2 * slack))):
            raise ValueError(
                f"rate must satisfy 0 ≤ β‖k‖² ≤ 2, where steps of the delta rule are stable; got "
                f"β‖k‖² = {steps[wrong].flat[0]:.4g} in {np.count_nonzero(wrong)} of {steps.size} "
                f"rows. Divide k by its norm, or take a rate of at most 2 / jnp.sum(k**2, -1)."
            )


def inverse_of_unit_lower(below: Float[Array, "rows rows"]) -> Float[Array, "rows rows"]:
    r"""Returns $(I + N)^{-1}$ of a strictly lower triangular N, whose size is a power of two.

    `below`: N. Diagonal blocks of one row are inverted, then blocks of twice their size: the
    inverse of [[A, 0], [B, D]] has the lower left block −D⁻¹BA⁻¹.

    The product $\prod_i (I + (-N)^{2^i})$ needs fewer steps, but its powers are binomial
    coefficients: for 64 equal keys it has no right digit in float32. XLA's `triangular_solve` is 7
    times slower.
    """
    rows, size = below.shape[0], 1
    inverse = jnp.ones((rows, 1, 1), below.dtype)
    while size < rows:
        count = rows // (2 * size)
        each = np.arange(count)
        blocks = below.reshape(count, 2 * size, count, 2 * size)
        between = blocks[each, size:, each, :size]
        corner = -precise_matmul(inverse[1::2], precise_matmul(between, inverse[0::2]))
        inverse, size = join_triangular(inverse, corner), 2 * size
    return inverse[0]
