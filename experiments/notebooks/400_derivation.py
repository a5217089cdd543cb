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
# # The derivation, one change at a time
#
# A kernel regression of 1964 becomes the self-attention of a transformer in eight steps, after
# Murphy, *Probabilistic Machine Learning*, 15.4.2 and 15.5. Each step is an identity: left the
# formula written out, right one call of the library. We print their largest deviation, in double
# precision about $10^{-16}$.

# %%
import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.nn import softmax

import attnkernel as ak

jax.config.update("jax_enable_x64", True)
ak.cache_programs()  # the next run of this notebook compiles nothing
plt.rcParams.update(ak.plot.STYLE)

n, d, sigma = 12, 5, 0.8
of_q, of_k, of_v, of_x, of_module, of_scores = jax.random.split(jax.random.PRNGKey(0), 6)
q, k = jax.random.normal(of_q, (n, d)), jax.random.normal(of_k, (n, d))
v, x = jax.random.normal(of_v, (n, 3)), jax.random.normal(of_x, (n, d))


def compare(step, left, right):
    print(f"{step}: largest deviation {jnp.max(jnp.abs(left - right)):.0e}")


# %% [markdown]
# ## 1. Normalised Gaussian weights are a softmax
#
# The Nadaraya–Watson estimator weights each label by a density centred at its input, divided by
# the sum of all,
#
# $$
# w_i(q) = \frac{N(q \mid k_i, \sigma^2 I)}{\sum_j N(q \mid k_j, \sigma^2 I)}
#        = \operatorname{softmax}_i \Big( -\frac{\lVert q - k_i \rVert^2}{2 \sigma^2} \Big),
# \qquad q, k_i \in \mathbb{R}^d
# $$
#
# The constant of the density, $(2 \pi \sigma^2)^{-d/2}$, cancels.

# %%
squares = jnp.sum((q[:, None] - k[None]) ** 2, axis=2)
density = jnp.exp(-squares / (2 * sigma**2)) / (2 * jnp.pi * sigma**2) ** (d / 2)
weights = density / jnp.sum(density, axis=1, keepdims=True)
gaussian = ak.Gaussian(sigma)
compare(1, weights, ak.attention_weights(q, k, kernel=gaussian))

# %% [markdown]
# ## 2. The score is any function of a query and a key
#
# $w_i(q) = \operatorname{softmax}_i\, a(q, k_i)$ for a score $a(q, k) \in \mathbb{R}$. Here the
# additive one of Bahdanau, $a(q, k) = u^\top \tanh(q + k)$.

# %%
u = x[0]
additive = softmax(jnp.tanh(q[:, None] + k[None]) @ u)
compare(2, additive, ak.attention_weights(q, k, kernel=ak.kernels.AdditiveScore(u)))

# %% [markdown]
# ## 3. Other names
#
# The test point is a *query*, inputs are *keys*, labels are *values*. Values may be vectors:
# $\hat f(q) = \sum_i w_i(q)\, v_i$, $v_i \in \mathbb{R}^m$.

# %%
compare(3, weights @ v, ak.KernelRegression(gaussian)(q, k, v))

# %% [markdown]
# ## 4. The square, expanded
#
# $-\tfrac12 \lVert q - k_i \rVert^2 / \sigma^2 = q^\top k_i / \sigma^2 -
# \tfrac12 \lVert k_i \rVert^2 / \sigma^2 - \tfrac12 \lVert q \rVert^2 / \sigma^2$. The last term is
# the same for all keys: the softmax ignores it. The middle one is a bias of each key, which in the
# library is a prior. With keys of one length it drops too.

# %%
product = ak.DotProduct(1 / sigma**2)
bias = ak.priors.KeyWeights(-jnp.sum(k**2, axis=1) / (2 * sigma**2))
compare(4, weights @ v, ak.attend(q, k, v, kernel=product, prior=bias))

# %% [markdown]
# ## 5. Keys of length one, and $\sigma^2 = \sqrt d$
#
# The Gaussian score becomes the scaled dot product, $a(q, k) = q^\top k / \sqrt d$.

# %%
unit = k / jnp.linalg.norm(k, axis=1, keepdims=True)
apart = jnp.sum((q[:, None] - unit[None]) ** 2, axis=2)
compare(5, softmax(-apart / (2 * d**0.5)) @ v, ak.attend(q, unit, v, kernel=ak.DotProduct()))

# %% [markdown]
# ## 6. All queries at once
#
# $\operatorname{softmax}(Q K^\top / \sqrt d)\, V$, the softmax along rows, is one query at a time.

# %%
rows = jnp.stack([softmax(row @ k.T / jnp.sqrt(d)) @ v for row in q])
compare(6, rows, ak.attend(q, k, v, kernel=ak.DotProduct()))

# %% [markdown]
# ## 7. Self-attention
#
# Every token $x_i$ is query, key and value. The module below computes this when its projections
# are the identity.

# %%
module = ak.SelfAttention(d, key=of_module)


def projections(module):
    return [module.query_proj.weight, module.key_proj.weight, module.value_proj.weight]


plain = eqx.tree_at(projections, module, [jnp.eye(d)] * 3)
compare(7, softmax(x @ x.T / d**0.5) @ x, plain(x))

# %% [markdown]
# ## 8. Learned projections
#
# $Q = X W_q^\top$, $K = X W_k^\top$, $V = X W_v^\top$: a token is matched on one aspect, and
# returns another. In the library projections go before any kernel.

# %%
w_q, w_k, w_v = projections(module)
written = softmax((x @ w_q.T) @ (x @ w_k.T).T / d**0.5) @ (x @ w_v.T)
projected = ak.kernels.Projected(ak.DotProduct(), module.query_proj, module.key_proj)
compare(8, written, ak.attend(x, x, x @ w_v.T, kernel=projected))

# %% [markdown]
# Several such heads and a projection of their results are Equinox's `MultiheadAttention`. Our
# layer has the same parameter names, so weights can be copied, and the outputs agree.

# %%
theirs = eqx.nn.MultiheadAttention(num_heads=2, query_size=6, key=of_module)
ours = ak.MultiheadAttention(num_heads=2, query_size=6, key=of_x)
names = ["query_proj", "key_proj", "value_proj", "output_proj"]


def of_layer(layer):
    return [getattr(layer, name).weight for name in names]


ours = eqx.tree_at(of_layer, ours, of_layer(theirs))
tokens = jax.random.normal(of_x, (n, 6))
compare("Equinox", theirs(tokens, tokens, tokens), ours(tokens, tokens, tokens))

# %% [markdown]
# ## Why $\sqrt d$
#
# For $q, k$ with independent standard normal entries, $q^\top k$ has mean 0 and variance $d$. The
# softmax of such large scores puts all weight on one key, and its slope vanishes: $\partial a /
# \partial s = \operatorname{diag}(a) - a a^\top \to 0$. After division by $\sqrt d$ the variance
# is 1 in every dimension. In a live notebook, move the exponent $p$ of $s = q^\top k / d^p$.


# %%
dims = 2 ** np.arange(1, 11)


@jax.jit
def scores_of(key):
    at_query, at_key = jax.random.split(key)
    long_q = jax.random.normal(at_query, (256, int(dims[-1])))
    long_k = jax.random.normal(at_key, (64, int(dims[-1])))
    return jnp.stack([long_q[:, :size] @ long_k[:, :size].T for size in dims])


raw = scores_of(of_scores)


@jax.jit
def told(power):
    s = raw / dims[:, None, None] ** power
    a = softmax(s)
    entropy = -jnp.sum(jax.scipy.special.xlogy(a, a), axis=2)
    square = jnp.sum(a**2, 2) - 2 * jnp.sum(a**3, 2) + jnp.sum(a**2, 2) ** 2
    slope = jnp.sqrt(jnp.maximum(square, 0.0))  # of one key alone it is 0 but for rounding
    return jnp.var(s, axis=(1, 2)), jnp.mean(entropy, axis=1), jnp.mean(slope, axis=1)


for power in (0.0, 0.5):
    variance, entropy, slope = told(power)
    print(
        f"d = {dims[-1]}, divided by d^{power}: variance {variance[-1]:.3g}, "
        f"entropy {entropy[-1]:.2g} of {np.log(64):.2f} nats, slope {slope[-1]:.2g}"
    )


# %%
def draw(p):
    _, axes = plt.subplots(1, 3, figsize=(9.0, 3.0), sharex=True)
    names = ["variance of the score", "entropy of the weights (nats)", "norm of the slope"]
    for ax, name, bare, scaled in zip(axes, names, told(0.0), told(p), strict=True):
        ax.plot(dims, bare, "o--", color=ak.plot.ORANGE, label="$q^\\top k$")
        ax.plot(dims, scaled, "s-", color=ak.plot.BLUE, label=f"$q^\\top k / d^{{{p:.2g}}}$")
        ax.set(xlabel="dimension d", title=name)
        ax.set_xscale("log", base=2)
    axes[0].set_yscale("log", base=2)
    axes[0].set_ylabel("of 256 queries and 64 keys")
    axes[0].legend()
    ak.plot.show("scale")


ak.plot.interact(draw, p=(0.5, 0.0, 1.0))
