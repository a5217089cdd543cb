"""The sums of a kernel regression, over arrays that are checked already."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.arrays import precise_matmul, wider_dtype
from .._core.symbolic_sizes import is_at_most
from .._core.tuning import MAX_DENSE_PAIRS
from ..attention import Auto, attention_weights
from ..kernels import checked_log_pair
from ..local import LocalFit, apply_effective_kernel, exponents, factorial, local_polynomial
from ..methods import Dense, Method
from ..priors import Prior
from ..rules import Softmax
from ._linear_smoother import LinearSmoother
from ._local_regression import LocalRegression
from ._smoother import DataSupport

MIN_LABELS_BY_WEIGHTS = 16  # labels of a row, from which a local polynomial sums them by weights


class LocalSmoother(LocalRegression, LinearSmoother):
    """A linear smoother by local polynomials: fits of queries q to labels v at inputs k.

    Its fields are those of `KernelRegression`.
    """

    method: eqx.AbstractVar[Method]

    def fitted(
        self, q: Array, k: Array, v: Array, prior: Prior | None, wants_slopes: bool = False
    ) -> tuple[Float[Array, "m out"], LocalFit]:
        """Fits at queries, 0 where no label has weight, and their polynomials.

        The polynomials of many labels have no coefficients, unless `wants_slopes`.
        """
        if self.order == 0 or v.shape[1] < MIN_LABELS_BY_WEIGHTS or wants_slopes:
            local = self.polynomials(q, k, v, prior)
            return local.coefficients[:, 0], local
        local = self.polynomials(q, k, v[:, :0], prior)
        centre = jax.lax.stop_gradient(jnp.mean(v, axis=0, keepdims=True))
        out = centre + apply_effective_kernel(
            q, k, v - centre, local, power=1, **self._polynomial_kwargs(k, prior)
        )
        return jnp.where(local.empty[:, None], 0.0, out), local

    def fitted_derivative(
        self, q: Array, k: Array, v: Array, prior: Prior | None, derivative: tuple[int, ...]
    ) -> tuple[Float[Array, "m out"], LocalFit]:
        """Derivatives at queries, NaN where the data do not determine them, and polynomials."""
        used = self.columns_of_quantities(k.shape[1])
        exponent = tuple(derivative[column] for column in used)
        term = exponents(len(used), self.order).index(exponent) if self.order else 0
        by_weights = self.order == 0 or v.shape[1] >= MIN_LABELS_BY_WEIGHTS
        local = self.polynomials(q, k, v[:, :0] if by_weights else v, prior, term)
        if by_weights:
            centred = v - jax.lax.stop_gradient(jnp.mean(v, axis=0, keepdims=True))
            parts = self._polynomial_kwargs(k, prior)
            out = apply_effective_kernel(
                q, k, centred, local, power=1, derivative=derivative, **parts
            )
        else:
            out = factorial(derivative) * local.coefficients[:, term]
        is_known = ~(local.empty | local.deficient)
        return jnp.where(is_known[:, None], out, jnp.nan).astype(q.dtype), local

    def slopes_at_rows(
        self, k: Array, v: Array, prior: Prior | None
    ) -> tuple[Float[Array, "n columns out"], LocalFit]:
        """First derivatives at the inputs k, along each column of quantities, NaN where the data do
        not determine them, and polynomials."""
        used = self.columns_of_quantities(k.shape[1])
        if self.order == 0:
            unit = np.eye(k.shape[1], dtype=int).tolist()
            found = [self.fitted_derivative(k, k, v, prior, tuple(unit[c])) for c in used]
            return jnp.stack([slope for slope, _ in found], axis=1), found[0][1]
        local = self.polynomials(k, k, v, prior)
        is_known = ~(local.empty | local.deficient)[:, None, None]
        return jnp.where(is_known, local.coefficients[:, 1 : 1 + len(used)], jnp.nan), local

    def sum_of_squares(
        self,
        q: Array,
        k: Array,
        v: Array,
        local: LocalFit,
        prior: Prior | None,
        derivative: tuple[int, ...] | None = None,
    ) -> Float[Array, "m out"]:
        r"""$\sum_j L_j(x)^2 v_j$ at queries, from their polynomials; of a derivative, if given."""
        parts = self._polynomial_kwargs(k, prior)
        return apply_effective_kernel(q, k, v, local, power=2, derivative=derivative, **parts)

    def dense_weights(
        self, q: Array, k: Array, v: Array, prior: Prior | None
    ) -> Float[Array, "m n"] | None:
        """$L_j(x)$ of all pairs, at least as precise as the labels v, where the fit is a mean that
        `Dense` sums; else None. One matrix then gives sums of $L_j$ and of $L_j^2$."""
        is_dense = isinstance(self.method, Auto | Dense)
        if self.order or not (is_dense and is_at_most(len(q) * len(k), MAX_DENSE_PAIRS)):
            return None
        dtype = wider_dtype(jnp.result_type(q, k, v))
        q, k = q.astype(dtype), k.astype(dtype)
        return attention_weights(q, k, kernel=self.kernel, prior=prior, rule=self.rule)

    def polynomials(
        self, q: Array, k: Array, v: Array, prior: Prior | None, term: int = 0
    ) -> LocalFit:
        """The local polynomials at queries, of checked arrays, with the influence of a term."""
        return local_polynomial(q, k, v, term=term, **self._polynomial_kwargs(k, prior))

    def require_softmax(self) -> None:
        """Raises `ValueError` unless weights are independent of each other up to their sum."""
        if not isinstance(self.rule, Softmax):
            raise ValueError(
                f"The hat matrix needs weights whose unnormalised values do not depend on each "
                f"other: rule=ak.Softmax(); got {self.rule!r}."
            )

    def _polynomial_kwargs(self, k: Float[Array, "n dim"], prior: Prior | None) -> dict[str, Any]:
        """Returns the keyword arguments of `local_polynomial`; k: the labelled inputs."""
        parts = {"kernel": self.kernel, "prior": prior, "rule": self.rule, "method": self.method}
        return parts | {"order": self.order, "columns": self.columns_of_quantities(k.shape[1])}

    def leverage(
        self, k: Float[Array, "n dim"], local: LocalFit, prior: Prior | None
    ) -> Float[Array, " n"]:
        """$L_{ii}$ of each row, from the polynomials at the inputs k; 0 for a row of weight 0."""
        own = self.log_weight_of_self(k, prior)
        has_weight = own > -jnp.inf  # a row of weight 0 may have no neighbour either
        own, log_mass = (jnp.where(has_weight, log, 0.0) for log in (own, local.log_mass))
        return jnp.where(has_weight, jnp.exp(own - log_mass) * local.influence[:, 0], 0.0)

    def log_weight_of_self(
        self, k: Float[Array, "n dim"], prior: Prior | None
    ) -> Float[Array, " n"]:
        """Returns $\\log w_{ii}$, the unnormalised log-weight of each row at its own input."""
        self.require_softmax()
        kernel, q, k = self.kernel.precomputed(k, k)
        own = self.rule.scaled_scores(jax.vmap(functools.partial(checked_log_pair, kernel))(q, k))
        rows = jnp.arange(own.shape[0])
        return own if prior is None else own + jax.vmap(prior.log_pair)(rows, rows)


def sum_weights(
    rows: Float[Array, "m n"], v: Float[Array, "n out"], variances: Float[Array, "n columns"]
) -> tuple[Float[Array, "m out"], Float[Array, "m columns"], DataSupport]:
    r"""Returns $\sum_j L_j v_j$ and $\sum_j L_j^2 \sigma_j^2$ of the weights in rows, and where no
    label has weight."""
    none = jnp.zeros(len(rows), bool)
    support = DataSupport(~jnp.any(rows > 0, axis=1), none, none)
    return precise_matmul(rows, v), precise_matmul(rows**2, variances), support
