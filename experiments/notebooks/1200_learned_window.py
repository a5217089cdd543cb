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

import attnkernel as ak
from experiments.runs import NO_MONITOR
from experiments.studies.training import train
from experiments.studies.window_tasks import Family, Linear, draw as draw_task, mean_error, predict

jax.config.update("jax_enable_x64", True)
ak.cache_programs()  # the next run of this notebook compiles nothing
plt.rcParams.update(ak.plot.STYLE)

LENGTHSCALE, TARGETS = 0.5, 16
NOISES = jnp.array([0.1, 0.3, 0.9])


def family(noise):
    """Tasks of one input, or of as many kinds as there are noises."""
    one = jnp.ones_like(noise)
    return Family(LENGTHSCALE * one, noise, 0.0 * one, one[..., None])


# %% [markdown]
# ## Training over tasks
#
# Each step draws 32 new functions for every noise, and takes one step of Adam on log ℓ. All noises
# train in one program. Tasks and training are those of the study.


# %%
def learn(n):
    def loss(embeds, key):
        return mean_error(embeds, key, family(NOISES), n, TARGETS, order=0)

    start, key = Linear.of_windows(jnp.full(3, 0.3)), jax.random.PRNGKey(n)
    options = {"batch": 32, "steps": 300, "learning_rate": 0.05}
    trained, _ = train(NO_MONITOR, start, loss, **options, key=key)
    return 1 / np.abs(np.asarray(trained.scaled())[:, 0, 0])


LENGTHS = (32, 96, 288)
learned = np.array([learn(n) for n in LENGTHS])
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
    task = draw_task(key, family(noise), n, TARGETS)
    criteria = jax.lax.map(lambda one: criterion(one, task.x, task.y), GRID)
    chosen = GRID[jnp.argmin(criteria)]
    found = [predict(Linear.of_windows(one), task, order=0) for one in (chosen, window)]
    return chosen, *(jnp.mean((each - task.truth) ** 2) for each in found)


of_tasks = jax.jit(jax.vmap(choose, (0, None, None, None)), static_argnums=1)
choices = {}
for i, noise in enumerate(NOISES):
    for n, window in zip(LENGTHS, learned[:, i], strict=True):
        keys = jax.random.split(jax.random.PRNGKey(5), 60)
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
        ax.plot(np.full(60, n), choices[noise, n], "_", color=ak.plot.GREEN, alpha=0.5)
    ax.plot(LENGTHS, learned[:, noise], "o-", color=ak.plot.ORANGE, label="learned")
    ax.plot([], [], "_", color=ak.plot.GREEN, label="leave-one-out, one task each")
    ax.set(xscale="log", yscale="log", xlabel="rows of the context", ylabel="window ℓ")
    ax.set_title(f"σ = {NOISES[noise]:.1f}")
    ax.set_xticks(LENGTHS, LENGTHS)
    ax.minorticks_off()
    ax.legend()
    plt.show()


ak.plot.interact(draw, noise=(2, 0, 2))
