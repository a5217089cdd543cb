"""Local likelihood against R's locfit: means at the rows, and with each row left out."""

import csv
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest
from marks import slow

import attnkernel as ak
from attnkernel.priors import ExcludeSelf

HERE = Path(__file__).parent
CSV_FOLDER = Path(ak.__file__).parent / "data" / "csv"
FAMILIES = {"binomial": ak.Binomial(), "poisson": ak.Poisson(), "gamma": ak.Gamma()}


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
        "poisson": (exper, educ, np.ones_like(exper), ak.Tricube(15.0)),
        "gamma": (
            faithful["eruptions"],
            faithful["waiting"] * 1.0,
            np.ones(len(faithful)),
            ak.Gaussian(2 / 2.5),
        ),
    }


def locfit_table(text):
    """The rows of `locfit.csv` by family and order: row, fit, standard error, left-out fit."""
    found = {}
    for line in csv.DictReader(text.splitlines()):
        numbers = [float(line[name]) for name in ("row", "fit", "se", "left_out")]
        found.setdefault((line["family"], int(line["order"])), []).append(numbers)
    return {key: np.array(rows).T for key, rows in found.items()}


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
    row, fit, _, left_out = locfit_table((HERE / "locfit.csv").read_text())[name, order]
    model = ak.LocalLikelihood(kernel, family=FAMILIES[name], order=order)

    @jax.jit
    def computed(x, y, weights):
        left_out = model(x, x, y, prior=ExcludeSelf(), weights=weights)
        return model(x, x, y, weights=weights), left_out

    found = np.asarray(computed(x, y, weights))[:, row.astype(int)]
    np.testing.assert_allclose(found, [fit, left_out], rtol=2e-6 if order else 1e-13)


@pytest.mark.cli
@pytest.mark.needs_r("locfit")
def test_the_table_is_what_locfit_prints():
    command = ["Rscript", "--vanilla", str(HERE / "locfit.R"), str(CSV_FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kept, now = (locfit_table(text) for text in ((HERE / "locfit.csv").read_text(), done.stdout))
    assert kept.keys() == now.keys()
    for key, rows in kept.items():
        np.testing.assert_allclose(now[key], rows, rtol=1e-8)
