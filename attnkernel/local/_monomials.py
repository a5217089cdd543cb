"""The basis of local polynomials, monomials of k − q, and the normal equations of each query in it:
exponents, scales, the shift of the origin, and the solution.
"""

import functools
import itertools
import math
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.cholesky import cholesky_solver
from ..attention import Auto, KernelPriorRule
from ..kernels import periods, shortest_way
from ..methods import Method

Sums = Float[Array, "queries dim_v"]


def solve_normal_equations(
    gram: Float[Array, "*queries terms terms"],
    right: Float[Array, "*queries terms dim_v"],
    ridge: Float[Array, " terms"],
    rounding: Float[Array, "*queries terms"],
) -> tuple[Float[Array, "*queries terms columns"], Array, Array]:
    """Returns $S^{-1} (b, e_1)$, the condition of S, and whether S is rank-deficient.

    S is `gram` with `ridge` added to its diagonal, except for the constant term. b is `right`, and
    the last column of the solution is $S^{-1} e_1$. The condition is that of `LocalFit`. Where S is
    deficient, √eps of each diagonal entry but the first is added.

    `rounding`: a bound on the error of each diagonal entry of `gram`. A term whose bound exceeds
    √eps times its entry gets the bound added to it, and S counts as deficient.
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


class Polynomial(NamedTuple):
    """The settings of local polynomials; `weights` are the kernel, the prior and the rule."""

    weights: KernelPriorRule
    order: int = 0
    columns: tuple[int, ...] | None = None  # of k, the variables; None: all
    method: Method = Auto()


class Basis(NamedTuple):
    """The columns of a polynomial, their scale, its terms, and the products of two terms.

    Terms and products are exponents, as `exponents` gives them.
    """

    columns: tuple[int, ...]
    scale: Float[Array, " dim"]  # a power of two near half the range: no moment overflows
    terms: list[tuple[int, ...]]
    products: list[tuple[int, ...]]
    periods: list[Float[Array, "*heads one"] | None]  # of the columns; None: no circle

    @classmethod
    def of(cls, polynomial: Polynomial, k: Array) -> "Basis":
        (kernel, _, _), order, columns, _ = polynomial
        columns = tuple(range(k.shape[-1])) if columns is None else columns
        lengths = [periods(kernel, k.shape[-1]).get(c) for c in columns]
        circles = [p if p is None else jnp.asarray(p, k.dtype)[..., None] for p in lengths]
        terms, products = (exponents(len(columns), degree) for degree in (order, 2 * order))
        at = jax.lax.stop_gradient(k[..., list(columns)])
        axes = tuple(range(k.ndim - 1))
        half = 0.5 * jnp.max(at, axis=axes, initial=-jnp.inf)
        half = half - 0.5 * jnp.min(at, axis=axes, initial=jnp.inf)
        half = jnp.where(half > 0, half, 1.0)
        power = jax.lax.reduce_precision(half, jnp.finfo(half.dtype).nexp, mantissa_bits=0)
        return cls(columns, power, terms, products, circles)

    @property
    def has_circles(self) -> bool:
        """Whether any column is periodic, so that inputs are compared on a circle."""
        return any(period is not None for period in self.periods)

    def displacement(self, k: Array, q: Array) -> Array:
        """Returns k − q in units of the scale, of points that have these columns alone; the
        shortest way round in a periodic column."""
        u = with_rank_of(k, q) - with_rank_of(q, k)
        if self.has_circles:
            ways = zip(jnp.moveaxis(u, -1, 0), self.periods, strict=True)
            u = jnp.stack(
                [d if p is None else shortest_way(d, with_rank_of(p, d)) for d, p in ways], axis=-1
            )
        return u / with_rank_of(self.scale, u)

    def units(self) -> Float[Array, " terms"]:
        """Returns the scale of each term: the product of powers of the columns' scales."""
        powers = jnp.asarray(np.array(self.terms, dtype=int), self.scale.dtype)
        limits = jnp.finfo(self.scale.dtype)
        return jnp.clip(jnp.prod(self.scale[None, :] ** powers, axis=-1), limits.tiny, limits.max)

    def pairs(self) -> np.ndarray:
        """Returns the index in `products` of the product of terms a and b, shape (terms, terms)."""
        where = {power: i for i, power in enumerate(self.products)}
        rows = [[tuple(map(operator.add, a, b)) for b in self.terms] for a in self.terms]
        return np.array([[where[power] for power in row] for row in rows])

    def shift(self, delta: Float[Array, "*rows dim"]) -> Float[Array, "*rows terms terms"]:
        r"""Returns the matrix that maps the terms of u to those of u + δ, δ = `delta`.

        $(u + \delta)^a = \sum_b \binom{a}{b} \delta^{a - b} u^b$; row a, column b.
        """
        where = {power: i for i, power in enumerate(self.terms)}
        factors = np.zeros((len(where), len(where)))
        places = np.zeros(factors.shape, int)
        for (a, i), (b, j) in itertools.product(where.items(), repeat=2):
            if all(map(operator.ge, a, b)):
                factors[i, j] = math.prod(map(math.comb, a, b))
                places[i, j] = where[tuple(map(operator.sub, a, b))]
        powers = monomials(delta, self.terms)[..., places]
        return with_rank_of(jnp.asarray(factors, delta.dtype), powers) * powers


def with_rank_of(array: Array, other: Array) -> Array:
    """The array with leading axes of size 1 added, up to the number of axes of the other."""
    return array.reshape((1,) * max(0, other.ndim - array.ndim) + array.shape)


def exponents(dim: int, degree: int) -> list[tuple[int, ...]]:
    """The exponents of `dim` variables up to a degree: the constant, the linear ones, ..."""
    found = []
    for total in range(degree + 1):
        for columns in itertools.combinations_with_replacement(range(dim), total):
            found.append(tuple(columns.count(a) for a in range(dim)))
    return found


def monomials(u: Float[Array, "*rows dim"], powers: list[tuple[int, ...]]) -> Array:
    """Returns $u^a$ for each exponent a in `powers`, along the last axis.

    `powers` must be all exponents up to a degree, as `exponents` gives them.
    """
    dim, degree = u.shape[-1], sum(powers[-1])
    level = jnp.ones((*u.shape[:-1], 1), u.dtype)
    found = [level]
    for below in range(degree):
        # those with first column a: u_a times the ones of lower degree in columns from a, which
        # come last in their order
        sizes = [math.comb(dim - a - 1 + below, below) for a in range(dim)]
        blocks = [u[..., a : a + 1] * level[..., -size:] for a, size in enumerate(sizes)]
        level = jnp.concatenate(blocks, axis=-1)
        found.append(level)
    return jnp.concatenate(found, axis=-1)
