r"""Local polynomial quantiles: at each query the polynomial with the least weighted check loss.

$$ \hat\beta(q) = \arg\min_\beta
   \sum_j w_j(q)\, \rho_\tau\big(v_j - \beta^\top \varphi(k_j - q)\big), \qquad
   \rho_\tau(r) = r\, (\tau - 1\{r < 0\}) $$
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float

from .._core.arrays import wider_dtype
from ..attention import KernelPriorRule, jit_if_pure
from ._check_loss import Minimum, minimise_check_loss
from ._monomials import Basis
from ._windows import Windows, map_windows

MINIMUM = "check loss minimum"  # the name by which derivatives find it


class QuantileFit(eqx.Module):
    r"""The local polynomials of queries, one quantile of labels each.

    - `coefficients`: $\hat\beta$, shape (queries, terms, dim_v): the quantile at the query, its
      slope along each column, and for p = 2 the coefficients of $d_a d_b$, a ≤ b.
    - `gap`: the duality gap, shape (queries, dim_v): the check loss of $\hat\beta$ exceeds its
      minimum by no more than this share of the mean absolute deviation of the labels in reach.
    - `empty`: whether no label has weight; the coefficients are then 0.
    - `deficient`, `extrapolates`: those of the design, as in `LocalFit`.

    ```python
    x = jnp.linspace(0.0, 1.0, 9)
    local = ak.LocalQuantile(ak.Gaussian(0.3), level=0.5).local_fit(x, x, 2.0 * x)
    assert jnp.allclose(local.coefficients[:, 1, 0], 2.0, atol=1e-3)  # the slope of the median
    ```
    """

    coefficients: Float[Array, "queries terms dim_v"]
    gap: Float[Array, "queries dim_v"]
    empty: Bool[Array, " queries"]
    deficient: Bool[Array, " queries"]
    extrapolates: Bool[Array, " queries"]


def local_quantile(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    v: Float[Array, "keys dim_v"],
    level: Float[Array, ""],
    *,
    kernel: Any,
    prior: Any = None,
    rule: Any,
    order: int,
    columns: tuple[int, ...],
) -> QuantileFit:
    """The local polynomials of degree `order` in `columns` of k, for the quantile `level`.

    Other arguments as in `attend`. Where the keys do not determine all terms, slopes are 0.

    **Source:** Yu and Jones, *Local linear quantile regression* (1998).
    """
    q, k, v = (part.astype(wider_dtype(part.dtype)) for part in (q, k, v))
    empty = q.shape[0] == 0  # a gather of rows needs one row
    points = jnp.zeros((1, q.shape[1]), q.dtype) if empty else q
    parts = (kernel, prior, rule), order if columns else 0, columns, level.astype(v.dtype)
    local = jit_if_pure(_fit_quantiles, parts, points, k, v)
    return jax.tree.map(lambda leaf: leaf[:0], local) if empty else local


def _fit_quantiles(
    parts: KernelPriorRule,
    order: int,
    columns: tuple[int, ...],
    level: Float[Array, ""],
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    v: Float[Array, "keys dim_v"],
) -> QuantileFit:
    """Returns `local_quantile` of at least one query, of arrays of at least float32."""
    basis = Basis.of(k, order, columns)
    is_slope = jnp.arange(len(basis.terms)) > 0

    def fit_one(terms: Array, labels: Array, weights: Array) -> tuple[Array, Array]:
        constants = jax.lax.stop_gradient((terms, labels, weights, level))
        # derivatives read the minimum, and do not repeat the search
        parts = minimise_check_loss(*constants)
        found = Minimum(*(checkpoint_name(part, MINIMUM) for part in parts))
        # a vertex depends on its rows alone: by the weights its derivative is 0
        rows = jnp.where(found.is_vertex, found.rows, jnp.arange(len(found.rows)))
        safe = jnp.where(found.is_vertex, terms[rows], jnp.eye(len(rows), dtype=terms.dtype))
        corner = jnp.linalg.solve(safe, labels[rows])
        return jnp.where(found.is_vertex, corner, found.beta), found.gap

    def fit_chunk(windows: Windows) -> QuantileFit:
        deficient, extrapolates = windows.support(basis)
        terms = windows.products[..., : len(basis.terms)]
        terms = jnp.where(deficient[:, None, None] & is_slope[None, None, :], 0.0, terms)
        over_labels = jax.vmap(fit_one, in_axes=(None, 1, None))
        beta, gap = jax.vmap(over_labels, in_axes=(0, None, 0))(terms, v, windows.weights)
        beta = jnp.where(windows.empty[:, None, None], 0.0, beta) / basis.units()[None, None, :]
        return QuantileFit(beta.swapaxes(1, 2), gap, windows.empty, deficient, extrapolates)

    policy = jax.checkpoint_policies.save_only_these_names(MINIMUM)
    width = 4 * v.shape[1]  # rows of the search, beside the terms
    return map_windows(fit_chunk, parts, q, k, basis, width=width, policy=policy)
