"""The default objective, results of starts, and the warning about columns of categories."""

import warnings

import numpy as np
import pytest

import attnkernel as ak
from attnkernel.fitting import Result

pandas = pytest.importorskip("pandas")


def test_default_objective_is_leave_one_out_and_is_named():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, 23)
    y = np.sin(2 * x) + 0.1 * rng.normal(size=23)
    model = ak.KernelRegression(ak.Gaussian(1.0))
    fit = ak.fit(model, x, y, starts=2)
    named = ak.fit(model, x, y, starts=2, objective=ak.LeaveOneOut())
    assert fit.loss == named.loss
    assert "objective=LeaveOneOut()" in repr(fit)
    np.testing.assert_array_equal(fit.starts.result, [Result.CONVERGED] * 2)
    assert all(result.message.endswith(".") for result in Result)


def test_one_warning_names_the_columns_of_categories_and_a_product_kernel():
    rng = np.random.default_rng(1)
    size = rng.uniform(0, 3, 31)
    colour = pandas.Categorical(rng.choice(["blue", "red"], 31))
    frame = pandas.DataFrame({"colour": colour, "size": size})
    y = np.sin(2 * size) + colour.codes + 0.1 * rng.normal(size=31)
    options = {"starts": 1, "steps": 60}

    def said(kernel):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ak.fit(ak.KernelRegression(kernel), frame, y, **options)
        return [str(each.message) for each in caught if "categories" in str(each.message)]

    (sentence,) = said(ak.Gaussian(np.array([0.5, 0.5])))
    assert "column 'colour' of x holds categories" in sentence
    product = "ak.AitchisonAitken(0.1, 2).on(0) * ak.Gaussian(1.0).on(1)"
    assert product in sentence
    assert said(eval(product)) == []
