"""The local polynomials of queries, and where they extrapolate or are rank-deficient."""

import warnings

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._core.host_arrays import is_concrete


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


def warn_of_extrapolation(
    description: str,
    deficient: Bool[Array, "*batch queries"],
    extrapolates: Bool[Array, "*batch queries"],
    dtype: jnp.dtype,
) -> None:
    """Gives one warning that counts the queries of both kinds; none inside `jit`.

    `description`: of the smoother; `dtype`: of its sums.
    """
    if not is_concrete(deficient, extrapolates):
        return
    singular, outside = np.asarray(deficient), np.asarray(extrapolates)
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
