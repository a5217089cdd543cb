"""From kernel regression to self-attention: each step is an identity that is checked."""

from typing import Annotated, Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

import attnkernel as ak
from attnkernel.rules import entropy

from ..config import Positive, Several
from ..reports import draw_heat_maps, draw_lines, save_with_legend, subplots
from ..runs import NO_MONITOR, Monitor, Run
from .study import Keys, Study


class Step(NamedTuple):
    """One arrow: how far two ways to compute the same numbers differ, and the weights."""

    title: str
    identity: str
    deviation: float
    weights: Array


# the identities; and by scale ("with" or "without" 1/√d) and column, numbers against d
Results = tuple[list[Step], dict[str, dict[str, list[float]]]]


class Derivation(Study):
    """Eight identities with their largest deviations, and why scores are divided by √d."""

    study: Literal["derivation"]
    tokens: int = Field(default=12, ge=2, le=64)
    dim: int = Field(default=5, ge=2, le=64)
    bandwidth: Positive = 0.8
    dims: Several[Annotated[int, Field(ge=1, le=65536)]] = [2**power for power in range(2, 13)]
    keys_each: int = Field(
        default=64,
        ge=2,
        le=4096,
        description="keys that each query of the study of dimensions sees",
    )

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        keys = Keys(key)
        return self.steps(keys.next()), scales(self.dims, self.keys_each, keys.next())

    def report(self, results: Results, run: Run) -> None:
        steps, table = results
        deviations = {f"B{i}": step.deviation for i, step in enumerate(steps, 1)}
        draw_steps(run, steps)
        draw_scales(run, table, self.dims)
        identities = [{"what is equal": s.identity, "deviation": s.deviation} for s in steps]
        run.table_of("Each arrow as an identity", identities)
        numbers = [
            {"d": d, "scaling": s} | {name: table[s][name][i] for name in COLUMNS}
            for s in SCALINGS
            for i, d in enumerate(self.dims)
        ]
        title = f"A score of a query and {self.keys_each} keys, all standard normal"
        run.table_of(f"{title}, with and without 1/√d", numbers)
        run.summary({"deviations": deviations, "dims": self.dims, "scales": table})

    def steps(self, key: Array) -> list[Step]:
        """B1 to B8: each left side is written out, each right side a call of the package."""
        q_key, k_key, v_key, x_key, module_key = jax.random.split(key, 5)
        n, d, sigma = self.tokens, self.dim, self.bandwidth
        q, k, x = (jax.random.normal(key, (n, d)) for key in (q_key, k_key, x_key))
        v = jax.random.normal(v_key, (n, 3))
        unit = k / jnp.linalg.norm(k, axis=1, keepdims=True)
        square = jnp.sum((q[:, None, :] - k[None, :, :]) ** 2, axis=2)
        apart = jnp.sum((q[:, None, :] - unit[None, :, :]) ** 2, axis=2)
        gaussian = ak.Gaussian(sigma)
        normal = jnp.exp(-square / (2 * sigma**2)) / (2 * jnp.pi * sigma**2) ** (d / 2)
        weights = normal / jnp.sum(normal, axis=1, keepdims=True)
        ours = ak.attention_weights(q, k, kernel=gaussian)
        score = jnp.tanh(q[:, None, :] + k[None, :, :]) @ x[0]
        bias = ak.priors.KeyWeights(-jnp.sum(k**2, axis=1) / (2 * sigma**2))
        rows = [jax.nn.softmax(row @ k.T / jnp.sqrt(d)) @ v for row in q]
        module = ak.SelfAttention(d, key=module_key)
        projections = lambda m: [m.query_proj.weight, m.key_proj.weight, m.value_proj.weight]  # noqa: E731
        plain = eqx.tree_at(projections, module, [jnp.eye(d)] * 3)
        w_q, w_k, w_v = projections(module)
        before = ak.kernels.Projected(ak.DotProduct(), module.query_proj, module.key_proj)

        def attended(q: Array, k: Array, **parts: Any) -> tuple[Array, Array]:
            """Returns the output and the weights of attention."""
            return ak.attend(q, k, v, **parts), ak.attention_weights(q, k, **parts)

        steps = [
            ("Gaussian weights", NORMALISED, weights, ours, ours),
            (
                "any score",
                "softmax of any score a(q, k), here w · tanh(q + k)",
                jax.nn.softmax(score) @ v,
                *attended(q, k, kernel=ak.kernels.AdditiveScore(x[0])),
            ),
            (
                "the same, renamed",
                "regression from (x, y) at x′ = attention from (k, v) at q",
                weights @ v,
                ak.KernelRegression(gaussian)(q, k, v),
                ours,
            ),
            (
                "product and key bias",
                "|q|² drops: a product and a bias −|k|²/2σ² of the keys",
                weights @ v,
                *attended(q, k, kernel=ak.DotProduct(1.0 / sigma**2), prior=bias),
            ),
            (
                "unit keys, σ² = √d",
                "keys of length 1 and σ² = √d: the product over √d alone",
                jax.nn.softmax(-apart / (2 * d**0.5)) @ v,
                *attended(q, unit, kernel=ak.DotProduct()),
            ),
            (
                "softmax(QKᵀ/√d)",
                "softmax(QKᵀ/√d) V = one query at a time",
                jnp.stack(rows),
                *attended(q, k, kernel=ak.DotProduct()),
            ),
            (
                "self-attention",
                "every token is query, key and value",
                jax.nn.softmax(x @ x.T / d**0.5) @ x,
                plain(x),
                plain.weights(x),
            ),
            (
                "learned projections",
                "projections W_q, W_k, W_v: matched on one aspect, another returned",
                jax.nn.softmax((x @ w_q.T) @ (x @ w_k.T).T / d**0.5) @ (x @ w_v.T),
                ak.attend(x, x, x @ w_v.T, kernel=before),
                module.weights(x),
            ),
        ]
        return [
            Step(f"B{i}: {caption}", identity, float(jnp.max(jnp.abs(left - right))), weights)
            for i, (caption, identity, left, right, weights) in enumerate(steps, 1)
        ]


NORMALISED = "Nadaraya–Watson weights = softmax of −|x − xᵢ|²/2σ²"
COLUMNS = ("variance", "entropy", "slope")
SCALINGS = ("without", "with")


def scales(dims: list[int], keys_each: int, key: Array) -> dict[str, dict[str, list[float]]]:
    """Score variance, entropy of the weights and norm of their slope in the scores, against d."""
    table: dict[str, Any] = {scaling: {name: [] for name in COLUMNS} for scaling in SCALINGS}
    for d, one in zip(dims, jax.random.split(key, len(dims)), strict=True):
        q_key, k_key = jax.random.split(one)
        q = jax.random.normal(q_key, (256, d))
        k = jax.random.normal(k_key, (keys_each, d))
        for scaling, scale in zip(SCALINGS, (1.0, d**-0.5), strict=True):
            scores = scale * (q @ k.T)
            a = jax.nn.softmax(scores)
            # the Jacobian of softmax is diag(a) − a aᵀ
            squares = jnp.sum(a**2, axis=1)
            slope = jnp.sqrt(jnp.maximum(squares - 2 * jnp.sum(a**3, axis=1) + squares**2, 0.0))
            found = (jnp.var(scores), jnp.mean(entropy(a)), jnp.mean(slope))
            for name, number in zip(COLUMNS, found, strict=True):
                table[scaling][name].append(float(number))
    return table


def draw_steps(run: Run, steps: list[Step]) -> None:
    figure = draw_heat_maps({step.title: step.weights for step in steps}, 4, "weight of the key")
    worst = max(step.deviation for step in steps)
    figure.suptitle(f"eight steps, each an identity to {worst:.0e}")
    run.figure("derivation", figure)


def draw_scales(run: Run, table: dict[str, dict[str, list[float]]], dims: list[int]) -> None:
    figure, axes = subplots(1, 3, figsize=(9.0, 2.8))
    labels = ("variance of the score", "entropy of the weights, nats", "norm of softmax's slope")
    for ax, name, label in zip(axes, COLUMNS, labels, strict=True):
        lines = {"q · k": table["without"][name], "q · k / √d": table["with"][name]}
        draw_lines(ax, dims, lines)
        ax.set(xlabel="dimension d", ylabel=label)
        ax.set_xscale("log", base=2)
    growth = {s: np.polyfit(np.log(dims), np.log(table[s]["variance"]), 1)[0] for s in SCALINGS}
    bare, scaled = (f"$d^{{{growth[scaling]:z.1f}}}$" for scaling in SCALINGS)
    axes[0].set_title(f"grows as {bare}, scaled as {scaled}")
    for ax, name in zip(axes[1:], COLUMNS[1:], strict=True):
        bare, scaled = (table[scaling][name][-1] for scaling in SCALINGS)
        ax.set_title(f"d = {dims[-1]}: {bare:.2g}, scaled {scaled:.2g}")
    axes[0].set_yscale("log")
    axes[2].set_yscale("log")
    save_with_legend(run, "scales", figure, list(axes))
