"""Every public callable, with a kind and a valid value of each argument."""

import inspect
import operator
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from paths import DOCS

import attnkernel as ak
import attnkernel.plot
import attnkernel.sklearn
from attnkernel import recurrent

from .arguments import Arguments, arguments_of
from .kinds import uncached_programs
from .legal import EXCLUDED
from .values import FIT, FOLDER, KEY, MODEL, MULTIHEAD, POINTS, SEQUENCE, STACK, Later, N, X, Y, now

GAUSSIAN = ak.Gaussian(0.2)
PER_HEAD = Later(lambda: ak.PerHead(now(STACK)))
DENSITY = Later(lambda: ak.KernelDensity(ak.Gaussian(0.3)))
ONES, TWO_ONES = (jax.device_put(np.ones((n, 1, 1), np.float32)) for n in (3, 2))
# class: an instance, which is called if it can be
INSTANCES: dict[str, Any] = {
    "KernelRegression": MODEL,
    "LocalLikelihood": ak.LocalLikelihood(GAUSSIAN, family=ak.Binomial(), order=1),
    "LocalQuantile": ak.LocalQuantile(GAUSSIAN, level=0.8),
    "RobustRegression": ak.RobustRegression(MODEL),
    "AdditiveRegression": ak.AdditiveRegression([GAUSSIAN]),
    "econometrics.PartiallyLinear": ak.econometrics.PartiallyLinear(MODEL, linear=0),
    "models.BiasReduced": ak.models.BiasReduced(MODEL, 2),
    "models.Derivative": ak.models.Derivative(MODEL, 1),
    "MeanVarianceRegression": ak.MeanVarianceRegression(MODEL, MODEL),
    "MultiheadKernelRegression": Later(lambda: ak.MultiheadKernelRegression(now(PER_HEAD))),
    "LearnedKernelRegression": Later(lambda: ak.LearnedKernelRegression(1, key=KEY)),
    "KernelDensity": DENSITY,
    "ConditionalDensity": Later(lambda: ak.ConditionalDensity(ak.Gaussian(0.3), ak.Gaussian(0.3))),
    "models.Rows": ak.models.Rows,
    "Fit": FIT,
    "losses.CheckLoss": ak.losses.CheckLoss(0.8),
    "priors.Segments": ak.priors.Segments,
    "MultiheadAttention": MULTIHEAD,
    "SelfAttention": Later(lambda: ak.SelfAttention(4, key=KEY)),
    "nn.PersistentMemory": Later(
        lambda: ak.nn.PersistentMemory(now(MULTIHEAD), *np.ones((2, 1, 2, 2)))
    ),
    "nn.BiasReducedAttention": Later(lambda: ak.nn.BiasReducedAttention(now(MULTIHEAD))),
    "nn.LatentAttention": Later(lambda: ak.nn.LatentAttention(2, 4, 3, key=KEY)),
    "nn.RecurrentAttention": Later(
        lambda: ak.nn.RecurrentAttention(2, 4, estimator=recurrent.LinearAttention(), key=KEY)
    ),
    "nn.ShortConvolution": Later(lambda: ak.nn.ShortConvolution(4, 2, key=KEY)),
    "nn.KVCache": Later(lambda: ak.nn.KVCache(4, 1, 1, 1).append(ONES, ONES)[1]),
    "Rotary": ak.Rotary(),
}
METHODS = {
    "KernelRegression": "local_fit",
    "LocalLikelihood": "local_fit deviance",
    "LocalQuantile": "local_fit deviance",
    "RobustRegression": "robustness_weights deviance",
    "AdditiveRegression": "components",
    "econometrics.PartiallyLinear": "coefficients",
    "ConditionalDensity": "mode",
    "models.Rows": "read",
    "Fit": "named",
    "priors.Segments": "from_lengths",
    "MultiheadAttention": "step",
    "nn.ShortConvolution": "step",
    "nn.KVCache": "append keep",
}


def method_call(instance: Any, method: str) -> Callable:
    """The call of a method of an instance that is made when it is first needed."""

    def call(**given: Any) -> Any:
        return getattr(now(instance), method)(**given)

    return call


def scored(objective: Any, model: Any = MODEL) -> Callable:
    def call(**given: Any) -> Any:
        return objective(**given)(now(model), jnp.asarray(POINTS), jnp.asarray(Y), key=KEY)

    return call


def estimated(kind: Any, y: Any) -> Callable:
    return lambda **parameters: kind(**parameters).fit(X[:, None], y)


# objectives are called on data, estimators are fitted
CALLS: dict[str, Callable] = {
    "AICc": scored(ak.AICc),
    "GCV": scored(ak.GCV),
    "LeaveOneOut": scored(ak.LeaveOneOut),
    "KFold": scored(ak.KFold),
    "HoldOut": scored(ak.HoldOut),
    "objectives.ExpectedHoldOut": scored(ak.objectives.ExpectedHoldOut),
    "objectives.GroupKFold": scored(ak.objectives.GroupKFold),
    "objectives.BlockedKFold": scored(ak.objectives.BlockedKFold),
    "objectives.UnbiasedCV": scored(ak.objectives.UnbiasedCV, DENSITY),
    "cache_programs": uncached_programs,
    "sklearn.KernelRegressor": estimated(attnkernel.sklearn.KernelRegressor, Y),
    "sklearn.KernelClassifier": estimated(attnkernel.sklearn.KernelClassifier, X > 0.5),
}
CAUSAL, KERNEL, LENGTH = ("prior", ak.Causal()), ("kernel", ak.Gaussian(0.3)), ("positive", 0.3)
X_ALONE, INPUTS = {"x": ("points", X)}, {"x": ("points", SEQUENCE)}
ANYTHING = ("anything", None)
UNREAD: Arguments = {"y": ANYTHING}
ESTIMATOR: Arguments = {
    "kernel": ("choice", "gaussian"),
    "objective": ("choice?", "leave-one-out"),
    "lengthscale": ("positive?", None),
    "subsample": ("natural?", 100),
}


def saved() -> Path:
    ak.save(FOLDER / "attnkernel-misuse.ak", ak.Gaussian(1.0))
    return FOLDER / "attnkernel-misuse.ak"


# callable: its arguments that are not the usual ones of their names
ODD: dict[str, Arguments] = {
    "kernels.Product": {"first": KERNEL, "second": KERNEL},
    "kernels.of_columns": {
        "x": ("points", POINTS),
        "kernel": ("choice", ak.Gaussian),
        "periods": ("names", {}),
    },
    "kernels.Polynomial": {"offset": ("real", 1.0)},
    "kernels.RandomFeatures": {"count": ("natural", 4), "dim": ("natural", 2)},
    "priors.Kerple": {"rate": LENGTH, "scale": LENGTH},
    "priors.Prefix": {"length": ("whole from 0", 1)},
    "priors.Lengths": {"queries": ("whole from 0?", 1), "keys": ("whole from 0?", 1)},
    "priors.RelativeBias": {"table": ("points", np.zeros(8))},
    "priors.AtPositions": {"prior": CAUSAL},
    "priors.ScoreFunction": {"function": ("function", lambda s, i, j, h: s)},
    "priors.Product": {"first": CAUSAL, "second": CAUSAL},
    "priors.Not": {"mask": ("mask", ak.Causal())},
    "fixed": {"value": ("real", 0.3)},
    "Entmax": {"alpha": ("positive", 1.5)},
    "attention_weights": {"k": ("points", POINTS)},
    "LocalLikelihood.__call__": {"y": ("paired", X)},
    "LocalLikelihood.local_fit": {"y": ("paired", X)},
    "LocalLikelihood.deviance": {"prediction": ("paired", X), "y": ("paired", X)},
    "LocalQuantile": {"order": ("whole from 0", 1)},
    "AdditiveRegression": {"order": ("whole from 0", 1)},
    "econometrics.PartiallyLinear.__call__": {"x_new": ("points", POINTS), "x": ("paired", POINTS)},
    "econometrics.PartiallyLinear.coefficients": {"x": ("paired", POINTS)},
    "MultiheadKernelRegression": {"kernel": ("kernel", PER_HEAD)},
    "density": X_ALONE,
    "KernelDensity.__call__": X_ALONE | UNREAD | {"prior": ANYTHING},
    "ConditionalDensity.__call__": UNREAD | {"x_new": ("points", POINTS), "x": ("points", POINTS)},
    "ConditionalDensity.mode": {"x": ("points", POINTS)},
    "inference.normal_reference": X_ALONE,
    "inference.sheather_jones": X_ALONE,
    "data.heteroskedastic_mean": X_ALONE,
    "data.heteroskedastic_sd": X_ALONE,
    "plot.grid": X_ALONE,
    "MultiheadAttention.__call__": {"key": ANYTHING, "inference": ANYTHING},  # read by dropout
    "MultiheadAttention.step": INPUTS
    | {"cache": ("object", Later(lambda: now(MULTIHEAD).cache(8)))},
    "SelfAttention.__call__": INPUTS,
    "nn.BiasReducedAttention.__call__": INPUTS,
    "nn.LatentAttention.__call__": INPUTS,
    "nn.ShortConvolution.__call__": INPUTS | {"mask": ("flags?", np.ones(4, bool))},
    "nn.ShortConvolution.step": INPUTS | {"mask": ("flags?", np.ones(4, bool))},
    "nn.RecurrentAttention.__call__": INPUTS | {"mask": ("flags?", np.ones(4, bool))},
    "Rotary.__call__": INPUTS,
    "nn.from_torch": {
        "num_heads": ("natural", 2),
        "weights": (
            "object",
            {"in_proj_weight": np.tile(np.eye(4), (3, 1)), "out_proj.weight": np.eye(4)},
        ),
    },
    "nn.PersistentMemory": {"keys": ("paired", np.ones((2, 2, 2)))},
    "nn.RecurrentAttention": {
        "decay": ("choice?", "row"),
        "kernel": ("kernel?", ak.kernels.EluFeatures()),
        "qk_norm": ("flag", True),
    },
    "nn.KVCache": {"vo_size": ("whole from 0", 2)},
    "nn.KVCache.append": {
        "keys": ("paired", TWO_ONES),
        "values": ("paired", TWO_ONES),
        "positions": ("codes?", np.arange(2)),
    },
    "nn.KVCache.keep": {"length": ("whole from 0", 1)},
    "nn.RecurrentCache": {"state": ("object", jax.device_put(np.zeros(2, np.float32)))},
    "recurrent.RecursiveLeastSquares": {"ridge": LENGTH},
    "recurrent.regress": {
        "q": ("paired", POINTS),
        "mask": ("flags?", np.ones(N, bool)),
        "method": ("choice", "chunked"),
    },
    "objectives.log_score": {"prediction": ("object", (jnp.ones(N), jnp.ones(N)))},
    "objectives.GroupKFold": {"folds": ("natural?", 4)},
    "objectives.BlockedKFold": {"folds": ("natural?", 4)},
    "cache_programs": {"folder": ("path?", FOLDER / "programs")},
    "fit": {"y": ("paired", Y)},
    "fit_many": {"key": ("key", jax.random.split(KEY, 2))},
    "choose": {"objective": ("objective", ak.LeaveOneOut()), "starts": ("natural?", 1)},
    "bands": {"draws": ("natural", 20)},
    "conformal": {"level": ("level", 0.5)},
    "econometrics.discontinuity": {
        "cutoff": ("real", 0.5),
        "kernel": ("choice", ak.kernels.Triangular),
        "lengthscale": ("positive?", 0.6),
    },
    "save": {
        "path": ("path", FOLDER / "attnkernel-misuse.ak"),
        "model": ("function", ak.Gaussian(1.0)),
    },
    "load": {"path": ("path", Later(saved))},
    "data.load": {
        "name": ("choice", "faithful"),
        "x": ("names", "eruptions"),
        "y": ("choice?", "waiting"),
    },
    "data.read_csv": {
        "path": ("path", Path(ak.__file__).parent / "data" / "csv" / "faithful.csv"),
        "x": ("names", "eruptions"),
        "y": ("choice", "waiting"),
        "names": ("names", None),
        "categories": ("names", ()),
        "weights": ("choice?", None),
        "clusters": ("choice?", None),
    },
    "plot.discontinuity": {
        "result": (
            "object",
            Later(lambda: ak.econometrics.discontinuity(X, Y, cutoff=0.5, lengthscale=0.6)),
        )
    },
    "plot.partial": {"band": ("flag", True)},
    "plot.show": {"name": ("path", "misuse")},
    "plot.interact": {"query": ("names", (0.0, -1.0, 1.0))},
    "plot.weights": {"queries": ("points", np.array([0.2]))},
    "plot.Smooth": {"band": ("flag", True)},
    "plot.votes": {"x_new": ("points", np.array([0.2]))},
    "sklearn.KernelRegressor": ESTIMATOR,
    "sklearn.KernelClassifier": ESTIMATOR,
}
ADDITIVE = ak.AdditiveRegression([GAUSSIAN])
ADDITIVE_FIT = Later(lambda: ak.fit(ADDITIVE, X, Y, objective=ak.AICc(), starts=1))
# "callable of ...": another call, with arguments that the first call leaves out; None: the callable
# with what else it needs
OTHER_CALLS: dict[str, tuple[Callable | None, Arguments]] = {
    "NearestNeighbours of a number": (None, {"neighbours": ("natural?", 3)}),
    "Alibi of heads": (None, {"heads": ("natural?", 2)}),
    "priors.RelativeBias of a number": (None, {"table": ("natural", 8)}),
    "Softmax of a logarithm": (None, {"log_sink_mass": ("real?", 0.1)}),
    "MultiheadAttention of an order": (None, {"order": ("whole from 0", 1)}),
    "Rotary of frequencies": (None, {"frequencies": ("points?", np.ones(2))}),
    "bands of a curve": (
        lambda **given: ak.bands(now(ADDITIVE_FIT), X, corrected=False, noise="constant", **given),
        {"component": ("whole from 0?", 0)},
    ),
    "bands of a simultaneous kind": (
        lambda **given: ak.bands(now(FIT), X, kind="simultaneous", draws=20, **given),
        {"key": ("key", KEY)},
    ),
    "conformal of a split": (
        lambda **given: ak.conformal(now(FIT), X, kind="split", level=0.5, **given),
        {"key": ("key", KEY)},
    ),
}


def public_callables() -> dict[str, Any]:
    """Every public class and function, by its name in the reference."""
    public = runpy.run_path(str(DOCS / "extensions" / "names.py"))["public"]()
    names = (name.partition(".")[2] for name in public)
    found = {name: operator.attrgetter(name)(ak) for name in names}
    return {name: thing for name, thing in found.items() if callable(thing)}


def is_misused(name: str, thing: Any) -> bool:
    return not (
        name.rpartition(".")[2] in EXCLUDED
        or inspect.isabstract(thing)
        or (inspect.isclass(thing) and issubclass(thing, Exception))
    )


def all_calls() -> dict[str, tuple[Callable, Arguments]]:
    """What is called, by name, with its arguments."""
    signatures = {
        name: (CALLS.get(name, thing), thing)
        for name, thing in PUBLIC.items()
        if is_misused(name, thing)
    } | {
        f"{owner}.{method}": (method_call(instance, method), getattr(PUBLIC[owner], method))
        for owner, instance in INSTANCES.items()
        for method in ("__call__", *METHODS.get(owner, "").split())
        if method != "__call__" or method in dir(PUBLIC[owner])
    }
    found = {}
    for name, (call, thing) in signatures.items():
        others = {one: parts for one, parts in OTHER_CALLS.items() if one.startswith(f"{name} ")}
        elsewhere = {argument for _, odd in others.values() for argument in odd}
        found[name] = call, arguments_of(thing, ODD.get(name, {}), elsewhere)
        for other, (call, odd) in others.items():
            optional = inspect.signature(thing).parameters
            found[other] = (call, odd) if call else (thing, arguments_of(thing, odd, optional))
    return found


PUBLIC = public_callables()
CALLABLES = all_calls()
