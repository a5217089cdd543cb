"""The benchmark of bandwidths by GCV: its criterion and error against NumPy, its peer replaced."""

import json
import types

import jax
import numpy as np
import pytest
from marks import needs_finufft

import attnkernel as ak
from experiments.__main__ import main
from experiments.benchmarks import gcv

TINY = "study: bench_gcv\nn: [200]\nrepeats: 1\n"
OFFSET = 0.01  # by which the curve of the peer is wrong


def smooth(at, x, y, bandwidth):
    weights = np.exp(-0.5 * ((at[:, None] - x) / bandwidth) ** 2)
    return weights @ y / weights.sum(axis=1), weights.sum(axis=1)


def criterion(x, y, bandwidth):
    fit, mass = smooth(x, x, y, bandwidth)
    return np.mean((y - fit) ** 2) / (1.0 - np.sum(1.0 / mass) / len(x)) ** 2


def stand_in():
    """A `fastlpr` by NumPy, with a curve that is off by a constant."""

    def cv_fastlpr(x, y, bandwidths, options):
        assert options == {"order": 0, "dstd": 0}
        best = min(bandwidths, key=lambda h: criterion(x[:, 0], y, h))
        return types.SimpleNamespace(h=np.array([best]), x=x[:, 0], y=y)

    def predict(fitted, at):
        return smooth(at[:, 0], fitted.x, fitted.y, fitted.h[0])[0][:, None] + OFFSET

    return types.SimpleNamespace(
        get_hlist=lambda number, ends: np.geomspace(*ends, number),
        cv_fastlpr=cv_fastlpr,
        fastlpr_predict=predict,
    )


@pytest.mark.slow
@needs_finufft
@pytest.mark.usefixtures("blank_figures")
def test_criteria_and_errors_are_those_of_numpy(x64, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gcv, "optional_import", lambda name: stand_in())
    (tmp_path / "tiny.yaml").write_text(TINY)
    assert main(["run", "tiny.yaml", "--out", "out", "--quiet"]) == 0
    (row,) = json.loads((tmp_path / "out/summary.json").read_text())["table"]
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(2024), n=200)
    x, y = np.asarray(data.x[:, 0]), np.asarray(data.y)
    for name in (gcv.OURS, gcv.FASTLPR):
        expected = criterion(x, y, row["bandwidth"][name])
        np.testing.assert_allclose(row["criterion"][name], expected, rtol=1e-7)
    assert 0.0 < row["criterion_above_ours"][gcv.FASTLPR] < 0.01
    assert row["curve_error"][gcv.OURS] < 1e-5
    assert row["curve_error"][gcv.FASTLPR] == pytest.approx(OFFSET, rel=1e-6)
