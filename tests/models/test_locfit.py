"""Local likelihood against R's locfit: means at the rows, and with each row left out."""

from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from local_likelihoods import FAMILIES
from marks import slow

import attnkernel as ak
from attnkernel.priors import ExcludeSelf

CSV_FOLDER = Path(ak.__file__).parent / "data" / "csv"


def locfit_cases():
    """The data of `locfit.R`: inputs, labels, weights, kernel."""
    wage, faithful = (
        np.genfromtxt(CSV_FOLDER / f"{name}.csv", delimiter=",", names=True, dtype=None)
        for name in ("wage1", "faithful")
    )
    exper, educ = wage["exper"], wage["educ"]
    married = wage["married"] == "Married"
    distinct, group = np.unique(exper, return_inverse=True)
    trials = np.bincount(group).astype(float)
    return {
        "binomial": (distinct, np.bincount(group, married) / trials, trials, ak.Gaussian(20 / 2.5)),
        "poisson": (exper, educ, np.ones_like(exper), ak.kernels.Tricube(15.0)),
        "gamma": (
            faithful["eruptions"],
            faithful["waiting"] * 1.0,
            np.ones(len(faithful)),
            ak.Gaussian(2 / 2.5),
        ),
    }


@pytest.mark.parametrize(
    ("name", "order"),
    [
        slow("binomial", 1),
        slow("binomial", 0),
        *[slow(name, order) for name in ("poisson", "gamma") for order in (1, 2)],
    ],
)
def test_means_and_left_out_means_equal_those_of_locfit(x64, name, order):
    """locfit stops its Newton steps at a relative 1e-6. Order 0 needs none."""
    x, y, weights, kernel = locfit_cases()[name]
    table = pd.read_csv(Path(__file__).with_name("locfit.csv"))
    expected = table[(table["family"] == name) & (table["order"] == order)]
    model = ak.LocalLikelihood(kernel, family=FAMILIES[name], order=order)

    @jax.jit
    def computed(x, y, weights):
        left_out = model(x, x, y, prior=ExcludeSelf(), weights=weights)
        return model(x, x, y, weights=weights), left_out

    found = np.asarray(computed(x, y, weights))[:, expected["row"]]
    rtol = 2e-6 if order else 1e-13
    np.testing.assert_allclose(found.T, expected[["fit", "left_out"]], rtol=rtol)
