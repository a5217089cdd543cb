"""Heads over sentences: what a kernel of roles and a prior of positions make a token look at."""

from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from pydantic import Field, model_validator

import attnkernel as ak

from ..config import Part, Positive
from ..reports import heat_map, subplots
from ..runs import NO_MONITOR, Monitor, Run
from .study import Study

Results = list[dict[str, np.ndarray]]  # of each sentence, by head: weights
Role = Literal["determiner", "noun", "verb", "pronoun", "other"]
ROLES = ("determiner", "noun", "verb", "pronoun", "other")


class Sentence(Part):
    """Tokens, and the role of each."""

    tokens: list[str] = Field(min_length=2, max_length=40)
    roles: list[Role] = Field(min_length=2, max_length=40)

    @model_validator(mode="after")
    def _require_one_role_per_token(self) -> "Sentence":
        """Raises `ValueError` unless there is one role per token."""
        if len(self.tokens) != len(self.roles):
            raise ValueError(
                f"expected one role per token; got {len(self.roles)} roles and "
                f"{len(self.tokens)} tokens"
            )
        return self


class Sentences(Study):
    """Heads written by hand, not trained, of kernels and priors, on a few sentences."""

    study: Literal["sentence"]
    sentences: list[Sentence] = Field(min_length=1, max_length=6)
    contrast: Positive = Field(default=6.0, description="score of a pair that a head looks for")
    decay: Positive = Field(default=0.4, description="slope of the decay, per token")

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        return [{name: self.weigh(sentence, name) for name in HEADS} for sentence in self.sentences]

    def report(self, results: Results, run: Run) -> None:
        self.draw(run, results)
        rows, shown, pronoun = [], [], None
        for number, (sentence, heads) in enumerate(zip(self.sentences, results, strict=True)):
            for name, found in heads.items():
                for i, j in enumerate(np.argmax(found, axis=1).tolist()):
                    row = {"sentence": number, "head": name, "query": sentence.tokens[i]}
                    row |= {"key": sentence.tokens[j], "positions": [i, j]}
                    rows.append(row | {"weight": float(found[i, j])})
                    if sentence.roles[i] == ASKS.get(name):
                        shown.append(rows[-1])
                    if sentence.roles[i] == "pronoun":
                        pronoun = sentence.tokens, i, heads["pronoun to noun"][i]
        if pronoun:
            draw_pronoun(run, *pronoun)
        run.table_of(
            "What the heads, written by hand, look at most",
            shown,
            {"head": "{head}", "query": "{query}", "key": "{key}", "weight": "{weight:.2f}"},
        )
        run.summary({"sentences": [s.model_dump() for s in self.sentences], "largest": rows})

    def weigh(self, sentence: Sentence, head: str) -> np.ndarray:
        """Weights of a head: log K of two roles, times π of two positions, causal."""
        roles = jnp.eye(len(ROLES))[jnp.array([ROLES.index(role) for role in sentence.roles])]
        pairs = np.zeros((len(ROLES), len(ROLES)))
        for query, key in LOOKS.get(head, ()):
            pairs[ROLES.index(query), ROLES.index(key)] = self.contrast
        prior: ak.priors.Prior = ak.Causal() * ak.Alibi(self.decay)
        if head == "previous token":
            # −contrast from each token to itself, 0 to all others
            itself = jnp.where(jnp.eye(len(roles)) == 1, -self.contrast, 0.0)
            prior = ak.Window(1, 0) * ak.priors.BiasTable(itself)
        weights = ak.attention_weights(roles, roles, kernel=ak.kernels.Bilinear(pairs), prior=prior)
        return np.asarray(weights)

    def draw(self, run: Run, weights: Results) -> None:
        rows, columns = len(self.sentences), len(HEADS)
        size = (2.7 * columns + 0.8, 2.9 * rows)
        figure, axes = subplots(rows, columns, squeeze=False, figsize=size)
        for number, (sentence, heads) in enumerate(zip(self.sentences, weights, strict=True)):
            for ax, (name, found) in zip(axes[number], heads.items(), strict=True):
                heat_map(ax, name if number == 0 else "", found)
                names = [ak.plot.literal(token) for token in sentence.tokens]
                ax.set_xticks(range(len(names)), names, rotation=90, fontsize=6.5)
                ax.set_yticks(range(len(names)), names, fontsize=6.5)
            axes[number, 0].set_ylabel("query")
        for ax in axes[-1]:
            ax.set_xlabel("key")
        figure.align_ylabels(axes[:, 0])
        title = "Heads written by hand, not trained: a kernel of roles, a prior of positions"
        figure.suptitle(title)
        label = "weight (grey: not seen yet)"
        figure.colorbar(axes[0, 0].images[0], ax=axes, shrink=0.4, label=label)
        run.figure("sentence", figure)


def draw_pronoun(run: Run, tokens: list[str], place: int, of_it: np.ndarray) -> None:
    """Draws what the pronoun at this place of a sentence looks at."""
    figure, ax = subplots(figsize=(0.42 * len(tokens) + 1.4, 2.4))
    ax.bar(range(len(tokens)), of_it, color=ak.plot.BLUE)
    turned = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(range(len(tokens)), map(ak.plot.literal, tokens), **turned)
    ax.get_xticklabels()[place].set_fontweight("bold")
    most = int(np.argmax(of_it))
    word = ak.plot.literal(tokens[most])
    ax.set(xlabel="key (bold: the query)", ylabel=f"weight from “{tokens[place]}”")
    ax.set_title(f"{of_it[most]:.0%} on “{word}”, by a head written by hand")
    run.figure("pronoun", figure)


HEADS = ("previous token", "positional decay", "verb to subject", "determiner", "pronoun to noun")
LOOKS = {
    "verb to subject": [("verb", "noun")],
    "determiner": [("noun", "determiner")],
    "pronoun to noun": [("pronoun", "noun")],
}
ASKS = {"verb to subject": "verb", "determiner": "noun", "pronoun to noun": "pronoun"}
