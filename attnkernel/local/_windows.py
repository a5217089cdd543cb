r"""The weights and monomials of keys, a chunk of queries at a time; Newton's method at each query.

$$ \beta \leftarrow \beta + t\, H^{-1} g, \qquad g = \nabla f(\beta), \quad
   H = -\nabla^2 f(\beta) $$

It maximises a concave function f of a few numbers, and gives the derivative of the maximum.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._core.cholesky import cholesky_solver
from .._core.tracing import is_symbolic
from ..attention import KernelPriorRule, attention_weights
from ..methods import Keys, Queries
from ..priors import AtPositions
from ._moments import MAX_CHUNK_NUMBERS
from ._monomials import Basis, Polynomial, monomials, solve_normal_equations
from ._polynomial import MAX_INVERSE_GRAM


class Windows(NamedTuple):
    """The weights of the keys at each query of a chunk, and the monomials of the keys.

    `rows` are the positions of the queries. `weights` sum to 1, or are 0 where a query sees no key.
    `products` are the monomials $((k - q) / \\mathrm{scale})^a$, |a| ≤ 2p, with k = q where the
    weight is 0.
    """

    rows: Int[Array, " queries"]
    weights: Float[Array, "queries keys"]
    products: Float[Array, "queries keys products"]
    basis: Basis

    @property
    def terms(self) -> Float[Array, "queries keys terms"]:
        """The monomials of the polynomial."""
        return self.products[..., : len(self.basis.terms)]

    @property
    def empty(self) -> Bool[Array, " queries"]:
        """Whether a query sees no key."""
        return ~jnp.any(self.weights > 0, axis=1)

    def coefficients(self, beta: Float[Array, "queries dim_v terms"]) -> Array:
        """Returns coefficients in units of k, shape (queries, terms, dim_v), from `beta` in units
        of the scale; 0 where a query sees no key."""
        beta = jnp.where(self.empty[:, None, None], 0.0, beta) / self.basis.units()[None, None, :]
        return beta.swapaxes(1, 2)

    def support(self) -> tuple[Bool[Array, " queries"], Bool[Array, " queries"]]:
        """Returns where the design is rank-deficient, and where it extrapolates."""
        gram = jnp.sum(self.weights[..., None] * self.products, axis=1)[..., self.basis.pairs()]
        terms = gram.shape[-1]
        none = jnp.zeros((len(gram), terms, 0), gram.dtype)
        zeros = jnp.zeros((len(gram), terms), gram.dtype)
        found = solve_normal_equations(gram, none, zeros[0], zeros)
        influence, _, deficient = jax.lax.stop_gradient(found)
        return deficient & ~self.empty, (influence[:, 0, 0] > MAX_INVERSE_GRAM) & ~self.empty


def weights_of_rows(
    parts: KernelPriorRule, rows: Int[Array, " queries"], q: Queries, k: Keys
) -> Float[Array, "queries keys"]:
    """Returns `attention_weights` of all keys at queries q, whose positions are `rows`."""
    kernel, prior, rule = parts
    seen = None if prior is None else AtPositions(prior, rows, jnp.arange(len(k)))
    return attention_weights(q, k, kernel=kernel, prior=seen, rule=rule)


def map_windows(
    function: Callable[[Windows], Any],
    polynomial: Polynomial,
    q: Queries,
    k: Keys,
    width: int,
    policy: Callable[..., bool] | None = None,
) -> Any:
    """Returns `function(windows)` of all queries, computed a chunk of queries at a time.

    In the results of the function each array has one row per query.

    `width`: how many arrays of the shape of the products the function holds at a time. Derivatives
    evaluate it again in place of storing what it holds, except what the `policy` of
    `jax.checkpoint` saves.
    """
    m, n, basis = q.shape[0], k.shape[0], Basis.of(polynomial, k)
    numbers = width * max(1, n) * len(basis.products)
    # in the cache of a core: leave-one-out of 150, 800 and 3000 rows, order 1, float64, takes 0.57,
    # 0.49 and 0.61 of the time of 2^20 numbers for likelihoods, 0.65 to 0.73 for quantiles
    most = 2**14 if jax.default_backend() == "cpu" else MAX_CHUNK_NUMBERS
    chunks = m if is_symbolic(m, n) else -(-m // max(1, most // numbers))
    size = 1 if is_symbolic(m, n) else -(-m // chunks)
    columns = list(basis.columns)

    def apply_to_chunk(rows: Int[Array, " size"]) -> Any:
        weights = weights_of_rows(polynomial.weights, rows, q[rows], k)
        total = jnp.sum(weights, axis=1, keepdims=True)  # less than 1 beside a sink
        weights = weights / jnp.where(total > 0, total, 1.0)
        u = basis.displacement(k[None, :, columns], q[rows][:, None, columns])
        u = jnp.where((weights > 0)[..., None], u, 0.0)
        return function(Windows(rows, weights, monomials(u, basis.products), basis))

    rows = jnp.minimum(jnp.arange(chunks * size), m - 1).reshape(chunks, size)
    found = jax.lax.map(jax.checkpoint(apply_to_chunk, prevent_cse=False, policy=policy), rows)
    return jax.tree.map(lambda leaf: leaf.reshape(chunks * size, *leaf.shape[2:])[:m], found)


class Expansion(NamedTuple):
    """A concave function at a point: its value, its gradient, and its negative Hessian."""

    value: Float[Array, ""]
    gradient: Float[Array, " terms"]
    curvature: Float[Array, "terms terms"]


class Maximum(NamedTuple):
    """The maximiser of a concave function, and the inverse of its negative Hessian there."""

    point: Float[Array, " terms"]
    inverse: Float[Array, "terms terms"]


class _Ascent(NamedTuple):
    """The best point so far, the next step and its length, and whether it is the last.

    `gain` is $g^\\top H^{-1} g$, twice the gain that the quadratic expansion promises.
    """

    point: Float[Array, " terms"]
    value: Float[Array, ""]
    inverse: Float[Array, "terms terms"]
    step: Float[Array, " terms"]
    length: Float[Array, ""]
    gain: Float[Array, ""]
    steps: Int[Array, ""]
    is_last: Bool[Array, ""]


def maximise(
    expand: Callable[[Float[Array, " terms"]], Expansion], start: Float[Array, " terms"]
) -> Maximum:
    """Returns the maximum, in one `while_loop`, with no derivative in reverse mode.

    The search stops when the promised gain is below rounding, or after 100 steps. A step that gains
    too little is halved.
    """
    eps = float(jnp.finfo(start.dtype).eps)
    zero, none = jnp.zeros((), start.dtype), jnp.zeros_like(start)
    eye = jnp.eye(len(start), dtype=start.dtype)

    sufficient_share = 1e-4  # of the gain that the gradient promises, from which a step is accepted

    def take_step(search: _Ascent) -> _Ascent:
        trial = search.point + search.length * search.step
        found = expand(trial)
        slack = 16.0 * eps * (1.0 + jnp.abs(search.value))
        needed = sufficient_share * search.length * search.gain - slack
        is_accepted = (search.steps == 0) | (found.value >= search.value + needed)
        inverse = solve_positive_definite(found.curvature, eye)
        step = jnp.sum(inverse * found.gradient[None, :], axis=1)
        gain, count = jnp.dot(found.gradient, step), search.steps + 1
        is_last = ~(gain > eps * found.curvature[0, 0])
        state = (trial, found.value, inverse, step, jnp.ones_like(zero), gain)
        accepted = _Ascent(*state, count, is_last)
        halved = search._replace(length=0.5 * search.length, steps=count)
        return jax.tree.map(lambda a, b: jnp.where(is_accepted, a, b), accepted, halved)

    max_newton_steps = 100  # 4 to 8 in most windows, about 40 where labels are separated

    def goes_on(search: _Ascent) -> Bool[Array, ""]:
        return ~search.is_last & (search.steps < max_newton_steps)

    begin = _Ascent(start, zero, eye, none, zero, zero, jnp.zeros((), int), jnp.zeros((), bool))
    end = jax.lax.while_loop(goes_on, take_step, begin)
    point = end.point + end.length * end.step
    point = jnp.where(jnp.all(jnp.isfinite(point)), point, end.point)
    return Maximum(point, end.inverse)


def with_derivatives(
    gradient: Callable[[Float[Array, " terms"]], Float[Array, " terms"]], maximum: Maximum
) -> Float[Array, " terms"]:
    r"""Returns the maximiser, now with derivatives of first and second order, in either mode.

    $$ \mathrm{d} \hat\beta = H^{-1}\, \mathrm{d} g $$

    `gradient`: that of the function; it closes over traced arrays, through which derivatives flow.
    `maximum`: without derivatives. Two steps with a constant Hessian change nothing but
    derivatives: the error of the first step is of second order in a change of what the function
    depends on, that of the next one of third order.
    (`jax.lax.custom_root` loses second derivatives inside `jax.lax.map`.)
    """
    point = maximum.point
    for _ in range(2):
        point = point + jnp.matmul(maximum.inverse, gradient(point), precision="highest")
    return point


def solve_positive_definite(
    matrix: Float[Array, "terms terms"], right: Float[Array, " terms *columns"]
) -> Float[Array, " terms *columns"]:
    """Returns the solution of a positive definite system, scaled to a diagonal of 1.

    The rounding of the factorisation is added to the diagonal, which is then positive definite.
    """
    terms, eps = len(right), float(jnp.finfo(right.dtype).eps)
    diagonal = jax.lax.stop_gradient(jnp.diagonal(matrix))
    unit = jax.lax.rsqrt(jnp.where(diagonal > 0, diagonal, 1.0))
    scaled = matrix * unit[:, None] * unit[None, :]
    scaled = scaled + 4 * terms * eps * jnp.eye(terms, dtype=matrix.dtype)
    columns = right.reshape(terms, -1) * unit[:, None]
    return (cholesky_solver(scaled)(columns) * unit[:, None]).reshape(right.shape)
