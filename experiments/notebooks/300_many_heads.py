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
# # Many heads
#
# A head is a regression with a lengthscale of its own. Several heads are added:
#
# $$
# \hat f(x) = \sum_{h=1}^{H} u_h\, \hat f_h(x), \qquad
# \hat f_h(x) = \frac{\sum_j K_h(x, x_j)\, y_j}{\sum_j K_h(x, x_j)}, \qquad
# K_h(x, x') = \exp\!\Big(\!-\frac{(x - x')^2}{2 \ell_h^2}\Big)
# $$
#
# The combination $u \in \mathbb{R}^H$ is unconstrained: entries may be negative and need not sum
# to 1. Multi-head attention has a matrix $U_h$ in the place of $u_h$. The data and fits are those
# of P. Czyż, *From kernel regression to the transformer* (2024), which prints $\sqrt2\,\ell$.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import attnkernel as ak

ak.cache_programs()  # the next run of this notebook compiles nothing
plt.rcParams.update(ak.plot.STYLE)
jax.config.update("jax_threefry_partitionable", False)  # the random numbers of 2024


def gaussian(length):
    return ak.Gaussian(ak.kernels.convert_lengthscale(length, source="unhalved"))


def shown(kernel):
    return np.asarray(ak.kernels.convert_lengthscale(kernel.lengthscale, target="unhalved"))


key, sub = jax.random.split(jax.random.PRNGKey(2024))
data = ak.data.heteroskedastic(key=sub)
x, y = data.x, data.y
for _ in range(4):  # the four fits of the hold-out come before these in the chain of keys
    key, sub = jax.random.split(key)

# %% [markdown]
# ## Four models
#
# The models have 1, 2, 4 and 8 heads, with $\sqrt2\,\ell_h$ from 0.1 to 3 and $u_h = 1/H$ at the
# start. Adam takes 1000 steps at a learning rate of 0.2 on $\log \ell$ and $u$, each with one point
# held out. Czyż (2024) prints for one and two heads $u = 1.09$, $\sqrt2\,\ell = 0.16$, and
# $u = 0.99, -0.10$, $\sqrt2\,\ell = 0.08, 0.02$.
#
# The results for four and eight heads depend on rounding in single precision, there and here. With
# eight heads a change of $10^{-7}$ in the data moves a lengthscale by some per cent. The next
# section shows why this does not matter.

# %%
fits, rest = {}, key
for heads in (1, 2, 4, 8):
    rest, drawn = jax.random.split(rest)
    kernel = jax.vmap(gaussian)(jnp.linspace(0.1, 3.0, heads))
    fits[heads] = ak.fit(
        ak.MultiheadKernelRegression(ak.PerHead(kernel), jnp.full(heads, 1 / heads)),
        x,
        y,
        objective=ak.HoldOut(1),
        optimizer=optax.adam(0.2),
        steps=1000,
        key=drawn,
    )
    model = fits[heads].model
    error = ak.LeaveOneOut()(model, x, y)
    print(f"{heads} heads: leave-one-out error {error:.4f}")
    print("   u:", ", ".join(f"{u:.2f}" for u in model.coefficients))
    print("   √2 ℓ:", ", ".join(f"{length:.2f}" for length in shown(model.kernel.stack)))

# %%
_, axes = plt.subplots(2, 2, figsize=(7.6, 5.2), sharex=True, sharey=True)
for ax, (number, fit) in zip(axes.flat, fits.items(), strict=True):
    ak.plot.fit(fit, ax=ax)
    ax.plot(x[:, 0], data.mean, "--", color=ak.plot.BLUE, label="true mean")
    ax.set_title(f"{number} head{'s' if number > 1 else ''}")
    ax.label_outer()
axes[0, 0].legend()
ak.plot.show("four_models")

# %% [markdown]
# ## What a head does
#
# A head with $\ell_h$ far above the range of $x$, here 6, gives all labels the same weight. It
# adds the constant $u_h \bar y$, whatever its lengthscale. Several such heads add one constant, so
# only the sum of their $u_h$ is identified. We call a head constant if the standard deviation of
# its estimate is below 0.01 of that of the labels.

# %%
at = ak.plot.grid(data.x)


@jax.jit
def estimates(kernel):
    return jax.vmap(lambda one: ak.KernelRegression(one)(at, x, y))(kernel)


for count, fitted in fits.items():
    curves = np.asarray(estimates(fitted.model.kernel.stack))
    share = curves.std(axis=1) / float(jnp.std(y))
    flat = share < 0.01
    constant = float(np.sum(np.asarray(fitted.model.coefficients)[flat])) * float(jnp.mean(y))
    print(
        f"{count} heads: share of the labels' sd {np.array2string(share, precision=2)}; "
        f"{flat.sum()} are constant, together {constant:.2f}"
    )

# %% [markdown]
# Seven of eight heads are constants that nearly cancel. Their $\ell_h$ and $u_h$ are not
# identified one by one, so rounding moves them. With four heads the wide ones have negative
# coefficients: they subtract some of the slow part of the curve, which the first, with $u_1 > 1$,
# overestimates. More heads do not predict better: the leave-one-out error is smallest with one.
#
# ## Without one head
#
# The figure shows the model of four heads, each head times its $u_h$, and the estimate without one
# of them. In a live notebook, choose the head to remove.

# %%
four = fits[4].model
parts = np.asarray(four.coefficients)[:, None] * np.asarray(estimates(four.kernel.stack))
whole = np.asarray(fits[4](at))
print(f"sum of the heads against the model: {np.abs(parts.sum(axis=0) - whole).max():.0e}")


# %%
def draw(without):
    _, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.4), sharex=True)
    dashes = ("-", "--", ":", "-.")
    colors = (ak.plot.BLUE, ak.plot.ORANGE, ak.plot.GREEN, ak.plot.PURPLE)
    lengths = shown(four.kernel.stack)
    for h, (dash, color) in enumerate(zip(dashes, colors, strict=True)):
        label = f"{h + 1}: u = {four.coefficients[h]:.2f}, √2 ℓ = {lengths[h]:.2f}"
        left.plot(at, parts[h], dash, color=color, label=label)
    left.set(xlabel="x", ylabel="$u_h \\hat f_h(x)$ (units of y)", title="four heads")
    left.legend(fontsize=7)
    ak.plot.points(data.x, data.y, ax=right)
    right.plot(at, whole, color=ak.plot.ORANGE, label="all heads")
    right.plot(at, whole - parts[without - 1], "--", color=ak.plot.BLUE, label="without it")
    right.set(xlabel="x", ylabel="y", title=f"without head {without}")
    right.legend()
    ak.plot.show("without_a_head")


ak.plot.interact(draw, without=(2, 1, 4))
