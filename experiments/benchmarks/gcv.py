"""Bandwidths by generalised cross-validation (GCV), and their fits of order 0 and 1, and fastLPR's.

Both approximate the sums over all pairs by a nonuniform FFT: ours to a certified tolerance, with
the exact degrees of freedom; fastLPR estimates these from ten random vectors, over a grid of
bandwidths. The errors of both, of the criterion on that grid and of the fit, are measured beside
their seconds.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import NonEmpty, Positive
from ..runs import as_cell
from .benchmark import Benchmark, Results
from .driver import Case, optional_import
from .growth import BOUNDS, fit_gaussian, scott_rule
from .reports import ratios, target

OURS, FASTLPR = "attnkernel", "fastLPR"
BANDWIDTHS = 20  # of the grid of fastLPR
GRID_POINTS = 401
EXACT_TOLERANCE = 1e-10  # of the criterion by which both are compared, above
MAX_PAIRWISE_ROWS = 10_000  # up to which it sums all pairs


class Curve(NamedTuple):
    """A bandwidth, the fit at the points of a grid, and GCV at bandwidths, where it is known."""

    bandwidth: float
    values: Float[np.ndarray, " grid"]
    criteria: Float[np.ndarray, " bandwidths"] | None = None


class BenchGCV(Benchmark):
    """Seconds, criteria and errors of curves whose bandwidth minimises GCV, for growing n."""

    study: Literal["bench_gcv"]
    # a certificate needs its digits
    precision: Literal["float64"] = "float64"  # pyright: ignore[reportIncompatibleVariableOverride]
    n: NonEmpty[Annotated[int, Field(ge=100, le=10_000_000)]] = [1000, 10_000, 100_000]
    orders: NonEmpty[Literal[0, 1, 2]] = [0, 1]
    tol: float = Field(default=1e-6, ge=1e-12, le=1e-2)
    repeats: int = Field(default=3, ge=1, le=1000)
    max_run_seconds: Positive = 60.0
    compared: ClassVar = (OURS, FASTLPR)
    axes: ClassVar = ("orders", "n")
    along: ClassVar = "n"
    x_label: ClassVar = "rows n"
    panel_title: ClassVar = "order {order}"
    unit: ClassVar = "seconds: bandwidth and curve"

    def make_case(self, key: PRNGKeyArray, order: int, n: int) -> Case:
        """Returns the `Case` that times both on n simulated rows of one column."""
        data = ak.data.heteroskedastic(key=key, n=n)
        x, y = data.x, data.y
        grid = np.linspace(float(jnp.min(x)), float(jnp.max(x)), GRID_POINTS)
        start = scott_rule(x)
        bandwidths = start * np.geomspace(*BOUNDS, BANDWIDTHS)
        exact = ak.methods.Fourier(EXACT_TOLERANCE)  # a tolerance far below the differences
        if n <= MAX_PAIRWISE_ROWS:
            exact = ak.methods.Blockwise()

        def gcv(bandwidths: np.ndarray, method: ak.methods.Method) -> np.ndarray:
            model = ak.KernelRegression(ak.Gaussian(start), order=order, method=method)
            return np.asarray(ak.profile(model, x, y, bandwidths, objective=ak.GCV()))

        def fit() -> Curve:
            found = fit_gaussian(x, y, ak.GCV(), method=ak.methods.Fourier(self.tol), order=order)
            return Curve(float(found.model.kernel.lengthscale), np.asarray(found(grid)))

        def check(results: Mapping[str, Any], _: Mapping[str, Any]) -> dict[str, Any]:
            found = {name: curve.bandwidth for name, curve in results.items()}
            values = gcv(np.array([*found.values(), *bandwidths]), exact).tolist()
            criteria = dict(zip(found, values, strict=False))
            of_grid = np.array(values[len(found) :])
            curves = {name: curve.criteria for name, curve in results.items()}
            curves[OURS] = gcv(bandwidths, ak.methods.Fourier(self.tol))
            row: dict[str, dict[str, float]] = {"criterion_error": {}, "bandwidth": found}
            row |= {"criterion": criteria, "criterion_above_ours": {}, "curve_error": {}}
            for name, curve in results.items():
                if curves[name] is not None:
                    gaps = np.abs(curves[name] / of_grid - 1.0)
                    row["criterion_error"][name] = float(np.max(gaps))
                if OURS in criteria:
                    row["criterion_above_ours"][name] = criteria[name] / criteria[OURS] - 1.0
                row["curve_error"][name] = curve_error(curve, order, grid, x, y)
            return row

        contenders: dict[str, Callable[[], Callable[[], Curve]]] = {
            OURS: lambda: fit,
            FASTLPR: lambda: fastlpr(x, y, order, grid, bandwidths),
        }
        return Case({"n": n, "order": order}, f"n = {n}, order {order}", contenders, check)

    def columns(self, row: Mapping[str, Any]) -> dict[str, str]:
        shown = {
            "bandwidths": row["bandwidth"],
            "GCV above ours": row["criterion_above_ours"],
            "error of GCV, at most": row["criterion_error"],
            "error of the curve, at most": row["curve_error"],
        }
        return {name: as_cell(list(values.values()), 3) for name, values in shown.items()}

    def targets(self, results: Results) -> Iterator[dict[str, Any]]:
        faster = ratios(results.table, FASTLPR, OURS, n=max(self.n))
        curves, criteria = (
            {row["label"]: row[f"{what}_error"][OURS] for row in results.table}
            for what in ("curve", "criterion")
        )
        yield target(f"{FASTLPR}, seconds over ours", 5.0, faster)
        yield target("error of our curve", 10.0 * self.tol, curves, at_most=True)
        yield target("error of our criterion", 10.0 * self.tol, criteria, at_most=True)


def fastlpr(x: Array, y: Array, order: int, grid: Any, bandwidths: Any) -> Callable[[], Curve]:
    """`cv_fastlpr`: the least GCV of these bandwidths, and its fit at a grid of inputs.

    Its bandwidths are in standard deviations of the inputs; those here are in units of x.

    **Raises:** `Unavailable` if the package, or Numba, is not installed.
    """
    optional_import("numba")  # without it, version 1.0.1 fails in single precision
    package = optional_import("fastlpr")
    inputs, labels = np.asarray(x, float), np.asarray(y, float)
    unit = float(np.std(inputs, ddof=1))

    def choose_and_fit() -> Curve:
        options = {"order": order, "dstd": 0}
        fitted = package.cv_fastlpr(inputs, labels, bandwidths[:, None] / unit, options)
        values = np.ravel(package.fastlpr_predict(fitted, grid[:, None]))
        bandwidth = unit * float(np.ravel(fitted.h)[0])
        return Curve(bandwidth, values, np.ravel(fitted.gcv["gcv_m"]))

    return choose_and_fit


def curve_error(curve: Curve, order: int, grid: np.ndarray, x: Array, y: Array) -> float:
    """Returns the greatest difference between a curve and the exact fit of its bandwidth."""
    kernel = ak.Gaussian(curve.bandwidth)
    exact = ak.KernelRegression(kernel, order=order, method=ak.methods.Blockwise())
    return float(np.max(np.abs(np.asarray(exact(grid, x, y)) - curve.values)))
