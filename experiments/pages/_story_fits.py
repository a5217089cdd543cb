"""What the story fits and trains on its one data set: metrics, heads, a small attention."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import attnkernel as ak

HEADS = (1, 2, 4)
HEAD_LENGTHSCALES = (0.05, 0.1, 0.2, 0.4)
TEST_EVERY = 4  # of the rows, one is held out from the training of the attention
KEY_STEPS = (0, 1, 2, 4, 7, 11, 16, 22, 30, 40, 55, 75, 100, 130, 160, 200)
ATTENTION_STEPS = (0, 5, 10, 20, 35, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1000, 1500)
QK_SIZE = 4


SHARES = ("0.001", "0.1", "0.5", "0.75")  # of the rows, hidden at a time; at least one
DRAWS = 8  # of hidden rows


def drawn_ranks(n: int) -> np.ndarray:
    """The places of n rows in random orders, as in `ak.objectives.ExpectedHoldOut`."""
    return np.random.default_rng(0).permuted(np.tile(np.arange(n), (DRAWS, 1)), axis=1)


def standardise(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The points in standard deviations from their mean, the mean and the standard deviations."""
    centre, scale = points.mean(axis=0), points.std(axis=0)
    return (points - centre) / scale, centre, scale


def features(rows: np.ndarray, points: np.ndarray) -> np.ndarray:
    """1, both inputs in standard deviations of all points, their squares and their product."""
    _, centre, scale = standardise(points)
    e, c = ((rows - centre) / scale).T
    return np.stack([np.ones(len(rows)), e, c, e * e, c * c, e * c], axis=1)


def train_keys(points: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """A metric of both inputs, ‖A(q − k)‖, trained by leave-one-out from the identity."""
    z, centre, scale = standardise(points)
    model = ak.KernelRegression(ak.Gaussian(ak.fixed(1.0), metric=4.0 * jnp.eye(2)))
    fit = ak.fit(
        model,
        z,
        y,
        objective=ak.LeaveOneOut(),
        optimizer=optax.adam(0.1),
        steps=KEY_STEPS[-1] + 1,
        chunk=KEY_STEPS[-1] + 1,  # one program
        record=lambda model: {"metric": model.kernel.metric},
    )
    metrics = np.asarray(fit.history["metric"])[list(KEY_STEPS)]
    return {"z": z, "centre": centre, "scale": scale, "steps": KEY_STEPS, "metrics": metrics}


def fit_heads(x: np.ndarray, y: np.ndarray) -> dict[int, ak.MultiheadKernelRegression]:
    """Sums of the first 1, 2 or 4 of four heads; other coefficients are 0.

    The coefficients have the least leave-one-out error, which is a linear least-squares problem.
    The lengthscales are given: those of two heads that are fitted with their coefficients run
    into each other, with coefficients of 43 and -42.
    """
    kernels = ak.PerHead(eqx.filter_vmap(ak.Gaussian)(jnp.array(HEAD_LENGTHSCALES)))
    model = ak.MultiheadKernelRegression(kernels)
    left_out = np.asarray(model.heads(x, x, y, prior=ak.priors.ExcludeSelf())).T
    found = {}
    for count in HEADS:
        coefficients = np.zeros(HEADS[-1])
        coefficients[:count] = np.linalg.lstsq(left_out[:, :count], y, rcond=None)[0]
        found[count] = dataclasses.replace(model, coefficients=jnp.asarray(coefficients))
    return found


def train_attention(points: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """One head of dot-product attention between features of the inputs; its values are the labels.

    It is trained by masked hold-out on three quarters of the rows, from random projections. The
    kernel regression beside it has its two lengthscales from leave-one-out on the same rows.
    """
    test = np.arange(len(y)) % TEST_EVERY == TEST_EVERY - 1
    train, inputs = np.flatnonzero(~test), features(points, points)
    sides = [
        eqx.nn.Linear(inputs.shape[1], QK_SIZE, use_bias=False, key=key)
        for key in jax.random.split(jax.random.PRNGKey(0))
    ]
    model = ak.KernelRegression(ak.kernels.Projected(ak.DotProduct(), *sides))
    fit = ak.fit(
        model,
        inputs[train],
        y[train],
        objective=ak.HoldOut(8),
        optimizer=optax.adam(0.02),
        steps=ATTENTION_STEPS[-1] + 1,
        chunk=ATTENTION_STEPS[-1] + 1,  # one program
        key=jax.random.PRNGKey(1),
        record=lambda model: {
            "query": model.kernel.query_proj.weight,
            "key": model.kernel.key_proj.weight,
        },
    )
    plain = ak.fit(ak.KernelRegression(ak.Gaussian(jnp.array([0.1, 5.0]))), points[train], y[train])
    return {
        "train": train,
        "test": np.flatnonzero(test),
        "steps": ATTENTION_STEPS,
        **{side: np.asarray(fit.history[side])[list(ATTENTION_STEPS)] for side in ("query", "key")},
        "lengthscales": plain.model.kernel.lengthscale,
        "models": (fit.model, plain.model),
    }
