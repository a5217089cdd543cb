"""`MultiheadAttention` as a user of Equinox meets it, against Equinox and PyTorch, equal weights.

One sequence x ∈ ℝ^{T × D} attends to itself, with projections, causal or not. With backward: the
sum of squares of the output and its gradients in all weights and in x.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from jaxtyping import Array, PRNGKeyArray
from matplotlib.figure import Figure

import attnkernel as ak

from ..panels import legend
from ..parts import Name, Positive
from ..run import Run
from ..study import Study
from ..watch import SILENT, Watch
from .driver import GIB, Case, Contender, agreement, compiled, measure, optional_import
from .tables import (
    note_unavailable_rows,
    number,
    ratio,
    ratios,
    table_of_targets,
    target,
)

OURS, EQUINOX, TORCH = "attnkernel", "Equinox", "PyTorch"
FORWARD, BACKWARD = "forward", "+ backward"
TOLERANCE = 1e-4  # relative to the largest number of an array
_PROJECTIONS = ("query_proj", "key_proj", "value_proj", "output_proj")
LOOKS: dict[str, dict[str, Any]] = {
    OURS: {"color": ak.plot.BLUE},
    EQUINOX: {"color": ak.plot.GREEN, "hatch": "///"},
    TORCH: {"color": ak.plot.PURPLE, "hatch": "..."},
}


class BenchModules(Study):
    """Seconds of a module against the length T, full and causal, forward and backward."""

    study: Literal["bench_modules"]
    name: Name = "bench_modules"
    length: Annotated[
        list[Annotated[int, pydantic.Field(ge=2, le=100_000)]], pydantic.Field(min_length=1)
    ] = [1024, 4096]
    heads: Annotated[int, pydantic.Field(ge=1, le=256)] = 8
    size: Annotated[int, pydantic.Field(ge=1, le=16384)] = 512
    repeats: Annotated[int, pydantic.Field(ge=1, le=100)] = 5
    most_seconds: Positive = 20.0
    most_memory_gib: Positive = 6.0
    is_benchmark: ClassVar[bool] = True

    def compute(self, key: PRNGKeyArray, watch: Watch = SILENT) -> list[dict[str, Any]]:
        places = list(itertools.product(sorted(self.length), (False, True), (FORWARD, BACKWARD)))
        cases = (self._case(key, *place) for place in places)
        return measure(watch, cases, len(places), self.repeats, self.most_seconds)

    def _case(self, key: PRNGKeyArray, length: int, causal: bool, phase: str) -> Case:
        module_key, x_key = jax.random.split(key)
        theirs = eqx.nn.MultiheadAttention(self.heads, self.size, key=module_key)
        ours = ak.MultiheadAttention(self.heads, self.size, key=module_key)  # the same weights
        x = jax.random.normal(x_key, (length, self.size))

        def with_prior(module: Any, x: Array) -> Array:
            return module(x, x, x, prior=ak.Causal() if causal else None)

        def with_mask(module: Any, x: Array) -> Array:
            mask = jnp.tril(jnp.ones((length, length), bool)) if causal else None
            return module(x, x, x, mask=mask)

        def compile_module(call: Callable[..., Array], module: Any) -> Contender:
            weights, rest = eqx.partition(module, eqx.is_inexact_array)

            def forward(weights: Any, x: Array) -> Array:
                return call(eqx.combine(weights, rest), x)

            def both(weights: Any, x: Array) -> Any:
                loss = lambda w, x: jnp.sum(forward(w, x) ** 2)  # noqa: E731
                return _gradients(*jax.grad(loss, (0, 1))(weights, x))

            function = forward if phase == FORWARD else both
            return compiled(function, weights, x, max_bytes=self.most_memory_gib * GIB)[0]

        return Case(
            {"length": length, "causal": causal, "phase": phase},
            f"T = {length}, {'causal' if causal else 'full'} {phase}",
            {
                OURS: lambda: compile_module(with_prior, ours),
                EQUINOX: lambda: compile_module(with_mask, theirs),
                TORCH: lambda: torch_module(theirs, x, causal, phase),
            },
            functools.partial(agreement, reference=OURS, tolerance=TOLERANCE),
        )

    def report(self, results: list[dict[str, Any]], run: Run) -> None:
        note_unavailable_rows(run, results)
        others, longest = (EQUINOX, TORCH), max(self.length)
        run.table(
            f"Seconds, medians of up to {self.repeats}; {self.heads} heads, D = {self.size}",
            ["T, work", *LOOKS, *(f"{name} ÷ {OURS}" for name in others)],
            [
                [
                    row["where"],
                    *(number(row["median"].get(name)) for name in LOOKS),
                    *(number(ratio(row, name, OURS)) for name in others),
                ]
                for row in results
            ],
        )
        at_longest = ratios(
            results,
            EQUINOX,
            OURS,
            lambda row: row["length"] == longest and row["phase"] == BACKWARD,
        )
        what = f"times as fast as Equinox, T = {longest}, + backward"
        targets = [target(what, 3.0, at_longest)]
        table_of_targets(run, targets)
        self.draw(run, results)
        run.summary({"tolerance": TOLERANCE, "table": results, "targets": targets})

    def draw(self, run: Run, rows: list[dict[str, Any]]) -> None:
        figure = Figure(figsize=(7.2, 3.0))
        ax = figure.subplots()
        ran = [name for name in LOOKS if any(name in row["median"] for row in rows)]
        places, width = np.arange(len(rows)), 0.8 / len(ran)
        for shift, name in enumerate(ran):
            seconds = [row["median"].get(name, np.nan) for row in rows]
            ax.bar(places + shift * width, seconds, width, **LOOKS[name], label=name)
        labels = [
            f"T = {row['length']}\n{'causal' if row['causal'] else 'full'}\n{row['phase']}"
            for row in rows
        ]
        ax.set_xticks(places + 0.5 * (len(ran) - 1) * width, labels, fontsize=7)
        ax.set(yscale="log", ylabel="seconds")
        legend(figure, [ax])
        run.figure(
            "bench_modules",
            figure,
            **{name: [row["median"].get(name, np.nan) for row in rows] for name in LOOKS},
        )


def _gradients(module: Any, x: Array) -> list[Array]:
    """Gradients in the weights of the projections, and in x."""
    return [*(getattr(module, name).weight for name in _PROJECTIONS), x]


def torch_module(
    module: eqx.nn.MultiheadAttention, x: Array, causal: bool, phase: str
) -> Contender:
    """`torch.nn.MultiheadAttention` with the weights of the module; it returns no weights."""
    torch = optional_import("torch")
    size, heads = x.shape[1], module.num_heads
    theirs = torch.nn.MultiheadAttention(size, heads, bias=False, batch_first=True)
    weights = [np.array(getattr(module, name).weight) for name in _PROJECTIONS]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.from_numpy(np.concatenate(weights[:3])))
        theirs.out_proj.weight.copy_(torch.from_numpy(weights[3]))
    rows = torch.from_numpy(np.array(x))[None].requires_grad_(phase == BACKWARD)
    hidden = torch.nn.Transformer.generate_square_subsequent_mask(len(x)) if causal else None
    options = {"need_weights": False, "is_causal": causal, "attn_mask": hidden}

    def forward() -> Any:
        with torch.no_grad():
            return theirs(rows, rows, rows, **options)[0][0].numpy()

    def both() -> Any:
        inputs = (theirs.in_proj_weight, theirs.out_proj.weight, rows)
        loss = (theirs(rows, rows, rows, **options)[0] ** 2).sum()
        of_in, of_out, of_rows = torch.autograd.grad(loss, inputs)
        return [*(part.numpy() for part in of_in.chunk(3)), of_out.numpy(), of_rows[0].numpy()]

    return forward if phase == FORWARD else both
