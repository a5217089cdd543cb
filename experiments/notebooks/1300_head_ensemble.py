# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Heads as an ensemble of smoothers
#
# Multi-head attention divides the D columns of its keys among H heads, $d_k = D / H$ columns each,
# and adds up what they say. If each head is a kernel regression on its columns, the mean of the
# heads is an ensemble. Its squared error has three terms:
#
# $$ E\,(\bar f - f)^2 = \big(E \bar f - f\big)^2 + \frac1H\, \overline{\mathrm{Var}\, f_h}
#    + \Big(1 - \frac1H\Big)\, \overline{\mathrm{Cov}(f_h, f_{h'})} $$
#
# More heads have less variance each, but a head of few columns cannot see the function.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import attnkernel as ak

jax.config.update("jax_enable_x64", True)
ak.cache_programs()  # the next run of this notebook compiles nothing
plt.rcParams.update(ak.plot.STYLE)

DIM, SETS, NOISE = 8, 40, 0.3
of_queries, of_rotation, of_sets = jax.random.split(jax.random.PRNGKey(0), 3)
queries = jax.random.normal(of_queries, (64, DIM))
rotation = jnp.linalg.qr(jax.random.normal(of_rotation, (DIM, DIM)))[0]


def function(x):
    return 0.5 * jnp.sum(jnp.sin(1.5 * x), axis=-1)


truth = np.asarray(function(queries))

# %% [markdown]
# ## Heads, and weights of heads
#
# All heads share one lengthscale, by leave-one-out of their mean. Then leave-one-out also gives the
# heads weights: the least squares of the labels on what the heads say without them.

# %%
CANDIDATES = jnp.geomspace(0.2, 2.0, 9)


def fit_heads(key, n, heads):
    """The predictions of each head at the queries, and those with weights by leave-one-out."""
    of_x, of_noise = jax.random.split(key)
    x = jax.random.normal(of_x, (n, DIM))
    y = function(x) + NOISE * jax.random.normal(of_noise, (n,))
    keys, at = (
        jnp.swapaxes((rows @ rotation).reshape(len(rows), heads, -1), 0, 1) for rows in (x, queries)
    )

    def predict(lengthscale, at, prior=None):
        model = ak.KernelRegression(ak.Gaussian(lengthscale))
        return jax.vmap(lambda q, k: model(q, k, y, prior=prior))(at, keys)

    def left_out(lengthscale):
        return predict(lengthscale, keys, ak.priors.ExcludeSelf())

    scales = CANDIDATES * (DIM / heads) ** 0.5
    criteria = jax.lax.map(lambda one: jnp.mean((left_out(one).mean(0) - y) ** 2), scales)
    chosen = scales[jnp.argmin(criteria)]
    terms, each = left_out(chosen), predict(chosen, at)
    weights = jnp.linalg.solve(terms @ terms.T + 0.1 * n * jnp.eye(heads), terms @ y)
    return each, weights @ each


def terms_of(n, heads):
    keys = jax.random.split(jax.random.fold_in(of_sets, n), SETS)
    each, weighted = jax.jit(lambda keys: jax.lax.map(lambda k: fit_heads(k, n, heads), keys))(keys)
    each, weighted = np.asarray(each), np.asarray(weighted)
    centred = each - each.mean(axis=0)
    products = np.einsum("shq,sgq->hg", centred, centred) / (SETS * len(truth)) / heads**2
    bias = np.mean((each.mean(axis=(0, 1)) - truth) ** 2)
    own = np.trace(products)
    error = np.mean((each.mean(axis=1) - truth) ** 2)
    assert np.isclose(bias + products.sum(), error)  # the three terms are all there is
    return bias, own, products.sum() - own, np.mean((weighted - truth) ** 2)


# %% [markdown]
# ## How many heads?
#
# The more heads, the more bias: a head of few columns sees little of the function, and what it
# misses is noise to it. The variance of each head is small beside that. Weights by leave-one-out
# mend a part of the bias. In a live notebook, change the number of rows. The config `head_ensemble`
# runs three functions and up to 1024 rows, with intervals.

# %%
HEADS = (1, 2, 4, 8)


def draw(rows):
    found = np.array([terms_of(rows, heads) for heads in HEADS])
    equal, weighted = found[:, :3].sum(axis=1), found[:, 3]
    print(f"{rows} rows: equal weights {equal.round(2)}, by leave-one-out {weighted.round(2)}")
    _, ax = plt.subplots(figsize=(5.0, 3.4))
    below = np.zeros(len(HEADS))
    names = ("bias²", "variance ÷ H", "covariance")
    colors = (ak.plot.BLUE, ak.plot.GREEN, ak.plot.PURPLE)
    for name, color, part in zip(names, colors, found.T[:3], strict=True):
        ax.bar(range(4), part, bottom=below, color=color, label=name)
        below = below + part
    ax.plot(range(4), weighted, "o", color=ak.plot.ORANGE, label="weights by leave-one-out")
    ax.set_xticks(range(4), [f"{h} of {DIM // h}" for h in HEADS])
    ax.set(title=f"{rows} rows", xlabel="heads of d_k columns", ylabel="squared error")
    ax.legend()
    ak.plot.show("heads")


ak.plot.interact(draw, rows=(256, 64, 512))
