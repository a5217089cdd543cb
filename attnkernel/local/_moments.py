r"""Moments of local polynomials: attention to the values $u^a$, |a| ≤ 2p, and $u^a v$, |a| ≤ p.

Queries are processed in chunks of neighbours, and u is measured from the centre of a chunk:
measured from a distant origin, k − q would lose its digits to rounding.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._core.symbolic_sizes import is_at_most, is_symbolic
from ..attention import Auto, KernelPriorRule, attend
from ..methods import Blockwise, Dense, Method
from ..priors import AtPositions
from ._bounded_moments import bounded_moments, method_of_moments
from ._monomials import Basis, monomials, with_rank_of

# Numbers, queries x keys x width of the values, up to which each query is the centre of its own
# chunk, which leaves no rounding: 5 times slower than chunks at 500 queries and keys (2 ms).
MAX_CENTRED_NUMBERS = 2**20
# Beyond that, chunks have at least so many queries, and more if there would be too many chunks.
# 2000 queries and keys, CPU time in chunks of 8: 5.0 ms, 32: 3.2 ms, 128: 3.0 ms.
MIN_CHUNK_QUERIES = 32
MAX_CHUNKS = 512
# Evaluated at once: pairs of queries and keys, and values of keys. They bound the memory to 4 MB
# each; from 2**16 to 2**24 the time is the same.
MAX_CHUNK_PAIRS = 2**20
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

    **Raises:** `ValueError` if such a method was named and does not support these.
    """
    kernel, prior, rule = parts
    own = method_of_moments(q, k, v, parts, method, sum(basis.products[-1]))
    if own is not None:
        gram, right, log_mass = bounded_moments(q, k, v, centre, parts, own, basis)
        return gram, right, log_mass, jnp.zeros_like(gram[..., 0])
    v = v - centre
    rows, keys = q.shape[-2], k.shape[-2]
    size, at_once = _chunk_sizes(q, k, v, basis)
    if isinstance(method, Auto) or method.has_moments:
        method = Dense() if is_at_most(size * keys, MAX_CHUNK_PAIRS) else Blockwise()
    columns = list(basis.columns)

    def moments_of_chunk(
        chunk: Float[Array, "*batch size dim"], rows: Int[Array, " size"]
    ) -> tuple[Array, Array, Array, Array]:
        here = chunk[..., columns]
        finite = jnp.all(jnp.isfinite(here), axis=-1, keepdims=True)
        centre = jnp.mean(here, axis=-2, keepdims=True, where=finite)
        if size > 1:  # the shift carries the derivative in each query
            centre = jax.lax.stop_gradient(centre)
        u = with_rank_of(k[..., columns], centre) - with_rank_of(centre, k)
        u = u / with_rank_of(basis.scale, u)
        products, terms = monomials(u, basis.products), monomials(u, basis.terms)
        of_terms = with_rank_of(terms[..., None], v[..., None]) * with_rank_of(
            v[..., None, :], u[..., None]
        )
        of_terms = of_terms.reshape(*of_terms.shape[:-2], math.prod(of_terms.shape[-2:]))
        means, log_mass = attend(
            chunk,
            k,
            _broadcast_and_concatenate(products, of_terms),
            kernel=kernel,
            prior=None if prior is None else AtPositions(prior, rows, jnp.arange(keys)),
            rule=rule,
            method=method,
            return_log_mass=True,
        )
        gram, right = jnp.split(means, [len(basis.products)], axis=-1)
        right = right.reshape(*right.shape[:-1], len(basis.terms), v.shape[-1])
        gram = gram[..., basis.pairs()]
        rounding = jnp.zeros_like(gram[..., 0])
        if size > 1:
            shift = basis.shift((centre - here) / with_rank_of(basis.scale, here))
            gram, rounding = _shift_gram(shift, gram), _shift_rounding_bound(shift, gram)
            right = jnp.matmul(shift, right, precision="highest")
        return gram, right, log_mass, rounding

    def moments_of_row(point: Float[Array, "*batch dim"], row: Array) -> tuple[Array, ...]:
        gram, right, log_mass, rounding = moments_of_chunk(point[..., None, :], row[None])
        return gram[..., 0, :, :], right[..., 0, :, :], log_mass[..., 0], rounding[..., 0, :]

    if size == 1 and at_once == rows:  # no loop, no permutation
        by_row = jax.vmap(moments_of_row, (-2, 0), (-3, -3, -1, -2))
        gram, right, log_mass, rounding = by_row(q, jnp.arange(rows))
        return gram, right, log_mass, rounding
    order = _order_by_neighbour(jax.lax.stop_gradient(q[..., columns]), size)
    chunks = -(-rows // (size * at_once))
    numbers = order[jnp.minimum(jnp.arange(chunks * at_once * size), rows - 1)]
    numbers = numbers.reshape(chunks, at_once, size)

    def moments_of_rows(rows: Int[Array, "chunks size"]) -> tuple[Array, Array, Array, Array]:
        return jax.vmap(lambda rows: moments_of_chunk(q[..., rows, :], rows))(rows)

    found = jax.lax.map(jax.checkpoint(moments_of_rows, prevent_cse=False), numbers)
    batch, back = found[2].ndim - 3, jnp.argsort(order)

    def to_query_order(leaf: Array) -> Array:
        """(chunks, at_once, *batch, size, ...) to (*batch, queries, ...)."""
        leaf = jnp.moveaxis(leaf, (0, 1), (batch, batch + 1))
        shape = (*leaf.shape[:batch], numbers.size, *leaf.shape[batch + 3 :])
        leaf = leaf.reshape(shape)
        return jnp.take(leaf, back, axis=batch)

    gram, right, log_mass, rounding = map(to_query_order, found)
    return gram, right, log_mass, rounding


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
    is_small = rows * keys * width <= MAX_CENTRED_NUMBERS
    size = 1 if is_small else min(rows, max(MIN_CHUNK_QUERIES, -(-rows // MAX_CHUNKS)))
    most = min(
        MAX_CHUNK_PAIRS // max(1, size * keys),
        MAX_CHUNK_NUMBERS // max(1, batch * keys * width),
    )
    return size, max(1, min(-(-rows // size), most))


def _shift_gram(shift: Array, gram: Array) -> Float[Array, "*queries terms terms"]:
    r"""Returns $T G T^\top$ with T = `shift` and G = `gram`: the means of $\varphi \varphi^\top$
    about the centre of a chunk (G), moved to each query by $\varphi(k - q) = T\, \varphi(k -
    \mathrm{centre})$.
    """
    moved = functools.partial(jnp.matmul, shift, precision="highest")
    return moved(moved(gram).swapaxes(-1, -2))


def _shift_rounding_bound(shift: Array, gram: Array) -> Float[Array, "*queries terms"]:
    r"""Returns a diagonal D that bounds the rounding error E of $T G T^\top$, with T = `shift` and
    G = `gram`: E + D is positive semidefinite.

    $|E_{ab}|$ is a few eps times $M_{ab} \le \sqrt{M_{aa} M_{bb}}$, $M = |T|\,|G|\,|T|^\top$. So D
    is the diagonal of M, times eps and the number of terms.
    """
    terms, eps = gram.shape[-1], float(jnp.finfo(gram.dtype).eps)
    sizes = _shift_gram(*map(jnp.abs, jax.lax.stop_gradient((shift, gram))))
    return 8 * terms * eps * jnp.diagonal(sizes, axis1=-2, axis2=-1)


def _broadcast_and_concatenate(*arrays: Array) -> Array:
    """Concatenates arrays along the last axis; the axes before it broadcast."""
    shape = jnp.broadcast_shapes(*(array.shape[:-1] for array in arrays))
    wide = [jnp.broadcast_to(array, (*shape, array.shape[-1])) for array in arrays]
    return jnp.concatenate(wide, axis=-1)


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
    for level in range(levels + 1):
        groups = points[order].reshape(2**level, -1, dim)
        widest = jnp.argmax(jnp.max(groups, axis=1) - jnp.min(groups, axis=1), axis=1)
        along = jnp.take_along_axis(groups, widest[:, None, None], axis=2)[..., 0]
        inner = jnp.argsort(along, axis=1)
        order = jnp.take_along_axis(order.reshape(2**level, -1), inner, axis=1).ravel()
    if not short:
        return order
    # the last row was repeated: its first copy is kept
    place = jnp.full(rows, len(order)).at[order].min(jnp.arange(len(order)))
    return jnp.argsort(place)
