"""Two layers of attention learn to copy: a previous-token head and an induction head appear."""

from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray
from pydantic import Field, model_validator

import attnkernel as ak

from ..config import Positive
from ..reports import draw_heat_maps, subplots
from ..runs import NO_MONITOR, Monitor, Run
from .study import Keys, Study
from .training import sizes, train


class AttentionOnly(eqx.Module):
    """Embedding, layers of causal attention added to a stream, and a linear read-out."""

    embedding: eqx.nn.Embedding
    layers: list[ak.MultiheadAttention]
    norms: list[eqx.nn.LayerNorm]
    readout: eqx.nn.Linear

    def __init__(self, vocabulary: int, size: int, heads: int, layers: int, *, key: Array):
        embedding_key, readout_key, *layer_keys = jax.random.split(key, layers + 2)
        self.embedding = eqx.nn.Embedding(vocabulary, size, key=embedding_key)
        rotary = ak.Rotary(base=1000.0)
        self.layers = [
            ak.MultiheadAttention(heads, size, prior=ak.Causal(), rotary=rotary, key=layer_key)
            for layer_key in layer_keys
        ]
        self.norms = [eqx.nn.LayerNorm(size) for _ in range(layers + 1)]
        self.readout = eqx.nn.Linear(size, vocabulary, use_bias=False, key=readout_key)

    def streams(self, tokens: Int[Array, " rows"]) -> list[Float[Array, "rows size"]]:
        """The input of each layer, and that of the read-out."""
        x = jax.vmap(self.embedding)(tokens)
        found = []
        for layer, norm in zip(self.layers, self.norms[:-1], strict=True):
            found.append(jax.vmap(norm)(x))
            x = x + layer(found[-1], found[-1], found[-1])
        return [*found, jax.vmap(self.norms[-1])(x)]

    def __call__(self, tokens: Int[Array, " rows"]) -> Float[Array, "rows vocabulary"]:
        """Logits of the next token."""
        return jax.vmap(self.readout)(self.streams(tokens)[-1])

    def weights(self, tokens: Int[Array, " rows"]) -> Float[Array, "layers heads rows rows"]:
        """The attention weights of every head."""
        read = self.streams(tokens)
        return jnp.stack(
            [layer.weights(x, x) for layer, x in zip(self.layers, read[:-1], strict=True)]
        )


# losses of the training, accuracies, the weights of every head for one sequence, and its period
Results = tuple[np.ndarray, dict[str, Any], Array, Array]


class Induction(Study):
    """Random sequences that repeat, each with a period of its own: what follows is to be copied."""

    study: Literal["induction"]
    vocabulary: int = Field(default=64, ge=4, le=4096)
    rows: int = Field(default=64, ge=8, le=1024)
    shortest: int = Field(default=16, ge=2)
    longest: int = Field(default=32, ge=2)
    size: int = Field(default=64, ge=4, le=1024)
    heads: int = Field(default=4, ge=1, le=32)
    layers: int = Field(default=2, ge=1, le=8)
    batch: int = Field(default=64, ge=1, le=4096)
    steps: int = Field(default=2000, ge=2)
    learning_rate: Positive = 3e-3

    @model_validator(mode="after")
    def _require_periods_fit(self) -> "Induction":
        """Raises `ValueError` unless shortest ≤ longest ≤ min(vocabulary, rows / 2)."""
        if not self.shortest <= self.longest <= min(self.vocabulary, self.rows // 2):
            raise ValueError(
                "expected shortest ≤ longest ≤ vocabulary and rows/2, so that tokens of a period "
                f"differ and it repeats; got {self.shortest}, {self.longest}, {self.vocabulary}, "
                f"{self.rows}"
            )
        return self

    def draw(self, key: Array) -> tuple[Int[Array, " rows"], Int[Array, ""]]:
        """A sequence of tokens without a repeat, over and over; and its period."""
        tokens_key, period_key = jax.random.split(key)
        tokens = jax.random.permutation(tokens_key, self.vocabulary)
        period = jax.random.randint(period_key, (), self.shortest, self.longest + 1)
        return tokens[jnp.arange(self.rows) % period], period

    def loss(self, model: AttentionOnly, key: Array) -> Array:
        tokens, _ = self.draw(key)
        logits = model(tokens)[:-1]
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, tokens[1:]))

    distributed: ClassVar[bool] = True

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        keys = Keys(key)
        model = AttentionOnly(self.vocabulary, self.size, self.heads, self.layers, key=keys.next())
        model, losses = train(monitor, model, self.loss, **sizes(self), key=keys.next())
        measured = self.measure(model, jax.random.split(keys.next(), 256))
        tokens, period = self.draw(keys.next())
        return losses, measured, model.weights(tokens), period

    def report(self, results: Results, run: Run) -> None:
        losses, measured, *shown = results
        self.draw_losses(run, losses, measured["accuracy"])
        self.draw_heads(run, measured, *map(np.asarray, shown))
        accuracies = {
            "two layers of attention": measured["accuracy"],
            "before the first repeat": measured["accuracy_first"],
            "bigrams of 10 000 training sequences": measured["bigrams"],
            "chance": 1 / self.vocabulary,
        }
        run.table_of("Accuracy of the next token, where the sequence repeats", [accuracies])
        heads = [
            {"layer": layer + 1, "head": head + 1}
            | {name: measured[name][layer][head] for name in ("previous_token", "induction")}
            for layer, head in np.ndindex(self.layers, self.heads)
        ]
        run.table_of("Mean weight on the token before, and on what followed last time", heads)
        run.summary({"last_loss": float(losses[-100:].mean()), **measured})

    def measure(self, model: AttentionOnly, keys: Array) -> dict[str, Any]:
        """Accuracies, and how much weight each head puts where."""
        place = jnp.arange(self.rows)

        @eqx.filter_jit
        def one(key: Array) -> tuple[Array, ...]:
            tokens, period = self.draw(key)
            right = jnp.argmax(model(tokens)[:-1], axis=1) == tokens[1:]
            repeats = place[1:] >= period
            weights = model.weights(tokens)
            before = jnp.mean(weights[:, :, place[1:], place[:-1]], axis=2)
            followed = jnp.clip(place - period + 1, 0)
            hits = weights[:, :, place, followed]
            after = jnp.mean(hits, axis=2, where=(place >= period)[None, None, :])
            accuracies = (jnp.mean(right, where=here) for here in (repeats, ~repeats))
            return (*accuracies, before, after)

        found = jax.lax.map(one, keys)
        accuracy, first, before, after = (np.asarray(jnp.mean(part, axis=0)) for part in found)
        return {
            "accuracy": float(accuracy),
            "accuracy_first": float(first),
            "bigrams": self.bigrams(keys),
            "previous_token": before,
            "induction": after,
        }

    def bigrams(self, keys: Array) -> float:
        """Accuracy of what most often follows a token in other sequences, where they repeat."""
        many = jax.random.split(jax.random.fold_in(keys[0], 1), 10_000)
        tokens, _ = jax.lax.map(self.draw, many)
        pairs = np.asarray(tokens)
        counts = np.zeros((self.vocabulary, self.vocabulary))
        np.add.at(counts, (pairs[:, :-1], pairs[:, 1:]), 1.0)
        tested, periods = jax.lax.map(self.draw, keys)
        guess = counts.argmax(axis=1)[np.asarray(tested)[:, :-1]]
        repeats = np.arange(1, self.rows)[None, :] >= np.asarray(periods)[:, None]
        return float((guess == np.asarray(tested)[:, 1:])[repeats].mean())

    def draw_losses(self, run: Run, losses: np.ndarray, accuracy: float) -> None:
        figure, ax = subplots(figsize=(5.0, 2.8))
        ax.plot(np.arange(1, len(losses) + 1), losses, color=ak.plot.BLUE)
        dotted = {"color": ak.plot.ink(), "linestyle": ":"}
        ax.axhline(np.log(self.vocabulary), **dotted, label="log of vocabulary")
        ax.set(xlabel="step", ylabel="cross-entropy of the next token, nats", ylim=(0.0, None))
        ax.set_title(f"{accuracy:.0%} right where the sequence repeats")
        ax.legend()
        run.figure("loss", figure)

    def draw_heads(self, run: Run, measured: Any, weights: np.ndarray, period: np.ndarray) -> None:
        """The head of the first layer that looks back most, and that of the last that induces."""
        back, copied = measured["previous_token"][0], measured["induction"][-1]
        before, after = int(np.argmax(back)), int(np.argmax(copied))
        first = f"layer 1, head {before + 1}: {back[before]:.0%} on the token before"
        last = f"layer {self.layers}, head {after + 1}: {copied[after]:.0%} on what followed"
        chosen = {first: weights[0, before], last: weights[-1, after]}
        words: Any = {"x": "position of the key", "y": "position of the query", "size": 3.6}
        figure = draw_heat_maps(chosen, 2, "weight (dotted: first repeat)", **words)
        look = {"color": ak.plot.ORANGE, "linestyle": ":", "linewidth": 1.0}
        for ax in figure.axes[:2]:
            ax.axvline(float(period) - 0.5, **look)
            ax.axhline(float(period) - 0.5, **look)
        run.figure("heads", figure)
