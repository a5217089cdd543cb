r"""Linear attention with decay: sums of $k v^\top$ that forget, read by a product with q.

A chunk of rows is a product with a lower triangular matrix:

$$ A_{ij} = \sum_m q_{im}\, k_{jm}\, e^{c_{im} - c_{jm}}, \qquad j \le i $$

One decay for all channels is a factor of the matrix $q k^\top$. Decays of channels are one product
of $q e^{c_i}$ and $k e^{-c_j}$ where they are weak. Where the second would overflow, they are split
at a row r between j and i, $e^{c_i - c_r} e^{c_r - c_j}$: the halves of a chunk have one r for all
pairs between them, and so do the halves of each half. No exponent is then positive.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.arrays import precise_matmul
from .._core.log_decay import CumulativeDecay, cumulative_decay
from .._core.tracing import any_in_batch
from .._core.validation import require_bool
from ._base import Estimator, MatrixState, Row, add_to_decayed


class LinearAttention(Estimator):
    r"""Decayed sums: a kernel regression of finite rank whose rows fade with time.

    $$ S_t = D(\alpha_t) S_{t-1} + \beta_t k_t v_t^\top, \qquad \mathrm{out}_t = S_t^\top q_t $$

    $$ z_t = D(\alpha_t) z_{t-1} + \beta_t k_t, \qquad
       \mathrm{out}_t = S_t^\top q_t \,/\, z_t^\top q_t \quad \text{(normalised)} $$

    $q, k \in \mathbb{R}^d$ are features of any sign, $v \in \mathbb{R}^{d_v}$, $S \in
    \mathbb{R}^{d \times d_v}$, D diagonal. The kernel is $K(q_i, k_j) = \sum_m q_{im} k_{jm}
    e^{c_{im} - c_{jm}}$ with $c = \sum \log \alpha$. Normalised, it is the Nadaraya–Watson
    estimator of this kernel; not normalised, one gradient step for each row on the loss
    $-v^\top S^\top k$. With α = 1 and β = 1, normalised, it is `ak.attend` with
    `ak.methods.Linear()` and `ak.Causal()`.

    RetNet is a decay α per head, Mamba-2 one per row, gated linear attention one per row and
    channel. A row's weight is its `rate` β, of any sign; default 1.

    **Arguments:** `normalised`: whether to divide by the sum of weights. Default: no. Where no row
    is seen the result is 0; where weights of both signs sum to 0, NaN.

    **Raises:** `ValueError` if it is no Boolean.

    **Source:** Katharopoulos et al., *Transformers are RNNs* (2020); Sun et al., *Retentive
    network* (2023); Yang et al., *Gated linear attention transformers* (2024); Dao and Gu,
    *Transformers are SSMs* (2024).

    ```python
    >>> k, v = jnp.ones((3, 1)), jnp.array([[1.0], [2.0], [4.0]])
    >>> mean = ak.recurrent.LinearAttention(normalised=True)
    >>> ak.recurrent.regress(k, k, v, estimator=mean, log_decay=jnp.log(0.5))[0][:, 0]
    Array([1.       , 1.6666666, 3.       ], dtype=float32)

    ```
    """

    normalised: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        require_bool("normalised", self.normalised)

    def initial_state(self, dim: int, dim_v: int, dtype: Any = None) -> MatrixState:
        """The state of no rows: zeros (dim, dim_v); if normalised one more column, the mass."""
        return MatrixState(jnp.zeros((dim, dim_v + self.normalised), dtype))

    def update(self, state: MatrixState, row: Row) -> MatrixState:
        added = jnp.outer(row.rate * row.k, self._with_one(row.v))
        return MatrixState(add_to_decayed(state.matrix, row.log_decay[:, None], added))

    def read(self, state: MatrixState, q: Float[Array, " dim"]) -> Float[Array, " dim_v"]:
        return self._divided(precise_matmul(q, state.matrix))

    def advance(self, state: MatrixState, rows: Row) -> tuple[Array, MatrixState]:
        sums, state = decayed_sums(state, rows, rows.rate[:, None] * self._with_one(rows.v))
        return self._divided(sums), state

    def _with_one(self, v: Float[Array, "*rows dim_v"]) -> Float[Array, "*rows width"]:
        """Returns (v, 1), whose last sum is the mass; v if the result is not normalised."""
        return jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1) if self.normalised else v

    def _divided(self, sums: Float[Array, "*rows width"]) -> Float[Array, "*rows dim_v"]:
        """Returns the sums; if the result is normalised, all but the last divided by it, the mass.

        With a mass of 0 the result is 0 if all sums are 0, else NaN.
        """
        if not self.normalised:
            return sums
        total, mass = sums[..., :-1], sums[..., -1:]
        is_zero = mass == 0
        ratio = total / jnp.where(is_zero, 1.0, mass)
        return jnp.where(is_zero & jnp.any(total != 0, axis=-1, keepdims=True), jnp.nan, ratio)


def decayed_sums(
    state: MatrixState, rows: Row, values: Float[Array, "rows width"]
) -> tuple[Float[Array, "rows width"], MatrixState]:
    r"""Returns $S_t^\top q_t$ of the sums $S_t = D(\alpha_t) S_{t-1} + k_t u_t^\top$ for each row
    of a chunk, and the sums after it. `values`: u.
    """
    decay = cumulative_decay(rows.log_decay)
    within = precise_matmul(decay_products(rows.q, rows.k, decay), values)
    before = precise_matmul(rows.q * jnp.exp(decay.total()), state.matrix)
    keys = rows.k * jnp.exp(decay.at(np.s_[-1:]).minus(decay))
    added, log_decay = precise_matmul(keys.T, values), decay.at(-1).total()[:, None]
    return before + within, MatrixState(add_to_decayed(state.matrix, log_decay, added))


def decay_products(
    q: Float[Array, "rows dim"], k: Float[Array, "rows dim"], decay: CumulativeDecay
) -> Float[Array, "rows rows"]:
    r"""Returns $A_{ij} = \sum_m q_{im} k_{jm} e^{c_{im} - c_{jm}}$ where j ≤ i, else 0.

    `decay`: c, of one column or of one for each m. The number of rows is a power of two.
    """
    if decay.rest.shape[1] == 1:
        return precise_matmul(q, k.T) * decay_ratios(decay.at(np.s_[:, 0]))
    # one product has exponents up to 20, and a rounding error of 2e-6 in float32; the delta rule
    # takes 0.73 times the CPU time of products of halves, linear attention 0.78 times
    is_strong = jax.lax.stop_gradient(jnp.any(decay.at(-1).total() < -20.0))

    def product(q: Array, k: Array, decay: CumulativeDecay) -> Array:
        """As one product of matrices; its factor $e^{-c_j}$ must not overflow."""
        exponents = decay.total()
        return jnp.tril(precise_matmul(q * jnp.exp(exponents), (k * jnp.exp(-exponents)).T))

    return jax.lax.cond(any_in_batch(is_strong), _products_of_halves, product, q, k, decay)


def _products_of_halves(
    q: Float[Array, "rows dim"], k: Float[Array, "rows dim"], decay: CumulativeDecay
) -> Float[Array, "rows rows"]:
    """Returns `decay_products` for any decays.

    Each difference of decays is split at a row between the two rows: no exponent is positive.
    """
    rows, size = q.shape[0], 1
    found = jnp.sum(q * k, axis=1)[:, None, None]
    while size < rows:

        def cut(array: Array, pair: int = 2 * size) -> Array:
            return array.reshape(rows // pair, pair, -1)

        halves = CumulativeDecay(*map(cut, decay))
        between = halves.at(np.s_[:, size - 1 : size])
        right = cut(q)[:, size:] * jnp.exp(halves.at(np.s_[:, size:]).minus(between))
        left = cut(k)[:, :size] * jnp.exp(between.minus(halves.at(np.s_[:, :size])))
        found = join_triangular(found, precise_matmul(right, left.swapaxes(1, 2)))
        size *= 2
    return found[0]


def decay_ratios(decay: CumulativeDecay) -> Float[Array, "rows rows"]:
    r"""Returns $e^{c_i - c_j}$ where j ≤ i, else 0. `decay`: c, one number for each row."""
    lower = np.tri(len(decay.rest), dtype=bool)
    exponents = decay.at(np.s_[:, None]).minus(decay.at(None))
    return jnp.exp(jnp.where(lower, exponents, -jnp.inf))


def join_triangular(
    blocks: Float[Array, "blocks size size"], below: Float[Array, "halves size size"]
) -> Float[Array, "halves _double _double"]:
    """Returns lower triangular matrices of twice the size.

    Two consecutive `blocks` are the diagonal of each, and one of `below` is its lower left block.
    """
    first, second = blocks[0::2], blocks[1::2]
    upper = jnp.concatenate([first, jnp.zeros_like(first)], axis=2)
    return jnp.concatenate([upper, jnp.concatenate([below, second], axis=2)], axis=1)
