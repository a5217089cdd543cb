"""Seconds of hold-out and head trainings, against the Python loop of Czyż (2024).

The loop calls a jitted step. Rows are drawn and gathered outside it, in shapes that change with the
hold-out; heads are a list; each training makes and compiles its own step.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import FieldError, Heteroskedastic, Model, Positive
from ..runs import NO_MONITOR, Monitor, Run
from ..studies import Keys
from ..studies.heads import Heads, stack
from .benchmark import Benchmark, Results
from .driver import Case

SINK_MASS = 1e-16
LEARNING_RATE = 0.2


Steps = dict[tuple[int, int], Callable]  # compiled, by the rows held out and the number of heads
# models and options of `ak.fit_many`; and for `train_step_by_step` parameters, hold-out and key
Trainings = tuple[Any, dict[str, Any], list[tuple[Any, int, PRNGKeyArray]]]


def train_step_by_step(
    data: ak.data.Dataset, steps: int, kept: Steps, params: Any, hold_out: int, key: PRNGKeyArray
) -> Float[Array, " heads"]:
    """Masked hold-out as Czyż (2024) writes it; `kept` keeps compiled steps.

    `params` are a list `log_lengthscales`, and `weights` (None: one head, of weight 1). Returns
    the lengthscales, unhalved.
    """
    x, y = data.x[:, 0], data.y
    optimizer = optax.adam(LEARNING_RATE)

    def head(log_lengthscale: Array, q: Array, k: Array, v: Array) -> Array:
        weights = jnp.exp(-(((q[:, None] - k[None, :]) / jnp.exp(log_lengthscale)) ** 2))
        weights = weights / (jnp.sum(weights, axis=1, keepdims=True) + SINK_MASS)
        return jnp.sum(weights * v[None, :], axis=1)

    @jax.jit
    def step(params: Any, state: Any, q: Array, truth: Array, k: Array, v: Array) -> Any:
        def loss(params: Any) -> Array:
            heads = jnp.stack([head(log, q, k, v) for log in params["log_lengthscales"]])
            combined = heads[0] if params["weights"] is None else params["weights"] @ heads
            return jnp.mean((combined - truth) ** 2)

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    kept_step = kept.setdefault((hold_out, len(params["log_lengthscales"])), step)
    state = optimizer.init(params)
    losses = []
    for _ in range(steps):
        key, subkey = jax.random.split(key)
        order = jax.random.permutation(subkey, jnp.arange(len(x)))
        test, train = order[:hold_out], order[hold_out:]
        params, state, value = kept_step(params, state, x[test], y[test], x[train], y[train])
        losses.append(value)
    return jnp.exp(jnp.stack(params["log_lengthscales"]))


Count = Annotated[int, Field(ge=1)]
OURS, LOOP, KEPT = "attnkernel", "loop", "loop, steps kept"


class BenchTraining(Benchmark):
    """Cold (with compilation) and warm times of both contenders, and whether they agree."""

    study: Literal["bench_training"]
    data: Heteroskedastic
    hold_out: list[Count] = Field(default=[1, 10, 75, 120], min_length=1)
    hold_out_steps: int = Field(default=100, ge=1)
    heads: list[Count] = Field(default=[1, 2, 4, 8], min_length=1)
    head_steps: int = Field(default=1000, ge=1)
    repeats: int = Field(default=3, ge=1, le=1000)
    max_seconds: Positive = 600.0
    axes: ClassVar = (("hold-out fits", "head fits"), (True, False))
    compared: ClassVar = (OURS, LOOP, KEPT)

    def check(self) -> None:
        if max(self.hold_out) >= self.data.n:
            raise FieldError(("hold_out",), f"expected less than data.n = {self.data.n}")

    def make_case(self, key: PRNGKeyArray, work: str, cold: bool) -> Case:
        """Returns the `Case` that times the trainings named `work`, ours by `fit_many` and those of
        the loop one by one. `cold`: compile in each call.
        """
        keys = Keys(key)
        data, of_sizes = self.data.load(keys.next()), keys.stack(len(self.hold_out))
        optimizer, is_heads = optax.adam(LEARNING_RATE), work == "head fits"
        if is_heads:
            models, options, problems = self._make_head_trainings(keys.stack(len(self.heads)))
        else:
            models, options, problems = self._make_hold_out_trainings(of_sizes)

        def ours() -> list[Array]:
            fitted: Any = ak.fit_many(models, data.x, data.y, optimizer=optimizer, **options).model
            kernel = fitted.model.kernel.stack if is_heads else fitted.kernel
            return list(kernel.lengthscale * jnp.sqrt(2.0))

        def loop(kept: Steps) -> list[Array]:
            steps = options["steps"]
            return [train_step_by_step(data, steps, kept, *problem) for problem in problems]

        contenders: dict[str, Callable[[], Any]]
        contenders = {OURS: lambda: ours, LOOP: lambda: lambda: loop({})}
        if not cold:
            kept: Steps = {}  # LOOP compiles anew in each call
            contenders[KEPT] = lambda: lambda: loop(kept)

        def check(results: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
            """The largest relative difference of the lengthscales, training by training."""
            deviation = [
                float(np.max(np.abs(np.atleast_1d(a)[: np.size(b)] / np.atleast_1d(b) - 1.0)))
                for a, b in zip(results[OURS], results[LOOP], strict=True)
            ]
            return {"deviation": deviation}

        phase = "cold" if cold else "warm"
        return Case({"work": work, "phase": phase}, f"{work}, {phase}", contenders, check, cold)

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        results = super().compute(key, monitor)

        def speedup(name: str, phase: str) -> float:
            rows = [row["median"] for row in results.table if row["phase"] == phase]
            return sum(row[name] for row in rows) / sum(row[OURS] for row in rows)

        speedups = {"cold": speedup(LOOP, "cold"), "warm": speedup(LOOP, "warm")}
        speedups["warm, if the loop kept its compiled steps"] = speedup(KEPT, "warm")
        return results._replace(more={"speedup of all trainings": speedups})

    def columns(self, row: Mapping[str, Any]) -> dict[str, str]:
        return {"deviation": ", ".join(f"{value:.1e}" for value in row["deviation"])}

    def print_tables(self, results: Results, run: Run) -> None:
        super().print_tables(results, run)
        title = "speedup of all trainings"
        run.table_of(title, [results.more[title]])

    def _make_hold_out_trainings(self, keys: Array) -> Trainings:
        """Returns the trainings of one model for each size of hold-out; `keys`: one for each."""
        model = Model(convention="unhalved", sink_mass=SINK_MASS).make()
        objective = ak.HoldOut(jnp.array(self.hold_out), at_most=max(self.hold_out))
        options = {"objective": objective, "in_axes": (None, None, 0)}
        start = {"log_lengthscales": [jnp.zeros(())], "weights": None}
        problems = [(start, size, key) for size, key in zip(self.hold_out, keys, strict=True)]
        return model, options | {"steps": self.hold_out_steps, "key": keys}, problems

    def _make_head_trainings(self, keys: Array) -> Trainings:
        """Returns the same for each number of heads; `keys`: one for each."""
        model = Model(convention="unhalved")
        study = Heads(study="heads", data=self.data, heads=self.heads, model=model)
        starts = stack([study.start(heads) for heads in self.heads])
        options = {"objective": ak.HoldOut(1), "in_axes": (0, None, None)}
        problems = []
        for heads, key in zip(self.heads, keys, strict=True):
            lengths = list(jnp.log(jnp.linspace(0.1, 3.0, heads)))
            start = {"log_lengthscales": lengths, "weights": jnp.full(heads, 1.0 / heads)}
            problems.append((start, 1, key))
        return starts, options | {"steps": self.head_steps, "key": keys}, problems
