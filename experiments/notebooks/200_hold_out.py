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
# # Masked hold-out, and how much to hold out
#
# Hide $h$ of the $n$ labels, predict them from the others, and minimise the error. Masked language
# models are trained in this way. It also fits a lengthscale:
#
# $$
# L_h(\ell; \mathcal{H}) =
# \frac1h \sum_{i \in \mathcal{H}} \big(y_i - \hat f_{-\mathcal{H}}(x_i)\big)^2,
# \qquad
# \hat f_{-\mathcal{H}}(x) = \frac{\sum_{j \notin \mathcal{H}} K(x, x_j)\, y_j}
# {\sum_{j \notin \mathcal{H}} K(x, x_j)},
# \qquad K(x, x') = \exp\!\Big(\!-\frac{(x - x')^2}{2 \ell^2}\Big)
# $$
#
# with $\mathcal{H}$ a set of $h$ indices, drawn anew at every step of the optimiser. The
# lengthscale $\ell > 0$ is a standard deviation, in the units of $x$. P. Czyż, *From kernel
# regression to the transformer* (2024), whose fits these are, prints $\sqrt2\,\ell$, and so do we.

# %%
import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import attnkernel as ak

ak.cache_programs()  # the next run of this notebook compiles nothing
plt.rcParams.update(ak.plot.STYLE)
jax.config.update("jax_threefry_partitionable", False)  # the random numbers of 2024


def regression(length):
    return ak.KernelRegression(
        ak.Gaussian(ak.kernels.convert_lengthscale(length, source="unhalved"))
    )


def shown(length):
    return np.asarray(ak.kernels.convert_lengthscale(length, target="unhalved"))


key, sub = jax.random.split(jax.random.PRNGKey(2024))
data = ak.data.heteroskedastic(key=sub)
x, y = data.x, data.y

# %% [markdown]
# ## One draw
#
# A hold-out is a mask on the keys: nothing is copied, and no array changes its shape. Written by
# hand, one draw at $\sqrt2\,\ell = 1$ takes three lines. `ak.HoldOut` with the same key gives the
# same error.

# %%
held_out = jax.random.permutation(sub, len(y))[:10]
prior = ak.priors.HeldOut(jnp.zeros(len(y), bool).at[held_out].set(True))
error = (y - regression(1.0)(x, x, y, prior=prior))[held_out]
print(f"by hand:    {jnp.mean(error**2):.6f}")
print(f"ak.HoldOut: {ak.HoldOut(10)(regression(1.0), x, y, key=sub):.6f}")

# %% [markdown]
# ## Four sizes
#
# Adam, at a learning rate of 0.2 on $\log \ell$, takes 100 steps from $\sqrt2\,\ell = 1$, with 1,
# 10, 75 and 120 of the 150 labels held out. The size only changes the mask, so all four fits are
# one program. Expect
#
# $$ \sqrt2\,\ell = 0.1256,\quad 0.1355,\quad 0.2110,\quad 0.3466 $$
#
# Czyż (2024) prints 0.2968 for the last one. There the sum of the weights is increased by
# $10^{-16}$. Near step 20 the weights of far labels underflow, and the constant biases the
# gradient. Here sums are exact; `rule=ak.Softmax(sink_mass=ak.fixed(1e-16))` adds the constant and
# gives 0.2968.

# %%
sizes = jnp.array([1, 10, 75, 120])
keys, rest = [], key
for _ in sizes:
    rest, drawn = jax.random.split(rest)
    keys.append(drawn)
settings = {
    "objective": ak.HoldOut(sizes, at_most=120),
    "in_axes": (None, None, 0),  # model and data are shared, the objectives differ
    "optimizer": optax.adam(0.2),
    "steps": 100,
    "key": jnp.stack(keys),
    "record": lambda model: {"length": model.kernel.lengthscale},
}
fits = ak.fit_many(regression(1.0), x, y, **settings)
lengths = shown(fits.model.kernel.lengthscale)
sunk = ak.KernelRegression(regression(1.0).kernel, rule=ak.Softmax(sink_mass=ak.fixed(1e-16)))
with_sink = shown(ak.fit_many(sunk, x, y, **settings).model.kernel.lengthscale)
for size, length, other in zip(sizes, lengths, with_sink, strict=True):
    print(f"{size:3} held out: √2 ℓ = {length:.4f}   with the constant 1e-16: {other:.4f}")

# %%
_, axes = plt.subplots(2, 2, figsize=(7.6, 5.2), sharex=True, sharey=True)
for i, ax in enumerate(axes.flat):
    ak.plot.fit(fits.member(i), ax=ax, label="prediction")
    ax.plot(x[:, 0], data.mean, "--", color=ak.plot.BLUE, label="true mean")
    ax.set(
        title=f"{sizes[i]} of {len(y)} held out: √2 ℓ = {lengths[i]:.4f}", xlabel="x", ylabel="y"
    )
    ax.label_outer()
handles, labels = ax.get_legend_handles_labels()
ax.figure.legend(handles, labels, loc="outside lower center", ncols=3)
ak.plot.show("four_sizes")

# %% [markdown]
# ## Why the size matters: the expected objective
#
# With $h$ labels held out, a prediction uses $n - h$ labels. The fit is optimal for data of that
# size, and fewer labels need a larger lengthscale: in one dimension the optimum is proportional to
# $(n - h)^{-1/5}$. The optimiser minimises the objective averaged over its draws. The minimum of
# this average moves up with $h$: for $h = 120$ theory gives $(150/30)^{1/5} = 1.38$ times that of
# leave-one-out. The theory is asymptotic and 30 labels are few, so expect rough agreement.

# %%
expected = settings["objective"].expected()  # the mean over draws from 100 permutations
shared = {"in_axes": settings["in_axes"], "starts": 1}
found = ak.fit_many(regression(0.3), x, y, objective=expected, **shared)
minima = shown(found.model.kernel.lengthscale)
for held, ended, minimum in zip(sizes, lengths, minima, strict=True):
    theory = (len(y) / (len(y) - held)) ** 0.2
    print(
        f"{held:3} held out: minimum at √2 ℓ = {minimum:.3f}, {minimum / minima[0]:.2f} times that "
        f"of leave-one-out (theory: {theory:.2f}); 100 steps of Adam ended at {ended:.3f}"
    )

# %% [markdown]
# ## Why the size matters: the variance of the objective
#
# One held-out label is a noisy objective: near the minimum its standard deviation over draws is
# larger than its mean. Ten labels average the noise, 75 more so. With 120 held out, the 30
# remaining labels vary from draw to draw, and the noise returns. It carries over to the
# lengthscale: we train 100 times on the same data with other draws and compare the standard
# deviation of $\log \ell$.

# %%
draws = jax.random.split(jax.random.PRNGKey(0), 100)
trainings = settings | {
    "key": jax.random.split(jax.random.PRNGKey(1), 100),
    "in_axes": (None, None, None),
}


@eqx.filter_jit
def errors_at_minimum(objective):
    return jax.vmap(lambda draw: objective(regression(minima[0]), x, y, key=draw))(draws)


for h in sizes:
    objective = ak.HoldOut(h, at_most=120)
    at_minimum = errors_at_minimum(objective)
    many = ak.fit_many(regression(1.0), x, y, **trainings | {"objective": objective})
    ends = shown(many.model.kernel.lengthscale)
    print(
        f"{h:3} held out: objective {at_minimum.mean():.3f} ± {at_minimum.std():.3f};  "
        f"√2 ℓ of trainings: median {np.median(ends):.3f}, sd of log ℓ {np.log(ends).std():.3f}"
    )

# %% [markdown]
# ## Leave-one-out is the limit
#
# With $h = 1$ each of the $n$ hold-outs is equally likely. So the mean over draws is exactly the
# leave-one-out error, which needs no draws:
#
# $$ \mathbb{E}\, L_1(\ell; \{i\}) = \frac1n \sum_{i=1}^{n} \big(y_i - \hat f_{-i}(x_i)\big)^2 $$
#
# Over 20 000 draws the two agree within the standard error of the simulation. The minimum is then
# found by a deterministic search, without a number of steps or a learning rate to choose.

# %%
many_draws = jax.random.split(jax.random.PRNGKey(2), 20_000)
one = jax.lax.map(
    lambda k: ak.HoldOut(1)(regression(0.2), x, y, key=k), many_draws, batch_size=1000
)
standard_error = one.std() / len(one) ** 0.5
print(f"mean of L_1 at √2 ℓ = 0.2: {one.mean():.5f} ± {standard_error:.5f}")
print(f"leave-one-out:          {ak.LeaveOneOut()(regression(0.2), x, y):.5f}")
best = ak.fit(regression(1.0), x, y, objective=ak.LeaveOneOut())
print(f"its minimum: √2 ℓ = {shown(best.model.kernel.lengthscale):.4f}")

# %% [markdown]
# ## Move the size
#
# The figure shows the mean of the objective and the middle 80 % of 100 draws. In a live notebook,
# move $h$. At 1 the band is widest, and the mean is nearly the leave-one-out curve. For middle
# sizes the band is narrow. Beyond 100 it widens again, and the minimum moves to the right.


# %%
grid = np.geomspace(0.06, 0.8, 60)
standard = ak.kernels.convert_lengthscale(grid, source="unhalved")
left_out = ak.profile(regression(1.0), x, y, standard, objective=ak.LeaveOneOut())


@eqx.filter_jit
def objective_by_draw(size):
    """The hold-out objective of each lengthscale at each draw, shape (lengthscales, draws)."""
    objective = ak.HoldOut(size, at_most=140)

    def at(length):
        return jax.vmap(lambda draw: objective(regression(length), x, y, key=draw))(draws)

    return jax.lax.map(at, jnp.asarray(grid))


def draw(size):
    found = np.asarray(objective_by_draw(jnp.array(size)))
    mean, (low, high) = found.mean(axis=1), np.quantile(found, [0.1, 0.9], axis=1)
    _, ax = plt.subplots(figsize=(6.6, 3.6))
    ax.fill_between(grid, low, high, color=ak.plot.SKY, alpha=0.35, label="10 % to 90 % of draws")
    ax.plot(grid, mean, color=ak.plot.ORANGE, label=f"mean, {size} held out")
    ax.plot(grid, left_out, "--", color=ak.plot.BLUE, label="leave-one-out")
    ax.plot(grid[mean.argmin()], mean.min(), "o", color=ak.plot.ORANGE)
    ax.plot(grid[left_out.argmin()], left_out.min(), "s", color=ak.plot.BLUE)
    ax.set(xscale="log", xlabel="√2 ℓ (units of x)", ylim=(0.0, 0.8))
    ax.set(ylabel="error (units of y, squared)")
    ax.set_title(f"{size} of {len(y)} held out: minimum at √2 ℓ = {grid[mean.argmin()]:.3f}")
    ax.set_xticks([0.1, 0.2, 0.4, 0.8], ["0.1", "0.2", "0.4", "0.8"])
    ax.minorticks_off()
    ax.legend(loc="upper left")
    ak.plot.show("size")


ak.plot.interact(draw, size=(120, 1, 140))
