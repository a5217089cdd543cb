"""The study of a million points, with a few thousand, against the dense criterion and R."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnkernel as ak
from experiments.__main__ import main
from experiments.studies._kernsmooth import kernsmooth
from experiments.studies._sides import Absent

TINY = """
study: million
fits: [{n: 300, dim: 1}]
curve: 5
sizes: [200]
dims: [1]
repeats: 1
"""


@pytest.fixture
def summary(tmp_path, monkeypatch):
    pytest.importorskip("jax_finufft")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    assert main(["run", "tiny.yaml", "--out", "out"]) == 0
    return json.loads((tmp_path / "out/summary.json").read_text())


def test_the_fit_is_that_of_the_dense_criterion(x64, summary, tmp_path):
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(2024), n=300)
    start = 1.06 * jnp.std(data.x) * 300**-0.2
    model, low, high = (
        ak.KernelRegression(ak.Gaussian(start * factor), method=ak.Dense())
        for factor in (1.0, 0.05, 3.0)
    )
    dense = ak.fit(model, data.x, data.y, objective=ak.LeaveOneOut(), bounds=(low, high), starts=1)
    (fit,) = summary["fits"]
    np.testing.assert_allclose(fit["lengthscale"], dense.model.kernel.lengthscale, rtol=1e-5)
    np.testing.assert_allclose(fit["criterion"], dense.loss, rtol=1e-6)
    assert fit["off_by"] < 1e-4
    sides = {row["side"] for row in summary["times"]}
    assert {"Fourier", "Blockwise", "Dense", "Sorted"} <= sides
    for name in ("million", "times"):
        for end in ("png", "pdf", "npz"):
            assert (tmp_path / f"out/figures/{name}.{end}").is_file()


def test_without_r_it_says_so(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Absent, match="Rscript: not installed"):
        kernsmooth(np.arange(5.0), np.arange(5.0), 1)


def test_float32_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY + "precision: float32\n")
    assert main(["validate", "tiny.yaml"]) == 2
    assert "expected float64" in capsys.readouterr().err
