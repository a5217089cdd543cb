"""What a public function is given by mistake: a sentence that names the argument."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnkernel as ak
from attnkernel import priors

X = np.linspace(0.0, 1.0, 12)
Y = np.sin(6.0 * X) + 0.1 * np.cos(40.0 * X)
KEY = jax.random.PRNGKey(0)
LARGE = 2**40 + np.arange(3)


def fitted():
    return ak.fit(ak.KernelRegression(ak.Gaussian(0.2)), X, Y, objective=ak.LeaveOneOut())


MISUSES = {
    "Lengths(-1)": (lambda: priors.Lengths(-1), "queries must be an integer, at least 0; got -1"),
    "Lengths(nan)": (lambda: priors.Lengths(float("nan")), "queries must be an integer"),
    "Lengths(keys=2.5)": (lambda: priors.Lengths(keys=2.5), "keys must be an integer"),
    "Lengths of an array": (lambda: priors.Lengths(jnp.array(-2)), "queries must be an integer"),
    "Causal(nan)": (lambda: ak.Causal(float("nan")), "offset must be an integer; got nan"),
    "Causal(.5)": (lambda: ak.Causal(0.5), "offset must be an integer; got 0.5"),
    "Causal(True)": (lambda: ak.Causal(True), "offset must be an integer; got True"),
    "Causal of several": (lambda: ak.Causal(jnp.arange(2)), "offset must be an integer"),
    "Prefix(-1)": (lambda: priors.Prefix(-1), "length must be an integer, at least 0; got -1"),
    "Window(1.5, 1)": (lambda: ak.Window(1.5, 1), "left must be an integer, at least 0"),
    "Window(1, -1)": (lambda: ak.Window(1, -1), "right must be an integer, at least 0; got -1"),
    "KeyWeights(inf)": (lambda: priors.KeyWeights(np.array([0.0, np.inf])), "log_weights must be"),
    "KeyWeights(nan)": (lambda: priors.KeyWeights(np.array([0.0, np.nan])), "log_weights must be"),
    "Table(nan)": (lambda: priors.BiasTable(np.array([[0.0, np.nan]])), "bias must be below"),
    "At of large numbers": (
        lambda: priors.AtPositions(ak.Causal(), LARGE, LARGE),
        "queries has integers too large for int32",
    ),
    "Segments of large numbers": (
        lambda: priors.Segments(LARGE),
        "queries has integers too large for int32",
    ),
    "Rotary(base=0)": (
        lambda: ak.MultiheadAttention(2, 4, rotary=ak.Rotary(base=0.0), key=KEY),
        "base must be above 0",
    ),
    "bands(draws=1)": (
        lambda: ak.bands(fitted(), X, kind="simultaneous", draws=1, key=KEY),
        "draws=1 do not tell a quantile of 0.95: take at least 20",
    ),
    "alibi_slopes(0)": (lambda: priors.alibi_slopes(0), "heads must be an integer, at least 1"),
}


@pytest.mark.filterwarnings("ignore::attnkernel.FitWarning")
@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_answered_by_a_sentence_that_names_the_argument(as_users_run_it, name):
    call, sentence = MISUSES[name]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        call()
