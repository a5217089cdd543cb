r"""What an online regression loses to rounding: by dtype, forgetting, ridge and condition of keys.

Keys are $k_t = u / \|u\|$ with $u = m + c\, z_t / \sqrt d$, m a unit vector and z normal: nearly
equal for a small spread c. With the weighted Gram matrix G of all keys and a ridge λ,

$$ \kappa = \frac{\lambda_{\max}(G) + \lambda}{\lambda_{\min}(G) + \lambda} $$

is the condition of the least squares that a Mesa layer solves at each row. Two errors are told
apart, both relative to the root mean square of the exact results of the last quarter of the rows:
that of the inputs, rounded to a dtype and then summed in float64, and that of the arithmetic, of
the layer against float64 on the same rounded inputs.

**Source:** the report of NaN in float16, and of runs in bfloat16 and float32 that differ, of a Mesa
layer in flash-linear-attention, fla#1187.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import NonEmpty, Positive
from ..reports import label_outer, looks_of, panels, save_with_legend
from ..reports.predictions import Claims, judge_and_print, where
from ..runs import NO_MONITOR, Monitor, Run
from .claims import Claim, of_repetitions, verdict
from .study import Study

LINEAR, DELTA, MESA = "linear attention", "delta rule", "Mesa"
DTYPES = {"float16": jnp.float16, "bfloat16": jnp.bfloat16, "float32": jnp.float32}
EPS = {name: float(jnp.finfo(dtype).eps) for name, dtype in DTYPES.items()}
METHODS = CHUNKED, BY_ROW = "chunked", "recurrent"
UPDATED = "updated inverse"
Inputs = tuple[Float[Array, "cases rows dim"], ...]


def draw(key: PRNGKeyArray, spreads: Array, rows: int, dim: int) -> Inputs:
    """Queries, keys and values of each spread."""
    of_m, of_q, of_k, of_w, of_noise = jax.random.split(key, 5)
    mean = jax.random.normal(of_m, (dim,))
    mean = mean / jnp.linalg.norm(mean)

    def points(key: PRNGKeyArray) -> Float[Array, "spreads rows dim"]:
        z = jax.random.normal(key, (rows, dim)) / dim**0.5
        u = mean[None, None] + spreads[:, None, None] * z[None]
        return u / jnp.linalg.norm(u, axis=2, keepdims=True)

    q, k = points(of_q), points(of_k)
    v = k @ jax.random.normal(of_w, (dim, dim))
    return q, k, v + 0.1 * jax.random.normal(of_noise, (1, rows, dim))


@eqx.filter_jit
def results_of(
    estimator: ak.recurrent.Estimator, inputs: Inputs, log_decay: Array, method: Any
) -> Float[Array, "cases rows dim"]:
    rate = 0.9 if isinstance(estimator, ak.recurrent.DeltaRule) else 1.0
    options = {"estimator": estimator, "log_decay": log_decay, "rate": rate, "method": method}
    return ak.recurrent.regress(*inputs, **options)[0]


@jax.jit
def sherman_morrison(ridge: Array, inputs: Inputs) -> Float[Array, "cases rows dim"]:
    """Recursive least squares as it is often written: the inverse is updated, in the dtype given.

    It forgets nothing.
    """
    dtype, dim = inputs[0].dtype, inputs[0].shape[2]

    def step(state: tuple[Array, Array], row: tuple[Array, ...]) -> tuple[Any, Array]:
        (inverse, moments), (q, k, v) = state, row
        along = inverse @ k
        inverse = inverse - jnp.outer(along, along) / (1 + k @ along)
        moments = moments + jnp.outer(k, v)
        return (inverse, moments), (inverse @ q) @ moments

    def of_case(*rows: Array) -> Array:
        first = jnp.eye(dim, dtype=dtype) / ridge.astype(dtype), jnp.zeros((dim, dim), dtype)
        return jax.lax.scan(step, first, rows)[1]

    return jax.vmap(of_case)(*inputs)


def distance(found: Array, exact: Array) -> Float[np.ndarray, " cases"]:
    """The root mean square of the difference over that of `exact`, over the last quarter."""
    last = slice(-(-3 * exact.shape[1] // 4), None)
    ours, true = (np.asarray(of, float)[:, last] for of in (found, exact))
    return np.sqrt(((ours - true) ** 2).mean((1, 2)) / (true**2).mean((1, 2)))


def condition(
    k: Float[np.ndarray, "cases rows dim"], forgetting: float, ridge: float
) -> Float[np.ndarray, " cases"]:
    """κ after the last row."""
    weights = forgetting ** np.arange(k.shape[1])[::-1]
    values = np.linalg.eigvalsh(np.einsum("cra,r,crb->cab", k, weights, k)) + ridge
    return values[:, -1] / values[:, 0]


class StatePrecision(Study):
    """Errors of the states of online regressions against float64."""

    study: Literal["state_precision"]
    precision: Literal["float32", "float64"] = "float64"
    rows: int = Field(default=16384, ge=256, le=2**17)
    dim: int = Field(default=16, ge=2, le=128)
    spreads: NonEmpty[Positive] = [3.0, 0.3, 0.03, 0.003]
    forgetting: NonEmpty[Positive] = [1.0, 0.999, 0.99, 0.9]
    ridges: NonEmpty[Positive] = [1.0, 1e-2, 1e-4]
    draws: int = Field(default=5, ge=2, le=100)

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> list[dict[str, Any]]:
        """The errors of each case, of all draws."""
        spreads = jnp.asarray(self.spreads)
        drawn = (draw(of, spreads, self.rows, self.dim) for of in jax.random.split(key, self.draws))
        exact = tuple(map(jnp.concatenate, zip(*drawn, strict=True)))
        keys = np.asarray(exact[1])

        def found(case: tuple[str, float, float]) -> list[dict[str, Any]]:
            state, ridge, forgetting = case
            estimator = {
                LINEAR: ak.recurrent.LinearAttention(),
                DELTA: ak.recurrent.DeltaRule(),
                MESA: ak.recurrent.RecursiveLeastSquares(jnp.asarray(ridge)),
            }[state]
            decay = jnp.log(jnp.asarray(forgetting))
            run = functools.partial(results_of, estimator)
            true = run(exact, decay, BY_ROW)
            kappa = condition(keys, forgetting, ridge) if state == MESA else 1.0
            rows = []
            for name, dtype in DTYPES.items():
                rounded = tuple(of.astype(dtype) for of in exact)
                same = run(tuple(of.astype(true.dtype) for of in rounded), decay, BY_ROW)
                outs = {how: run(rounded, decay, how) for how in METHODS}
                errors = {"inputs": distance(same, true)}
                errors |= {how: distance(out, same) for how, out in outs.items()}
                errors |= {"total": distance(outs[CHUNKED], true)}
                if state == MESA and forgetting == 1.0:
                    plain = sherman_morrison(jnp.asarray(ridge), rounded)
                    errors[UPDATED] = distance(plain, true)
                lengths = [self.rows // 256, self.rows // 16, self.rows]
                by_length = {n: distance(outs[CHUNKED][:, :n], true[:, :n]) for n in lengths}
                place = {"state": state, "ridge": ridge, "forgetting": forgetting, "dtype": name}
                for i, spread in enumerate(self.spreads):
                    here = slice(i, None, len(spreads))  # of each draw
                    numbers = {what: of[here] for what, of in errors.items()}
                    numbers["condition"] = np.broadcast_to(kappa, len(keys))[here]
                    lost = {str(n): of[here] for n, of in by_length.items()}
                    rows.append(place | {"spread": spread, "by length": lost} | numbers)
            return rows

        others = itertools.product((LINEAR, DELTA), self.ridges[:1], self.forgetting)
        cases = [*others, *itertools.product((MESA,), self.ridges, self.forgetting)]
        lists = monitor.collect("cases", cases, found)
        return list(itertools.chain.from_iterable(lists))

    def report(self, results: list[dict[str, Any]], run: Run) -> None:
        columns = ("state", "ridge", "forgetting", "spread", "dtype", "condition", "inputs")

        def each(number: Any) -> list[dict[str, Any]]:
            return jax.tree.map(lambda of: float(number(of)) if np.ndim(of) else of, results)

        rows, draws = each(np.max), [each(lambda of, i=i: of[i]) for i in range(self.draws)]
        title = f"Largest error of {self.draws} draws, relative to the exact results"
        run.table_of(title, rows, (*columns, *METHODS, "total", UPDATED))
        predictions = judge_and_print(run, claims(), list(itertools.chain(*draws)), name_of)
        draw_errors(run, [row for row in rows if row["state"] == MESA])
        run.summary({"rows": rows, "predictions": predictions, "claims": [*ledger_rows(results)]})


def name_of(row: dict[str, Any]) -> str:
    ridge = f", ridge {row['ridge']:g}" if row["state"] == MESA else ""
    place = f"{row['state']}{ridge}, forgetting {row['forgetting']:g}, spread {row['spread']:g}"
    return f"{place}, {row['dtype']}"


def ledger_rows(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    """The two reports of the issue and two rules of thumb, over draws, each with a control."""

    def errors(what: str, *dtypes: str) -> np.ndarray:
        """Errors in units of rounding, by case and draw."""
        here = [row for row in rows if row["dtype"] in dtypes and what in row]
        return np.stack([row[what] / EPS[row["dtype"]] for row in here])

    issue, asked, half = "fla#1187", "asked here", ("float16", "bfloat16")
    nans, none = (1 - np.isfinite(errors("total", of)).mean(0) for of in ("float16", "float32"))
    ours, control = of_repetitions(nans), ("those of float32", float(none.max()))
    words = "float16 gives results that are not finite: their share"
    yield Claim(words, issue, "NaN", *ours, *control, verdict(ours[1] > 0.0, control[1] == 0.0))
    lost, less = (EPS[of] * errors("total", of).max(axis=0) for of in ("bfloat16", "float32"))
    ours, control = of_repetitions(lost), ("float32 does not", float(less.max()))
    words = "nearly equal keys: bfloat16 differs from float64 by more than 0.1; the largest error"
    yield Claim(words, issue, None, *ours, *control, verdict(ours[1] > 0.1, control[1] < 0.1))
    solved, updated = errors("total", *half).max(axis=0), np.fmin.reduce(errors(UPDATED, *half))
    ours = of_repetitions(solved)
    control = "an inverse that is updated: the least error in ε", float(updated.min())
    words = "half precision loses at most 5 ε in every draw; the largest error of a draw in ε"
    yield Claim(words, asked, 5.0, *ours, *control, verdict(solved.max() <= 5, control[1] > 5))
    ours = of_repetitions(updated)
    control = "sums that are solved: the largest error in ε", float(solved.max())
    words = (
        "half precision: an updated inverse loses 100 ε or more (set after a run); the least in ε"
    )
    yield Claim(words, asked, 100.0, *ours, *control, verdict(ours[1] >= 100.0, control[1] < 100.0))


def rounding(row: dict[str, Any]) -> float:
    """The error of the rule of thumb: eps of the dtype times the condition."""
    return EPS[row["dtype"]] * row["condition"]


def claims() -> Claims:
    """What was predicted before the first run."""
    small = lambda row: row["dtype"] != "float32"  # noqa: E731
    return {
        "every result is finite, also in float16": lambda row: np.isfinite(row["total"]),
        "linear attention and the delta rule lose at most 4 eps, whatever the keys": where(
            lambda row: row["state"] != MESA,
            lambda row: row["total"] <= 4 * EPS[row["dtype"]],
        ),
        "float16 and bfloat16: the rounding of the inputs is more than the arithmetic": where(
            lambda row: small(row) and rounding(row) > 10 * EPS[row["dtype"]],
            lambda row: row["inputs"] > row[CHUNKED],
        ),
        "Mesa: the error is at most eps times the condition": where(
            lambda row: row["state"] == MESA and rounding(row) < 0.1,
            lambda row: row["total"] <= rounding(row),
        ),
        "Mesa: the error is at least a thousandth of eps times the condition": where(
            lambda row: row["state"] == MESA and rounding(row) < 0.1,
            lambda row: row["total"] >= 1e-3 * rounding(row),
        ),
        "chunks and single rows lose alike, within 10 times": lambda row: (
            0.1 < row[CHUNKED] / row[BY_ROW] < 10.0
        ),
        "an inverse that is updated loses 10 times as much, or all": where(
            lambda row: UPDATED in row,
            lambda row: not row[UPDATED] < 10 * row["total"],
        ),
    }


def draw_errors(run: Run, rows: list[dict[str, Any]]) -> None:
    """The errors of Mesa, and of an inverse that is updated, by the condition of the keys, beside
    eps times the condition; results that are not finite are at the upper end.
    """
    figure, axes = panels(2, height=3.0)
    for ax, what in zip(axes, ("total", UPDATED), strict=True):
        for name, look in looks_of(DTYPES).items():
            at = [(r["condition"], r[what]) for r in rows if r["dtype"] == name and what in r]
            kappa, errors = np.array(sorted(at)).T
            look["linestyle"] = "none"
            ax.plot(kappa, np.fmin(errors, 1e3), label=name, **look)
            ax.plot(kappa, EPS[name] * kappa, color=look["color"], linewidth=0.8)
        ax.set(xscale="log", yscale="log", ylim=(1e-8, 2e3))
    axes[0].set_title("Sums that are solved: half precision\nloses few ε, not ε κ (lines)")
    axes[1].set_title("An inverse that is updated: no\ndigit is left in half precision")
    label_outer(axes, "condition κ of the keys", "error relative to the results")
    save_with_legend(run, "errors", figure, axes[:1])
