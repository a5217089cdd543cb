"""Local likelihood fits by Newton's method in NumPy."""

from pathlib import Path

import numpy as np
import pandas as pd
from least_squares import monomials
from scipy.special import expit, logit

import attnkernel as ak

CSV_FOLDER = Path(ak.__file__).parent / "data" / "csv"
FAMILIES = {"binomial": ak.Binomial(), "poisson": ak.Poisson(), "gamma": ak.Gamma()}
# μ of η, and the reverse
MEANS = {"binomial": expit, "poisson": np.exp, "gamma": np.exp}
LINKS = {"binomial": logit, "poisson": np.log, "gamma": np.log}
# of y and μ: the first derivative of the log-likelihood in η, and minus the second
SCORES = {
    "binomial": lambda y, mean: (y - mean, mean * (1 - mean)),
    "poisson": lambda y, mean: (y - mean, mean),
    "gamma": lambda y, mean: (y / mean - 1, y / mean),
}


def locfit_cases():
    """The data of `models/locfit.R`: inputs, labels, weights, kernel."""
    paths = (CSV_FOLDER / f"{name}.csv" for name in ("wage1", "faithful"))
    options = {"delimiter": ",", "names": True, "dtype": None}
    wage, faithful = (np.genfromtxt(path, **options) for path in paths)
    exper, educ = wage["exper"], wage["educ"]
    distinct, group = np.unique(exper, return_inverse=True)
    trials = np.bincount(group).astype(float)
    married = np.bincount(group, wage["married"] == "Married") / trials
    eruptions, waiting = faithful["eruptions"], faithful["waiting"] * 1.0
    return {
        "binomial": (distinct, married, trials, ak.Gaussian(20 / 2.5)),
        "poisson": (exper, educ, np.ones_like(exper), ak.kernels.Tricube(15.0)),
        "gamma": (eruptions, waiting, np.ones(len(faithful)), ak.Gaussian(2 / 2.5)),
    }


def locfit_results(name, order):
    """What locfit gives for some of the rows."""
    table = pd.read_csv(Path(__file__).parents[1] / "models" / "locfit.csv")
    return table[(table["family"] == name) & (table["order"] == order)]


def newton(name, x_new, x, y, lengthscale, order, weights):
    """Coefficients at new inputs, (queries, terms); `weights` broadcast against (queries, keys).

    Steps are at most 1 long, as far as that is known; the last ones are 0 to rounding.
    """
    x_new, x = (np.reshape(points, (len(points), -1)) for points in (x_new, x))
    away = x - x_new[:, None]
    w = weights * np.exp(-0.5 * np.sum((away / lengthscale) ** 2, axis=-1))
    terms = monomials(away, order)
    beta = np.zeros(terms.shape[::2])
    beta[:, 0] = LINKS[name](np.sum(w * y, axis=1) / np.sum(w, axis=1))
    for _ in range(40):
        score, curvature = SCORES[name](y, MEANS[name](np.einsum("qkt,qt->qk", terms, beta)))
        hessian = np.einsum("qk,qks,qkt->qst", w * curvature, terms, terms, optimize=True)
        slope = np.einsum("qk,qkt->qt", w * score, terms)
        step = np.linalg.solve(hessian, slope[..., None])[..., 0]
        beta += step / np.maximum(1.0, np.max(np.abs(step), axis=1, keepdims=True))
    return beta
