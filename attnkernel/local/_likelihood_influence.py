r"""The influence of labels on a local likelihood fit, to first order.

$$ \hat\eta(q) - \eta(q) \approx \sum_j \ell_j(q)\, (v_j - \mu_j), \qquad
   \ell_j = w_j\, \frac{\mu_j'}{V(\mu_j)}\, \varphi_j^\top J^{-1} e_1, \qquad
   J = \sum_j w_j\, \frac{\mu_j'^2}{V(\mu_j)}\, \varphi_j \varphi_j^\top $$

w sums to 1, $\mu_j$ is the mean of the local polynomial at key j, and $\mu' = \mathrm{d}\mu /
\mathrm{d}\eta$.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..attention import KernelPriorRule, jit_if_pure
from ..families import Family
from ._likelihood import LikelihoodFit, LikelihoodParts
from ._monomials import Basis
from ._newton import solve_positive_definite
from ._windows import Windows, map_windows


class InfluenceSums(NamedTuple):
    r"""Sums of the influence of labels on fits.

    - `variance`: $\sum_j \ell_j^2 \sigma_j^2$ of $\hat\eta$, shape (queries, dim_v).
    - `squares`: $\sum_j L_j^2$, shape (queries, dim_v), with $L_j = \ell_j \mu_j'$, the weight of
      label j on the scale of the link; its inverse is the effective number of labels.
    - `own`: $L_i$ of query i, shape (queries, dim_v): the leverage, if queries are the keys.
    - `noise`: $\sum_j \ell_j \sigma_j z_{jd}$ of standard normal numbers z, shape (queries, draws).
    """

    variance: Float[Array, "queries dim_v"]
    squares: Float[Array, "queries dim_v"]
    own: Float[Array, "queries dim_v"]
    noise: Float[Array, "queries dim_v draws"]


def influence_sums(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    sd: Float[Array, "keys dim_v"],
    z: Float[Array, "keys draws"],
    local: LikelihoodFit,
    parts: LikelihoodParts,
    is_relative: bool,
) -> InfluenceSums:
    r"""Sums of influence at queries, from their local polynomials; 0 where no label has weight.

    **Arguments:** `sd`: $\sigma_j$; with `is_relative`, in units of $\sqrt{V(\mu_j)}$. `z`:
    standard normal numbers, of no columns for none. The others as for `local_likelihood`.
    """
    return jit_if_pure(_influence_sums, (*parts, is_relative), q, k, sd, z, local.coefficients)


def _influence_sums(
    parts: KernelPriorRule,
    family: Family,
    order: int,
    columns: tuple[int, ...],
    is_relative: bool,
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    sd: Float[Array, "keys dim_v"],
    z: Float[Array, "keys draws"],
    coefficients: Float[Array, "queries terms dim_v"],
) -> InfluenceSums:
    """Returns `influence_sums` of checked arrays."""
    basis = Basis.of(k, order, columns)
    pairs = basis.pairs()
    first = (jnp.arange(len(pairs)) == 0).astype(k.dtype)

    def at_label(weights: Array, products: Array, row: Array, beta: Array, sd: Array) -> Any:
        terms = products[:, : len(pairs)]
        eta = jnp.matmul(terms, beta * basis.units(), precision="highest")
        mean = family.inside(family.mean(eta))  # where the variance is not 0 to rounding
        slope, variance = family.mean_slope(family.link(mean)), family.variance(mean)
        moments = jnp.matmul(weights * slope**2 / variance, products, precision="highest")
        influence = solve_positive_definite(moments[pairs], first)
        of_label = weights * (slope / variance) * jnp.matmul(terms, influence, precision="highest")
        scaled = of_label * (sd * jnp.sqrt(variance) if is_relative else sd)
        on_link = of_label * slope
        return InfluenceSums(
            jnp.sum(scaled**2),
            jnp.sum(on_link**2),
            on_link[jnp.minimum(row, len(on_link) - 1)],
            jnp.matmul(scaled, z, precision="highest"),
        )

    def of_chunk(windows: Windows) -> InfluenceSums:
        over_labels = jax.vmap(at_label, in_axes=(None, None, None, 1, 1))
        over_queries = jax.vmap(over_labels, in_axes=(0, 0, 0, 0, None))
        arrays = windows.weights, windows.products, windows.rows, coefficients[windows.rows]
        return over_queries(*arrays, sd)

    return map_windows(of_chunk, parts, q, k, basis, width=sd.shape[1])
