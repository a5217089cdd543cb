"""The first calls whose latency is timed: scripts of their contenders, and the goals for ours.

Data are cps71, 205 rows, where nothing else is said; models of two columns take 205 simulated rows.
"""

from collections.abc import Mapping
from typing import NamedTuple

from .fresh_process import Script

OURS, FLOAT64, EQUINOX = "attnkernel", "attnkernel, float64", "Equinox"
ORDER_0 = "attnkernel, order 0"  # one lengthscale per column, without a choice
STATSMODELS, LOWESS = "statsmodels", "statsmodels, lowess"
NEIGHBOURS, PROCESS = "scikit-learn, neighbours", "scikit-learn, Gaussian process"
PACKAGES = {  # of contenders that need not be installed
    STATSMODELS: "statsmodels.nonparametric.kernel_regression",
    LOWESS: "statsmodels.nonparametric.smoothers_lowess",
    NEIGHBOURS: "sklearn.neighbors",
    PROCESS: "sklearn.gaussian_process",
}
NP, KERNSMOOTH, LOCFIT = "R: np", "R: KernSmooth", "R: locfit"
R_PACKAGES = {NP: "np", KERNSMOOTH: "KernSmooth", LOCFIT: "locfit"}
CACHED = ", from disk"
CONTENDERS = (OURS, OURS + CACHED, FLOAT64, ORDER_0, EQUINOX, EQUINOX + CACHED, STATSMODELS)
CONTENDERS += (LOWESS, NEIGHBOURS, PROCESS, NP, KERNSMOOTH, LOCFIT)
CPU, WALL, PROGRAMS, MEMORY = "CPU seconds", "seconds", "programs", "growth of memory"

SETUP = """
import jax
import jax.numpy as jnp
import numpy as np
import optax
import attnkernel as ak
from attnkernel import econometrics as tests

def fit(x, y, order=0):
    model = ak.KernelRegression(ak.Gaussian(5.0), order=order)
    objective = ak.AICc() if order else ak.LeaveOneOut()
    return jax.block_until_ready(ak.fit(model, x, y, objective=objective))
"""
CPS71 = f"""{SETUP}
data = ak.data.load("cps71")
x, y = np.asarray(data.x), np.asarray(data.y)
grid, key = np.linspace(x.min(), x.max(), 100), jax.random.PRNGKey(0)
"""
FITTED = f"{CPS71}fitted = fit(x, y)\n"
TWO_COLUMNS = f"""{CPS71}
rng = np.random.default_rng(0)
wide = rng.uniform(size=(len(y), 2))
labels = np.sin(6.0 * wide[:, 0]) + wide[:, 1] + 0.3 * rng.normal(size=len(y))
smoother = ak.KernelRegression(ak.Gaussian(5.0))
"""
KERNEL_REG = f"{CPS71}from {PACKAGES[STATSMODELS]} import KernelReg\n"
DIABETES = """
from sklearn.datasets import load_diabetes
from sklearn.model_selection import cross_val_score
x, y = load_diabetes(return_X_y=True)
"""
GAUSSIAN_PROCESS = """
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
kernel = kernels.ConstantKernel() * kernels.RBF([1.0] * 10) + kernels.WhiteKernel()
estimator = GaussianProcessRegressor(kernel, normalize_y=True)
"""
ESTIMATORS = {
    OURS: "from attnkernel.sklearn import KernelRegressor; estimator = KernelRegressor()",
    ORDER_0: "from attnkernel.sklearn import KernelRegressor\n"
    "estimator = KernelRegressor(order=0, per_dimension=True)",
    NEIGHBOURS: "from sklearn.neighbors import KNeighborsRegressor\n"
    "estimator = KNeighborsRegressor()",
    PROCESS: GAUSSIAN_PROCESS,
}
# as a user of both packages calls it; the weights are equal
ATTENTION = """
import equinox as eqx
import jax
import jax.numpy as jnp
from {package} import MultiheadAttention
module = MultiheadAttention(8, 512, key=jax.random.PRNGKey(0))
x = jax.random.normal(jax.random.PRNGKey(1), ({length}, 512))
value = eqx.filter_jit(lambda module, x: module(x, x, x))
gradient = eqx.filter_jit(eqx.filter_grad(lambda module, x: jnp.sum(module(x, x, x) ** 2)))
"""
WHOLE_SCRIPT = """
import tempfile
import matplotlib.pyplot as plt
ak.plot.fit(fitted, ak.bands(fitted, grid))
with tempfile.TemporaryFile() as file:
    plt.savefig(file)
report = ak.summarise(fitted)
print(report)
out = [report.trace]
"""
HOLDOUT = """
import json, pathlib, runpy, sys, tempfile
with tempfile.TemporaryDirectory() as folder:
    sys.argv = ["experiments", "run", "configs/holdout.yaml", "--quiet", "--out", f"{folder}/run"]
    try:
        runpy.run_module("experiments", run_name="__main__")
    except SystemExit as ending:
        if ending.code:
            raise RuntimeError(f"the run ended with exit code {ending.code}") from None
    summary = json.loads(pathlib.Path(f"{folder}/run/summary.json").read_text(encoding="utf-8"))
out = [[each["lengthscale"] for each in summary["fits"]]]
"""
TRAINING = f"""{CPS71}
def train():
    model, objective = ak.KernelRegression(ak.Gaussian(5.0)), ak.HoldOut(5)
    options = {{"objective": objective, "optimizer": optax.adam(0.2), "steps": 10}}
    return [ak.fit(model, x, y, **options, key=key).loss]

train()
"""
# how many times the peak of memory after a third of the fits the peak after all is
MANY_FITS = """
from experiments.benchmarks.driver import peak_bytes
rng = np.random.default_rng(0)
x = np.sort(rng.uniform(size=100 + {fits}))
y = np.sin(6.0 * x) + 0.3 * rng.normal(size=len(x))
peaks = []
"""
EACH_FIT = """
for n in 100 + rng.permutation({fits}):
    fit(x[:n], y[:n])
    peaks.append(peak_bytes())
out = [peaks[-1] / peaks[{fits} // 3]]
"""
LARGE = """
jax.config.update("jax_enable_x64", {is_float64})
data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0), n={rows})
fit(data.x, data.y)
"""
EACH_LARGE = "out = [fit(data.x, data.y).loss]"
# of R, whose scripts are given x, y and the frame `data`
R_GRID = "grid <- data.frame(x = seq(min(x), max(x), length.out = 100)); "


def _locfit(order: int) -> str:
    """Returns lines of R that select a share of neighbours by GCV and fit."""
    shares = "alpha = seq(0.1, 1, by = 0.05)"
    found = f"found <- gcvplot(y ~ lp(x, deg = {order}), data = data, {shares})"
    share = "share <- found$alpha[which.min(found$values)]"
    return f"{found}; {share}; fit <- locfit(y ~ lp(x, nn = share, deg = {order}), data = data)"


MODELS = {  # that are fitted, by leave-one-out where no criterion is given
    "conditional_density": "ak.ConditionalDensity(ak.Gaussian(0.2), ak.Gaussian(0.2)), wide",
    "additive": "ak.AdditiveRegression([ak.Gaussian(0.2)] * 2), wide, labels, objective=ak.AICc()",
    "partially_linear": "tests.PartiallyLinear(ak.KernelRegression(ak.Gaussian(0.2), "
    "order=1), linear=1), wide, labels, objective=ak.AICc()",
    "likelihood": "ak.LocalLikelihood(ak.Gaussian(5.0), family=ak.Binomial(), order=1), x, "
    "(y > 13.5).astype(float)",
    "robust": "ak.RobustRegression(smoother), x, y",
    "local_quantile": "ak.LocalQuantile(ak.Gaussian(5.0)), x, y",
}
# most CPU seconds of ours, compiled and from disk, by what a call resembles
LIKE_FIT, LIKE_BANDS, LIKE_NOISE = (1.5, 0.4), (2.5, 0.5), (0.5, 0.1)
LIMITS = "out = [found.lower, found.upper]"
ESTIMATES = {  # of data and of a fit of order 0
    "summarise": (LIKE_NOISE, "found = ak.summarise(fitted); str(found); out = [found.trace]"),
    "conformal": (LIKE_NOISE, f"found = ak.conformal(fitted, grid); {LIMITS}"),
    "noise": (LIKE_NOISE, "out = [ak.noise_variance(fitted, grid)]"),
    "relevance_test": (LIKE_BANDS, "out = [tests.relevance_test(fitted, 0, key=key).p_value]"),
    "specification_test": (LIKE_NOISE, "out = [tests.specification_test(x, y, key=key).p_value]"),
    "average_derivative": (LIKE_BANDS, "out = [tests.average_derivative(fitted).estimate]"),
    "derivative_bands": (LIKE_BANDS, "out = [ak.bands(fitted, grid, derivative=1).lower]"),
    "discontinuity": (LIKE_BANDS, "out = [tests.discontinuity(x, y, cutoff=40.0).estimate]"),
    "sheather_jones": (LIKE_NOISE, "out = [ak.inference.sheather_jones(x)]"),
    "normal_reference": (LIKE_NOISE, "out = [ak.inference.normal_reference(x)]"),
    "plug_in": (LIKE_BANDS, "out = [ak.inference.plug_in(x, y)]"),
    "density": (LIKE_NOISE, "out = [ak.density(grid, x, kernel=ak.Gaussian(5.0))]"),
    "quantiles": (LIKE_NOISE, "out = [ak.quantiles(fitted, grid, [0.1, 0.9])]"),
}


class Call(NamedTuple):
    """A first call: its contenders, and the most that ours may take of a measure."""

    label: str
    contenders: Mapping[str, Script]
    limit: float
    disk_limit: float | None = None  # with programs from a disk cache; None: not measured
    measure: str = CPU
    over: str | None = None  # the contender whose measure divides ours
    package: str | None = None  # without which no contender runs


def make_calls(length: int, rows: int, fits: int) -> dict[str, Call]:
    """All calls by name: attention to `length` tokens, a fit of `rows`, memory of `fits` fits."""

    def ours(prepare: str, call: str, *, is_process: bool = False) -> dict[str, Script]:
        return {OURS: Script(prepare, call, is_process)}

    def on_diabetes(call: str) -> dict[str, Script]:
        return {name: Script(DIABETES + make, call) for name, make in ESTIMATORS.items()}

    def attend(which: str) -> dict[str, Script]:
        packages = {OURS: "attnkernel", EQUINOX: "equinox.nn"}
        return {
            name: Script(
                ATTENTION.format(package=package, length=length),
                f"out = jax.tree.leaves({which}(module, x))",
            )
            for name, package in packages.items()
        }

    def kernel_reg(kind: str, criterion: str) -> str:
        return f'KernelReg(y, x, "c", reg_type="{kind}", bw="{criterion}")'

    constant = ours(CPS71, "out = [fit(x, y).loss]") | {
        STATSMODELS: Script(KERNEL_REG, f"out = [{kernel_reg('lc', 'cv_ls')}.bw]"),
        NP: Script("", 'npregbw(y ~ x, data = data, regtype = "lc", bwmethod = "cv.ls")'),
        KERNSMOOTH: Script("", "dpill(x, y)"),
        LOCFIT: Script("", _locfit(0)),
    }
    linear = ours(CPS71, "out = [fit(x, y, 1).loss]") | {
        STATSMODELS: Script(KERNEL_REG, f"out = [{kernel_reg('ll', 'aic')}.bw]"),
        NP: Script("", 'npregbw(y ~ x, data = data, regtype = "ll", bwmethod = "cv.aic")'),
        LOCFIT: Script("", _locfit(1)),
    }
    curves = ours(FITTED, "out = [fitted(grid)]") | {
        STATSMODELS: Script(
            f"{KERNEL_REG}model = {kernel_reg('lc', 'cv_ls')}", "out = [model.fit(grid)[0]]"
        ),
        LOWESS: Script(
            f"{CPS71}from {PACKAGES[LOWESS]} import lowess",
            "out = [lowess(y, x[:, 0], xvals=grid)]",
        ),
        NP: Script(f"{R_GRID}h <- npregbw(y ~ x, data = data)", "npreg(h, newdata = grid)"),
        KERNSMOOTH: Script("h <- dpill(x, y)", "locpoly(x, y, bandwidth = h, degree = 0)"),
        LOCFIT: Script(R_GRID + _locfit(0), "predict(fit, grid)"),
    }
    bands, bands_linear = (
        ours(f"{CPS71}fitted = fit(x, y, {order})", f"found = ak.bands(fitted, grid); {LIMITS}")
        | {LOCFIT: Script(R_GRID + _locfit(order), "predict(fit, grid, se.fit = TRUE)")}
        for order in (0, 1)
    )
    script = ours("", FITTED + WHOLE_SCRIPT, is_process=True) | {
        LOCFIT: Script(
            "",
            f'{_locfit(0)}; png(tempfile()); plot(fit, band = "local", get.data = TRUE)\n'
            "dev.off(); print(summary(fit))",
            is_process=True,
        )
    }
    large = {
        name: Script(SETUP + LARGE.format(is_float64=is_float64, rows=rows), EACH_LARGE)
        for name, is_float64 in ((OURS, False), (FLOAT64, True))
    }
    many = ours(SETUP + MANY_FITS.format(fits=fits), EACH_FIT.format(fits=fits))
    whole_fit = on_diabetes('out = [getattr(estimator.fit(x, y), "lengthscale_", [])]')
    folds = on_diabetes("out = [cross_val_score(estimator, x, y, cv=5)]")
    # 205 rows are padded to 208, as 204 are; 100 points of the grid to 104, as 99 are
    another_n = "out = [fit(x[:-1], y[:-1]).loss]"
    another_grid = ours(f"{FITTED}fitted(grid)", "out = [fitted(grid[:-1])]")
    attention = f"MultiheadAttention, {length} tokens"
    calls = {
        "import": Call(
            "import attnkernel, after JAX",
            ours("import equinox, jax, optax", "import attnkernel"),
            0.1,
        ),
        "fit": Call("fit, order 0, leave-one-out", constant, 1.0, 0.3),
        "fit_linear": Call("fit, order 1, AICc", linear, 1.5, 0.4),
        "predict": Call("predict", curves, 0.3, 0.1),
        "bands": Call("bands, order 0", bands, 2.0, 0.5),
        "bands_linear": Call("bands, order 1", bands_linear, 2.5, 0.5),
        **{
            name: Call(
                name.replace("_", " "), ours(FITTED if "fitted" in code else CPS71, code), *goals
            )
            for name, (goals, code) in ESTIMATES.items()
        },
        "script": Call("script", script, 6.0, 3.0),
        "sklearn_fit": Call("KernelRegressor.fit", whole_fit, 3.0, 1.5, WALL, package="sklearn"),
        "sklearn_folds": Call("cross_val_score", folds, 6.0, 4.0, WALL, package="sklearn"),
        **{
            name: Call(
                f"fit, {model.partition('(')[0].rpartition('.')[2]}",
                ours(TWO_COLUMNS, f"out = [jax.block_until_ready(ak.fit({model})).loss]"),
                *LIKE_FIT,
            )
            for name, model in MODELS.items()
        },
        "another_n": Call("fit, another n", ours(FITTED, another_n), 0, measure=PROGRAMS),
        "another_grid": Call("predict, another grid", another_grid, 0, measure=PROGRAMS),
        "equal_objects": Call(
            "fit, equal objects", ours(TRAINING, "out = train()"), 0, measure=PROGRAMS
        ),
        "attention": Call(attention, attend("value"), 3.0, 2.0, over=EQUINOX),
        "gradient": Call(f"{attention}, gradient", attend("gradient"), 3.0, 2.0, over=EQUINOX),
        "holdout": Call("run holdout.yaml", ours("", HOLDOUT, is_process=True), 6.0, 3.5),
        "large_fit": Call(f"fit, n = {rows}, warm", large, 2.0, over=FLOAT64),
        "memory": Call(f"{fits} fits, another n each", many, 1.05, measure=MEMORY),
    }
    calls["noise"] = calls["noise"]._replace(label="noise_variance")
    return calls
