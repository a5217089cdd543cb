"""The benchmark of bandwidths by GCV: its criterion and error against NumPy, its peer replaced."""

import types

import jax
import numpy as np
import pytest
from marks import needs_finufft

import attnkernel as ak
from experiments.benchmarks import gcv

OFFSET, FACTOR = 0.01, 1.02  # of the curve and the criterion of the peer, by which they are wrong


def effective_weights(at, x, bandwidth, order):
    difference = x - at[:, None]
    weights = np.exp(-0.5 * (difference / bandwidth) ** 2)
    if order:
        first, second = ((weights * difference**a).sum(axis=1, keepdims=True) for a in (1, 2))
        weights = weights * (second - first * difference)
    return weights / weights.sum(axis=1, keepdims=True)


def criterion(x, y, bandwidth, order):
    hat = effective_weights(x, x, bandwidth, order)
    return np.mean((y - hat @ y) ** 2) / (1.0 - np.trace(hat) / len(x)) ** 2


def stand_in():
    """A `fastlpr` by NumPy, with a curve that is off by a constant.

    Bandwidths are in standard deviations of the inputs, as fastLPR takes them.
    """

    def cv_fastlpr(x, y, bandwidths, options):
        assert options["dstd"] == 0
        order, at, unit = options["order"], bandwidths[:, 0], np.std(x, ddof=1)
        values = np.array([criterion(x[:, 0], y, unit * h, order) for h in at])
        found = {"gcv_m": FACTOR * values}
        best = at[np.argmin(values)]
        return types.SimpleNamespace(h=np.array([best]), x=x[:, 0], y=y, order=order, gcv=found)

    def predict(fitted, at):
        bandwidth = np.std(fitted.x, ddof=1) * fitted.h[0]
        hat = effective_weights(at[:, 0], fitted.x, bandwidth, fitted.order)
        return (hat @ fitted.y)[:, None] + OFFSET

    return types.SimpleNamespace(cv_fastlpr=cv_fastlpr, fastlpr_predict=predict)


@pytest.mark.slow
@needs_finufft
def test_criteria_and_errors_are_those_of_numpy(x64, run_study, monkeypatch):
    monkeypatch.setattr(gcv, "optional_import", lambda name: stand_in())
    rows = run_study("bench_gcv", "n=[200]", "repeats=1").summary["table"]
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(2024), n=200)
    x, y = np.asarray(data.x[:, 0]), np.asarray(data.y)
    assert [row["order"] for row in rows] == [0, 1]
    for row in rows:
        for name in (gcv.OURS, gcv.FASTLPR):
            expected = criterion(x, y, row["bandwidth"][name], row["order"])
            np.testing.assert_allclose(row["criterion"][name], expected, rtol=1e-7)
        assert 0.0 < row["criterion_above_ours"][gcv.FASTLPR] < 0.01
        assert row["criterion_error"][gcv.OURS] < 1e-5
        assert row["criterion_error"][gcv.FASTLPR] == pytest.approx(FACTOR - 1.0, rel=1e-4)
        assert row["curve_error"][gcv.OURS] < 1e-5
        assert row["curve_error"][gcv.FASTLPR] == pytest.approx(OFFSET, rel=1e-6)
