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
# # Ten minutes with attnkernel
#
# Attention is kernel regression: both are a mean of values, weighted by how similar their keys are
# to a query.
#
# $$
# \mathrm{attend}(q_i) = \frac{\sum_{j=1}^{n} w_{ij}\, v_j}{\sum_{j=1}^{n} w_{ij}}, \qquad
# \log w_{ij} = \log K(q_i, k_j) + \log \pi(i, j),
# \qquad q_i, k_j \in \mathbb{R}^d, \quad v_j \in \mathbb{R}^m
# $$
#
# In regression $q_i$ are test points, $k_j$ inputs, $v_j$ labels and $K$ is the kernel. In a
# transformer they are queries, keys and values, and $\log K$ is the score. The prior $\pi(i, j)$
# weights or masks key $j$ for query $i$.
#
# This notebook makes one call, a fit, a band and a plot. It takes less than a minute.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import attnkernel as ak

ak.cache_programs()  # the next run of this notebook compiles nothing
plt.rcParams.update(ak.plot.STYLE)

# %% [markdown]
# ## Data
#
# We draw $n = 150$ labels about a known curve, $y_i = f(x_i) + s(x_i)\, \varepsilon_i$, with
# $f(x) = \tfrac12 \sin x - \sin 3x + x^2/5$, noise $s(x) = 0.2 + 0.05 |x|$ and standard normal
# $\varepsilon_i$.

# %%
data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0))
print(f"x {data.x.shape}, from {data.x.min():g} to {data.x.max():g};  y {data.y.shape}")

# %% [markdown]
# ## One call
#
# We predict at $x = 0, 1, 2$. The Gaussian kernel is $K(q, k) = \exp(-\lVert q - k \rVert^2 / 2
# \ell^2)$, with the lengthscale $\ell$ in the units of $x$. The call is then the Nadaraya–Watson
# estimator. We compare it with the same sum in NumPy: the two differ by rounding in single
# precision, about $10^{-7}$.

# %%
q = jnp.array([[0.0], [1.0], [2.0]])
k, v = data.x, data.y[:, None]
prediction = ak.attend(q, k, v, kernel=ak.Gaussian(0.1))

w = np.exp(-((np.asarray(q) - np.asarray(k).T) ** 2) / (2 * 0.1**2))
by_hand = w @ np.asarray(v) / w.sum(axis=1, keepdims=True)
print("attend: ", prediction[:, 0])
print("by hand:", by_hand[:, 0])
print(f"largest deviation: {np.abs(prediction - by_hand).max():.1e}")

# %% [markdown]
# Change the kernel to $\exp(q \cdot k / \sqrt d)$, the prior to a causal mask, and the same call is
# a transformer's attention, $\mathrm{softmax}(Q K^\top / \sqrt d + \text{mask})\, V$.

# %%
of_q, of_k, of_v = jax.random.split(jax.random.PRNGKey(1), 3)
Q, K = jax.random.normal(of_q, (6, 8)), jax.random.normal(of_k, (6, 8))
V = jax.random.normal(of_v, (6, 2))
attention = ak.attend(Q, K, V, kernel=ak.DotProduct(), prior=ak.Causal())

mask = jnp.where(jnp.tril(jnp.ones((6, 6))) == 1, 0.0, -jnp.inf)
of_transformer = jax.nn.softmax(Q @ K.T / jnp.sqrt(8) + mask) @ V
print(f"largest deviation: {jnp.abs(attention - of_transformer).max():.1e}")

# %% [markdown]
# ## A fit
#
# Which lengthscale? We take the one that best predicts each label *from all others*:
#
# $$ \hat\ell = \arg\min_\ell \frac1n \sum_{i=1}^{n} \big(y_i - \hat f_{-i}(x_i)\big)^2 $$
#
# Leaving a point out is again a prior: $\pi(i, i) = 0$. `KernelRegression` is the call above as a
# module with a lengthscale to fit. `ak.fit` searches from ten starts and reports every minimum
# that they reach. Here there is one. Its leave-one-out error is near the mean of $s(x)^2$, the
# smallest error that any predictor can expect.

# %%
fit = ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), data.x, data.y, objective=ak.LeaveOneOut())
print(f"lengthscale {fit.model.kernel.lengthscale:.4f}, in the units of x")
print(f"leave-one-out error {fit.loss:.4f};  mean of s(x)²: {jnp.mean(data.sd**2):.4f}")
print(f"minima: {[(round(float(m.kernel.lengthscale), 4), round(e, 4)) for m, e in fit.minima()]}")

# %% [markdown]
# ## A band
#
# The prediction is linear in the labels, $\hat f(x) = \sum_j L_j(x)\, y_j$, so its variance is
# $\sum_j L_j(x)^2 \sigma_j^2$. `ak.bands` estimates the noise from the residuals and corrects for
# the bias of the fit. A pointwise 95 % band should contain the true mean at about 95 % of all $x$.
# In one data set the share varies, since neighbouring $x$ share their labels.

# %%
at = ak.plot.grid(data.x)
band = ak.bands(fit, at)
truth = ak.data.heteroskedastic_mean(at)
covered = np.mean((band.lower <= truth) & (truth <= band.upper))
print(f"the band holds the true mean at {100 * covered:.0f} % of {len(at)} inputs")

# %% [markdown]
# ## A plot
#
# Left, the fit and its band. Right, the weights $L_j(q)$ of the labels in the prediction at one
# query $q$; a transformer calls them the attention of $q$. They form a bump as wide as the
# lengthscale, and their sum is 1. In a live notebook, move the query: at the ends of the data half
# of the bump is missing, and the prediction depends on fewer labels.


# %%
def draw(q):
    _, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.4))
    ak.plot.fit(fit, band, ax=left)
    left.plot(at, truth, "--", color=ak.plot.BLUE, label="true mean")
    left.axvline(q, color=ak.plot.PURPLE, linestyle="--", linewidth=1.0)
    left.set_title(f"prediction at q = {q:.2f}: {fit(jnp.array([q]))[0]:.2f}")
    left.legend(loc="upper center", frameon=True, framealpha=0.85, edgecolor="none")
    ak.plot.weights(fit, q, ax=right)
    right.set(ylim=(-0.01, 0.45), title="what the prediction looks at")
    ak.plot.show("query")


ak.plot.interact(draw, q=(2.0, -3.0, 3.0))
