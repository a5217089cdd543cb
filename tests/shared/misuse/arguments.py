"""The kind and a valid value of every argument of a callable, by its name."""

import inspect
from collections.abc import Callable, Collection
from typing import Any

import equinox as eqx
import numpy as np

import attnkernel as ak
from attnkernel import recurrent

from .values import AX, BAND, FIT, FOLDER, KEY, MODEL, MULTIHEAD, POINTS, SEQUENCE, STACK, N, X, Y

Arguments = dict[str, tuple[str, Any]]  # name: kind ("?": None is right too), valid value

KINDS_AND_VALUES = (
    ("anything", None, "deterministic y_name"),
    ("axes", AX, "ax"),
    ("bands", BAND, "band bands"),
    ("choice", None, "dtype platform"),
    ("choice", "default", "precision"),
    ("choice", "rows", "noise"),
    ("codes", np.arange(2), "keys queries rows"),
    ("codes", np.arange(4), "key_positions positions"),
    ("dataset", ak.data.load("cps71"), "dataset"),
    ("estimator", recurrent.LinearAttention(), "estimator"),
    ("family", ak.Binomial(), "family"),
    ("fit", FIT, "fit result"),
    ("flag", False, "add_zero_attn inference reselect"),
    ("flag", True, "per_dimension ring"),
    ("flags", np.array([True, False]), "held_out"),
    ("flags", np.eye(2, dtype=bool), "allowed"),
    ("flags", np.tri(4, dtype=bool), "mask"),
    ("function", ak.squared_error, "score"),
    ("function", None, "callback embedding process_heads record report"),
    ("function", lambda i, j: j <= i, "function"),
    ("function", lambda query: query, "draw key_proj query_proj"),
    ("kernel", STACK, "stack"),
    ("kernel", ak.Gaussian(0.3), "kernel label_kernel"),
    ("key", KEY, "key"),
    ("level", 0.5, "dropout_p fraction levels"),
    ("level", 0.95, "level"),
    ("level", 1e-6, "tol"),
    ("loss", ak.Huber(), "loss"),
    ("mask", ak.Causal(), "first second"),
    ("method", ak.methods.Blockwise(), "inner"),
    ("method", ak.methods.Dense(), "method"),
    ("model", MODEL, "mean model variance"),
    ("names", "a", "label text"),
    ("names", "", "of prefix"),
    ("names", (), "classes dates"),
    ("names", ["x"], "names x_names"),
    ("names", {}, "at"),
    ("natural", 1, "axes derivative dim out permutations starts"),
    ("natural", 2, "degree draws heads iterations num_heads num_kv_heads qk_size steps"),
    ("natural", 2, "vo_size width"),
    ("natural", 4, "at_most bins categories channels conv_width folds key_size latent_size"),
    ("natural", 4, "num_keys num_queries output_size points query_latent_size query_size size"),
    ("natural", 4, "value_size"),
    ("natural", 3, "gridsize k_largest"),
    ("natural", 8, "block_k block_q capacity n"),
    ("natural", 100, "chunk length max_distance"),
    ("not negative", 0.1, "bandwidth gap ridge"),
    ("object", (None, None, None), "in_axes"),
    ("object", MULTIHEAD, "attention"),
    ("names", None, "x_categories"),
    ("object", None, "bounds checkpoints features mesh optimizer state support"),
    ("object", [4, 2], "sizes"),
    ("object", [MODEL], "models"),
    ("object", [ak.Gaussian(0.2)], "kernels"),
    ("object", eqx.is_inexact_array, "trainable"),
    ("objective", ak.LeaveOneOut(), "objective"),
    ("paired", -np.ones((N, 1)), "log_decay"),
    ("paired", POINTS, "k v"),
    ("paired", SEQUENCE, "key_ value"),
    ("paired", X, "design x"),
    ("paired", Y, "prediction treatment y"),
    ("paired", np.arange(N) // 2, "clusters groups times"),
    ("paired", np.eye(1), "metric"),
    ("paired", np.ones(2), "coefficients"),
    ("paired", np.ones((2, 2, 2)), "values"),
    ("paired", np.ones(N), "rate"),
    ("path", FOLDER / "fit", "path"),
    ("points", -np.ones(2), "log_gates"),
    ("points", POINTS, "q"),
    ("points", SEQUENCE, "query"),
    ("points", SEQUENCE[:1], "recent"),
    ("points", X, "x_new"),
    ("points", np.eye(2), "bias matrix"),
    ("points", np.ones(2), "weight log_weights"),
    ("positive", 0.3, "alpha lengthscale period temperature sink_mass"),
    ("positive", 0.8, "bias_lengthscale"),
    ("positive", 1.0, "low max_rate slow"),
    ("positive", 2.0, "cutoff factor"),
    ("positive", 100.0, "base cap fast high"),
    ("positive", np.array([0.1, 0.2]), "lengthscales"),
    ("prior", None, "prior"),
    ("real", 0.5, "scale slope"),
    ("rotary", ak.Rotary(), "rotary"),
    ("rule", ak.Softmax(), "rule"),
    ("weights", np.ones(N), "row_weights weights"),
    ("whole", 0, "offset"),
    ("whole from 0", 0, "column columns linear order"),
    ("whole from 0", 1, "left right sinks spare"),
    ("whole from 0", 2, "count rotary_size"),
)
USUAL: Arguments = {
    name: (kind, value) for kind, value, names in KINDS_AND_VALUES for name in names.split()
}


def usual(parameter: inspect.Parameter) -> tuple[str, Any]:
    """What an argument of this name nearly always is; a default of None is right."""
    default = parameter.default
    if parameter.name in USUAL:
        kind, value = USUAL[parameter.name]
        return kind + "?" * (default is None), value
    if isinstance(default, bool | str):
        return ("flag" if isinstance(default, bool) else "choice"), default
    raise KeyError(f"argument {parameter.name} needs a kind and a valid value")


def arguments_of(function: Callable, odd: Arguments, elsewhere: Collection[str] = ()) -> Arguments:
    """The odd arguments of a callable, and the usual ones of its signature.

    An argument that a call elsewhere has is left out, unless the callable needs it.
    """
    return odd | {
        name: usual(parameter)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in odd and name != "self" and parameter.kind is not parameter.VAR_KEYWORD
        if name not in elsewhere or parameter.default is parameter.empty
    }
