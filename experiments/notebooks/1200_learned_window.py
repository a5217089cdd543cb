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
# # What window does attention learn?
#
# Attention with a Gaussian kernel is a Nadaraya–Watson estimator, and its window is the lengthscale
# ℓ. Trained over many tasks, it learns one ℓ for all of them. A statistician chooses an ℓ for each
# data set.
#
# For tasks of lengthscale L, noise σ and n rows, the best ℓ is proportional to
# $\sigma^{2/5} L^{4/5} n^{-1/5}$ if n is large. Does attention learn that?

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import attnkernel as ak

jax.config.update("jax_enable_x64", True)
ak.cache_programs()  # the next run of this notebook compiles nothing
plt.rcParams.update(ak.plot.STYLE)

LENGTHSCALE, TARGETS = 0.5, 16


def draw_task(key, n, noise):
    """A context of one random function with lengthscale L, other inputs, and the function there."""
    of_x, of_frequency, of_phase, of_noise = jax.random.split(key, 4)
    x = jax.random.uniform(of_x, (n + TARGETS, 1), minval=-1.0, maxval=1.0)
    frequency = jax.random.normal(of_frequency, (96,)) / LENGTHSCALE
    phase = jax.random.uniform(of_phase, (96,), maxval=2 * jnp.pi)
    f = (2 / 96) ** 0.5 * jnp.sum(jnp.cos(x * frequency + phase), axis=1)
    return x[:n], f[:n] + noise * jax.random.normal(of_noise, (n,)), x[n:], f[n:]


# %% [markdown]
# ## Training over tasks
#
# Each step draws 32 new functions for every noise, and takes one step of Adam on log ℓ. All noises
# train in one program.

# %%
NOISES = jnp.array([0.1, 0.3, 0.9])


def error(log_lengthscale, key, n, noise):
    x, y, at, truth = draw_task(key, n, noise)
    model = ak.KernelRegression(ak.Gaussian(jnp.exp(log_lengthscale)))
    return jnp.mean((model(at, x, y) - truth) ** 2)


def learn(n, steps=200):
    optimizer = optax.adam(0.05)

    def loss(logs, key):
        keys = jax.random.split(key, 32)
        each = jax.vmap(lambda key: jax.vmap(error, (0, None, None, 0))(logs, key, n, NOISES))
        return jnp.sum(jnp.mean(each(keys), axis=0))

    def step(state, key):
        logs, inner = state
        updates, inner = optimizer.update(jax.grad(loss)(logs, key), inner)
        return (optax.apply_updates(logs, updates), inner), logs

    start = jnp.full(3, jnp.log(0.3))
    keys = jax.random.split(jax.random.PRNGKey(n), steps)
    _, logs = jax.lax.scan(step, (start, optimizer.init(start)), keys)
    return jnp.exp(jnp.mean(logs[steps // 2 :], axis=0))  # the noise of the steps averages out


LENGTHS = (32, 96, 288)
learned = np.array([jax.jit(learn, static_argnums=0)(n) for n in LENGTHS])
terms = np.stack(np.meshgrid(np.log(LENGTHS), np.log(NOISES), indexing="ij"), -1).reshape(-1, 2)
powers = np.linalg.lstsq(np.c_[np.ones(9), terms], np.log(learned).ravel(), rcond=None)[0]
print(f"power of n {powers[1]:.2f} (−0.2 for large n), power of σ {powers[2]:.2f} (0.4)")

# %% [markdown]
# ## Beside a lengthscale for each data set
#
# Leave-one-out sees one data set only. Its choice scatters around the learned window, most for
# large noise and short contexts, and that costs error.

# %%
GRID = jnp.geomspace(0.03, 2.0, 25)


def criterion(lengthscale, x, y):
    return ak.LeaveOneOut()(ak.KernelRegression(ak.Gaussian(lengthscale)), x, y)


def choose(key, n, noise, window):
    """The choice by leave-one-out, and the errors of that and of the learned window."""
    x, y, _, _ = draw_task(key, n, noise)
    chosen = GRID[jnp.argmin(jax.lax.map(lambda one: criterion(one, x, y), GRID))]
    errors = [error(jnp.log(one), key, n, noise) for one in (chosen, window)]
    return chosen, *errors


of_tasks = jax.jit(jax.vmap(choose, (0, None, None, None)), static_argnums=1)
choices = {}
for i, noise in enumerate(NOISES):
    for n, window in zip(LENGTHS, learned[:, i], strict=True):
        keys = jax.random.split(jax.random.PRNGKey(5), 40)
        chosen, by_leave_one_out, by_window = map(np.asarray, of_tasks(keys, n, noise, window))
        ratio = by_leave_one_out.mean() / by_window.mean()
        print(f"σ = {noise:.1f}, {n:3d} rows: leave-one-out has {ratio:.2f} times the error")
        choices[i, n] = chosen

# %% [markdown]
# In a live notebook, choose the noise. The config `learned_window` adds other smoothness, local
# lines, two inputs of which one direction matters, and noise that grows along an input.


# %%
def draw(noise):
    _, ax = plt.subplots(figsize=(5.0, 3.4))
    for n in LENGTHS:
        ax.plot(np.full(40, n), choices[noise, n], "_", color=ak.plot.GREEN, alpha=0.5)
    ax.plot(LENGTHS, learned[:, noise], "o-", color=ak.plot.ORANGE, label="learned")
    ax.plot([], [], "_", color=ak.plot.GREEN, label="leave-one-out, one task each")
    ax.set(xscale="log", yscale="log", xlabel="rows of the context", ylabel="window ℓ")
    ax.set_title(f"σ = {NOISES[noise]:.1f}")
    ax.set_xticks(LENGTHS, LENGTHS)
    ax.minorticks_off()
    ax.legend()
    ak.plot.show("window")


ak.plot.interact(draw, noise=(2, 0, 2))
