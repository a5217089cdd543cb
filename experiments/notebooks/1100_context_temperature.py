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
# # The temperature of attention in context
#
# A prompt holds pairs $(x_i, y_i)$ of a linear function with noise. Softmax attention predicts the
# label of a query as a weighted mean of the labels:
#
# $$ \hat f(q) = \sum_i \frac{e^{q \cdot x_i / \tau}}{\sum_j e^{q \cdot x_j / \tau}}\, y_i $$
#
# Which temperature τ is best? It depends on the inputs, the noise and the length of the prompt. We
# ask whether the prompt alone can tell.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import attnkernel as ak

jax.config.update("jax_enable_x64", True)
ak.cache_programs()  # the next run of this notebook compiles nothing
plt.rcParams.update(ak.plot.STYLE)

DIM, ROWS, NOISE = 8, 64, 0.5
TEMPERATURES = jnp.geomspace(0.5, 32.0, 49)


def draw_prompt(key, scale=1.0):
    """A prompt whose inputs have standard deviation `scale`, queries, and the function there."""
    of_w, of_x, of_q, of_noise = jax.random.split(key, 4)
    w = jax.random.normal(of_w, (DIM,)) / DIM**0.5
    x = scale * jax.random.normal(of_x, (ROWS, DIM))
    q = scale * jax.random.normal(of_q, (ROWS, DIM))
    return x, x @ w + NOISE * jax.random.normal(of_noise, (ROWS,)), q, q @ w


def model(temperature):
    return ak.KernelRegression(ak.DotProduct(1.0), rule=ak.Softmax(temperature))


# %% [markdown]
# ## One prompt
#
# Leave-one-out predicts each label of the prompt from the others. Its mean squared error includes
# the noise of the label, which does not depend on τ.


# %%
@jax.jit
def curves(key, scale):
    """At each temperature: the error at the queries, and leave-one-out of the prompt."""
    x, y, q, truth = draw_prompt(key, scale)

    def at(temperature):
        error = jnp.mean((model(temperature)(q, x, y) - truth) ** 2)
        return error, ak.LeaveOneOut()(model(temperature), x, y)

    return jax.lax.map(at, TEMPERATURES)


error, left_out = curves(jax.random.PRNGKey(0), 1.0)
best, chosen = TEMPERATURES[np.argmin(error)], TEMPERATURES[np.argmin(left_out)]
print(f"least error at τ = {best:.2f}, least leave-one-out at τ = {chosen:.2f}")

# %% [markdown]
# ## Two approximations in closed form
#
# To first order in $1/\tau$ the weights are $(1 + q \cdot x_i / \tau)/n$. For inputs of covariance
# I and $w \sim N(0, I/d)$ the error is then a parabola of $1/\tau$ with its minimum at
# $\tau = 1 + (1 + d + d \sigma^2)/n$.
#
# To first order in $1/n$, the weights tilt the density of the inputs to $N(q/\tau, I)$. The bias of
# the prediction is $w \cdot q\, (1/\tau - 1)$; its variance is
# $e^{|q|^2/\tau^2} ((w \cdot q/\tau)^2 + |w|^2 + \sigma^2) / n$. Their mean over queries is, with
# $g = 1 - 2/\tau^2 > 0$,
#
# $$ (1 - 1/\tau)^2 + \frac{g^{-d/2}}{n} \Big( 1 + \sigma^2 + \frac{1}{\tau^2 g} \Big) $$

# %%
u = 1 / np.asarray(TEMPERATURES)
v = 1 + NOISE**2
in_tau = 1 + v / ROWS - 2 * u + u**2 * ((ROWS + 1) / ROWS + DIM * v / ROWS)
g = 1 - 2 * u**2
in_n = np.full(len(u), np.nan)
some = g > 0
in_n[some] = (1 - u[some]) ** 2 + g[some] ** (-DIM / 2) / ROWS * (v + u[some] ** 2 / g[some])
keys = jax.random.split(jax.random.PRNGKey(1), 200)
errors, criteria = jax.jit(jax.vmap(curves, (0, None)))(keys, 1.0)
simulated = errors.mean(axis=0)
for name, curve in (("1/τ", in_tau), ("1/n", in_n), ("simulated", simulated)):
    place = np.nanargmin(curve)
    print(f"{name:10s} least error {curve[place]:.3f} at τ = {TEMPERATURES[place]:.2f}")

# %% [markdown]
# The first order in $1/\tau$ knows nothing of the weight that goes to the nearest rows: its best
# temperature is too low. The first order in $1/n$ takes this weight as small, which near the best
# temperature it is not: its best temperature is too high. Softmax is best in between.
#
# ## Who finds the temperature?
#
# We fix the temperature that is best on average for these prompts. Then we double the inputs.
#
# Leave-one-out follows the inputs; the fixed temperature does not. In a live notebook, move their
# scale. The config `context_temperature` runs more shifts and lengths, with intervals and the
# predictions that failed.

# %%
fixed = int(np.argmin(simulated))
of_prompts = jax.jit(jax.vmap(curves, (0, None)))


def draw(scale):
    errors, criteria = of_prompts(keys, scale)
    relative, picked = np.asarray(errors) / scale**2, np.argmin(criteria, axis=1)
    by_prompt = relative[np.arange(len(keys)), picked].mean()
    print(
        f"inputs × {scale:g}: fixed {relative[:, fixed].mean():.3f}, leave-one-out "
        f"{by_prompt:.3f}, best of all prompts {relative.mean(0).min():.3f}"
    )
    _, ax = plt.subplots(figsize=(6.0, 3.4))
    ax.plot(TEMPERATURES, relative.mean(0), color=ak.plot.ORANGE, label="mean error")
    ax.axvline(TEMPERATURES[fixed], color=ak.plot.BLUE, linestyle="--", label="fixed τ")
    low, high = np.quantile(np.asarray(TEMPERATURES)[picked], [0.25, 0.75])
    ax.axvspan(low, high, color=ak.plot.GREEN, alpha=0.25, label="leave-one-out, middle half")
    ax.set(xscale="log", xlabel="temperature τ", ylabel="squared error ÷ variance")
    ax.set_title(f"inputs × {scale:g}")
    ax.legend()
    ak.plot.show("temperature")


ak.plot.interact(draw, scale=(2.0, 0.5, 3.0))
