r"""Heads as an ensemble of smoothers: the error of their mean, and of weights by leave-one-out.

$$ E\,(\bar f - f)^2 = \big(E \bar f - f\big)^2 + \frac1H\, \overline{\mathrm{Var}\, f_h}
   + \Big(1 - \frac1H\Big)\, \overline{\mathrm{Cov}(f_h, f_{h'})},
   \qquad \bar f = \frac1H \sum_h f_h $$

Head h is the local constant fit on $W_h x$, d_k of D rotated coordinates, with $H d_k = D$; one
lengthscale for all heads is chosen by leave-one-out of their mean.

Data sets of n rows are padded to the longest, and the sums skip blocks of padding, so that one
program fits all lengths and functions.

**Source:** Ueda and Nakano, *Generalization error of ensemble estimators* (1996).
"""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

import attnkernel as ak

SHRINKAGE = np.geomspace(1e-3, 1e3, 13)  # of weights towards equal ones, over n
BLOCK_ROWS = 256  # of 1024 rows, those without data are then skipped

Function = Literal["additive", "one direction", "rough"]


def additive(x: Float[Array, "rows dim"]) -> Float[Array, " rows"]:
    return (2 / x.shape[1]) ** 0.5 * jnp.sum(jnp.sin(1.5 * x), axis=1)


def one_direction(x: Float[Array, "rows dim"]) -> Float[Array, " rows"]:
    return 2**0.5 * jnp.sin(1.5 * jnp.sum(x, axis=1) / x.shape[1] ** 0.5)


def rough(x: Float[Array, "rows dim"]) -> Float[Array, " rows"]:
    frequency = jax.random.normal(jax.random.PRNGKey(7), (x.shape[1], 64)) / x.shape[1] ** 0.5
    phase = jnp.linspace(0.0, 2 * jnp.pi, 64, endpoint=False)
    return 32**-0.5 * jnp.sum(jnp.cos(1.5 * x @ frequency + phase[None]), axis=1)


# functions of standard normal inputs with a variance near 1
FUNCTIONS = {"additive": additive, "one direction": one_direction, "rough": rough}


class Heads(NamedTuple):
    """Predictions of one data set at the queries, and what leave-one-out chose."""

    each: Float[Array, "heads queries"]
    weighted: Float[Array, " queries"]
    weights: Float[Array, " heads"]
    lengthscale: Float[Array, ""]


def decompose_error(
    each: Float[np.ndarray, "sets heads queries"], truth: Float[np.ndarray, " queries"]
) -> dict[str, float]:
    """Returns the terms of the error of the mean of heads, averaged over queries, from predictions
    of many data sets; `bias` is squared.
    """
    heads = each.shape[1]
    centred = each - each.mean(axis=0)
    products = np.einsum("shq,sgq->hg", centred, centred) / (len(each) * each.shape[2])
    own, all_pairs = np.trace(products), products.sum()
    return {
        "bias": float(np.mean((each.mean(axis=(0, 1)) - truth) ** 2)),
        "variance": float(own / heads**2),
        "covariance": float((all_pairs - own) / heads**2),
        "error": float(np.mean((each.mean(axis=1) - truth) ** 2)),
    }


def fit_heads(
    x: Float[Array, "rows dim"],
    y: Float[Array, " rows"],
    queries: Float[Array, "queries dim"],
    rotation: Float[Array, "dim dim"],
    heads: int,
    lengthscales: Float[Array, " candidates"],
    n: Int[Array, ""] | int,
) -> Heads:
    """Fits heads on blocks of the rotated coordinates, to the first n rows."""
    keys, at = (
        jnp.swapaxes((rows @ rotation).reshape(len(rows), heads, -1), 0, 1) for rows in (x, queries)
    )
    is_row = jnp.arange(len(x)) < n
    y = jnp.where(is_row, y, 0.0)
    method = ak.methods.Blockwise(BLOCK_ROWS, BLOCK_ROWS)

    def predict(lengthscale: Array, at: Array, prior: ak.priors.Prior) -> Array:
        model = ak.KernelRegression(ak.Gaussian(lengthscale), method=method)
        return jax.vmap(lambda q, k: model(q, k, y, prior=prior))(at, keys)

    def left_out(lengthscale: Array) -> Float[Array, "heads rows"]:
        others = ak.priors.ExcludeSelf() & ak.priors.Lengths(queries=n, keys=n)
        return jnp.where(is_row[None], predict(lengthscale, keys, others), 0.0)

    criteria = jax.lax.map(
        lambda one: jnp.sum((jnp.mean(left_out(one), axis=0) - y) ** 2) / n, lengthscales
    )
    chosen = lengthscales[jnp.argmin(criteria)]
    weights = shrunken_weights(left_out(chosen).T, y, n)
    each = predict(chosen, at, ak.priors.Lengths(keys=n))
    return Heads(each, weights @ each, weights, chosen)


def shrunken_weights(
    predictions: Float[Array, "rows heads"], y: Float[Array, " rows"], n: Int[Array, ""] | int
) -> Float[Array, " heads"]:
    r"""$\arg\min_w \lVert y - P w \rVert^2 + \lambda \lVert w - 1/H \rVert^2$, with the λ that has
    the least leave-one-out error of this regression, from its hat matrix.

    All rows but the first n are 0.
    """
    heads = predictions.shape[1]
    equal = jnp.full(heads, 1.0 / heads)
    residual = y - predictions @ equal

    def of(shrinkage: Array) -> tuple[Array, Array]:
        gram = predictions.T @ predictions + shrinkage * n * jnp.eye(heads)
        solved = jnp.linalg.solve(gram, predictions.T)
        change = solved @ residual
        leverage = jnp.sum(predictions * solved.T, axis=1)
        error = (residual - predictions @ change) / (1.0 - leverage)
        return jnp.sum(error**2) / n, equal + change

    errors, weights = jax.lax.map(of, jnp.asarray(SHRINKAGE))
    return weights[jnp.argmin(errors)]


@eqx.filter_jit
def fit_data_sets(
    keys: Array, function: Int[Array, ""], noise: Float[Array, ""], longest: int, **heads: Any
) -> Heads:
    """Fits the heads to a data set of standard normal inputs for each key; `heads`: the arguments
    of `fit_heads`, but for x and y.

    It draws `longest` rows and uses the first n. These are the same for any `longest`, since random
    bits do not depend on the number of rows (`jax_threefry_partitionable`).
    """

    def one(key: PRNGKeyArray) -> Heads:
        of_x, of_noise = jax.random.split(key)
        x = jax.random.normal(of_x, (longest, heads["queries"].shape[1]))
        truth = jax.lax.switch(function, list(FUNCTIONS.values()), x)
        return fit_heads(x, truth + noise * jax.random.normal(of_noise, (longest,)), **heads)

    return jax.lax.map(one, keys)
