"""Arguments that several callables share."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import attnkernel as ak

from .values import AX, FIT, KEY, MODEL, POINTS, SEQUENCE, Later, N, X, Y, now

Arguments = dict[str, tuple[str, Any]]  # name: kind ("?": None is the default), valid value


LENGTH, KERNEL = ("positive", 0.3), ("kernel", ak.Gaussian(0.3))
# what an argument of this name nearly always is
USUAL: Arguments = {
    "ax": ("axes", AX),
    "base": ("positive", 100.0),
    "capacity": ("natural", 8),
    "chunk": ("natural", 100),
    "clusters": ("paired?", np.arange(N) // 2),
    "column": ("whole from 0", 0),
    "corrected": ("flag", True),
    "count": ("whole from 0?", 2),
    "draws": ("natural", 2),
    "dtype": ("choice?", None),
    "factor": ("positive", 2.0),
    "fit": ("fit", FIT),
    "folds": ("natural?", 4),
    "iterations": ("natural", 2),
    "kernel": KERNEL,
    "key": ("key", KEY),
    "key_": ("paired", SEQUENCE),
    "length": ("natural", 64),
    "lengthscale": LENGTH,
    "level": ("level", 0.95),
    "mask": ("flags?", np.tri(4, dtype=bool)),
    "method": ("method", ak.methods.Dense()),
    "metric": ("paired?", np.eye(1)),
    "model": ("model", MODEL),
    "noise": ("choice?", "rows"),
    "num_heads": ("natural", 2),
    "objective": ("objective", ak.LeaveOneOut()),
    "on_empty": ("choice", "nan"),
    "order": ("whole from 0", 0),
    "output_size": ("natural?", 4),
    "positions": ("codes?", np.arange(4)),
    "precision": ("choice?", "default"),
    "prior": ("prior?", None),
    "qk_size": ("natural?", 2),
    "query": ("points", SEQUENCE),
    "query_size": ("natural", 4),
    "result": ("fit", FIT),
    "ring": ("flag", True),
    "rule": ("rule", ak.Softmax()),
    "score": ("function?", ak.squared_error),
    "sinks": ("whole from 0", 1),
    "size": ("natural", 4),
    "spare": ("whole from 0", 1),
    "starts": ("natural?", 1),
    "steps": ("natural?", 2),
    "use_key_bias": ("flag", False),
    "use_output_bias": ("flag", False),
    "use_query_bias": ("flag", False),
    "use_value_bias": ("flag", False),
    "value": ("paired", SEQUENCE),
    "vo_size": ("natural?", 2),
    "weights": ("weights?", np.ones(N)),
    "x": ("paired", X),
    "x_new": ("points", X),
    "y": ("paired", Y),
}


def usual(names: str, /, **others: tuple[str, Any]) -> Arguments:
    """The usual values of the named arguments, and others."""
    return {name: USUAL[name] for name in names.split()} | others


PACKAGES = (ak.kernels, ak.priors, ak.rules, ak.methods, ak.nn, ak.recurrent, ak.losses, ak.models)
PACKAGES += (ak.objectives, ak.econometrics)


def of_class(name: str, names: str = "", /, **others: Any) -> dict[str, tuple[Any, Arguments]]:
    """The constructor of a public class, with its arguments as `usual` takes them."""
    where = next(m for m in (ak, *PACKAGES) if hasattr(m, name))
    return {name: (getattr(where, name), usual(names, **others))}


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
    "subsample": ("natural?", 100),
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
