"""Symmetric positive definite systems, many at a time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def cholesky_solver(matrix: Float[Array, "*queries terms terms"]) -> Callable[[Array], Array]:
    r"""Returns the function $b \mapsto S^{-1} b$ by $S = L L^\top$, with S = `matrix`; its result
    is NaN where S is not positive definite. b has shape (*queries, terms, columns).

    Systems of at most 4 terms are solved by formulas for all queries at once, which is faster than
    one call of LAPACK for each.
    """
    terms = range(matrix.shape[-1])
    max_unrolled_terms = 4  # of a system that is solved by formulas
    if len(terms) > max_unrolled_terms:
        factor = jnp.linalg.cholesky(matrix)
        return lambda right: jax.scipy.linalg.cho_solve((factor, True), right)
    low: dict[tuple[int, int], Array] = {}  # of L; on its diagonal the inverses
    for j in terms:
        column = {i: matrix[..., i, j] for i in terms[j:]}
        for k in terms[:j]:
            column = {i: rest - low[i, k] * low[j, k] for i, rest in column.items()}
        unit = 1.0 / jnp.sqrt(jnp.where(column[j] > 0, column[j], jnp.nan))
        low |= {(i, j): rest * unit for i, rest in column.items()} | {(j, j): unit}
    low = {place: number[..., None] for place, number in low.items()}

    def solve(right: Float[Array, "*queries terms columns"]) -> Array:
        rows = [right[..., i, :] for i in terms]
        for i in terms:
            for k in terms[:i]:
                rows[i] = rows[i] - low[i, k] * rows[k]
            rows[i] = rows[i] * low[i, i]
        for i in reversed(terms):
            for k in terms[i + 1 :]:
                rows[i] = rows[i] - low[k, i] * rows[k]
            rows[i] = rows[i] * low[i, i]
        return jnp.stack(rows, axis=-2)

    return solve
