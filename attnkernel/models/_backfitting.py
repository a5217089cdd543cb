r"""The equations of backfitting, solved by matrices of n × n numbers.

With r the residuals and $\tilde S_j$ the centred smoothers, $(I - \tilde S_j) m_j = \tilde S_j r$.
Order 1 reproduces a line $x_j$, so that the left side is singular: the projection $x_j p_j^\top$
on it is added, and $x_j b_j$ with the unknown $b_j = p_j^\top m_j$ to the right.

Inverses of matrices by Gauss–Jordan elimination of blocks, that is by matrix products.

A step with the pivot block $P = A_{kk}^{-1}$ replaces the rows k by $P A_{k\cdot}$, the columns k
by $-A_{\cdot k} P$ and the rest by $A - A_{\cdot k} P A_{k\cdot}$, in $2 n^3$ operations in all
(Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, 14.4). Rows are not exchanged,
which is stable where the symmetric part of A is positive, as that of $I - S$ is nearly for a
smoother S. Where the residual shows that the result is not accurate, LAPACK computes it.

LAPACK's own threads wait for each other: where other processes use the cores, two of them factorise
400 rows in 0.3 s, one alone in 1.5 ms. XLA's matrix products share its threads with all else: the
inverse takes 6 ms there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._core.arrays import precise_matmul as matmul
from .._core.rows import Rows
from ..attention import attention_weights
from ..kernels import Kernel, periods, shortest_way
from ._smoother import with_weights

BLOCK_ROWS = 32


@jax.custom_jvp
def inverse(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    r"""Returns $A^{-1}$, with $\mathrm{d} A^{-1} = -A^{-1}\, \mathrm{d}A\, A^{-1}$."""
    n = len(matrix)
    more = -n % BLOCK_ROWS
    padded = jnp.pad(matrix, (0, more)) + jnp.diag(jnp.arange(n + more) >= n).astype(matrix.dtype)
    found = _eliminate(padded, BLOCK_ROWS)[:n, :n]
    # A X u = u for vectors u of random signs; both products round in proportion to |X u|
    probes = 4
    signs = jnp.asarray(np.random.default_rng(0).choice([-1.0, 1.0], (n, probes)), matrix.dtype)
    solved = matmul(found, signs)
    error = jnp.max(jnp.abs(matmul(matrix, solved) - signs))
    rounding = n * jnp.finfo(matrix.dtype).eps * (1.0 + jnp.max(jnp.abs(solved)))
    is_accurate = error <= 10.0 * rounding
    return jax.lax.cond(is_accurate, lambda: found, lambda: jnp.linalg.inv(matrix))


@inverse.defjvp
def _inverse_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    found = inverse(*primals)
    return found, -matmul(matmul(found, tangents[0]), found)


def _eliminate(matrix: Float[Array, "n n"], block: int) -> Float[Array, "n n"]:
    """Returns the inverse of a matrix by steps of `block` rows, which divide n."""

    def step(k: Int[Array, ""], a: Array) -> Array:
        at = k * block
        rows = jax.lax.dynamic_slice_in_dim(a, at, block, axis=0)
        columns = jax.lax.dynamic_slice_in_dim(a, at, block, axis=1)
        pivot = jax.lax.dynamic_slice_in_dim(rows, at, block, axis=1)
        pivot = 1.0 / pivot if block == 1 else _eliminate(pivot, 1)
        rows = jax.lax.dynamic_update_slice_in_dim(matmul(pivot, rows), pivot, at, axis=1)
        a = jax.lax.dynamic_update_slice_in_dim(a, jnp.zeros_like(columns), at, axis=1)
        a = a - matmul(columns, rows)
        return jax.lax.dynamic_update_slice_in_dim(a, rows, at, axis=0)

    return jax.lax.fori_loop(0, len(matrix) // block, step, matrix)


class Backfitting(NamedTuple):
    """The solution for any labels: $m_j = A_j r + g_j b_j$, with r and b linear in the labels."""

    curves: Float[Array, "dim n n"]  # A_j
    lines: Float[Array, "dim n"]  # g_j
    means: Float[Array, "dim n"]  # of the rows of S_j, by the weights of rows
    residuals: Float[Array, "n n"]  # from labels to r
    slopes: Float[Array, "dim n"]  # from labels to b


def solve_backfitting(
    kernels: tuple[Kernel, ...],
    has_line: tuple[bool, ...],
    k: Float[Array, "n dim"],
    weights: Float[Array, " n"],
) -> Backfitting:
    """Returns the solution for kernels of columns; `has_line`: which are of order 1."""
    n, dtype = len(k), k.dtype
    share = weights / jnp.sum(weights)
    # rows that no kernel connects, as of categories with bandwidth 0, have the eigenvalue 1
    shrink = 1.0 - jnp.finfo(dtype).eps ** 0.7

    def column(kernel: Kernel, is_line: bool, x: Array) -> tuple[Array, ...]:
        plain = weights_of_column(kernel, is_line, x, x, weights)
        mean = matmul(share, plain)
        x = shortest_way(x - x[:1], periods(kernel, 1)[0])
        x = x - jnp.sum(share * x)
        # lines around a circle are reproduced where all rows lie on one half of it
        error = jnp.max(jnp.abs(matmul(plain, x) - x))
        is_reproduced = is_line & (error <= jnp.finfo(dtype).eps ** 0.5 * jnp.max(jnp.abs(x)))
        x = jnp.where(is_reproduced, x, 0.0)
        square = jnp.sum(share * x**2)
        line = share * x / jnp.where(square > 0, square, 1.0)
        eye, rank_one = jnp.eye(n, dtype=dtype), x[:, None] * line[None, :]
        found = inverse(eye - shrink * (plain - mean[None, :]) + rank_one)
        along = matmul(found, x)
        # (I - S + x p')⁻¹ S = (I - S + x p')⁻¹ (I + x p') - I
        return found + along[:, None] * line[None, :] - eye, along, mean, line

    curves, lines, means, projections = over_columns(column, kernels, has_line, k.T)
    residuals, slopes = _solve_for_residuals(curves, lines, projections, share)
    return Backfitting(curves, lines, means, residuals, slopes)


def over_columns(
    function: Callable[..., Any],
    kernels: tuple[Kernel, ...],
    has_line: tuple[bool, ...],
    *arrays: Float[Array, "dim ..."],
) -> Any:
    """Returns `function(kernel, is_line, *entries)` for each column, its arrays stacked.

    Columns with kernels of one structure are a loop, whose body is compiled once.
    """
    alike: dict[Any, list[int]] = {}
    for j, (kernel, is_line) in enumerate(zip(kernels, has_line, strict=True)):
        leaves, structure = jax.tree.flatten(kernel)
        kinds = tuple(
            (leaf.shape, leaf.dtype) if isinstance(leaf, Array) else leaf for leaf in leaves
        )
        alike.setdefault((structure, kinds, is_line), []).append(j)
    found: list[Any] = [None] * len(kernels)
    for (_, _, is_line), columns in alike.items():
        if len(columns) == 1:
            (j,) = columns
            found[j] = function(kernels[j], is_line, *(array[j] for array in arrays))
            continue
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(kernels[j] for j in columns))
        parts = [array[jnp.asarray(columns)] for array in arrays]
        each = lambda of, is_line=is_line: function(of[0], is_line, *of[1:])  # noqa: E731
        all_of_them = jax.lax.map(each, (stacked, *parts))
        for place, j in enumerate(columns):
            found[j] = jax.tree.map(lambda leaf, place=place: leaf[place], all_of_them)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)


def weights_of_column(
    kernel: Kernel,
    is_line: bool,
    q: Float[Array, " m"],
    k: Float[Array, " n"],
    weights: Float[Array, " n"],
) -> Float[Array, "m n"]:
    """Returns the weights of labels in a local mean, or in a local line, of one column.

    A line is a mean where the rows in reach are as good as one point.
    """
    q, k = q[:, None], k[:, None]
    prior = with_weights(None, Rows(k, k, weights))
    share = attention_weights(q, k, kernel=kernel, prior=prior)
    if not is_line:
        return share
    away = shortest_way((k - k[:1]).T - (q - k[:1]), periods(kernel, 1)[0])  # (m, n)
    middle = jnp.sum(share * away, axis=1, keepdims=True)
    square = jnp.sum(share * (away - middle) ** 2, axis=1, keepdims=True)
    is_known = square > jnp.finfo(k.dtype).eps * (jnp.max(k) - jnp.min(k)) ** 2
    slope = jnp.where(is_known, -middle / jnp.where(is_known, square, 1.0), 0.0)
    return share * (1.0 + slope * (away - middle))


def _solve_for_residuals(
    curves: Float[Array, "dim n n"],
    lines: Float[Array, "dim n"],
    projections: Float[Array, "dim n"],
    share: Float[Array, " n"],
) -> tuple[Float[Array, "n n"], Float[Array, "dim n"]]:
    """Returns the matrices that map labels to residuals r and to coefficients b of lines.

    $r + \\sum_j m_j = y - \\bar y$ and $b_j = p_j^\\top m_j$, where $m_j = A_j r + g_j b_j$;
    `curves`: $A_j$; `lines`: $g_j$; `projections`: $p_j$; `share`: weights of rows, of sum 1.
    """
    n, dtype = len(share), share.dtype
    top = jnp.concatenate([jnp.eye(n, dtype=dtype) + jnp.sum(curves, axis=0), lines.T], axis=1)
    rows = jnp.squeeze(matmul(projections[:, None, :], curves), axis=1)
    own = jnp.diag(1.0 - jnp.sum(projections * lines, axis=1))
    found = inverse(jnp.concatenate([top, jnp.concatenate([-rows, own], axis=1)]))[:, :n]
    found = found - jnp.sum(found, axis=1, keepdims=True) * share[None, :]
    return found[:n], found[n:]
