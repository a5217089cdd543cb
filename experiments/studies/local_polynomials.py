r"""Local polynomials at a cusp: how fast the excess risk falls with the number of rows.

$$ \hat\beta = \arg\min_\beta \sum_i K\Big(\frac{x_i - x_0}{h}\Big)
   \Big(y_i - \sum_{|a| \le p} \beta_a (x_i - x_0)^a\Big)^2, \quad K(u) = (1 - \|u\|_1)_+^2,
   \quad y_i = \|x_i - x_0\|^\alpha + \sigma \varepsilon_i $$

Inputs are uniform on a cube of side 1 whose centre is $x_0$. With $p = \lceil \alpha \rceil$ and
$h = n^{-1/(2\alpha + d)}$ the squared error of $\hat\beta_0$ falls as $n^{-2\alpha/(2\alpha + d)}$.

Leave-one-out averages over all rows, most of which are far from the cusp. Averaged, the squared
bias is of the size $h^{2\alpha + d}$ and the variance $1/(n h^d)$, so that the best h is of the
size $n^{-1/(2\alpha + 2d)}$. At the cusp it is too long, and the error there falls as
$n^{-2\alpha/(2\alpha + 2d)}$.

**Source:** Ching, Popescu, Smith, Ma, Underwood and Samworth, *Efficient and minimax-optimal
in-context nonparametric regression with transformers*, arXiv 2601.15014 (2026).
"""

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import Positive
from ..reports import label_outer, looks_of, panels, save_with_legend
from ..reports.predictions import Claims, judge_and_print, where
from ..runs import NO_MONITOR, Monitor, Run
from .claims import Claim, verdict
from .study import Study

KNOWN, SLOW, CHOSEN = "α known", "h too slow", "leave-one-out"
WITH_ORDER, NEARBY = "leave-one-out, order too", "leave-one-out of near rows"
# by the number of inputs: α, the orders that are fitted, and slopes of a public repetition of the
# theorem, since the paper has none
ALPHAS = {1: np.array([0.5, 1.0, 1.5]), 2: np.array([2.5])}
ORDERS = {1: (0, 1, 2), 2: (3,)}
PUBLISHED = {1: (-0.5021, -0.6745, -0.7558), 2: (-0.8149,)}
SOURCE = "arXiv 2601.15014, Theorem 2.5; slope of a public repetition"
RESAMPLES = 1000
Rows = Float[Array, "rows dim"]
Labels = Float[Array, "rows alphas"]


def draw(key: PRNGKeyArray, noise: Array, longest: int, dim: int) -> tuple[Rows, Labels, Labels]:
    """Inputs, the function of each α, and labels; the first rows are the same for any `longest`."""
    of_x, of_noise = jax.random.split(key)
    x = jax.random.uniform(of_x, (longest, dim)) - 0.5
    truth = jnp.linalg.norm(x, axis=1)[:, None] ** jnp.asarray(ALPHAS[dim])[None]
    return x, truth, truth + noise * jax.random.normal(of_noise, (longest, 1))


class SquaredTriangle(ak.kernels.Scaled):
    r"""$K = (1 - \|q - k\|_1 / \ell)_+^2$."""

    __init__ = ak.kernels.Scaled.__init__

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        distance = jnp.sum(jnp.abs(q - k)) / self.lengthscale
        is_near = distance < 1.0
        return jnp.where(is_near, 2.0 * jnp.log1p(-jnp.where(is_near, distance, 0.0)), -jnp.inf)


def fit_polynomial(order: int, h: Array, at: Rows, x: Rows, y: Labels, **parts: Any) -> Array:
    """The local polynomial at points; of order 3 and above as a local line of its monomials."""
    kernel, dim = SquaredTriangle(h), x.shape[1]
    if order <= 2:
        return ak.KernelRegression(kernel, order=order, on_empty="mean")(at, x, y, **parts)
    columns = [  # first the columns themselves
        list(columns)
        for degree in range(1, order + 1)
        for columns in itertools.combinations_with_replacement(range(dim), degree)
    ]
    at, x = (jnp.stack([jnp.prod(z[:, of], axis=1) for of in columns], axis=1) for z in (at, x))
    model = ak.KernelRegression(kernel.on(*range(dim)), order=1, on_empty="mean")
    return model(at, x, y, **parts)


def fit_left_out(h: Array, x: Rows, y: Labels) -> Float[Array, "orders rows alphas"]:
    """The local polynomials at each row, from all others."""
    if x.shape[1] == 1:
        return fit_left_out_on_a_line(h, x[:, 0], y)
    parts = {"at": x, "x": x, "y": y, "prior": ak.priors.ExcludeSelf()}
    return jnp.stack([fit_polynomial(order, h, **parts) for order in ORDERS[x.shape[1]]])


def fit_left_out_on_a_line(
    h: Array, x: Float[Array, " rows"], y: Labels
) -> Float[Array, "orders rows alphas"]:
    """The local polynomials of order 0, 1 and 2 at each row, from all others, in O(n log n).

    The method `Sorted` sums two kernels whose difference is that of the study:
    $(1 - r)_+^2 = 2 (1 - r)_+ - (1 - r^2)_+$.
    """
    powers = x[:, None] ** jnp.arange(5)[None]
    products = powers[:, :3, None] * y[:, None, :]
    values = jnp.concatenate([powers, products.reshape(len(x), -1)], axis=1)

    def sums(kernel: ak.kernels.Kernel) -> Float[Array, "rows values"]:
        how = {"kernel": kernel, "prior": ak.priors.ExcludeSelf(), "method": ak.methods.Sorted()}
        at = x[:, None]
        means, log_mass = ak.attend(at, at, values, **how, return_log_mass=True)
        return jnp.exp(log_mass)[:, None] * means

    about_0 = 2.0 * sums(ak.kernels.Triangular(h)) - sums(ak.Epanechnikov(h))
    degrees = np.arange(5)
    binomial = np.array([[math.comb(a, b) for b in degrees] for a in degrees], float)
    gaps = np.maximum(degrees[:, None] - degrees[None], 0)
    shift = binomial[None] * (-x)[:, None, None] ** gaps[None] / h ** degrees[None, :, None]
    s = jnp.einsum("nab,nb->an", shift, about_0[:, :5])  # about each row, in units of h
    t = jnp.einsum("nab,nbl->anl", shift[:, :3, :3], about_0[:, 5:].reshape(products.shape))
    cofactors = (
        [jnp.ones_like(s[0])],
        [s[2], -s[1]],
        [s[2] * s[4] - s[3] ** 2, s[2] * s[3] - s[1] * s[4], s[1] * s[3] - s[2] ** 2],
    )
    fits = [
        jnp.einsum("an,anl->nl", row, t[: len(row)])
        / jnp.einsum("an,an->n", row, s[: len(row)])[:, None]
        for row in map(jnp.stack, cofactors)
    ]
    fits = jnp.stack(fits)
    return jnp.where(jnp.isfinite(fits), fits, jnp.mean(y, axis=0)[None, None])


@functools.partial(jax.jit, static_argnames=("longest", "dim"))
def errors_at_cusp(
    keys: PRNGKeyArray, noise: Array, n: Array, bandwidths: Array, longest: int, dim: int
) -> Float[Array, "sets orders bandwidths alphas"]:
    """Squared errors at the cusp, of data sets of n rows; those after them have weight 0."""

    def errors(key: PRNGKeyArray) -> Float[Array, "orders bandwidths alphas"]:
        x, _, y = draw(key, noise, longest, dim)
        weights = jnp.where(jnp.arange(longest) < n, 1.0, 0.0)
        parts = {"at": jnp.zeros_like(x[:1]), "x": x, "y": y, "weights": weights}
        fits = [
            jax.lax.map(functools.partial(fit_polynomial, order, **parts), bandwidths)
            for order in ORDERS[dim]
        ]
        return jnp.stack(fits)[:, :, 0] ** 2

    return jax.lax.map(errors, keys)


@functools.partial(jax.jit, static_argnames=("longest", "n", "dim"))
def errors_of_rows(
    keys: PRNGKeyArray, noise: Array, bandwidths: Array, longest: int, n: int, dim: int
) -> Float[Array, "sets kinds orders bandwidths alphas"]:
    """Means over the rows: leave-one-out errors, those of the 2√n rows nearest the
    cusp, and errors against the function.
    """

    def errors(key: PRNGKeyArray) -> Float[Array, "kinds orders bandwidths alphas"]:
        x, truth, y = (part[:n] for part in draw(key, noise, longest, dim))
        fits = jax.lax.map(lambda h: fit_left_out(h, x, y), bandwidths)
        fits, distance = jnp.swapaxes(fits, 0, 1), jnp.linalg.norm(x, axis=1)
        near = distance <= jnp.sort(distance)[math.ceil(2 * n**0.5) - 1]
        left_out, risk = ((fits - labels[None, None]) ** 2 for labels in (y, truth))
        each = (left_out, None), (left_out, near[None, None, :, None]), (risk, None)
        return jnp.stack([jnp.mean(squares, axis=2, where=which) for squares, which in each])

    return jax.lax.map(errors, keys)


def by_arm(
    dim: int,
    at_cusp: Float[np.ndarray, "sets orders bandwidths alphas"],
    of_rows: Float[np.ndarray, "few kinds orders candidates alphas"],
) -> list[dict[str, Float[np.ndarray, " sets"]]]:
    """For each α the errors at the cusp of each way to choose h, and average ones."""
    found, count = [], len(ALPHAS[dim])
    for i, alpha in enumerate(ALPHAS[dim]):
        p = ORDERS[dim].index(math.ceil(alpha))
        arms = {KNOWN: at_cusp[:, p, i, i], SLOW: at_cusp[:, p, count + i, i]}
        found.append(arms)
        sets, one, every = np.arange(len(of_rows)), slice(p, p + 1), slice(None)
        by = [(CHOSEN, 0, one), (WITH_ORDER, 0, every), (NEARBY, 1, one)]
        for arm, kind, which in by if len(ORDERS[dim]) > 1 else by[::2]:
            losses, risks = (
                of_rows[:, part, which, :, i].reshape(len(sets), -1) for part in (kind, 2)
            )
            cusp = at_cusp[: len(sets), which, 2 * count :, i].reshape(len(sets), -1)
            best = losses.argmin(axis=1)
            arms |= {arm: cusp[sets, best], f"{arm}, average": risks[sets, best]}
    return found


def slope_of(lengths: list[int], errors: list[Float[np.ndarray, " sets"]]) -> dict[str, Any]:
    """The slope of the log of the mean error in log n, with the 95 % interval of a bootstrap."""
    rng, logs = np.random.default_rng(0), np.log(lengths)
    draws = [one[rng.integers(len(one), size=(RESAMPLES, len(one)))].mean(axis=1) for one in errors]
    low, high = np.quantile(np.polyfit(logs, np.log(draws), 1)[0], [0.025, 0.975])
    risk = [float(one.mean()) for one in errors]
    slope = float(np.polyfit(logs, np.log(risk), 1)[0])
    return {"slope": slope, "low": float(low), "high": float(high), "risk": risk}


class LocalPolynomials(Study):
    """The excess risk of local polynomials at a cusp, with α known and by leave-one-out."""

    study: Literal["local_polynomials"]
    precision: Literal["float32", "float64"] = "float64"
    lengths: Annotated[list[Annotated[int, Field(ge=16, le=2**14)]], Field(min_length=2)] = [
        2**power for power in range(5, 13)
    ]
    noise: Positive = 0.05
    data_sets: int = Field(default=320, ge=2, le=10_000)
    chosen: int = Field(default=80, ge=2, le=10_000, description="data sets for leave-one-out")
    candidates: int = Field(default=12, ge=2, le=100, description="bandwidths of leave-one-out")

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> list[dict[str, Any]]:
        noise, longest = jnp.asarray(self.noise), max(self.lengths)

        def found(case: tuple[int, int]) -> dict[str, Any]:
            dim, n = case
            known = n ** (-1 / (2 * ALPHAS[dim] + dim))
            grid = np.geomspace(n ** (-0.75 / dim), 1.0, self.candidates)
            keys = jax.random.split(jax.random.fold_in(key, dim * 2**20 + n), self.data_sets)
            tried = jnp.asarray(np.concatenate([known, known**0.25, grid]))
            at_cusp = np.asarray(errors_at_cusp(keys, noise, jnp.asarray(n), tried, longest, dim))
            of_rows = errors_of_rows(keys[: self.chosen], noise, jnp.asarray(grid), longest, n, dim)
            return {"n": n, "dim": dim, "errors": by_arm(dim, at_cusp, np.asarray(of_rows))}

        cases = list(itertools.product((1, 2), self.lengths))
        return monitor.collect("lengths", cases, found, "{dim} inputs, {n} rows".format_map)

    def report(self, results: list[dict[str, Any]], run: Run) -> None:
        rows = list(self.summarised(results))
        interval = "{slope:.2f} ({low:.2f} to {high:.2f})".format_map
        cells = [
            {"": row["name"], "theory": row["theory"]}
            | {arm: interval(found) for arm, found in row["arms"].items()}
            for row in rows
        ]
        run.table_of("Slope of the log risk at the cusp in log n; 95 % intervals", cells)
        predictions = judge_and_print(run, claims(), rows, lambda row: row["name"])
        draw_risk(run, self.lengths, rows)
        ledger = [claim for row in rows for claim in self.ledger_rows(row)]
        run.summary({"rows": rows, "predictions": predictions, "claims": ledger})

    def summarised(self, results: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for dim, alphas in ALPHAS.items():
            here = [found["errors"] for found in results if found["dim"] == dim]
            for i, alpha in enumerate(alphas.tolist()):
                yield {
                    "name": f"α = {alpha:g}, d = {dim}",
                    "dim": dim,
                    "published": PUBLISHED[dim][i],
                    "theory": -2 * alpha / (2 * alpha + dim),
                    "theory_of_average": -2 * alpha / (2 * alpha + 2 * dim),
                    "arms": {
                        arm: slope_of(self.lengths, [errors[i][arm] for errors in here])
                        for arm in here[0][i]
                    },
                }

    def ledger_rows(self, row: dict[str, Any]) -> Iterator[Claim]:
        """The slope with α known, and whether leave-one-out keeps it, beside a slow bandwidth."""
        control = "h to the power 1/4: the slope is flatter by 0.15", slope(row, SLOW)
        control_fails = slope(row, SLOW) > slope(row, KNOWN) + 0.15
        for arm in filter(row["arms"].__contains__, (KNOWN, CHOSEN, WITH_ORDER, NEARBY)):
            source, seeds, at = "asked here", self.chosen, "at least with"
            above = slope(row, arm) - row["published"]
            is_kept = above < 0.05
            if arm is KNOWN:
                source, seeds, at = SOURCE, self.data_sets, "with"
                is_kept = abs(above) < 0.05
            words = f"{row['name']}, {arm}: the risk at the cusp falls {at} this slope"
            one = row["arms"][arm]
            ends = one["slope"], one["low"], one["high"]
            judged = verdict(is_kept, control_fails)
            yield Claim(words, source, row["published"], *ends, seeds, *control, judged)


def slope(row: dict[str, Any], arm: str) -> float:
    return row["arms"][arm]["slope"]


def claims() -> Claims:
    """What was predicted before the first run."""
    return {
        "α known: the slope is within 0.05 of the published one": lambda row: (
            abs(slope(row, KNOWN) - row["published"]) < 0.05
        ),
        "h too slow: the slope is flatter by 0.15 or more": lambda row: (
            slope(row, SLOW) > slope(row, KNOWN) + 0.15
        ),
        "leave-one-out does not keep the slope: it is flatter by 0.1 or more": lambda row: (
            slope(row, CHOSEN) > slope(row, KNOWN) + 0.1
        ),
        "leave-one-out: the slope is within 0.1 of −2α/(2α + 2d)": lambda row: (
            abs(slope(row, CHOSEN) - row["theory_of_average"]) < 0.1
        ),
        "leave-one-out: the risk averaged over inputs falls faster than n to "
        "−2α/(2α + d)": lambda row: slope(row, f"{CHOSEN}, average") < row["theory"] + 0.02,
        "choosing the order as well changes the slope by less than 0.1": where(
            lambda row: row["dim"] == 1,
            lambda row: abs(slope(row, WITH_ORDER) - slope(row, CHOSEN)) < 0.1,
        ),
        "leave-one-out of the 2√n nearest rows: the slope is nearer to that of α "
        "known": lambda row: (
            abs(slope(row, NEARBY) - slope(row, KNOWN))
            < abs(slope(row, CHOSEN) - slope(row, KNOWN))
        ),
    }


def draw_risk(run: Run, lengths: list[int], rows: list[dict[str, Any]]) -> None:
    """The risk at the cusp against n, with the slopes in the titles."""
    figure, axes = panels(len(rows), height=2.9)
    for ax, row in zip(axes, rows, strict=True):
        for arm, look in looks_of((KNOWN, CHOSEN, NEARBY, SLOW)).items():
            ax.plot(lengths, row["arms"][arm]["risk"], label=arm, markersize=4, **look)
        ax.set(xscale="log", yscale="log")
        title = "{}: slope {:.2f} with α known,\nbut {:.2f} by leave-one-out"
        ax.set_title(title.format(row["name"], slope(row, KNOWN), slope(row, CHOSEN)))
    label_outer(axes, "rows n", "squared error at the cusp")
    save_with_legend(run, "risk", figure, axes[:1])
