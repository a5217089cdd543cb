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
# # Sequence layers as regressions
#
# A sequence layer predicts a value at a query from the rows so far. Each one is a regression of
# values on keys. Three choices tell them apart: the loss, the weights of the rows, and whether the
# minimum is exact or one gradient step.
#
# Here each layer is one line. We compare it with its equation in NumPy, and then look at the weight
# that it gives to each row.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import attnkernel as ak

jax.config.update("jax_enable_x64", True)
ak.cache_programs()  # the next run of this notebook compiles nothing
plt.rcParams.update(ak.plot.STYLE)

ROWS, DIM = 24, 4
of_points, of_gates = jax.random.split(jax.random.PRNGKey(0))
q, k, v = jax.random.normal(of_points, (3, ROWS, DIM))
q, k = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (q, k))
rate = jax.random.uniform(of_gates, (ROWS,), minval=0.3, maxval=0.9)  # β of each row
decay = jnp.log(jax.random.uniform(of_gates, (ROWS, 1), minval=0.8, maxval=1.0))  # log α
channels = decay * jnp.array([1.0, 2.0, 0.5, 0.1])  # log α of each row and channel

# %% [markdown]
# ## A constant at each query: softmax attention
#
# $$ \mathrm{out}_t = \arg\min_c \sum_{s \le t} e^{q_t \cdot k_s / \sqrt d}\,
#    \pi(t, s)\, \lVert v_s - c \rVert^2 $$
#
# The forgetting transformer multiplies the weight of a row by the gates of all later rows. MoBA
# keeps the blocks of rows whose mean key is nearest to the query, and the query's own block.
# Differential attention subtracts two of these regressions, so that weights may be negative.

# %%
BLOCK = 6
means = k.reshape(-1, BLOCK, DIM).mean(axis=1)
blocks = jnp.arange(len(means))
own = jnp.arange(ROWS)[:, None] // BLOCK == blocks
_, nearest = jax.lax.top_k(q @ means.T, 1)
chosen = own | (nearest == blocks)

options = {"kernel": ak.DotProduct()}
in_blocks = ak.priors.MaskFunction(lambda i, j: chosen[i, j // BLOCK])
LINES = {
    "softmax": lambda v: ak.attend(q, k, v, prior=ak.Causal(), **options),
    "FoX": lambda v: ak.attend(q, k, v, prior=ak.priors.Forget(decay[:, 0]), **options),
    "MoBA": lambda v: ak.attend(q, k, v, prior=ak.Causal() & in_blocks, **options),
    "differential": lambda v: (
        ak.attend(q, k, v, prior=ak.Causal(), **options)
        - 0.5 * ak.attend(k, k, v, prior=ak.Causal(), **options)
    ),
}


def normalised(scores, seen):
    weights = np.where(seen, np.exp(scores), 0.0)
    return weights / weights.sum(axis=1, keepdims=True)


causal = np.tri(ROWS, dtype=bool)
scores, ages = np.asarray(q @ k.T) / np.sqrt(DIM), np.cumsum(decay[:, 0])
WEIGHTS = {
    "softmax": normalised(scores, causal),
    "FoX": normalised(scores + ages[:, None] - ages, causal),
    "MoBA": normalised(scores, causal & np.repeat(chosen, BLOCK, axis=1)),
}
WEIGHTS["differential"] = WEIGHTS["softmax"] - 0.5 * normalised(
    np.asarray(k @ k.T) / np.sqrt(DIM), causal
)
for name, weights in WEIGHTS.items():
    print(f"{name:14s} deviation {np.abs(LINES[name](v) - weights @ v).max():.1e}")

# %% [markdown]
# ## A line at each query: local linear attention
#
# $$ \min_{c, B} \sum_{s \le t} a_{ts}\, \lVert v_s - c - B (k_s - q_t) \rVert^2
#    + \lambda \lVert B \rVert^2, \qquad \mathrm{out}_t = c $$
#
# With $\mu = \sum_s a_{ts} (k_s - q_t)$ and $\rho = (\sum_s a_{ts} (k_s - q_t)(k_s - q_t)^\top +
# \lambda I)^{-1} \mu$ the weight of a row is $a_{ts} (1 - (k_s - q_t) \cdot \rho) / (1 - \mu \cdot
# \rho)$. Here $a_{ts}$ sums to 1; Zuo et al. (2025) do not normalise, so that their λ is ours times
# the sum of the weights.

# %%
RIDGE = 0.1
local = ak.MultiheadAttention(
    1, DIM, order=1, ridge=RIDGE, prior=ak.Causal(), key=jax.random.PRNGKey(1)
)
projected = [np.asarray(v @ p.weight.T) for p in (local.query_proj, local.key_proj)]


def local_linear_weights(q, k):
    found = np.zeros((len(q), len(k)))
    for t in range(len(q)):
        a, d = normalised(q[t : t + 1] @ k.T / np.sqrt(DIM), causal[t : t + 1])[0], k - q[t]
        rho = np.linalg.solve((a[:, None] * d).T @ d + RIDGE * np.eye(DIM), a @ d)
        found[t] = a * (1 - d @ rho) / (1 - a @ d @ rho)
    return found


lines = local_linear_weights(*projected) @ (v @ local.value_proj.weight.T)
deviation = local(v, v, v) - lines @ local.output_proj.weight.T
print(f"local linear   deviation {np.abs(deviation).max():.1e}")

# %% [markdown]
# ## One gradient step for each row: linear attention and the delta rule
#
# $$ \text{loss } {-v^\top S^\top k}: \quad S_t = D(\alpha_t) S_{t-1} + \beta_t k_t v_t^\top $$
#
# $$ \text{loss } \tfrac12 \lVert v - S^\top k \rVert^2: \quad
#    S_t = D(\alpha_t) S_{t-1} + \beta_t k_t (v_t - (D(\alpha_t) S_{t-1})^\top k_t)^\top $$
#
# Without decay the first is linear attention and the second DeltaNet. One α per head is RetNet, one
# per row Mamba-2 and Gated DeltaNet, one per row and channel GLA and Kimi delta attention.

# %%
r = ak.recurrent
linear, delta = r.LinearAttention(), r.DeltaRule()
STEPS = {
    "linear": {"estimator": linear},
    "RetNet": {"estimator": linear, "log_decay": -0.1},
    "Mamba-2": {"estimator": linear, "log_decay": decay, "rate": rate},
    "GLA": {"estimator": linear, "log_decay": channels},
    "DeltaNet": {"estimator": delta, "rate": rate},
    "Gated DeltaNet": {"estimator": delta, "log_decay": decay, "rate": rate},
    "KDA": {"estimator": delta, "log_decay": channels, "rate": rate},
}


def by_steps(layer, v):
    alpha = np.exp(np.broadcast_to(layer.get("log_decay", 0.0), (ROWS, DIM)))
    beta = np.broadcast_to(layer.get("rate", 1.0), ROWS)
    state, out = np.zeros((DIM, v.shape[1])), []
    for t in range(ROWS):
        state = alpha[t][:, None] * state
        target = v[t] - state.T @ k[t] if layer["estimator"] is delta else v[t]
        state = state + beta[t] * np.outer(k[t], target)
        out.append(state.T @ q[t])
    return np.array(out)


for layer, options_of_layer in STEPS.items():
    out = r.regress(q, k, v, **options_of_layer)[0]
    print(f"{layer:14s} deviation {np.abs(out - by_steps(options_of_layer, v)).max():.1e}")

# %% [markdown]
# ## All rows at each step, exactly: Mesa
#
# $$ \min_{c, S} \sum_{s \le t} w_s \lVert v_s - c - S^\top k_s \rVert^2
#    + \lambda \lVert S \rVert^2, \qquad w_s = \beta_s \prod_{s < l \le t} \alpha_l $$
#
# Mesa has no intercept c; with one, adding a constant to all keys changes nothing.

# %%
mesa, line = r.RecursiveLeastSquares(1.0), r.RecursiveLeastSquares(1.0, intercept=True)
EXACT = {
    "Mesa": {"estimator": mesa, "log_decay": decay, "rate": rate},
    "Mesa, intercept": {"estimator": line, "log_decay": decay, "rate": rate},
}
for regression, settings in EXACT.items():
    ones = np.ones((ROWS, int("intercept" in regression)))
    x, at, penalty = np.hstack([ones, k]), np.hstack([ones, q]), np.eye(DIM + ones.shape[1])
    penalty[: ones.shape[1]] = 0.0
    expected = []
    for t in range(ROWS):
        w = np.where(causal[t], rate * np.exp(ages[t] - ages), 0.0)
        solution = np.linalg.solve((w[:, None] * x).T @ x + penalty, (w[:, None] * x).T @ v)
        expected.append(at[t] @ solution)
    found = r.regress(q, k, v, **settings)[0]
    print(f"{regression:15s} deviation {np.abs(found - np.array(expected)).max():.1e}")

# %% [markdown]
# ## The weight of each row
#
# All outputs are linear in the values: $\mathrm{out}_t = \sum_s L_{ts} v_s$. The identity as values
# returns the weights. Constant regressions have weights that sum to 1, and so have lines and Mesa
# with an intercept. Linear attention does not normalise, and the delta rule gives a row that later
# rows contradict less weight. In a live notebook, move the query.

# %%
identity = jnp.eye(ROWS)
weights_of = WEIGHTS | {"local linear": local_linear_weights(np.asarray(q), np.asarray(k))}
weights_of |= {n: np.asarray(r.regress(q, k, identity, **x)[0]) for n, x in (STEPS | EXACT).items()}
SHOWN = ("softmax", "FoX", "MoBA", "differential", "local linear", "linear", "RetNet", "DeltaNet")
SHOWN += ("Gated DeltaNet", "KDA", "Mesa", "Mesa, intercept")


def draw(query):
    _, axes = plt.subplots(3, 4, figsize=(10.0, 6.0), sharex=True, layout="constrained")
    for ax, name in zip(axes.flat, SHOWN, strict=True):
        weights = weights_of[name][query]
        colors = np.where(weights < 0, ak.plot.ORANGE, ak.plot.BLUE)
        ax.bar(np.arange(ROWS), weights, color=colors)
        ax.axvline(query, color=ak.plot.ink(), linestyle=":", linewidth=1.0)
        ax.set_title(f"{name}: sum {round(weights.sum(), 2) + 0.0:.2f}", fontsize=9)
    for ax in axes[-1]:
        ax.set_xlabel("row")
    for ax in axes[:, 0]:
        ax.set_ylabel("weight")
    ak.plot.show("weights")


ak.plot.interact(draw, query=(ROWS - 1, 0, ROWS - 1))
