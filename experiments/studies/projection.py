"""Learned projections as a regressor, against one fitted lengthscale and against eight heads."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import Data, HoldOutSize, Training
from ..reports import draw_fits
from ..runs import NO_MONITOR, Monitor, Run
from .study import HoldOutSizes, Keys, Study, describe, load

Results = tuple[ak.data.Dataset, dict[str, ak.Fit]]  # the data, and a fit of each model


class Projection(Study):
    """One chain of models, each trained by the same masked hold-out."""

    study: Literal["projection"]
    data: Data
    hold_out: HoldOutSize = 0.1
    kernels: Training = Training(steps=1000)
    projections: Training = Training(learning_rate=0.01, steps=3000)
    heads: int = Field(default=8, ge=1, le=64)
    learned_heads: int = Field(default=4, ge=1, le=64)
    qk_size: int = Field(default=8, ge=1, le=256)
    hidden: int = Field(default=32, ge=1, le=1024, description="width of the embedding of an input")

    def check(self) -> None:
        HoldOutSizes.from_config(self.hold_out, len(load(self.data, self.keys().next()).y))

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        keys = Keys(key)
        data = self.data.load(keys.next())
        objective = HoldOutSizes.from_config(self.hold_out, len(data.y)).objective()
        models = self.models(data.x.shape[1], keys.next())
        fits = {}
        for name, (model, training) in models.items():

            def log(done: int, history: dict[str, Any], *, name=name) -> str:
                losses = history["loss"]
                monitor.step_metrics(done, "model", [name], loss=losses[None])
                return f"{name}: loss {losses.mean():.3f}"

            at, nothing = f"model_{len(fits)}", lambda model: {}
            options = {"objective": objective, **training.options(keys.next())}
            with monitor.fit(at, training.steps, record=nothing, log=log) as following:
                fits[name] = ak.fit(model, data.x, data.y, **options, **following)
        return data, fits

    def report(self, results: Results, run: Run) -> None:
        (data, fits), rows = results, []
        for name, fit in fits.items():
            run.note([f"{name}: {sentence}" for sentence in fit.warnings()])
            predicted = fit(data.x)
            error = None if data.mean is None else jnp.mean((predicted - data.mean) ** 2)
            leave_one_out = float(ak.LeaveOneOut()(fit.model, data.x, data.y))
            parameters = optax.tree.size(eqx.filter(fit.model, eqx.is_inexact_array))
            row = {"model": name, "parameters": parameters}
            rows.append(row | {"leave_one_out": leave_one_out, "error": error})
        held_out = HoldOutSizes.from_config(self.hold_out, len(data.y)).largest
        titles = [f"{row['model']}: error {row['leave_one_out']:.3g}" for row in rows]
        draw_fits(run, "projection", data, list(fits.values()), titles)
        title = f"Masked hold-out of {held_out} of {len(data.y)} rows; error: to the true mean"
        run.table_of(title, rows)
        run.summary({"data": describe(data), "table": rows})

    def models(self, dim: int, key: Array) -> dict[str, tuple[Any, Training]]:
        """The chain: one lengthscale, many, linear projections, projections of an embedding."""
        of_linear, of_embedding, of_embedded = jax.random.split(key, 3)
        heads = eqx.filter_vmap(ak.Gaussian)(jnp.linspace(0.1, 3.0, self.heads))
        layers = (dim, self.qk_size, self.hidden, 2)
        embedding = eqx.nn.MLP(*layers, activation=jnp.tanh, key=of_embedding)
        sizes: dict[str, Any] = {"num_heads": self.learned_heads, "qk_size": self.qk_size}
        embedded = {"embedding": embedding, "kernel": ak.Gaussian(1.0), "key": of_embedded}
        linear = ak.LearnedKernelRegression(dim, **sizes, key=of_linear)
        learned = ak.LearnedKernelRegression(dim, **sizes, **embedded)
        several = ak.MultiheadKernelRegression(ak.PerHead(heads))
        return {
            "one Gaussian": (ak.KernelRegression(ak.Gaussian(1.0)), self.kernels),
            f"{self.heads} Gaussian heads": (several, self.kernels),
            "q · k of linear projections": (linear, self.projections),
            "Gaussian of learned projections": (learned, self.projections),
        }
