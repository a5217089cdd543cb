r"""The effective kernel of a local polynomial, the weight of each value in the fit, and its sums.

A method that bounds the errors of its moments gives them in less than all pairs. With
$L_j = w_j \sum_a c_a u_j^a / \sum_l w_l$ and the coefficients $c^{(p)}$ of
$(\sum_a c_a u^a)^p$,

$$ \sum_j L_j^p\, v_j = \frac{\sum_a c^{(p)}_a \sum_j w_j^p u_j^a v_j}{(\sum_l w_l)^p}. $$

The weights $w^p$ are those of the temperature τ/p. Where the terms cancel, so that the error may
exceed its tolerance, the sum of a query is formed pair by pair.
"""

import functools
import math
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.arrays import wider_dtype
from ..attention import KernelPriorRule, attend, jit_if_pure, zero_nonfinite_queries
from ..methods import (
    Keys,
    Method,
    Queries,
    Standardised,
    Values,
    exact_polynomial_sums,
    map_selected_queries,
)
from ..priors import pair_mask_of
from ._moments import MAX_CHUNK_NUMBERS, method_of_moments
from ._monomials import Basis, Polynomial, Sums, monomials
from ._polynomial import LocalFit
from ._windows import weights_of_rows


def _sum_by_moments(
    polynomial: Polynomial,
    method: Method,
    power: int,
    term: int,
    q: Queries,
    k: Keys,
    v: Values,
    influence: Float[Array, "queries terms"],
    log_mass: Float[Array, " queries"],
) -> Sums:
    r"""Returns $\sum_j (t!\, L_j(q))^p\, v_j$ of each query; NaN for one that is not finite.

    `polynomial`: of one column, with a mask of keys and a softmax without a sink. `method`: that
    of `method_of_moments` for degree p times the order. `power`: p; `term`: t, the term whose
    coefficient has the weights $L_j$. `influence` and `log_mass` are those of a `LocalFit` for it.
    """
    kernel, prior, rule = polynomial.weights
    basis = Basis.of(polynomial, k)
    q, valid = zero_nonfinite_queries(q)
    c = math.factorial(term) * influence * basis.units()[None, :]
    c_power = functools.reduce(_multiplied, [c] * power)
    values = Standardised.of(v, pair_mask_of(prior))
    of_power = kernel, prior, rule.with_temperature_times(1.0 / power)
    scale = basis.scale[0]
    found = method.moments(q, k, values.z, of_power, degree=power * polynomial.order, scale=scale)
    log_ratio = jnp.where(jnp.isneginf(log_mass), 0.0, found.log_mass - power * log_mass)
    sums = jnp.sum(c_power[:, :, None] * found.means, axis=1) * jnp.exp(log_ratio)[:, None]
    out = values.centre[None, :] * sums[:, :1] + values.unit[None, :] * sums[:, 1:]

    # what follows is constant: the certificate
    terms = jnp.abs(c_power)[:, :, None] * found.bounds
    error = jax.lax.stop_gradient(jnp.sum(terms, axis=1) * jnp.exp(log_ratio)[:, None])
    of_one = jnp.abs(jax.lax.stop_gradient(sums[:, :1]))
    if power == 1:  # the weights may sum to 0: the root of their sum of squares, nearly
        of_one = jnp.abs(jax.lax.stop_gradient(c[:, term : term + 1])) ** 0.5
    total = error[:, 1:] + jnp.abs(values.centre / values.unit)[None, :] * error[:, :1]
    size = jnp.abs(jax.lax.stop_gradient(out)) / values.unit[None, :]
    size = jnp.maximum(size, 1e-3 * values.typical[None, :] * of_one)
    certified = jnp.all(total <= found.tol * size, axis=1)
    certified &= error[:, 0] <= found.tol * of_one[:, 0]
    exact_sums = functools.partial(exact_polynomial_sums, power=power, scale=scale)
    recomputed, of_queries = ~certified & ~jnp.isneginf(log_mass), (q, c, log_mass)
    sums_of = lambda *rows: (exact_sums(*rows),)  # noqa: E731
    of_keys = k, v, polynomial.weights
    (exact,) = map_selected_queries(sums_of, (v.shape[1:],), recomputed, of_queries, *of_keys)
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


def apply_effective_kernel(
    q: Queries,
    k: Keys,
    v: Values,
    local: LocalFit,
    polynomial: Polynomial,
    *,
    power: int = 1,
    derivative: tuple[int, ...] | None = None,
) -> Sums:
    r"""Sums of values by powers of the effective kernel, $\sum_j L_j(q)^p\, v_j$, p = 1 or 2.

    $$ L_j = \frac{w_j}{\sum_l w_l}\, \big( 1 + b^\top (\psi_j - \bar\psi) \big) $$

    ψ are the terms of φ without the constant, $\bar\psi$ their weighted mean, and b the slopes of
    the influence, times the share of the mass that keys have beside a sink. Each $L_j$ is squared
    about its own query, so that nothing cancels even where S is nearly singular. Power 1 gives the
    fit; for many values it is the cheaper path, which needs no moments.

    `derivative`: a, the order of a derivative along each column of k. $L_j$ is then the weight of
    value j in it: $a!$ times that in the coefficient of $(k - q)^a$, whose influence `local` has;
    for order 0, $\partial^a L_j$. These weights sum to 0.

    **Source:** Fan and Gijbels, *Local polynomial modelling and its applications* (1996), 3.2.2.
    """
    weights, order, _, method = polynomial
    kernel, prior, rule = weights
    if order == 0 and derivative is None:
        named = {"kernel": kernel, "prior": prior, "rule": rule, "method": method}
        if power == 1:
            return attend(q, k, v, **named)
        # squared weights are weights at half the temperature, with the prior squared
        named["prior"] = None if prior is None else prior * prior
        named["rule"] = rule.without_sink().with_temperature_times(0.5)
        means, log_squares = attend(q, k, v, **named, return_log_mass=True)
        log_ratio = jnp.where(jnp.isneginf(log_squares), 0.0, log_squares - 2.0 * local.log_mass)
        return means * jnp.exp(log_ratio)[:, None]
    q, k, v = (part.astype(wider_dtype(part.dtype)) for part in (q, k, v))
    if order == 0:
        return jit_if_pure(_sum_by_differentiated_mean, (weights, power, derivative), q, k, v)
    own = method_of_moments(q, k, v, weights, method, power * order)
    if own is not None:
        settings = (polynomial, own, power, 0 if derivative is None else sum(derivative))
        return jit_if_pure(_sum_by_moments, settings, q, k, v, local.influence, local.log_mass)
    settings = (polynomial, power, derivative)
    return jit_if_pure(_sum_by_effective_kernel, settings, q, k, v, local.influence)


def _sum_by_effective_kernel(
    polynomial: Polynomial,
    power: int,
    derivative: tuple[int, ...] | None,
    q: Queries,
    k: Keys,
    v: Values,
    influence: Float[Array, "queries terms"],
) -> Sums:
    r"""Returns $\sum_j L_j(q)^p\, v_j$ for each query, with p = `power` and $L_j$ the weight of
    value j in the local polynomial, or in its `derivative`. `influence`: from the `LocalFit`.
    """
    basis = Basis.of(polynomial, k)
    at = list(basis.columns)
    slopes = (influence * basis.units()[None, :])[:, 1:]
    constant, factor = (1.0, 1.0) if derivative is None else (0.0, factorial(derivative))

    def sum_at_query(row: Array, point: Array, slope: Array) -> Array:
        point = point[None]
        share = weights_of_rows(polynomial.weights, row[None], point, k)[0]
        part = jnp.sum(share)  # less than 1 beside a sink, which has no value to fit
        share = share / jnp.where(part > 0, part, 1.0)
        terms = monomials(basis.displacement(k[:, at], point[:, at]), basis.terms)[:, 1:]
        # far from the keys all terms are nearly equal: they are centred at that of the nearest
        centred = terms - terms[jnp.argmax(share)][None, :]
        centred = centred - jnp.sum(share[:, None] * centred, axis=0, keepdims=True)
        weights = share * (constant + jnp.sum(centred * (part * slope)[None, :], axis=1))
        return jnp.matmul((factor * weights) ** power, v, precision="highest")

    return _map_queries(sum_at_query, len(k) * len(basis.terms), q, slopes)


def _map_queries(function: Callable[..., Array], numbers: int, *arrays: Array) -> Array:
    """Returns `function(i, *rows)` for each i, stacked, where `rows` are row i of each array.

    Rows are processed in chunks. `numbers`: how many numbers the function holds for one row.
    """
    rows = jnp.arange(len(arrays[0]))
    size = max(1, min(len(rows), MAX_CHUNK_NUMBERS // max(1, numbers)))
    apply = jax.checkpoint(lambda row: function(*row), prevent_cse=False)
    return jax.lax.map(apply, (rows, *arrays), batch_size=size)


def _sum_by_differentiated_mean(
    parts: KernelPriorRule, power: int, orders: tuple[int, ...], q: Queries, k: Keys, v: Values
) -> Sums:
    r"""Returns $\sum_j (\partial^a L_j(q))^p\, v_j$ for each query, with p = `power`, $L_j$ the
    normalised weights of the keys, and a = `orders`.
    """
    along = [column for column, count in enumerate(orders) for _ in range(count)]

    def sum_at_query(row: Array, point: Array) -> Array:
        def weights_at(point: Array) -> Array:
            return weights_of_rows(parts, row[None], point[None], k)[0]

        derivative = functools.reduce(_differentiate, along, weights_at)
        return jnp.matmul(derivative(point) ** power, v, precision="highest")

    return _map_queries(sum_at_query, len(k), q)


def _differentiate(function: Callable[[Array], Array], column: int) -> Callable[[Array], Array]:
    """Returns the derivative of a function of one point along a column."""

    def derivative(point: Float[Array, " dim"]) -> Array:
        direction = jnp.zeros_like(point).at[column].set(1.0)
        return jax.jvp(function, (point,), (direction,))[1]

    return derivative


def factorial(derivative: tuple[int, ...]) -> float:
    """Returns $a! = \\prod_c a_c!$ of the orders a of a derivative along each column."""
    return float(math.prod(map(math.factorial, derivative)))
