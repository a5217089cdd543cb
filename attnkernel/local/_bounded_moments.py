r"""Moments of a method that bounds their errors: certified for what is solved from them.

With the normal equations $S \beta = b$ and bounds $\delta_S$, $\delta_b$ on the errors of $\hat S$
and $\hat b$, entry by entry,

$$ |\hat\beta - \beta| \le A\, (\delta_b + \delta_S |\hat\beta|)
   + A\, \delta_S\, |\hat\beta - \beta|, \qquad A = |\hat S^{-1}|, $$

whose last term is at most $\rho\, \|\hat\beta - \beta\|_\infty$, ρ the norm of $A\, \delta_S$. All
is in units in which the diagonal of S is 1. Queries that are not certified are recomputed.
"""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._core.stop_gradients import stop_gradients
from ..attention import (
    Auto,
    KernelPriorRule,
    first_head,
    map_batch,
    task_of,
    zero_nonfinite_queries,
)
from ..methods import Method, Moments, Standardised, exact_moments, map_selected_queries
from ..priors import key_mask_of
from ._monomials import Basis
from ._normal_equations import cholesky_solver

MAX_CONTRACTION = 0.5  # ρ of a certified query


def method_of_moments(
    q: Array, k: Array, v: Array, parts: KernelPriorRule, method: Method, degree: int
) -> Method | None:
    """Returns the method that sums the moments up to a degree itself; None: no such method.

    **Raises:** `ValueError` if the method was named and does not support them.
    """
    task = task_of(q, k, v, *map(first_head, parts), degree=degree)
    method = method.resolve(task) if isinstance(method, Auto) else method
    if not method.has_moments or k.shape[-2] == 0:
        return None
    if (reason := method.unsupported_reason(task)) is not None:
        name = type(method).__name__
        raise ValueError(f"{name} cannot evaluate this: {reason}. Try method=ak.attention.Auto().")
    return method


def bounded_moments(
    q: Float[Array, "*#batch queries 1"],
    k: Float[Array, "*#batch keys 1"],
    v: Float[Array, "*#batch keys dim_v"],
    centre: Float[Array, "*#batch one dim_v"],
    parts: KernelPriorRule,
    method: Method,
    basis: Basis,
) -> tuple[Array, Array, Float[Array, "*batch queries"]]:
    """The means of φφᵀ and of φ(v - centre)ᵀ, and the log-mass; arguments as for `local_moments`.

    `method`: that of `method_of_moments`. All are NaN for a query that is not finite.
    """
    order, degree = len(basis.terms) - 1, len(basis.products) - 1
    scale = basis.scale[0]
    batch_size = method.batch_size(task_of(q, k, v, *map(first_head, parts), degree=degree))

    def of_member(
        parts: KernelPriorRule, q: Array, k: Array, v: Array, centre: Array
    ) -> tuple[Array, Array, Array]:
        q, valid = zero_nonfinite_queries(q)
        values = Standardised.of(v, key_mask_of(parts[1]))
        found = method.moments(q, k, values.z, *parts, degree=degree, scale=scale)
        certified = is_certified(found, values, order)
        log_mass, means = map_selected_queries(
            functools.partial(exact_moments, degree=degree, scale=scale),
            ((), found.means.shape[1:]),
            ~certified,
            (q,),
            k,
            values.z,
            parts,
        )
        log_mass = jnp.where(certified, found.log_mass, log_mass)
        means = jnp.where(certified[:, None, None], found.means, means)
        gram, right = means[..., 0], values.unit[None, None, :] * means[:, : order + 1, 1:]
        right = right + (values.centre[None, :] - centre)[None] * gram[:, : order + 1, None]
        gram, right = (
            jnp.where(valid[:, None, None], part, jnp.nan)
            for part in (gram[:, basis.pairs()], right)
        )
        return gram, right, jnp.where(valid, log_mass, jnp.nan)

    return map_batch(of_member, batch_size, parts, q, k, v, centre)


def is_certified(found: Moments, values: Standardised, order: int) -> Bool[Array, " queries"]:
    """Whether all that is solved from the moments of a query is within its tolerance.

    `found.tol` bounds four kinds of errors:

    - the constant of β, as the error of a prediction (`Standardised.accepted_error`);
    - each slope times the root mean square of its monomial, relative to that product or, if this is
      larger, to a thousandth of a typical value;
    - entry (a, b) of $S^{-1}$, in units in which the diagonal of S is 1, relative to
      $\\sqrt{(S^{-1})_{aa} (S^{-1})_{bb}}$;
    - the mass, relative to itself.
    """
    means, bounds, error = stop_gradients((found.means, found.bounds, found.error))
    a = np.arange(order + 1)
    size = means[:, 2 * a, 0]
    unit = jax.lax.rsqrt(jnp.where(size > 0, size, 1.0))
    pairs, units = a[:, None] + a[None, :], unit[:, :, None] * unit[:, None, :]
    gram, of_gram = means[:, pairs, 0] * units, bounds[:, pairs, 0] * units
    eye = jnp.broadcast_to(jnp.eye(order + 1, dtype=gram.dtype)[None], gram.shape)
    inverse = cholesky_solver(gram)(eye)
    right, of_right = (part[:, a, 1:] * unit[:, :, None] for part in (means, bounds))
    beta = _product(inverse, right)
    amplified = _product(jnp.abs(inverse), of_gram)
    rows = jnp.sum(amplified, axis=2)
    contraction = jnp.max(rows, axis=1)
    known = jnp.concatenate([beta, inverse], axis=2)
    error_of = jnp.concatenate([of_right, jnp.zeros_like(inverse)], axis=2)
    delta = _product(jnp.abs(inverse), error_of) + _product(amplified, jnp.abs(known))
    rest = jnp.max(delta, axis=1) / (1.0 - contraction)[:, None]
    delta = delta + rows[:, :, None] * rest[:, None, :]
    of_beta = [values.accepted_error(beta[:, 0])[:, None, :]]
    if order:
        slopes = jnp.maximum(jnp.abs(beta[:, 1:]), 1e-3 * values.typical[None, None, :])
        of_beta.append(jnp.where(values.typical[None, None, :] > 0, slopes, jnp.inf))
    diagonal = jnp.sqrt(jnp.stack([inverse[:, i, i] for i in a], axis=1))
    accepted = [jnp.concatenate(of_beta, axis=1), diagonal[:, :, None] * diagonal[:, None, :]]
    within = jnp.all(delta <= found.tol * jnp.concatenate(accepted, axis=2), axis=(1, 2))
    return (
        within
        & (contraction < MAX_CONTRACTION)
        & (error[:, 0] <= found.tol)
        & jnp.all(size > 0, axis=1)
    )


def _product(
    left: Float[Array, "queries rows inner"], right: Float[Array, "queries inner columns"]
) -> Float[Array, "queries rows columns"]:
    """Returns the product of two small matrices of each query, by elementwise operations."""
    inner = range(left.shape[2])
    terms = [left[:, :, i : i + 1] * right[:, i : i + 1, :] for i in inner]
    return functools.reduce(operator.add, terms)
