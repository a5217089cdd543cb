r"""Products of the queries and keys of a chunk with decays between: a lower triangular matrix.

$$ A_{ij} = \sum_m q_{im}\, k_{jm}\, e^{c_{im} - c_{jm}}, \qquad j \le i $$

One decay for all channels is a factor of the matrix $q k^\top$. Decays of channels are one product
of $q e^{c_i}$ and $k e^{-c_j}$ where they are weak. Where the second would overflow, they are split
at a row r between j and i, $e^{c_i - c_r} e^{c_r - c_j}$: the halves of a chunk have one r for all
pairs between them, and so do the halves of each half. No exponent is then positive.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.arrays import precise_matmul
from .._core.batching import any_in_batch
from .._core.log_decay import CumulativeDecay

LEAF_ROWS = 8  # rows whose pairs have exponentials of their own
MAX_EXPONENT = 20.0  # of one product: a rounding error of 2e-6 in float32


def decay_products(
    q: Float[Array, "rows dim"], k: Float[Array, "rows dim"], decay: CumulativeDecay
) -> Float[Array, "rows rows"]:
    """Returns A, with 0 above its diagonal. `rows`: a power of two."""
    if decay.rest.shape[1] == 1:
        return precise_matmul(q, k.T) * decay_ratios(decay.at(np.s_[:, 0]))
    is_strong = jax.lax.stop_gradient(jnp.any(decay.at(-1).total() < -MAX_EXPONENT))
    return jax.lax.cond(
        any_in_batch(is_strong), _products_of_halves, _products_from_start, q, k, decay
    )


def _products_from_start(
    q: Float[Array, "rows dim"], k: Float[Array, "rows dim"], decay: CumulativeDecay
) -> Float[Array, "rows rows"]:
    """Returns A as one product; its factor $e^{-c_j}$ must not overflow."""
    exponents = decay.total()
    return jnp.tril(precise_matmul(q * jnp.exp(exponents), (k * jnp.exp(-exponents)).T))


def _products_of_halves(
    q: Float[Array, "rows dim"], k: Float[Array, "rows dim"], decay: CumulativeDecay
) -> Float[Array, "rows rows"]:
    """Returns A for any decays: pairs of close rows have exponentials of their own, and other pairs
    are split at a row between them."""
    rows = q.shape[0]
    size = min(rows, LEAF_ROWS)

    def cut(array: Array, size: int) -> Array:
        return array.reshape(rows // size, size, -1)

    def all_pairs(q: Array, k: Array, decay: CumulativeDecay) -> Array:
        return jnp.sum(q[:, None] * k[None] * decay_ratios(decay), axis=-1)

    leaves = CumulativeDecay(*(cut(part, size) for part in decay))
    found = jax.vmap(all_pairs)(cut(q, size), cut(k, size), leaves)
    while size < rows:
        halves = CumulativeDecay(*(cut(part, 2 * size) for part in decay))
        between = halves.at(np.s_[:, size - 1 : size])
        right = cut(q, 2 * size)[:, size:] * jnp.exp(halves.at(np.s_[:, size:]).minus(between))
        left = cut(k, 2 * size)[:, :size] * jnp.exp(between.minus(halves.at(np.s_[:, :size])))
        found = join_triangular(found, precise_matmul(right, left.swapaxes(1, 2)))
        size *= 2
    return found[0]


def decay_ratios(decay: CumulativeDecay) -> Float[Array, "rows rows *channels"]:
    r"""Returns $e^{c_i - c_j}$ where j ≤ i, else 0."""
    rows = np.arange(decay.rest.shape[0])
    lower = (rows[:, None] >= rows).reshape(len(rows), len(rows), *(1,) * (decay.rest.ndim - 1))
    exponents = decay.at(np.s_[:, None]).minus(decay.at(None))
    return jnp.exp(jnp.where(lower, exponents, -jnp.inf))


def join_triangular(
    blocks: Float[Array, "blocks size size"], below: Float[Array, "halves size size"]
) -> Float[Array, "halves _double _double"]:
    """Returns lower triangular matrices of twice the size, of two blocks of their diagonals and the
    one below them."""
    first, second = blocks[0::2], blocks[1::2]
    upper = jnp.concatenate([first, jnp.zeros_like(first)], axis=2)
    return jnp.concatenate([upper, jnp.concatenate([below, second], axis=2)], axis=1)
