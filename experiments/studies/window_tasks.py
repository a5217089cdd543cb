r"""Regression tasks that are drawn anew, and attention whose window is learned over them.

$$ y_i = f(u \cdot x_i) + \sigma\, e^{g\, u \cdot x_i} \varepsilon_i, \qquad
   \mathrm{Cov}\big(f(s), f(t)\big) = e^{-(s - t)^2 / (2 L^2)} $$

Inputs are uniform on $[-1, 1]^d$ and u is one direction. The attention has weights
$\mathrm{softmax}(-\lVert \phi(q) - \phi(x_i) \rVert^2 / 2)$ of one head, or those of local lines.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.special import stdtrit

import attnkernel as ak

from .study import Task

FEATURES = 96  # random cosines, whose sum is f
EXPECTED = {"n": -0.2, "noise": 0.4, "lengthscale": 0.8}  # powers of the best window, n large


class Family(NamedTuple):
    """Tasks of one kind: L, σ, g and u."""

    lengthscale: Float[Array, ""]
    noise: Float[Array, ""]
    growth: Float[Array, ""]
    direction: Float[Array, " dim"]


def draw(key: PRNGKeyArray, family: Family, n: int, targets: int) -> Task:
    of_x, of_frequency, of_phase, of_noise = jax.random.split(key, 4)
    x = jax.random.uniform(of_x, (n + targets, len(family.direction)), minval=-1.0, maxval=1.0)
    along = x @ family.direction
    frequency = jax.random.normal(of_frequency, (FEATURES,)) / family.lengthscale
    phase = jax.random.uniform(of_phase, (FEATURES,), maxval=2 * jnp.pi)
    f = (2 / FEATURES) ** 0.5 * jnp.sum(jnp.cos(jnp.outer(along, frequency) + phase[None]), axis=1)
    spread = family.noise * jnp.exp(family.growth * along[:n])
    return Task(x[:n], f[:n] + spread * jax.random.normal(of_noise, (n,)), x[n:], f[n:])


class Linear(eqx.Module):
    r"""$\phi(x) = e^s A x$; in one dimension $e^s A = 1/\ell$."""

    log_scale: Float[Array, ""]
    matrix: Float[Array, "dim dim"]

    @classmethod
    def of_windows(cls, windows: Float[Array, "*kinds"], dim: int = 1) -> "Linear":
        """Equal windows in all directions, one embedding for each kind of task."""
        eye = jnp.broadcast_to(jnp.eye(dim), (*windows.shape, dim, dim))
        return cls(-jnp.log(windows), eye)

    def scaled(self) -> Float[Array, "*kinds dim dim"]:
        return jnp.exp(self.log_scale)[..., None, None] * self.matrix

    def __call__(self, x: Float[Array, "rows dim"]) -> Float[Array, "rows dim"]:
        return x @ self.scaled().T


class Warp(eqx.Module):
    r"""$\phi'(x) = e^{-a - b x}$ of one input, so that the window at x is $e^{a + b x}$."""

    a: Float[Array, ""]
    b: Float[Array, ""]

    def __call__(self, x: Float[Array, "rows 1"]) -> Float[Array, "rows 1"]:
        b = jnp.where(jnp.abs(self.b) < 1e-3, 1e-3, self.b)
        return -jnp.exp(-self.a) * jnp.expm1(-b * x) / b


def predict(embed: Linear | Warp, task: Task, order: int) -> Float[Array, " targets"]:
    """The prediction of the attention at the targets, of order 0 or 1."""
    model = ak.KernelRegression(ak.Gaussian(1.0), order=order)
    return model(embed(task.at), embed(task.x), task.y)


def mean_error(
    embeds: Linear | Warp, key: PRNGKeyArray, families: Family, n: int, targets: int, order: int
) -> Float[Array, ""]:
    """The mean squared error over one task of each family; `embeds`: one of each, stacked."""

    def error(embed: Linear | Warp, key: PRNGKeyArray, family: Family) -> Array:
        task = draw(key, family, n, targets)
        return jnp.mean((predict(embed, task, order) - task.truth) ** 2)

    keys = jax.random.split(key, len(families.lengthscale))
    return jnp.mean(eqx.filter_vmap(error)(embeds, keys, families))


def powers_of(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The powers of n, σ and L in a window over all kinds of task, by least squares; half widths
    of their 95 % intervals; and the mean powers of the same windows in random order.
    """
    logs = [np.log([row[part] for row in rows]) for part in EXPECTED]
    terms, rng = np.column_stack([np.ones(len(rows)), *logs]), np.random.default_rng(0)
    windows = np.log([row["windows"][name] for row in rows])
    labels = np.column_stack([windows, *(rng.permutation(windows) for _ in range(1000))])
    found, squares, *_ = np.linalg.lstsq(terms, labels, rcond=None)
    free = len(rows) - terms.shape[1]
    variances = np.diag(np.linalg.inv(terms.T @ terms)) * squares[0] / free
    half = np.sqrt(variances) * stdtrit(free, 0.975)
    each = {"power": found[:, 0], "half": half, "shuffled": found[:, 1:].mean(axis=1)}
    of = {key: dict(zip(EXPECTED, map(float, part[1:]), strict=True)) for key, part in each.items()}
    return {"name": f"{name}, order {rows[0]['order']}", **of["power"], **of}
