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
# # Kernels, priors and rules
#
# One sum, three exchangeable parts.
#
# $$
# \mathrm{attend}(q_i) = \sum_{j=1}^{n} a_{ij}\, v_j, \qquad
# a_{i \cdot} = \mathrm{rule}\big(\log K(q_i, k_j) + \log \pi(i, j)\big), \qquad
# q_i, k_j \in \mathbb{R}^d
# $$
#
# The *kernel* $K$ measures the similarity of two points. The *prior* $\pi$ depends on positions
# alone: it masks or reweights keys. The *rule* turns the scores of a query into weights that sum
# to 1. Every kernel works with every prior and every rule.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import attnkernel as ak

jax.config.update("jax_enable_x64", True)
ak.cache_programs()  # the next run of this notebook compiles nothing
plt.rcParams.update(ak.plot.STYLE)

# %% [markdown]
# ## Kernels
#
# Most kernels are functions of the distance in lengthscales, $r = \lVert q - k \rVert / \ell$.
# They differ at $r = 0$, smooth or with a cusp, and in their tail. The Gaussian falls like
# $e^{-r^2/2}$, the Laplace like $e^{-r}$, the Cauchy like $r^{-2}$; a *compact* kernel is 0 from
# $r = 1$ on. We print $K$ at a few distances.

# %%
smooth = [ak.Gaussian(1.0), ak.Laplace(1.0), ak.kernels.Matern32(1.0), ak.kernels.Cauchy(1.0)]
compact = [
    ak.kernels.Boxcar(1.0),
    ak.kernels.Triangular(1.0),
    ak.Epanechnikov(1.0),
    ak.kernels.Tricube(1.0),
]

origin, some = jnp.zeros((1, 1)), jnp.array([[0.0], [0.5], [0.99], [2.0], [4.0]])
print(f"{'r':14s}", *(f"{r:9.2f}" for r in some[:, 0]))
for kernel in smooth + compact:
    values = jnp.exp(kernel.pairwise(origin, some))[0]
    print(f"{type(kernel).__name__:14s}", *(f"{value:9.4f}" for value in values))

# %%
r = jnp.linspace(-3.0, 3.0, 601)[:, None]
_, sides = plt.subplots(1, 2, figsize=(8.4, 2.9), sharey=True)
for side, kernels, title in zip(
    sides, (smooth, compact), ("smooth or with a cusp", "compact"), strict=True
):
    for one, dashes in zip(kernels, ("-", "--", "-.", ":"), strict=True):
        shape = jnp.exp(one.pairwise(origin, r))[0]
        side.plot(r[:, 0], shape, dashes, label=type(one).__name__)
    side.set(xlabel="(k − q) / ℓ, in lengthscales", title=title)
    side.legend(loc="upper center", ncols=2)
sides[0].set(ylabel="kernel K(q, k)", ylim=(0.0, 1.4))
ak.plot.show("kernels")

# %% [markdown]
# Kernels multiply, which adds their logarithms; `on` selects the columns of a kernel. Here are a
# place and a category: one lengthscale in kilometres, and a factor of 0.2 if the category differs.

# %%
mixed = ak.Gaussian(2.0).on(0) * ak.kernels.LiRacine(0.2).on(1)
here = jnp.array([[0.0, 1.0]])
others = jnp.array([[0.0, 1.0], [2.0, 1.0], [2.0, 0.0]])  # kilometres, category
print("K =", jnp.exp(mixed.pairwise(here, others))[0].round(4))

# %% [markdown]
# ## Priors
#
# A mask is a prior of 0 or 1. Masks combine like sets; priors of any kind multiply, as kernels do:
#
# $$
# \pi_{A\,\&\,B} = \pi_A \pi_B, \qquad \pi_{A | B} = \max(\pi_A, \pi_B), \qquad
# \pi_{\sim A} = 1 - \pi_A, \qquad \pi_{A * B} = \pi_A \pi_B
# $$
#
# The product is for biases, such as ALiBi's $\log \pi = -m\,|i - j|$. No prior is stored as a
# matrix: a streaming sum evaluates one block of positions at a time, and skips blocks that are
# fully masked.

# %%
causal, window = ak.Causal(), ak.Window(3, 3)
first = ak.priors.MaskFunction(lambda i, j: j < 2)  # any function of two positions
priors = {
    "causal": causal,
    "window": window,
    "causal & window": causal & window,
    "causal & ~window": causal & ~window,
    "causal & (window | first)": causal & (window | first),
    "causal × ALiBi": causal * ak.Alibi(0.3),
}
rows = jnp.arange(16)
seen = {name: np.exp(prior.pairwise(rows, rows)) for name, prior in priors.items()}
for prior, pairs in seen.items():
    print(f"{prior:26s} {np.count_nonzero(pairs):4d} of {pairs.size} pairs are seen")

# %%
figure, axes = plt.subplots(2, 3, figsize=(7.6, 5.0), sharex=True, sharey=True)
for ax, (name, pi) in zip(axes.ravel(), seen.items(), strict=True):
    image = ax.imshow(pi, cmap="Blues", vmin=0.0, vmax=1.0)
    ax.set_title(name)
    ax.set(xlabel="key j", ylabel="query i", xticks=[0, 5, 10, 15], yticks=[0, 5, 10, 15])
    ax.label_outer()
figure.colorbar(image, ax=axes, label="prior π(i, j)", shrink=0.7)
ak.plot.show("priors")

# %% [markdown]
# ## Rules
#
# A rule solves a problem on the simplex $\Delta$. It trades a high mean score against a measure
# $\Omega$ of spread, at a temperature $\tau > 0$:
#
# $$ a = \arg\max_{a \in \Delta} \sum_j a_j s_j + \tau\, \Omega(a) $$
#
# With Shannon's entropy it is the softmax, $a_j \propto e^{s_j / \tau}$, never 0. With Tsallis'
# entropy of order $\alpha > 1$ it is the entmax, exactly 0 below a threshold. `Uniform` ignores
# the scores: its weights are the prior.

# %%
rules = {
    "softmax": ak.Softmax(),
    "entmax, α = 1.5": ak.Entmax(1.5),
    "entmax, α = 2": ak.Entmax(ak.fixed(2.0)),
    "uniform": ak.rules.Uniform(),
}
k = jnp.linspace(-3.0, 3.0, 61)[:, None]
q = jnp.zeros((1, 1))
weights = {n: ak.attention_weights(q, k, kernel=ak.Gaussian(1.0), rule=rules[n])[0] for n in rules}
for by, a in weights.items():
    print(f"{by:16s} sum {a.sum():.6f}, keys with weight {jnp.count_nonzero(a):2d} of {len(k)}")

# %% [markdown]
# ### Entmax of a Gaussian is a compact kernel
#
# The weights of an entmax of order $\alpha = 1 + 1/n$ are $(1 + (s - \lambda)/n)_+^n$. The
# threshold $\lambda$ of each query makes them sum to 1. With the score of a Gaussian,
# $s = -d^2 / 2\ell^2$, they are, up to a factor,
#
# $$
# \Big(1 - \frac{d^2}{h^2}\Big)_+^n, \qquad h = \ell \sqrt{2 (n - \lambda)}
# $$
#
# For $n = 1, 2, 3$ this is the Epanechnikov, biweight and triweight kernel. Its half-width $h$
# adapts to each query: narrow where keys are dense, wide where they are sparse. `return_log_mass`
# returns $\lambda$. We compare all weights for 40 queries and 200 keys.

# %%
of_q, of_k = jax.random.split(jax.random.PRNGKey(0))
queries, keys = jax.random.normal(of_q, (40, 1)), jax.random.normal(of_k, (200, 1))
gaussian = ak.Gaussian(1.0)
for n, shape_of_n in {1: ak.Epanechnikov, 2: ak.kernels.Biweight, 3: ak.kernels.Triweight}.items():
    rule = ak.Entmax(ak.fixed(1 + 1 / n))
    ours = ak.attention_weights(queries, keys, kernel=gaussian, rule=rule)
    _, level = ak.attend(queries, keys, keys, kernel=gaussian, rule=rule, return_log_mass=True)
    widths = jnp.sqrt(2 * (n - level))
    theirs = [
        ak.attention_weights(query[None], keys, kernel=shape_of_n(width))[0]
        for query, width in zip(queries, widths, strict=True)
    ]
    deviation = jnp.abs(ours - jnp.stack(theirs)).max()
    print(
        f"n = {n}: {shape_of_n.__name__:12s} half-widths {widths.min():.2f} to {widths.max():.2f}, "
        f"largest deviation {deviation:.1e}"
    )

# %% [markdown]
# ### The temperature
#
# Left, the four rules at $\tau = 1$: the weights of 61 keys for a query at 0. Right, the effect of
# the temperature with a prior, here keys from $-1$ on. At a low $\tau$ the nearest key has all the
# weight; at a high $\tau$ the weights are the prior. In a live notebook, move $\tau$.


# %%
from_minus_one = ak.priors.MaskArray((k[:, 0] >= -1.0)[None, :])


def draw(log10_temperature):
    tau = jnp.asarray(10.0**log10_temperature)
    _, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.2), sharex=True)
    for (name, a), dashes in zip(weights.items(), ("-", "--", "-.", ":"), strict=True):
        left.plot(k[:, 0], a, dashes, label=name)
    for name, rule, mark in (
        ("softmax", ak.Softmax(tau), "o"),
        ("entmax, α = 2", ak.Entmax(ak.fixed(2.0), tau), "s"),
    ):
        options = {"kernel": ak.Gaussian(1.0), "prior": from_minus_one, "rule": rule}
        a = ak.attention_weights(q, k, **options)[0]
        right.plot(k[:, 0], a, mark, markersize=3, label=f"{name}: {1 / jnp.sum(a**2):.1f} keys")
    left.set(xlabel="key k", ylabel="weight a", title="four rules, τ = 1", ylim=(0.0, None))
    right.set(xlabel="key k", title=f"prior k ≥ −1, τ = {tau:.3g}", ylim=(0.0, None))
    left.legend()
    right.legend(title="worth, 1 / Σ a²")
    ak.plot.show("rules")


ak.plot.interact(draw, log10_temperature=(-0.5, -3.0, 2.0))
