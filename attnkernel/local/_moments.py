r"""Moments of local polynomials: attention to the values $u^a$, |a| ≤ 2p, and $u^a v$, |a| ≤ p.

Queries are processed in chunks of neighbours, and u is measured from the centre of a chunk:
measured from a distant origin, k − q would lose its digits to rounding.

A method that bounds the errors of its moments gives them in less than all pairs. They are used
where what is solved from them is certified. With the normal equations $S \beta = b$ and bounds
$\delta_S$, $\delta_b$ on the errors of $\hat S$ and $\hat b$, entry by entry,

$$ |\hat\beta - \beta| \le A\, (\delta_b + \delta_S |\hat\beta|)
   + A\, \delta_S\, |\hat\beta - \beta|, \qquad A = |\hat S^{-1}|, $$

whose last term is at most $\rho\, \|\hat\beta - \beta\|_\infty$, ρ the norm of $A\, \delta_S$. All
is in units in which the diagonal of S is 1. Queries that are not certified are recomputed.
"""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from .._core.tracing import is_at_most, is_symbolic, stop_gradients
from ..attention import (
    Auto,
    KernelPriorRule,
    attend,
    first_head,
    map_batch,
    task_of,
    zero_nonfinite_queries,
)
from ..kernels import Gaussian
from ..methods import (
    Blockwise,
    Dense,
    Method,
    Standardised,
    WeightedPowerMeans,
    exact_moments,
    map_selected_queries,
)
from ..priors import AtPositions, pair_mask_of
from ..rules import Softmax
from ._monomials import Basis, cholesky_solver, exponents, monomials, with_rank_of


def method_of_moments(
    q: Array, k: Array, v: Array, parts: KernelPriorRule, method: Method, degree: int
) -> Method | None:
    """Returns the method that sums the moments up to a degree itself, `Auto()` resolved.

    None if the method has no moments of its own, or there are no keys.

    **Raises:** `ValueError` if the named method has moments, but does not support these.
    """
    task = task_of(q, k, v, *map(first_head, parts), degree=degree)
    method = method.resolve(task) if isinstance(method, Auto) else method
    if not method.has_moments or k.shape[-2] == 0:
        return None
    if (reason := method.unsupported_reason(task)) is not None:
        name = type(method).__name__
        raise ValueError(f"{name} cannot evaluate this: {reason}. Try method=ak.attention.Auto().")
    return method


def _bounded_moments(
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
        values = Standardised.of(v, pair_mask_of(parts[1]))
        found = method.moments(q, k, values.z, parts, degree=degree, scale=scale)
        certified = _is_certified(found, values, order)
        exact = functools.partial(exact_moments, degree=degree, scale=scale)
        shapes = (), found.means.shape[1:]
        log_mass, means = map_selected_queries(exact, shapes, ~certified, (q,), k, values.z, parts)
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


def _is_certified(
    found: WeightedPowerMeans, values: Standardised, order: int
) -> Bool[Array, " queries"]:
    """Whether all that is solved from the moments of a query is within its tolerance.

    `found.tol` bounds four kinds of errors:

    - the constant of β, as the error of a prediction (`Standardised.error_scale`);
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
    of_beta = [values.error_scale(beta[:, 0])[:, None, :]]
    if order:
        slopes = jnp.maximum(jnp.abs(beta[:, 1:]), 1e-3 * values.typical[None, None, :])
        of_beta.append(jnp.where(values.typical[None, None, :] > 0, slopes, jnp.inf))
    diagonal = jnp.sqrt(jnp.stack([inverse[:, i, i] for i in a], axis=1))
    accepted = [jnp.concatenate(of_beta, axis=1), diagonal[:, :, None] * diagonal[:, None, :]]
    within = jnp.all(delta <= found.tol * jnp.concatenate(accepted, axis=2), axis=(1, 2))
    max_contraction = 0.5  # ρ of a certified query
    return (
        within
        & (contraction < max_contraction)
        & (error[:, 0] <= found.tol)
        & jnp.all(size > 0, axis=1)
    )


def _product(
    left: Float[Array, "queries rows inner"], right: Float[Array, "queries inner columns"]
) -> Float[Array, "queries rows columns"]:
    """Returns the product of two small matrices of each query, by elementwise operations."""
    return jnp.sum(left[:, :, :, None] * right[:, None, :, :], axis=2)


# Numbers, queries x keys x width of the values, up to which each query is the centre of its own
# chunk, which leaves no rounding: 5 times slower than chunks at 500 queries and keys (2 ms).
MAX_CENTRED_NUMBERS = 2**20
# Evaluated at once: pairs of queries and keys, and values of keys, 4 MB each. From 2**16 to 2**24
# the time is the same.
MAX_CHUNK_NUMBERS = 2**20


def local_moments(
    q: Float[Array, "*#batch queries dim"],
    k: Float[Array, "*#batch keys dim"],
    v: Float[Array, "*#batch keys dim_v"],
    centre: Float[Array, "*#batch one dim_v"],
    parts: KernelPriorRule,
    method: Method,
    basis: Basis,
) -> tuple[Array, Array, Float[Array, "*batch queries"], Float[Array, "*batch queries terms"]]:
    r"""The means of $\varphi \varphi^\top$ and $\varphi (v - c)^\top$, log-mass, and rounding.

    $\varphi$ is of u = (k − q) / scale, and c is `centre`. Shapes (*batch, queries, terms, terms)
    and (*batch, queries, terms, dim_v). The rounding bounds the error that the shift from the
    centre of a chunk to each query leaves on the diagonal of the first, which may then not be
    positive definite.

    A method that has moments of its own, as `Fourier` has in one dimension, gives them.

    **Raises:** `ValueError` if such a method was named and does not support these moments.
    """
    kernel, prior, rule = parts
    own = method_of_moments(q, k, v, parts, method, sum(basis.products[-1]))
    if own is not None:
        gram, right, log_mass = _bounded_moments(q, k, v, centre, parts, own, basis)
        return gram, right, log_mass, jnp.zeros_like(gram[..., 0])
    v = v - centre
    rows, keys = q.shape[-2], k.shape[-2]
    size, at_once = _chunk_sizes(q, k, v, basis)
    if isinstance(method, Auto) or method.has_moments:
        method = Dense() if is_at_most(size * keys, MAX_CHUNK_NUMBERS) else Blockwise()
    columns = list(basis.columns)
    shares = size > 1 and q.ndim == 2 and len(columns) == q.shape[-1]
    is_gaussian = shares and _is_gaussian(parts, len(columns))

    def moments_of_chunk(
        chunk: Float[Array, "*batch size dim"], rows: Int[Array, " size"]
    ) -> tuple[Array, Array, Array, Array]:
        here = chunk[..., columns]
        finite = jnp.all(jnp.isfinite(here), axis=-1, keepdims=True)
        centre = jnp.mean(here, axis=-2, keepdims=True, where=finite)
        if size > 1:  # the shift carries the derivative in each query
            centre = jax.lax.stop_gradient(centre)
        u = basis.displacement(k[..., columns], centre)
        seen = None if prior is None else AtPositions(prior, rows, jnp.arange(keys))
        call = (basis.products, basis.terms), (kernel, seen, rule), method, (chunk, k, u, v)
        at = jnp.where(finite, basis.displacement(here, centre), 0.0), basis.scale
        gram, right, log_mass = _gaussian_means(*call, at) if is_gaussian else _power_means(*call)
        gram = gram[..., 0][..., basis.pairs()]
        rounding = jnp.zeros_like(gram[..., 0])
        if size > 1:
            shift = basis.shift((centre - here) / with_rank_of(basis.scale, here))
            # |E_ab| of the moved S is a few eps times M_ab ≤ √(M_aa M_bb), M = |T| |S| |T|ᵀ: with D
            # the diagonal of M times eps and the number of terms, E + D is positive semidefinite
            sizes = _shift_gram(*map(jnp.abs, jax.lax.stop_gradient((shift, gram))))
            few_eps = 8 * gram.shape[-1] * float(jnp.finfo(gram.dtype).eps)
            gram, rounding = _shift_gram(shift, gram), few_eps * jnp.diagonal(sizes, 0, -2, -1)
            right = jnp.matmul(shift, right, precision="highest")
        return gram, right, log_mass, rounding

    def moments_of_row(point: Array, row: Array) -> tuple[Array, Array, Array, Array]:
        gram, right, log_mass, rounding = moments_of_chunk(point[..., None, :], row[None])
        return gram[..., 0, :, :], right[..., 0, :, :], log_mass[..., 0], rounding[..., 0, :]

    if size == 1 and at_once == rows:  # no loop, no permutation
        by_row = jax.vmap(moments_of_row, (-2, 0), (-3, -3, -1, -2))
        return by_row(q, jnp.arange(rows))
    order = _order_by_neighbour(jax.lax.stop_gradient(q[..., columns]), size)
    chunks = -(-rows // (size * at_once))
    numbers = order[jnp.minimum(jnp.arange(chunks * at_once * size), rows - 1)]
    numbers = numbers.reshape(chunks, at_once, size)

    moments_of_rows = jax.vmap(lambda rows: moments_of_chunk(q[..., rows, :], rows))
    stored = jax.checkpoint_policies.save_only_these_names("means")  # those of `_gaussian_means`
    checkpointed = jax.checkpoint(moments_of_rows, prevent_cse=False, policy=stored)
    found = jax.lax.map(checkpointed, numbers)
    batch, back = found[2].ndim - 3, jnp.argsort(order)

    def to_query_order(leaf: Array) -> Array:
        """(chunks, at_once, *batch, size, ...) to (*batch, queries, ...)."""
        leaf = jnp.moveaxis(leaf, (0, 1), (batch, batch + 1))
        leaf = leaf.reshape(*leaf.shape[:batch], numbers.size, *leaf.shape[batch + 3 :])
        return jnp.take(leaf, back, axis=batch)

    gram, right, log_mass, rounding = map(to_query_order, found)
    return gram, right, log_mass, rounding


def _is_gaussian(parts: KernelPriorRule, dim: int) -> bool:
    """Whether log-weights are those of a Gaussian of up to three columns, without a metric, over τ,
    plus what does not depend on ℓ."""
    kernel, prior, rule = parts
    is_plain = type(kernel) is Gaussian and kernel.metric is None and type(rule) is Softmax
    return is_plain and dim <= 3 and getattr(prior, "is_additive", prior is None)


def _power_means(powers: tuple, weights: KernelPriorRule, method: Method, arrays: tuple) -> tuple:
    """The means of u^a and of u^a v, of shapes (*rows, powers, 1) and (*rows, powers, dim_v), for a
    in the first and in the second of `powers`, and the log-mass. `arrays`: q, k, u and v."""
    q, k, u, v = arrays
    products, terms = (monomials(u, some) for some in powers)
    of_terms = with_rank_of(terms[..., None], v[..., None]) * with_rank_of(
        v[..., None, :], u[..., None]
    )
    parts = products, of_terms.reshape(*of_terms.shape[:-2], math.prod(of_terms.shape[-2:]))
    shape = jnp.broadcast_shapes(*(part.shape[:-1] for part in parts))
    values = jnp.concatenate([jnp.broadcast_to(p, (*shape, p.shape[-1])) for p in parts], axis=-1)
    named = dict(zip(("kernel", "prior", "rule"), weights, strict=True))
    means, log_mass = attend(q, k, values, **named, method=method, return_log_mass=True)
    gram, right = jnp.split(means, [len(powers[0])], axis=-1)
    right = right.reshape(*right.shape[:-1], len(powers[1]), v.shape[-1])
    return gram[..., None], right, log_mass


@eqx.filter_custom_jvp
def _gaussian_means(powers: tuple, weights: Any, method: Any, arrays: Any, at: Any) -> tuple:
    r"""`_power_means` of a Gaussian, whose derivatives in ℓ are means of two degrees more:

    $$ \frac{\partial\, \overline{f}}{\partial \log \ell_c} = \frac{s_c^2}{\tau \ell_c^2} \big(
       \overline{d_c^2 f} - \overline{d_c^2}\; \overline{f} \big), \qquad d = (k - q) / s = u - a $$

    `at`: a, of the queries, and the scale s. A search of order 1 takes 0.64 and 0.51 of the time
    for 2000 and 6433 rows of two columns, 0.61 for 3000 of three; for 2000 of four it would take
    1.2 of it.
    """
    return _power_means(powers, weights, method, arrays)


@_gaussian_means.def_jvp
def _(primals: tuple, tangents: tuple) -> tuple[tuple, tuple]:
    """Returns the means and the log-mass, and their tangents."""
    if jax.tree.leaves((tangents[1][1:], tangents[2:])):
        return eqx.filter_jvp(_power_means, primals[:4], tangents[:4])
    powers, (kernel, _, rule), *_, (away, scale) = primals
    log_of = lambda kernel: kernel.lengthscale_parameter.log().astype(scale.dtype)  # noqa: E731
    log, move = eqx.filter_jvp(log_of, (kernel,), tangents[1][:1])
    unit = move * (scale / jnp.exp(log)) ** 2 / jnp.asarray(rule.temperature, scale.dtype)
    more = tuple(exponents(len(scale), sum(some[-1]) + 2) for some in powers)
    *wide, log_mass = checkpoint_name(_power_means(more, *primals[1:4]), "means")

    # a query that is not finite has no slope, in reverse mode neither
    finite = jnp.isfinite(wide[0][..., :1, :])

    def moved(means: Array, known: list, some: list) -> Array:
        """The means of Σ_c `unit`_c d_c² u^a for a in `some`, from those of `known`."""
        raised = [[np.eye(len(scale), dtype=int) * r + a for a in some] for r in range(3)]
        places = [[[known.index(tuple(a)) for a in of_c] for of_c in each] for each in raised]
        means = jnp.where(finite, means, 0.0)[..., np.array(places), :]
        of_0, of_1, of_2 = jnp.moveaxis(means, -4, 0)
        here, units = (with_rank_of(a, of_0) for a in (away[:, None, :, None], unit[:, None]))
        total = jnp.sum(units * (of_2 - 2.0 * here * of_1 + here**2 * of_0), axis=-2)
        return jnp.where(finite, total, 0.0)

    mean = moved(wide[0], more[0], powers[0][:1])
    means = [of[..., : len(some), :] for of, some in zip(wide, powers, strict=True)]
    parts: Any = zip(wide, more, powers, means, strict=True)
    changes = (moved(*of) - mean * jnp.where(finite, one, 0.0) for *of, one in parts)
    return (*means, log_mass), (*changes, mean[..., 0, 0])


def _chunk_sizes(q: Array, k: Array, v: Array, basis: Basis) -> tuple[int, int]:
    """Returns the number of queries in a chunk, and how many chunks are evaluated at once.

    The arguments are those of `local_moments`.
    """
    rows, keys = q.shape[-2], k.shape[-2]
    batch = math.prod(jnp.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2]))
    width = len(basis.products) + len(basis.terms) * v.shape[-1]
    if is_symbolic(batch, rows, keys):
        # constant memory, and 6 times slower than chunks at 1300 queries and 1100 keys
        return 1, 1
    # no shift of the centre is a polynomial on a circle
    is_small = basis.has_circles or rows * keys * width <= MAX_CENTRED_NUMBERS
    # Beyond that, chunks have at least so many queries, and more if there would be too many chunks.
    # 2000 queries and keys, CPU time in chunks of 8: 5.0 ms, 32: 3.2 ms, 128: 3.0 ms.
    max_chunks = 512
    size = 1 if is_small else min(rows, max(32, -(-rows // max_chunks)))
    most = MAX_CHUNK_NUMBERS // max(1, size * keys, batch * keys * width)
    return size, max(1, min(-(-rows // size), most))


def _shift_gram(shift: Array, gram: Array) -> Float[Array, "*queries terms terms"]:
    r"""Returns $T G T^\top$ with T = `shift` and G = `gram`: the means of $\varphi \varphi^\top$
    about the centre of a chunk (G), moved to each query by $\varphi(k - q) = T\, \varphi(k -
    \mathrm{centre})$.
    """
    moved = functools.partial(jnp.matmul, shift, precision="highest")
    return moved(moved(gram).swapaxes(-1, -2))


def _order_by_neighbour(
    points: Float[Array, "*batch queries dim"], size: int
) -> Int[Array, " queries"]:
    """Returns a permutation of the rows of `points` in which each `size` consecutive ones are
    neighbours.

    Splits at the median along the widest column, recursively (a k-d tree). A batch keeps its order:
    in sequences, consecutive rows are neighbours.
    """
    rows, dim = points.shape[-2:]
    if size == 1 or points.ndim > 2 or not dim:
        return jnp.arange(rows)
    levels = 0 if dim == 1 else max(0, math.ceil(math.log2(rows / size)) - 1)
    short = -rows % 2**levels
    order = jnp.pad(jnp.arange(rows), (0, short), mode="edge")

    def split(level: Int[Array, ""], order: Int[Array, " rows"]) -> Int[Array, " rows"]:
        group = jnp.arange(len(order)) // (len(order) >> level)
        at = points[order]
        high = jax.ops.segment_max(at, group, 2**levels)
        widest = jnp.argmax(high - jax.ops.segment_min(at, group, 2**levels), axis=1)
        along = jnp.take_along_axis(at, widest[group][:, None], axis=1)[:, 0]
        return jax.lax.sort((group, along, order), num_keys=2)[2]

    order = jax.lax.fori_loop(0, levels + 1, split, order)
    if not short:
        return order
    # the last row was repeated: its first copy is kept
    place = jnp.full(rows, len(order)).at[order].min(jnp.arange(len(order)))
    return jnp.argsort(place)
