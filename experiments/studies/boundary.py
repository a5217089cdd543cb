r"""Order 0 against order 1 at a boundary: bias and variance against asymptotic theory.

A fit at a given lengthscale is linear in the labels, so that of labels $f(x_j)$ without noise it is
its own expectation, and its bias needs no simulation. On a uniform design on [0, 1], with

$$ \mu_j(x) = \int u^j K(u)\, du, \qquad \nu_j(x) = \int u^j K(u)^2\, du \qquad
   \text{over } -x/h \le u \le (1 - x)/h $$

the leading terms of bias and n h times the variance for noise of variance 1 are

$$ \text{order 0:} \quad h f' \frac{\mu_1}{\mu_0} + \frac{h^2}{2} f'' \frac{\mu_2}{\mu_0},
   \qquad \frac{\nu_0}{\mu_0^2} $$

$$ \text{order 1:} \quad \frac{h^2}{2} f'' \frac{\mu_2^2 - \mu_1 \mu_3}{\mu_0 \mu_2 - \mu_1^2},
   \qquad \frac{\mu_2^2 \nu_0 - 2 \mu_1 \mu_2 \nu_1 + \mu_1^2 \nu_2}{(\mu_0 \mu_2 - \mu_1^2)^2} $$

Inside, $\mu_1 = 0$: there both have a bias of h²; at the boundary order 0 has one of h.

**Source:** Fan and Gijbels, *Local polynomial modelling and its applications* (1996), section 3.2.
"""

import itertools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

import attnkernel as ak

from ..config import BUILT_IN, FieldError, Positive
from ..reports import save_with_legend, subplots, ticks_at
from ..runs import NO_MONITOR, Monitor, Run
from .study import Study

REACH = {"gaussian": 12.0, "epanechnikov": 1.0}  # in lengthscales: the kernel is 0 beyond
PLACES = {"boundary": 0, "interior": -1}  # among the inputs asked
ORDERS = {0: "constant", 1: "linear"}
Results = dict[tuple[str, int], np.ndarray]  # by kernel and order


class Boundary(Study):
    """Bias and variance of local constant and local linear fits, measured and by theory."""

    study: Literal["boundary"]
    precision: Literal["float32", "float64"] = "float64"
    n: int = Field(default=20_000, ge=100, le=1_000_000)
    kernels: list[Literal["gaussian", "epanechnikov"]] = Field(
        default=["gaussian", "epanechnikov"], min_length=1, max_length=2
    )
    lengthscales: list[Positive] = Field(
        default=[0.005, 0.01, 0.02, 0.04, 0.08], min_length=2, max_length=12, description="h"
    )
    points: int = Field(default=101, ge=2, le=1000, description="inputs, from boundary to middle")

    def check(self) -> None:
        low, high = 10.0 / self.n, 0.125
        if not low <= min(self.lengthscales) <= max(self.lengthscales) <= high:
            raise FieldError(
                ("lengthscales",),
                f"expected lengthscales from {low:g}, ten of {self.n} points long, to {high}, of "
                f"which the middle is four from both ends; got {self.lengthscales}",
            )

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        lengths, at = np.sort(self.lengthscales), np.linspace(0.0, 0.5, self.points)
        cases = list(itertools.product(self.kernels, ORDERS))

        def fit(case: tuple[str, int]) -> np.ndarray:
            """Returns shape (lengthscales, (measured, predicted), (bias, variance), points)."""
            return np.array(
                [(measured(*case, h, at, self.n), predicted(*case, h, at)) for h in lengths]
            )

        fits = monitor.collect("fits", cases, fit)
        return dict(zip(cases, fits, strict=True))

    def report(self, results: Results, run: Run) -> None:
        lengthscales = np.sort(self.lengthscales)
        rows = [
            {"kernel": name, "order": order, "place": place}
            | _summarise_place((order, place), lengthscales, values[..., column])
            for (name, order), values in results.items()
            for place, column in PLACES.items()
        ]
        who, steps = ("kernel", "order", "place"), ", ".join(f"{h:g}" for h in lengthscales)
        run.table_of(
            f"f(x) = sin(2x + ½), {self.n} points evenly on [0, 1]: bias ÷ theory at h = {steps}, "
            f"and its power of h",
            rows,
            (*who, "ratio", "power", "predicted_power"),
        )
        run.table_of(
            "n h times the variance for noise of variance 1, at these h",
            rows,
            (*who, "variance", "predicted_variance"),
        )
        self._draw_bias(run, rows, results)
        run.summary({"lengthscales": lengthscales, "rows": rows})

    def _draw_bias(self, run: Run, rows: list[dict[str, Any]], results: Results) -> None:
        """Draws the bias against x and against the lengthscale, measured and by theory, and saves
        the figure in `run`. `rows`: those of `_summarise_place`.
        """
        lengthscales, at = np.sort(self.lengthscales), np.linspace(0.0, 0.5, self.points)
        kernel, (figure, (left, right)) = self.kernels[0], subplots(1, 2, figsize=(9.4, 3.7))
        looks = {0: (ak.plot.ORANGE, "s"), 1: (ak.plot.BLUE, "o")}
        theory = {"color": ak.plot.ink(), "linewidth": 0.9}
        for order, (color, _) in looks.items():
            bias, leading = results[kernel, order][-2, :, 0]
            label = f"local {ORDERS[order]}"
            left.plot(at, bias, "-" if order else "--", color=color, label=label, linewidth=3)
            left.plot(at, leading, ":", label="theory: the leading terms", **theory)
        left.set(xlabel="x", ylabel="bias of the fit")
        constant, linear = (abs(results[kernel, order][-2, 0, 0, 0]) for order in looks)
        ratio = f"order 0 has {constant / linear:.2g} × the bias of order 1 at x = 0"
        left.set_title(f"{kernel}, h = {lengthscales[-2]:g}: {ratio}")
        rows = [row for row in rows if row["kernel"] == kernel]
        for row in rows:
            color, marker = looks[row["order"]]
            fill = color if row["place"] == "boundary" else ak.plot.paper()
            look = {"marker": marker, "color": color, "markerfacecolor": fill, "linestyle": "none"}
            label = f"local {ORDERS[row['order']]}, {row['place']}"
            right.plot(lengthscales, np.abs(row["bias"]), **look, label=label)
            right.plot(lengthscales, np.abs(row["predicted_bias"]), ":", **theory)
        right.set(xscale="log", yscale="log", xlabel="lengthscale h", ylabel="|bias of the fit|")
        ticks_at(right.xaxis, lengthscales)
        power = {(row["order"], row["place"]): row["power"] for row in rows}
        others = [value for case, value in power.items() if case != (0, "boundary")]
        span = f"{min(others):.2f} to {max(others):.2f}"
        right.set_title(f"powers of h: {power[0, 'boundary']:.2f} at 0 of order 0, else {span}")
        save_with_legend(run, "boundary", figure, [left, right], columns=3)


def _summarise_place(where: Any, lengthscales: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    """Returns bias and variance, measured and by theory, and the power of h in the bias. `where`:
    order, and boundary or interior; `values`: shape (lengthscales, (measured, predicted), (bias,
    variance)).
    """
    bias, variance = np.moveaxis(values, 2, 0)
    shortest = np.log(lengthscales[:3])
    return {
        "bias": bias[:, 0],
        "predicted_bias": bias[:, 1],
        "ratio": bias[:, 0] / bias[:, 1],
        "power": float(np.polyfit(shortest, np.log(np.abs(bias[:3, 0])), 1)[0]),
        "predicted_power": 1 if where == (0, "boundary") else 2,
        "variance": variance[:, 0],
        "predicted_variance": variance[:, 1],
    }


def mean(x: Any, derivative: int = 0) -> np.ndarray:
    """f(x) = sin(2x + ½), or a derivative of it."""
    return 2.0**derivative * np.sin(2.0 * np.asarray(x) + 0.5 + 0.5 * np.pi * derivative)


def measured(name: str, order: int, h: float, at: np.ndarray, n: int) -> np.ndarray:
    """Bias, and n h times the variance for noise of variance 1: shape (2, points)."""
    x = (np.arange(n) + 0.5) / n
    model = ak.KernelRegression(BUILT_IN[name](h), order=order)
    fitted, variance = _predict(model, at, x, mean(x))
    return np.stack([fitted - mean(at), n * h * variance])


@jax.jit
def _predict(model: ak.KernelRegression, queries: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Returns predictions at `queries` from inputs x and labels y, and their variances for noise of
    variance 1.
    """
    found = model.estimate(queries, ak.models.Rows.read(x, y))
    return found.value, found.variance_of(jnp.ones(len(x)))


def predicted(name: str, order: int, h: float, at: np.ndarray) -> np.ndarray:
    """The leading terms of the same."""
    reach = REACH[name]
    nodes, weights = np.polynomial.legendre.leggauss(200)
    low, high = (np.clip(end / h, -reach, reach) for end in (-at, 1.0 - at))
    u = low[:, None] + (high - low)[:, None] * (nodes + 1.0) / 2.0
    scores = BUILT_IN[name](1.0).pairwise(jnp.zeros((1, 1)), jnp.asarray(u.reshape(-1, 1)))
    shape = np.exp(np.asarray(scores)).reshape(u.shape)
    of_u = weights * (high - low)[:, None] / 2.0
    m0, m1, m2, m3 = (np.sum(of_u * u**j * shape, axis=1) for j in range(4))
    v0, v1, v2 = (np.sum(of_u * u**j * shape**2, axis=1) for j in range(3))
    slope, bend = h * mean(at, 1), 0.5 * h**2 * mean(at, 2)
    if order == 0:
        return np.stack([(slope * m1 + bend * m2) / m0, v0 / m0**2])
    det = m0 * m2 - m1**2
    variance = (m2**2 * v0 - 2.0 * m1 * m2 * v1 + m1**2 * v2) / det**2
    return np.stack([bend * (m2**2 - m1 * m3) / det, variance])
