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
CSV = Path(ak.__file__).parent / "data" / "csv" / "faithful.csv"
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
        return _fit()


def _fit():
    return ak.fit(MODEL, X, Y, objective=ak.LeaveOneOut(), starts=1)


def _band():
    return ak.bands(now(FIT), X)


def _saved():
    ak.save(FOLDER / "attnkernel-misuse.ak", ak.Gaussian(1.0))
    return FOLDER / "attnkernel-misuse.ak"


def _discontinuity():
    return ak.econometrics.discontinuity(X, Y, cutoff=0.5, lengthscale=0.6)


DISCONTINUITY = Later(_discontinuity)
FIT, BAND, SAVED = Later(_fitted), Later(_band), Later(_saved)
AX = Later(lambda: plt.subplots()[1])
STACK = Later(lambda: eqx.filter_vmap(ak.Gaussian)(jnp.array([0.1, 0.3])))
MULTIHEAD = Later(lambda: ak.MultiheadAttention(2, 4, key=KEY))
MEMORY = Later(lambda: ak.nn.PersistentMemory(now(MULTIHEAD), *np.ones((2, 1, 2, 2))))
TWICING = Later(lambda: ak.nn.BiasReducedAttention(now(MULTIHEAD)))
SELF = Later(lambda: ak.SelfAttention(4, key=KEY))
PER_HEAD = Later(lambda: ak.PerHead(now(STACK)))
HEADS_OF_REGRESSION = Later(lambda: ak.MultiheadKernelRegression(now(PER_HEAD)))
DENSITY = Later(lambda: ak.KernelDensity(ak.Gaussian(0.3)))
CONDITIONAL = Later(lambda: ak.ConditionalDensity(ak.Gaussian(0.3), ak.Gaussian(0.3)))
REDUCED = ak.models.BiasReduced(MODEL, 2)
LIKELIHOOD = ak.LocalLikelihood(ak.Gaussian(0.2), family=ak.Binomial(), order=1)
ROBUST = ak.RobustRegression(MODEL)
ADDITIVE = ak.AdditiveRegression([ak.Gaussian(0.2)])
ADDITIVE_FIT = Later(lambda: ak.fit(ADDITIVE, X, Y, objective=ak.AICc(), starts=1))
PARTIALLY_LINEAR = ak.econometrics.PartiallyLinear(MODEL, linear=0)
QUANTILE = ak.LocalQuantile(ak.Gaussian(0.2), level=0.8)
LEARNED = Later(lambda: ak.LearnedKernelRegression(1, key=KEY))
