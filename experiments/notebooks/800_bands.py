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
# # Bands
#
# An estimate needs a standard error. A prediction of kernel regression is linear in the labels, so
# its standard error follows from their noise $\sigma_j^2 = \mathrm{Var}(y_j \mid x_j)$:
#
# $$
# \hat f(x) = \sum_{j=1}^{n} L_j(x)\, y_j, \qquad
# \mathrm{se}(x)^2 = \sum_{j=1}^{n} L_j(x)^2\, \sigma_j^2, \qquad \hat f(x) \pm c\, \mathrm{se}(x)
# $$
#
# Three questions decide what to draw. A confidence band for the *mean* or an interval for a *new
# label*? At one $x$ or at all $x$ *simultaneously*? How is the *bias* treated, which the standard
# error does not contain?

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
# ## Wages by age
#
# The logarithm of wages of 205 Canadian men, by age (`cps71`, 1971 census). The fit is local
# linear: at each $x$ the height of a line fitted around it. The corrected Akaike criterion chooses
# its lengthscale. It trades the residual variance $\hat\sigma^2$ against the degrees of freedom
# $\nu = \mathrm{tr}\, L$, the trace of the hat matrix:
#
# $$
# \mathrm{AIC}_c(\ell) = \log \hat\sigma^2 + \frac{1 + \nu / n}{1 - (\nu + 2) / n}
# $$

# %%
cps71 = ak.data.load("cps71")
model = ak.KernelRegression(ak.Gaussian(1.0), order=1)
wages = ak.fit(model, cps71.x, cps71.y, objective=ak.AICc())
print(ak.summarise(wages, names=["age"]))

# %% [markdown]
# ### Three bands
#
# At the lengthscale that is best for the fit, the bias is as large as the standard error. A
# *naive* band about the fit ignores the bias and covers the true mean too rarely. `ak.bands`
# corrects it: the centre is a local quadratic fit, whose bias is of a higher order, and the
# standard error is that of this centre. A *pointwise* band has the level at each age. A
# *simultaneous* band has the level for all ages at once, and is wider.

# %%
ages = np.linspace(21, 65, 45)
bands = {
    "naive": ak.bands(wages, ages, corrected=False),
    "pointwise": ak.bands(wages, ages),
    "simultaneous": ak.bands(wages, ages, kind="simultaneous", key=jax.random.PRNGKey(0)),
}
print("half-widths of 95 % bands, of log wage")
for age in (21, 30, 45, 65):
    i = np.argmin(np.abs(ages - age))
    widths = {name: float(b.upper[i] - b.centre[i]) for name, b in bands.items()}
    print(f"age {age}: ", ", ".join(f"{name} {width:.3f}" for name, width in widths.items()))

# %%
figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.5), sharey=True)
ak.plot.fit(wages, bands["naive"], ax=axes[0])
axes[0].set(title="naive, about the fit", xlabel="age (years)", ylabel="log wage")
ak.plot.fit(wages, [bands["pointwise"], bands["simultaneous"]], ax=axes[1])
axes[1].set(title="corrected for the bias", xlabel="age (years)", ylabel="")
ak.plot.show("three_bands")

# %% [markdown]
# Is the dip near 45 significant? A simultaneous band answers such a question. The dip is not
# significant if one horizontal line lies between the limits at all ages from 35 to 50.

# %%
middle = (ages >= 35) & (ages <= 50)
for name in ("pointwise", "simultaneous"):
    low, high = float(bands[name].lower[middle].max()), float(bands[name].upper[middle].min())
    verdict = "a level line fits" if low < high else "no level line fits"
    print(
        f"{name:13s} {verdict}: the highest lower limit is {low:.3f}, the lowest upper {high:.3f}"
    )

# %% [markdown]
# ## Noise that changes
#
# The data `mcycle` are from a crash test of helmets: the acceleration of the head, in units of
# gravity, by milliseconds after the impact. The noise is small for the first 14 ms and large
# afterwards. By default $\sigma_j^2$ is estimated as a function of $x$, and the width of the band
# follows it.
#
# ### Intervals for a new label
#
# A *conformal* interval covers a new label from the same distribution, whatever the noise is. With
# `kind="split"` the coverage is at least 95 %, but half of the labels calibrate the interval. The
# default, used here, covers about 95 % if one label changes the fit little. It takes the $n$
# left-out residuals $r_i = |y_i - \hat f_{-i}(x_i)|$:
#
# $$
# \hat f(x) \pm \hat s(x)\, Q, \qquad
# Q = \text{the } \lceil 0.95\, (n + 1) \rceil\text{-th smallest of } r_i / \hat s(x_i)
# $$
#
# With $\hat s = 1$ all intervals have one width: right on average over $x$, far too wide at first
# and too narrow where the noise is largest. With `local=True`, $\hat s(x)$ follows the noise.

# %%
mcycle = ak.data.load("mcycle")
crash = ak.fit(model, mcycle.x, mcycle.y, objective=ak.AICc())
at = np.linspace(2.4, 57.6, 93)
print(f"lengthscale {crash.model.kernel.lengthscale:.2f} ms")
print("noise sd at 5, 20, 35 ms:", jnp.sqrt(ak.noise_variance(crash, jnp.array([5.0, 20, 35]))))

early = mcycle.x[:, 0] < 14
for local in (False, True):
    new = ak.conformal(crash, jnp.array([5.0, 35.0]), local=local)
    print(f"local={local}: half-widths at 5 and 35 ms", (new.upper - new.centre).round(1), "g")
    own = ak.conformal(crash, mcycle.x, local=local)
    inside = (own.lower <= mcycle.y) & (mcycle.y <= own.upper)
    shares = [float(100 * inside[rows].mean()) for rows in (early, ~early)]
    print("  labels inside before and after 14 ms: {:.0f} %, {:.0f} %".format(*shares))

# %% [markdown]
# (These shares are of labels that the fit has seen, a little higher than those of new ones.)
#
# Left, the corrected band of the mean; right, both intervals. In a live notebook, move the level.


# %%
def draw(percent):
    _, axes = plt.subplots(1, 2, figsize=(9.0, 3.6), sharey=True)
    level = percent / 100
    ak.plot.fit(crash, ak.bands(crash, at, level=level), ax=axes[0])
    axes[0].set(title="where the mean is", ylabel="acceleration (g)")
    same, local = (ak.conformal(crash, at, level=level, local=local) for local in (False, True))
    ak.plot.fit(crash, [local, same], ax=axes[1])
    handles = axes[1].get_legend_handles_labels()[0]
    names = ["labels", "fit", f"{percent:g} %, local width", f"{percent:g} %, one width"]
    axes[1].legend(handles, names, loc="lower right")
    axes[1].set(title="where a new label will be", ylabel="")
    for ax in axes:
        ax.set(xlabel="time after the impact (ms)")
    ak.plot.show("intervals")


ak.plot.interact(draw, percent=(95, 50, 98))
