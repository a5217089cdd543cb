"""One model for many functions: trained on random ones, shown new ones without training."""

import functools
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import NonEmpty, Positive
from ..reports import save_with_legend, subplots, ticks_at
from ..runs import NO_MONITOR, Monitor, Run
from .study import Keys, Study
from .training import sizes, train

# losses; errors by size of context; data and curves of one new function
Results = tuple[np.ndarray, list[dict[str, Any]], Any]


class InContext(Study):
    """Learned projections trained by masked hold-out over random functions, then used as they are.

    Functions are drawn from a Gaussian process, so that its posterior mean is the optimum.
    """

    study: Literal["in_context"]
    lengthscale: Positive = Field(default=0.5, description="of the functions")
    noise: Positive = 0.2
    contexts: NonEmpty[Annotated[int, Field(ge=3, le=512)]] = [8, 16, 32, 64]
    heads: int = Field(default=8, ge=1, le=64)
    qk_size: int = Field(default=8, ge=1, le=256)
    hidden: int = Field(default=64, ge=1, le=1024)
    batch: int = Field(default=32, ge=1, le=4096)
    targets: int = Field(default=32, ge=1, le=512)
    steps: int = Field(default=4000, ge=2)
    learning_rate: Positive = 3e-3
    tested: int = Field(default=200, ge=1, le=10_000, description="new functions for each context")

    distributed: ClassVar[bool] = True

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        keys = Keys(key)
        model, losses = train(
            monitor, self.model(keys.next()), self.loss, **sizes(self), key=keys.next()
        )
        rows, example = [], None
        for size in self.contexts:
            drawn = jax.vmap(functools.partial(self.draw, size=size))
            x, y, at, truth = drawn(jax.random.split(keys.next(), self.tested))
            curves = self.predict(monitor, model, x, y, at)
            errors = {name: jnp.mean((of - truth) ** 2, axis=1) for name, of in curves.items()}
            means = {name: float(jnp.mean(error)) for name, error in errors.items()}
            spread = {name: float(jnp.std(of) / self.tested**0.5) for name, of in errors.items()}
            ratio = float(jnp.mean(errors["learned"]) / jnp.mean(errors["tuned"]))
            rows.append({"context": size, "error": means, "se": spread, "learned/tuned": ratio})
            if size == sorted(self.contexts)[len(self.contexts) // 2]:
                example = (x[0], y[0], at[0], truth[0], {n: c[0] for n, c in curves.items()})
        return losses, rows, example

    def report(self, results: Results, run: Run) -> None:
        losses, rows, example = results
        self.draw_errors(run, rows, example)
        run.table_of(f"Squared error to {self.tested} new functions, standard errors", rows)
        worst = max(row["learned/tuned"] for row in rows)
        target = {"at_most": 1.15, "worst": worst, "reached": worst <= 1.15}
        run.summary({"table": rows, "last_loss": losses[-100:].mean(), "target": target})

    def model(self, key: Array) -> ak.LearnedKernelRegression:
        of_embedding, of_model = jax.random.split(key)
        layers = (1, self.qk_size, self.hidden, 2)
        embedding = eqx.nn.MLP(*layers, activation=jnp.tanh, key=of_embedding)
        sizes = {"num_heads": self.heads, "qk_size": self.qk_size}
        parts = {"embedding": embedding, "kernel": ak.Gaussian(1.0)}
        return ak.LearnedKernelRegression(1, **sizes, **parts, key=of_model)

    def covariance(self, a: Array, b: Array) -> Float[Array, "rows columns"]:
        return jnp.exp(ak.Gaussian(self.lengthscale).pairwise(a[:, None], b[:, None]))

    def draw(self, key: Array, size: int) -> tuple[Array, Array, Array, Array]:
        """A context (x, y), other inputs, and the function there."""
        x_key, f_key, noise_key = jax.random.split(key, 3)
        x = jax.random.uniform(x_key, (size + self.targets,), minval=-2.0, maxval=2.0)
        covariance = self.covariance(x, x) + 1e-5 * jnp.eye(len(x))
        f = jnp.linalg.cholesky(covariance) @ jax.random.normal(f_key, (len(x),))
        y = f[:size] + self.noise * jax.random.normal(noise_key, (size,))
        return x[:size], y, x[size:], f[size:]

    def loss(self, model: ak.LearnedKernelRegression, key: Array) -> Array:
        """Masked hold-out: a random number of the context is seen, the rest held out."""
        most = max(self.contexts)
        data_key, size_key = jax.random.split(key)
        x, y, at, truth = self.draw(data_key, most)
        size = jax.random.randint(size_key, (), min(self.contexts), most + 1)
        predicted = model(at, x, y, prior=ak.priors.Lengths(keys=size))
        return jnp.mean((predicted - truth) ** 2)

    def predict(
        self, monitor: Monitor, model: ak.LearnedKernelRegression, x: Array, y: Array, at: Array
    ) -> dict[str, Array]:
        """By the model as it is; by a lengthscale of each data set's own; by the posterior."""
        with monitor.timed("tuning"):
            start = ak.KernelRegression(ak.Gaussian(0.3))  # by leave-one-out, the default
            fit = ak.fit_many(start, x[:, :, None], y, in_axes=(None, 0, None))
        tuned = eqx.filter_vmap(lambda model, at, x, y: model(at, x, y))(fit.model, at, x, y)

        def posterior(x: Array, y: Array, at: Array) -> Array:
            noisy = self.covariance(x, x) + self.noise**2 * jnp.eye(len(x))
            return self.covariance(at, x) @ jnp.linalg.solve(noisy, y)

        return {
            "tuned": tuned,
            "learned": eqx.filter_jit(jax.vmap(model))(at, x, y),
            "posterior": jax.vmap(posterior)(x, y, at),
        }

    def draw_errors(self, run: Run, rows: list[dict[str, Any]], example: Any) -> None:
        figure, (left, right) = subplots(1, 2, figsize=(8.4, 3.2))
        sizes = [row["context"] for row in rows]
        for name, (label, style, color) in LOOKS.items():
            errors, spread = ([row[part][name] for row in rows] for part in ("error", "se"))
            left.errorbar(sizes, errors, spread, fmt=style, color=color, label=label, capsize=2)
        left.set(xscale="log", yscale="log", xlabel="points of the context")
        left.set_ylabel("squared error to the function")
        last = rows[int(np.argmax(sizes))]
        ratio = f"{last['learned/tuned']:.2g} × the tuned error"
        left.set_title(f"without training: {ratio} at {last['context']} points")
        ticks_at(left.xaxis, sizes)
        x, y, at, truth, curves = example
        order = np.argsort(at)
        ak.plot.points(x, y, ax=right)
        right.plot(at[order], truth[order], color=ak.plot.ink(), linewidth=1.0, label="function")
        for name, curve in curves.items():
            label, style, color = LOOKS[name]
            right.plot(at[order], curve[order], style[1:], color=color, label=f"_{label}")
        right.set(xlabel="x", ylabel="y", title=f"a new function, {len(x)} points")
        save_with_legend(run, "in_context", figure, [left, right], columns=3)


LOOKS = {
    "tuned": ("Nadaraya–Watson, tuned to each", "s--", "C0"),
    "learned": ("learned, without training", "o-", "C1"),
    "posterior": ("posterior mean (optimum)", "^:", "C2"),
}
