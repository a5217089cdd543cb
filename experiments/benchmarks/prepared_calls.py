"""Functions that import and prepare, and return a call to be timed, ours and of peers in Python.

The call returns arrays; contenders are compared by their norms.
"""
# ruff: noqa: PLC0415  a process imports only what its contender needs

import json
import runpy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Timed = Callable[[], list[Any]]
GRID_POINTS = 100


def import_attnkernel() -> Timed:
    import equinox  # noqa: F401
    import jax  # noqa: F401
    import optax  # noqa: F401

    def call() -> list[Any]:
        import attnkernel  # noqa: F401

        return []

    return call


def load_cps71() -> tuple[Any, Any, Any]:
    """Returns x, y, and a grid over x."""
    import numpy as np

    import attnkernel as ak

    data = ak.data.load("cps71")
    x, y = np.asarray(data.x), np.asarray(data.y)
    return x, y, np.linspace(x.min(), x.max(), GRID_POINTS)


def fit_cps71(order: int, x: Any, y: Any) -> Any:
    """Fits a Gaussian kernel, order 0 by leave-one-out and order 1 by AICc, and waits for it."""
    import jax

    import attnkernel as ak

    model = ak.KernelRegression(ak.Gaussian(5.0), order=order)
    objective = ak.AICc() if order else ak.LeaveOneOut()
    return jax.block_until_ready(ak.fit(model, x, y, objective=objective))


def fit(order: int = 0) -> Timed:
    x, y, _ = load_cps71()
    return lambda: [fit_cps71(order, x, y).loss]


def predict() -> Timed:
    x, y, grid = load_cps71()
    fitted = fit_cps71(0, x, y)
    return lambda: [fitted(grid)]


def infer(what: str, order: int) -> Timed:
    """A function of `ak` that takes a fit: `bands` and `conformal` on the grid; `noise_variance`
    too; `summarise` as printed.
    """
    import attnkernel as ak

    x, y, grid = load_cps71()
    fitted = fit_cps71(order, x, y)

    def call() -> list[Any]:
        if what == "summarise":
            report = ak.summarise(fitted)
            str(report)
            return [report.trace]
        found = getattr(ak, what)(fitted, grid)
        return [found] if what == "noise_variance" else [found.lower, found.upper]

    return call


def run_script() -> Timed:
    def call() -> list[Any]:
        import matplotlib.pyplot as plt

        import attnkernel as ak

        x, y, grid = load_cps71()
        fitted = fit_cps71(0, x, y)
        ak.plot.fit(fitted, ak.bands(fitted, grid))
        with tempfile.TemporaryFile() as file:
            plt.savefig(file)
        report = ak.summarise(fitted)
        print(report)
        return [report.trace]

    return call


def run_holdout() -> Timed:
    """`python -m experiments run configs/holdout.yaml`, as from the shell."""

    def call() -> list[Any]:
        config = Path(__file__).parents[2] / "configs/holdout.yaml"
        with tempfile.TemporaryDirectory() as folder:
            sys.argv = ["experiments", "run", str(config), "--quiet", "--out", f"{folder}/run"]
            try:
                runpy.run_module("experiments", run_name="__main__")
            except SystemExit as ending:
                if ending.code:
                    raise RuntimeError(f"the run ended with exit code {ending.code}") from None
            summary = json.loads(Path(f"{folder}/run/summary.json").read_text(encoding="utf-8"))
        return [[fit["lengthscale"] for fit in summary["fits"]]]

    return call


def fit_another_n() -> Timed:
    x, y, _ = load_cps71()  # 205 rows: padded to 208, as 204 are
    fit_cps71(0, x, y)
    return lambda: [fit_cps71(0, x[:-1], y[:-1]).loss]


def predict_another_grid() -> Timed:
    x, y, grid = load_cps71()  # 100 points: padded to 104, as 99 are
    fitted = fit_cps71(0, x, y)
    fitted(grid)
    return lambda: [fitted(grid[:-1])]


def fit_equal_objects() -> Timed:
    import jax
    import optax

    import attnkernel as ak

    x, y, _ = load_cps71()

    def train() -> list[Any]:
        model = ak.KernelRegression(ak.Gaussian(5.0))
        options = {"objective": ak.HoldOut(5), "optimizer": optax.adam(0.2), "steps": 10}
        return [ak.fit(model, x, y, **options, key=key).loss]

    key = jax.random.PRNGKey(0)
    train()
    return train


def fit_again(rows: int, is_float64: bool) -> Timed:
    import jax

    import attnkernel as ak

    jax.config.update("jax_enable_x64", is_float64)
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0), n=rows)

    def call() -> list[Any]:
        return [fit_cps71(0, data.x, data.y).loss]

    call()
    return call


def fit_sizes(fits: int) -> Timed:
    """Fits of as many sizes from 100 rows, shuffled; returns how many times the peak of memory
    after the first third the peak after all is.
    """
    import numpy as np

    from .driver import peak_bytes

    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(size=100 + fits))
    y = np.sin(6.0 * x) + 0.3 * rng.normal(size=len(x))

    def call() -> list[Any]:
        peaks = []
        for n in 100 + rng.permutation(fits):
            fit_cps71(0, x[:n], y[:n])
            peaks.append(peak_bytes())
        return [peaks[-1] / peaks[fits // 3]]

    return call


def attend(package: str, length: int, which: str) -> Timed:
    """`MultiheadAttention` of a package, called as its users do; the weights are equal."""
    import importlib

    import equinox as eqx
    import jax
    import jax.numpy as jnp

    kind = importlib.import_module(package).MultiheadAttention
    module = kind(8, 512, key=jax.random.PRNGKey(0))
    x = jax.random.normal(jax.random.PRNGKey(1), (length, 512))
    value = eqx.filter_jit(lambda module, x: module(x, x, x))
    gradient = eqx.filter_jit(eqx.filter_grad(lambda module, x: jnp.sum(module(x, x, x) ** 2)))

    def call() -> list[Any]:
        return jax.tree.leaves((value if which == "forward" else gradient)(module, x))

    return call


def kernel_regressor() -> Any:
    from attnkernel.sklearn import KernelRegressor

    return KernelRegressor()


def kernel_regressor_of_order_0() -> Any:
    from attnkernel.sklearn import KernelRegressor

    return KernelRegressor(order=0, per_dimension=True)


def neighbours() -> Any:
    from sklearn.neighbors import KNeighborsRegressor

    return KNeighborsRegressor()


def gaussian_process() -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor, kernels

    scales: Any = [1.0] * 10  # one for each input
    kernel = kernels.ConstantKernel() * kernels.RBF(scales) + kernels.WhiteKernel()
    return GaussianProcessRegressor(kernel, normalize_y=True)


def fit_diabetes(make: Callable[[], Any]) -> Timed:
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    estimator = make()
    return lambda: [getattr(estimator.fit(x, y), "lengthscale_", [])]


def cross_validate_diabetes(make: Callable[[], Any]) -> Timed:
    from sklearn.datasets import load_diabetes
    from sklearn.model_selection import cross_val_score

    x, y = load_diabetes(return_X_y=True)
    estimator = make()
    return lambda: [cross_val_score(estimator, x, y, cv=5)]


def fit_statsmodels(kind: str, criterion: str) -> Timed:
    """`KernelReg`: local constant ("lc") or linear ("ll"), its bandwidth by "cv_ls" or "aic"."""
    from statsmodels.nonparametric.kernel_regression import KernelReg

    x, y, _ = load_cps71()
    return lambda: [KernelReg(y, x, "c", reg_type=kind, bw=criterion).bw]


def predict_statsmodels() -> Timed:
    from statsmodels.nonparametric.kernel_regression import KernelReg

    x, y, grid = load_cps71()
    model = KernelReg(y, x, "c", reg_type="lc", bw="cv_ls")
    return lambda: [model.fit(grid)[0]]


def predict_lowess() -> Timed:
    from statsmodels.nonparametric.smoothers_lowess import lowess

    x, y, grid = load_cps71()
    return lambda: [lowess(y, x[:, 0], xvals=grid)]
