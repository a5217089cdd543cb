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
# # Kernel regression and its lengthscale
#
# Given inputs $x_j \in \mathbb{R}$ and labels $y_j \in \mathbb{R}$, $j = 1, \dots, n$, kernel
# regression predicts by a weighted mean of the labels (Nadaraya 1964, Watson 1964):
#
# $$
# \hat f(x) = \sum_{j=1}^{n} L_j(x)\, y_j, \qquad
# L_j(x) = \frac{K(x, x_j)}{\sum_l K(x, x_l)}, \qquad
# K(x, x') = \exp\!\Big(\!-\frac{(x - x')^2}{2 \ell^2}\Big)
# $$
#
# Only the lengthscale (bandwidth) $\ell > 0$ has to be chosen. It is a standard deviation, in the
# units of $x$.
#
# P. Czyż, *From kernel regression to the transformer* (2024), whose figures this notebook
# reproduces, has $\exp(-d^2 / w^2)$. Its numbers are $w = \sqrt2\,\ell$, and printed so below.
# `ak.kernels.convert_lengthscale` converts one to the other.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import attnkernel as ak

ak.cache_programs()  # the next run of this notebook compiles nothing
plt.rcParams.update(ak.plot.STYLE)
jax.config.update("jax_threefry_partitionable", False)  # the random numbers of 2024


def regression(length, order=0):
    kernel = ak.Gaussian(ak.kernels.convert_lengthscale(length, source="unhalved"))
    return ak.KernelRegression(kernel, order=order)


# %% [markdown]
# ## Data
#
# $n = 150$ labels $y_i = f(x_i) + s(x_i)\, \varepsilon_i$ at inputs equally spaced on $[-3, 3]$,
# with $f(x) = \tfrac12 \sin x - \sin 3x + x^2 / 5$, $s(x) = 0.2 + 0.05 |x|$ and
# $\varepsilon_i \sim \mathcal{N}(0, 1)$.

# %%
key, sub = jax.random.split(jax.random.PRNGKey(2024))
data = ak.data.heteroskedastic(key=sub)
x, y = data.x, data.y
print(f"{len(y)} labels, {x[1, 0] - x[0, 0]:.4f} apart; mean of s(x)²: {jnp.mean(data.sd**2):.4f}")

# %% [markdown]
# ## Four lengthscales
#
# At $\sqrt2\,\ell = 3$ the curve misses the bumps (oversmoothing). At $\sqrt2\,\ell = 0.05$, little
# more than the distance of two neighbours, it follows the noise (undersmoothing). Three numbers
# describe a curve:
#
# - The standard deviation of the residuals falls to 0 with $\ell$, so it cannot choose $\ell$.
# - The degrees of freedom $\nu = \sum_i L_i(x_i)$, the trace of the hat matrix, go from 1, a
#   constant, to $n$, a curve through every label.
# - The leave-one-out error is large at $\sqrt2\,\ell = 3$ and 0.5, and smallest of these four at
#   $\sqrt2\,\ell = 0.25$.

# %%
at, rows = ak.plot.grid(x), ak.models.Rows.read(x, y)
_, axes = plt.subplots(2, 2, figsize=(7.6, 5.2), sharex=True, sharey=True)
for ax, length in zip(axes.flat, [3.0, 0.5, 0.25, 0.05], strict=True):
    model = regression(length)
    fitted = model.estimate(None, rows)  # at the rows
    error = ak.LeaveOneOut()(model, x, y)
    print(
        f"√2 ℓ = {length:<4}  residual sd {jnp.std(y - fitted.value):.4f}"
        f"  degrees of freedom {fitted.leverage.sum():5.1f}  leave-one-out error {error:.4f}"
    )
    ak.plot.points(x, y, ax=ax)
    ax.plot(x[:, 0], data.mean, "--", color=ak.plot.BLUE, label="true mean")
    ax.plot(at, model(at, x, y), color=ak.plot.ORANGE, label="prediction")
    ax.set(title=f"√2 ℓ = {length}", xlabel="x", ylabel="y")
    ax.label_outer()
ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)
ak.plot.show("four_lengthscales")

# %% [markdown]
# ## The leave-one-out curve
#
# An honest error is that of a label that the prediction has not seen. Leave out each label in
# turn:
#
# $$
# \mathrm{CV}(\ell) = \frac1n \sum_{i=1}^{n} \big(y_i - \hat f_{-i}(x_i)\big)^2
#                   = \frac1n \sum_{i=1}^{n} \Big(\frac{y_i - \hat f(x_i)}{1 - L_i(x_i)}\Big)^2
# $$
#
# The second form needs one fit instead of $n$; $L_i(x_i)$ is the leverage of row $i$. In attention
# the first form is a mask: no query may see its own key. The two agree to rounding, here in single
# precision.

# %%
quarter = regression(0.25)
masked = quarter(x, x, y, prior=ak.priors.ExcludeSelf())
at_rows = quarter.estimate(None, rows)
print(f"masked:           {jnp.mean((y - masked) ** 2):.7f}")
print(f"from one fit:     {jnp.mean(((y - at_rows.value) / (1 - at_rows.leverage)) ** 2):.7f}")
print(f"ak.LeaveOneOut(): {ak.LeaveOneOut()(quarter, x, y):.7f}")

# %% [markdown]
# We take the lengthscale at its minimum. `ak.fit` searches from ten starts, between the distance
# of neighbours and the range of the data, and reports all minima that it reached. Expect one, at
# $\sqrt2\,\ell = 0.166$.

# %%
fit = ak.fit(regression(1.0), x, y, objective=ak.LeaveOneOut())
best = float(ak.kernels.convert_lengthscale(fit.model.kernel.lengthscale, target="unhalved"))
print(f"{len(fit.minima())} minimum: √2 ℓ = {best:.4f}, leave-one-out error {fit.loss:.4f}")

# %% [markdown]
# ## Too small, too large
#
# Both limits of the curve are known exactly. As $\ell \to \infty$ the prediction is the mean of
# the other labels, and CV is $\big(\tfrac{n}{n-1}\big)^2$ times their variance. As $\ell \to 0$
# only the nearest other labels count: inside the mean of both neighbours, at each end the one
# neighbour.

# %%
neighbours = jnp.concatenate([y[1:2], (y[:-2] + y[2:]) / 2, y[-2:-1]])
n = len(y)
print(f"√2 ℓ = 300:   {ak.LeaveOneOut()(regression(300.0), x, y):.4f}", end="")
print(f"   (n/(n-1))² var(y):      {(n / (n - 1)) ** 2 * jnp.var(y):.4f}")
print(f"√2 ℓ = 0.005: {ak.LeaveOneOut()(regression(0.005), x, y):.4f}", end="")
print(f"   mean of two neighbours: {jnp.mean((y - neighbours) ** 2):.4f}")

# %% [markdown]
# ## At a boundary
#
# At $x = -3$ all neighbours are on one side. Their mean is wrong by the slope times their mean
# distance: a bias proportional to $\ell$. Local linear regression (order 1) fits a line through
# them, follows the slope, and has a bias proportional to $\ell^2$:
#
# $$
# \hat f(x) = \hat\beta_0, \qquad (\hat\beta_0, \hat\beta_1) =
# \arg\min_\beta \sum_{j=1}^{n} K(x, x_j)\, \big(y_j - \beta_0 - \beta_1 (x_j - x)\big)^2
# $$
#
# To isolate the bias, take 3000 labels without noise, $y_j = f(x_j)$: the whole error is then
# bias. When $\ell$ is halved, the bias of order 0 approaches one half of its value. The bias of
# order 1 falls to somewhat less than a quarter, since higher powers of $\ell$ still contribute.

# %%
dense = jnp.linspace(-3.0, 3.0, 3000)
labels = ak.data.heteroskedastic_mean(dense)
halved = (0.2, 0.1, 0.05, 0.025)
for order in (0, 1):
    fits = [regression(length, order)(dense[:1], dense, labels)[0] for length in halved]
    bias = np.array(fits) - float(labels[0])
    ratios = bias[1:] / bias[:-1]
    print(f"order {order}: bias at √2 ℓ = {halved}:", *(f"{b:.5f}" for b in bias), end="")
    print("; each over the one before:", *(f"{ratio:.2f}" for ratio in ratios))

# %% [markdown]
# ## Move the lengthscale
#
# Left, the curve at one lengthscale; below it the weights of the labels at $x = 0$, not to scale.
# Right, this lengthscale on the leave-one-out curve. In a live notebook, move it: for large $\ell$
# the error is bias, for small $\ell$ it is variance, and near the minimum it hardly changes.

# %%
lengths = np.geomspace(0.02, 10.0, 120)
standard = ak.kernels.convert_lengthscale(lengths, source="unhalved")
criterion = ak.profile(fit.model, x, y, standard, objective=ak.LeaveOneOut())


def draw(log10_length):
    length = 10.0**log10_length
    model = regression(length)
    _, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.4))
    ak.plot.points(x, y, ax=left)
    left.plot(x[:, 0], data.mean, "--", color=ak.plot.BLUE, label="true mean")
    left.plot(at, model(at, x, y), color=ak.plot.ORANGE, label="prediction")
    bump = jnp.exp(-((at / length) ** 2)) - 2.5
    left.fill_between(at, -2.5, bump, color=ak.plot.SKY, alpha=0.5, label="kernel at x = 0")
    left.set(xlabel="x", ylabel="y", title=f"√2 ℓ = {length:.3f}")
    left.legend(loc="upper center", fontsize=8)
    right.plot(lengths, criterion, color=ak.plot.BLUE)
    error = ak.LeaveOneOut()(model, x, y)
    here = f"{error:.4f} at √2 ℓ = {length:.3f}"
    right.plot(length, error, "o", color=ak.plot.ORANGE, label=here)
    right.axvline(best, color=ak.plot.ink(), linestyle=":", label=f"minimum: √2 ℓ = {best:.3f}")
    right.set(xscale="log", yscale="log", xlabel="√2 ℓ (units of x)")
    right.set(ylabel="leave-one-out error (units of y, squared)", title="criterion")
    right.legend(loc="upper left")
    ak.plot.show("lengthscale")


ak.plot.interact(draw, log10_length=(-0.3, -1.5, 1.0))
