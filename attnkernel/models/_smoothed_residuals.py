r"""The sums of iterated bias reduction, over arrays that are checked already.

$$ z = \sum_{i<k} (I - L)^i\, y, \qquad \hat y_k = L z = \big( I - (I - L)^k \big)\, y $$
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.arrays import precise_matmul
from .._core.symbolic_sizes import is_at_most
from ..local import LocalFit
from ..priors import KeyWeights, Prior
from ._regression import KernelRegression

MAX_STORED_WEIGHTS = 2**20  # entries of L that later iterations keep


def fit_reduced(
    model: KernelRegression,
    iterations: int,
    prior: Prior | None,
    is_shared: bool,
    wants_slopes: bool,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> tuple[Float[Array, "m out"], LocalFit]:
    """Returns predictions and local polynomials; `is_shared`: all queries see the same labels."""
    if is_shared:
        return model.fitted(
            q, k, _add_residuals(model, iterations, prior, k, v), prior, wants_slopes
        )
    assert prior is not None

    def fit_query(i: Array) -> tuple[Array, LocalFit]:
        seen = KeyWeights(prior.pairwise(i[None], jnp.arange(k.shape[0]))[0].astype(k.dtype))
        labels = _add_residuals(model, iterations, seen, k, v)
        fitted = model.fitted(q[i][None], k, labels, seen, wants_slopes)
        return jax.tree.map(lambda leaf: leaf[0], fitted)

    # a derivative stores only the index of each query
    return jax.lax.map(jax.checkpoint(fit_query, prevent_cse=False), jnp.arange(q.shape[0]))


def _add_residuals(
    model: KernelRegression,
    iterations: int,
    prior: Any,
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> Float[Array, "n out"]:
    """Returns z, the labels v plus the residuals of all iterations but the last; k: the inputs."""
    v = _zero_hidden(prior, v)
    smooth = lambda rest: model.fitted(k, k, rest, prior)[0].astype(v.dtype)  # noqa: E731
    rest = _zero_hidden(prior, v - smooth(v))  # labels far from 0 are smoothed centred, only here
    if is_at_most(k.shape[0] ** 2, MAX_STORED_WEIGHTS) and iterations > 2:
        matrix = _smoother_matrix(model, prior, k).astype(v.dtype)
        smooth = functools.partial(precise_matmul, matrix)

    def iterate(carried: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        z, rest = carried
        rest = _zero_hidden(prior, rest - smooth(rest))
        return (z + rest, rest), None

    return jax.lax.scan(iterate, (v + rest, rest), None, length=iterations - 2)[0][0]


def _zero_hidden(prior: Any, v: Float[Array, "n out"]) -> Float[Array, "n out"]:
    """Returns the labels v with 0 in the rows whose weight in the prior is zero."""
    if prior is None:
        return v
    log_weights = prior.pairwise(jnp.zeros(1, int), jnp.arange(len(v)))[0]
    return jnp.where(jnp.isneginf(log_weights)[:, None], 0.0, v)


def _smoother_matrix(
    model: KernelRegression, prior: Prior | None, k: Float[Array, "n dim"]
) -> Float[Array, "n n"]:
    """Returns the hat matrix L of the model at the inputs k, without bias reduction."""
    return model.fitted(k, k, jnp.eye(k.shape[0], dtype=k.dtype), prior)[0]


def reduced_fitted_and_leverage(
    model: KernelRegression,
    iterations: int,
    prior: Prior | None,
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> tuple[Float[Array, "n out"], Float[Array, " n"]]:
    r"""Returns $A v$ and the diagonal of $A = I - (I - L)^t$, for t iterations at the inputs k."""
    left = jnp.eye(k.shape[0], dtype=k.dtype) - _smoother_matrix(model, prior, k)
    with jax.default_matmul_precision("highest"):
        half = jnp.linalg.matrix_power(left, iterations // 2)
        rest = half @ left if iterations % 2 else half
    leverage = 1.0 - jnp.sum(half * rest.T, axis=1)
    return model.fitted(k, k, _add_residuals(model, iterations, prior, k, v), prior)[0], leverage


def reduced_weights(
    model: KernelRegression,
    iterations: int,
    prior: Prior | None,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
) -> Float[Array, "m n"]:
    """Returns $L_j(q)$, the weights of the labels in predictions after all iterations."""
    eye = jnp.eye(k.shape[0], dtype=k.dtype)
    return model.fitted(q, k, _add_residuals(model, iterations, prior, k, eye), prior)[0]


def reduced_variance(
    model: KernelRegression,
    iterations: int,
    prior: Prior | None,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> Float[Array, "m out"]:
    r"""Returns $\sum_j L_j(q)^2 v_j$ at the queries; v: the variances of the labels."""
    return precise_matmul(reduced_weights(model, iterations, prior, q, k) ** 2, v)
