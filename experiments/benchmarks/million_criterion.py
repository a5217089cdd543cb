"""The leave-one-out criterion of many points with its gradient, and the distance to its minimum."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import attnkernel as ak


def rule_of_thumb(x: Float[Array, "n dim"]) -> float:
    r"""Scott's rule, $1.06\, s\, n^{-1/(d+4)}$ with s the mean standard deviation of the inputs."""
    n, dim = x.shape
    return 1.06 * float(jnp.mean(jnp.std(x, axis=0))) * n ** (-1 / (dim + 4))


def criterion(
    kernel: Callable[[Array], ak.kernels.Kernel],
    method: ak.methods.Method,
    lengthscale: float,
    x: Array,
    y: Array,
) -> Callable[..., Any]:
    """Leave-one-out and its derivative in log ℓ, compiled: a function of a factor of ℓ."""

    def of(log_lengthscale: Array, x: Array, y: Array) -> Float[Array, ""]:
        model = ak.KernelRegression(kernel(jnp.exp(log_lengthscale)), method=method)
        return ak.LeaveOneOut()(model, x, y)

    program = jax.jit(jax.value_and_grad(of)).lower(jnp.log(lengthscale), x, y).compile()
    return lambda factor=1.0: program(jnp.log(lengthscale * factor), x, y)


def newton_step(tol: float, lengthscale: Array, x: Array, y: Array) -> float:
    """The distance to the minimum by one Newton step in log ℓ: gradient over curvature."""
    gradient = criterion(ak.Gaussian, ak.methods.Fourier(tol), float(lengthscale), x, y)
    step = 0.01
    low, here, high = (float(gradient(factor)[1]) for factor in (1 / (1 + step), 1.0, 1 + step))
    return abs(here) * 2 * float(np.log1p(step)) / (high - low)
