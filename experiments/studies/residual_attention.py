r"""Softmax of what a recurrence leaves, and a learned probe in place of that of local lines.

$$ \mathrm{out}_i = \sum_j a_{ij} (v_j - W_j k_j) + W_i q_i $$

W is the state of a recurrence, which Zuo et al. (arXiv 2510.01450, 2025) name as future work. The
probes are those of `probes`.

Labels are piecewise linear in the keys: $f(k) = M_{s(k)}^\top k$, s the anchor with the largest
product with k. Of one piece, f is linear. The layers have keys of length 1. At equal time each
parent takes in more rows: as many as it can in the time that both take for the rows of a layer.
"""

import functools
import itertools
from collections.abc import Iterator
from operator import itemgetter
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

from ..benchmarks.driver import interleaved, medians
from ..config import NonEmpty, Positive
from ..reports import draw_dots, subplots
from ..reports.predictions import Claims, half_width, judge_and_print, mean_of, where
from ..runs import NO_MONITOR, Monitor, Run
from .claims import Claim, ends, verdict
from .probes import CHOSEN, LEARNED, PLAIN, TURNED, compare_probes
from .sequence_estimators import LAYERS, errors_of_layer, with_residuals
from .study import Study, Task
from .training import sizes

FITTING = "Mesa, forgetting"  # it fits linear functions
RECURRENCES = ("decay", "delta", "gated delta", FITTING)
PARENTS = ("softmax", *RECURRENCES, "order 1")
OF_RESIDUALS = {f"softmax of {name}'s residuals": name for name in RECURRENCES}
COMPARED = {name: LAYERS[name] for name in PARENTS} | {
    words: with_residuals(LAYERS[name]) for words, name in OF_RESIDUALS.items()
}
UNIT = "of length 1"
KEYS = ("alike", "of their own spread")  # of all sequences, or of each


class ResidualAttention(Study):
    """Errors of layers on piecewise-linear functions, and of probes that are learned or exact."""

    study: Literal["residual_attention"]
    pieces: NonEmpty[Annotated[int, Field(ge=1, le=256)]] = [1, 4, 16]
    rows: int = Field(default=256, ge=16, le=4096)
    dim: int = Field(default=4, ge=2, le=64)
    noise: Positive = 0.1
    sequences: int = Field(default=40, ge=2, le=10_000)
    timed: int = Field(default=2048, ge=16, description="rows of the calls whose seconds are taken")
    repeats: int = Field(default=11, ge=1, le=1000)
    context: int = Field(default=64, ge=8, le=4096, description="rows of a context of the probes")
    batch: int = Field(default=16, ge=1, le=4096)
    steps: int = Field(default=600, ge=2)
    learning_rate: Positive = 3e-2

    def draw(self, key: Array, pieces: int, rows: int, keys: str = UNIT) -> Task:
        """Rows with keys of length 1, standard normal, or of a covariance of their own."""
        parts = jax.random.split(key, 5)
        points = jax.random.normal(parts[0], (2 * rows, self.dim))
        anchors = jax.random.normal(parts[1], (pieces, self.dim))
        maps = jax.random.normal(parts[2], (pieces, self.dim, self.dim)) / self.dim**0.5
        if keys == UNIT:
            points = points / jnp.linalg.norm(points, axis=1, keepdims=True)
        if keys == KEYS[1]:  # standard deviations from a quarter to two
            scales = jnp.exp(jax.random.uniform(parts[4], (self.dim,), minval=-1.4, maxval=0.7))
            points = points * scales[None]
        truth = jnp.einsum("nd,nde->ne", points, maps[jnp.argmax(points @ anchors.T, axis=1)])
        v = truth[:rows] + self.noise * jax.random.normal(parts[3], (rows, self.dim))
        return Task(points[:rows], v, points[rows:], truth[rows:])

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> dict[str, Any]:
        of_layers, of_training, of_tests = jax.random.split(key, 3)
        every = lambda one, data: jax.lax.map(lambda of: one(*of), data)  # noqa: E731
        judges = {name: errors_of_layer(layer) for name, layer in COMPARED.items()}
        programs = {name: jax.jit(functools.partial(every, one)) for name, one in judges.items()}

        def errors(place: tuple[int, str, int]) -> dict[str, Any]:
            pieces, name, rows = place
            keys = jax.random.split(of_layers, self.sequences)
            data = jax.vmap(lambda key: self.draw(key, pieces, rows))(keys)
            found, _ = programs[name](data)
            return {"pieces": pieces, "layer": name, "rows": rows, "errors": np.asarray(found)}

        k, v, q, _ = self.draw(key, 1, self.timed)
        calls = {}
        for name, layer in COMPARED.items():
            first = {of: jnp.asarray(values[0]) for of, values in layer.scalars.items()}
            given = first, jnp.stack([q, q]), k, v
            calls[name] = functools.partial(jax.jit(layer.predict), *given)
        seconds = medians(interleaved(calls, self.repeats).seconds)
        rows = {words: self.rows_at_equal_time(words, seconds) for words in OF_RESIDUALS}
        sizes_of = [(name, self.rows) for name in COMPARED]
        sizes_of += [of for parents in rows.values() for of in parents.items()]
        places = [(pieces, *of) for pieces in self.pieces for of in dict.fromkeys(sizes_of)]
        words = "{layer}, {pieces} pieces, {rows} rows".format_map
        layers = monitor.collect("layers", places, errors, words)
        probes, tests = [], jax.random.split(of_tests, 5 * self.sequences)
        for pieces, keys in itertools.product(sorted(set(self.pieces)), KEYS):
            draw = functools.partial(self.draw, pieces=pieces, rows=self.context, keys=keys)
            name, training = f"{_words(pieces)}, keys {keys}", sizes(self) | {"key": of_training}
            found = compare_probes(draw, self.dim, training, tests, monitor, name)
            probes.append({"name": name, "keys": keys} | found)
        return {"layers": layers, "seconds": seconds, "rows": rows, "probes": probes}

    def rows_at_equal_time(self, words: str, seconds: dict[str, float]) -> dict[str, int]:
        """How many rows each parent takes in, in the time in which both take in `rows`.

        The time of softmax is quadratic in the rows, that of a recurrence linear.
        """
        name = OF_RESIDUALS[words]
        share = seconds[name] / seconds["softmax"] * self.timed / self.rows  # at so many rows
        more = {"softmax": (1 + share) ** 0.5, name: 1 + 1 / share}
        return {parent: round(self.rows * by) for parent, by in more.items()}

    def report(self, results: dict[str, Any], run: Run) -> None:
        place = itemgetter("layer", "pieces", "rows")
        errors = {place(row): row["errors"] for row in results["layers"]}
        rows = [
            self.compared(errors, pieces, results["rows"]) for pieces in sorted(set(self.pieces))
        ]
        table = [
            {"layer": name, "seconds": results["seconds"][name]}
            | {f"{row['name']}": row["errors"][name] for row in rows}
            | {f"{row['name']}, equal time": row["at_equal_time"].get(name) for row in rows}
            for name in COMPARED
        ]
        words = f"Squared errors; seconds of {self.timed} rows; error at equal time, relative "
        run.table_of(f"{words}to the better parent", table)
        probes = []
        for found in results["probes"]:
            of = found["errors"]
            over = {name: mean_of(of[name] - of[PLAIN]) for name in of}
            means = {name: float(values.mean()) for name, values in of.items()}
            row = {"name": found["name"], "keys": found["keys"], "errors": means}
            row |= {"over order 0": over, "above exact": mean_of(of[LEARNED] - of[CHOSEN])}
            probes.append(row | {"cosine": mean_of(found["cosine"])})
        columns = [{"probe": name} | {row["name"]: row["errors"][name] for row in probes}
                   for name in probes[0]["errors"]]  # fmt: skip
        run.table_of("Squared errors of probes", columns)
        predictions = judge_and_print(run, claims(), [*rows, *probes], itemgetter("name"))
        draw_errors(run, rows)
        found = {"rows": rows, "probes": probes, "seconds": results["seconds"]}
        found["rows_at_equal_time"] = results["rows"]
        listed = list(ledger_rows(rows, probes, self.sequences))
        run.summary(found | {"predictions": predictions, "claims": listed})

    def compared(
        self, errors: dict[Any, np.ndarray], pieces: int, more_rows: dict[str, dict[str, int]]
    ) -> dict[str, Any]:
        """The mean errors of one number of pieces, and how much each layer of residuals is above
        the better of its parents, at equal rows and at equal time.

        `errors`: by layer, pieces and rows; `more_rows`: of both parents of each layer.
        """
        of = {name: errors[name, pieces, self.rows] for name in COMPARED}

        def gain(words: str, rows: dict[str, int]) -> Any:
            parent = min((errors[name, pieces, rows[name]] for name in rows), key=np.mean)
            return mean_of(of[words] / parent.mean() - parent / parent.mean())

        same = {words: dict.fromkeys(rows, self.rows) for words, rows in more_rows.items()}
        at_equal_rows, at_equal_time = (
            {words: gain(words, rows) for words, rows in rows_of.items()}
            for rows_of in (same, more_rows)
        )
        means = {name: float(values.mean()) for name, values in of.items()}
        widths = {name: float(half_width(values)) for name, values in of.items()}
        row = {"name": _words(pieces), "pieces": pieces, "errors": means, "widths": widths}
        return row | {"over_parents": at_equal_rows, "at_equal_time": at_equal_time}


def _words(pieces: int) -> str:
    return f"{pieces} piece{'s' * (pieces > 1)}"


def ledger_rows(
    rows: list[dict[str, Any]], probes: list[dict[str, Any]], sequences: int
) -> Iterator[Claim]:
    """What can be said of the question of one paper, and of the probe of the other."""

    def claim(words: str, source: str, one: Any, number: int, control: tuple[str, float]) -> Claim:
        """The claim that a difference is below 0, and that of the control is not."""
        mean, low, high = ends(one)
        held = verdict(high < 0, control[1] > -0.02)
        return Claim(words, source, None, mean, low, high, number, *control, held)

    fitted = f"softmax of {FITTING}'s residuals"
    control = f"{fitted}, {rows[0]['name']}, which it fits", rows[0]["over_parents"][fitted]["mean"]
    for at, when in {"equal rows": "over_parents", "equal time": "at_equal_time"}.items():
        for words, row in itertools.product(OF_RESIDUALS, rows):
            if (words, row) != (fitted, rows[0]):  # the control
                asked = f"{row['name']}, {at}: {words} has less error than both parents"
                asked, one = f"{asked}; relative difference", row[when][words]
                yield claim(asked, "asked in arXiv 2510.01450", one, sequences, control)
    for row in probes:
        one, turned = (row["over order 0"][name] for name in (LEARNED, TURNED))
        words = f"{row['name']}: a learned probe lowers the squared error of order 0"
        control = "its sign turned, it does not", turned["mean"]
        yield claim(words, "arXiv 2605.29157", one, 5 * sequences, control)


def claims() -> Claims:
    """What was predicted before the first run."""
    has_pieces = lambda row: row.get("pieces", 1) > 1  # noqa: E731
    is_probe = lambda row, *keys: row.get("keys") in (keys or KEYS)  # noqa: E731
    return {
        "one piece: of a recurrence that fits it (Mesa), residuals have nothing to give": where(
            lambda row: row.get("pieces") == 1,
            lambda row: row["over_parents"][f"softmax of {FITTING}'s residuals"]["mean"] > -0.02,
        ),
        "several pieces: softmax of residuals has less error than both parents": where(
            has_pieces,
            lambda row: all(one["mean"] < 0 for one in row["over_parents"].values()),
        ),
        "several pieces: order 1 has less error than every layer of residuals": where(
            has_pieces,
            lambda row: (
                row["errors"]["order 1"] < min(row["errors"][name] for name in OF_RESIDUALS)
            ),
        ),
        "at equal time the better parent, which takes in more rows, has less error": where(
            lambda row: "at_equal_time" in row,
            lambda row: all(one["mean"] >= 0 for one in row["at_equal_time"].values()),
        ),
        "a learned probe gives half of what the exact one gives, or more": where(
            is_probe,
            lambda row: (
                row["over order 0"][LEARNED]["mean"] < 0.5 * row["over order 0"][CHOSEN]["mean"]
            ),
        ),
        "keys alike: the learned probe points where the exact one does, cosine above 0.9": where(
            lambda row: is_probe(row, KEYS[0]),
            lambda row: row["cosine"]["mean"] > 0.9,
        ),
        "keys of their own spread: it does not, and the exact one has less error": where(
            lambda row: is_probe(row, KEYS[1]),
            lambda row: row["cosine"]["mean"] < 0.9 and row["above exact"]["mean"] > 0,
        ),
    }


def draw_errors(run: Run, rows: list[dict[str, Any]]) -> None:
    """The error of each layer, by the number of pieces."""
    figure, ax = subplots(figsize=(6.8, 4.2))
    means, widths = (
        {row["name"]: [row[part][name] for name in COMPARED] for row in rows}
        for part in ("errors", "widths")
    )
    draw_dots(ax, list(COMPARED), means, widths)
    last = rows[-1]
    gain = min(one["mean"] for one in last["over_parents"].values())
    ax.set(xscale="log", xlabel="squared error")
    words = f"{last['name']}: softmax of residuals, against the better parent: {gain:+.0%}"
    ax.set_title(words, loc="right")
    ax.legend()
    run.figure("residual_attention", figure)
