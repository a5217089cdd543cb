"""The first calls whose latency is timed: their contenders in Python, and the goals for ours."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from . import prepared_calls as prepared
from .prepared_calls import Timed
from .prepared_estimates import estimate, fit_model

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
# most CPU seconds of ours, compiled and from disk, by what a call resembles
LIKE_FIT, LIKE_BANDS, LIKE_NOISE = (1.5, 0.4), (2.5, 0.5), (0.5, 0.1)
MODELS = {  # that are fitted
    "conditional_density": "ConditionalDensity",
    "additive": "AdditiveRegression",
    "partially_linear": "PartiallyLinear",
    "likelihood": "LocalLikelihood",
    "robust": "RobustRegression",
    "local_quantile": "LocalQuantile",
}
ESTIMATES = {
    "relevance_test": LIKE_BANDS,
    "specification_test": LIKE_NOISE,
    "average_derivative": LIKE_BANDS,
    "derivative_bands": LIKE_BANDS,
    "discontinuity": LIKE_BANDS,
    "sheather_jones": LIKE_NOISE,
    "normal_reference": LIKE_NOISE,
    "plug_in": LIKE_BANDS,
    "density": LIKE_NOISE,
    "quantiles": LIKE_NOISE,
}
CPU, WALL, PROGRAMS, MEMORY = "CPU seconds", "seconds", "programs", "growth of memory"


class Call(NamedTuple):
    """A first call: its contenders, and the most that ours may take of a measure."""

    label: str
    contenders: Mapping[str, Callable[[], Timed]]
    measure: str
    limit: float
    disk_limit: float | None = None  # with programs from a disk cache; None: not measured
    over: str | None = None  # the contender whose measure divides ours
    package: str | None = None  # without which no contender runs
    is_process: bool = False  # timed from the start of Python to its end


def make_calls(length: int, rows: int, fits: int) -> dict[str, Call]:
    """All calls by name: attention to `length` tokens, a fit of `rows`, memory of `fits` fits."""
    forward, gradient = (
        {OURS: partial(prepared.attend, "attnkernel", length, which)}
        | {EQUINOX: partial(prepared.attend, "equinox.nn", length, which)}
        for which in ("forward", "gradient")
    )
    whole_fit, folds = (
        {OURS: partial(function, prepared.kernel_regressor)}
        | {
            ORDER_0: partial(function, prepared.kernel_regressor_of_order_0),
            NEIGHBOURS: partial(function, prepared.neighbours),
            PROCESS: partial(function, prepared.gaussian_process),
        }
        for function in (prepared.fit_diabetes, prepared.cross_validate_diabetes)
    )
    linear = {
        OURS: partial(prepared.fit, 1),
        STATSMODELS: partial(prepared.fit_statsmodels, "ll", "aic"),
    }
    constant = {OURS: prepared.fit, STATSMODELS: partial(prepared.fit_statsmodels, "lc", "cv_ls")}
    curves = {
        OURS: prepared.predict,
        STATSMODELS: prepared.predict_statsmodels,
        LOWESS: prepared.predict_lowess,
    }
    large = {
        OURS: partial(prepared.fit_again, rows, False),
        FLOAT64: partial(prepared.fit_again, rows, True),
    }
    inferred = {
        what: {OURS: partial(prepared.infer, what, 0)}
        for what in ("bands", "conformal", "noise_variance", "summarise")
    }
    many = {OURS: partial(prepared.fit_sizes, fits)}
    linear_bands = {OURS: partial(prepared.infer, "bands", 1)}
    attention = f"MultiheadAttention, {length} tokens"
    return {
        "import": Call(
            "import attnkernel, after JAX", {OURS: prepared.import_attnkernel}, CPU, 0.1
        ),
        "fit": Call("fit, order 0, leave-one-out", constant, CPU, 1.0, 0.3),
        "fit_linear": Call("fit, order 1, AICc", linear, CPU, 1.5, 0.4),
        "predict": Call("predict", curves, CPU, 0.3, 0.1),
        "bands": Call("bands, order 0", inferred["bands"], CPU, 2.0, 0.5),
        "bands_linear": Call("bands, order 1", linear_bands, CPU, 2.5, 0.5),
        "summarise": Call("summarise", inferred["summarise"], CPU, 0.5, 0.1),
        "conformal": Call("conformal", inferred["conformal"], CPU, 0.5, 0.1),
        "noise": Call("noise_variance", inferred["noise_variance"], CPU, 0.5, 0.1),
        "script": Call("script", {OURS: prepared.run_script}, CPU, 6.0, 3.0, is_process=True),
        "sklearn_fit": Call("KernelRegressor.fit", whole_fit, WALL, 3.0, 1.5, package="sklearn"),
        "sklearn_folds": Call("cross_val_score", folds, WALL, 6.0, 4.0, package="sklearn"),
        **_further_calls(),
        "another_n": Call("fit, another n", {OURS: prepared.fit_another_n}, PROGRAMS, 0),
        "another_grid": Call(
            "predict, another grid", {OURS: prepared.predict_another_grid}, PROGRAMS, 0
        ),
        "equal_objects": Call(
            "fit, equal objects", {OURS: prepared.fit_equal_objects}, PROGRAMS, 0
        ),
        "attention": Call(attention, forward, CPU, 3.0, 2.0, over=EQUINOX),
        "gradient": Call(f"{attention}, gradient", gradient, CPU, 3.0, 2.0, over=EQUINOX),
        "holdout": Call(
            "run holdout.yaml", {OURS: prepared.run_holdout}, CPU, 6.0, 3.5, is_process=True
        ),
        "large_fit": Call(f"fit, n = {rows}, warm", large, CPU, 2.0, over=FLOAT64),
        "memory": Call(f"{fits} fits, another n each", many, MEMORY, 1.05),
    }


def _further_calls() -> dict[str, Call]:
    """Calls of further models and estimates."""
    fits = {
        name: Call(f"fit, {model}", {OURS: partial(fit_model, model)}, CPU, *LIKE_FIT)
        for name, model in MODELS.items()
    }
    estimates = {
        name: Call(name.replace("_", " "), {OURS: partial(estimate, name)}, CPU, *goals)
        for name, goals in ESTIMATES.items()
    }
    return fits | estimates
