"""The window that attention learns over many tasks, beside the lengthscale that each one chooses.

For equally dense inputs the best lengthscale of a task of lengthscale L, noise σ and n rows is
proportional to $\\sigma^{2/5} L^{4/5} n^{-1/5}$, for long contexts. The window of attention that is
trained over such tasks is compared with that, with leave-one-out and the plug-in rule on each
context alone, and with the best window of all tasks of a kind.
"""

import functools
import itertools
import operator
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import NonEmpty, Positive, Several
from ..reports import facets, label_outer, looks_of, save_with_legend, ticks_at
from ..reports.predictions import Claims, judge_and_print, mean_of, where
from ..runs import NO_MONITOR, Monitor, Run
from .claims import Claim, of_repetitions, verdict
from .study import Keys, Study
from .training import sizes, train
from .window_tasks import EXPECTED, Family, Linear, Warp, draw, mean_error, powers_of, predict


class LearnedWindow(Study):
    """Windows of attention trained over tasks, by smoothness, noise and length of the context."""

    study: Literal["learned_window"]
    orders: NonEmpty[Literal[0, 1]] = [0, 1]
    lengthscales: Several[Positive] = Field(default=[0.25, 0.5, 1.0], description="of functions")
    noises: Several[Positive] = [0.1, 0.3, 0.9]
    contexts: Several[Annotated[int, Field(ge=16, le=1024)]] = [32, 96, 288]
    growth: Positive = Field(default=1.0, description="of the log of the noise along an input")
    angle: float = Field(
        default=30.0, description="degrees: the direction of two inputs that matters"
    )
    batch: int = Field(default=16, ge=1, le=1024)
    targets: int = Field(default=16, ge=1, le=512)
    steps: int = Field(default=500, ge=2)
    learning_rate: Positive = 0.05
    windows: int = Field(default=31, ge=3, le=400, description="candidates of each task")
    tested: int = Field(default=100, ge=2, le=10_000, description="new tasks of each kind")

    def grid(self) -> Float[np.ndarray, " windows"]:
        return np.geomspace(0.02, 4.0, self.windows)

    def direction(self, dim: int) -> Float[np.ndarray, " dim"]:
        """The direction in which a function of one or two inputs varies."""
        angle = np.deg2rad(self.angle)
        return np.ones(1) if dim == 1 else np.array([np.cos(angle), np.sin(angle)])

    def families(self, growth: float = 0.0, dim: int = 1) -> Family:
        """All pairs of smoothness and noise, stacked; in two dimensions along `angle`."""
        lengthscale, noise = np.transpose([list(kind.values()) for kind in self.kinds()])
        columns = np.tile(self.direction(dim), (len(noise), 1))
        return Family(*map(jnp.asarray, (lengthscale, noise, np.full_like(noise, growth), columns)))

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> dict[str, Any]:
        keys, found, kinds = Keys(key), [], len(self.kinds())

        def trained(start: Any, families: Family, n: int, order: int, more: str = "") -> Any:
            """One program trains the attention of all kinds of task at once."""
            given = {"families": families, "n": n, "targets": self.targets, "order": order}
            loss, name = functools.partial(mean_error, **given), f"order {order}, {n} rows{more}"
            return train(monitor, start, loss, **sizes(self), key=keys.next(), name=name)[0]

        alone, longest = self.families(), max(self.contexts)
        for order, n in itertools.product(self.orders, self.contexts):
            windows = trained(Linear.of_windows(jnp.full(kinds, 0.25)), alone, n, order)
            learned = 1.0 / np.abs(np.asarray(windows.scaled())[:, 0, 0])
            with monitor.timed("tasks"):
                tested = self.test(keys.next(), alone, jnp.asarray(learned), n, order)
            found.append({"order": order, "n": n, "learned": learned, "tested": tested})
        linear = Linear.of_windows(jnp.full(kinds, 0.25), 2)
        linear = trained(linear, self.families(dim=2), longest, 0, ", two inputs")
        warp = Warp(jnp.full(kinds, -1.4), jnp.full(kinds, 0.1))
        warp = trained(warp, self.families(self.growth), longest, 0, ", noise that grows")
        shapes = {"matrices": np.asarray(linear.scaled()), "slopes": np.asarray(warp.b)}
        return {"windows": found, "shapes": shapes}

    def test(self, key: Array, families: Family, learned: Array, n: int, order: int) -> Any:
        """Errors and criteria of new tasks at each window, and at the learned and plug-in ones: by
        name, of shape (kinds, tasks, *windows).
        """
        grid = jnp.asarray(self.grid())

        def of_task(family: Family, window: Array, key: Array) -> dict[str, Array]:
            task = draw(key, family, n, 4 * self.targets)

            def error(window: Array) -> Array:
                found = predict(Linear.of_windows(window), task, order)
                return jnp.mean((found - task.truth) ** 2)

            def criterion(window: Array) -> Array:
                model = ak.KernelRegression(ak.Gaussian(window), order=order)
                return ak.LeaveOneOut()(model, task.x, task.y)

            plug_in = ak.inference.plug_in(task.x[:, 0], task.y)
            return {
                "errors": jax.lax.map(error, grid),
                "criteria": jax.lax.map(criterion, grid),
                "learned": error(window),
                "plug_in": plug_in,
                "plug_in_error": error(plug_in),
            }

        def of_family(part: tuple[Family, Array, Array]) -> dict[str, Array]:
            return jax.lax.map(functools.partial(of_task, *part[:2]), part[2])

        keys = jax.random.split(key, (len(learned), self.tested))
        of_families = jax.jit(functools.partial(jax.lax.map, of_family))
        return jax.tree.map(np.asarray, of_families((families, learned, keys)))

    def report(self, results: dict[str, Any], run: Run) -> None:
        rows, powers, kind = list(self.summarised(results)), [], ("n", "lengthscale", "noise")
        for order in self.orders:
            here = [row for row in rows if row["order"] == order]
            powers += [
                {"kind": "powers", "order": order, "of": name, **powers_of(here, name)}
                for name in ("learned", "best", "leave_one_out", "plug_in")
            ]
            run.table_of(
                f"Windows, the middle half of leave-one-out's, errors, and that of leave-one-out "
                f"over that of the learned window, order {order}; 95 % intervals",
                here,
                (*kind, "windows", "low", "high", "error", "ratio"),
            )
        run.table_of(
            "Powers in the window: −0.2 of n, 0.8 of L and 0.4 of σ for long contexts",
            powers,
            ("order", "of", *kind),
        )
        directions, warps = self.shapes(**results["shapes"])
        run.table_of(
            f"{max(self.contexts)} rows: two inputs of which one direction matters, their windows, "
            f"and the angle between it and the shorter one, in degrees; the power of a growing "
            f"noise in the window, 0.4 for long contexts",
            [one | other for one, other in zip(directions, warps, strict=True)],
            (*kind[1:], "along", "across", "angle", "power"),
        )
        cases, name_of = [*rows, *powers, *directions, *warps], operator.itemgetter("name")
        predictions = judge_and_print(run, CLAIMS, cases, name_of)
        draw_windows(run, rows, powers[0])
        found = {"rows": rows, "powers": powers, "directions": directions, "warps": warps}
        found |= {"predictions": predictions, "claims": list(ledger_rows(powers[0], rows))}
        run.summary(found)

    def kinds(self) -> list[dict[str, float]]:
        pairs = itertools.product(self.lengthscales, self.noises)
        return [{"lengthscale": float(a), "noise": float(b)} for a, b in pairs]

    def summarised(self, results: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Windows and mean errors of each kind of task, order and length."""
        grid = self.grid()
        for found in results["windows"]:
            for i, kind in enumerate(self.kinds()):
                tested = {name: values[i] for name, values in found["tested"].items()}
                chosen = np.argmin(tested["criteria"], axis=1)
                errors = tested["errors"][np.arange(self.tested), chosen]
                best = np.argmin(tested["errors"].mean(axis=0))
                low, middle, high = map(float, np.quantile(grid[chosen], [0.25, 0.5, 0.75]))
                of_setting = f"order {found['order']}, {found['n']} rows"
                yield {
                    "kind": "window",
                    "order": found["order"],
                    "n": found["n"],
                    **kind,
                    "name": f"{of_setting}, L {kind['lengthscale']:g}, σ {kind['noise']:g}",
                    "windows": {
                        "learned": float(found["learned"][i]),
                        "best": float(grid[best]),
                        "leave_one_out": middle,
                        "plug_in": float(np.median(tested["plug_in"])),
                    },
                    "low": low,
                    "high": high,
                    "error": {
                        "learned": mean_of(tested["learned"]),
                        "best": mean_of(tested["errors"][:, best]),
                        "leave_one_out": mean_of(errors),
                        "plug_in": mean_of(tested["plug_in_error"]),
                    },
                    "ratio": float(errors.mean() / tested["learned"].mean()),
                }

    def shapes(self, matrices: np.ndarray, slopes: np.ndarray) -> tuple[list[Any], list[Any]]:
        """The longest and shortest window of each learned matrix, shape (kinds, 2, 2), and where
        the shortest points; the power of the noise in each window that grows."""
        directions, warps = [], []
        for kind, matrix, slope in zip(self.kinds(), matrices, slopes, strict=True):
            _, sizes, right = np.linalg.svd(matrix)
            cosine = np.clip(abs(right[0] @ self.direction(2)), 0.0, 1.0)
            of = {"angle": float(np.rad2deg(np.arccos(cosine))), **kind}
            of |= {"along": float(1 / sizes[0]), "across": float(1 / sizes[1])}
            words = f"L {kind['lengthscale']:g}, σ {kind['noise']:g}"
            directions.append(of | {"kind": "direction", "name": f"two inputs, {words}"})
            warp = {"kind": "warp", "name": f"noise that grows, {words}"}
            warps.append(kind | warp | {"power": float(slope / self.growth)})
        return directions, warps


def ledger_rows(learned: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[Claim]:
    """The powers of the learned windows of one order, and what leave-one-out costs beside them."""
    rows = [row for row in rows if row["order"] == learned["order"]]
    for part, expected in EXPECTED.items():
        power, half, shuffled = (learned[name][part] for name in ("power", "half", "shuffled"))
        words = f"{learned['name']}: its power of {part} is within 0.15 of that of long contexts"
        source = "arXiv 2402.11639: its sign"
        control = "windows in random order have none", shuffled
        judged = verdict(abs(power - expected) < 0.15, abs(shuffled - expected) >= 0.15)
        parts = power, power - half, power + half, len(rows)
        yield Claim(words, source, expected, *parts, *control, judged)
    lengths = sorted({row["n"] for row in rows})
    few, many = (
        np.array([row["ratio"] - 1 for row in rows if row["n"] == n])
        for n in lengths[:: len(lengths) - 1]
    )
    parts = of_repetitions(few)
    words = f"{lengths[0]} rows: leave-one-out has 10 % more error; relative difference"
    control = f"at {lengths[-1]} rows it has not", float(many.mean())
    judged = verdict(parts[1] > 0.1, control[1] < 0.1)
    yield Claim(words, "asked here", None, *parts, *control, judged)


CLAIMS: Claims = {
    "the powers of the learned window are within 0.15 of −0.2, 0.4 and 0.8": where(
        lambda row: row["kind"] == "powers" and row["of"] == "learned",
        lambda row: all(abs(row[part] - power) < 0.15 for part, power in EXPECTED.items()),
    ),
    "the learned window is within 15 % of the best of its kind of task": where(
        lambda row: row["kind"] == "window",
        lambda row: abs(np.log(row["windows"]["learned"] / row["windows"]["best"])) < np.log(1.15),
    ),
    "32 rows: leave-one-out has at least 10 % more error than the learned window": where(
        lambda row: row["kind"] == "window" and row["n"] == 32,
        lambda row: row["ratio"] > 1.1,
    ),
    "288 rows: leave-one-out has at most 5 % more error than the learned window": where(
        lambda row: row["kind"] == "window" and row["n"] == 288,
        lambda row: row["ratio"] < 1.05,
    ),
    "order 1: the plug-in rule has less error than leave-one-out": where(
        lambda row: row["kind"] == "window" and row["order"] == 1,
        lambda row: row["error"]["plug_in"]["mean"] < row["error"]["leave_one_out"]["mean"],
    ),
    "two inputs: the learned window is five times as long across the direction as along it": where(
        lambda row: row["kind"] == "direction",
        lambda row: row["across"] > 5 * row["along"],
    ),
    "two inputs: the learned direction is within 5 degrees": where(
        lambda row: row["kind"] == "direction",
        lambda row: row["angle"] < 5,
    ),
    "noise that grows: the learned window grows with its power 0.4, within 0.15": where(
        lambda row: row["kind"] == "warp",
        lambda row: abs(row["power"] - 0.4) < 0.15,
    ),
}


def draw_windows(run: Run, rows: list[dict[str, Any]], powers: dict[str, Any]) -> None:
    """Windows against the length of the context, a panel for each order and noise."""
    orders, noises, lengthscales, lengths = (
        sorted({row[part] for row in rows}) for part in ("order", "noise", "lengthscale", "n")
    )
    figure, axes = facets(orders, noises, width=2.9, height=2.8, sharey=True)
    looks = looks_of(f"L = {lengthscale:g}" for lengthscale in lengthscales)
    for (order, noise), ax in axes.items():
        here = [row for row in rows if (row["order"], row["noise"]) == (order, noise)]
        for place, (kind, look) in enumerate(looks.items()):
            of_kind = [row for row in here if row["lengthscale"] == lengthscales[place]]
            n, low, high = np.transpose([[row["n"], row["low"], row["high"]] for row in of_kind])
            learned, best, left_out = (
                np.array([row["windows"][name] for row in of_kind])
                for name in ("learned", "best", "leave_one_out")
            )
            ax.plot(n, learned, **look, label=f"learned, {kind}")
            ax.plot(n, best, "x", color=look["color"], markersize=8, label=f"_best, {kind}")
            square = {"fmt": "s", "color": look["color"], "markersize": 3, "linewidth": 0.8}
            ends = left_out - low, high - left_out
            ax.errorbar(n * 1.04 ** (place + 1), left_out, ends, **square)
        ax.set(xscale="log", yscale="log", title=f"order {order}, σ = {noise:g}")
    ax = figure.axes[0]
    ax.plot([], [], "x", color=ak.plot.ink(), label="best of its kind")
    ax.plot([], [], "s", color=ak.plot.ink(), markersize=3, label="leave-one-out, middle half")
    ticks_at(ax.xaxis, lengths)
    title = "{name}: a window to the power {n:.2f} of n, {noise:.2f} of σ, {lengthscale:.2f} of L"
    figure.suptitle(title.format_map(powers))
    label_outer(axes.values(), "rows of the context", "window ℓ")
    save_with_legend(run, "windows", figure, [ax])
