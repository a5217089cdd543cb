"""Criteria of rows with repeated inputs, summed over the distinct ones."""

import jax
import numpy as np
import pytest

import attnkernel as ak
from attnkernel.objectives import Sample, at_distinct_inputs


@pytest.fixture
def rows(x64):
    """Inputs of which three do not repeat, two labels each, and weights, which repeat too."""
    rng = np.random.default_rng(0)
    distinct = rng.uniform(size=(13, 2)) + np.arange(13)[:, None] / 5
    of_row = np.append(rng.integers(0, 10, 50), [10, 11, 12])
    weights = np.where(of_row % 2, 0.5, 2.0)
    arrays = distinct[of_row], rng.normal(size=(len(of_row), 2)), weights
    return jax.device_put(arrays)


@pytest.mark.parametrize("order", [0, 1])
def test_criteria_and_their_slopes_are_those_of_all_rows(rows, order):
    x, y, weights = rows
    objectives = [ak.LeaveOneOut(), *(of(weights=weights) for of in (ak.LeaveOneOut, ak.GCV))]
    objectives.append(ak.AICc())
    start = ak.KernelRegression(ak.Gaussian(1.0), order=order)
    merged = [at_distinct_inputs(start, Sample(x, y, of)).padded(start) for of in objectives]
    assert all(len(of.x) == 16 for of in merged)

    def criteria(lengthscale):
        model = ak.KernelRegression(ak.Gaussian(lengthscale), order=order)
        of_all = [of(model, x, y) for of in objectives]
        return of_all, [of.objective(model, of.x, of.y) for of in merged]

    for of_all, of_distinct in jax.jit(lambda at: jax.jvp(criteria, (at,), (1.0,)))(0.4):
        np.testing.assert_allclose(of_distinct, of_all, rtol=1e-9)


def test_sums_over_labels_are_of_double_precision():
    """1000 labels near 10⁴ at each of three inputs, in float32."""
    x = jax.device_put(np.repeat(np.arange(3.0, dtype="float32"), 1000)[:, None])
    y = np.random.default_rng(0).normal(1e4, 0.1, 3000).astype("float32")
    model, objective = ak.KernelRegression(ak.Gaussian(1.0)), ak.LeaveOneOut()
    merged = at_distinct_inputs(model, Sample(x, jax.device_put(y), objective))
    groups = y.astype(float).reshape(3, 1000)
    expected = np.sum((groups - groups.mean(1, keepdims=True)) ** 2, axis=1)
    np.testing.assert_allclose(merged.objective.squares, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "objective"),
    [
        (ak.KernelRegression(ak.Gaussian(1.0), rule=ak.Entmax(1.5)), ak.LeaveOneOut()),
        (ak.KernelRegression(ak.Gaussian(1.0)), ak.LeaveOneOut(score=ak.losses.absolute_error)),
        (ak.KernelRegression(ak.Gaussian(1.0)), ak.KFold(5)),
        (ak.LocalQuantile(ak.Gaussian(1.0)), ak.LeaveOneOut()),
    ],
)
def test_what_has_no_such_formula_keeps_all_rows(rows, model, objective):
    data = Sample(*rows[:2], objective)
    assert at_distinct_inputs(model, data) is data
