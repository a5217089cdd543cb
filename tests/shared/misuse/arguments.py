"""Arguments that several callables share."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import attnkernel as ak
from attnkernel import kernels, methods, priors, recurrent

from .values import AX, KEY, MODEL, POINTS, Later, N, X, Y, now

Arguments = dict[str, tuple[str, Any]]  # name: kind ("?": None is the default), valid value


def of_class(name: str, **arguments: Any) -> dict[str, tuple[Any, Arguments]]:
    where = next(m for m in (ak, kernels, priors, methods, ak.nn, recurrent) if hasattr(m, name))
    return {name: (getattr(where, name), arguments)}


LENGTH, KERNEL = ("positive", 0.3), ("kernel", ak.Gaussian(0.3))
PRECISION = ("choice?", "default")
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
