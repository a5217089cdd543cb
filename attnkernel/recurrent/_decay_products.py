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
from .._core.log_decay import CumulativeDecay
from .._core.tracing import any_in_batch


def decay_products(
    q: Float[Array, "rows dim"], k: Float[Array, "rows dim"], decay: CumulativeDecay
) -> Float[Array, "rows rows"]:
    """Returns A, with 0 above its diagonal. `rows`: a power of two."""
    if decay.rest.shape[1] == 1:
        return precise_matmul(q, k.T) * decay_ratios(decay.at(np.s_[:, 0]))
    # one product has exponents up to 20, and a rounding error of 2e-6 in float32; the delta rule
    # takes 0.73 times the CPU time of products of halves, linear attention 0.78 times
    is_strong = jax.lax.stop_gradient(jnp.any(decay.at(-1).total() < -20.0))
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
    """Returns A for any decays: pairs are split at a row between them."""
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
    r"""Returns $e^{c_i - c_j}$ where j ≤ i, else 0."""
    lower = np.tri(len(decay.rest), dtype=bool)
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
