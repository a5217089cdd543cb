"""A weighted sum, three ways, and the dial from the nearest label to the mean of all."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

import attnkernel as ak
from attnkernel.rules import Uniform, entropy

from ..config import Heteroskedastic, Positive
from ..reports import legend, subplots
from ..runs import NO_MONITOR, Monitor, Run
from .study import Keys, Study

# the data; three forms of a weighted sum; bias, variance and entropy against the temperature
Results = tuple[ak.data.Dataset, dict[str, dict[str, Any]], dict[str, Any]]


class Temperature(Study):
    """Fixed, kernel and learned weights; then entropy, bias and variance against τ.

    Scores are −(x − xᵢ)²/2, so that τ is the square of a lengthscale.
    """

    study: Literal["temperature"]
    data: Heteroskedastic
    query: float = Field(default=1.0, description="where the weights are shown")
    temperature: Positive = Field(default=0.03, description="of the kernel weights")
    lowest: Positive = 1e-6
    highest: Positive = 1e4
    points: int = Field(default=81, ge=2, le=1000)
    draws: int = Field(default=200, ge=2, le=10_000, description="data sets, for bias and variance")
    steps: int = Field(default=1500, ge=1, description="of the training of the learned weights")

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        keys = Keys(key)
        data = self.data.load(keys.next())
        return data, self.forms(data, keys.next()), self.dial(data, keys.next())

    def report(self, results: Results, run: Run) -> None:
        data, forms, dial = results
        draw_forms(run, data, self.query, forms)
        draw_dial(run, data, dial)
        best = int(np.argmin(dial["error"]))
        run.table_of(
            "A weighted sum of labels, three ways: the number of keys that share the weight at "
            f"x = {self.query:g}",
            [
                {"form": name, "keys": np.exp(entropy(form["weights"])), **form}
                for name, form in forms.items()
            ],
            ("form", "keys", "prediction", "error"),
        )
        places = [{column: dial[column][i] for column in COLUMNS} for i in (0, best, -1)]
        run.table_of("The dial at the lowest, the best and the highest τ", places)
        parts = ("weights", "prediction", "error")
        found = {name: {part: form[part] for part in parts} for name, form in forms.items()}
        columns = {column: dial[column] for column in COLUMNS}
        of_best = {column: values[best] for column, values in columns.items()}
        run.summary({"rows": len(data.y), "forms": found, "dial": columns, "best": of_best})

    def forms(self, data: ak.data.Dataset, key: Array) -> dict[str, dict[str, Any]]:
        """Weights at the query, and the curve, of each form of the same sum."""
        assert data.mean is not None
        at, query = jnp.asarray(ak.plot.grid(data.x)), jnp.array([[self.query]])
        truth = jnp.interp(at, data.x[:, 0], data.mean)
        kernel, rule = ak.Gaussian(1.0), ak.Softmax(self.temperature)
        learned = self.learned(data, key)

        def of_learned(x: Array) -> Array:
            queries, rows = learned.attention_inputs(x, data.x, data.y)
            return learned.attention.weights(queries, rows)[0]

        weigh = {
            "fixed": lambda x: ak.attention_weights(x, data.x, kernel=kernel, rule=Uniform()),
            "kernel": lambda x: ak.attention_weights(x, data.x, kernel=kernel, rule=rule),
            "learned": of_learned,
        }
        curves = {name: weights(at[:, None]) @ data.y for name, weights in weigh.items()}
        curves["learned"] = learned(at, data.x, data.y)  # its values are projections of (x, y)
        return {
            name: {
                "weights": np.asarray(weigh[name](query)[0]),
                "prediction": float(jnp.interp(self.query, at, curve)),
                "error": float(jnp.mean((curve - truth) ** 2)),
                "curve": np.asarray(curve),
            }
            for name, curve in curves.items()
        }

    def learned(self, data: ak.data.Dataset, key: Array) -> ak.LearnedKernelRegression:
        """One head with learned projections, trained by masked hold-out."""
        of_embedding, of_model, of_fit = jax.random.split(key, 3)
        embedding = eqx.nn.MLP(1, 8, 32, 2, activation=jnp.tanh, key=of_embedding)
        parts = {"embedding": embedding, "kernel": ak.Gaussian(1.0)}
        model = ak.LearnedKernelRegression(1, **parts, key=of_model)
        optimizer = optax.adam(optax.cosine_decay_schedule(0.01, self.steps))
        hold_out = {"objective": ak.HoldOut(max(1, len(data.y) // 10)), "optimizer": optimizer}
        return ak.fit(model, data.x, data.y, **hold_out, steps=self.steps, key=of_fit).model

    def dial(self, data: ak.data.Dataset, key: Array) -> dict[str, Any]:
        """Entropy of the weights, bias and variance of the estimate, at each temperature."""
        assert data.mean is not None
        assert data.sd is not None
        temperatures = jnp.geomspace(self.lowest, self.highest, self.points)
        at = jnp.asarray(ak.plot.grid(data.x))[:, None]
        truth = jnp.interp(at[:, 0], data.x[:, 0], data.mean)
        noise = jax.random.normal(key, (len(data.y), self.draws))
        labels = data.mean[:, None] + data.sd[:, None] * noise

        @eqx.filter_jit
        def of(temperature: Array) -> tuple[Array, Array, Array, Array]:
            rule = ak.Softmax(temperature)
            weights = ak.attention_weights(at, data.x, kernel=ak.Gaussian(1.0), rule=rule)
            curves = weights @ labels
            bias = jnp.mean((jnp.mean(curves, axis=1) - truth) ** 2)
            variance = jnp.mean(jnp.var(curves, axis=1))
            return jnp.mean(entropy(weights)), bias, variance, weights @ data.y

        entropies, bias, variance, curves = jax.lax.map(of, temperatures)
        found = (temperatures, entropies, bias, variance, bias + variance, curves)
        return dict(zip((*COLUMNS, "curves"), map(np.asarray, found), strict=True))


COLUMNS = ("temperature", "entropy", "bias", "variance", "error")


def draw_forms(
    run: Run, data: ak.data.Dataset, query: float, forms: dict[str, dict[str, Any]]
) -> None:
    figure, axes = subplots(2, 3, sharex=True, sharey="row", figsize=(9.0, 4.6))
    x, at = np.ravel(data.x), ak.plot.grid(data.x)
    for (top, bottom), (name, form) in zip(axes.T, forms.items(), strict=True):
        ak.plot.points(data.x, data.y, ax=top)
        top.plot(x, data.mean, "--", color=ak.plot.BLUE, label="true mean")
        top.plot(at, form["curve"], color=ak.plot.ORANGE, label="weighted sum")
        top.plot([query], [form["prediction"]], "o", color=ak.plot.ink(), label="at the query")
        top.set_title(f"{name} weights: error {form['error']:.3g}")
        bottom.plot(x, form["weights"], color=ak.plot.GREEN)
        bottom.axvline(query, color=ak.plot.ink(), linestyle=":", linewidth=1.0)
        bottom.set_xlabel("x")
    axes[1, 0].set_ylim(bottom=0.0)
    axes[0, 0].set_ylabel("y")
    axes[1, 0].set_ylabel("weight at the query")
    legend(figure, list(axes[0]))
    run.figure("three_forms", figure)


def draw_dial(run: Run, data: ak.data.Dataset, dial: dict[str, Any]) -> None:
    figure, (left, middle, right) = subplots(1, 3, figsize=(9.6, 3.0))
    at, tau = ak.plot.grid(data.x), dial["temperature"]
    best = int(np.argmin(dial["error"]))
    ak.plot.points(data.x, data.y, ax=left)
    shown = {0: (":", ak.plot.PURPLE), best: ("-", ak.plot.ORANGE)}
    for i, (style, color) in (shown | {len(tau) - 1: ("--", ak.plot.BLUE)}).items():
        left.plot(at, dial["curves"][i], style, color=color, label=f"τ = {tau[i]:.2g}")
    left.set(xlabel="x", ylabel="y", title="nearest label, best, mean of all")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    middle.plot(tau, dial["entropy"], color=ak.plot.GREEN)
    middle.axhline(np.log(len(data.y)), color=ak.plot.ink(), linestyle=":", linewidth=1.0)
    middle.annotate(f"log {len(data.y)}", (tau[0], np.log(len(data.y))), va="top")
    middle.set(xscale="log", xlabel="temperature τ", ylabel="entropy of the weights, nats")
    keys = np.exp(dial["entropy"][best])
    middle.set_title(f"at the best τ about {keys:.0f} keys share the weight")
    right.plot(tau, dial["bias"], "--", color=ak.plot.BLUE, label="bias²")
    right.plot(tau, dial["variance"], ":", color=ak.plot.PURPLE, label="variance")
    right.plot(tau, dial["error"], color=ak.plot.ink(), label="their sum")
    right.plot([tau[best]], [dial["error"][best]], "o", color=ak.plot.ORANGE)
    right.set(xscale="log", yscale="log", xlabel="temperature τ", ylabel="squared error")
    right.set_ylim(bottom=1e-4)
    right.set_title(f"lowest error {dial['error'][best]:.2g} at τ = {tau[best]:.2g}")
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
    run.figure("dial", figure)
