"""Valid values of arguments."""

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import attnkernel as ak

N = 8
X = np.linspace(0.0, 1.0, N)
Y = np.sin(6.0 * X) + 0.1 * np.cos(40.0 * X)
POINTS = np.stack([X, X**2], axis=1)
SEQUENCE = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)), jnp.float32)
KEY = jax.random.PRNGKey(0)
FOLDER = Path(tempfile.gettempdir())
MODEL = ak.KernelRegression(ak.Gaussian(0.2))


class Later(NamedTuple):
    """A valid value that is made once, when it is first needed."""

    make: Callable[[], Any]


made: dict[Callable, Any] = {}


def now(value: Any) -> Any:
    if not isinstance(value, Later):
        return value
    if value.make not in made:
        made[value.make] = value.make()
    return made[value.make]


def _fitted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ak.FitWarning)
        return ak.fit(MODEL, X, Y, objective=ak.LeaveOneOut(), starts=1)


FIT = Later(_fitted)
BAND = Later(lambda: ak.bands(now(FIT), X))
AX = Later(lambda: plt.subplots()[1])
STACK = Later(lambda: eqx.filter_vmap(ak.Gaussian)(jnp.array([0.1, 0.3])))
MULTIHEAD = Later(lambda: ak.MultiheadAttention(2, 4, key=KEY))
