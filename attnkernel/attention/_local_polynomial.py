r"""Local polynomials: at each query the polynomial in k − q that fits the values best, by weight.

$$ \hat\beta(q) = \arg\min_\beta \sum_j w_j(q)\,
   \Big\| v_j - \sum_{|a| \le p} \beta_a\, (k_j - q)^a \Big\|^2 $$

More statistics are more values: the moments are those that `attend` gives of the values $u^a$ for
$|a| \le 2p$ and $u^a v$ for $|a| \le p$, and a small system per query is left to solve. Queries go
a few neighbours at a time, and u is counted from their middle: counted from afar, the digits of
k − q would be lost among those of k.
"""

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import is_concrete, wider_dtype
from .._core.symbolic_sizes import is_at_most, is_symbolic
from ..methods import Blockwise, Dense, Fourier, Method
from ..priors import At
from ..rules import Softmax
from ._attend import attend, attention_weights
from ._auto import Auto
from ._jit import jit_if_pure
from ._monomials import Basis, like, monomials

_EXACT = 2**20  # numbers up to which each query has a middle of its own: itself
_FEW = 32  # queries about one middle, at least, of more pairs
_MIDDLES = 512  # beyond so many, more queries about each
_PAIRS = 2**20  # at a time
_UNROLLED = 4  # terms of a system that is solved by formulas
_FAR = 100.0  # (S⁻¹)₁₁, which is 1 for a local mean and was at most 41 inside the data
_NUMBERS = 2**20  # of values of keys, at a time: as many as stay near a core


class LocalFit(eqx.Module):
    r"""The local polynomials of queries.

    With $\varphi(d) = (d^a)_{|a| \le p}$, $S = \sum_j w_j \varphi(k_j - q) \varphi(k_j - q)^\top /
    \sum_j w_j$:

    - `coefficients`: $\hat\beta$, shape (*batch, queries, terms, dim_v): the value of the fit at q,
      its slope along each column (a polynomial's slope at q, not the derivative of the fit in q),
      and for p = 2 the coefficients of $d_a d_b$, a ≤ b.
    - `influence`: $S^{-1} e_1$, shape (*batch, queries, terms): the fit weighs key j by
      $w_j\, \varphi(k_j - q)^\top S^{-1} e_1 / \sum_l w_l$.
    - `log_mass`: $\log \sum_j w_j$.
    - `condition`: the sum of the inverse eigenvalues of S, scaled to a diagonal of 1: at best the
      number of terms.
    - `deficient`: whether S is singular to the precision of the numbers, so that a ridge was added.
    - `extrapolates`: whether $(S^{-1})_{11} > 100$: the standard error is then about ten times that
      of a local mean with the same weights. With a Gaussian kernel this happens about 2.5
      lengthscales outside the keys for order 1 and 1 lengthscale outside for order 2. On uniform
      designs of up to three columns it was at most 41 at the keys, corners included.
    """

    coefficients: Float[Array, "*batch queries terms dim_v"]
    influence: Float[Array, "*batch queries terms"]
    log_mass: Float[Array, "*batch queries"]
    condition: Float[Array, "*batch queries"]
    deficient: Bool[Array, "*batch queries"]
    extrapolates: Bool[Array, "*batch queries"]


class ExtrapolationWarning(UserWarning):
    """A local polynomial extrapolates far outside the data, or the data do not determine it."""


def warn_of_extrapolation(local: LocalFit, order: int) -> None:
    """One warning that counts the queries of both kinds; none inside `jit`."""
    if order == 0 or not is_concrete(local.deficient, local.extrapolates):
        return
    deficient, outside = (np.asarray(part) for part in (local.deficient, local.extrapolates))
    if not np.any(deficient | outside):
        return
    many = deficient.size
    parts = (
        (deficient, f"the data do not determine all terms in {local.log_mass.dtype}"),
        (outside & ~deficient, "it extrapolates: its standard error is ten times a local mean's"),
    )
    counts = [f"at {np.sum(which)} {why}" for which, why in parts if np.any(which)]
    warnings.warn(
        f"Of {many} queries of a polynomial of order {order}, {'; '.join(counts)}. Predict "
        f"nearer the data, or use a lower order or a longer lengthscale. Which queries: "
        f"model.local_fit(...).extrapolates and .deficient, or Bands.reliable.",
        ExtrapolationWarning,
        stacklevel=3,
    )


def local_polynomial(
    q: Float[Array, "*#batch queries dim"],
    k: Float[Array, "*#batch keys dim"],
    v: Float[Array, "*#batch keys dim_v"],
    *,
    kernel: Any,
    prior: Any = None,
    rule: Any,
    method: Method,
    order: int,
    ridge: ArrayLike = 0.0,
    columns: tuple[int, ...] | None = None,
) -> LocalFit:
    r"""The local polynomials of order p at queries; other arguments as in `attend`.

    **Arguments:**

    - `order`: p, from 0.
    - `ridge`: λ ≥ 0, added to the diagonal of S but for the constant term; in units of k. Default
      0. Where the keys do not tell the terms apart, $\sqrt\epsilon$ of the precision, of each term,
      is added whatever λ: the fit is then of lower order along what is not told.
    - `columns`: those that the polynomial is of. Default: all; of none it is a constant.
    - `method`: `Auto()` is here `Dense()` or `Blockwise()`.

    **Raises:** `ValueError` for `Fourier`, which certifies fits and not their moments.

    **Source:** Fan and Gijbels, *Local polynomial modelling and its applications* (1996).
    """
    order = 0 if columns == () else order
    if order:  # systems of half precision are no solvable ones
        q, k, v = (part.astype(wider_dtype(part.dtype)) for part in (q, k, v))
    ridge = jnp.asarray(ridge, q.dtype)
    empty = q.shape[-2] == 0  # a gather of rows needs one row
    q = jnp.zeros((*q.shape[:-2], 1, q.shape[-1]), q.dtype) if empty else q
    parts = (kernel, prior, rule), method, order, columns
    local = jit_if_pure(_polynomials, parts, q, k, v, ridge)
    if not empty:
        return local
    axis = local.log_mass.ndim - 1
    return jax.tree.map(lambda leaf: jax.lax.slice_in_dim(leaf, 0, 0, axis=axis), local)


def _polynomials(
    parts: tuple[Any, Any, Any],
    method: Method,
    order: int,
    columns: tuple[int, ...] | None,
    q: Float[Array, "*#batch queries dim"],
    k: Float[Array, "*#batch keys dim"],
    v: Float[Array, "*#batch keys dim_v"],
    ridge: Float[Array, ""],
) -> LocalFit:
    if order == 0:
        named = dict(zip(("kernel", "prior", "rule"), parts, strict=True))
        mean, log_mass = attend(q, k, v, **named, method=method, return_log_mass=True)
        one = jnp.ones_like(log_mass)
        none = one < 1
        return LocalFit(mean[..., None, :], one[..., None], log_mass, one, none, none)
    basis = Basis.of(k, order, columns)
    # about a constant, which every fit reproduces: rounding is then of what varies
    level = jax.lax.stop_gradient(jnp.nanmean(v, axis=-2, keepdims=True))
    gram, right, log_mass, noise = _moments(q, k, v - level, parts, method, basis)
    units = basis.units()
    # of so small units that their squares vanish, none is none
    scaled = jnp.where(ridge > 0, ridge / units / units, 0.0)
    solved, condition, deficient = _solve(gram, right, scaled, noise)
    empty = jnp.isneginf(log_mass)[..., None, None]
    solved = jnp.where(empty, 0.0, solved)
    coefficients = solved[..., :-1] / like(units[:, None], solved)
    constant = coefficients[..., :1, :] + like(level[..., None, :], coefficients)
    constant = jnp.where(empty, 0.0, constant)
    coefficients = jnp.concatenate([constant, coefficients[..., 1:, :]], axis=-2)
    influence = solved[..., -1] / like(units, log_mass[..., None])
    deficient = deficient & ~jnp.isneginf(log_mass)  # where no key has weight there is no design
    extrapolates = influence[..., 0] > _FAR
    return LocalFit(coefficients, influence, log_mass, condition, deficient, extrapolates)


def weighed(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    v: Float[Array, "keys dim_v"],
    local: LocalFit,
    *,
    power: int,
    kernel: Any,
    prior: Any = None,
    rule: Any,
    method: Method,
    order: int,
    columns: tuple[int, ...] | None = None,
) -> Float[Array, "queries dim_v"]:
    r"""Sums of values by powers of the weights of the fit, $\sum_j L_j(q)^p\, v_j$, p = 1 or 2.

    $$ L_j = \frac{w_j}{\sum_l w_l}\, \big( 1 + b^\top (\psi_j - \bar\psi) \big) $$

    with ψ the terms of φ but the constant, $\bar\psi$ their mean by weight, and b the slopes of the
    influence, times the keys' part of a mass that a sink shares. Each $L_j$ is squared on its own,
    about its own query: nothing cancels, where S is nearly singular neither. Of the first power the
    sum is the fit; of many values this is its cheaper road: no moments.
    """
    order = 0 if columns == () else order
    if order == 0:
        parts = {"kernel": kernel, "prior": prior, "rule": rule, "method": method}
        if power == 1:
            return attend(q, k, v, **parts)
        # squares of weights are those at half the temperature, of twice the prior's logarithm
        parts["prior"] = None if prior is None else prior * prior
        parts["rule"] = Softmax(0.5 * rule.temperature)
        means, of_squares = attend(q, k, v, **parts, return_log_mass=True)
        log_ratio = jnp.where(jnp.isneginf(of_squares), 0.0, of_squares - 2.0 * local.log_mass)
        return means * jnp.exp(log_ratio)[:, None]
    arrays = (*(part.astype(wider_dtype(part.dtype)) for part in (q, k, v)), local.influence)
    return jit_if_pure(_weighed, ((kernel, prior, rule), power, order, columns), *arrays)


def _weighed(
    parts: tuple[Any, Any, Any],
    power: int,
    order: int,
    columns: tuple[int, ...] | None,
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    v: Float[Array, "keys dim_v"],
    influence: Float[Array, "queries terms"],
) -> Float[Array, "queries dim_v"]:
    (kernel, prior, rule), keys = parts, jnp.arange(k.shape[0])
    basis = Basis.of(k, order, columns)
    at = list(basis.columns)
    slopes = (influence * basis.units()[None, :])[:, 1:]

    def of_query(query: tuple[Array, Array]) -> Array:
        row, slope = query
        point = q[row][None]
        seen = None if prior is None else At(prior, row[None], keys)
        share = attention_weights(point, k, kernel=kernel, prior=seen, rule=rule)[0]
        part = jnp.sum(share)  # less than 1 beside a sink, which no polynomial is fitted to
        share = share / jnp.where(part > 0, part, 1.0)
        terms = monomials((k[:, at] - point[:, at]) / basis.scale[None, :], basis.terms)[:, 1:]
        about = terms - terms[jnp.argmax(share)][None, :]  # far from the keys terms are all alike
        about = about - jnp.sum(share[:, None] * about, axis=0, keepdims=True)
        weights = share * (1.0 + jnp.sum(about * (part * slope)[None, :], axis=1))
        return jnp.matmul(weights**power, v, precision="highest")

    together = max(1, min(len(q), _NUMBERS // max(1, len(k) * len(basis.terms))))
    return jax.lax.map(of_query, (jnp.arange(len(q)), slopes), batch_size=together)


def _moments(
    q: Float[Array, "*#batch queries dim"],
    k: Float[Array, "*#batch keys dim"],
    v: Float[Array, "*#batch keys dim_v"],
    parts: tuple[Any, Any, Any],
    method: Method,
    basis: Basis,
) -> tuple[Array, Array, Float[Array, "*batch queries"], Float[Array, "*batch queries terms"]]:
    r"""The means of $\varphi \varphi^\top$ and of $\varphi v^\top$, the log-mass, and rounding.

    $\varphi$ is of u = (k − q) / scale. Shapes (*batch, queries, terms, terms) and
    (*batch, queries, terms, dim_v). The rounding is a bound, by which the first, of a move that
    cancels nearly all of it, may have lost on its diagonal its being positive definite.
    """
    kernel, prior, rule = parts
    if isinstance(method, Fourier):
        raise ValueError(
            "Fourier() certifies weighted means, and a local polynomial divides their small "
            "differences: use method=ak.Auto() or ak.Blockwise(), or order=0."
        )
    rows, keys = q.shape[-2], k.shape[-2]
    batch = math.prod(jnp.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2]))
    width = len(basis.products) + len(basis.terms) * v.shape[-1]
    if is_symbolic(batch, rows, keys):
        # in constant memory; 6 times slower than in chunks at 1300 queries and 1100 keys
        size, together = 1, 1
    else:
        few = rows * keys * width <= _EXACT
        size = 1 if few else min(rows, max(_FEW, -(-rows // _MIDDLES)))
        most = min(_PAIRS // max(1, size * keys), _NUMBERS // max(1, batch * keys * width))
        together = max(1, min(-(-rows // size), most))
    if isinstance(method, Auto):
        method = Dense() if is_at_most(size * keys, _PAIRS) else Blockwise()
    columns = list(basis.columns)
    order = _neighbours(jax.lax.stop_gradient(q[..., columns]), size)
    turns = -(-rows // (size * together))
    numbers = order[jnp.minimum(jnp.arange(turns * together * size), rows - 1)]
    numbers = numbers.reshape(turns, together, size)

    def of_chunk(rows: Int[Array, " size"]) -> tuple[Array, Array, Array, Array]:
        few = q[..., rows, :]
        here = few[..., columns]
        finite = jnp.all(jnp.isfinite(here), axis=-1, keepdims=True)
        middle = jnp.mean(here, axis=-2, keepdims=True, where=finite)
        if size > 1:  # the shift to each query then carries its derivative
            middle = jax.lax.stop_gradient(middle)
        u = like(k[..., columns], middle) - like(middle, k)
        u = u / like(basis.scale, u)
        products, terms = monomials(u, basis.products), monomials(u, basis.terms)
        of_terms = like(terms[..., None], v[..., None]) * like(v[..., None, :], u[..., None])
        of_terms = of_terms.reshape(*of_terms.shape[:-2], math.prod(of_terms.shape[-2:]))
        means, log_mass = attend(
            few,
            k,
            _side_by_side(products, of_terms),
            kernel=kernel,
            prior=None if prior is None else At(prior, rows, jnp.arange(keys)),
            rule=rule,
            method=method,
            return_log_mass=True,
        )
        gram, right = jnp.split(means, [len(basis.products)], axis=-1)
        right = right.reshape(*right.shape[:-1], len(basis.terms), v.shape[-1])
        gram = gram[..., basis.pairs()]
        noise = jnp.zeros_like(gram[..., 0])
        if size > 1:
            shift = basis.shift((middle - here) / like(basis.scale, here))
            gram, noise = _moved(shift, gram), _rounding(shift, gram)
            right = jnp.matmul(shift, right, precision="highest")
        return gram, right, log_mass, noise

    found = jax.lax.map(jax.checkpoint(jax.vmap(of_chunk), prevent_cse=False), numbers)
    batch, back = found[2].ndim - 3, jnp.argsort(order)

    def in_order(leaf: Array) -> Array:
        """(turns, together, *batch, size, ...) to (*batch, queries, ...)."""
        leaf = jnp.moveaxis(leaf, (0, 1), (batch, batch + 1))
        shape = (*leaf.shape[:batch], numbers.size, *leaf.shape[batch + 3 :])
        leaf = leaf.reshape(shape)
        return jnp.take(leaf, back, axis=batch)

    gram, right, log_mass, noise = map(in_order, found)
    return gram, right, log_mass, noise


def _moved(shift: Array, gram: Array) -> Float[Array, "*queries terms terms"]:
    """Moments about a middle as those about queries: by the shift from the left and the right."""
    moved = functools.partial(jnp.matmul, shift, precision="highest")
    return moved(moved(gram).swapaxes(-1, -2))


def _rounding(shift: Array, gram: Array) -> Float[Array, "*queries terms"]:
    r"""A bound, by its diagonal, on what rounding may take from the eigenvalues of a moved gram.

    $|E_{ab}|$ is a few eps times $(|T|\,|G|\,|T|^\top)_{ab} \le \sqrt{D_a D_b}$ with D the
    diagonal of that: so $E + n D$ is positive, n the number of terms.
    """
    terms, eps = gram.shape[-1], float(jnp.finfo(gram.dtype).eps)
    sizes = _moved(*map(jnp.abs, jax.lax.stop_gradient((shift, gram))))
    return 8 * terms * eps * jnp.diagonal(sizes, axis1=-2, axis2=-1)


def _side_by_side(*parts: Array) -> Array:
    """Columns of all parts, whose batch axes broadcast."""
    shape = jnp.broadcast_shapes(*(part.shape[:-1] for part in parts))
    wide = [jnp.broadcast_to(part, (*shape, part.shape[-1])) for part in parts]
    return jnp.concatenate(wide, axis=-1)


def _neighbours(points: Float[Array, "*batch queries dim"], size: int) -> Int[Array, " queries"]:
    """An order of the queries in which neighbours are side by side, so many about one middle.

    Halves along the widest column, and halves of halves. As given, where a batch has points of its
    own: of sequences, whose neighbours those are.
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
    # of the copies of the last row the first is kept
    place = jnp.full(rows, len(order)).at[order].min(jnp.arange(len(order)))
    return jnp.argsort(place)


def _solve(
    gram: Float[Array, "*queries terms terms"],
    right: Float[Array, "*queries terms dim_v"],
    ridge: Float[Array, " terms"],
    noise: Float[Array, "*queries terms"],
) -> tuple[Float[Array, "*queries terms columns"], Array, Array]:
    """$S^{-1} (b, e_1)$, the condition of S, and whether it was deficient.

    Of a term lost to rounding, by more than the ridge that deficient ones are given, the noise is
    added, and S is deficient.
    """
    terms, eps = gram.shape[-1], float(jnp.finfo(gram.dtype).eps)
    eye, slopes = jnp.eye(terms, dtype=gram.dtype), jnp.arange(terms) > 0
    gram = gram + like(jnp.diag(jnp.where(slopes, ridge, 0.0)), gram)
    diagonal = jnp.diagonal(gram, axis1=-2, axis2=-1)
    lost = like(slopes, noise) & (noise > eps**0.5 * diagonal)
    diagonal = diagonal + jnp.where(lost, noise, 0.0)
    gram = jnp.where(like(eye > 0, gram), diagonal[..., None], gram)
    # a term that varies less than this may as well not vary: its square overflows the derivatives
    some = diagonal > float(jnp.finfo(gram.dtype).tiny) ** 0.75
    # constant to differentiation: the solution does not depend on it
    unit = jax.lax.rsqrt(jax.lax.stop_gradient(jnp.where(some, diagonal, 1.0)))
    first = jnp.broadcast_to(like(eye[:, :1], right), (*right.shape[:-1], 1))
    right = jnp.concatenate([right, first], axis=-1) * unit[..., None]
    scaled = gram * unit[..., None] * unit[..., None, :]
    # of a matrix just off the singular ones: the sum of the inverse eigenvalues
    shaky = jax.lax.stop_gradient(scaled) + like(8 * terms * eps * eye, scaled)
    everything = jnp.broadcast_to(like(eye, shaky), shaky.shape)
    condition = jnp.trace(_solver(shaky)(everything), axis1=-2, axis2=-1)
    deficient = ~(condition < eps ** (-2 / 3)) | jnp.any(lost, axis=-1)
    added = jnp.where(deficient, eps**0.5, 0.0)[..., None, None]
    regular = scaled + added * like(jnp.diag(slopes.astype(gram.dtype)), scaled)
    product = functools.partial(jnp.matmul, regular, precision="highest")
    solver = _solver(jax.lax.stop_gradient(regular))
    solved = jax.lax.custom_linear_solve(
        product, right, lambda _, right: solver(right), symmetric=True
    )
    condition = jnp.nan_to_num(condition, nan=1.0 / eps)
    return solved * unit[..., None], condition, deficient


def _solver(matrix: Float[Array, "*queries terms terms"]) -> Callable[[Array], Array]:
    r"""$b \mapsto S^{-1} b$ by Cholesky's $S = L L^\top$; NaN where S is not positive definite.

    Of few terms in numbers of all queries at once: one call of LAPACK for each takes longer.
    """
    terms = range(matrix.shape[-1])
    if len(terms) > _UNROLLED:
        factor = jnp.linalg.cholesky(matrix)
        return lambda right: jax.scipy.linalg.cho_solve((factor, True), right)
    low: dict[tuple[int, int], Array] = {}  # of L; on its diagonal the inverses
    for j in terms:
        column = {i: matrix[..., i, j] for i in terms[j:]}
        for k in terms[:j]:
            column = {i: rest - low[i, k] * low[j, k] for i, rest in column.items()}
        unit = 1.0 / jnp.sqrt(jnp.where(column[j] > 0, column[j], jnp.nan))
        low |= {(i, j): rest * unit for i, rest in column.items()} | {(j, j): unit}
    low = {place: number[..., None] for place, number in low.items()}

    def solve(right: Float[Array, "*queries terms columns"]) -> Array:
        rows = [right[..., i, :] for i in terms]
        for i in terms:
            for k in terms[:i]:
                rows[i] = rows[i] - low[i, k] * rows[k]
            rows[i] = rows[i] * low[i, i]
        for i in reversed(terms):
            for k in terms[i + 1 :]:
                rows[i] = rows[i] - low[k, i] * rows[k]
            rows[i] = rows[i] * low[i, i]
        return jnp.stack(rows, axis=-2)

    return solve


def as_order(order: Any) -> int:
    """The order of a local polynomial."""
    if isinstance(order, bool) or not isinstance(order, int | np.integer) or not 0 <= order <= 2:
        raise ValueError(
            f"order must be 0 (local constant), 1 (linear) or 2 (quadratic); got {order!r}."
        )
    return int(order)
