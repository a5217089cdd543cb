"""Many heads: a linear combination of kernel regressions, each with its own lengthscale."""

from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from jax.typing import ArrayLike
from jaxtyping import Array, Bool

import attnkernel as ak

from ..config import dump
from ..parts import (
    Data,
    HoldOutSize,
    Keys,
    Model,
    Name,
    Positive,
    Study,
    Training,
    describe,
    load,
    outside_bounds,
    rows_held_out,
    to_list,
)
from ..results import Run
from ._panels import draw_fits
from ._training import require_finite


class PaddedHeads(eqx.Module):
    """A multi-head model of which some heads are there only to fill up a common shape.

    Their weight is 0 whatever the parameter says, so that they neither predict nor learn: models
    of different numbers of heads then share one compiled program.
    """

    model: ak.MultiheadKernelRegression
    active: Bool[Array, " heads"]

    def __call__(self, *arguments: Any, **keywords: Any) -> Array:
        weights = jnp.where(self.active, self.model.weights, 0.0)
        model = eqx.tree_at(lambda model: model.weights, self.model, weights)
        return model(*arguments, **keywords)


class Heads(Study):
    """Fits with several numbers of heads, all in one program, and the table of what they found."""

    study: Literal["heads"]
    name: Name = "heads"
    data: Data
    model: Model = Model()
    training: Training = Training(steps=1000)
    hold_out: HoldOutSize = 1
    heads: Annotated[
        list[Annotated[int, pydantic.Field(ge=1, le=64)]],
        pydantic.Field(min_length=1, max_length=12),
    ]
    keys_spent: Annotated[int, pydantic.Field(ge=0, le=1000)] = pydantic.Field(
        default=0, description="trainings that come before these in the chain of keys"
    )
    shortest: Positive = pydantic.Field(
        default=0.1, description="lengthscale of the first head at start"
    )
    longest: Positive = pydantic.Field(
        default=3.0, description="lengthscale of the last head at start"
    )

    rows_are: ClassVar[str] = "table"

    def check(self) -> None:
        self.model.require_slope()
        self._rows_held_out(load(self.data, self.keys().next()))

    def _rows_held_out(self, data: ak.data.Dataset) -> int:
        return rows_held_out(self.hold_out, len(data.y), "hold_out")

    def traced(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "shortest": self.shortest,
            "longest": self.longest,
            "learning_rate": self.training.learning_rate,
            "hold_out": self._rows_held_out(load(self.data, self.keys().next())),
        }

    def apart(self) -> str:
        same: dict[str, Any] = {"seed": 0, "shortest": 1.0, "longest": 1.0, "hold_out": 1}
        same["training"] = self.training.model_copy(update={"learning_rate": 1.0})
        return dump(self.model_copy(update={**same, "name": ""}))

    def numbers(
        self, traced: dict[str, Array], most: dict[str, Any]
    ) -> tuple[dict[str, Array], Array]:
        keys = Keys(traced["seed"])
        data = self.data.load(keys.next())
        for _ in range(self.keys_spent):
            keys.next()
        ends = traced["shortest"], traced["longest"]
        fits = ak.fit_many(
            stack([self.start(heads, ends) for heads in self.heads]),
            data.x,
            data.y,
            objective=ak.HoldOut(traced["hold_out"], at_most=int(most["hold_out"])),
            in_axes=(0, None, None),
            optimizer=self.training.make(traced["learning_rate"]),
            steps=self.training.steps,
            key=keys.stack(len(self.heads)),
        )
        left_out = eqx.filter_vmap(lambda model: ak.LeaveOneOut()(model, data.x, data.y))

        def of_heads(numbers: Array) -> Array:  # of those that fill up, no number
            active = fits.model.active
            active = active.reshape(active.shape + (1,) * (numbers.ndim - active.ndim))
            return jnp.where(active, numbers, jnp.nan)

        lengthscales, others = self._parameters(fits.model.model.kernel)
        found = {
            "heads": jnp.array(self.heads),
            "weights": of_heads(fits.model.model.weights),
            "lengthscales": of_heads(lengthscales),
            **{name: of_heads(leaf) for name, leaf in others.items()},
            "leave_one_out": left_out(fits.model),
        }
        return found, jnp.any(fits.starts.diverged)

    def run(self, run: Run) -> None:
        keys = self.keys()
        data = load(self.data, keys.next())
        for _ in range(self.keys_spent):
            keys.next()
        result = self.fit(run, data, keys.stack(len(self.heads)))
        run.note(result.warnings())
        rows = []
        members = [result.member(i) for i in range(len(self.heads))]
        for heads, member in zip(self.heads, members, strict=True):
            model = member.model.model
            lengthscales, others = self._parameters(model.kernel)
            lengths = model.kernel.lengthscale[:heads]
            run.note(outside_bounds(lengths, data, self.model, f"{heads} heads"))
            rows.append(
                {
                    "heads": heads,
                    "weights": to_list(model.weights[:heads]),
                    "lengthscales": to_list(lengthscales[:heads]),
                    **{name: to_list(leaf[:heads]) for name, leaf in others.items()},
                    "leave_one_out": ak.LeaveOneOut()(member.model, data.x, data.y),
                }
            )
        titles = [f"{heads} head{'s' if heads > 1 else ''}" for heads in self.heads]
        label = self.model.label()
        draw_fits(run, "heads", data, members, titles, label=label, heads=self.heads)
        run.table(
            f"Heads, kernel {self.model.words()}",
            ["heads", "combination u", "lengthscales ℓ", "leave-one-out error"],
            [
                [
                    str(row["heads"]),
                    ", ".join(f"{u:.2f}" for u in row["weights"]),
                    ", ".join(f"{length:.2f}" for length in row["lengthscales"]),
                    f"{float(row['leave_one_out']):.4f}",
                ]
                for row in rows
            ],
        )
        run.summary({"data": describe(data), **self.model.named(), "table": rows})
        require_finite(result)

    def _parameters(self, kernel: Any) -> tuple[Array, dict[str, Array]]:
        """Lengthscales, and what else was fitted of the kernels."""
        others = self.model.parameters(kernel)
        return others.pop("lengthscale"), others

    def start(self, heads: int, ends: tuple[ArrayLike, ArrayLike] | None = None) -> PaddedHeads:
        """A model of this many heads, filled up to the most; `ends`: shortest and longest."""
        active = jnp.arange(max(self.heads)) < heads
        first = jnp.linspace(*(ends or (self.shortest, self.longest)), heads)
        lengthscales = jnp.ones(max(self.heads)).at[:heads].set(first)
        kernel = eqx.filter_vmap(self.model.kernel_at)(lengthscales)
        weights = jnp.where(active, 1.0 / heads, 0.0)
        model = ak.MultiheadKernelRegression(
            kernel, weights, rule=self.model.rule(), on_empty=self.model.on_empty
        )
        return PaddedHeads(model, active)

    def fit(self, run: Run, data: ak.data.Dataset, keys: jax.Array) -> ak.Fit:
        """All numbers of heads at once."""
        steps = self.training.steps
        size = self._rows_held_out(data)
        starts = [self.start(heads) for heads in self.heads]
        with run.progress("training", steps) as tick, run.timed("training"):

            def on_chunk(done: int, history: dict[str, Any]) -> None:
                losses, weights = history["loss"][:, 0], history["weights"][:, 0]
                lengthscales = np.asarray(self.model.shown(history["lengthscales"][:, 0]))
                run.step_metrics(
                    done,
                    "heads",
                    self.heads,
                    loss=losses,
                    weights=[w[:, :heads] for w, heads in zip(weights, self.heads, strict=True)],
                    lengthscales=[
                        ell[:, :heads] for ell, heads in zip(lengthscales, self.heads, strict=True)
                    ],
                )
                mean = losses.mean(axis=1)  # one loss is one held-out point: too noisy to show
                tick(done, "loss " + " ".join(f"{loss:.3f}" for loss in mean))

            return ak.fit_many(
                stack(starts),
                data.x,
                data.y,
                objective=ak.HoldOut(size),
                in_axes=(0, None, None),
                optimizer=self.training.make(),
                steps=steps,
                key=keys,
                record=record,
                callback=on_chunk,
                checkpoints=run.checkpoints("training"),
            )


def record(model: PaddedHeads) -> dict[str, jax.Array]:
    kernel: Any = model.model.kernel
    return {"weights": model.model.weights, "lengthscales": kernel.lengthscale}


def stack(models: list[Any]) -> Any:
    """Models of one structure as one, every array with a leading axis of models."""
    return jax.tree.map(
        lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *models
    )
