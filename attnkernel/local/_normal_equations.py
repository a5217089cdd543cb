"""The normal equations of local polynomials: one small system for each query."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.cholesky import cholesky_solver
from ._monomials import with_rank_of


def solve_normal_equations(
    gram: Float[Array, "*queries terms terms"],
    right: Float[Array, "*queries terms dim_v"],
    ridge: Float[Array, " terms"],
    rounding: Float[Array, "*queries terms"],
) -> tuple[Float[Array, "*queries terms columns"], Array, Array]:
    """$S^{-1} (b, e_1)$, the condition of S, and whether it is rank-deficient.

    A term whose rounding error exceeds the ridge of a deficient system gets this error added to its
    diagonal, and S counts as deficient.
    """
    terms, eps = gram.shape[-1], float(jnp.finfo(gram.dtype).eps)
    eye, slopes = jnp.eye(terms, dtype=gram.dtype), jnp.arange(terms) > 0
    gram = gram + with_rank_of(jnp.diag(jnp.where(slopes, ridge, 0.0)), gram)
    is_diagonal = with_rank_of(eye > 0, gram)
    # `jnp.diagonal` is a gather, whose derivative is a scatter: both compile for longer
    diagonal = jnp.sum(jnp.where(is_diagonal, gram, 0.0), axis=-1)
    lost = with_rank_of(slopes, rounding) & (rounding > eps**0.5 * diagonal)
    diagonal = diagonal + jnp.where(lost, rounding, 0.0)
    gram = jnp.where(is_diagonal, diagonal[..., None], gram)
    # a smaller diagonal counts as constant: its square would overflow derivatives
    varies = diagonal > float(jnp.finfo(gram.dtype).tiny) ** 0.75
    # the solution does not depend on the scaling: it needs no derivative
    unit = jax.lax.rsqrt(jax.lax.stop_gradient(jnp.where(varies, diagonal, 1.0)))
    first = jnp.broadcast_to(with_rank_of(eye[:, :1], right), (*right.shape[:-1], 1))
    right = jnp.concatenate([right, first], axis=-1) * unit[..., None]
    scaled = gram * unit[..., None] * unit[..., None, :]
    # the trace of the inverse is the sum of the inverse eigenvalues
    regularised = jax.lax.stop_gradient(scaled) + with_rank_of(8 * terms * eps * eye, scaled)
    everything = jnp.broadcast_to(with_rank_of(eye, regularised), regularised.shape)
    condition = jnp.trace(cholesky_solver(regularised)(everything), axis1=-2, axis2=-1)
    deficient = ~(condition < eps ** (-2 / 3)) | jnp.any(lost, axis=-1)
    added = jnp.where(deficient, eps**0.5, 0.0)[..., None, None]
    regular = scaled + added * with_rank_of(jnp.diag(slopes.astype(gram.dtype)), scaled)
    product = functools.partial(jnp.matmul, regular, precision="highest")
    solver = cholesky_solver(jax.lax.stop_gradient(regular))
    solved = jax.lax.custom_linear_solve(
        product, right, lambda _, right: solver(right), symmetric=True
    )
    condition = jnp.nan_to_num(condition, nan=1.0 / eps)
    return solved * unit[..., None], condition, deficient
