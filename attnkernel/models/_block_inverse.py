r"""Inverses of matrices by Gauss–Jordan elimination of blocks, that is by matrix products.

A step with the pivot block $P = A_{kk}^{-1}$ replaces the rows k by $P A_{k\cdot}$, the columns k
by $-A_{\cdot k} P$ and the rest by $A - A_{\cdot k} P A_{k\cdot}$, in $2 n^3$ operations in all
(Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, 14.4). Rows are not exchanged,
which is stable where the symmetric part of A is positive, as that of $I - S$ is nearly for a
smoother S. Where the residual shows that the result is not accurate, LAPACK computes it.

LAPACK's own threads wait for each other: where other processes use the cores, two of them factorise
400 rows in 0.3 s, one alone in 1.5 ms. XLA's matrix products share its threads with all else: the
inverse takes 6 ms there.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._core.arrays import precise_matmul as matmul

BLOCK_ROWS = 32
PROBES = 4
MAX_ROUNDINGS = 10.0


@jax.custom_jvp
def inverse(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    r"""Returns $A^{-1}$, with $\mathrm{d} A^{-1} = -A^{-1}\, \mathrm{d}A\, A^{-1}$."""
    n = len(matrix)
    more = -n % BLOCK_ROWS
    padded = jnp.pad(matrix, (0, more)) + jnp.diag(jnp.arange(n + more) >= n).astype(matrix.dtype)
    found = _eliminate(padded, BLOCK_ROWS)[:n, :n]
    # A X u = u for vectors u of random signs; both products round in proportion to |X u|
    signs = jnp.asarray(np.random.default_rng(0).choice([-1.0, 1.0], (n, PROBES)), matrix.dtype)
    solved = matmul(found, signs)
    error = jnp.max(jnp.abs(matmul(matrix, solved) - signs))
    rounding = n * jnp.finfo(matrix.dtype).eps * (1.0 + jnp.max(jnp.abs(solved)))
    is_accurate = error <= MAX_ROUNDINGS * rounding
    return jax.lax.cond(is_accurate, lambda: found, lambda: jnp.linalg.inv(matrix))


@inverse.defjvp
def _inverse_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    found = inverse(*primals)
    return found, -matmul(matmul(found, tangents[0]), found)


def _eliminate(matrix: Float[Array, "n n"], block: int) -> Float[Array, "n n"]:
    """Returns the inverse of a matrix by steps of `block` rows, which divide n."""

    def step(k: Int[Array, ""], a: Array) -> Array:
        at = k * block
        rows = jax.lax.dynamic_slice_in_dim(a, at, block, axis=0)
        columns = jax.lax.dynamic_slice_in_dim(a, at, block, axis=1)
        pivot = jax.lax.dynamic_slice_in_dim(rows, at, block, axis=1)
        pivot = 1.0 / pivot if block == 1 else _eliminate(pivot, 1)
        rows = jax.lax.dynamic_update_slice_in_dim(matmul(pivot, rows), pivot, at, axis=1)
        a = jax.lax.dynamic_update_slice_in_dim(a, jnp.zeros_like(columns), at, axis=1)
        a = a - matmul(columns, rows)
        return jax.lax.dynamic_update_slice_in_dim(a, rows, at, axis=0)

    return jax.lax.fori_loop(0, len(matrix) // block, step, matrix)
