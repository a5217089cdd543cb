"""Bandwidths by generalised cross-validation (GCV) and their local constant fits, against fastLPR.

Both approximate the sums over all pairs by a nonuniform FFT: ours to a certified tolerance, with
the exact degrees of freedom; fastLPR estimates these from ten random vectors, over a grid of
bandwidths. The errors of both are measured beside their seconds.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import pydantic
from jaxtyping import Array, Float, PRNGKeyArray

import attnkernel as ak

from ..config_fields import Name, Positive
from ..config_source import FieldError
from .benchmark import Benchmark, Results
from .driver import Case, optional_import
from .million_criterion import rule_of_thumb
from .reports import number, ratios, target

OURS, FASTLPR = "attnkernel", "fastLPR"
BOUNDS = (0.05, 3.0)  # times Scott's rule
BANDWIDTHS = 20  # of the grid of fastLPR
GRID_POINTS = 401
EXACT_TOLERANCE = 1e-10  # of the criterion by which both bandwidths are compared


class Curve(NamedTuple):
    """A bandwidth, and the fit at the points of a grid."""

    bandwidth: float
    values: Float[np.ndarray, " grid"]


class BenchGCV(Benchmark):
    """Seconds, criteria and errors of curves whose bandwidth minimises GCV, for growing n."""

    study: Literal["bench_gcv"]
    name: Name = "bench_gcv"
    precision: Literal["float32", "float64"] = "float64"
    n: Annotated[
        list[Annotated[int, pydantic.Field(ge=100, le=10_000_000)]], pydantic.Field(min_length=1)
    ] = [1000, 10_000, 100_000]
    tol: Annotated[float, pydantic.Field(ge=1e-12, le=1e-2)] = 1e-6
    repeats: Annotated[int, pydantic.Field(ge=1, le=1000)] = 3
    max_run_seconds: Positive = 60.0
    looks: ClassVar = {
        OURS: {"color": ak.plot.BLUE, "marker": "o"},
        FASTLPR: {"color": ak.plot.ORANGE, "marker": "s"},
    }
    along: ClassVar = "n"
    x_label: ClassVar = "rows n"
    unit: ClassVar = "seconds: bandwidth and curve"

    def check(self) -> None:
        if self.precision != "float64":
            raise FieldError(("precision",), "expected float64: a certificate needs its digits")

    def cases(self, key: PRNGKeyArray) -> list[Callable[[], Case]]:
        return [functools.partial(self._make_case, key, n) for n in sorted(set(self.n))]

    def _make_case(self, key: PRNGKeyArray, n: int) -> Case:
        """Returns the `Case` that times both on n simulated rows of one column."""
        data = ak.data.heteroskedastic(key=key, n=n)
        x, y = data.x, data.y
        grid = np.linspace(float(jnp.min(x)), float(jnp.max(x)), GRID_POINTS)
        start = rule_of_thumb(x)
        low, high = (start * factor for factor in BOUNDS)

        def check(results: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
            criteria = {name: _gcv(curve.bandwidth, x, y) for name, curve in results.items()}
            return {
                "bandwidth": {name: curve.bandwidth for name, curve in results.items()},
                "criterion": criteria,
                "criterion_above_ours": {
                    name: value / criteria[OURS] - 1.0 for name, value in criteria.items()
                },
                "curve_error": {
                    name: curve_error(curve, grid, x, y) for name, curve in results.items()
                },
            }

        contenders: dict[str, Callable[[], Callable[[], Curve]]] = {
            OURS: lambda: functools.partial(self._fit, x, y, grid, start),
            FASTLPR: lambda: fastlpr(x, y, grid, low, high),
        }
        return Case({"n": n}, f"n = {n}", contenders, check)

    def _fit(self, x: Array, y: Array, grid: np.ndarray, start: float) -> Curve:
        """Returns the curve of attnkernel: GCV by `Fourier`, from Scott's rule."""
        model, low, high = (
            ak.KernelRegression(ak.Gaussian(start * factor), method=ak.Fourier(self.tol))
            for factor in (1.0, *BOUNDS)
        )
        fit = ak.fit(model, x, y, objective=ak.GCV(), bounds=(low, high), starts=1)
        return Curve(float(fit.model.kernel.lengthscale), np.asarray(fit(grid)))

    def columns(self, row: Mapping[str, Any]) -> dict[str, str]:
        def cells(field: str, form: Callable[[float], str]) -> str:
            return ", ".join(form(value) for value in row[field].values())

        return {
            "bandwidths": cells("bandwidth", number),
            "GCV above ours": cells("criterion_above_ours", lambda above: f"{above:+.1e}"),
            "error of the curve, at most": cells("curve_error", lambda error: f"{error:.1e}"),
        }

    def targets(self, results: Results) -> list[dict[str, Any]]:
        rows = results.table
        largest = [row for row in rows if row["n"] == max(self.n)]
        errors = {row["label"]: row["curve_error"][OURS] for row in rows}
        return [
            target(f"{FASTLPR}, seconds over ours", 5.0, ratios(largest, FASTLPR, OURS)),
            target("error of our curve", 10.0 * self.tol, errors, at_most=True),
        ]


def fastlpr(
    x: Float[Array, "n 1"],
    y: Float[Array, " n"],
    grid: Float[np.ndarray, " grid"],
    low: float,
    high: float,
) -> Callable[[], Curve]:
    """`cv_fastlpr` of order 0: the least GCV of 20 bandwidths from `low` to `high`.

    **Raises:** `Unavailable` if the package, or Numba, is not installed.
    """
    optional_import("numba")  # without it, version 1.0.1 fails in single precision
    package = optional_import("fastlpr")
    inputs, labels = np.asarray(x, float), np.asarray(y, float)
    bandwidths = package.get_hlist(BANDWIDTHS, [low, high])

    def choose_and_fit() -> Curve:
        fitted = package.cv_fastlpr(inputs, labels, bandwidths, {"order": 0, "dstd": 0})
        values = np.ravel(package.fastlpr_predict(fitted, grid[:, None]))
        return Curve(float(np.ravel(fitted.h)[0]), values)

    return choose_and_fit


def curve_error(curve: Curve, grid: Float[np.ndarray, " grid"], x: Array, y: Array) -> float:
    """Returns the greatest difference between a curve and the exact fit of its bandwidth."""
    exact = ak.KernelRegression(ak.Gaussian(curve.bandwidth), method=ak.Blockwise())
    return float(np.max(np.abs(np.asarray(exact(grid, x, y)) - curve.values)))


def _gcv(bandwidth: float, x: Array, y: Array) -> float:
    """Returns GCV of a bandwidth, to a tolerance far below the differences."""
    model = ak.KernelRegression(ak.Gaussian(bandwidth), method=ak.Fourier(EXACT_TOLERANCE))
    return float(ak.GCV()(model, x, y))
