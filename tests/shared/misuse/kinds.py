"""What may be wrong with an argument, by the kind of the argument."""

from typing import Any, NamedTuple, cast

import jax
import numpy as np
import pandas as pd

import attnkernel as ak
from attnkernel import recurrent

from .values import MODEL

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


A_CLASS = {"a class": ak.Gaussian}
NO_ARRAY: dict[str, Any] = A_CLASS | {"None": None, "a word": "abc", "an object": object()}
NO_NUMBERS = NO_ARRAY | {"complex": 1.0 + 2.0j, "words": ["a", "b"], "a dictionary": {"a": 1.0}}
NOT_FINITE = {"NaN": NAN, "inf": INF}
NUMBER = NO_NUMBERS | {
    **NOT_FINITE,
    "-inf": -INF,
    "masked": np.ma.masked_array(1.0, mask=True),
    "a Series with a gap": pd.Series([1.0, NAN]),
    "an array of three axes": np.ones((2, 2, 2)),
    "no number": np.zeros(0),
    "huge": 1e300,
}
WHOLE = NO_NUMBERS | {
    **NOT_FINITE,
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
    **NOT_FINITE,
    "zero": 0.0,
    "one": 1.0,
    "above one": 1.5,
    "negative": -0.1,
    "a digit": "0.9",
    "two": np.array([0.5, 0.6]),
    "masked": np.ma.masked_array(0.5, mask=True),
    "traced": Traced(0.5),
}
FLAG = A_CLASS | {
    "None": None,
    "a word": "no",
    "a number": 2,
    "NaN": NAN,
    "several": np.array([True, False]),
    "traced": Traced(True),
}
PATH = A_CLASS | {"None": None, "a number": 3, "an array": np.ones(2)}
CHOICE = PATH | {"misspelt": "pointwize", "a list": ["a"]}
NAMES = A_CLASS | {"a number": 3, "an array": np.ones(2), "numbers": [1, 2]}
RANDOM_KEY = A_CLASS | {
    "None": None,
    "a word": "abc",
    "a seed": 0,
    "a fraction": 0.5,
    "floats": np.zeros(2, np.float32),
    "three numbers": np.zeros(3, np.uint32),
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
    return NO_ARRAY | {
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
    return NO_ARRAY | {
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
    "anything": {},
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
    "method": instance(ak.methods.Dense, ak.Gaussian(1.0)),
    "objective": instance(ak.LeaveOneOut, ak.Gaussian(1.0)),
    "model": instance(ak.KernelRegression, ak.Gaussian(1.0)),
    "family": instance(ak.Binomial, ak.Gaussian(1.0)),
    "estimator": instance(recurrent.DeltaRule, ak.Gaussian(1.0)),
    "loss": instance(ak.Huber, ak.Gaussian(1.0)),
    "rotary": instance(ak.Rotary, ak.Gaussian(1.0)),
    "fit": instance(ak.Fit, MODEL),
    "bands": instance(ak.inference.Bands, MODEL),
    "dataset": instance(ak.data.Dataset, MODEL),
    "object": OBJECT | {"a class": ak.Gaussian},
    "axes": {name: value for name, value in OBJECT.items() if name != "None"},
}
