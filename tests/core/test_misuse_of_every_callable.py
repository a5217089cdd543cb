"""Every public callable with every argument misused: a sentence that names the argument, or none.

Run alone, `PYTHONPATH=tests/shared python tests/core/test_misuse_of_every_callable.py`, it prints
a table: for each callable, how many calls raised a sentence, raised something else, or returned.
"""

import importlib
import inspect
import linecache
import re
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import marks
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import attnkernel as ak
import attnkernel.plot
import attnkernel.sklearn
from attnkernel import kernels, methods, priors, recurrent

PACKAGE = str(Path(ak.__file__).parent)
MODULES = (
    "",
    *(".data", ".kernels", ".priors", ".rules", ".methods", ".attention", ".nn", ".models"),
    *(".families", ".losses", ".recurrent"),
    *(".objectives", ".fitting", ".inference", ".plot", ".sklearn"),
)

# ---------------------------------------------------------------------------- valid values

N = 8
X = np.linspace(0.0, 1.0, N)
Y = np.sin(6.0 * X) + 0.1 * np.cos(40.0 * X)
POINTS = np.stack([X, X**2], axis=1)
SEQUENCE = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)), jnp.float32)
KEY = jax.random.PRNGKey(0)
FOLDER = Path(tempfile.gettempdir())
CSV = Path(ak.__file__).parent / "data" / "csv" / "faithful.csv"
MODEL = ak.KernelRegression(ak.Gaussian(0.2))


class Later(NamedTuple):
    """A valid value that is made once, when it is first needed."""

    make: Callable[[], Any]


_made: dict[Callable, Any] = {}


def now(value: Any) -> Any:
    if not isinstance(value, Later):
        return value
    if value.make not in _made:
        _made[value.make] = value.make()
    return _made[value.make]


def _fitted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ak.FitWarning)
        return _fit()


def _fit():
    return ak.fit(MODEL, X, Y, objective=ak.LeaveOneOut(), starts=1)


def _band():
    return ak.bands(now(FIT), X)


def _saved():
    ak.save(FOLDER / "attnkernel-misuse.ak", ak.Gaussian(1.0))
    return FOLDER / "attnkernel-misuse.ak"


def _discontinuity():
    return ak.inference.discontinuity(X, Y, cutoff=0.5, lengthscale=0.6)


DISCONTINUITY = Later(_discontinuity)
FIT, BAND, SAVED = Later(_fitted), Later(_band), Later(_saved)
AX = Later(lambda: plt.subplots()[1])
STACK = Later(lambda: eqx.filter_vmap(ak.Gaussian)(jnp.array([0.1, 0.3])))
MULTIHEAD = Later(lambda: ak.MultiheadAttention(2, 4, key=KEY))
SELF = Later(lambda: ak.SelfAttention(4, key=KEY))
PER_HEAD = Later(lambda: ak.PerHead(now(STACK)))
HEADS_OF_REGRESSION = Later(lambda: ak.MultiheadKernelRegression(now(PER_HEAD)))
DENSITY = Later(lambda: ak.KernelDensity(ak.Gaussian(0.3)))
CONDITIONAL = Later(lambda: ak.ConditionalDensity(ak.Gaussian(0.3), ak.Gaussian(0.3)))
REDUCED = ak.BiasReduced(MODEL, 2)
LIKELIHOOD = ak.LocalLikelihood(ak.Gaussian(0.2), family=ak.Binomial(), order=1)
ROBUST = ak.RobustRegression(MODEL)
ADDITIVE = ak.AdditiveRegression([ak.Gaussian(0.2)])
PARTIALLY_LINEAR = ak.PartiallyLinear(MODEL, linear=0)
QUANTILE = ak.LocalQuantile(ak.Gaussian(0.2), level=0.8)
LEARNED = Later(lambda: ak.LearnedKernelRegression(1, key=KEY))

# ---------------------------------------------------------------------------- misuses by kind

NAN, INF = float("nan"), float("inf")


class Traced(NamedTuple):
    """A value that the call gets as a tracer, inside `jax.jit`."""

    value: Any


def changed(array: Any, value: Any) -> np.ndarray:
    out = np.array(array, dtype=float)
    out[(0,) * out.ndim] = value
    return out


def masked(array: Any) -> Any:
    mask = np.zeros(np.shape(array), bool)
    mask[(0,) * mask.ndim] = True
    return np.ma.masked_array(np.asarray(array), mask)


NO_NUMBERS: dict[str, Any] = {
    "None": None,
    "a word": "abc",
    "an object": object(),
    "a class": ak.Gaussian,
    "complex": 1.0 + 2.0j,
    "words": ["a", "b"],
    "a dictionary": {"a": 1.0},
}
NUMBER = NO_NUMBERS | {
    "NaN": NAN,
    "inf": INF,
    "-inf": -INF,
    "masked": np.ma.masked_array(1.0, mask=True),
    "a Series with a gap": pd.Series([1.0, NAN]),
    "an array of three axes": np.ones((2, 2, 2)),
    "no number": np.zeros(0),
    "huge": 1e300,
}
WHOLE = NO_NUMBERS | {
    "NaN": NAN,
    "inf": INF,
    "a digit": "3",
    "a fraction": 2.5,
    "a Boolean": True,
    "negative": -1,
    "huge": 2**70,
    "two": np.array([2, 3]),
    "no number": np.zeros(0, int),
    "masked": np.ma.masked_array(1, mask=True),
    "traced": Traced(3),
}
LEVEL = NO_NUMBERS | {
    "zero": 0.0,
    "one": 1.0,
    "above one": 1.5,
    "negative": -0.1,
    "NaN": NAN,
    "inf": INF,
    "a digit": "0.9",
    "two": np.array([0.5, 0.6]),
    "masked": np.ma.masked_array(0.5, mask=True),
    "traced": Traced(0.5),
}
FLAG = {
    "None": None,
    "a word": "no",
    "a number": 2,
    "NaN": NAN,
    "several": np.array([True, False]),
    "a class": ak.Gaussian,
    "traced": Traced(True),
}
CHOICE = {
    "None": None,
    "misspelt": "pointwize",
    "a number": 3,
    "a class": ak.Gaussian,
    "a list": ["a"],
    "an array": np.ones(2),
}
RANDOM_KEY = {
    "None": None,
    "a word": "abc",
    "a seed": 0,
    "a fraction": 0.5,
    "floats": np.zeros(2, np.float32),
    "three numbers": np.zeros(3, np.uint32),
    "a class": ak.Gaussian,
}
OBJECT = {
    "None": None,
    "a word": "gaussian",
    "a number": 0.3,
    "an array": np.ones((2, 2)),
    "a list": [1],
    "a function": np.sin,
    "a dictionary": {"a": 1},
    "another object": 3.0 + 1j,
}
FUNCTION = {"None": None, "a word": "abc", "a number": 0.3, "an array": np.ones(2)}
PATH = {"None": None, "a number": 3, "an array": np.ones(2), "a class": ak.Gaussian}
NAMES = {"a number": 3, "an array": np.ones(2), "a class": ak.Gaussian, "numbers": [1, 2]}


def uncached_programs(folder: Any) -> Any:
    """Calls `ak.cache_programs`, and leaves the programs of this process uncached."""
    before = cast(Any, jax.config).jax_compilation_cache_dir
    try:
        return ak.cache_programs(folder)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def points(valid: Any) -> dict[str, Any]:
    """Misuses of points or labels, in the shape of the valid ones."""
    shape = np.shape(valid)
    return {
        "None": None,
        "a word": "abc",
        "an object": object(),
        "a class": ak.Gaussian,
        "a dictionary": {"a": 1.0},
        "a single number": 3.0,
        "digits": np.full(shape, "1"),
        "objects": np.full(shape, None),
        "complex": np.ones(shape, complex),
        "ragged": [[1.0], [1.0, 2.0]],
        "dates": np.full(shape, np.datetime64("2020-01-01")),
        "three axes more": np.asarray(valid)[..., None, None, None],
        "NaN": changed(valid, NAN),
        "inf": changed(valid, INF),
        "huge": changed(valid, 1e300),
        "masked": masked(valid),
        "a Series with a gap": pd.Series(changed(valid, NAN).ravel()),
    }


def paired(valid: Any) -> dict[str, Any]:
    """Misuses of what has a row for each row of another argument."""
    rows = np.asarray(valid)
    return points(valid) | {
        "no rows": rows[:0],
        "a row less": rows[:-1],
        "a row more": np.concatenate([rows, rows[:1]]),
    }


def shares(valid: Any) -> dict[str, Any]:
    return paired(valid) | {"negative": changed(valid, -1.0), "all zero": np.zeros(np.shape(valid))}


def instance(of: type, other: Any) -> dict[str, Any]:
    return OBJECT | {"a class": of, "another object": other}


def flags(valid: Any) -> dict[str, Any]:
    """Misuses of an array of Booleans."""
    return {
        "None": None,
        "a word": "abc",
        "an object": object(),
        "a class": ak.Gaussian,
        "fractions": np.full(np.shape(valid), 0.5),
        "numbers": np.full(np.shape(valid), 2),
        "words": np.full(np.shape(valid), "a"),
        "NaN": np.full(np.shape(valid), NAN),
        "masked": masked(valid),
        "an axis more": np.asarray(valid)[..., None],
        "a single one": True,
    }


def codes(valid: Any) -> dict[str, Any]:
    """Misuses of an array of integers."""
    rows = np.asarray(valid)
    wrong = flags(valid) | {"huge": np.full(rows.shape, 2**40), "inf": np.full(rows.shape, INF)}
    del wrong["numbers"]
    return wrong | {"a single one": 3}


KINDS: dict[str, Any] = {
    "points": points,
    "paired": paired,
    "weights": shares,
    "flags": flags,
    "codes": codes,
    "real": NUMBER,
    "positive": NUMBER | {"zero": 0.0, "negative": -1.0},
    "not negative": NUMBER | {"negative": -1.0},
    "natural": WHOLE | {"zero": 0},
    "whole from 0": WHOLE,
    "whole": {name: value for name, value in WHOLE.items() if name != "negative"},
    "level": LEVEL,
    "flag": FLAG,
    "choice": CHOICE,
    "key": RANDOM_KEY,
    "function": FUNCTION,
    "path": PATH,
    "names": NAMES,
    "kernel": instance(ak.Gaussian, ak.Softmax()),
    "prior": instance(ak.Causal, ak.Gaussian(1.0)),
    "mask": instance(ak.Causal, ak.Alibi(0.5)),
    "rule": instance(ak.Softmax, ak.Gaussian(1.0)),
    "method": instance(ak.Dense, ak.Gaussian(1.0)),
    "objective": instance(ak.LeaveOneOut, ak.Gaussian(1.0)),
    "model": instance(ak.KernelRegression, ak.Gaussian(1.0)),
    "family": instance(ak.Binomial, ak.Gaussian(1.0)),
    "estimator": instance(recurrent.DeltaRule, ak.Gaussian(1.0)),
    "loss": instance(ak.Huber, ak.Gaussian(1.0)),
    "rotary": instance(ak.Rotary, ak.Gaussian(1.0)),
    "fit": instance(ak.Fit, MODEL),
    "bands": instance(ak.Bands, MODEL),
    "dataset": instance(ak.data.Dataset, MODEL),
    "object": OBJECT | {"a class": ak.Gaussian},
    "axes": {name: value for name, value in OBJECT.items() if name != "None"},
}

# ---------------------------------------------------------------------------- the callables

Arguments = dict[str, tuple[str, Any]]  # name: kind ("?": None is the default), valid value


def of_class(name: str, **arguments: Any) -> dict[str, tuple[Any, Arguments]]:
    where = next(m for m in (ak, kernels, priors, methods, recurrent) if hasattr(m, name))
    return {name: (getattr(where, name), arguments)}


LENGTH, KERNEL = ("positive", 0.3), ("kernel", ak.Gaussian(0.3))
PARTS = {
    "kernel": KERNEL,
    "prior": ("prior?", None),
    "rule": ("rule", ak.Softmax()),
    "method": ("method", ak.Dense()),
}
DATA: Arguments = {"x": ("paired", X), "y": ("paired", Y)}
CALL: Arguments = {"x_new": ("points", X), **DATA}
OF_MODEL: Arguments = {**CALL, "prior": ("prior?", None), "weights": ("weights?", np.ones(N))}
AXES = {"ax": ("axes", AX)}
SIZES = {"qk_size": ("natural?", 2), "vo_size": ("natural?", 2)}
METRIC = ("paired?", np.eye(1))
SEEDED = ("key", KEY)
ROTARY_BASE: Arguments = {"base": ("positive", 100.0)}
LONGER: Arguments = {
    "size": ("natural", 4),
    "factor": ("positive", 2.0),
    "length": ("natural", 64),
}
OPTIONS = {
    "optimizer": ("object?", None),
    "bounds": ("object?", None),
    "trainable": ("object", eqx.is_inexact_array),
    "record": ("function?", None),
    "callback": ("function?", None),
    "checkpoints": ("object?", None),
}
SKLEARN = {
    "kernel": ("choice", "gaussian"),
    "order": ("whole from 0?", 0),
    "iterations": ("natural", 1),
    "objective": ("choice?", "leave-one-out"),
    "lengthscale": ("positive?", None),
    "per_dimension": ("flag", True),
    "on_empty": ("choice", "nearest"),
    "starts": ("natural?", 1),
}


def estimated(kind: Any, y: Any) -> Callable:
    return lambda **parameters: kind(**parameters).fit(X[:, None], y)


def later(model: Later) -> Callable:
    """The call of a model that is made when it is first needed."""

    def call(**given: Any) -> Any:
        return now(model)(**given)

    return call


def scored(objective: Any) -> Callable:
    return lambda **given: objective(**given)(MODEL, jnp.asarray(POINTS), jnp.asarray(Y), key=KEY)


RADIAL = (
    "Gaussian",
    "Laplace",
    "Matern32",
    "Matern52",
    "Cauchy",
    "Boxcar",
    "Triangular",
    "Epanechnikov",
    "Biweight",
    "Triweight",
    "Tricube",
    "Cosine",
)

CALLABLES: dict[str, tuple[Any, Arguments]] = {
    **{name: (getattr(ak, name), {"lengthscale": LENGTH, "metric": METRIC}) for name in RADIAL},
    **of_class("RationalQuadratic", lengthscale=LENGTH, alpha=LENGTH, metric=METRIC),
    **of_class("Periodic", lengthscale=LENGTH, period=LENGTH),
    **of_class("AitchisonAitken", bandwidth=("not negative", 0.1), categories=("natural", 3)),
    **of_class("LiRacine", bandwidth=("not negative", 0.1)),
    **of_class("LiRacineOrdered", bandwidth=("not negative", 0.1)),
    **of_class("WangVanRyzin", bandwidth=("not negative", 0.1)),
    **of_class("DotProduct", scale=("real?", 1.0)),
    **of_class("Polynomial", degree=("natural", 2), offset=("real", 1.0), scale=("real?", 1.0)),
    **of_class("Additive", weight=("points", np.ones(2))),
    **of_class("Bilinear", matrix=("points", np.eye(2))),
    **of_class("CosineSimilarity", scale=("real", 1.0)),
    **of_class("NearestNeighbours", kernel=KERNEL, fraction=("level?", 0.5)),
    "NearestNeighbours of a number": (
        ak.NearestNeighbours,
        {"kernel": KERNEL, "neighbours": ("natural?", 3)},
    ),
    **of_class("On", kernel=KERNEL, columns=("whole from 0", 0)),
    **of_class("Product", first=KERNEL, second=KERNEL),
    **of_class("Rescaled", kernel=KERNEL, factor=LENGTH),
    **of_class(
        "Projected",
        kernel=KERNEL,
        query_proj=("function", lambda q: q),
        key_proj=("function", lambda k: k),
    ),
    **of_class("SoftCapped", kernel=KERNEL, cap=("positive", 50.0)),
    **of_class(
        "RandomFeatures",
        count=("natural", 4),
        dim=("natural", 2),
        positive=("flag", True),
        orthogonal=("flag", True),
        key=SEEDED,
    ),
    "convert_lengthscale": (
        kernels.convert_lengthscale,
        {"lengthscale": LENGTH, "source": ("choice", "standard"), "target": ("choice", "standard")},
    ),
    **of_class("Alibi", slope=("real?", 0.5)),
    "Alibi of heads": (ak.Alibi, {"heads": ("natural?", 2)}),
    "alibi_slopes": (priors.alibi_slopes, {"heads": ("natural", 2)}),
    **of_class("Kerple", rate=LENGTH, scale=LENGTH),
    **of_class(
        "RelativeBias",
        table=("points", np.zeros(8)),
        max_distance=("natural", 128),
        bidirectional=("flag", True),
    ),
    "RelativeBias of a number": (ak.RelativeBias, {"table": ("natural", 8)}),
    **of_class("Table", bias=("points", np.zeros((2, 2)))),
    **of_class("Forget", log_gates=("points", -np.ones(2))),
    **of_class("KeyWeights", log_weights=("points", np.zeros(2))),
    **of_class("HeldOut", held_out=("flags", np.array([True, False]))),
    **of_class("Given", allowed=("flags", np.eye(2, dtype=bool))),
    **of_class("Segments", queries=("codes", np.array([0, 1])), keys=("codes?", np.array([0, 1]))),
    **of_class(
        "At",
        prior=("prior", ak.Causal()),
        queries=("codes", np.array([0, 1])),
        keys=("codes?", np.array([0, 1])),
    ),
    **of_class("Causal", offset=("whole", 0)),
    **of_class("Window", left=("whole from 0", 1), right=("whole from 0", 1)),
    **of_class("Prefix", length=("whole from 0", 1)),
    **of_class("Lengths", queries=("whole from 0?", 1), keys=("whole from 0?", 1)),
    **of_class("Where", function=("function", lambda i, j: j <= i)),
    "priors.Product": (
        priors.Product,
        {"first": ("prior", ak.Causal()), "second": ("prior", ak.Causal())},
    ),
    **of_class("And", first=("mask", ak.Causal()), second=("mask", ak.Causal())),
    **of_class("Or", first=("mask", ak.Causal()), second=("mask", ak.Causal())),
    **of_class("Not", mask=("mask", ak.Causal())),
    **of_class("PerHead", stack=("kernel", STACK), axes=("natural", 1)),
    "fixed": (ak.fixed, {"value": ("real", 0.3)}),
    **of_class("Softmax", temperature=LENGTH, sink_mass=("positive", 0.1)),
    **of_class("Entmax", alpha=("positive", 1.5), temperature=LENGTH),
    **of_class("Blockwise", block_q=("natural?", 8), block_k=("natural?", 8)),
    **of_class("Fourier", tol=("level", 1e-6)),
    **of_class(
        "Fused", dtype=("choice?", None), platform=("choice?", None), interpret=("flag", False)
    ),
    **of_class("Linear", features=("object?", None)),
    **of_class(
        "Sharded",
        mesh=("object?", None),
        axis=("choice", "devices"),
        ring=("flag", False),
        inner=("method", ak.Blockwise()),
    ),
    "attend": (
        ak.attend,
        {
            "q": ("points", POINTS),
            "k": ("paired", POINTS),
            "v": ("paired", POINTS),
            **PARTS,
            "return_log_mass": ("flag", False),
        },
    ),
    "attention_weights": (
        ak.attention_weights,
        {
            "q": ("points", POINTS),
            "k": ("points", POINTS),
            **{name: PARTS[name] for name in ("kernel", "prior", "rule")},
        },
    ),
    "select_method": (
        ak.select_method,
        {
            "q": ("points", POINTS),
            "k": ("paired", POINTS),
            "v": ("paired", POINTS),
            **{name: PARTS[name] for name in ("kernel", "prior", "rule")},
            "order": ("whole from 0", 0),
        },
    ),
    **of_class(
        "KernelRegression",
        kernel=KERNEL,
        order=("whole from 0", 0),
        rule=PARTS["rule"],
        method=PARTS["method"],
        on_empty=("choice", "nan"),
    ),
    "KernelRegression.__call__": (MODEL, OF_MODEL),
    "KernelRegression.local_fit": (MODEL.local_fit, OF_MODEL),
    "KernelRegression.fitted_and_leverage": (
        MODEL.fitted_and_leverage,
        {**DATA, "weights": ("weights?", np.ones(N))},
    ),
    "KernelRegression.prediction_variance": (
        MODEL.prediction_variance,
        {
            "x_new": ("points", X),
            "x": ("paired", X),
            "variance": ("paired", np.ones(N)),
            "weights": ("weights?", np.ones(N)),
        },
    ),
    **of_class(
        "LocalLikelihood",
        kernel=KERNEL,
        family=("family", ak.Binomial()),
        order=("whole from 0", 0),
        rule=PARTS["rule"],
        on_empty=("choice", "nan"),
    ),
    "LocalLikelihood.__call__": (LIKELIHOOD, OF_MODEL | {"y": ("paired", X)}),
    "LocalLikelihood.local_fit": (LIKELIHOOD.local_fit, OF_MODEL | {"y": ("paired", X)}),
    "LocalLikelihood.deviance": (
        LIKELIHOOD.deviance,
        {"prediction": ("paired", X), "y": ("paired", X)},
    ),
    **of_class(
        "LocalQuantile",
        kernel=KERNEL,
        level=("level", 0.8),
        order=("whole from 0", 1),
        rule=PARTS["rule"],
        on_empty=("choice", "nan"),
    ),
    "LocalQuantile.__call__": (QUANTILE, OF_MODEL),
    "LocalQuantile.local_fit": (QUANTILE.local_fit, OF_MODEL),
    "LocalQuantile.deviance": (
        QUANTILE.deviance,
        {"prediction": ("paired", X), "y": ("paired", X)},
    ),
    **of_class("Bisquare", cutoff=("positive?", 4.0)),
    **of_class("Huber", cutoff=("positive?", 1.5)),
    **of_class(
        "RobustRegression",
        model=("model", MODEL),
        loss=("loss", ak.Huber()),
        iterations=("natural", 2),
    ),
    "RobustRegression.__call__": (ROBUST, OF_MODEL),
    "RobustRegression.robustness_weights": (
        ROBUST.robustness_weights,
        {"x": ("paired", X), "y": ("paired", Y), "weights": ("weights?", np.ones(N))},
    ),
    "RobustRegression.deviance": (
        ROBUST.deviance,
        {"prediction": ("paired", X), "y": ("paired", X)},
    ),
    **of_class(
        "AdditiveRegression", kernels=("object", [ak.Gaussian(0.2)]), order=("whole from 0", 1)
    ),
    "AdditiveRegression.__call__": (ADDITIVE, OF_MODEL),
    "AdditiveRegression.components": (
        ADDITIVE.components,
        {
            "x_new": ("points", X),
            "x": ("paired", X),
            "y": ("paired", Y),
            "weights": ("weights?", np.ones(N)),
        },
    ),
    **of_class("PartiallyLinear", model=("model", MODEL), linear=("whole from 0", 0)),
    "PartiallyLinear.__call__": (
        PARTIALLY_LINEAR,
        OF_MODEL | {"x_new": ("points", POINTS), "x": ("paired", POINTS)},
    ),
    "PartiallyLinear.coefficients": (
        PARTIALLY_LINEAR.coefficients,
        {
            "x": ("paired", POINTS),
            "y": ("paired", Y),
            "noise": ("choice", "rows"),
            "weights": ("weights?", np.ones(N)),
        },
    ),
    **of_class("BiasReduced", model=("model", MODEL), iterations=("natural", 2)),
    "BiasReduced.__call__": (REDUCED, OF_MODEL),
    "models.Derivative": (
        ak.models.Derivative,
        {"model": ("model", MODEL), "derivative": ("natural", 1)},
    ),
    "models.Derivative.__call__": (ak.models.Derivative(MODEL, 1), OF_MODEL),
    **of_class("MeanVarianceRegression", mean=("model", MODEL), variance=("model", MODEL)),
    "MeanVarianceRegression.__call__": (ak.MeanVarianceRegression(MODEL, MODEL), OF_MODEL),
    **of_class(
        "MultiheadKernelRegression",
        kernel=("kernel", PER_HEAD),
        coefficients=("paired?", np.ones(2)),
        rule=PARTS["rule"],
        method=PARTS["method"],
        on_empty=("choice", "nan"),
    ),
    "MultiheadKernelRegression.__call__": (
        later(HEADS_OF_REGRESSION),
        OF_MODEL,
    ),
    **of_class(
        "LearnedKernelRegression",
        dim=("natural", 1),
        out=("natural", 1),
        num_heads=("natural", 1),
        **SIZES,
        embedding=("function?", None),
        on_empty=("choice", "nan"),
        key=SEEDED,
    ),
    "LearnedKernelRegression.__call__": (
        later(LEARNED),
        OF_MODEL,
    ),
    **of_class(
        "MultiheadAttention",
        num_heads=("natural", 2),
        query_size=("natural", 4),
        key_size=("natural?", 4),
        value_size=("natural?", 4),
        output_size=("natural?", 4),
        **SIZES,
        use_query_bias=("flag", False),
        use_key_bias=("flag", False),
        use_value_bias=("flag", False),
        use_output_bias=("flag", False),
        dropout_p=("level", 0.5),
        dtype=("choice?", None),
        inference=("flag", False),
        num_kv_heads=("natural?", 2),
        kernel=KERNEL,
        prior=("prior?", None),
        rule=PARTS["rule"],
        method=PARTS["method"],
        ridge=("not negative", 0.0),
        rotary=("rotary?", ak.Rotary()),
        qk_norm=("flag", False),
        key=SEEDED,
    ),
    "MultiheadAttention of an order": (
        ak.MultiheadAttention,
        {
            "num_heads": ("natural", 2),
            "query_size": ("natural", 4),
            "order": ("whole from 0", 1),
            "key": SEEDED,
        },
    ),
    "MultiheadAttention.__call__": (
        later(MULTIHEAD),
        {
            "query": ("points", SEQUENCE),
            "key_": ("paired", SEQUENCE),
            "value": ("paired", SEQUENCE),
            "mask": ("flags?", np.tri(4, dtype=bool)),
            "prior": ("prior?", None),
            "positions": ("codes?", np.arange(4)),
            "key_positions": ("codes?", np.arange(4)),
            "process_heads": ("function?", None),
        },
    ),
    **of_class(
        "SelfAttention",
        size=("natural", 4),
        **SIZES,
        use_bias=("flag", False),
        **PARTS,
        key=SEEDED,
    ),
    "SelfAttention.__call__": (
        later(SELF),
        {"x": ("points", SEQUENCE), "prior": ("prior?", None)},
    ),
    **of_class(
        "KVCache",
        capacity=("natural", 4),
        heads=("natural", 2),
        qk_size=("natural", 2),
        vo_size=("natural", 2),
        ring=("flag", False),
        dtype=("choice?", None),
    ),
    "KVCache.append": (
        lambda **given: ak.KVCache(4, 2, 4, 4).append(**given),
        {
            "keys": ("paired", jnp.ones((2, 2, 4))),
            "values": ("paired", jnp.ones((2, 2, 4))),
        },
    ),
    **of_class(
        "RecurrentCache",
        heads=("natural", 2),
        features=("natural", 2),
        vo_size=("natural", 2),
        dtype=("choice?", None),
    ),
    **of_class("LinearAttention", normalised=("flag", False)),
    **of_class("RecursiveLeastSquares", ridge=LENGTH, intercept=("flag", False)),
    "regress": (
        recurrent.regress,
        {
            "q": ("paired", POINTS),
            "k": ("paired", POINTS),
            "v": ("paired", POINTS),
            "estimator": ("estimator", recurrent.LinearAttention()),
            "log_decay": ("paired?", -np.ones((N, 1))),
            "rate": ("paired?", np.ones(N)),
            "mask": ("flags?", np.ones(N, bool)),
            "state": ("object?", None),
            "method": ("choice", "chunked"),
        },
    ),
    **of_class("Rotary", base=("positive", 100.0), interleaved=("flag", False)),
    "Rotary of frequencies": (ak.Rotary, {"frequencies": ("points?", np.ones(2))}),
    "Rotary.__call__": (
        ak.Rotary(),
        {"x": ("points", SEQUENCE), "positions": ("codes", np.arange(4))},
    ),
    "nn.rotary_frequencies": (ak.nn.rotary_frequencies, {"size": ("natural", 4), **ROTARY_BASE}),
    "nn.ntk_frequencies": (
        ak.nn.ntk_frequencies,
        {"size": ("natural", 4), "factor": ("positive", 2.0), **ROTARY_BASE},
    ),
    "nn.llama3_frequencies": (
        ak.nn.llama3_frequencies,
        {**LONGER, **ROTARY_BASE, "low": ("positive", 1.0), "high": ("positive", 4.0)},
    ),
    "nn.yarn_frequencies": (
        ak.nn.yarn_frequencies,
        {**LONGER, **ROTARY_BASE, "fast": ("positive", 32.0), "slow": ("positive", 1.0)},
    ),
    "nn.axial_frequencies": (ak.nn.axial_frequencies, {"sizes": ("object", [4, 2]), **ROTARY_BASE}),
    "density": (
        ak.density,
        {
            "x_new": ("points", X),
            "x": ("points", X),
            "kernel": KERNEL,
            "weights": ("weights?", np.ones(N)),
            "log": ("flag", False),
            "method": PARTS["method"],
        },
    ),
    **of_class("KernelDensity", kernel=KERNEL, support=("object?", None), method=PARTS["method"]),
    "KernelDensity.__call__": (
        later(DENSITY),
        {"x_new": ("points", X), "x": ("points", X), "weights": ("weights?", np.ones(N))},
    ),
    **of_class("ConditionalDensity", kernel=KERNEL, label_kernel=KERNEL, method=PARTS["method"]),
    "ConditionalDensity.__call__": (
        later(CONDITIONAL),
        {"x_new": ("points", POINTS), "x": ("points", POINTS), "prior": ("prior?", None)},
    ),
    "ConditionalDensity.mode": (
        lambda **given: now(CONDITIONAL).mode(**given),
        {"x_new": ("points", X), "x": ("points", POINTS), "weights": ("weights?", np.ones(N))},
    ),
    "objectives.UnbiasedCV": (
        lambda **given: ak.objectives.UnbiasedCV(**given)(now(DENSITY), jnp.asarray(X)[:, None], Y),
        {"weights": ("weights?", np.ones(N))},
    ),
    "normal_reference": (ak.normal_reference, {"x": ("points", X), "robust": ("flag", True)}),
    "inference.sheather_jones": (
        ak.inference.sheather_jones,
        {"x": ("points", X), "kind": ("choice", "ste")},
    ),
    "plug_in": (ak.plug_in, {"x": ("paired", X), "y": ("paired", Y)}),
    "squared_error": (ak.squared_error, {"prediction": ("paired", Y), "y": ("paired", Y)}),
    "absolute_error": (ak.absolute_error, {"prediction": ("paired", Y), "y": ("paired", Y)}),
    "CheckLoss": (ak.CheckLoss, {"level": ("level", 0.8)}),
    "CheckLoss.__call__": (
        ak.CheckLoss(0.8),
        {"prediction": ("paired", Y), "y": ("paired", Y)},
    ),
    "log_score": (
        ak.log_score,
        {"prediction": ("object", (jnp.ones(N), jnp.ones(N))), "y": ("paired", jnp.asarray(Y))},
    ),
    "AICc": (scored(ak.AICc), {"weights": ("weights?", np.ones(N))}),
    "GCV": (scored(ak.GCV), {"weights": ("weights?", np.ones(N))}),
    "LeaveOneOut": (
        scored(ak.LeaveOneOut),
        {"weights": ("weights?", np.ones(N)), "score": ("function?", ak.squared_error)},
    ),
    "KFold": (
        scored(ak.KFold),
        {
            "folds": ("natural", 4),
            "weights": ("weights?", np.ones(N)),
            "score": ("function?", ak.squared_error),
        },
    ),
    "GroupKFold": (
        scored(ak.GroupKFold),
        {
            "groups": ("paired", np.arange(N) // 2),
            "folds": ("natural?", 4),
            "score": ("function?", ak.squared_error),
        },
    ),
    "BlockedKFold": (
        scored(ak.BlockedKFold),
        {
            "times": ("paired", np.arange(N)),
            "folds": ("natural?", 4),
            "gap": ("not negative", 1.0),
            "score": ("function?", ak.squared_error),
        },
    ),
    "HoldOut": (
        scored(ak.HoldOut),
        {
            "size": ("natural", 2),
            "at_most": ("natural?", 4),
            "score": ("function?", ak.squared_error),
        },
    ),
    "cache_programs": (uncached_programs, {"folder": ("path?", FOLDER / "programs")}),
    "Checkpoints": (
        ak.Checkpoints,
        {
            "path": ("path", FOLDER / "fit"),
            "of": ("names", "adam"),
            "report": ("function?", None),
        },
    ),
    "fit": (
        ak.fit,
        {
            "model": ("model", MODEL),
            **DATA,
            "objective": ("objective?", ak.LeaveOneOut()),
            "steps": ("natural?", 2),
            "key": ("key?", KEY),
            "starts": ("natural?", 1),
            "chunk": ("natural", 100),
            "weights": ("weights?", np.ones(N)),
            "na": ("choice", "error"),
            **OPTIONS,
        },
    ),
    "fit_many": (
        ak.fit_many,
        {
            "model": ("model", MODEL),
            "x": ("paired", X),
            "y": ("paired", Y),
            "objective": ("objective?", ak.LeaveOneOut()),
            "in_axes": ("object", (None, None, None)),
            "steps": ("natural?", 2),
            "key": ("key", jax.random.split(KEY, 2)),
            "starts": ("natural?", 1),
            "chunk": ("natural", 100),
            **OPTIONS,
        },
    ),
    "Fit.__call__": (later(FIT), {"x_new": ("points", X)}),
    "Fit.named": (
        lambda **given: now(FIT).named(**given),
        {"x_names": ("names", ["x"])},
    ),
    "choose": (
        ak.choose,
        {
            "models": ("object", [MODEL]),
            **DATA,
            "objective": ("objective", ak.LeaveOneOut()),
            "starts": ("natural?", 1),
        },
    ),
    "profile": (
        ak.profile,
        {
            "model": ("model", MODEL),
            **DATA,
            "lengthscales": ("positive", np.array([0.1, 0.2])),
            "objective": ("objective", ak.LeaveOneOut()),
        },
    ),
    "bands": (
        ak.bands,
        {
            "fit": ("fit", FIT),
            "x_new": ("points", X),
            "level": ("level", 0.95),
            "kind": ("choice", "pointwise"),
            "derivative": ("natural?", 1),
            "noise": ("choice?", "rows"),
            "clusters": ("paired?", np.arange(N) // 2),
            "corrected": ("flag", True),
            "draws": ("natural", 20),
            "key": ("key?", KEY),
        },
    ),
    "bands, simultaneous": (
        lambda **given: ak.bands(now(FIT), X, kind="simultaneous", draws=20, **given),
        {"key": ("key", KEY)},
    ),
    "inference.average_derivative": (
        ak.inference.average_derivative,
        {
            "fit": ("fit", FIT),
            "level": ("level", 0.95),
            "noise": ("choice?", "rows"),
            "clusters": ("paired?", np.arange(N) // 2),
            "undersmoothed": ("flag", True),
            "row_weights": ("weights?", np.ones(N)),
        },
    ),
    "conformal": (
        ak.conformal,
        {
            "fit": ("fit", FIT),
            "x_new": ("points", X),
            "level": ("level", 0.5),
            "kind": ("choice", "leave-one-out"),
            "local": ("flag", False),
            "key": ("key?", KEY),
        },
    ),
    "conformal, split": (
        lambda **given: ak.conformal(now(FIT), X, kind="split", level=0.5, **given),
        {"key": ("key", KEY)},
    ),
    "inference.discontinuity": (
        ak.inference.discontinuity,
        {
            **DATA,
            "cutoff": ("real", 0.5),
            "treatment": ("paired?", Y),
            "order": ("whole from 0", 0),
            "kernel": ("choice", ak.Triangular),
            "lengthscale": ("positive?", 0.6),
            "bias_lengthscale": ("positive?", 0.8),
            "level": ("level", 0.95),
            "weights": ("weights?", np.ones(N)),
        },
    ),
    "degrees_of_freedom": (ak.degrees_of_freedom, {"fit": ("fit", FIT)}),
    "effective_count": (ak.effective_count, {"fit": ("fit", FIT), "x_new": ("points", X)}),
    "noise_variance": (ak.noise_variance, {"fit": ("fit", FIT), "x_new": ("points", X)}),
    "quantiles": (
        ak.quantiles,
        {"fit": ("fit", FIT), "x_new": ("points", X), "levels": ("level", 0.5)},
    ),
    "summarise": (ak.summarise, {"fit": ("fit", FIT), "names": ("names", ["x"])}),
    "inference.relevance_test": (
        ak.inference.relevance_test,
        {
            "fit": ("fit", FIT),
            "column": ("whole from 0", 0),
            "reselect": ("flag", False),
            "draws": ("natural", 2),
            "key": SEEDED,
        },
    ),
    "inference.specification_test": (
        ak.inference.specification_test,
        {
            "x": ("paired", X),
            "y": ("paired", Y),
            "design": ("paired?", X),
            "kernel": ("kernel?", ak.Gaussian(0.3)),
            "draws": ("natural", 2),
            "key": SEEDED,
        },
    ),
    "wild_bootstrap": (
        ak.wild_bootstrap,
        {
            "fit": ("fit", FIT),
            "x_new": ("points", X),
            "draws": ("natural", 2),
            "key": SEEDED,
            "corrected": ("flag", True),
        },
    ),
    "save": (
        ak.save,
        {
            "path": ("path", FOLDER / "attnkernel-misuse.ak"),
            "model": ("function", ak.Gaussian(1.0)),
        },
    ),
    "load": (ak.load, {"path": ("path", SAVED), "classes": ("names", ())}),
    "data.load": (
        ak.data.load,
        {
            "name": ("choice", "faithful"),
            "x": ("names", "eruptions"),
            "y": ("choice?", "waiting"),
        },
    ),
    "data.read_csv": (
        ak.data.read_csv,
        {
            "path": ("path", CSV),
            "x": ("names", "eruptions"),
            "y": ("choice", "waiting"),
            "names": ("names", None),
            "categories": ("names", ()),
            "find_categories": ("flag", False),
            "dates": ("names", ()),
            "delimiter": ("choice", ","),
            "decimal": ("choice", "."),
            "missing": ("choice", "error"),
        },
    ),
    "data.heteroskedastic": (ak.data.heteroskedastic, {"key": SEEDED, "n": ("natural", 8)}),
    "data.heteroskedastic_mean": (ak.data.heteroskedastic_mean, {"x": ("points", X)}),
    "data.heteroskedastic_sd": (ak.data.heteroskedastic_sd, {"x": ("points", X)}),
    "plot.criterion": (
        ak.plot.criterion,
        {
            "result": ("fit", FIT),
            "lengthscales": ("positive?", np.array([0.1, 0.2])),
            "objective": ("objective?", None),
            "convention": ("choice", "standard"),
            **AXES,
        },
    ),
    "plot.band": (ak.plot.band, {"bands": ("bands", BAND), **AXES, "label": ("names?", "a")}),
    "plot.data": (ak.plot.data, {"dataset": ("dataset", ak.data.load("cps71")), **AXES}),
    "plot.discontinuity": (
        ak.plot.discontinuity,
        {"result": ("object", DISCONTINUITY), "bins": ("natural", 4), **AXES},
    ),
    "plot.effective_count": (ak.plot.effective_count, {"result": ("fit", FIT), **AXES}),
    "plot.fit": (
        ak.plot.fit,
        {
            "result": ("fit", FIT),
            "band": ("bands?", BAND),
            **AXES,
            "label": ("names", "fit"),
        },
    ),
    "plot.grid": (ak.plot.grid, {"x": ("points", X), "points": ("natural", 5)}),
    "plot.literal": (ak.plot.literal, {"text": ("names", "a")}),
    "plot.partial": (
        ak.plot.partial,
        {
            "result": ("fit", FIT),
            "column": ("whole from 0", 0),
            "at": ("names", {}),
            "band": ("flag", True),
            "level": ("level", 0.95),
            **AXES,
        },
    ),
    "plot.points": (
        ak.plot.points,
        {"x": ("paired", X), "y": ("paired", Y), **AXES, "label": ("names", "a")},
    ),
    "plot.residuals": (ak.plot.residuals, {"result": ("fit", FIT), **AXES}),
    "plot.interact": (
        ak.plot.interact,
        {"draw": ("function", lambda query: None), "query": ("names", (0.0, -1.0, 1.0))},
    ),
    "plot.weights": (
        ak.plot.weights,
        {"result": ("fit", FIT), "queries": ("points", np.array([0.2])), **AXES},
    ),
    "sklearn.KernelRegressor": (estimated(attnkernel.sklearn.KernelRegressor, Y), SKLEARN),
    "sklearn.KernelClassifier": (estimated(attnkernel.sklearn.KernelClassifier, X > 0.5), SKLEARN),
}

# ---------------------------------------------------------------------------- what is legal

# public, and not called with arguments that could be misused
EXCLUDED = {
    "no arguments": (
        "Dense Sorted Auto Uniform EluFeatures Taylor priors.ExcludeSelf plot.ink plot.paper "
        "Binomial Poisson Gamma recurrent.DeltaRule"
    ),
    "abstract: its subclasses are called": (
        "LinearSmoother models.Smoother families.Family losses.RobustLoss objectives.HasDeviance "
        "Kernel Prior Mask Rule Method Objective models.DensityModel "
        "kernels.Categorical kernels.Compact recurrent.Estimator "
        "kernels.Embedded kernels.Wrapper kernels.FiniteRank kernels.Radial kernels.Scaled"
    ),
    "what a function returns": (
        "Fit Bands Selection attention.LocalFit attention.LikelihoodFit "
        "attention.QuantileFit "
        "fitting.Box fitting.Choice fitting.Result "
        "fitting.Starts inference.AverageDerivative inference.BootstrapTest "
        "inference.DegreesOfFreedom inference.Discontinuity inference.Report objectives.Sample "
        "methods.SoftmaxState methods.Moments recurrent.MatrixState recurrent.LeastSquaresState "
        "methods.LinearState methods.Task models.DataSupport models.LinearCoefficients data.Dataset"
    ),
    "an error or a warning": "FitWarning ExtrapolationWarning CheckpointWarning SavedFileError",
    "for authors of kernels, methods and training loops, inside jit": (
        "kernels.unbounded kernels.PointBoxes kernels.Features priors.PositionBlock priors.KeyMask "
        "methods.dense_weights methods.advance fitting.identity_of recurrent.Row"
    ),
}

# what is valid all the same: (callable, argument, misuse)
HEADS = "an array has a number for each head, for `PerHead`"
TRACED = "the number may be known at run time alone"
SHAPES = "of the arrays only shapes and dtypes matter"
ANY_SHAPE = "a function of each number, whatever the shape"
LEGAL = {
    ("PartiallyLinear", "linear", "two"): "several columns",
    ("regress", "rate", "a single number"): "the rate of all rows",
    **{
        (name, argument, "an array of three axes"): HEADS
        for name, argument in (
            ("RationalQuadratic", "alpha"),
            ("Periodic", "lengthscale"),
            ("Periodic", "period"),
            ("DotProduct", "scale"),
            ("CosineSimilarity", "scale"),
            ("Polynomial", "offset"),
            ("Polynomial", "scale"),
            ("SoftCapped", "cap"),
            ("Alibi", "slope"),
            ("Softmax", "temperature"),
            ("Softmax", "sink_mass"),
            ("Entmax", "temperature"),
            ("Kerple", "rate"),
            ("Kerple", "scale"),
            ("fixed", "value"),
        )
    },
    **{
        (name, argument, "traced"): TRACED
        for name, argument in (
            ("Causal", "offset"),
            ("Window", "left"),
            ("Window", "right"),
            ("Prefix", "length"),
            ("Lengths", "queries"),
            ("Lengths", "keys"),
            ("HoldOut", "size"),
            ("quantiles", "levels"),
        )
    },
    **{
        ("select_method", argument, misuse): SHAPES
        for argument in ("q", "k", "v")
        for misuse in ("NaN", "inf")
    },
    **{
        (name, "x", misuse): ANY_SHAPE
        for name in ("data.heteroskedastic_mean", "data.heteroskedastic_sd")
        for misuse in ("a single number", "three axes more")
    },
    **{
        ("plot.points", argument, misuse): "matplotlib leaves such a point out"
        for argument in ("x", "y")
        for misuse in ("NaN", "inf", "a Series with a gap")
    },
    **{
        ("save", "model", misuse): "plain data can be saved"
        for misuse in ("None", "a word", "a number", "an array")
    },
    **{
        (f"sklearn.{name}", "lengthscale", misuse): reason
        for name in ("KernelRegressor", "KernelClassifier")
        for misuse, reason in (
            ("inf", "the column does not matter"),
            ("huge", "float64 holds it, and the column does not matter"),
        )
    },
    ("AitchisonAitken", "categories", "two"): "one number per column",
    **{
        (name, argument, "huge"): "the name of a group"
        for name, argument in (
            ("GroupKFold", "groups"),
            ("bands", "clusters"),
            ("inference.average_derivative", "clusters"),
        )
    },
    ("On", "columns", "two"): "several columns",
    **{
        ("On", "columns", misuse): "the name of a column of a frame"
        for misuse in ("a word", "words", "a digit")
    },
    ("NearestNeighbours", "fraction", "one"): "all keys",
    ("convert_lengthscale", "lengthscale", "an array of three axes"): ANY_SHAPE,
    ("MultiheadAttention", "dropout_p", "zero"): "no dropout",
    ("MultiheadAttention.__call__", "mask", "numbers"): "0 is False, as Equinox reads integers",
    ("Sharded", "axis", "misspelt"): "without a mesh it names the axis of a new one",
    ("quantiles", "levels", "two"): "several levels",
    ("plot.weights", "queries", "a single number"): "one query",
    ("data.heteroskedastic_sd", "x", "inf"): "it is infinite there",
}
# the result says so itself: it is NaN (or infinite) where the argument is
NOT_FINITE = {
    (name, argument, misuse)
    for name, argument in (
        ("squared_error", "prediction"),
        ("squared_error", "y"),
        ("absolute_error", "prediction"),
        ("absolute_error", "y"),
        ("CheckLoss.__call__", "prediction"),
        ("CheckLoss.__call__", "y"),
        ("log_score", "y"),
        ("LocalLikelihood.deviance", "prediction"),
        ("LocalLikelihood.deviance", "y"),
        ("RobustRegression.deviance", "prediction"),
        ("RobustRegression.deviance", "y"),
        ("LocalQuantile.deviance", "prediction"),
        ("LocalQuantile.deviance", "y"),
        ("data.heteroskedastic_mean", "x"),
        ("data.heteroskedastic_sd", "x"),
        ("MultiheadAttention.__call__", "query"),
        ("MultiheadAttention.__call__", "key_"),
        ("MultiheadAttention.__call__", "value"),
    )
    for misuse in ("NaN", "inf", "a Series with a gap")
}
# errors that are no such sentence yet, and why
UNNAMED: dict[tuple[str, str, str], str] = {}
LEAST_SHARE = 0.97  # of errors that are sentences

# ---------------------------------------------------------------------------- the verdict


class Verdict(NamedTuple):
    """The result of one call: "sentence", "other error", "warning", "silent" or "legal"."""

    what: str
    name: str
    argument: str
    misuse: str
    said: str


def is_sentence(error: BaseException, argument: str) -> bool:
    """Whether a `raise` of the package, or a reader of sentences, names the argument."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    ours = last.filename.startswith(PACKAGE)
    raised = linecache.getline(last.filename, last.lineno or 0).strip().startswith("raise")
    text = str(error)
    return (
        isinstance(error, ValueError | TypeError | KeyError)
        and ours
        and raised
        and re.search(rf"\b{re.escape(argument)}\b", text) is not None
        and " " in text
    )


def called(function: Any, given: dict[str, Any], argument: str, value: Any) -> Any:
    given = {name: now(part) for name, part in given.items()}
    if not isinstance(value, Traced):
        return function(**(given | {argument: value}))

    def inside(tracer: Any) -> int:
        function(**(given | {argument: tracer}))
        return 0

    return jax.eval_shape(inside, jnp.asarray(value.value))


def is_legal(name: str, argument: str, kind: str, misuse: str) -> bool:
    return (kind.endswith("?") and misuse == "None") or (name, argument, misuse) in LEGAL


def verdicts(name: str) -> list[Verdict]:
    """Every misuse of every argument of a callable, one at a time."""
    function, arguments = CALLABLES[name]
    given = {argument: valid for argument, (_, valid) in arguments.items()}
    found = []
    for argument, (kind, valid) in arguments.items():
        wrong = KINDS[kind.rstrip("?")]
        for misuse, value in (wrong(now(valid)) if callable(wrong) else wrong).items():
            what, said = "legal", ""
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    result = called(function, given, argument, value)
                except Exception as error:
                    what = "sentence" if is_sentence(error, argument) else "other error"
                    said = f"{type(error).__name__}: {error}"
                else:
                    says = any(argument in str(warning.message) for warning in caught)
                    if (name, argument, misuse) in NOT_FINITE:
                        what = "silent" if np.all(np.isfinite(result)) else "legal"
                    elif not is_legal(name, argument, kind, misuse):
                        what = "warning" if says else "silent"
            plt.close("all")
            _made.pop(AX.make, None)
            found.append(Verdict(what, name, argument, misuse, said))
    return found


def public_names() -> set[str]:
    """Every public class and function, by the shortest name that it has."""
    found: dict[int, str] = {}
    for module in MODULES:
        of_module = vars(importlib.import_module(f"attnkernel{module}"))
        for name, value in of_module.items():
            ours = str(getattr(value, "__module__", "")).startswith("attnkernel")
            if not name.startswith("_") and callable(value) and ours:
                found.setdefault(id(value), f"{module}.{name}".lstrip("."))
    return set(found.values())


SLOW = {
    "plot.fit",
    "Fit.__call__",
    "noise_variance",
    "fit",
    "fit_many",
    "bands",
    "bands, simultaneous",
    "choose",
    "conformal, split",
    "density",
    "HoldOut",
    "MeanVarianceRegression.__call__",
    "MultiheadAttention",
    "MultiheadAttention.__call__",
    "BiasReduced.__call__",
    "MultiheadKernelRegression.__call__",
    "plot.criterion",
    "plot.partial",
    "plug_in",
    "sklearn.KernelClassifier",
    "sklearn.KernelRegressor",
}


@pytest.mark.parametrize("name", [marks.slow(name) if name in SLOW else name for name in CALLABLES])
def test_misuse_is_answered_by_a_sentence_that_names_the_argument(as_users_run_it, name):
    found = verdicts(name)
    assert [verdict for verdict in found if verdict.what == "silent"] == []
    others = [verdict for verdict in found if verdict.what == "other error"]
    assert [one for one in others if (one.name, one.argument, one.misuse) not in UNNAMED] == []


WITHOUT_RESULT = {"plot.interact", "save"}


@pytest.mark.parametrize("name", [marks.slow(name) if name in SLOW else name for name in CALLABLES])
def test_the_call_that_is_misused_is_itself_valid(as_users_run_it, name):
    """It returns: else every misuse of it would pass for a reason of its own."""
    function, arguments = CALLABLES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ak.FitWarning)
        found = function(**{argument: now(valid) for argument, (_, valid) in arguments.items()})
    assert (found is None) == (name in WITHOUT_RESULT)
    plt.close("all")
    _made.pop(AX.make, None)


def test_every_public_callable_is_misused_or_excluded():
    short = {name.rpartition(".")[2] for name in public_names()}
    excluded = {name for names in EXCLUDED.values() for name in names.split()}
    known = set(CALLABLES) | excluded
    of_packages = tuple(f"{module[1:]}." for module in MODULES[1:])
    missing = {
        name
        for name in public_names() - known
        if not (name.startswith(of_packages) and name.rpartition(".")[2] in known)
    }
    assert missing == set()
    assert {name.rpartition(".")[2] for name in excluded} <= short


def test_every_argument_of_a_callable_is_misused():
    left_out = {}
    for name, (function, _) in CALLABLES.items():
        expected = set(inspect.signature(function).parameters)
        if "given" in expected or "parameters" in expected:  # a call of what is made first
            continue
        of_variants = {
            argument
            for other, (same, more) in CALLABLES.items()
            if same is function or other.startswith(f"{name} ")
            for argument in more
        }
        if missing := expected - of_variants - {"options", "sliders"}:
            left_out[name] = missing
    assert left_out == {}


def test_few_errors_are_no_sentences():
    calls = sum(
        len(wrong(now(valid)) if callable(wrong := KINDS[kind.rstrip("?")]) else wrong)
        for _, arguments in CALLABLES.values()
        for kind, valid in arguments.values()
    )
    assert len(UNNAMED) <= (1.0 - LEAST_SHARE) * calls


def main() -> None:
    """Prints the table of counts, and what is no sentence."""
    mpl.use("Agg")
    jaxtyping.config.update("jaxtyping_disable", True)
    wanted = sys.argv[1:] or list(CALLABLES)
    total: Counter[str] = Counter()
    kinds = ("sentence", "other error", "warning", "silent", "legal")
    print(f"{'callable':36} {'calls':>6} " + " ".join(f"{kind:>12}" for kind in kinds))
    odd = []
    for name in wanted:
        found = verdicts(name)
        counts = Counter(verdict.what for verdict in found)
        total += counts
        odd += [verdict for verdict in found if verdict.what in ("other error", "silent")]
        print(f"{name:36} {len(found):6} " + " ".join(f"{counts[kind]:12}" for kind in kinds))
    print(f"{'all':36} {total.total():6} " + " ".join(f"{total[kind]:12}" for kind in kinds))
    errors = total["sentence"] + total["other error"]
    print(f"{100 * total['sentence'] / max(errors, 1):.1f} % of errors are sentences")
    for verdict in odd:
        said = " ".join(verdict.said.split())[:150]
        print(f"{verdict.what}: {verdict.name}({verdict.argument}: {verdict.misuse}) {said}")


if __name__ == "__main__":
    main()
