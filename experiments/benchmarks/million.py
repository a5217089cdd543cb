"""Leave-one-out at a million points: whole fits, and the time of one criterion against n.

The criterion is a sum over all pairs of n points. Transforms and sorted sums need n log n steps.
Beside them stand the methods that look at every pair, and R's KernSmooth, which does neither: it
bins the data and takes a plug-in bandwidth (`dpill`, then `locpoly`), without a criterion.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from jaxtyping import Array, PRNGKeyArray

import attnkernel as ak

from ..config_source import FieldError
from ..parts import Name, Part, Positive
from ..run import Run
from ..study import Study
from ..watch import SILENT, Watch
from .driver import Unavailable, agreement, interleaved, medians, timed
from .kernsmooth import kernsmooth
from .million_criterion import criterion, newton_step, rule_of_thumb
from .million_figures import Curves, curves_of, draw_fit, draw_times
from .regression import keops
from .tables import note_unavailable, table_of_targets, target

R, KEOPS = "R: dpill + locpoly", "KeOps, a sum"
Rows = Annotated[int, pydantic.Field(ge=100, le=100_000_000)]
SAME_CRITERION = ("Fourier", "Blockwise", "Dense")  # the criterion of one Gaussian
TYPICAL_LENGTHSCALE = {
    1: 0.2,
    2: 0.25,
    3: 0.4,
}  # the lengthscale of a fit, of a rule of thumb, about
KEOPS_ROWS = 20_000  # from which KeOps is extrapolated
LOOKS = {
    "Fourier": {"color": ak.plot.BLUE, "marker": "o"},
    "Sorted": {"color": ak.plot.GREEN, "marker": "D"},
    "Blockwise": {"color": ak.plot.SKY, "marker": "s"},
    "Dense": {"color": ak.plot.PURPLE, "marker": "v"},
    KEOPS: {"color": ak.plot.ORANGE, "marker": "^"},
    R: {"color": ak.plot.GREY, "marker": "x", "linestyle": ":"},
}


class FitOf(Part):
    """A whole leave-one-out fit of n points in some dimensions."""

    n: Rows
    dim: Annotated[int, pydantic.Field(ge=1, le=3)] = 1


class Results(NamedTuple):
    """Whole fits, seconds by size, contenders that did not run, notes, and the curves drawn."""

    fits: list[dict[str, Any]]
    times: list[dict[str, Any]]
    unavailable: list[tuple[str, str, str]]
    notes: list[str]
    curves: Curves | None


class Million(Study):
    """Whole fits, their criterion and curve, and seconds of every contender against n."""

    study: Literal["million"]
    name: Name = "million"
    precision: Literal["float32", "float64"] = "float64"
    fits: Annotated[list[FitOf], pydantic.Field(min_length=1)] = [
        FitOf(n=1_000_000),
        FitOf(n=10_000_000),
        FitOf(n=1_000_000, dim=2),
        FitOf(n=1_000_000, dim=3),
    ]
    tol: Annotated[float, pydantic.Field(ge=1e-12, le=1e-2)] = 1e-6
    curve: Annotated[int, pydantic.Field(ge=3, le=1000)] = pydantic.Field(
        default=25, description="lengthscales at which the criterion is drawn"
    )
    sizes: list[Rows] = [1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 10_000_000]
    dims: list[Annotated[int, pydantic.Field(ge=1, le=3)]] = [1, 2, 3]
    most_seconds: Positive = pydantic.Field(
        default=12.0,
        description="a method that took longer is not run at larger n; of a fit that took "
        "five times as long, compiling, one more is timed",
    )
    repeats: Annotated[int, pydantic.Field(ge=1, le=100)] = 3
    is_benchmark: ClassVar[bool] = True

    def check(self) -> None:
        if self.precision != "float64":
            raise FieldError(("precision",), "expected float64: a certificate needs its digits")

    def compute(self, key: PRNGKeyArray, watch: Watch = SILENT) -> Results:
        places = [(n, dim) for dim in self.dims for n in sorted(self.sizes)]
        results = Results([], [], [], [], None)
        slow: set[tuple[str, int]] = set()
        with watch.progress("million", len(self.fits) + len(places)) as tick:
            for done, what in enumerate(self.fits, 1):
                row, curves = self._fit(key, what, results, with_curves=what == self.fits[0])
                results.fits.append(row)
                results = results._replace(curves=results.curves or curves)
                tick(done, f"fit of n = {what.n}, d = {what.dim}")
            for done, (n, dim) in enumerate(places, len(self.fits) + 1):
                results.times.extend(self._times(key, n, dim, slow, results.unavailable))
                tick(done, f"n = {n}, d = {dim}")
        return results

    def report(self, results: Results, run: Run) -> None:
        fits, times = results.fits, results.times
        run.note(results.notes)
        note_unavailable(run, results.unavailable)
        self._tables(run, fits, times)
        ratios = {
            f"n = {fit['n']}": fit["seconds"] / fit[R]["seconds"]
            for fit in fits
            if fit.get(R) is not None
        }
        targets = [target("whole fit, over R's dpill + locpoly", 3.0, ratios, at_most=True)]
        table_of_targets(run, targets)
        if results.curves is not None:
            draw_fit(run, results.curves)
        draw_times(run, times, LOOKS)
        run.summary({"tol": self.tol, "fits": fits, "times": times, "targets": targets})

    def _data(self, key: PRNGKeyArray, n: int, dim: int) -> tuple[Array, Array]:
        """The curve of Czyż (2024); in more dimensions the mean of one such curve per input."""
        if dim == 1:
            data = ak.data.heteroskedastic(key=key, n=n)
            return data.x, data.y
        x_key, noise_key = jax.random.split(key)
        x = jax.random.uniform(x_key, (n, dim), minval=-3.0, maxval=3.0)
        mean = jnp.mean(ak.data.heteroskedastic_mean(x), axis=1)
        sd = jnp.mean(ak.data.heteroskedastic_sd(x), axis=1)
        return x, mean + sd * jax.random.normal(noise_key, (n,))

    def _fit(
        self, key: PRNGKeyArray, what: FitOf, results: Results, *, with_curves: bool
    ) -> tuple[dict[str, Any], Curves | None]:
        x, y = self._data(key, what.n, what.dim)
        start = rule_of_thumb(x)
        fourier = ak.Fourier(self.tol)
        model, *bounds = (
            ak.KernelRegression(ak.Gaussian(start * factor), method=fourier)
            for factor in (1.0, 0.05, 3.0)
        )

        def fit() -> ak.Fit:
            return ak.fit(
                model, x, y, objective=ak.LeaveOneOut(), bounds=(bounds[0], bounds[1]), starts=1
            )

        cold, result = timed(fit)
        repeats = self.repeats if cold < 5.0 * self.most_seconds else 1
        warm = [timed(lambda: fit().loss)[0] for _ in range(repeats)]
        found = result.model.kernel.lengthscale
        recomputed = fourier.recomputed(
            x, x, y[:, None], kernel=result.model.kernel, prior=ak.priors.ExcludeSelf()
        )
        row = {
            "n": what.n,
            "dim": what.dim,
            "start": start,
            "lengthscale": found,
            "criterion": result.loss,
            "off_by": newton_step(self.tol, found, x, y),
            "steps": int(result.starts.steps[0]),
            "recomputed": int(recomputed),
            "cold_seconds": cold,
            "seconds": float(np.median(warm)),
            "all_seconds": warm,
        }
        if what.dim > 1:
            return row, None
        try:
            row[R] = kernsmooth(x[:, 0], y, self.repeats)
        except Unavailable as reason:
            row[R] = None
            results.notes.append(f"no {R}: {reason}")
            results.notes.append(self._extrapolate_keops(key, row))
        curves = curves_of(result, x, y, row, row[R], self.curve) if with_curves else None
        if row[R] is not None:
            del row[R]["curve"]  # it is among the arrays of the figure
        return row, curves

    def _extrapolate_keops(self, key: PRNGKeyArray, row: dict[str, Any]) -> str:
        """The seconds of KeOps for the criteria of the fit, by n² from a smaller n; in words."""
        x, y = self._data(key, KEOPS_ROWS, 1)
        try:
            contender = keops(jnp.asarray(row["lengthscale"]), x, y[:, None])
        except Unavailable as reason:
            return f"no {KEOPS} in its place: {reason}"
        seconds = medians(interleaved({KEOPS: contender}, self.repeats)[0])[KEOPS]
        row[KEOPS] = seconds * (row["n"] / KEOPS_ROWS) ** 2 * (row["steps"] + 1)
        return (
            f"KeOps, extrapolated from {KEOPS_ROWS} points, would take {row[KEOPS]:.3g} s for the "
            f"{row['steps'] + 1} criteria of the fit of {row['n']}, "
            f"{row[KEOPS] / row['seconds']:.3g} times as long, without their gradients."
        )

    def _times(
        self,
        key: PRNGKeyArray,
        n: int,
        dim: int,
        slow: set[tuple[str, int]],
        unavailable: list[tuple[str, str, str]],
    ) -> list[dict[str, Any]]:
        """Seconds of the leave-one-out criterion and its gradient, by every contender."""
        x, y = self._data(key, n, dim)
        lengthscale = rule_of_thumb(x) * TYPICAL_LENGTHSCALE[dim]
        makers: dict[str, Callable[[], Callable[[], Any]]] = {
            "Fourier": lambda: criterion(ak.Gaussian, ak.Fourier(self.tol), lengthscale, x, y),
            "Blockwise": lambda: criterion(ak.Gaussian, ak.Blockwise(), lengthscale, x, y),
            "Dense": lambda: criterion(ak.Gaussian, ak.Dense(), lengthscale, x, y),
            KEOPS: lambda: keops(jnp.asarray(lengthscale), x, y[:, None]),
        }
        if dim == 1:
            makers["Sorted"] = lambda: criterion(
                ak.Epanechnikov, ak.Sorted(), 2 * lengthscale, x, y
            )
            makers[R] = lambda: lambda: None  # it times itself
        rows, found = [], {}
        for name, make in makers.items():
            if (name, dim) in slow or (name == "Dense" and n > 20_000):  # 3 GiB of scores
                continue
            try:
                if name == R:
                    median = kernsmooth(x[:, 0], y, self.repeats)["seconds"]
                else:
                    contender = make()
                    first, result = timed(contender)
                    if name in SAME_CRITERION:
                        found[name] = result[0]
                    # the first of a peer may compile: of a long one, one more
                    repeats = self.repeats if first < self.most_seconds else int(name == KEOPS)
                    again = [timed(contender)[0] for _ in range(repeats)]
                    median = float(np.median(again or [first]))
            except Unavailable as reason:
                slow.add((name, dim))
                unavailable.append((name, f"d = {dim}", str(reason)))
                continue
            if median > self.most_seconds:
                slow.add((name, dim))
            rows.append({"contender": name, "n": n, "dim": dim, "seconds": median})
        if found:
            agreement(found, next(iter(found)), 10.0 * self.tol)
        return rows

    def _tables(self, run: Run, fits: list[dict[str, Any]], times: list[dict[str, Any]]) -> None:
        run.table(
            "Leave-one-out fits, whole",
            ["n", "d", "ℓ", "off by", "criterion", "recomputed", "s", "s, compiling", "R, s"],
            [
                [
                    str(fit["n"]),
                    str(fit["dim"]),
                    f"{float(fit['lengthscale']):.6g}",
                    f"{fit['off_by']:.1e}",
                    f"{float(fit['criterion']):.7g}",
                    str(fit["recomputed"]),
                    f"{fit['seconds']:.2f}",
                    f"{fit['cold_seconds']:.1f}",
                    "" if fit.get(R) is None else f"{fit[R]['seconds']:.2f}",
                ]
                for fit in fits
            ],
        )
        contenders = list(dict.fromkeys(row["contender"] for row in times))
        found = {(row["dim"], row["n"], row["contender"]): row["seconds"] for row in times}
        run.table(
            "One criterion and its slope (of KeOps: a sum; of R: bandwidth and curve), seconds",
            ["d", "n", *contenders],
            [
                [str(dim), str(n)]
                + [f"{found[dim, n, s]:.3g}" if (dim, n, s) in found else "" for s in contenders]
                for dim, n in sorted({(row["dim"], row["n"]) for row in times})
            ],
        )
