"""Data and arguments of `fit` that are refused, each named with its value and a remedy."""

import jax
import numpy as np
import optax
import pytest

import attnkernel as ak

ADAM = optax.adam(0.1)
N = 19
RNG = np.random.default_rng(0)
X, Y = RNG.uniform(-2, 2, size=(N, 1)), RNG.normal(size=N)


def model(lengthscale=1.0):
    return ak.KernelRegression(ak.Gaussian(lengthscale))


def changed(array, row, value):
    array = array.copy()
    array[row] = value
    return array


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        pytest.param(X[:2], Y[:2], "3 rows; got 2", id="two rows"),
        pytest.param(X, Y[:-1], r"x \(19, 1\) and y \(18,\)", id="a label too few"),
        pytest.param(changed(X, 7, np.nan), Y, r"x .*finite.*1 of 19.*row 7", id="NaN in x"),
        pytest.param(X, changed(Y, 3, np.inf), r"y .*finite.*1 of 19.*row 3", id="inf in y"),
        pytest.param(np.ones_like(X), Y, "x is constant", id="constant x"),
        pytest.param(X, np.ones(N), r"y is constant.*1\.0", id="constant y"),
    ],
)
def test_data_that_are_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        ak.fit(model(), x, y, objective=ak.LeaveOneOut())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": ak.HoldOut(N)}, r"HoldOut\(19\).*19 rows"),
        ({"key": None}, "key="),
        ({"optimizer": None}, "HoldOut.*optimizer="),
        ({"steps": None}, "steps="),
        ({"steps": 0}, "steps.*got 0"),
        ({"chunk": 0}, "chunk.*got 0"),
        ({"starts": 0}, "starts.*got 0"),
        ({"starts": 5}, "starts.*bounds="),
        ({"trainable": lambda leaf: False}, "trainable="),
        ({"bounds": (model(2.0), model(3.0))}, "outside its bounds.*lengthscale=1.*lengthscale=2"),
        ({"bounds": (model(3.0), model(0.5))}, "lower bound"),
        ({"bounds": (0.1, 3.0)}, r"bounds.*0\.1, 3\.0"),
    ],
    ids=lambda of: ", ".join(of) if isinstance(of, dict) else "",
)
def test_arguments_that_are_refused(changes, message):
    arguments = {"objective": ak.HoldOut(4), "optimizer": ADAM, "steps": 13}
    arguments |= {"key": jax.device_put(np.zeros(2, np.uint32))} | changes
    with pytest.raises(ValueError, match=f"(?is){message}"):
        ak.fit(model(), X, Y, **arguments)
