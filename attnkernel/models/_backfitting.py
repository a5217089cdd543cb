r"""The equations of backfitting, solved by matrices of n × n numbers.

With r the residuals and $\tilde S_j$ the centred smoothers, $(I - \tilde S_j) m_j = \tilde S_j r$.
Order 1 reproduces a line $x_j$, so that the left side is singular: the projection $x_j p_j^\top$
on it is added, and $x_j b_j$ with the unknown $b_j = p_j^\top m_j$ to the right.
"""

import functools
import operator

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..attention import attention_weights
from ..kernels import Kernel
from ._data import with_weights


def solve_backfitting(
    kernels: tuple[Kernel, ...],
    has_line: tuple[bool, ...],
    k: Float[Array, "n dim"],
    weights: Float[Array, " n"],
) -> tuple[list[Array], list[Array], Float[Array, "n n"], Float[Array, "dim n"]]:
    """Returns $(A_j, g_j)$ and the weighted mean of $S_j$ for each column, and the matrices
    that map labels to residuals r and to coefficients b: $m_j = A_j r + g_j b_j$.
    """
    n, dtype = len(k), k.dtype
    share = weights / jnp.sum(weights)
    # rows that no kernel connects, as of categories with bandwidth 0, have the eigenvalue 1
    shrink = 1.0 - jnp.finfo(dtype).eps ** 0.7
    centres, solved, lines = [], [], []
    for j, (kernel, is_line) in enumerate(zip(kernels, has_line, strict=True)):
        x = k[:, j]
        plain = weights_of_column(kernel, is_line, x, x, weights)
        centres.append(jnp.matmul(share, plain, precision="highest")[None, :])
        smooth = shrink * (plain - centres[-1])
        x = x - jnp.sum(share * x) if is_line else jnp.zeros_like(x)
        square = jnp.sum(share * x**2)
        line = share * x / jnp.where(square > 0, square, 1.0)
        right = jnp.concatenate([smooth, x[:, None]], axis=1)
        left = jnp.eye(n, dtype=dtype) - smooth + x[:, None] * line[None, :]
        solved.append(jnp.linalg.solve(left, right))
        lines.append(line)
    return solved, centres, *_solve_for_residuals(solved, lines, share)


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
    solved: list[Float[Array, "n all"]],
    lines: list[Float[Array, " n"]],
    share: Float[Array, " n"],
) -> tuple[Float[Array, "n n"], Float[Array, "dim n"]]:
    """Returns the matrices that map labels to residuals r and to coefficients b of lines.

    $r + \\sum_j m_j = y - \\bar y$ and $b_j = p_j^\\top m_j$, where $m_j = A_j r + g_j b_j$;
    `solved`: $(A_j, g_j)$; `lines`: $p_j$; `share`: the weights of rows, which sum to 1.
    """
    n, dim = len(share), len(solved)
    sums = functools.reduce(operator.add, (each[:, :n] for each in solved))
    of_lines = jnp.concatenate([each[:, n:] for each in solved], axis=1)
    top = jnp.concatenate([jnp.eye(n, dtype=share.dtype) + sums, of_lines], axis=1)
    rows = [jnp.matmul(line, each) for line, each in zip(lines, solved, strict=True)]
    bottom = jnp.concatenate(
        [-jnp.stack([row[:n] for row in rows]), jnp.diag(1.0 - jnp.stack([r[n] for r in rows]))],
        axis=1,
    )
    centring = jnp.eye(n, dtype=share.dtype) - share[None, :]
    right = jnp.concatenate([centring, jnp.zeros((dim, n), share.dtype)])
    found = jnp.linalg.solve(jnp.concatenate([top, bottom]), right)
    return found[:n], found[n:]
