r"""Heads as an ensemble of smoothers: the error of their mean, and of weights by leave-one-out.

$$ E\,(\bar f - f)^2 = \big(E \bar f - f\big)^2 + \frac1H\, \overline{\mathrm{Var}\, f_h}
   + \Big(1 - \frac1H\Big)\, \overline{\mathrm{Cov}(f_h, f_{h'})},
   \qquad \bar f = \frac1H \sum_h f_h $$

Head h is the local constant fit on $W_h x$, d_k of D rotated coordinates, with $H d_k = D$; one
lengthscale for all heads is chosen by leave-one-out of their mean.

**Source:** Ueda and Nakano, *Generalization error of ensemble estimators* (1996).
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import attnkernel as ak

SHRINKAGE = np.geomspace(1e-3, 1e3, 13)  # of weights towards equal ones, over n


class Heads(NamedTuple):
    """Predictions of one data set at the queries, and what leave-one-out chose."""

    each: Float[Array, "heads queries"]
    weighted: Float[Array, " queries"]
    weights: Float[Array, " heads"]
    lengthscale: Float[Array, ""]


class Decomposition(NamedTuple):
    """The terms of the error of the mean of heads, averaged over queries."""

    bias: float  # squared
    variance: float
    covariance: float
    error: float

    @classmethod
    def of(
        cls, each: Float[np.ndarray, "sets heads queries"], truth: Float[np.ndarray, " queries"]
    ) -> "Decomposition":
        """From predictions of many data sets."""
        heads = each.shape[1]
        centred = each - each.mean(axis=0)
        products = np.einsum("shq,sgq->hg", centred, centred) / (len(each) * each.shape[2])
        own, all_pairs = np.trace(products), products.sum()
        return cls(
            float(np.mean((each.mean(axis=(0, 1)) - truth) ** 2)),
            float(own / heads**2),
            float((all_pairs - own) / heads**2),
            float(np.mean((each.mean(axis=1) - truth) ** 2)),
        )


def fit_heads(
    x: Float[Array, "n dim"],
    y: Float[Array, " n"],
    queries: Float[Array, "queries dim"],
    rotation: Float[Array, "dim dim"],
    heads: int,
    lengthscales: Float[Array, " candidates"],
) -> Heads:
    """Fits heads on blocks of the rotated coordinates."""
    keys, at = (
        jnp.swapaxes((rows @ rotation).reshape(len(rows), heads, -1), 0, 1) for rows in (x, queries)
    )

    def predict(lengthscale: Array, at: Array, prior: ak.priors.Prior | None = None) -> Array:
        model = ak.KernelRegression(ak.Gaussian(lengthscale))
        return jax.vmap(lambda q, k: model(q, k, y, prior=prior))(at, keys)

    def left_out(lengthscale: Array) -> Float[Array, "heads n"]:
        return predict(lengthscale, keys, ak.priors.ExcludeSelf())

    criteria = jax.lax.map(
        lambda one: jnp.mean((jnp.mean(left_out(one), axis=0) - y) ** 2), lengthscales
    )
    chosen = lengthscales[jnp.argmin(criteria)]
    weights = shrunken_weights(left_out(chosen).T, y)
    each = predict(chosen, at)
    return Heads(each, weights @ each, weights, chosen)


def shrunken_weights(
    predictions: Float[Array, "n heads"], y: Float[Array, " n"]
) -> Float[Array, " heads"]:
    r"""$\arg\min_w \lVert y - P w \rVert^2 + \lambda \lVert w - 1/H \rVert^2$, with the λ that has
    the least leave-one-out error of this regression, from its hat matrix.
    """
    n, heads = predictions.shape
    equal = jnp.full(heads, 1.0 / heads)
    residual = y - predictions @ equal

    def of(shrinkage: Array) -> tuple[Array, Array]:
        gram = predictions.T @ predictions + shrinkage * n * jnp.eye(heads)
        solved = jnp.linalg.solve(gram, predictions.T)
        change = solved @ residual
        leverage = jnp.sum(predictions * solved.T, axis=1)
        error = (residual - predictions @ change) / (1.0 - leverage)
        return jnp.mean(error**2), equal + change

    errors, weights = jax.lax.map(of, jnp.asarray(SHRINKAGE))
    return weights[jnp.argmin(errors)]


@eqx.filter_jit
def fit_data_sets(
    key: PRNGKeyArray,
    function: Callable[[Array], Array],
    queries: Float[Array, "queries dim"],
    rotation: Float[Array, "dim dim"],
    heads: int,
    lengthscales: Float[Array, " candidates"],
    n: int,
    noise: float,
    sets: int,
) -> Heads:
    """Fits the heads to many data sets of standard normal inputs."""

    def one(key: PRNGKeyArray) -> Heads:
        of_x, of_noise = jax.random.split(key)
        x = jax.random.normal(of_x, (n, queries.shape[1]))
        y = function(x) + noise * jax.random.normal(of_noise, (n,))
        return fit_heads(x, y, queries, rotation, heads, lengthscales)

    return jax.lax.map(one, jax.random.split(key, sets))
