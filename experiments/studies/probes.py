r"""Attention to a context whose values are corrected by a probe, learned or exact.

$$ \mathrm{out}_i = \bar v_i - \mathrm{Cov}_i(v, k)\, \rho_i $$

The mean $\bar v_i$ and the covariance are those of the weights of keys. A local line has the probe
$\rho_i = (\mathrm{Cov}_i(k, k) + \lambda I)^{-1} (\bar k_i - q_i)$; Parallax (Zuo et al., arXiv
2605.29157, 2026) learns $\rho_i = R\, x_i$ over many sequences.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import attnkernel as ak

from ..runs import Monitor
from .study import Task
from .training import train

PROBES = PLAIN, LEARNED, EXACT = "order 0", "learned probe", "exact probe, learned ridge"
CHOSEN, TURNED = "exact probe, ridge by leave-one-out", "learned probe, its sign turned"
RIDGES = np.geomspace(1e-3, 10.0, 9)


class Probed(eqx.Module):
    """Attention to a context whose values are corrected by a probe of Cov(v, k)."""

    log_lengthscale: Array
    log_ridge: Array
    projection: Float[Array, "dim dim"]  # R
    kind: str = eqx.field(static=True)

    def __init__(self, kind: str, dim: int):
        self.kind, self.projection = kind, jnp.zeros((dim, dim))
        self.log_lengthscale, self.log_ridge = jnp.zeros(()), jnp.log(jnp.asarray(0.1))

    def __call__(self, q: Array, k: Array, v: Array, prior: Any = None) -> Array:
        """The value at each query; 0 if a prior leaves it no key."""
        mean, products, _, probe = self.moments(q, k, v, prior)
        return mean - jnp.einsum("ido,id->io", products, probe)

    def moments(
        self, q: Array, k: Array, v: Array, prior: Any = None
    ) -> tuple[Array, Array, Array, Array]:
        """The mean of v, Cov(k, v), the exact probe and that of this model, at each query."""
        kernel = ak.Gaussian(jnp.exp(self.log_lengthscale))
        weights = ak.attention_weights(q, k, kernel=kernel, prior=prior)
        centred = k[None] - (weights @ k)[:, None]
        products = jnp.einsum("ij,ijd,jo->ido", weights, centred, v)
        spread = jnp.einsum("ij,ijd,ije->ide", weights, centred, centred)
        spread = spread + jnp.exp(self.log_ridge) * jnp.eye(k.shape[1])[None]
        exact = jnp.linalg.solve(spread, (weights @ k - q)[..., None])[..., 0]
        learned = q @ self.projection.T
        probe = {PLAIN: jnp.zeros_like(q), LEARNED: learned, EXACT: exact}[self.kind]
        return weights @ v, products, exact, probe


def compare_probes(
    draw: Callable[[Array], Task],
    dim: int,
    training: dict[str, Any],
    tests: Array,
    monitor: Monitor,
    name: str,
) -> dict[str, Any]:
    """Errors of models that were trained over sequences, and how near both probes are.

    `draw`: a sequence by a key; `tests`: the keys of those that judge.
    """

    def loss(model: Probed, key: Array) -> Array:
        k, v, q, truth = draw(key)
        return jnp.mean((model(q, k, v) - truth) ** 2)

    models = {
        kind: train(monitor, Probed(kind, dim), loss, **training, name=f"{kind}, {name}")[0]
        for kind in PROBES
    }
    models[TURNED] = eqx.tree_at(lambda m: m.projection, models[LEARNED], replace_fn=jnp.negative)

    def judge(key: Array) -> tuple[dict[str, Array], Array]:
        k, v, q, truth = draw(key)
        out = {name: model(q, k, v) for name, model in models.items()}

        def with_ridge(ridge: Array) -> tuple[Array, Array]:
            model = eqx.tree_at(lambda m: m.log_ridge, models[EXACT], jnp.log(ridge))
            left_out = model(k, k, v, ak.priors.ExcludeSelf())
            return jnp.mean((left_out - v) ** 2), model(q, k, v)

        criteria, values = jax.lax.map(with_ridge, jnp.asarray(RIDGES, k.dtype))
        out[CHOSEN] = values[jnp.argmin(criteria)]
        _, _, exact, learned = models[LEARNED].moments(q, k, v)
        norms = jnp.linalg.norm(exact, axis=1) * jnp.linalg.norm(learned, axis=1)
        cosine = jnp.mean(jnp.sum(exact * learned, axis=1) / norms)
        return {name: jnp.mean((of - truth) ** 2) for name, of in out.items()}, cosine

    found, cosine = jax.jit(lambda keys: jax.lax.map(judge, keys))(tests)
    return {"errors": jax.tree.map(np.asarray, found), "cosine": np.asarray(cosine)}
