r"""The error of attention that regresses in context, at each temperature.

$$ \hat f(q) = \sum_i \frac{e^{q \cdot x_i / \tau}}{\sum_j e^{q \cdot x_j / \tau}}\, y_i,
   \qquad y_i = w \cdot x_i + \sigma \varepsilon_i $$

The attention suits inputs of covariance I and is used as it is on prompts whose inputs have
covariance S and whose queries have covariance Q, both Gaussian, with $w \sim N(0, I/d)$. The mean
squared error has two approximations in closed form.

*First order in 1/τ*: with weights $(1 + q \cdot x_i / \tau)/n$ the error is, by Isserlis's theorem,

$$ E_1 = \frac{\mathrm{tr}\, Q}{d} + \frac{v}{n} - \frac 2 \tau\, \frac{\mathrm{tr}\, Q S}{d}
   + \frac 1 {\tau^2}\, \mathrm{tr}\, Q \Big( \frac{n + 1}{n d} S^2 + \frac{v}{n} S \Big),
   \qquad v = \frac{\mathrm{tr}\, S}{d} + \sigma^2 $$

a parabola of 1/τ; for S = Q = I its minimum is at $\tau = 1 + (1 + d + d \sigma^2)/n$.

*First order in 1/n*: the weights tilt the density of x to $N(S q/\tau, S)$, so that the bias of
the prediction is $w \cdot (S q / \tau - q)$ and its variance, by the delta method,
$e^{q^\top S q / \tau^2} ((w \cdot S q / \tau)^2 + w^\top S w + \sigma^2)/n$. For diagonal S and Q,
with $g_k = 1 - 2 S_k Q_k / \tau^2$ positive for all k,

$$ E_n = \frac1d \sum_k Q_k \Big(1 - \frac{S_k}{\tau}\Big)^2 + \frac1n \prod_k g_k^{-1/2}
   \Big( v + \frac1d \sum_k \frac{S_k^2 Q_k}{\tau^2 g_k} \Big) $$
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import attnkernel as ak

IN_TAU, IN_N = "first order in 1/τ", "first order in 1/n"


class Case(NamedTuple):
    """Variances of the columns of inputs and queries, and the standard deviation of the noise."""

    context: Float[np.ndarray, " dim"]
    queries: Float[np.ndarray, " dim"]
    noise: float


class Prompts(eqx.Module):
    """Errors and criteria of each prompt at each temperature."""

    softmax: Float[Array, "prompts temperatures"]
    first_order: Float[Array, "prompts temperatures"]
    leave_one_out: Float[Array, "prompts temperatures"]
    hold_out: Float[Array, "prompts temperatures"]


@eqx.filter_jit
def simulate(
    keys: Float[Array, "prompts key"], case: Case, n: int, queries: int, temperatures: Array
) -> Prompts:
    """Returns errors over the variance of the function at the queries, and criteria."""
    dim = len(case.context)

    def of_prompt(key: PRNGKeyArray) -> Prompts:
        of_w, of_x, of_q, of_noise, of_rows = jax.random.split(key, 5)
        w = jax.random.normal(of_w, (dim,)) / dim**0.5
        x = jnp.sqrt(case.context)[None] * jax.random.normal(of_x, (n, dim))
        q = jnp.sqrt(case.queries)[None] * jax.random.normal(of_q, (queries, dim))
        y = x @ w + case.noise * jax.random.normal(of_noise, (n,))

        def at(temperature: Array) -> tuple[Array, ...]:
            model = ak.KernelRegression(ak.DotProduct(1.0), rule=ak.Softmax(temperature))
            first_order = jnp.mean(y) + q @ (x.T @ y) / (n * temperature)
            predicted = jnp.stack([model(q, x, y), first_order])
            errors = jnp.mean((predicted - (q @ w)[None]) ** 2, axis=1) / jnp.mean(case.queries)
            hold_out = ak.HoldOut(n // 4)(model, x, y, key=of_rows)
            return *errors, ak.LeaveOneOut()(model, x, y), hold_out

        return Prompts(*jax.lax.map(at, temperatures))

    return jax.lax.map(of_prompt, keys)


def in_closed_form(
    case: Case, n: int, temperatures: Float[np.ndarray, " temperatures"]
) -> dict[str, Float[np.ndarray, " temperatures"]]:
    """Returns both approximations of the error, over the variance of the function at the queries.

    The second is infinite where a $g_k$ is not positive.
    """
    s, q = case.context, case.queries
    v = s.mean() + case.noise**2
    u = 1.0 / temperatures
    curvature = np.sum(q * ((n + 1) / n * s**2 / len(s) + v / n * s))
    in_tau = q.mean() + v / n - 2 * u * np.mean(q * s) + u**2 * curvature
    u = u[:, None]
    gap = 1 - 2 * s * q * u**2
    is_finite = np.all(gap > 0, axis=1)
    gap = np.where(is_finite[:, None], gap, 1.0)
    variance = np.prod(gap, axis=1) ** -0.5 * (v + np.mean(s**2 * q * u**2 / gap, axis=1)) / n
    in_n = np.mean(q * (1 - s * u) ** 2, axis=1) + variance
    return {IN_TAU: in_tau / q.mean(), IN_N: np.where(is_finite, in_n, np.inf) / q.mean()}
