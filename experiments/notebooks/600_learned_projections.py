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
# # Learned projections
#
# A head of a transformer is a kernel regression with three learned matrices, which project the
# points to queries, keys and values.
#
# $$
# \hat f(x) = \frac{\sum_j w_j(x)\, W_v z_j}{\sum_j w_j(x)}, \qquad
# \log w_j(x) = \log K(W_q x,\, W_k z_j), \qquad x \in \mathbb{R}^d, \quad z_j = (x_j, y_j)
# $$
#
# First we learn one projection, which finds the relevant direction of the inputs. Then we train a
# small model on random functions. It predicts new functions without further training.

# %%
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import attnkernel as ak

ak.cache_programs()  # the next run of this notebook compiles nothing
plt.rcParams.update(ak.plot.STYLE)

# %% [markdown]
# ## The relevant direction of the inputs
#
# There are two inputs, but the labels depend on one direction $a$ alone: $y = \sin(3\, a \cdot x)
# + 0.2\, \varepsilon$ with $a = (0.8, 0.6)$. A Gaussian with one lengthscale must be narrow along
# both axes, so that few rows have weight. With one projection $W$ for queries and keys,
#
# $$ \log K(q, k) = -\tfrac12 \lVert W q - W k \rVert^2, \qquad W \in \mathbb{R}^{2 \times 2} $$
#
# the same leave-one-out criterion can stretch the relevant direction and shrink the other. This is
# the full `metric` of a kernel, $M = W^\top W$. Its leading eigenvector is the estimated
# direction.

# %%
of_x, of_noise = jax.random.split(jax.random.PRNGKey(0))
points = jax.random.uniform(of_x, (300, 2), minval=-1.5, maxval=1.5)
direction = jnp.array([0.8, 0.6])
labels = jnp.sin(3 * points @ direction) + 0.2 * jax.random.normal(of_noise, (300,))

metric = ak.Gaussian(0.5, metric=jnp.eye(2))
for name, kernel in (("one lengthscale", ak.Gaussian(0.5)), ("a projection", metric)):
    fit = ak.fit(ak.KernelRegression(kernel), points, labels, objective=ak.LeaveOneOut())
    print(f"{name:16s} leave-one-out error {fit.loss:.4f}, noise variance {0.2**2:.4f}")

found = jnp.linalg.eigh(fit.model.kernel.metric)[1][:, -1]
print("direction found", (found * jnp.sign(found[0])).round(3), "truth", direction)

# %% [markdown]
# ## Learning in context
#
# Now every example is a new function. We draw functions from a Gaussian process with lengthscale
# 0.5. Sixteen noisy points of each are the *context*; the model predicts the function elsewhere.
# The model is `LearnedKernelRegression`: a small network $\varphi$ embeds an input, and four heads
# attend from $W_q \varphi(x)$ to $W_k (\varphi(x_j), y_j)$ by a Gaussian kernel. The context is an
# argument of the call. Only $\varphi$ and the projections are trained, on random functions:
#
# $$
# \min_\theta\; \mathbb{E}_{f,\, (x_j, y_j),\, x}
# \Big[ \big( f(x) - \hat f_\theta(x; x_1, y_1, \dots, x_n, y_n) \big)^2 \Big]
# $$

# %%
CONTEXT, TARGETS, NOISE, LENGTH = 16, 32, 0.2, 0.5


def covariance(a, b):
    return jnp.exp(ak.Gaussian(LENGTH).pairwise(a[:, None], b[:, None]))


def draw_function(key):
    """A context (x, y), other inputs, and the function there."""
    of_x, of_f, of_noise = jax.random.split(key, 3)
    x = jax.random.uniform(of_x, (CONTEXT + TARGETS,), minval=-2.0, maxval=2.0)
    root = jnp.linalg.cholesky(covariance(x, x) + 1e-5 * jnp.eye(len(x)))
    f = root @ jax.random.normal(of_f, (len(x),))
    y = f[:CONTEXT] + NOISE * jax.random.normal(of_noise, (CONTEXT,))
    return x[:CONTEXT], y, x[CONTEXT:], f[CONTEXT:]


of_embedding, of_model, of_training = jax.random.split(jax.random.PRNGKey(1), 3)
embedding = eqx.nn.MLP(1, 8, 64, 2, activation=jnp.tanh, key=of_embedding)
model = ak.LearnedKernelRegression(
    1, num_heads=4, qk_size=8, embedding=embedding, kernel=ak.Gaussian(1.0), key=of_model
)

# %% [markdown]
# Adam takes 400 steps, each with 32 new functions. All steps are one compiled program.

# %%
STEPS = 400
optimizer = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adam(optax.warmup_cosine_decay_schedule(0.0, 5e-3, 50, STEPS, 5e-5)),
)
parameters, fixed = eqx.partition(model, eqx.is_inexact_array)


def loss(parameters, key):
    x, y, at, truth = jax.vmap(draw_function)(jax.random.split(key, 32))
    predicted = jax.vmap(eqx.combine(parameters, fixed))(at, x, y)
    return jnp.mean((predicted - truth) ** 2)


@jax.jit
def train(parameters, keys):
    def step(state, key):
        parameters, moments = state
        value, slope = jax.value_and_grad(loss)(parameters, key)
        updates, moments = optimizer.update(slope, moments, parameters)
        return (optax.apply_updates(parameters, updates), moments), value

    (parameters, _), losses = jax.lax.scan(step, (parameters, optimizer.init(parameters)), keys)
    return parameters, losses


parameters, losses = train(parameters, jax.random.split(of_training, STEPS))
trained = eqx.filter_jit(eqx.combine(parameters, fixed))
print("mean loss of the first and the last 100 steps:", losses[:100].mean(), losses[-100:].mean())

# %% [markdown]
# ## Comparison on new functions
#
# We compare three predictors on 100 new functions:
#
# - *Learned*: the trained model, without any fit to the context.
# - *Tuned*: Nadaraya–Watson, its lengthscale fitted to each context by leave-one-out.
# - *Posterior*: the posterior mean of the Gaussian process, which has the smallest expected error.
#
# The first number of each line is the mean squared error, the second its standard error. Sixteen
# noisy labels do not always identify a lengthscale; such fits emit a `FitWarning`, which we print.

# %%
x, y, at, truth = jax.vmap(draw_function)(jax.random.split(jax.random.PRNGKey(2), 100))
with warnings.catch_warnings(action="ignore", category=ak.FitWarning):
    tuned = ak.fit_many(
        ak.KernelRegression(ak.Gaussian(0.3)),
        x[:, :, None],
        y,
        objective=ak.LeaveOneOut(),
        in_axes=(None, 0, None),
    )
print("tuned:", *tuned.warnings())


def posterior(at, x, y):
    noisy = covariance(x, x) + NOISE**2 * jnp.eye(len(x))
    return covariance(at, x) @ jnp.linalg.solve(noisy, y)


curves = {
    "tuned": eqx.filter_vmap(lambda model, at, x, y: model(at, x, y))(tuned.model, at, x, y),
    "learned": jax.vmap(trained)(at, x, y),
    "posterior": jax.vmap(posterior)(at, x, y),
}
errors = {name: jnp.mean((curve - truth) ** 2, axis=1) for name, curve in curves.items()}
for predictor, error in errors.items():
    print(f"{predictor:10s} {error.mean():.4f} ± {error.std() / 100**0.5:.4f}")
ratio = errors["learned"].mean() / errors["tuned"].mean()
difference = errors["learned"] - errors["tuned"]
print(f"learned ÷ tuned: {ratio:.2f}")
print(f"paired difference: {difference.mean():.4f} ± {difference.std() / 100**0.5:.4f}")

# %% [markdown]
# The model, never trained on these functions, has a smaller error than the tuned regression. The
# posterior mean is better again by at least as much. More training brings the model nearer: the
# study `configs/in_context.yaml` has twice the heads, 4000 steps, and contexts of 8 to 64 points.
#
# Left, the training loss, with the errors of the two others as lines. Right, one new function. In
# a live notebook, choose another.

# %%
inputs = jnp.linspace(-2.0, 2.0, 101)
STYLES = {"tuned": (ak.plot.BLUE, "--"), "learned": (ak.plot.ORANGE, "-")}
STYLES["posterior"] = (ak.plot.GREEN, "-.")


def draw(function):
    _, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.5))
    smooth = np.convolve(losses, np.ones(25) / 25, mode="valid")
    left.plot(np.arange(len(smooth)) + 25, smooth, color=ak.plot.ORANGE, label="learned")
    for name in ("tuned", "posterior"):
        color, dashes = STYLES[name]
        left.axhline(errors[name].mean(), color=color, linestyle=dashes, label=name)
    left.set(xlabel="step (mean of 25)", ylabel="squared error", yscale="log", title="training")
    left.legend()
    i = function
    member = jax.tree.map(lambda leaf: leaf[i] if eqx.is_array(leaf) else leaf, tuned.model)
    lines = {"tuned": member(inputs, x[i], y[i]), "learned": trained(inputs, x[i], y[i])}
    lines["posterior"] = posterior(inputs, x[i], y[i])
    order = jnp.argsort(at[i])
    right.plot(at[i][order], truth[i][order], ".", color=ak.plot.ink(), label="function")
    for name, line in lines.items():
        right.plot(inputs, line, STYLES[name][1], color=STYLES[name][0])
    ak.plot.points(x[i], y[i], ax=right)
    right.set(xlabel="x", ylabel="y", title=f"new function {i}, {CONTEXT} points")
    right.legend()
    ak.plot.show("function")


ak.plot.interact(draw, function=(0, 0, 199))
