"""The temperature of attention that regresses in context: its best value, and who finds it.

The attention suits inputs of covariance I, as one trained on such prompts. It is used as it is on
prompts of other covariances, noise and length: with the temperature that is best for the prompts
that it suits, with the best one of two approximations of the error, and with the temperature that
minimises a criterion on the context alone.
"""

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import NonEmpty, Positive
from ..reports import draw_dots, facets, save_with_legend, subplots, ticks_at
from ..reports.predictions import Claims, judge_and_print, mean_of, where
from ..runs import NO_MONITOR, Monitor, Run
from .claims import Claim, ends, verdict
from .context_errors import IN_N, IN_TAU, Case, in_closed_form, simulate
from .study import Study

FIXED, HOLD_OUT, LEAVE_ONE_OUT = "fixed", "hold-out", "leave-one-out"
OF_CASE, OF_PROMPT = "best of the case", "best of the prompt"
SUITED = "as suited"
RESAMPLES = 1000
Rows = list[dict[str, Any]]


def draw_errors(run: Run, study: "ContextTemperature", results: Rows, rows: Rows) -> None:
    """The error at each temperature, of softmax and to first order, at the middle length."""
    cases, grid = study.cases(), study.grid()
    n = sorted(study.contexts)[len(study.contexts) // 2]
    shown = ("as suited", "more noise", "wider inputs", "wider queries")
    figure, axes = subplots(1, len(shown), sharey=True, figsize=(10.4, 3.4))
    here = {row["case"]: (of, row) for of, row in zip(results, rows, strict=True) if row["n"] == n}
    for ax, case in zip(axes, shown, strict=True):
        found, row = here[case]
        closed = in_closed_form(cases[case], n, grid)
        softmax = found["prompts"].softmax.mean(0)
        simulated = found["prompts"].first_order.mean(0)
        ax.plot(grid, softmax, color=ak.plot.ORANGE, label="softmax")
        ax.plot(grid, closed[IN_TAU], "--", color=ak.plot.BLUE, label=IN_TAU)
        dots = {"color": ak.plot.BLUE, "markersize": 3, "label": f"{IN_TAU}, simulated"}
        some = slice(None, None, -(-len(grid) // 20))
        ax.plot(grid[some], simulated[some], "o", **dots)
        ax.plot(grid, closed[IN_N], ":", color=ak.plot.PURPLE, label=IN_N)
        half = {"color": ak.plot.GREEN, "alpha": 0.25}
        ax.axvspan(*row["chosen"][LEAVE_ONE_OUT][1:], **half, linewidth=0)
        ax.plot([], [], **half, linewidth=7, label="middle half of leave-one-out's choices")
        ax.set(xscale="log", yscale="log", xlabel="temperature τ", title=case, ylim=(0.25, 4.0))
        ticks_at(ax.xaxis, [0.3, 1, 3, 10, 30])
        ticks_at(ax.yaxis, [0.2, 0.3, 0.5, 1, 2, 4])
    suited, wider = (here[case][1]["best"] for case in (SUITED, "wider inputs"))
    figure.suptitle(
        f"The best temperature, {suited:.1f} for suited inputs, is {wider:.1f} for wider ones"
    )
    axes[0].set_ylabel(f"squared error ÷ variance, {n} rows")
    save_with_legend(run, "errors", figure, [axes[0]])


def draw_choices(run: Run, rows: Rows) -> None:
    """The error of each choice over that of the best of the prompt, a panel for each length."""
    lengths = sorted({row["n"] for row in rows})
    names = list(dict.fromkeys(row["case"] for row in rows))
    figure, axes = facets([0], lengths, width=2.9, height=3.0, sharey=True)
    for (_, n), ax in axes.items():
        here = [row["error"] for row in rows if row["n"] == n]
        ratios = {
            choice: [error[choice]["mean"] / error[OF_PROMPT]["mean"] for error in here]
            for choice in (LEAVE_ONE_OUT, FIXED, IN_N, HOLD_OUT, OF_CASE)
        }
        draw_dots(ax, names, ratios)
        ax.axvline(1.0, color=ak.plot.ink(), linewidth=0.8)
        ax.set(title=f"{n} rows", xlabel="error ÷ best of each prompt")
    errors = [row["error"] for row in rows if row["n"] == lengths[-1]]
    left_out, fixed = (
        max(error[name]["mean"] / error[OF_CASE]["mean"] for error in errors)
        for name in (LEAVE_ONE_OUT, FIXED)
    )
    figure.suptitle(
        f"{lengths[-1]} rows: up to {left_out:.2f} times the error of the best temperature by "
        f"leave-one-out, {fixed:.1f} at a fixed one"
    )
    save_with_legend(run, "choices", figure, figure.axes[:1])


class ContextTemperature(Study):
    """The error of in-context attention at each temperature, and of ways to choose one."""

    study: Literal["context_temperature"]
    dim: int = Field(default=8, ge=1, le=64)
    contexts: NonEmpty[Annotated[int, Field(ge=8, le=1024)]] = [16, 64, 256]
    noise: Positive = Field(default=0.5, description="that the attention suits")
    shift: float = Field(
        default=2.0, gt=1, description="the factor by which a standard deviation differs in a case"
    )
    lowest: Positive = 0.25
    highest: Positive = 64.0
    temperatures: int = Field(default=81, ge=3, le=1000)
    prompts: int = Field(default=400, ge=2, le=10_000)
    queries: int = Field(default=64, ge=1, le=1024)

    def cases(self) -> dict[str, Case]:
        one, c = np.ones(self.dim), self.shift
        unequal = np.geomspace(1 / c**2, c**2, self.dim)
        unequal *= self.dim / unequal.sum()
        return {
            "as suited": Case(one, one, self.noise),
            "more noise": Case(one, one, c * self.noise),
            "less noise": Case(one, one, self.noise / c),
            "wider inputs": Case(c**2 * one, c**2 * one, self.noise),
            "narrower inputs": Case(one / c**2, one / c**2, self.noise),
            "unequal inputs": Case(unequal, unequal, self.noise),
            "wider queries": Case(one, c**2 * one, self.noise),
        }

    def grid(self) -> Float[np.ndarray, " temperatures"]:
        return np.geomspace(self.lowest, self.highest, self.temperatures)

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Rows:
        cases, grid = self.cases(), jnp.asarray(self.grid())

        def errors(place: tuple[int, tuple[int, str]]) -> dict[str, Any]:
            i, (n, name) = place
            keys = jax.random.split(jax.random.fold_in(key, i), self.prompts)
            case = jax.tree.map(jnp.asarray, cases[name])
            prompts = simulate(keys, case, n, self.queries, grid)
            return {"n": n, "case": name, "prompts": jax.tree.map(np.asarray, prompts)}

        at = list(enumerate(itertools.product(self.contexts, cases)))
        return monitor.collect("cases", at, errors, _name)

    def report(self, results: Rows, run: Run) -> None:
        rows = list(self.summarised(results))
        draw_errors(run, self, results, rows)
        draw_choices(run, rows)
        for n in self.contexts:
            here = [
                {"case": row["case"], **row["error"], "leave-one-out − fixed": row["less_fixed"]}
                for row in rows
                if row["n"] == n
            ]
            run.table_of(
                f"Squared error ÷ variance of the function, {n} rows; 95 % intervals", here
            )
        run.table_of(
            "Temperatures: the best of the case, in closed form, and chosen (median and quartiles)",
            rows,
            ("n", "case", "best", "in_closed_form", "chosen"),
        )
        predictions = judge_and_print(run, claims(), rows, _name)
        ledger = list(self.ledger_rows(results, rows))
        run.summary({"rows": rows, "predictions": predictions, "claims": ledger})

    def summarised(self, results: Rows) -> Iterator[dict[str, Any]]:
        """The mean error of each choice with half widths of 95 % intervals over prompts."""
        grid, cases = self.grid(), self.cases()
        best = {
            (row["n"], row["case"]): np.argmin(row["prompts"].softmax.mean(0)) for row in results
        }
        for found in results:
            n, prompts = found["n"], found["prompts"]
            softmax, each = prompts.softmax, np.arange(self.prompts)
            closed = in_closed_form(cases[found["case"]], n, grid)
            of_case = best[n, found["case"]]
            picked = {
                FIXED: best[n, "as suited"],
                **{name: np.argmin(values) for name, values in closed.items()},
                HOLD_OUT: np.argmin(prompts.hold_out, 1),
                LEAVE_ONE_OUT: np.argmin(prompts.leave_one_out, 1),
                OF_CASE: of_case,
                OF_PROMPT: np.argmin(softmax, 1),
            }
            errors = {name: softmax[each, place] for name, place in picked.items()}
            gap = np.abs(prompts.first_order.mean(0) - closed[IN_TAU])
            spread = prompts.first_order.std(0, ddof=1) / self.prompts**0.5
            yield {
                "n": n,
                "case": found["case"],
                "best": float(grid[of_case]),
                "in_closed_form": {name: float(grid[picked[name]]) for name in closed},
                "first_order_gap_in_standard_errors": float(np.max(gap / spread)),
                "error": {name: mean_of(values) for name, values in errors.items()},
                "less_fixed": mean_of(errors[LEAVE_ONE_OUT] - errors[FIXED]),
                "less_best": mean_of(errors[LEAVE_ONE_OUT] - errors[OF_CASE]),
                "chosen": {
                    name: np.quantile(grid[picked[name]], [0.5, 0.25, 0.75]).tolist()
                    for name in (LEAVE_ONE_OUT, HOLD_OUT)
                },
            }

    def ledger_rows(self, results: Rows, rows: Rows) -> Iterator[Claim]:
        """How far the best temperature of the longest prompts moves, and whether they tell it."""
        n, paper, rng = max(self.contexts), "arXiv 2511.01292", np.random.default_rng(0)
        here = {row["case"]: row for row in rows if row["n"] == n}
        errors = {found["case"]: found["prompts"].softmax for found in results if found["n"] == n}
        even = np.full(self.prompts, 1 / self.prompts)
        shares = np.vstack([even, rng.multinomial(self.prompts, even, RESAMPLES) / self.prompts])

        def best(case: str, shares: np.ndarray = shares) -> np.ndarray:
            """Logarithms of the best temperature of all prompts, and of resamples."""
            return np.log(self.grid()[np.argmin(shares @ errors[case], axis=1)])

        def quantiles(logs: np.ndarray) -> tuple[float, float, float]:
            return float(logs[0]), *np.quantile(logs[1:], [0.025, 0.975]).tolist()

        halves = best(SUITED, 2 * even * (np.arange(self.prompts) % 2 == [[0], [1]]))
        apart = float(abs(halves[0] - halves[1]))
        for case in ("more noise", "wider inputs"):
            moved = best(case) - best(SUITED)
            words = f"{case}: the best temperature moves by 10 % or more; log of its ratio"
            control = "between two halves of suited prompts it does not", apart
            judged = verdict(quantiles(moved)[1] > 0.1, apart < 0.1)
            parts = f"{paper}: it moves", None, *quantiles(moved), self.prompts
            yield Claim(words, *parts, *control, judged)
        gap, other = (
            best(SUITED) - np.log(here[case]["in_closed_form"][IN_TAU])
            for case in (SUITED, "wider inputs")
        )
        words = "softmax's best temperature is the quoted optimum within 10 %; log of the ratio"
        control = "that of wider inputs is not its optimum", float(other[0])
        judged = verdict(abs(gap[0]) < 0.1, abs(other[0]) >= 0.1)
        yield Claim(words, paper, 0.0, *quantiles(gap), self.prompts, *control, judged)
        for case in ("wider inputs", "unequal inputs"):
            error = here[case]["error"]
            least = error[OF_CASE]["mean"]
            above, low, high = ends(here[case]["less_best"], least)
            fixed = error[FIXED]["mean"] / least - 1
            words = f"{case}: by leave-one-out the error is at most 5 % above that of the best one"
            control = "at a fixed temperature it is more", fixed
            judged = verdict(high < 0.05, fixed >= 0.05)
            yield Claim(words, "asked here", None, above, low, high, self.prompts, *control, judged)


_name = "{case}, {n} rows".format_map


def claims() -> Claims:
    """What was predicted before the first run."""
    error = lambda row, name: row["error"][name]["mean"]  # noqa: E731
    queries = "wider queries"
    return {
        "first order in 1/τ: the simulated error is within four standard errors of "
        "the formula": lambda row: row["first_order_gap_in_standard_errors"] < 4,
        "the best temperature of softmax is 1.5 to 3 times that of first order in 1/τ": where(
            lambda row: row["case"] == "as suited",
            lambda row: 1.5 < row["best"] / row["in_closed_form"][IN_TAU] < 3.0,
        ),
        "64 rows or more: it is within 15 % of that of first order in 1/n": where(
            lambda row: row["n"] >= 64,
            lambda row: abs(np.log(row["best"] / row["in_closed_form"][IN_N])) < np.log(1.15),
        ),
        "64 rows or more, as suited: leave-one-out is within 5 % of the fixed temperature": where(
            lambda row: row["n"] >= 64 and row["case"] == "as suited",
            lambda row: error(row, LEAVE_ONE_OUT) < 1.05 * error(row, FIXED),
        ),
        "64 rows or more, other inputs: leave-one-out has less error than the fixed one": where(
            lambda row: row["n"] >= 64 and row["case"].endswith("inputs"),
            lambda row: row["less_fixed"]["mean"] + row["less_fixed"]["half_width"] < 0,
        ),
        "64 rows or more, like queries: leave-one-out is within 5 % of the best of the case": where(
            lambda row: row["n"] >= 64 and row["case"] != queries,
            lambda row: error(row, LEAVE_ONE_OUT) < 1.05 * error(row, OF_CASE),
        ),
        "16 rows, as suited: leave-one-out has more error than the fixed temperature": where(
            lambda row: row["n"] == 16 and row["case"] == "as suited",
            lambda row: row["less_fixed"]["mean"] - row["less_fixed"]["half_width"] > 0,
        ),
        "wider queries: leave-one-out, which sees only the context, is 5 % or more above the "
        "best of the case": where(
            lambda row: row["case"] == queries,
            lambda row: error(row, LEAVE_ONE_OUT) > 1.05 * error(row, OF_CASE),
        ),
        "leave-one-out has less error than one hold-out": lambda row: (
            error(row, LEAVE_ONE_OUT) < error(row, HOLD_OUT)
        ),
    }
