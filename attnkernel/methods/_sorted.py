r"""Sorted keys in one dimension: O((n + m) log n), by running sums that never subtract.

With r the distance in lengthscales, the compact kernels are polynomials of z = 1 − r ∈ [0, 1], the
distance from the end of the support, on each side of the query. The keys of a side are an interval
of the sorted keys: of each piece of it, within a cell, moments of z about the last key of the piece
are known; the polynomial is developed about that key. (Prefix sums of powers of k, by which this
is done in the literature, lose all digits to cancellation: Fan and Marron, *Fast implementations
of nonparametric curve estimators*, 1994.) Derivatives in the query and the lengthscale are those
of the polynomial, with the moments constant.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._rules import Rule, Softmax
from ..kernels import (
    Biweight,
    Boxcar,
    Epanechnikov,
    Kernel,
    Laplace,
    Triangular,
    Triweight,
)
from ..kernels._radial import Radial
from ..priors import And, HeldOut, LeaveOneOut, Prior
from ._base import Method, Task
from ._moments import Moments
from ._running import Cells, running_moments, running_sums, scan

# K as a polynomial of z = 1 − r, coefficients from degree 0
_POLYNOMIALS: dict[type[Kernel], tuple[float, ...]] = {
    Boxcar: (1.0,),
    Triangular: (0.0, 1.0),
    Epanechnikov: (0.0, 2.0, -1.0),
    Biweight: (0.0, 0.0, 4.0, -4.0, 1.0),
    Triweight: (0.0, 0.0, 0.0, 8.0, -12.0, 6.0, -1.0),
}


class Sorted(Method):
    r"""Sorts the keys and sums over intervals of them; exact, for d = 1, in O((n + m) log n).

    Takes `Laplace` and the compact kernels `Boxcar`, `Triangular`, `Epanechnikov`, `Biweight` and
    `Triweight`; no prior, `HeldOut`, `LeaveOneOut`, or several of them joined by `&`. No sum is
    ever formed by subtraction: every digit of the precision stays, wherever the points lie.

    With `LeaveOneOut`, queries and keys must be the same rows.
    """

    def refusal(self, task: Task) -> str | None:
        kernel, rule = task.kernel, task.rule
        if type(kernel) is not Laplace and type(kernel) not in _POLYNOMIALS:
            names = ", ".join(["Laplace", *(known.__name__ for known in _POLYNOMIALS)])
            return f"it takes the kernels {names}; got {type(kernel).__name__}"
        if task.dim != 1:
            return f"it sorts points of one dimension; got {task.dim}"
        if (masks := _masks(task.prior)) is None:
            return (
                "it takes no prior, or the masks HeldOut and LeaveOneOut, also joined by &; got "
                f"{task.prior!r}"
            )
        if masks.alone and task.queries != task.keys:
            return (
                "LeaveOneOut needs queries and keys that are the same rows; got "
                f"{task.queries} queries and {task.keys} keys"
            )
        if type(rule) is not Softmax:
            return f"it takes the rule Softmax; got {type(rule).__name__}"
        free = type(kernel) in (Laplace, Boxcar)
        one = isinstance(rule.temperature, float | int) and rule.temperature == 1
        if not free and not one:
            return (
                f"a {type(kernel).__name__} takes the temperature 1 alone, a number that is fixed"
            )
        return None

    def moments(
        self,
        q: Float[Array, "queries dim"],
        k: Float[Array, "keys dim"],
        v: Float[Array, "keys dim_v"],
        kernel: Kernel,
        prior: Prior | None,
        rule: Rule,
    ) -> Moments:
        assert isinstance(kernel, Radial)
        assert isinstance(rule, Softmax)
        masks = _masks(prior)
        assert masks is not None
        if q.shape[0] == 0 or k.shape[0] == 0:
            moments = Moments.of(jnp.zeros((q.shape[0], k.shape[0]), q.dtype), v)
            return moments.with_sink(rule.log_sink())
        line, back = _line(q[:, 0], k[:, 0], v, kernel, masks)
        if type(kernel) is Laplace:
            moments = _laplace(line, rule.temperature)
        else:
            moments = _compact(line, kernel)
        moments = jax.tree.map(lambda leaf: leaf[back], moments)
        return moments.with_sink(rule.log_sink())


class _Masks(NamedTuple):
    hidden: tuple[Bool[Array, " keys"], ...]
    alone: bool  # no query sees its own row


def _masks(prior: Prior | None) -> _Masks | None:
    """What a prior says, if it is made of hold-out and leave-one-out; otherwise None."""
    if prior is None:
        return _Masks((), False)
    if type(prior) is HeldOut:
        return _Masks((prior.held_out,), False)
    if type(prior) is LeaveOneOut:
        return _Masks((), True)
    if type(prior) is And:
        first, second = _masks(prior.first), _masks(prior.second)
        if first is not None and second is not None:
            return _Masks(first.hidden + second.hidden, first.alone or second.alone)
    return None


class _Line(NamedTuple):
    """Queries and keys in order, in units in which r is `scale` times the distance."""

    q: Float[Array, " queries"]
    k: Float[Array, " keys"]
    values: Float[Array, "width keys"]  # the last is the mass: 1, or 0 of a hidden key
    scale: Float[Array, ""]
    own: Int[Array, " queries"] | None  # where the key of the query's row is, if it is left out
    inside: Callable[[Int[Array, " queries"]], Bool[Array, " queries"]]
    below: Int[Array, " queries"]  # number of keys less than the query
    upto: Int[Array, " queries"]  # number of keys not greater than the query


def _line(
    q: Float[Array, " queries"],
    k: Float[Array, " keys"],
    v: Float[Array, "keys dim_v"],
    kernel: Radial,
    masks: _Masks,
) -> tuple[_Line, Int[Array, " queries"]]:
    """Everything in order, and the places of the queries therein."""
    values = jnp.concatenate([v, jnp.ones_like(v[:, :1])], axis=1).T
    order, rank = jnp.argsort(k), jnp.argsort(q)
    if masks.hidden:
        # hidden keys come last, as copies of the greatest that is seen, and weigh nothing
        hidden = jnp.stack(masks.hidden).any(axis=0)
        order = jnp.argsort(jnp.where(hidden, jnp.inf, k))
        greatest = jnp.max(jnp.where(hidden, -jnp.inf, k))
        greatest = jnp.where(hidden.all(), 0.0, greatest)
        k = jnp.where(hidden, jax.lax.stop_gradient(greatest), k)
        values = jnp.where(hidden[None, :], 0.0, values)
    own = _inverse(order)[rank] if masks.alone else None
    q, k, values = q[rank], k[order], values[:, order]

    near, inverse = kernel._units(q[:, None])
    scale = jnp.reshape(inverse, ())
    if kernel.metric_factor is not None:
        scale = scale * jnp.abs(kernel.metric_factor[0, 0])
    near = jnp.reshape(near, ())
    a, b = q * near, k * near
    below = _first_not(lambda mid: b[mid] < a, len(b), len(a))
    upto = _first_not(lambda mid: b[mid] <= a, len(b), len(a))

    fixed = jax.lax.stop_gradient((q, k))
    still = jax.tree.map(jax.lax.stop_gradient, kernel)

    def inside(mid: Int[Array, " queries"]) -> Bool[Array, " queries"]:
        points, keys = fixed[0][:, None], fixed[1][mid][:, None]
        return jax.vmap(still.log_pair)(points, keys) > -jnp.inf

    return _Line(a, b, values, scale, own, inside, below, upto), _inverse(rank)


def _inverse(order: Int[Array, " n"]) -> Int[Array, " n"]:
    index = jnp.arange(len(order), dtype=order.dtype)
    return jnp.zeros_like(order).at[order].set(index, unique_indices=True)


def _first_not(
    holds: Callable[[Int[Array, " queries"]], Bool[Array, " queries"]], keys: int, queries: int
) -> Int[Array, " queries"]:
    """For each query the first of the keys for which `holds` is false, by bisection."""

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) // 2
        right = holds(jnp.minimum(middle, keys - 1)) & (low < high)
        return jnp.where(right, middle + 1, low), jnp.where(right, high, middle)

    bounds = jnp.zeros(queries, int), jnp.full(queries, keys)
    return jax.lax.fori_loop(0, keys.bit_length(), halve, bounds)[0]


def _compact(line: _Line, kernel: Radial) -> Moments:
    """Sums over the keys of both sides; ties are apart where K has a cusp at r = 0."""
    coefficients, keys = _POLYNOMIALS[type(kernel)], len(line.k)
    q, inside = jax.lax.stop_gradient(line.q), line.inside
    points = jax.lax.stop_gradient(line.k)
    start = _first_not(lambda mid: (points[mid] < q) & ~inside(mid), keys, len(q))
    stop = _first_not(lambda mid: (points[mid] <= q) | inside(mid), keys, len(q))
    left, right, ties = line.below, line.upto, 0.0
    if not kernel.is_smooth:
        ties = _ties(line)
    elif line.own is None:
        right = line.below
    else:
        among = (line.below <= line.own) & (line.own < line.upto)
        left = jnp.where(among, line.own, line.below)
        right = jnp.where(among, line.own + 1, line.below)
    sums = _side(line.q, line.k, line.values, line.scale, right, stop, coefficients)
    mirror = -line.q, -line.k[::-1], line.values[:, ::-1], line.scale
    sums += _side(*mirror, keys - left, keys - start, coefficients)
    sums += ties
    return Moments(jnp.zeros_like(sums[-1]), sums[-1], sums[:-1].T)


def _side(
    q: Float[Array, " queries"],
    k: Float[Array, " keys"],
    values: Float[Array, "width keys"],
    scale: Float[Array, ""],
    start: Int[Array, " queries"],
    stop: Int[Array, " queries"],
    coefficients: tuple[float, ...],
) -> Float[Array, "width queries"]:
    r"""$\sum_j K(q_i, k_j)\, v_j$ over start ≤ j < stop, all of them in reach and not below $q_i$.

    The keys in reach span at most 1/scale. So they are the end of a cell, at most one full cell,
    and the beginning of another; or one of the first and the last, within a single cell.
    """
    degree, unit = len(coefficients) - 1, jax.lax.stop_gradient(scale)
    cells = Cells.narrow(jax.lax.stop_gradient(k), unit)
    distance = (k[cells.last] - k) * unit
    powers = jnp.stack([distance**a for a in range(degree + 1)])
    to_end = running_sums(cells, powers[:, None, :] * values[None], reverse=True)
    from_start = jnp.stack(running_moments(cells, k, unit, values, degree))

    most, some = len(k) - 1, start < stop
    start, last = jnp.minimum(start, most), jnp.maximum(stop - 1, 0)
    end = cells.last[start]
    following = jnp.minimum(end + 1, most)
    stretch = scale / unit

    def piece(
        moments: Float[Array, "degrees width keys"], at: Array, edge: Array, used: Array
    ) -> Float[Array, "width queries"]:
        """The sum over one piece, from its moments about the key `edge`, the last of it."""
        used = used & some
        z = jnp.where(used, 1.0 - (k[edge] - q) * scale, 0.5)
        # a key at the very end of the support: it is in reach, whatever the rounding here
        least = jnp.finfo(z.dtype).eps / 2
        z = z + jax.lax.stop_gradient(jnp.maximum(z, least) - z)
        terms = _development(coefficients, z, stretch)[:, None, :] * moments[:, :, at]
        return jnp.where(used[None, :], jnp.sum(terms, axis=0), 0.0)

    return (
        piece(to_end, start, end, end <= last)
        + piece(to_end, following, cells.last[following], cells.first[last] > end + 1)
        + piece(from_start, last, last, end != last)
    )


def _development(
    coefficients: tuple[float, ...], z: Float[Array, " queries"], stretch: Float[Array, ""]
) -> Float[Array, "degrees queries"]:
    """Coefficients c_b(z) of p(z + stretch t) = Σ_b c_b(z) t^b."""
    degree = len(coefficients) - 1
    powers = [jnp.ones_like(z)]
    for _ in range(degree):
        powers.append(powers[-1] * z)
    rows = []
    for b in range(degree + 1):
        terms = [
            math.comb(a, b) * coefficients[a] * powers[a - b]
            for a in range(b, degree + 1)
            if coefficients[a]
        ]
        rows.append(sum(terms, jnp.zeros_like(z)) * stretch**b)
    return jnp.stack(rows)


def _ties(line: _Line) -> Float[Array, "width queries"]:
    """Sums of the values of the keys that coincide with the query, without its own."""
    k, most = jax.lax.stop_gradient(line.k), len(line.k) - 1
    groups = Cells.of(jnp.concatenate([jnp.ones(1, bool), k[1:] != k[:-1]]))
    to_end = running_sums(groups, line.values, reverse=True)

    def taken(sums: Array, at: Array, used: Array) -> Array:
        return jnp.where(used[None, :], sums[:, jnp.clip(at, 0, most)], 0.0)

    below, upto, own = line.below, line.upto, line.own
    if own is None:
        return taken(to_end, below, below < upto)
    from_start = running_sums(groups, line.values)
    among = (below <= own) & (own < upto)
    first = jnp.where(among, own + 1, below)  # where ours is not among them, all
    return taken(to_end, first, first < upto) + taken(from_start, own - 1, among & (own > below))


def _laplace(line: _Line, temperature: ArrayLike) -> Moments:
    r"""Running sums that decay, from the left and from the right, and the ties.

    $$ M_i = v_i + e^{-(k_i - k_{i-1}) / \ell} M_{i-1} $$

    has a mass of at least 1: its logarithm at q is exact however far q is from all keys.
    """
    scale, most = jnp.divide(line.scale, temperature), len(line.k) - 1

    def side(q: Array, k: Array, values: Array, nearest: Array, some: Array) -> Moments:
        """From keys up to the nearest one below the query."""

        def merge(ours: tuple[Array, Array], theirs: tuple[Array, Array]) -> tuple[Array, Array]:
            (before, old), (decay, new) = ours, theirs
            return before * decay, old * decay[None, :] + new

        steps = jnp.concatenate([jnp.zeros_like(k[:1]), k[1:] - k[:-1]])
        sums = scan(merge, (jnp.exp(-steps * scale), values))[1]
        nearest = jnp.clip(nearest, 0, most)
        sums = jnp.where(some[None, :], sums[:, nearest], 0.0)
        far = jnp.where(some, q - k[nearest], 0.0) * scale
        return Moments(-far, sums[-1], sums[:-1].T)

    left = side(line.q, line.k, line.values, line.below - 1, line.below > 0)
    mirror = -line.q, -line.k[::-1], line.values[:, ::-1]
    right = side(*mirror, most - line.upto, line.upto <= most)
    ties = _ties(line)
    return left.merge(right).merge(Moments(jnp.zeros_like(ties[-1]), ties[-1], ties[:-1].T))
