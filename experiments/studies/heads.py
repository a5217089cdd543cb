"""Many heads: a linear combination of kernel regressions, each with its own lengthscale."""

from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import Data, HoldOutSize, Model, Positive, Training, outside_bounds
from ..reports import draw_fits
from ..runs import NO_MONITOR, Monitor, Run
from . import study as base
from .training import require_finite


class PaddedHeads(eqx.Module):
    """A multi-head model with inactive heads, which fill it up to a common shape.

    The coefficient of an inactive head is 0, whatever the parameter is: it neither predicts
    nor learns. Models of different numbers of heads then share one compiled program.
    """

    model: ak.MultiheadKernelRegression
    active: Bool[Array, " heads"]

    def __call__(self, *arguments: Any, **keywords: Any) -> Array:
        coefficients = jnp.where(self.active, self.model.coefficients, 0.0)
        model = eqx.tree_at(lambda model: model.coefficients, self.model, coefficients)
        return model(*arguments, **keywords)


class Heads(base.HoldOutStudy):
    """Fits with several numbers of heads, all in one program, and the table of what they found."""

    study: Literal["heads"]
    data: Data
    model: Model = Model()
    training: Training = Training(steps=1000)
    hold_out: HoldOutSize = 1
    heads: list[Annotated[int, Field(ge=1, le=64)]] = Field(min_length=1, max_length=12)
    keys_spent: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="trainings that come before these in the chain of keys",
    )
    shortest: Positive = Field(default=0.1, description="lengthscale of the first head at start")
    longest: Positive = Field(default=3.0, description="lengthscale of the last head at start")

    varying: ClassVar = ("seed", "shortest", "longest", "training.learning_rate", "hold_out")

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> base.Fits:
        """All numbers of heads at once."""
        keys = base.Keys(key)
        data = self.data.load(keys.next())
        for _ in range(self.keys_spent):
            keys.next()

        def log(done: int, history: dict[str, Any]) -> str:
            losses, weights = history["loss"][:, 0], history["weights"][:, 0]
            lengthscales = np.asarray(self.model.shown(history["lengthscales"][:, 0]))
            active = zip(weights, lengthscales, self.heads, strict=True)
            pairs = [(u[:, :heads], ell[:, :heads]) for u, ell, heads in active]
            of_heads = dict(zip(("weights", "lengthscales"), zip(*pairs, strict=True), strict=True))
            monitor.step_metrics(done, "heads", self.heads, loss=losses, **of_heads)
            mean = losses.mean(axis=1)  # one loss is one held-out point: too noisy to show
            return "loss " + " ".join(f"{loss:.3f}" for loss in mean)

        starts = stack([self.start(heads) for heads in self.heads])
        objective = base.HoldOutSizes.from_config(self.hold_out, len(data.y)).objective()
        options: dict[str, Any] = {"objective": objective, "in_axes": (0, None, None)}
        options |= self.training.options(keys.stack(len(self.heads)))
        hooks = {"record": _recorded_parameters, "log": log}
        with monitor.fit("training", self.training.steps, **hooks) as following:
            fits = ak.fit_many(starts, data.x, data.y, **options, **following)
        table = self._make_heads_table(fits, data)
        return base.Fits(data, fits, {"table": table}, jnp.any(fits.starts.diverged))

    def _make_heads_table(self, fits: ak.Fit, data: ak.data.Dataset) -> dict[str, Array]:
        """Returns columns with one entry for each number of heads: weights, lengthscales,
        leave-one-out error; NaN for the heads that only pad to a common shape.
        """
        models = fits.model.model
        parameters = self.model.parameters(models.kernel.stack)
        lengthscales = parameters.pop("lengthscale")

        def of_heads(numbers: Array) -> Array:
            active = fits.model.active
            active = active.reshape(active.shape + (1,) * (numbers.ndim - active.ndim))
            return jnp.where(active, numbers, jnp.nan)

        of_kernels = {"weights": models.coefficients, "lengthscales": lengthscales, **parameters}
        return {
            "heads": jnp.array(self.heads),
            **{name: of_heads(leaf) for name, leaf in of_kernels.items()},
            "leave_one_out": base.leave_one_out_errors(fits.model, data.x, data.y),
        }

    def report(self, results: base.Fits, run: Run) -> None:
        data, fits = results.data, results.fits
        run.note(fits.warnings())
        (table,) = base.tables_as_rows(results.numbers).values()
        rows = [
            {k: v[: row["heads"]] if np.ndim(v) else v for k, v in row.items()} for row in table
        ]
        members = [fits.member(i) for i in range(len(rows))]
        for heads, member in zip(self.heads, members, strict=True):
            lengths = member.model.model.kernel.stack.lengthscale[:heads]
            run.note(outside_bounds(lengths, data, self.model, f"{heads} heads"))
        titles = []
        for heads, error in ((row["heads"], row["leave_one_out"]) for row in rows):
            more = f" ({error / rows[0]['leave_one_out'] - 1:+.0%})" if titles else ""
            plural = "s" if heads > 1 else ""
            titles.append(f"{heads} head{plural}: leave-one-out error {error:.4f}{more}")
        draw_fits(run, "heads", data, members, titles, label=self.model.label())
        title = f"Heads, kernel {self.model.words()}, lengthscales {self.model.letter()}"
        run.table_of(title, rows)
        run.summary({"data": base.describe(data), **self.model.named(), "table": rows})
        require_finite(fits)

    def start(self, heads: int) -> PaddedHeads:
        """A model of this many heads, filled up to the most."""
        active = jnp.arange(max(self.heads)) < heads
        first = jnp.linspace(self.shortest, self.longest, heads)
        lengthscales = jnp.ones(max(self.heads)).at[:heads].set(first)
        kernel = ak.PerHead(eqx.filter_vmap(self.model.kernel_at)(lengthscales))
        coefficients = jnp.where(active, 1.0 / heads, 0.0)
        options = {"rule": self.model.rule(), "on_empty": self.model.on_empty}
        return PaddedHeads(ak.MultiheadKernelRegression(kernel, coefficients, **options), active)


def _recorded_parameters(model: PaddedHeads) -> dict[str, Array]:
    """Returns the weights and lengthscales of the heads, which each step of training records."""
    kernel: Any = model.model.kernel
    return {"weights": model.model.coefficients, "lengthscales": kernel.stack.lengthscale}


def stack(models: list[Any]) -> Any:
    """Models of one structure as one, every array with a leading axis of models."""
    return jax.tree.map(
        lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *models
    )
