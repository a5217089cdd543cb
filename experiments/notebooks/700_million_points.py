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
# # A million points
#
# A kernel regression of $n$ labels at all $n$ inputs has $n^2$ terms: $10^{12}$ at a million
# points. A fit evaluates it dozens of times. Two families of kernels do not need all pairs.
#
# $$
# \hat f_{-i}(x_i) = \frac{\sum_{j \ne i} K(x_i, x_j)\, y_j}{\sum_{j \ne i} K(x_i, x_j)},
# \qquad x_i \in \mathbb{R}^d, \quad i = 1, \dots, n
# $$
#
# `Fourier` sums a Gaussian kernel by a nonuniform FFT in $O(n \log n)$, with a certified error at
# each query. `Sorted` sums compact kernels and the Laplace kernel exactly, along sorted keys, in
# one dimension. Both need double precision, which costs little on a CPU.

# %%
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import attnkernel as ak

jax.config.update("jax_enable_x64", True)
plt.rcParams.update(ak.plot.STYLE)

# %% [markdown]
# ## Which method?
#
# The default, `method=ak.attention.Auto()`, decides by sizes, dtype, kernel, prior and rule.
# `ak.attention.select_method` takes the same arguments as `ak.attend`, runs nothing, and says why
# each method before its choice was passed over.

# %%
points = jax.ShapeDtypeStruct((1_000_000, 1), jnp.float64)
plane = jax.ShapeDtypeStruct((1_000_000, 4), jnp.float64)
questions = {
    "a Gaussian, 1 dimension": (ak.Gaussian(0.1), points),
    "an Epanechnikov, 1 dimension": (ak.Epanechnikov(0.1), points),
    "a Gaussian, 4 dimensions": (ak.Gaussian(0.1), plane),
}
for what, (asked, x) in questions.items():
    print(f"{what}: {ak.attention.select_method(x, x, points, kernel=asked)}\n")

# %% [markdown]
# ## Data
#
# The curve is that of the first notebook, $f(x) = \tfrac12 \sin x - \sin 3x + x^2 / 5$, with a
# million labels. We print seven of them. The noise has a standard deviation of 0.2 to 0.35.

# %%
n = 1_000_000
data = ak.data.heteroskedastic(key=jax.random.PRNGKey(2024), n=n)
some = jnp.arange(0, n, n // 6)
print("x", data.x[some, 0].round(2))
print("y", data.y[some].round(2))

# %% [markdown]
# ## How exact?
#
# Every method evaluates the same function, and a method that you name never falls back to another.
# We let `Fourier` predict 4000 labels, each from all others, and compare with the sum over all
# pairs. Its `tol`, $10^{-6}$ by default, bounds the relative error of each prediction. Queries
# without a certificate are summed again, pair by pair; `count_recomputed` counts them. `Sorted`
# has no tolerance: it is exact to rounding.


# %%
def left_out(x, y, kernel, method):
    prior = ak.priors.ExcludeSelf()
    return ak.attend(x, x, y[:, None], kernel=kernel, prior=prior, method=method)[:, 0]


few = ak.data.heteroskedastic(key=jax.random.PRNGKey(1), n=4000)
for kernel, method in (
    (ak.Gaussian(0.02), ak.methods.Fourier()),
    (ak.Epanechnikov(0.05), ak.methods.Sorted()),
):
    exact = left_out(few.x, few.y, kernel, ak.methods.Dense())
    fast = left_out(few.x, few.y, kernel, method)
    worst = jnp.max(jnp.abs(fast - exact) / jnp.abs(exact))
    print(f"{type(method).__name__:8s} {kernel}: largest relative deviation {worst:.1e}")

again = ak.methods.Fourier().count_recomputed(
    few.x, few.x, few.y[:, None], kernel=ak.Gaussian(0.02), prior=ak.priors.ExcludeSelf()
)
print(f"queries that Fourier summed again: {int(again)} of {len(few.x)}")

# %% [markdown]
# ## A fit of a million points
#
# `ak.fit` minimises the leave-one-out error, exact to the tolerance. One start suffices if it is
# near the minimum. We take the normal-reference rule, Scott's $1.06\, \hat\sigma\, n^{-1/5}$; it
# is made for densities and too wide for this curve. The bounds limit the search. The first time
# includes compilation, the second does not.

# %%
start = float(ak.inference.normal_reference(data.x)[0])
models = [ak.KernelRegression(ak.Gaussian(start * factor)) for factor in (1.0, 0.05, 3.0)]


def fitted():
    began = time.perf_counter()
    bounds = (models[1], models[2])
    found = ak.fit(models[0], data.x, data.y, objective=ak.LeaveOneOut(), bounds=bounds, starts=1)
    found.loss.block_until_ready()
    return found, time.perf_counter() - began


fit, first = fitted()
_, second = fitted()
print(f"rule of thumb {start:.5f}, fitted lengthscale {fit.model.kernel.lengthscale:.5f}")
print(f"leave-one-out error {fit.loss:.6f};  mean of s(x)²: {jnp.mean(data.sd**2):.6f}")
print(f"{first:.1f} s with compilation, {second:.1f} s without")

# %% [markdown]
# The lengthscale shrinks with $n$: with 150 labels it is about 0.1, with a million a sixth of
# that. The leave-one-out error is almost the variance of the noise; a better predictor could gain
# only the difference of the two numbers. A curve is one more sum over all labels, here with other
# queries.


# %%
grid = jnp.linspace(-3.0, 3.0, 401)
truth = ak.data.heteroskedastic_mean(grid)


def predict(lengthscale):
    return ak.KernelRegression(ak.Gaussian(lengthscale))(grid, data.x, data.y)


curve = predict(fit.model.kernel.lengthscale)
print(f"root mean square error of the curve: {jnp.sqrt(jnp.mean((curve - truth) ** 2)):.4f}")
print(f"largest, in the interior: {jnp.max(jnp.abs(curve - truth)[10:-10]):.4f}")

# %% [markdown]
# ## Time against n
#
# We time one leave-one-out prediction of all $n$ labels, compiled, at lengthscales that shrink as
# $n^{-1/5}$. `Dense` stores all pairs: its time and its memory grow as $n^2$, to an eighth of a
# gigabyte at 4000 points. (`Blockwise` streams the pairs, in $O(n)$ memory, for any kernel.)


# %%
def seconds(n, kernel, method):
    x, y = data.x[:: len(data.x) // n][:n], data.y[:: len(data.x) // n][:n]
    left_out(x, y, kernel, method).block_until_ready()  # compiles
    began = time.perf_counter()
    left_out(x, y, kernel, method).block_until_ready()
    return time.perf_counter() - began


sizes = {"Dense": [500, 1000, 4000], "Fourier": [4000, 1_000_000], "Sorted": [4000, 1_000_000]}
spent = {}
for name, counts in sizes.items():
    by = getattr(ak.methods, name)()
    kind = ak.Epanechnikov if name == "Sorted" else ak.Gaussian
    spent[name] = [seconds(m, kind(0.016 * (1e6 / m) ** 0.2), by) for m in counts]
    times = ", ".join(f"{m}: {s:.4f} s" for m, s in zip(counts, spent[name], strict=True))
    print(f"{name:10s}{times}")

# %% [markdown]
# Left, the fit and some of the labels. Right, the times, with lines of slope $n$ and $n^2$. In a
# live notebook, move the lengthscale: each move computes a new curve from all million labels.

# %%
shown = np.random.default_rng(0).choice(n, 3000, replace=False)


def draw(log10_lengthscale):
    length = 10.0**log10_lengthscale
    _, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.4))
    left.plot(data.x[shown, 0], data.y[shown], ".", color="#BBBBBB", markersize=2, label="labels")
    left.plot(grid, predict(length), color=ak.plot.ORANGE, label=f"ℓ = {length:.3g}")
    left.plot(grid, truth, "--", color=ak.plot.BLUE, label="truth")
    left.set(xlabel="x", ylabel="y", title="3000 of 1 000 000 labels")
    left.legend()
    for (name, counts), mark in zip(sizes.items(), ("s--", "o-", "^-."), strict=True):
        right.plot(counts, spent[name], mark, label=name)
    for power, name in ((1, "n"), (2, "n²")):
        ends = np.array([1e3, 1e4])
        right.plot(ends, 0.2 * (ends / 1e3) ** power, color=ak.plot.ink(), linewidth=0.6)
        right.text(ends[1], 0.2 * 10**power, f" {name}", va="center")
    right.set(xscale="log", yscale="log", xlabel="points n", ylabel="seconds, all n predictions")
    right.set(title="leave-one-out prediction, compiled")
    right.legend()
    ak.plot.show("million_points")


best = float(jnp.log10(fit.model.kernel.lengthscale))
ak.plot.interact(draw, log10_lengthscale=(best, -2.0, 0.0))
