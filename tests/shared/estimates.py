"""Estimates of a smoother, by the arguments that a user has."""

import equinox as eqx
import jax.numpy as jnp

import attnkernel as ak


def fitted_and_leverage(model, x, y, weights=None):
    """Predictions at the labelled inputs, and the diagonal of the hat matrix."""
    found = model.estimate(None, ak.models.Rows.read(x, y, weights))
    return found.value, found.leverage


def prediction_variance(model, x_new, x, variance, weights=None):
    """The variance of predictions from that of the labels."""
    rows = ak.models.Rows.read(x, jnp.zeros(len(x)), weights)
    return model.estimate(x_new, rows).variance_of(variance)


@eqx.filter_jit
def predict(model, x_new, x, y, **options):
    """Predictions, by one program for all models of the same structure."""
    return model(x_new, x, y, **options)


@eqx.filter_jit
def local_fit(model, x_new, x, y):
    """Local fits, by one program for all models of the same structure."""
    return model.local_fit(x_new, x, y)
