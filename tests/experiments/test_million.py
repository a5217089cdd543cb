"""The study of a million points, with 300, against the dense criterion and R."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import needs_finufft

import attnkernel as ak
from experiments.benchmarks import million
from experiments.benchmarks.driver import SelfTimed, Unavailable
from experiments.benchmarks.r_scripts import kernsmooth

TINY = ("fits=[{n: 300, dim: 1}]", "curve=5", "sizes=[200]", "dims=[1]", "repeats=1")


@pytest.mark.slow
@needs_finufft
def test_fit_equals_that_of_the_dense_criterion(x64, run_study, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(million, "keops", lambda *arguments: lambda: SelfTimed(0.01, None))
    run = run_study("million", *TINY)
    summary = run.summary
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(2024), n=300)
    start = 1.06 * jnp.std(data.x) * 300**-0.2
    model, low, high = (
        ak.KernelRegression(ak.Gaussian(start * factor), method=ak.methods.Dense())
        for factor in (1.0, 0.05, 3.0)
    )
    dense = ak.fit(model, data.x, data.y, objective=ak.LeaveOneOut(), bounds=(low, high), starts=1)
    (fit,), (row,) = summary["fits"], summary["table"]
    np.testing.assert_allclose(fit["lengthscale"], dense.model.kernel.lengthscale, rtol=1e-5)
    np.testing.assert_allclose(fit["criterion"], dense.loss, rtol=1e-6)
    assert fit["off_by"] < 1e-4
    assert row["median"].keys() == {"Fourier", "Blockwise", "Dense", "Sorted", million.KEOPS}
    assert row["deviation"].keys() == {"Fourier", "Blockwise", "Dense"}
    assert max(row["deviation"].values()) < 1e-5
    assert row["median"][million.KEOPS] == 0.01
    assert fit["unavailable"] == {million.R: "Rscript: not installed"}
    assert summary["targets"][0]["reached"] is None
    assert f"no {million.R} (Rscript: not installed)" in run.output
    for name in ("million", "million_fit"):
        for end in ("png", "pdf", "npz"):
            assert (run.directory / f"figures/{name}.{end}").is_file()


def test_missing_r_is_reported(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Unavailable, match="Rscript: not installed"):
        kernsmooth(np.arange(5.0), np.arange(5.0))


@pytest.mark.needs_r("KernSmooth")
def test_kernsmooth_of_r_smooths_with_its_own_bandwidth():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, 500)
    seconds, found = kernsmooth(x, np.sin(2 * x) + 0.1 * rng.normal(size=500))()
    assert 0 <= seconds < 60
    assert 0.01 < found.bandwidth < 0.5
    at, curve = found.curve
    middle = np.abs(at) < 1.5
    np.testing.assert_allclose(curve[middle], np.sin(2 * at[middle]), atol=0.1)
