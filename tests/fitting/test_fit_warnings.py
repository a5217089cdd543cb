"""The default objective, results of starts, and the warning about columns of categories."""

import warnings

import numpy as np
import pytest

import attnkernel as ak
from attnkernel.fitting import Result
from attnkernel.fitting._bounds import Box
from attnkernel.fitting._multistart import _line_points
from attnkernel.fitting._problem import Problem

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


def test_lines_pass_through_the_best_point_along_each_bounded_parameter():
    """Evenly in the parameter, from bound to bound; the first point is the best itself."""
    box = Box(np.array([0.0, -np.inf, 2.0]), np.array([1.0, np.inf, 6.0]))
    best = np.array([0.25, 7.0, -0.5])
    points = _line_points(best, 12, Problem(None, None, None, None, box))  # type: ignore[arg-type]
    np.testing.assert_array_equal(points[[0, 11]], [best, best])
    levels = (np.arange(5) + 0.5) / 5
    np.testing.assert_allclose(0.5 + 0.5 * np.sin(points[1:6, 0]), levels, rtol=1e-12)
    np.testing.assert_allclose(4.0 + 2.0 * np.sin(points[6:11, 2]), 2.0 + 4.0 * levels, rtol=1e-12)
    np.testing.assert_array_equal(points[1:6, 1:], np.tile(best[1:], (5, 1)))
    np.testing.assert_array_equal(points[6:11, :2], np.tile(best[:2], (5, 1)))
