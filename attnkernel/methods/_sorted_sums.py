r"""The sums of one query over sorted keys: to its right, to its left, and of its ties.

The left is the right of the mirrored line. With r the distance in lengthscales, a compact kernel
is on each side a polynomial of z = 1 − r ∈ [0, 1], the distance from the end of its support:

$$ \sum_j p(z_j)\, v_j = \sum_b \frac{p^{(b)}(z)}{b!} \sum_j (z_j - z)^b\, v_j $$

over a piece of a side, with z that of its last key, about which the moments are known: sums of
terms of one sign, for v = 1. The signs of p itself cost a digit at most: the absolute terms of
$z^s (2 - z)^s$ add up to $z^s (2 + z)^s$, which is $3^s$ times as much at z = 1 and less before.
Derivatives in the query and the lengthscale are those of the polynomial, the moments constant.
"""

import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.mesh_axes import vary_alike
from ._segmented_scan import Cells, prefix_scan, running_moments, running_sums
from ._softmax_state import SoftmaxState

Index = Int[Array, " queries"]


class Line(NamedTuple):
    """Queries and keys, each in order, in units in which r is `scale` times the distance."""

    q: Float[Array, " queries"]
    k: Float[Array, " keys"]
    values: Float[Array, "width keys"]  # the last row is the mass: 1, or 0 of a hidden key
    scale: Float[Array, ""]
    own: Index | None  # the place of the key that the query leaves out
    below: Index  # number of keys less than the query
    upto: Index  # number of keys not greater than the query

    @property
    def own_is_tie(self) -> Bool[Array, " queries"]:
        """Whether the key to leave out coincides with the query."""
        assert self.own is not None
        return (self.below <= self.own) & (self.own < self.upto)


def compact_sums(
    line: Line, reach: tuple[Index, Index], coefficients: tuple[float, ...], cusp: bool
) -> SoftmaxState:
    """Returns the softmax state of each query for a compact kernel.

    `reach`: the first key within its support, and the first key after it. `coefficients`: those
    of p, from degree 0. `cusp`: whether the kernel is not smooth at r = 0. If so, keys equal to
    the query weigh 1 and have no derivative but in v.
    """
    left, right, keys = line.below, line.upto, len(line.k)
    if not cusp:
        left = right = line.below
        if line.own is not None:
            left = jnp.where(line.own_is_tie, line.own, left)
            right = jnp.where(line.own_is_tie, line.own + 1, right)
    start = jnp.stack([right, keys - left])
    stop = jnp.stack([reach[1], keys - reach[0]])

    def of_side(q: Array, k: Array, values: Array, start: Array, stop: Array) -> Array:
        return _interval_sums(q, k, values, line.scale, (start, stop), coefficients)

    sums = jnp.sum(jax.vmap(of_side)(*_mirrored(line), start, stop), axis=0)
    if cusp:
        sums = sums + _tie_sums(line)
    if line.own is not None:
        apart = (reach[0] <= line.own) & (line.own < reach[1]) & ~line.own_is_tie
        sums = _nan_where_own_is_inside(line, apart, sums)
    return SoftmaxState(jnp.zeros_like(sums[-1]), sums[-1], sums[:-1].T)


def laplace_sums(line: Line, temperature: ArrayLike) -> SoftmaxState:
    r"""Returns the softmax state of each query for the Laplace kernel, by decaying running sums.

    $$ M_i = v_i + e^{-(k_i - k_{i-1}) / \ell} M_{i-1} $$

    has a mass of at least 1: its logarithm at q is exact however far q is from all keys.
    """
    scale, most = jnp.divide(line.scale, temperature), len(line.k) - 1

    def merge(ours: tuple[Array, Array], theirs: tuple[Array, Array]) -> tuple[Array, Array]:
        (before, old), (decay, new) = ours, theirs
        return before * decay, old * decay[None, :] + new

    def of_side(q: Array, k: Array, values: Array, start: Array) -> SoftmaxState:
        steps = jnp.append(k[1:] - k[:-1], 0.0)[::-1]
        sums = prefix_scan(merge, (jnp.exp(-steps * scale), values[:, ::-1]))[1][:, ::-1]
        some, nearest = start <= most, jnp.minimum(start, most)
        sums = jnp.where(some[None, :], sums[:, nearest], 0.0)
        r = jnp.where(some, k[nearest] - q, 0.0) * scale
        r = jnp.abs(r)  # or compilers fuse the product, unrounded, into differences with a maximum
        return SoftmaxState(-r, sums[-1], sums[:-1].T)

    start = jnp.stack([line.upto, most + 1 - line.below])
    sides = jax.vmap(of_side)(*_mirrored(line), start)
    right, left = (jax.tree.map(operator.itemgetter(i), sides) for i in (0, 1))
    ties = _tie_sums(line)
    if line.own is not None:
        ties = _nan_where_own_is_inside(line, ~line.own_is_tie, ties)
    return left.merge(right).merge(SoftmaxState(jnp.zeros_like(ties[-1]), ties[-1], ties[:-1].T))


def _mirrored(line: Line) -> tuple[Array, Array, Array]:
    """Returns queries, keys and values, each stacked with those of the line reflected at 0.

    The reflected keys and values are in reverse order, so that these keys ascend too.
    """
    return (
        jnp.stack([line.q, -line.q]),
        jnp.stack([line.k, -line.k[::-1]]),
        jnp.stack([line.values, line.values[:, ::-1]]),
    )


def _nan_where_own_is_inside(
    line: Line, apart: Array, sums: Array
) -> Float[Array, "width queries"]:
    """Returns the sums; NaN for a query whose excluded key is visible and differs from the query.

    `apart`: whether the excluded key differs from the query and lies within its support.
    """
    assert line.own is not None
    return jnp.where((apart & (line.values[-1, line.own] > 0))[None, :], jnp.nan, sums)


def _interval_sums(
    q: Float[Array, " queries"],
    k: Float[Array, " keys"],
    values: Float[Array, "width keys"],
    scale: Float[Array, ""],
    interval: tuple[Index, Index],
    coefficients: tuple[float, ...],
) -> Float[Array, "width queries"]:
    r"""Returns $\sum_j K(q_i, k_j)\, v_j$ over an interval of sorted keys, none below $q_i$.

    `interval`: the first key of each query, and the key after its last; all lie in the support.
    `scale`: 1 / ℓ. `coefficients`: those of the polynomial p, from degree 0.

    The keys in reach span at most 1/scale, the width of a cell. So they are the end of a cell, at
    most one full cell, and the beginning of another; or the end or beginning of a single cell.
    """
    degree, unit = len(coefficients) - 1, jax.lax.stop_gradient(scale)
    cells = Cells.of_width_below(jax.lax.stop_gradient(k), unit)
    distance = (k[cells.last] - k) * unit
    powers = jnp.stack([distance**a for a in range(degree + 1)])
    to_end = running_sums(cells, powers[:, None, :] * values[None], reverse=True)
    from_start = running_moments(cells, k, unit, values, degree)

    most, some = len(k) - 1, interval[0] < interval[1]
    start, last = jnp.minimum(interval[0], most), jnp.maximum(interval[1] - 1, 0)
    end = cells.last[start]
    following = jnp.minimum(end + 1, most)
    least = jnp.finfo(values.dtype).eps / 2

    def piece(
        moments: Float[Array, "degrees width keys"], at: Index, edge: Index, used: Array
    ) -> Float[Array, "width queries"]:
        """From moments held at a key `at`, about the last key of the piece, `edge`."""
        used = used & some
        z = jnp.where(used, 1.0 - (k[edge] - q) * scale, 0.5)
        # a key at the very end of the support is in reach, whatever the rounding here
        z = z + jax.lax.stop_gradient(jnp.maximum(z, least) - z)
        terms = _taylor_factors(coefficients, z, scale / unit)[:, None, :] * moments[:, :, at]
        return jnp.where(used[None, :], jnp.sum(terms, axis=0), 0.0)

    return (
        piece(to_end, start, end, end <= last)
        + piece(to_end, following, cells.last[following], cells.first[last] > end + 1)
        + piece(from_start, last, last, end != last)
    )


def _taylor_factors(
    coefficients: tuple[float, ...], z: Float[Array, " queries"], stretch: Float[Array, ""]
) -> Float[Array, "degrees queries"]:
    r"""Returns the coefficients of $t^b$ in p(z + stretch t), for b from 0 to the degree of p.

    `coefficients`: those of p, from degree 0. `stretch`: its value is 1, but it carries the
    derivative in 1 / ℓ.
    """
    factors = []
    for b in range(len(coefficients)):
        slope = np.polyder(coefficients[::-1], b) / math.factorial(b)
        factors.append(jnp.polyval(jnp.asarray(slope, z.dtype), z) * stretch**b)
    return jnp.stack(factors)


def _tie_sums(line: Line) -> Float[Array, "width queries"]:
    """Returns the sum of the values of the keys equal to each query, without its excluded key."""
    groups, most = Cells.of_equal(jax.lax.stop_gradient(line.k)), len(line.k) - 1
    to_end = running_sums(groups, line.values, reverse=True)
    below, upto, own = line.below, line.upto, line.own

    def taken(sums: Array, at: Index, used: Array) -> Array:
        return jnp.where(used[None, :], sums[:, jnp.clip(at, 0, most)], 0.0)

    if own is None:
        return taken(to_end, below, below < upto)
    from_start = running_sums(groups, line.values)
    first = jnp.where(line.own_is_tie, own + 1, below)  # all, where ours is not among them
    return taken(to_end, first, first < upto) + taken(
        from_start, own - 1, line.own_is_tie & (own > below)
    )


def bisect_first_false(
    holds: Callable[[Index], Bool[Array, " queries"]],
    keys: Float[Array, " keys"],
    queries: Float[Array, " queries"],
) -> Index:
    """Returns for each query the index of the first key for which `holds` is false, by bisection.

    `holds`: from an index of a key for each query to whether the condition holds there. It must
    be true up to some key and false from there on. The index is `len(keys)` if it never fails.
    """
    number = len(keys)

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) // 2
        right = holds(jnp.minimum(middle, number - 1)) & (low < high)
        return jnp.where(right, middle + 1, low), jnp.where(right, high, middle)

    bounds = jnp.zeros(len(queries), int), jnp.full(len(queries), number)
    bounds = vary_alike(bounds, keys, queries)
    return jax.lax.fori_loop(0, number.bit_length(), halve, bounds)[0]
