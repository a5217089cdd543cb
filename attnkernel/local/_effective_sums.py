r"""Sums by powers of the effective kernel, from the moments of a method that bounds their errors.

With $L_j = w_j \sum_a c_a u_j^a / \sum_l w_l$ and the coefficients $c^{(p)}$ of
$(\sum_a c_a u^a)^p$,

$$ \sum_j L_j^p\, v_j = \frac{\sum_a c^{(p)}_a \sum_j w_j^p u_j^a v_j}{(\sum_l w_l)^p}. $$

The weights $w^p$ are those of the temperature τ/p. Where the terms cancel, so that the error may
exceed its tolerance, the sum of a query is formed pair by pair.
"""

import functools
import math
import operator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..attention import KernelPriorRule, zero_nonfinite_queries
from ..methods import Method, Standardised, exact_polynomial_sums, map_selected_queries
from ..priors import key_mask_of
from ._monomials import Basis


def sum_by_moments(
    parts: KernelPriorRule,
    method: Method,
    power: int,
    term: int,
    q: Float[Array, "queries 1"],
    k: Float[Array, "keys 1"],
    v: Float[Array, "keys dim_v"],
    influence: Float[Array, "queries terms"],
    log_mass: Float[Array, " queries"],
) -> Float[Array, "queries dim_v"]:
    r"""Returns $\sum_j (t!\, L_j(q))^p\, v_j$ of each query; NaN for one that is not finite.

    `parts`: the kernel, a mask of keys and a softmax without a sink. `method`: that of
    `method_of_moments` for degree p times the order. `power`: p; `term`: t, the term whose
    coefficient has the weights $L_j$. `influence` and `log_mass` are those of a `LocalFit` for it.
    """
    kernel, prior, rule = parts
    order = influence.shape[1] - 1
    basis = Basis.of(k, order, None)
    q, valid = zero_nonfinite_queries(q)
    c = math.factorial(term) * influence * basis.units()[None, :]
    c_power = functools.reduce(_multiplied, [c] * power)
    values = Standardised.of(v, key_mask_of(prior))
    of_power = kernel, prior, rule.with_temperature_times(1.0 / power)
    scale = basis.scale[0]
    found = method.moments(q, k, values.z, *of_power, degree=power * order, scale=scale)
    log_ratio = jnp.where(jnp.isneginf(log_mass), 0.0, found.log_mass - power * log_mass)
    sums = jnp.sum(c_power[:, :, None] * found.means, axis=1) * jnp.exp(log_ratio)[:, None]
    out = values.centre[None, :] * sums[:, :1] + values.unit[None, :] * sums[:, 1:]

    # what follows is constant: the certificate
    terms = jnp.abs(c_power)[:, :, None] * found.bounds
    error = jax.lax.stop_gradient(jnp.sum(terms, axis=1) * jnp.exp(log_ratio)[:, None])
    of_one = jnp.abs(jax.lax.stop_gradient(sums[:, :1]))
    if power == 1:  # the weights of a derivative sum to 0: the size of the influence stands in
        of_one = jnp.abs(jax.lax.stop_gradient(c[:, term : term + 1])) ** 0.5
    total = error[:, 1:] + jnp.abs(values.centre / values.unit)[None, :] * error[:, :1]
    size = jnp.abs(jax.lax.stop_gradient(out)) / values.unit[None, :]
    size = jnp.maximum(size, 1e-3 * values.typical[None, :] * of_one)
    certified = jnp.all(total <= found.tol * size, axis=1)
    certified &= error[:, 0] <= found.tol * of_one[:, 0]
    exact_sums = functools.partial(exact_polynomial_sums, power=power, scale=scale)
    (exact,) = map_selected_queries(
        lambda *rows: (exact_sums(*rows),),
        (v.shape[1:],),
        ~certified & ~jnp.isneginf(log_mass),
        (q, c, log_mass),
        k,
        v,
        parts,
    )
    out = jnp.where(certified[:, None], out, exact)
    return jnp.where(valid[:, None], out, jnp.nan)


def _multiplied(
    left: Float[Array, "queries terms"], right: Float[Array, "queries terms"]
) -> Float[Array, "queries more"]:
    """Returns the coefficients of the product of two polynomials, from degree 0."""
    count = left.shape[1] + right.shape[1] - 1
    terms = [
        left[:, a : a + 1] * jnp.pad(right, ((0, 0), (a, count - a - right.shape[1])))
        for a in range(left.shape[1])
    ]
    return functools.reduce(operator.add, terms)
