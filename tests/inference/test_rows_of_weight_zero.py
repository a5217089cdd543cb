"""Law 7 in inference: rows of weight 0 are as if they were not there, in every public function."""

import jax
import numpy as np
import optax
import pytest
from marks import slow

import attnkernel as ak

AT = np.linspace(0.0, 1.0, 5)
KEY = jax.random.PRNGKey(0)
FUNCTIONS = {
    "bands": lambda fit: ak.bands(fit, AT),
    "bands, constant noise": lambda fit: ak.bands(fit, AT, noise="constant", corrected=False),
    "bands, noise of rows": lambda fit: ak.bands(fit, AT, noise="rows"),
    "simultaneous bands": lambda fit: ak.bands(fit, AT, kind="simultaneous", draws=20, key=KEY),
    "bands of a derivative": lambda fit: ak.bands(fit, AT, derivative=1, corrected=False),
    "bands, hc1": lambda fit: ak.bands(fit, AT, noise="hc1"),
    "bands of clusters": lambda fit: ak.bands(fit, AT, clusters=np.arange(24) // 2, noise="hc2"),
    "average_derivative": ak.inference.average_derivative,
    "conformal": lambda fit: ak.conformal(fit, AT, level=0.8),
    "conformal, local": lambda fit: ak.conformal(fit, AT, level=0.8, local=True),
    "noise_variance": lambda fit: ak.noise_variance(fit, AT),
    "wild_bootstrap": lambda fit: ak.wild_bootstrap(fit, AT, draws=7, key=KEY),
    "degrees_of_freedom": ak.degrees_of_freedom,
    "effective_count": lambda fit: ak.effective_count(fit, AT),
    "quantiles": lambda fit: ak.quantiles(fit, AT, [0.1, 0.5]),
    "relevance_test": lambda fit: ak.inference.relevance_test(fit, 0, draws=7, key=KEY),
    "summarise": lambda fit: [v for v in ak.summarise(fit) if isinstance(v, int | float)],
}


def fitted(x, y, weights):
    """A fit whose lengthscale is known: the optimiser does not move it."""
    model = ak.KernelRegression(ak.Gaussian(0.3))
    still = {"optimizer": optax.sgd(0.0), "steps": 1}
    return ak.fit(model, x, y, objective=ak.LeaveOneOut(), weights=weights, **still)


DEFAULT = {"bands, constant noise", "conformal, local", "summarise"}


@pytest.mark.parametrize("weighted", [slow(False), True])
@pytest.mark.parametrize("name", [n if n in DEFAULT else slow(n) for n in FUNCTIONS])
def test_rows_of_weight_zero_are_none(x64, name, weighted):
    rng = np.random.default_rng(0)
    x, dropped = rng.random(30), np.arange(30) % 5 == 2
    y = np.where(dropped, 1e3, np.sin(6.0 * x) + 0.1 * rng.normal(size=30))
    weights = rng.uniform(0.5, 2.0, 30) if weighted else np.ones(30)
    whole = fitted(x, y, np.where(dropped, 0.0, weights))
    part = fitted(x[~dropped], y[~dropped], weights[~dropped])
    for found, expected in zip(
        *(jax.tree.leaves(FUNCTIONS[name](fit)) for fit in (whole, part)), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-9)
