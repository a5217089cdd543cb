"""Heads as an ensemble of smoothers: how many heads of which size, and with which weights.

D coordinates are divided among H heads of $d_k = D / H$. Many small heads have less variance, few
large ones less bias.
"""

import itertools
import operator
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import FieldError, NonEmpty, Positive, Several
from ..reports import facets, label_outer, save_with_legend
from ..reports.predictions import Claims, judge_and_print, mean_of, where
from ..runs import NO_MONITOR, Monitor, Run
from .claims import Claim, ends, verdict
from .head_errors import FUNCTIONS, Function, decompose_error, fit_data_sets
from .study import Study

COLUMNS = ("n", "heads", "size", "bias", "variance", "covariance", "equal", "weighted", "mass")


class HeadEnsemble(Study):
    """Bias, variance and covariance of heads, by their number and the number of rows."""

    study: Literal["head_ensemble"]
    functions: NonEmpty[Function] = ["additive", "one direction", "rough"]
    dim: int = Field(default=8, ge=2, le=64)
    heads: Several[Annotated[int, Field(ge=1, le=64)]] = [1, 2, 4, 8]
    rows: NonEmpty[Annotated[int, Field(ge=16, le=8192)]] = [64, 256, 1024]
    rotated: bool = Field(default=True, description="heads see random directions, not columns")
    noise: Positive = 0.3
    queries: int = Field(default=128, ge=2, le=4096)
    sets: int = Field(default=60, ge=3, le=10_000)
    lengthscales: int = Field(default=13, ge=2, le=100)

    def check(self) -> None:
        for heads in self.heads:
            if self.dim % heads:
                raise FieldError(("heads",), f"expected divisors of dim, {self.dim}; got {heads}")

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> list[dict[str, Any]]:
        of_queries, of_rotation, of_sets = jax.random.split(key, 3)
        queries = jax.random.normal(of_queries, (self.queries, self.dim))
        rotation = jnp.eye(self.dim)
        if self.rotated:
            rotation = jnp.linalg.qr(jax.random.normal(of_rotation, (self.dim, self.dim)))[0]

        def found(case: tuple[Function, int, int]) -> dict[str, Any]:
            name, n, heads = case
            parts = {"queries": queries, "rotation": rotation, "heads": heads, "n": jnp.asarray(n)}
            tried = (self.dim // heads) ** 0.5 * jnp.geomspace(0.05, 2.0, self.lengthscales)
            keys = jax.random.split(jax.random.fold_in(of_sets, n), self.sets)
            numbers = jnp.asarray(list(FUNCTIONS).index(name)), jnp.asarray(self.noise)
            fitted = fit_data_sets(keys, *numbers, max(self.rows), **parts, lengthscales=tried)
            truth = FUNCTIONS[name](queries)
            numbers = jax.tree.map(np.asarray, {"fitted": fitted._asdict(), "truth": truth})
            return {"function": name, "n": n, "heads": heads, **numbers}

        cases = list(itertools.product(self.functions, self.rows, self.heads))
        return monitor.collect("cases", cases, found, _name)

    def report(self, results: list[dict[str, Any]], run: Run) -> None:
        rows = [self.summarised(found) for found in results]
        best = self.best(rows)
        for name in self.functions:
            run.table_of(
                f"{name}: the error of the mean of heads of this size d_k, its terms (the bias is "
                f"squared), and that of weighted ones, with the sum of the weights; 95 % intervals",
                [row for row in rows if row["function"] == name],
                COLUMNS,
            )
        run.table_of(
            "The best size of heads, with equal weights and with weights by leave-one-out",
            best,
            ("function", "n", "equal", "weighted"),
        )
        cases, name_of = [*rows, *best], operator.itemgetter("name")
        predictions = judge_and_print(run, claims(max(self.rows)), cases, name_of)
        draw_terms(run, rows, best)
        found = {"rows": rows, "best": best, "predictions": predictions}
        run.summary(found | {"claims": list(self.ledger_rows(rows))})

    def summarised(self, found: dict[str, Any]) -> dict[str, Any]:
        fitted, truth, heads = found["fitted"], found["truth"], found["heads"]
        terms = decompose_error(fitted["each"], truth)
        equal = np.mean((fitted["each"].mean(axis=1) - truth) ** 2, axis=1)
        weighted = np.mean((fitted["weighted"] - truth) ** 2, axis=1)
        parts = terms["bias"] + terms["variance"] + terms["covariance"]
        return {
            "kind": "heads",
            **{part: found[part] for part in ("function", "n", "heads")},
            "name": _name(found),
            "size": self.dim // heads,
            **terms,
            "deviation": abs(parts / terms["error"] - 1),
            "equal": mean_of(equal),
            "weighted": mean_of(weighted),
            "less": mean_of(weighted - equal),
            "mass": float(fitted["weights"].sum(axis=1).mean()),
            "lengthscale": float(np.median(fitted["lengthscale"])),
        }

    def best(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The size of heads with the least error, by function and number of rows."""
        found = []
        for name, n in itertools.product(self.functions, self.rows):
            here = [row for row in rows if (row["function"], row["n"]) == (name, n)]
            sizes = {
                kind: min(here, key=lambda row, kind=kind: row[kind]["mean"])["size"]
                for kind in ("equal", "weighted")
            }
            fewer = [one for one in found if one["function"] == name and one["n"] < n]
            grows = all(one["equal"] <= sizes["equal"] for one in fewer)
            row = {"kind": "best", "function": name, "n": n, **sizes}
            found.append(row | {"name": f"{name}, {n} rows", "grows": grows})
        return found

    def ledger_rows(self, rows: list[dict[str, Any]]) -> Iterator[Claim]:
        """What weights by leave-one-out gain for the most heads and rows, beside one head."""
        for name in self.functions:
            here = [row for row in rows if (row["function"], row["n"]) == (name, max(self.rows))]
            few, many = (pick(here, key=operator.itemgetter("heads")) for pick in (min, max))
            one = few["less"]["mean"] / few["equal"]["mean"]
            gain, low, high = ends(many["less"], many["equal"]["mean"])
            words = f"{name}: {many['heads']} heads have less error if weighted by leave-one-out"
            words = f"{words}; relative difference"
            parts = gain, low, high, self.sets
            control = f"heads of {few['size']} columns gain nothing", one
            judged = verdict(high < 0, one > -0.02)
            yield Claim(words, "asked in arXiv 2605.20271", None, *parts, *control, judged)


_name = "{function}, {n} rows, {heads} heads".format_map


def claims(longest: int) -> Claims:
    """What was predicted before the first run."""
    of_heads = lambda row: row["kind"] == "heads"  # noqa: E731
    return {
        "bias², variance and covariance add up to the error, to 1e-9": where(
            of_heads,
            lambda row: row["deviation"] < 1e-9,
        ),
        "with four heads or more, the covariance is larger than the variance": where(
            lambda row: of_heads(row) and row["heads"] >= 4,
            lambda row: row["covariance"] > row["variance"],
        ),
        "the best size of heads with equal weights does not fall as rows are added": where(
            lambda row: row["kind"] == "best",
            lambda row: row["grows"],
        ),
        f"{longest} rows, one direction: the best size is all columns": where(
            lambda row: (
                row["kind"] == "best" and row["function"] == "one direction" and row["n"] == longest
            ),
            lambda row: row["equal"] == 8,
        ),
        "several heads, 256 rows or more: weights by leave-one-out have less error than equal "
        "ones": where(
            lambda row: of_heads(row) and row["heads"] > 1 and row["n"] >= 256,
            lambda row: row["less"]["mean"] + row["less"]["half_width"] < 0,
        ),
        "several heads: these weights sum to more than 1": where(
            lambda row: of_heads(row) and row["heads"] > 1,
            lambda row: row["mass"] > 1,
        ),
    }


def draw_terms(run: Run, rows: list[dict[str, Any]], best: list[dict[str, Any]]) -> None:
    """The terms of the error against the number of heads, by function and number of rows."""
    functions = list(dict.fromkeys(row["function"] for row in rows))
    lengths = sorted({row["n"] for row in rows})
    figure, axes = facets(functions, lengths, width=2.8, height=2.4, sharey="row")
    parts = {
        "bias": ("bias²", ak.plot.BLUE, ""),
        "variance": ("variance ÷ heads", ak.plot.GREEN, "///"),
        "covariance": ("covariance", ak.plot.PURPLE, "..."),
    }
    for (name, n), ax in axes.items():
        here = [row for row in rows if (row["function"], row["n"]) == (name, n)]
        at, below = np.arange(len(here)), np.zeros(len(here))
        for part, (label, color, hatch) in parts.items():
            values = np.array([row[part] for row in here])
            ax.bar(at, values, bottom=below, color=color, hatch=hatch, alpha=0.8, label=label)
            below = below + values
        weighted = [row["weighted"]["mean"] for row in here]
        ax.plot(at, weighted, "o", color=ak.plot.ORANGE, label="weights by leave-one-out")
        ax.set(title=f"{name}, {n} rows")
        ax.set_xticks(at, [f"{row['heads']} of {row['size']}" for row in here])
    fewest = sum(row["equal"] == max(each["size"] for each in rows) for row in best)
    figure.suptitle(f"The fewest heads have the least error in {fewest} of {len(best)} cases")
    label_outer(axes.values(), "heads of d_k columns", "squared error")
    save_with_legend(run, "terms", figure, list(axes.values())[:1])
