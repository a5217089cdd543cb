"""Multi-query associative recall: pairs of keys and values, then keys whose values are asked for.

A sequence is k₁ v₁ … kₙ vₙ, then the n keys in another order; the label of a query is its value.
One layer with short convolutions suffices: at the row of a value, its key is one row back.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray
from pydantic import Field, model_validator

import attnkernel as ak

from ..config import NonEmpty, Positive
from ..reports import looks_of, subplots, ticks_at
from ..reports.predictions import half_width
from ..runs import NO_MONITOR, Monitor, Run
from .study import Study
from .training import sizes, train

CONV_WIDTH = 2  # rows of a short convolution: the row itself and the one before
WINDOW = 16  # rows of a window
RIDGE = 1e-2  # of order 1, whose weights sum to 1


class Attention(eqx.Module):
    """Causal attention of one head, with short convolutions of its queries, keys and values:
    softmax, a window, or local lines.
    """

    attention: ak.MultiheadAttention
    convolutions: list[ak.nn.ShortConvolution]

    def __init__(self, size: int, qk_size: int, *, prior: ak.priors.Prior, order: int, key: Array):
        of_attention, of_convolutions = jax.random.split(key)
        options: dict[str, Any] = {"order": order, "ridge": RIDGE if order else 0.0}
        options |= {"prior": prior, "method": ak.methods.Dense(), "key": of_attention}
        self.attention = ak.MultiheadAttention(1, size, qk_size=qk_size, **options)
        keys = jax.random.split(of_convolutions, 3)
        self.convolutions = [
            ak.nn.ShortConvolution(columns, CONV_WIDTH, silu=False, key=one)
            for columns, one in zip((qk_size, qk_size, size), keys, strict=True)
        ]

    def __call__(self, x: Float[Array, "rows size"]) -> Float[Array, "rows size"]:
        return self.attention(x, x, x, process_heads=self.convolve)

    def convolve(self, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        """Convolves queries, keys and values of shape (rows, 1, size)."""
        pairs = zip(self.convolutions, (q, k, v), strict=True)
        q, k, v = (convolution(part[:, 0])[:, None] for convolution, part in pairs)
        return q, k, v


class OfResiduals(Attention):
    r"""Softmax of what a delta rule leaves, $\sum_j a_{ij} (v_j - W_j k_j) + W_i q_i$.

    Both have the same queries, keys and values; for the rule, queries and keys of length 1.
    """

    rate: eqx.nn.Linear

    def __init__(self, size: int, qk_size: int, *, key: Array):
        super().__init__(size, qk_size, prior=ak.Causal(), order=0, key=key)
        self.rate = eqx.nn.Linear(size, 1, use_bias=False, key=jax.random.fold_in(key, 1))

    def __call__(self, x: Float[Array, "rows size"]) -> Float[Array, "rows size"]:
        at_queries = []

        def leave(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
            q, k, v = self.convolve(q, k, v)
            unit = jnp.stack([k[:, 0], q[:, 0]])
            unit = unit * jax.lax.rsqrt(jnp.sum(unit**2, axis=-1, keepdims=True) + 1e-6)
            options = {"estimator": DELTA(), "rate": jax.nn.sigmoid(jax.vmap(self.rate)(x)).T}
            fitted, _ = ak.recurrent.regress(unit, unit[0], v[:, 0], **options)
            at_queries.append(fitted[1])
            return q, k, v - fitted[0][:, None]

        out = self.attention(x, x, x, process_heads=leave)
        return out + jax.vmap(self.attention.output_proj)(at_queries[0])


def recurrent(
    make: Callable[[], Any], max_rate: Any, decay: Any, size: int, qk_size: int, *, key: Array
) -> ak.nn.RecurrentAttention:
    """A layer of one head, whose queries and keys have length 1.

    `make`: of the estimator, which is made with the layer, because an import makes no array.
    """
    sizes = {"qk_size": qk_size, "vo_size": size, "conv_width": CONV_WIDTH, "conv_silu": False}
    options = {"max_rate": max_rate, "decay": decay, "qk_norm": True, "output_norm": False}
    return ak.nn.RecurrentAttention(1, size, estimator=make(), **sizes, **options, key=key)


LINEAR, DELTA = ak.recurrent.LinearAttention, ak.recurrent.DeltaRule
MESA = functools.partial(ak.recurrent.RecursiveLeastSquares, 1.0)
LAYERS: dict[str, Callable[..., Any]] = {
    "softmax": functools.partial(Attention, prior=ak.Causal(), order=0),
    "window": functools.partial(Attention, prior=ak.Window(WINDOW - 1, 0), order=0),
    "order 1": functools.partial(Attention, prior=ak.Causal(), order=1),
    "linear": functools.partial(recurrent, LINEAR, None, None),
    "decay": functools.partial(recurrent, LINEAR, None, "row"),
    "delta": functools.partial(recurrent, DELTA, 1.0, None),
    "gated delta": functools.partial(recurrent, DELTA, 1.0, "row"),
    "Mesa": functools.partial(recurrent, MESA, 1.0, "row"),
    "of residuals": OfResiduals,
}
LayerName: Any = Literal[tuple(LAYERS)]


class OneLayer(eqx.Module):
    """Embedding, one layer added to the stream, and a linear read-out of values."""

    embedding: eqx.nn.Embedding
    layer: Any
    norms: list[eqx.nn.RMSNorm]
    readout: eqx.nn.Linear

    def __init__(self, study: "AssociativeRecall", layer: str, *, key: Array):
        of_embedding, of_layer, of_readout = jax.random.split(key, 3)
        size, tokens = study.size, study.key_tokens + study.value_tokens
        self.embedding = eqx.nn.Embedding(tokens, size, key=of_embedding)
        self.layer = LAYERS[layer](size, study.qk_size, key=of_layer)
        self.norms = [eqx.nn.RMSNorm(size, use_bias=False) for _ in range(3)]
        self.readout = eqx.nn.Linear(size, study.value_tokens, use_bias=False, key=of_readout)

    def __call__(self, tokens: Int[Array, " rows"]) -> Float[Array, "rows values"]:
        """Logits of the value at each row."""
        x = jax.vmap(self.embedding)(tokens)
        before, after, last = map(jax.vmap, self.norms)
        return jax.vmap(self.readout)(last(x + after(self.layer(before(x)))))


class AssociativeRecall(Study):
    """Layers with the same number of parameters learn to recall a growing number of pairs."""

    study: Literal["associative_recall"]
    layers: NonEmpty[LayerName] = list(LAYERS)  # pyright: ignore[reportInvalidTypeForm]
    pairs: NonEmpty[Annotated[int, Field(ge=1, le=256)]] = [4, 8, 16]
    key_tokens: int = Field(default=64, ge=2, le=4096)
    value_tokens: int = Field(default=64, ge=2, le=4096)
    size: int = Field(default=32, ge=4, le=1024)
    qk_size: int = Field(default=8, ge=2, le=1024)
    seeds: int = Field(default=5, ge=2, le=100)
    batch: int = Field(default=16, ge=1, le=4096)
    steps: int = Field(default=800, ge=2)
    learning_rate: Positive = 1e-2
    tested: int = Field(
        default=200,
        ge=1,
        le=10_000,
        description="new sequences for each number of pairs and each seed",
    )
    distributed: ClassVar[bool] = True

    @model_validator(mode="after")
    def _require_enough_keys(self) -> "AssociativeRecall":
        """Raises `ValueError` unless the keys of a sequence can differ."""
        if max(self.pairs) > self.key_tokens:
            raise ValueError(
                f"expected at most as many pairs as keys, so that the keys of a sequence differ; "
                f"got {max(self.pairs)} and {self.key_tokens}"
            )
        return self

    def draw(self, key: Array, pairs: Any) -> tuple[Array, Array, Array]:
        """A sequence of `pairs` pairs and as many queries: tokens, the value asked for at each row,
        and 1 for queries; rows after them are 0.
        """
        of_keys, of_values, of_order = jax.random.split(key, 3)
        most = max(self.pairs)
        stored = jax.random.permutation(of_keys, self.key_tokens)[:most]
        values = jax.random.randint(of_values, (most,), 0, self.value_tokens)
        # a random order of the first pairs, before those that are not there
        order = jnp.argsort(jax.random.uniform(of_order, (most,)) + (jnp.arange(most) >= pairs))
        at = jnp.arange(3 * most)
        pair = jnp.minimum(at // 2, most - 1)
        stored_at = jnp.where(at % 2, self.key_tokens + values[pair], stored[pair])
        query = order[jnp.clip(at - 2 * pairs, 0, most - 1)]
        asked = (at >= 2 * pairs) & (at < 3 * pairs)
        tokens = jnp.where(at < 2 * pairs, stored_at, stored[query])
        return tokens, values[query], asked.astype(float)

    def loss(self, models: OneLayer, key: Array) -> Array:
        """The mean over seeds of the cross-entropy of one sequence each."""

        def of_seed(model: OneLayer, key: Array) -> Array:
            of_pairs, of_sequence = jax.random.split(key)
            pairs = jax.random.choice(of_pairs, jnp.asarray(self.pairs))
            tokens, labels, asked = self.draw(of_sequence, pairs)
            losses = optax.softmax_cross_entropy_with_integer_labels(model(tokens), labels)
            return jnp.sum(losses * asked) / jnp.sum(asked)

        return jnp.mean(eqx.filter_vmap(of_seed)(models, jax.random.split(key, self.seeds)))

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> list[dict[str, Any]]:
        of_models, of_training, of_tests = jax.random.split(key, 3)  # the same for every layer
        found, of_seeds = [], jax.random.split(of_models, self.seeds)
        for name in self.layers:
            make = eqx.filter_vmap(lambda key, name=name: OneLayer(self, name, key=key))
            models = make(of_seeds)
            given = {"key": of_training, "name": name}
            models, losses = train(monitor, models, self.loss, **sizes(self), **given)
            parameters = optax.tree.size(eqx.filter(models, eqx.is_inexact_array)) // self.seeds
            row = {"layer": name, "parameters": parameters, "losses": losses}
            found.append(row | {"accuracy": self.accuracies(models, of_tests)})
        return found

    def accuracies(self, models: OneLayer, key: Array) -> Float[np.ndarray, "pairs seeds"]:
        """The share of queries answered with their value, for each number of pairs and seed."""

        @eqx.filter_jit
        @eqx.filter_vmap(in_axes=(eqx.if_array(0), None, None))
        def of_seeds(model: OneLayer, pairs: Array, keys: Array) -> Array:
            def one(key: Array) -> Array:
                tokens, labels, asked = self.draw(key, pairs)
                right = jnp.argmax(model(tokens), axis=1) == labels
                return jnp.sum(right * asked) / jnp.sum(asked)

            return jnp.mean(jax.lax.map(one, keys, batch_size=20))

        keys = jax.random.split(key, self.tested)
        return np.stack([of_seeds(models, jnp.asarray(pairs), keys) for pairs in self.pairs])

    def report(self, results: list[dict[str, Any]], run: Run) -> None:
        rows = []
        for found in results:
            accuracy, losses = found["accuracy"], found["losses"]
            row = {key: found[key] for key in ("layer", "parameters")}
            row |= {"accuracy": accuracy.mean(axis=1), "half_width": half_width(accuracy, axis=1)}
            rows.append(row | {"of_seeds": accuracy, "last_loss": losses[-50:].mean()})
        differences = list(paired_differences(rows, self.pairs))
        draw_accuracies(run, rows, self)
        title = f"Share of queries recalled of {', '.join(map(str, self.pairs))} pairs"
        columns = ("layer", "parameters", "accuracy", "half_width")
        run.table_of(f"{title}, {self.seeds} seeds, 95 % intervals", rows, columns)
        run.table_of("Paired differences of these shares", differences)
        found = {"pairs": self.pairs, "chance": 1 / self.value_tokens, "rows": rows}
        run.summary(found | {"differences": differences})


COMPARED = (
    ("softmax", "linear"),
    ("delta", "linear"),
    ("gated delta", "decay"),
    ("Mesa", "gated delta"),
    ("softmax", "Mesa"),
    ("order 1", "softmax"),
    ("of residuals", "softmax"),
    ("of residuals", "delta"),
)


def paired_differences(rows: list[dict[str, Any]], pairs: list[int]) -> Iterator[dict[str, Any]]:
    """Differences of the accuracy of layers, seed by seed, with half widths of 95 % intervals."""
    accuracy = {row["layer"]: np.asarray(row["of_seeds"], float) for row in rows}
    for first, second in COMPARED:
        if {first, second} <= accuracy.keys():
            for number, values in zip(pairs, accuracy[first] - accuracy[second], strict=True):
                found = {"difference": float(values.mean()), "half_width": half_width(values)}
                yield {"first": first, "second": second, "pairs": number, **found}


def draw_accuracies(run: Run, rows: list[dict[str, Any]], study: AssociativeRecall) -> None:
    """Accuracy against the number of pairs: attention left, recurrent layers right."""
    figure, axes = subplots(1, 2, sharey=True, figsize=(8.4, 3.4))
    is_attention = {"softmax", "window", "order 1", "of residuals"}
    titles = (
        "attention: all rows are kept",
        f"recurrent: a state of {study.qk_size} × {study.size}",
    )
    for ax, wanted, title in zip(axes, (True, False), titles, strict=True):
        here = [row for row in rows if (row["layer"] in is_attention) == wanted]
        looks = looks_of(row["layer"] for row in here)
        for row in here:
            look = {**looks[row["layer"]], "label": row["layer"], "capsize": 2, "markersize": 4}
            ax.errorbar(study.pairs, row["accuracy"], row["half_width"], **look)
        ax.axhline(1 / study.value_tokens, color=ak.plot.GREY, linewidth=0.8)
        ax.set(xscale="log", xlabel="pairs in the sequence", title=title, ylim=(-0.03, 1.05))
        ticks_at(ax.xaxis, study.pairs)
        if here:
            ax.legend(loc="lower left")
    axes[0].set_ylabel("share of queries recalled")
    run.figure("recall", figure)
