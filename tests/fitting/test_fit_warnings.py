"""The default objective, results of starts, and the warning about columns of categories."""

import re
import warnings

import jax
import numpy as np
import pandas
import pytest
from marks import slow

import attnkernel as ak
from attnkernel.fitting import Result, _fit_warnings
from attnkernel.objectives import Sample


def test_default_objective_is_leave_one_out_and_is_named():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, 23)
    y = np.sin(2 * x) + 0.1 * rng.normal(size=23)
    model = ak.KernelRegression(ak.Gaussian(1.0))
    fit = ak.fit(model, x, y, starts=2)
    named = ak.fit(model, x, y, starts=2, objective=ak.LeaveOneOut())
    assert float(fit.loss) == float(named.loss)
    assert "objective=LeaveOneOut()" in repr(fit)
    np.testing.assert_array_equal(fit.starts.result, [Result.CONVERGED] * 2)
    assert all(result.message.endswith(".") for result in Result)


@pytest.mark.parametrize(
    ("order", "advice"),
    [(0, r"hardly depends on a column: drop it\."), slow(1, r"is linear in a col")],
)
def test_parameters_on_bounds_are_named_by_the_columns_of_their_kernel(order, advice):
    rng = np.random.default_rng(5)
    kind = pandas.Categorical(rng.choice(["a", "b"], 43))
    columns = {"age": rng.uniform(0, 9, 43), "kind": kind, "hours": rng.uniform(0, 9, 43)}
    frame = pandas.DataFrame(columns)
    y = np.sin(frame["age"]) + 0.05 * rng.normal(size=43)

    def model(age, hours, kind):
        quantities = ak.Gaussian(np.array([age, hours])).on("age", "hours")
        return ak.KernelRegression(quantities * ak.kernels.LiRacine(kind).on("kind"), order=order)

    bounds = (model(0.1, 0.1, 0.1), model(5.0, 2.0, 0.3))
    with pytest.warns(ak.FitWarning, match=advice):
        fit = ak.fit(model(0.5, 1.0, 0.2), frame, y, bounds=bounds, starts=1)
    named = ["kernel.first.kernel.lengthscale of hours", "kernel.second.kernel.bandwidth of kind"]
    assert fit.on_bounds() == named


@pytest.mark.parametrize("kind", ["two values", "categories"])
def test_a_constant_criterion_is_reported(kind):
    """A line through two means is the same at each lengthscale; so is the mean of all others."""
    rng = np.random.default_rng(0)
    x = np.arange(24) % 2 if kind == "two values" else np.arange(24)
    kernel = ak.Gaussian(0.5) if kind == "two values" else ak.kernels.AitchisonAitken(0.4, 24)
    model = ak.KernelRegression(kernel, order=int(kind == "two values"))
    y = x % 2 + 0.3 * rng.normal(size=24)
    with pytest.warns(ak.FitWarning, match="do not determine the parameters"):
        ak.fit(model, x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ak.FitWarning)
        inputs = rng.uniform(0, 3, 24)
        ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), inputs, np.sin(3 * inputs), starts=3)


@pytest.mark.slow
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
    product = "ak.kernels.AitchisonAitken(0.1, 2).on(0) * ak.Gaussian(1.0).on(1)"
    assert product in sentence
    assert said(eval(product)) == []


@pytest.mark.parametrize(
    ("rows", "dim", "kernel", "order", "said"),
    [
        (60_000, 4, ak.Gaussian, 0, r"3\.6e\+09 pairs.* 12 s .*not Fourier: .*not 4.*HoldOut"),
        (60_000, 1, ak.kernels.Cauchy, 0, r"not Sorted: .*Cauchy"),
        (50_000, 4, ak.Gaussian, 0, None),
        (60_000, 1, ak.Epanechnikov, 0, None),
        (
            60_000,
            4,
            ak.Gaussian,
            1,
            r" 36 s .*not Fourier: .*Faster: ak.Gaussian in 1 dim.*order 0",
        ),
        (60_000, 2, ak.Gaussian, 1, " 36 s "),  # of order 0, Fourier would sum it
        (60_000, 1, ak.Gaussian, 1, None),
        (30_000, 4, ak.Gaussian, 2, None),
    ],
)
def test_sentence_about_the_cost_of_all_pairs(rows, dim, kernel, order, said):
    data = Sample(*jax.device_put((np.zeros((rows, dim)), np.zeros(rows))), ak.LeaveOneOut())
    found = _fit_warnings.cost_warnings(ak.KernelRegression(kernel(1.0), order=order), data)
    assert len(found) == (said is not None)
    if said is not None:
        assert re.search(said, found[0])


def test_fit_warns_of_its_cost_before_the_search(monkeypatch):
    monkeypatch.setattr(_fit_warnings, "MIN_SECONDS", 0.0)
    x = np.random.default_rng(0).normal(size=(1100, 4))
    model = ak.KernelRegression(ak.Gaussian(1.0))

    def stop(done, history):
        raise InterruptedError

    weights = np.linspace(0.0, 1.0, 1100)
    with pytest.warns(ak.FitWarning, match="1099 rows"), pytest.raises(InterruptedError):
        ak.fit(model, x, np.sin(x[:, 0]), weights=weights, starts=1, steps=1, callback=stop)
