r"""Local polynomials: at each query the polynomial in k − q with the least weighted squared error.

$$ \hat\beta(q) = \arg\min_\beta \sum_j w_j(q)\,
   \Big\| v_j - \sum_{|a| \le p} \beta_a\, (k_j - q)^a \Big\|^2 $$

More statistics are more values: `local_moments` attends to the values $u^a$ and $u^a v$, and each
query then solves a small system of normal equations.
"""

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from .._core.arrays import Scalar, is_concrete, wider_dtype
from ..attention import attend, jit_if_pure
from ._moments import local_moments
from ._monomials import Basis, Polynomial, solve_normal_equations, with_rank_of


class LocalFit(eqx.Module):
    r"""The local polynomials of queries.

    With $\varphi(d) = (d^a)_{|a| \le p}$, $S = \sum_j w_j \varphi(k_j - q) \varphi(k_j - q)^\top /
    \sum_j w_j$:

    - `coefficients`: $\hat\beta$, shape (*batch, queries, terms, dim_v): the value of the fit at q,
      its slope along each column (a polynomial's slope at q, not the derivative of the fit in q),
      and for p = 2 the coefficients of $d_a d_b$, a ≤ b.
    - `influence`: $S^{-1} e_1$, shape (*batch, queries, terms). The effective kernel, the weight of
      value j in the fit, is $w_j\, \varphi(k_j - q)^\top S^{-1} e_1 / \sum_l w_l$. For a derivative
      the unit vector is that of its term.
    - `log_mass`: $\log \sum_j w_j$; `empty`: whether no label has weight, so that it is −∞.
    - `condition`: the sum of the inverse eigenvalues of S, scaled to a diagonal of 1. Its minimum
      is the number of terms.
    - `deficient`: whether S is singular to rounding (rank-deficient), so that a ridge was added.
    - `extrapolates`: whether $(S^{-1})_{11} > 100$: the standard error is then about ten times that
      of a local mean with the same weights. With a Gaussian kernel this happens about 2.5
      lengthscales outside the keys for order 1 and 1 lengthscale outside for order 2. On uniform
      designs of up to three columns it was at most 41 at the keys, corners included.

    ```python
    x = jnp.linspace(0.0, 1.0, 9)
    local = ak.KernelRegression(ak.Gaussian(0.3), order=1).local_fit(x, x, 2.0 * x)
    assert jnp.allclose(local.coefficients[:, 1, 0], 2.0, atol=1e-3)  # the slope
    ```
    """

    coefficients: Float[Array, "*batch queries terms dim_v"]
    influence: Float[Array, "*batch queries terms"]
    log_mass: Float[Array, "*batch queries"]
    condition: Float[Array, "*batch queries"]
    deficient: Bool[Array, "*batch queries"]
    extrapolates: Bool[Array, "*batch queries"]

    @property
    def empty(self) -> Bool[Array, "*batch queries"]:
        """Whether no label has weight."""
        return jnp.isneginf(self.log_mass)


class ExtrapolationWarning(UserWarning):
    """A local polynomial extrapolates far outside the data, or the data do not determine it."""


def warn_of_extrapolation(description: str, support: Any, dtype: jnp.dtype) -> None:
    """Issues one `ExtrapolationWarning` if queries are rank-deficient or extrapolate, with their
    numbers; none inside `jit`.

    `support`: has the flags `deficient` and `extrapolates` of each query. `description`: of the
    smoother; `dtype`: of its sums.
    """
    flags = support.deficient, support.extrapolates
    if not is_concrete(*flags):
        return
    singular, outside = map(np.asarray, flags)
    if not np.any(singular | outside):
        return
    reasons = (
        (singular, f"the data do not determine all terms in {dtype}"),
        (outside & ~singular, "it extrapolates: its standard error is ten times a local mean's"),
    )
    counts = [f"at {np.sum(which)} {why}" for which, why in reasons if np.any(which)]
    warnings.warn(
        f"The smoother, {description}, at {singular.size} queries: {'; '.join(counts)}. Predict "
        f"nearer the data, or use a lower order or a longer lengthscale. Flags: "
        f"model.local_fit(...).extrapolates and .deficient, or Bands.reliable.",
        ExtrapolationWarning,
        stacklevel=3,
    )


MAX_INVERSE_GRAM = 100.0  # (S⁻¹)₁₁: 1 for a local mean, and at most 41 inside uniform designs


def local_polynomial(
    q: Float[Array, "*#batch queries dim"],
    k: Float[Array, "*#batch keys dim"],
    v: Float[Array, "*#batch keys dim_v"],
    polynomial: Polynomial,
    *,
    ridge: ArrayLike = 0.0,
    term: int = 0,
) -> LocalFit:
    r"""The local polynomials of order p at queries.

    **Arguments:**

    - `polynomial`: its order is p. `Auto()` means `Dense()`, `Fourier()` or `Blockwise()` here.
    - `ridge`: λ ≥ 0, added to the diagonal of S except for the constant term; in units of k.
      Default 0. Where the design is rank-deficient, $\sqrt\epsilon$ of each term is added whatever
      λ is, and directions that the keys do not determine are dropped.
    - `term`: the coefficient whose influence is returned. Default: 0, the value of the fit.

    **Returns:** a `LocalFit`.

    **Raises:** `ValueError` for `Fourier` in more than one dimension, or with a sink.

    **Source:** Fan and Gijbels, *Local polynomial modelling and its applications* (1996).
    """
    if polynomial.order:  # half precision cannot solve the normal equations
        q, k, v = (part.astype(wider_dtype(part.dtype)) for part in (q, k, v))
    ridge = jnp.asarray(ridge, q.dtype)
    return fit_at_queries(_fit_polynomials, (polynomial, term), q, k, v, ridge)


def fit_at_queries(
    function: Callable[..., Any], settings: tuple, q: Array, k: Array, v: Array, *more: Array
) -> Any:
    """Returns `function(*settings, q, k, v, *more)`, called by `jit_if_pure`; q may have no rows.

    In each array of the results the batch axes come first, then the axis of the queries.
    """
    if q.shape[-2]:
        return jit_if_pure(function, settings, q, k, v, *more)
    axis = max(q.ndim, k.ndim, v.ndim) - 2
    one = jnp.zeros((*q.shape[:-2], 1, q.shape[-1]), q.dtype)  # a gather of rows needs one row
    found = jit_if_pure(function, settings, one, k, v, *more)
    return jax.tree.map(lambda leaf: jax.lax.slice_in_dim(leaf, 0, 0, axis=axis), found)


def _fit_polynomials(
    polynomial: Polynomial,
    term: int,
    q: Float[Array, "*#batch queries dim"],
    k: Float[Array, "*#batch keys dim"],
    v: Float[Array, "*#batch keys dim_v"],
    ridge: Scalar,
) -> LocalFit:
    """Fits a polynomial at each query, by least squares with a ridge; of order 0, a weighted mean.

    `term`: the coefficient whose influence is returned.
    """
    weights, order, _, method = polynomial
    if order == 0:
        kernel, prior, rule = weights
        named = {"kernel": kernel, "prior": prior, "rule": rule, "method": method}
        mean, log_mass = attend(q, k, v, **named, return_log_mass=True)
        one, no_flag = jnp.ones_like(log_mass), jnp.zeros_like(log_mass, bool)
        fit = mean[..., None, :], one[..., None], log_mass
        return LocalFit(*fit, condition=one, deficient=no_flag, extrapolates=no_flag)
    basis = Basis.of(polynomial, k)
    # every fit reproduces constants: without their mean, values lose fewer digits to rounding
    centre = jax.lax.stop_gradient(jnp.nanmean(v, axis=-2, keepdims=True))
    gram, right, log_mass, rounding = local_moments(q, k, v, centre, weights, method, basis)
    units, outputs = basis.units(), v.shape[-1]
    if term:
        unit_vector = (jnp.arange(len(units)) == term).astype(right.dtype)[:, None] / units[term]
        unit_vector = jnp.broadcast_to(with_rank_of(unit_vector, right), (*right.shape[:-1], 1))
        right = jnp.concatenate([right, unit_vector], axis=-1)
    # units whose squares underflow get a ridge of 0
    scaled = jnp.where(ridge > 0, ridge / units / units, 0.0)
    # the last column of the solution is that of the unit vector of the constant
    solved, condition, deficient = solve_normal_equations(gram, right, scaled, rounding)
    empty = jnp.isneginf(log_mass)[..., None, None]
    solved = jnp.where(empty, 0.0, solved)
    coefficients = solved[..., :outputs] / with_rank_of(units[:, None], solved)
    constant = coefficients[..., :1, :] + with_rank_of(centre[..., None, :], coefficients)
    constant = jnp.where(empty, 0.0, constant)
    coefficients = jnp.concatenate([constant, coefficients[..., 1:, :]], axis=-2)
    influence = solved[..., outputs] / with_rank_of(units, log_mass[..., None])
    deficient = deficient & ~jnp.isneginf(log_mass)  # a query without keys has no design
    extrapolates = solved[..., 0, -1] > MAX_INVERSE_GRAM
    return LocalFit(coefficients, influence, log_mass, condition, deficient, extrapolates)
