"""Fits at known lengthscales, made without a search and without a compiled program."""

import jax
import numpy as np

import attnkernel as ak


def known_fit(model, x, y, weights=None, objective=ak.GCV):
    """The `Fit` of a model as it is; `objective`: a class."""
    dtype = jax.dtypes.canonicalize_dtype(float)
    x, y = (np.asarray(part, dtype) for part in (x, y))
    trained = np.array([ak.fitting.Result.TRAINED.value])
    nothing = np.zeros(1, dtype)
    arrays = (x.reshape(len(x), -1), y, nothing, trained, np.zeros(1, int), np.zeros(1, bool))
    x, y, loss, result, steps, at_bound = jax.device_put(arrays)
    one = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[None]), model)
    starts = ak.fitting.Starts(one, one, loss, steps, result, at_bound)
    chosen = objective() if weights is None else objective(weights=np.asarray(weights, dtype))
    of_best = jax.device_put(nothing[0])
    return ak.fitting.Fit(model, of_best, {"loss": loss}, starts, chosen, x, y)
