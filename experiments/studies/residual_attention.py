r"""Softmax of what a recurrence leaves, and a learned probe in place of that of local lines.

$$ \mathrm{out}_i = \sum_j a_{ij} (v_j - W_j k_j) + W_i q_i, \qquad
   \mathrm{out}_i = \bar v_i - \mathrm{Cov}_i(v, k)\, \rho_i $$

W is the state of a recurrence, which Zuo et al. (arXiv 2510.01450, 2025) name as future work. The
mean $\bar v_i$ and the covariance are those of the weights $a_{ij}$. A local line has the probe
$\rho_i = (\mathrm{Cov}_i(k, k) + \lambda I)^{-1} (\bar k_i - q_i)$; Parallax (Zuo et al., arXiv
2605.29157, 2026) learns $\rho_i = R\, x_i$ over many sequences.

Labels are piecewise linear in the keys: $f(k) = M_{s(k)}^\top k$, s the anchor with the largest
product with k. Of one piece, f is linear. The layers have keys of length 1. At equal time each
parent takes in more rows: as many as it can while softmax of residuals takes in its own.
"""

import functools
import itertools
from collections.abc import Iterator
from operator import itemgetter
from typing import Annotated, Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..benchmarks.driver import interleaved, medians
from ..config import NonEmpty, Positive
from ..reports import draw_dots, subplots
from ..reports.predictions import Claims, half_width, judge_and_print, mean_of
from ..runs import NO_MONITOR, Monitor, Run
from .claims import Claim, verdict
from .sequence_estimators import LAYERS, errors_of_layer, with_residuals
from .study import Study
from .training import sizes, train

FITTING = "Mesa, forgetting"  # it fits linear functions
RECURRENCES = ("decay", "delta", "gated delta", FITTING)
PARENTS = ("softmax", *RECURRENCES, "order 1")
OF_RESIDUALS = {f"softmax of {name}'s residuals": name for name in RECURRENCES}
COMPARED = {name: LAYERS[name] for name in PARENTS} | {
    words: with_residuals(LAYERS[name]) for words, name in OF_RESIDUALS.items()
}
PROBES = PLAIN, LEARNED, EXACT = "order 0", "learned probe", "exact probe, learned ridge"
CHOSEN, TURNED = "exact probe, ridge by leave-one-out", "learned probe, its sign turned"
RIDGES = np.geomspace(1e-3, 10.0, 9)
MOST_ROWS = 32  # of a parent at equal time, for one of the residuals
UNIT = "of length 1"
KEYS = ("alike", "of their own spread")  # of all sequences, or of each


class Rows(NamedTuple):
    """Keys, labels, queries and the function there."""

    k: Float[Array, "rows dim"]
    v: Float[Array, "rows dim_v"]
    q: Float[Array, "rows dim"]
    truth: Float[Array, "rows dim_v"]


class Probed(eqx.Module):
    """Attention to a context whose values are corrected by a probe of Cov(v, k)."""

    log_lengthscale: Array
    log_ridge: Array
    projection: Float[Array, "dim dim"]  # R
    kind: str = eqx.field(static=True)

    def __init__(self, kind: str, dim: int):
        self.kind, self.projection = kind, jnp.zeros((dim, dim))
        self.log_lengthscale, self.log_ridge = jnp.zeros(()), jnp.log(jnp.asarray(0.1))

    def __call__(self, q: Array, k: Array, v: Array, prior: Any = None) -> Array:
        """The value at each query; 0 if a prior leaves it no key."""
        mean, products, _, probe = self.moments(q, k, v, prior)
        return mean - jnp.einsum("ido,id->io", products, probe)

    def moments(
        self, q: Array, k: Array, v: Array, prior: Any = None
    ) -> tuple[Array, Array, Array, Array]:
        """The mean of v, Cov(k, v), the exact probe and that of this model, at each query."""
        kernel = ak.Gaussian(jnp.exp(self.log_lengthscale))
        weights = ak.attention_weights(q, k, kernel=kernel, prior=prior)
        centred = k[None] - (weights @ k)[:, None]
        products = jnp.einsum("ij,ijd,jo->ido", weights, centred, v)
        spread = jnp.einsum("ij,ijd,ije->ide", weights, centred, centred)
        spread = spread + jnp.exp(self.log_ridge) * jnp.eye(k.shape[1])[None]
        exact = jnp.linalg.solve(spread, (weights @ k - q)[..., None])[..., 0]
        learned = q @ self.projection.T
        probe = {PLAIN: jnp.zeros_like(q), LEARNED: learned, EXACT: exact}[self.kind]
        return weights @ v, products, exact, probe


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

    def draw(self, key: Array, pieces: int, rows: int, keys: str = UNIT) -> Rows:
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
        return Rows(points[:rows], v, points[rows:], truth[rows:])

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
        probes = [
            {"name": f"{_words(pieces)}, keys {keys}", "keys": keys}
            | self.compare_probes(monitor, pieces, keys, of_training, of_tests)
            for pieces, keys in itertools.product(sorted(set(self.pieces)), KEYS)
        ]
        return {"layers": layers, "seconds": seconds, "rows": rows, "probes": probes}

    def rows_at_equal_time(self, words: str, seconds: dict[str, float]) -> dict[str, int]:
        """How many rows both parents take in while softmax of residuals takes in `rows`.

        The time of softmax is quadratic in the rows, that of a recurrence linear.
        """
        parents = {"softmax": 0.5, OF_RESIDUALS[words]: 1.0}
        more = {name: (seconds[words] / seconds[name]) ** power for name, power in parents.items()}
        return {name: round(self.rows * min(max(1.0, by), MOST_ROWS)) for name, by in more.items()}

    def compare_probes(
        self, monitor: Monitor, pieces: int, keys: str, of_training: Array, of_tests: Array
    ) -> dict[str, Any]:
        """Errors of models that were trained over sequences, and how near both probes are."""

        def loss(model: Probed, key: Array) -> Array:
            k, v, q, truth = self.draw(key, pieces, self.context, keys)
            return jnp.mean((model(q, k, v) - truth) ** 2)

        models = {}
        for kind in PROBES:
            given = {
                "key": of_training,
                "name": f"{kind}, {_words(pieces)}, keys {keys}",
                **sizes(self),
            }
            models[kind], _ = train(monitor, Probed(kind, self.dim), loss, **given)
        models[TURNED] = eqx.tree_at(
            lambda m: m.projection, models[LEARNED], replace_fn=jnp.negative
        )

        def judge(key: Array) -> tuple[dict[str, Array], Array]:
            k, v, q, truth = self.draw(key, pieces, self.context, keys)
            out = {name: model(q, k, v) for name, model in models.items()}

            def with_ridge(ridge: Array) -> tuple[Array, Array]:
                model = eqx.tree_at(lambda m: m.log_ridge, models[EXACT], jnp.log(ridge))
                left_out = model(k, k, v, ak.priors.ExcludeSelf())
                return jnp.mean((left_out - v) ** 2), model(q, k, v)

            criteria, values = jax.lax.map(with_ridge, jnp.asarray(RIDGES, k.dtype))
            out[CHOSEN] = values[jnp.argmin(criteria)]
            _, _, exact, learned = models[LEARNED].moments(q, k, v)
            norms = jnp.linalg.norm(exact, axis=1) * jnp.linalg.norm(learned, axis=1)
            cosine = jnp.mean(jnp.sum(exact * learned, axis=1) / norms)
            return {name: jnp.mean((of - truth) ** 2) for name, of in out.items()}, cosine

        tests = jax.random.split(of_tests, 5 * self.sequences)
        found, cosine = jax.jit(lambda keys: jax.lax.map(judge, keys))(tests)
        return {"errors": jax.tree.map(np.asarray, found), "cosine": np.asarray(cosine)}

    def report(self, results: dict[str, Any], run: Run) -> None:
        at = {
            (row["layer"], row["pieces"], row["rows"]): row["errors"] for row in results["layers"]
        }
        rows = [self.compared(at, pieces, results["rows"]) for pieces in sorted(set(self.pieces))]
        table = [
            {"layer": name, "seconds": results["seconds"][name]}
            | {f"{row['name']}": row["errors"][name] for row in rows}
            for name in COMPARED
        ]
        run.table_of(f"Squared errors; seconds of {self.timed} rows", table)
        equal = [
            {"layer": words, "rows of parents": list(results["rows"][words].values())}
            | {f"{row['name']}": row["at_equal_time"][words]["mean"] for row in rows}
            for words in OF_RESIDUALS
        ]
        run.table_of("At equal time: errors above the better parent, in shares of its", equal)
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
        self,
        errors: dict[tuple[str, int, int], np.ndarray],
        pieces: int,
        more_rows: dict[str, dict[str, int]],
    ) -> dict[str, Any]:
        """The mean errors of one number of pieces, and how much each layer of residuals is above
        the better of its parents, at equal rows and at equal time."""
        of = {name: errors[name, pieces, self.rows] for name in COMPARED}

        def gain(words: str, rows: dict[str, int]) -> Any:
            parent = min((errors[name, pieces, rows[name]] for name in rows), key=np.mean)
            return mean_of(of[words] / parent.mean() - parent / parent.mean())

        equal = {words: gain(words, dict.fromkeys(rows, self.rows))
                 for words, rows in more_rows.items()}  # fmt: skip
        at_equal_time = {words: gain(words, rows) for words, rows in more_rows.items()}
        means = {name: float(values.mean()) for name, values in of.items()}
        widths = {name: float(half_width(values)) for name, values in of.items()}
        row = {"name": _words(pieces), "pieces": pieces, "errors": means, "widths": widths}
        return row | {"over_parents": equal, "at_equal_time": at_equal_time}


def _words(pieces: int) -> str:
    return f"{pieces} piece{'s' * (pieces > 1)}"


def ledger_rows(
    rows: list[dict[str, Any]], probes: list[dict[str, Any]], sequences: int
) -> Iterator[Claim]:
    """What can be said of the question of one paper, and of the probe of the other."""

    def claim(words: str, source: str, one: Any, number: int, control: tuple[str, float]) -> Claim:
        """The claim that a difference is below 0, and that of the control is not."""
        ends = one["mean"] - one["half_width"], one["mean"] + one["half_width"]
        held = verdict(ends[1] < 0, control[1] > -0.02)
        return Claim(words, source, None, one["mean"], *ends, number, *control, held)

    linear, *curved = rows
    nothing = linear["over_parents"][f"softmax of {FITTING}'s residuals"]["mean"]
    control = f"residuals of {FITTING} at {linear['name']}, which it fits, gain nothing", nothing
    for words, row in itertools.product(OF_RESIDUALS, curved):
        asked = f"{row['name']}: {words}, error above that of the better parent in shares of it"
        one = row["over_parents"][words]
        yield claim(asked, "asked in arXiv 2510.01450", one, sequences, control)
    for words, row in itertools.product(OF_RESIDUALS, rows):
        asked = f"{row['name']}, at equal time: {words}, error above that of the better parent"
        one = row["at_equal_time"][words]
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
        "one piece: of a recurrence that fits it (Mesa), residuals have nothing to give": (
            lambda row: row.get("pieces") == 1,
            lambda row: row["over_parents"][f"softmax of {FITTING}'s residuals"]["mean"] > -0.02,
        ),
        "several pieces: softmax of residuals has less error than both parents": (
            has_pieces,
            lambda row: all(one["mean"] < 0 for one in row["over_parents"].values()),
        ),
        "several pieces: order 1 has less error than every layer of residuals": (
            has_pieces,
            lambda row: (
                row["errors"]["order 1"] < min(row["errors"][name] for name in OF_RESIDUALS)
            ),
        ),
        "at equal time the better parent, which takes in more rows, has less error": (
            lambda row: "at_equal_time" in row,
            lambda row: all(one["mean"] >= 0 for one in row["at_equal_time"].values()),
        ),
        "a learned probe gives half of what the exact one gives, or more": (
            is_probe,
            lambda row: (
                row["over order 0"][LEARNED]["mean"] < 0.5 * row["over order 0"][CHOSEN]["mean"]
            ),
        ),
        "keys alike: the learned probe points where the exact one does, cosine above 0.9": (
            lambda row: is_probe(row, KEYS[0]),
            lambda row: row["cosine"]["mean"] > 0.9,
        ),
        "keys of their own spread: it does not, and the exact one has less error": (
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
