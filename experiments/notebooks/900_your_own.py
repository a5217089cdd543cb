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
# # Bring your own
#
# Each part of the sum can be replaced. A kernel is one method for one pair of points, a prior one
# method for one pair of positions. A method evaluates the sum.
#
# $$
# \mathrm{attend}(q_i) = \frac{\sum_j w_{ij}\, v_j}{\sum_j w_{ij}}, \qquad
# \log w_{ij} = \underbrace{\log K(q_i, k_j)}_{\texttt{log\_pair(q, k)}}
# + \underbrace{\log \pi(i, j)}_{\texttt{log\_pair(i, j)}}, \qquad q_i, k_j \in \mathbb{R}^d
# $$
#
# A part of your own works in sums of any size, in models, fits and their gradients, in plots,
# files and configs.

# %%
import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import attnkernel as ak
import experiments
from experiments.__main__ import main

jax.config.update("jax_enable_x64", True)
ak.cache_programs()  # the next run of this notebook compiles nothing
plt.rcParams.update(ak.plot.STYLE)

# %% [markdown]
# ## A kernel
#
# The logistic kernel is smooth at 0 like a Gaussian and has the exponential tails of a Laplace
# kernel. In units of a lengthscale $\ell$, for each of $d$ columns,
#
# $$
# K(q, k) = \prod_{c=1}^{d} \frac{4}{e^{u_c} + 2 + e^{-u_c}}
# = \prod_{c=1}^{d} \frac{1}{\cosh^2(u_c / 2)}, \qquad u = \frac{q - k}{\ell}
# $$
#
# The package does not have it. `Scaled` holds the logarithm of $\ell$, so that no step of an
# optimiser can make it negative. It also derives the bounds of $\ell$ from the inputs. We write
# $\log K$ of one pair, with a $\log \cosh$ that does not overflow.


# %%
class Logistic(ak.kernels.Scaled):
    def log_pair(self, q, k):
        half = 0.5 * (q - k) / self.lengthscale
        log_cosh = jnp.logaddexp(half, -half) - jnp.log(2.0)
        return -2.0 * jnp.sum(log_cosh)


print(Logistic(0.3), "K(0, 0.3) =", jnp.exp(Logistic(0.3).log_pair(jnp.zeros(1), jnp.array([0.3]))))

# %% [markdown]
# ### In every method that can take it
#
# Some methods need more than the score of a pair. They refuse the kernel and say why.

# %%
of_q, of_k, of_v = jax.random.split(jax.random.PRNGKey(0), 3)
q = jax.random.normal(of_q, (50, 1))
k, v = jax.random.normal(of_k, (400, 1)), jax.random.normal(of_v, (400, 2))
mine = Logistic(0.3)
exact = ak.attend(q, k, v, kernel=mine, method=ak.methods.Dense())
others = (ak.methods.Blockwise(), ak.methods.Sharded(), ak.attention.Auto())
others += (ak.methods.Fourier(), ak.methods.Sorted(), ak.methods.Linear(), ak.methods.Fused())
for method in others:
    name = type(method).__name__
    try:
        out = ak.attend(q, k, v, kernel=mine, method=method)
        print(f"{name:10s} differs from Dense by {jnp.max(jnp.abs(out - exact)):.0e}")
    except ValueError as reason:
        print(f"{name:10s} refuses. {str(reason).partition(': ')[2]}")

# %% [markdown]
# ### In a fit
#
# Bounds, ten starts and gradients come from the base class. We check the gradient of the
# leave-one-out error with respect to $\log \ell$ against a difference quotient. Then we compare
# this kernel with two built-in ones by the same criterion. Each with its own lengthscale, they
# differ by at most one percent: the shape of the kernel matters far less than its lengthscale.

# %%
data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0))
loss = ak.LeaveOneOut()


def error(log_lengthscale):
    return loss(ak.KernelRegression(Logistic(jnp.exp(log_lengthscale))), data.x, data.y)


at, step = jnp.log(0.2), 1e-5
quotient = (error(at + step) - error(at - step)) / (2 * step)
print(f"slope {jax.grad(error)(at):.8f}, difference quotient {quotient:.8f}")

fits = {}
for kernel in (Logistic, ak.Gaussian, ak.Laplace):
    fits[kernel] = ak.fit(ak.KernelRegression(kernel(1.0)), data.x, data.y, objective=loss)
    length, value = fits[kernel].model.kernel.lengthscale, fits[kernel].loss
    print(f"{kernel.__name__:9s} lengthscale {length:.4f}, leave-one-out error {value:.6f}")
fit = fits[Logistic]

# %% [markdown]
# ### In attention
#
# The same class is the score of a transformer's heads, with a causal mask. All parameters have
# gradients, the lengthscale included.

# %%
tokens = jax.random.normal(jax.random.PRNGKey(1), (12, 16))
attention = ak.MultiheadAttention(
    4, 16, kernel=Logistic(1.0), prior=ak.Causal(), key=jax.random.PRNGKey(2)
)
slope = jax.grad(lambda module: jnp.sum(module(tokens, tokens, tokens) ** 2), allow_int=True)
print("output", attention(tokens, tokens, tokens).shape)
print(f"slope of the lengthscale: {slope(attention).kernel.lengthscale_parameter.z:.4f}")

# %% [markdown]
# ### In a file
#
# A file contains the name of the class and no code. The reader of the file passes the classes that
# it may contain.

# %%
folder = Path(tempfile.mkdtemp())
ak.save(folder / "fit.ak", fit)
again = ak.load(folder / "fit.ak", classes=[Logistic])
print("the same predictions, bit for bit:", bool(jnp.all(again(data.x) == fit(data.x))))
try:
    ak.load(folder / "fit.ak")
except ak.SavedFileError as reason:
    print("without classes:", str(reason).partition(": ")[2])

# %% [markdown]
# ### In a config
#
# A config names kernels by registered names, so register it. On the command line,
# `python -m experiments run own.yaml --kernels FILE.py` does that for each kernel in a file of
# yours.

# %%
experiments.register("logistic", Logistic)
(folder / "own.yaml").write_text("""\
study: leave_one_out
data: {source: heteroskedastic, n: 150}
model: {kernel: logistic}
""")
code = main(["run", f"{folder}/own.yaml", "seed=0", "--out", f"{folder}/run", "--quiet"])
summary = json.loads((folder / "run" / "summary.json").read_text())
print(f"exit code {code}: {summary['kernel']}, lengthscale {summary['lengthscale']:.4f}")
print("files:", *sorted(path.name for path in (folder / "run" / "figures").iterdir()))

# %% [markdown]
# (The lengthscale differs from that above, since the config draws other noise.)
#
# ## A prior
#
# A mask is any function of two positions. A prior with weights is a class with one method. Both
# combine with all other priors. This one is a season: it gives more weight to positions on the
# same day of the week, $\log \pi(i, j) = -b\,\sin^2(\pi (i - j) / 7)$, with a strength $b$ to fit.


# %%
class Weekly(ak.priors.Prior):
    strength: jax.Array

    def log_pair(self, i, j):
        return -self.strength * jnp.sin(jnp.pi * (i - j) / 7) ** 2


same_parity = ak.priors.MaskFunction(lambda i, j: (i - j) % 2 == 0)
prior = (ak.Causal() & same_parity) * Weekly(jnp.asarray(3.0))
days = jnp.arange(28.0)[:, None]
weights = ak.attention_weights(days, days, kernel=Logistic(5.0), prior=prior)
print("the last day looks at days", jnp.argsort(-weights[-1])[:5])
streamed = ak.attend(
    days, days, days, kernel=Logistic(5.0), prior=prior, method=ak.methods.Blockwise()
)
print(f"streamed, off by {jnp.max(jnp.abs(streamed - weights @ days)):.0e}")

# %% [markdown]
# ## A method
#
# A method subclasses `ak.methods.Method`. `unsupported_reason` returns why it cannot evaluate a
# task, or None. `softmax_state` returns the state of all keys: maximum, mass and total of each
# query. The states of disjoint sets of keys merge into the state of their union, which is all that
# streaming, sharding and caches need. Here the keys come in two halves, as from two files.


# %%
class Halves(ak.methods.Method):
    def unsupported_reason(self, task):
        if task.prior is not None or type(task.rule) is not ak.Softmax:
            return "it takes no prior, and the rule Softmax"
        return None

    def softmax_state(self, q, k, v, kernel, prior, rule):
        scores, middle = rule.scaled_scores(kernel.pairwise(q, k)), len(k) // 2
        first = ak.methods.SoftmaxState.from_log_weights(scores[:, :middle], v[:middle])
        second = ak.methods.SoftmaxState.from_log_weights(scores[:, middle:], v[middle:])
        return first.merge(second).with_sink(rule.log_sink())


merged = ak.attend(q, k, v, kernel=mine, method=Halves())
print(f"Halves differs from Dense by {jnp.max(jnp.abs(merged - exact)):.0e}")
try:
    ak.attend(days, days, days, kernel=mine, prior=ak.Causal(), method=Halves())
except ValueError as reason:
    print(reason)

halves = ak.KernelRegression(Logistic(1.0), method=Halves())
print("in a model, predictions:", halves(jnp.array([0.0, 1.0]), data.x, data.y).round(4))

# %% [markdown]
# ## In plots
#
# Left, the kernel beside two built-in ones, each at the lengthscale of its own fit. Middle, the fit
# with a band of its mean. Right, the criterion, with its minimum. In a live notebook, move the
# lengthscale of the curve.

# %%
band = ak.bands(fit, ak.plot.grid(data.x))
grid = jnp.asarray(ak.plot.grid(data.x))
apart = jnp.linspace(-0.5, 0.5, 201)[:, None]


def draw(lengthscale):
    _, (left, middle, right) = plt.subplots(1, 3, figsize=(10.5, 3.3))
    for (kernel, found), dashes in zip(fits.items(), ("-", "--", ":"), strict=True):
        shape = jnp.exp(found.model.kernel.pairwise(jnp.zeros((1, 1)), apart))[0]
        left.plot(apart[:, 0], shape, dashes, label=kernel.__name__)
    left.set(xlabel="q − k (units of x)", ylabel="kernel K(q, k)", ylim=(0.0, 1.3))
    left.legend(loc="upper center", ncols=3, columnspacing=0.8, handlelength=1.5)
    ak.plot.fit(fit, band, ax=middle)
    curve = ak.KernelRegression(Logistic(lengthscale))(grid, data.x, data.y)
    middle.plot(grid, curve, "--", color=ak.plot.ink(), linewidth=1.0, label=f"ℓ = {lengthscale:g}")
    middle.set_ylim(-3.2, None)
    middle.legend(loc="lower center", ncols=2)
    ak.plot.criterion(fit, np.geomspace(0.02, 2.0, 100), ax=right)
    right.axvline(lengthscale, color=ak.plot.ink(), linestyle="--", linewidth=1.0)
    right.legend(loc="lower right", frameon=True, framealpha=1.0, edgecolor="none")
    right.set(ylabel="leave-one-out error (squared units of y)", ylim=(-0.1, None))
    ak.plot.show("kernel")


ak.plot.interact(draw, lengthscale=(0.3, 0.02, 2.0))
