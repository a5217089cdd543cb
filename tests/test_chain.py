"""The chain from kernel regression to attention, as its configs run it."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from experiments.__main__ import main

CONFIGS = Path(__file__).parents[1] / "configs"


def run(name, out, *overrides):
    command = ["run", str(CONFIGS / f"{name}.yaml"), "--quiet", "--out", str(out / name)]
    assert main([*command, *overrides]) == 0
    return json.loads((out / name / "summary.json").read_text())


def test_each_arrow_of_the_derivation_is_an_identity(tmp_path):
    found = run("derivation", tmp_path)
    assert list(found["deviations"]) == [f"B{i}" for i in range(1, 9)]
    assert max(found["deviations"].values()) <= 1e-12
    without, scaled = found["scales"]["without"], found["scales"]["with"]
    # the variance is d, and 1 over √d; the softmax then neither saturates nor loses its slope
    np.testing.assert_allclose(without["variance"], found["dims"], rtol=0.25)
    np.testing.assert_allclose(scaled["variance"], 1.0, rtol=0.25)
    for name, saturated, kept in (("entropy", 0.1, 3.5), ("slope", 0.05, 0.15)):
        assert without[name][-1] < saturated
        assert min(scaled[name]) > kept


def test_rules_are_maxima_and_entmax_is_a_compact_kernel(tmp_path):
    found = run("retrieval_rule", tmp_path, "trials=3", "points=9")
    for deviations in found["optimiser"].values():
        assert deviations["weights"] < 1e-6
        assert deviations["objective"] < 1e-12
    assert max(found["compact_kernels"].values()) < 1e-12
    # cold, one key; hot, the prior
    prior = np.array([1, 1, 3, 1, 6]) / 12
    weights = np.asarray(found["regimes"]["prior_weights"])
    np.testing.assert_allclose(weights[0], [1, 0, 0, 0, 0], atol=1e-4)
    np.testing.assert_allclose(weights[-1], prior, atol=0.06)


def test_the_dial_goes_from_one_label_to_the_mean_of_all(tmp_path):
    found = run("temperature", tmp_path, "steps=500", "draws=50")
    dial = {name: np.asarray(column) for name, column in found["dial"].items()}
    assert (np.diff(dial["entropy"]) > 0).all()
    assert dial["entropy"][0] < 0.01
    assert dial["entropy"][-1] == pytest.approx(math.log(150), abs=1e-3)
    best = int(np.argmin(dial["error"]))
    assert 0.005 < dial["temperature"][best] < 0.05
    assert dial["error"][best] < 0.2 * dial["error"][0]
    forms = found["forms"]
    np.testing.assert_allclose(forms["fixed"]["weights"], 1 / 150, rtol=1e-12)
    for form in forms.values():
        assert sum(form["weights"]) == pytest.approx(1.0)
    assert forms["learned"]["error"] < 0.3 * forms["fixed"]["error"]


def test_as_many_priors_as_scores(tmp_path, capsys):
    config = str(CONFIGS / "retrieval_rule.yaml")
    assert main(["show", config, "prior=[1.0, 2.0]"]) == 2
    assert "expected as many priors as scores; got 2 and 5" in capsys.readouterr().err
