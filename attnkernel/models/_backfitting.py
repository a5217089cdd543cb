r"""The equations of backfitting, solved by matrices of n × n numbers.

With r the residuals and $\tilde S_j$ the centred smoothers, $(I - \tilde S_j) m_j = \tilde S_j r$.
Order 1 reproduces a line $x_j$, so that the left side is singular: the projection $x_j p_j^\top$
on it is added, and $x_j b_j$ with the unknown $b_j = p_j^\top m_j$ to the right.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.arrays import precise_matmul as matmul
from ..attention import attention_weights
from ..kernels import Kernel
from ._block_inverse import inverse
from ._data import with_weights


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
        x = x - jnp.sum(share * x) if is_line else jnp.zeros_like(x)
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
    share = attention_weights(q, k, kernel=kernel, prior=with_weights(None, weights, k))
    if not is_line:
        return share
    away = (k - k[:1]).T - (q - k[:1])  # (m, n)
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
