r"""Local likelihood: at each query the polynomial in k − q with the greatest weighted likelihood,
and how each label moves it.

$$ \hat\beta(q) = \arg\max_\beta \sum_j w_j(q)\, \ell\big(v_j, \beta^\top \varphi(k_j - q)\big)
   - \tfrac12 \sum_a \lambda_a (\beta_a - \beta^0_a)^2 $$

$\beta^0$ is the local mean. The penalty is of the size of rounding. It matters only where the
likelihood has no maximum, because labels are separated, or where the data do not determine all
terms; there it bounds them.

To first order, the influence of labels on it is

$$ \hat\eta(q) - \eta(q) \approx \sum_j \ell_j(q)\, (v_j - \mu_j), \qquad
   \ell_j = w_j\, \frac{\mu_j'}{V(\mu_j)}\, \varphi_j^\top J^{-1} e_1, \qquad
   J = \sum_j w_j\, \frac{\mu_j'^2}{V(\mu_j)}\, \varphi_j \varphi_j^\top $$

w sums to 1, $\mu_j$ is the mean of the local polynomial at key j, and $\mu' = \mathrm{d}\mu /
\mathrm{d}\eta$.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float

from .._core.arrays import wider_dtype
from .._core.tracing import stop_gradients
from ..families import Family
from ..methods import Keys, Queries, Values
from ._monomials import Basis, Polynomial
from ._polynomial import fit_at_queries
from ._windows import (
    Expansion,
    Windows,
    map_windows,
    maximise,
    solve_positive_definite,
    with_derivatives,
)

MAXIMUM = "local likelihood maximum"  # the name by which derivatives find it


class LikelihoodFit(eqx.Module):
    r"""The local polynomials of queries, on the scale of the link.

    - `coefficients`: $\hat\beta$, shape (queries, terms, dim_v): $\hat\eta$ at the query, its
      slope along each column, and for p = 2 the coefficients of $d_a d_b$, a ≤ b.
    - `empty`: whether no label has weight; the coefficients are then 0.
    - `deficient`, `extrapolates`: those of the design, as in `LocalFit`.

    ```python
    x = jnp.linspace(0.0, 1.0, 9)
    model = ak.LocalLikelihood(ak.Gaussian(0.3), family=ak.Poisson(), order=1)
    local = model.local_fit(x, x, jnp.exp(2.0 * x))
    assert jnp.allclose(local.coefficients[:, 1, 0], 2.0, atol=1e-3)  # the slope of log μ
    ```
    """

    coefficients: Float[Array, "queries terms dim_v"]
    empty: Bool[Array, " queries"]
    deficient: Bool[Array, " queries"]
    extrapolates: Bool[Array, " queries"]


def local_likelihood(
    q: Queries, k: Keys, v: Values, polynomial: Polynomial, family: Family
) -> LikelihoodFit:
    """The local polynomials at queries, on the scale of the link; the order is at least 1.

    The weights of a chunk of queries are formed once for all Newton steps, which sum over them.

    **Source:** Tibshirani and Hastie, *Local likelihood estimation* (1987); Loader, *Local
    regression and likelihood* (1999), chapter 4.
    """
    q, k, v = (part.astype(wider_dtype(part.dtype)) for part in (q, k, v))
    return fit_at_queries(_fit_likelihoods, (polynomial, family), q, k, v)


def _fit_likelihoods(
    polynomial: Polynomial, family: Family, q: Queries, k: Keys, v: Values
) -> LikelihoodFit:
    """Returns the local polynomials at one or more queries, from arrays of at least float32."""

    def fit_chunk(windows: Windows) -> LikelihoodFit:
        deficient, extrapolates = windows.support()
        chunk = windows, family, deficient
        search = lambda problem: maximise(problem.expand, problem.centre)  # noqa: E731
        found = _map_problems(search, *stop_gradients((chunk, v)))
        # derivatives read the maximum, and do not repeat the search
        found = checkpoint_name(found, MAXIMUM)
        refine = lambda problem, maximum: with_derivatives(problem.gradient, maximum)  # noqa: E731
        beta = windows.coefficients(_map_problems(refine, chunk, v, found))
        return LikelihoodFit(beta, windows.empty, deficient, extrapolates)

    policy = jax.checkpoint_policies.save_only_these_names(MAXIMUM)
    return map_windows(fit_chunk, polynomial, q, k, width=v.shape[1], policy=policy)


def _map_problems(
    function: Callable[..., Any], chunk: tuple[Windows, Family, Array], v: Values, *others: Any
) -> Any:
    """Returns `function(problem, *others)` for each query of a chunk and each column of labels.

    `chunk`: the windows of the queries, the family, and which queries are rank-deficient. The
    arrays of `others` and of the result have the leading axes (queries, dim_v).
    """
    windows, family, deficient = chunk
    pairs = windows.basis.pairs()

    def at_query(weights: Array, products: Array, deficient: Array, *others: Any) -> Any:
        def at_label(labels: Array, *others: Any) -> Any:
            problem = _Problem.of(family, pairs, weights, products, labels, deficient)
            return function(problem, *others)

        return jax.vmap(at_label, in_axes=(1, *(0,) * len(others)))(v, *others)

    return jax.vmap(at_query)(windows.weights, windows.products, deficient, *others)


class _Problem(NamedTuple):
    """The penalised local log-likelihood of one query and one column of labels.

    `centre` are the coefficients β⁰ of the penalty, and `penalty` is λ. `pairs`: `Basis.pairs`.
    """

    family: Family
    pairs: np.ndarray
    weights: Float[Array, " keys"]
    products: Float[Array, "keys products"]
    labels: Float[Array, " keys"]
    centre: Float[Array, " terms"]
    penalty: Float[Array, " terms"]

    @classmethod
    def of(
        cls,
        family: Family,
        pairs: np.ndarray,
        weights: Float[Array, " keys"],
        products: Float[Array, "keys products"],
        labels: Float[Array, " keys"],
        deficient: Bool[Array, ""],
    ) -> "_Problem":
        """Returns the problem whose penalty is of the size of rounding.

        Where the local mean has no finite link, as where all labels are 0, the labels get the
        weight 0: the penalty alone then decides, for the link of the nearest mean that has one.
        """
        eps, count = float(jnp.finfo(weights.dtype).eps), len(pairs)
        mean = jnp.sum(weights * labels)
        inside = family.valid_mean(mean)
        is_settled = mean != inside
        weights = jnp.where(is_settled, 0.0, weights)
        first = jnp.arange(count) == 0
        eta = family.link(inside)
        _, curvature = family.score_and_curvature(inside, eta)
        sizes = jnp.matmul(weights, products, precision="highest")[pairs.diagonal()]
        share = 8 * count * eps + jnp.where(deficient & ~first, eps**0.5, 0.0)
        penalty = share * curvature * jnp.where(sizes > 0, sizes, 1.0)
        centre = jnp.where(first, eta, 0.0)
        return cls(family, pairs, weights, products, labels, centre, penalty)

    def expand(self, beta: Float[Array, " terms"]) -> Expansion:
        """Returns the penalised log-likelihood at β, its gradient and negative Hessian."""
        count, distance, eta = len(self.pairs), beta - self.centre, self._eta(beta)
        of_rows = (
            self.family.log_likelihood(self.labels, eta),
            *self.family.score_and_curvature(self.labels, eta),
        )
        # sums, not products of matrices: searches take a third of the time
        value, gradient, curvature = (
            jnp.sum((self.weights * row)[:, None] * self.products[:, :width], axis=0)
            for row, width in zip(of_rows, (1, count, self.products.shape[1]), strict=True)
        )
        return Expansion(
            value[0] - 0.5 * jnp.sum(self.penalty * distance**2),
            gradient[:count] - self.penalty * distance,
            curvature[self.pairs] + jnp.diag(self.penalty),
        )

    def gradient(self, beta: Float[Array, " terms"]) -> Float[Array, " terms"]:
        """Returns the gradient of the penalised log-likelihood at β."""
        score, _ = self.family.score_and_curvature(self.labels, self._eta(beta))
        terms = self.products[:, : len(self.pairs)]
        gradient = jnp.sum((self.weights * score)[:, None] * terms, axis=0)
        return gradient - self.penalty * (beta - self.centre)

    def _eta(self, beta: Float[Array, " terms"]) -> Float[Array, " keys"]:
        """Returns the linear predictor at all keys."""
        return jnp.sum(self.products[:, : len(self.pairs)] * beta[None, :], axis=1)


class InfluenceSums(NamedTuple):
    r"""Sums of the influence of labels on fits.

    - `variance`: $\sum_j \ell_j^2 \sigma_j^2$ of $\hat\eta$, shape (queries, dim_v).
    - `squares`: $\sum_j L_j^2$, shape (queries, dim_v), with $L_j = \ell_j \mu_j'$, the weight of
      label j on the scale of the link, and $\mu' = \mathrm{d}\mu / \mathrm{d}\eta$. One over
      `squares` is the effective number of labels.
    - `own`: $L_i$ of query i, shape (queries, dim_v): the leverage, if queries are the keys.
    - `noise`: $\sum_j \ell_j \sigma_j z_{jd}$ of standard normal numbers z, shape (queries, dim_v,
      draws).
    """

    variance: Float[Array, "queries dim_v"]
    squares: Float[Array, "queries dim_v"]
    own: Float[Array, "queries dim_v"]
    noise: Float[Array, "queries dim_v draws"]


def influence_sums(
    q: Queries,
    k: Keys,
    sd: Values,
    z: Float[Array, "keys draws"],
    local: LikelihoodFit,
    polynomial: Polynomial,
    family: Family,
    is_relative: bool,
) -> InfluenceSums:
    r"""Sums of influence at queries, from their local polynomials; 0 where no label has weight.

    **Arguments:** `sd`: $\sigma_j$; with `is_relative`, in units of $\sqrt{V(\mu_j)}$. `z`:
    standard normal numbers, one column per draw; there may be none. The others as for
    `local_likelihood`.
    """
    basis = Basis.of(polynomial, k)
    pairs = basis.pairs()
    first = (jnp.arange(len(pairs)) == 0).astype(k.dtype)

    def at_label(weights: Array, products: Array, row: Array, beta: Array, sd: Array) -> Any:
        terms = products[:, : len(pairs)]
        eta = jnp.matmul(terms, beta * basis.units(), precision="highest")
        mean = family.valid_mean(family.mean(eta))  # where the variance is not 0 to rounding
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
        arrays = windows.weights, windows.products, windows.rows
        return over_queries(*arrays, local.coefficients[windows.rows], sd)

    return map_windows(of_chunk, polynomial, q, k, width=sd.shape[1])
