"""Studies of kernel regression itself: what theory and other libraries say of it."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from experiments.__main__ import main
from experiments.studies.boundary import predicted

CONFIGS = Path(__file__).parents[1] / "configs"


def run(name, out, *overrides):
    command = ["run", str(CONFIGS / f"{name}.yaml"), "--quiet", "--out", str(out / name)]
    assert main([*command, *overrides]) == 0
    return json.loads((out / name / "summary.json").read_text())


# f(x) = sin(2x + ½): its slope at 0, and its second derivatives at 0 and ½
SLOPE, BENDS = 2 * math.cos(0.5), {"boundary": -4 * math.sin(0.5), "interior": -4 * math.sin(1.5)}


def test_bias_and_variance_at_a_boundary_are_those_of_theory(tmp_path):
    overrides = ("n=5000", "kernels=[gaussian]", "lengthscales=[0.005, 0.01, 0.02]", "points=2")
    found = run("boundary", tmp_path, *overrides)
    h, half, at_end = 0.005, 0.5 * 0.005**2, (math.pi - 4) / (math.pi - 2)
    bias = {
        (0, "boundary"): h * SLOPE * math.sqrt(2 / math.pi) + half * BENDS["boundary"],
        (0, "interior"): half * BENDS["interior"],
        (1, "boundary"): half * BENDS["boundary"] * at_end,
        (1, "interior"): half * BENDS["interior"],
    }
    variance = {"boundary": 1 / math.sqrt(math.pi), "interior": 0.5 / math.sqrt(math.pi)}
    for row in found["rows"]:
        case = row["order"], row["place"]
        np.testing.assert_allclose(row["predicted_bias"][0], bias.pop(case), rtol=1e-9)
        assert row["ratio"] == pytest.approx([1.0] * 3, abs=0.08)
        assert row["ratio"][0] == pytest.approx(1.0, abs=0.02)
        assert row["power"] == pytest.approx(1 if case == (0, "boundary") else 2, abs=0.05)
        if case != (1, "boundary"):
            assert row["variance"][0] == pytest.approx(variance[case[1]], rel=2e-3)
    assert not bias


def test_theory_of_a_compact_kernel(x64):
    """Of half of Epanechnikov's, μ = 2/3, 1/4, 2/15, 1/12; the variances are in the book."""
    at, h = np.array([0.0, 0.5]), 0.01
    bends = 0.5 * h**2 * np.array(list(BENDS.values()))
    constant, linear = (predicted("epanechnikov", order, h, at) for order in (0, 1))
    of_slope = np.array([h * SLOPE * 3 / 8, 0.0])
    np.testing.assert_allclose(constant, [of_slope + bends / 5, [1.2, 0.6]], rtol=1e-9)
    np.testing.assert_allclose(linear[0], bends * [-11 / 95, 1 / 5], rtol=1e-9)
    np.testing.assert_allclose(linear[1], [4.4980, 0.6], rtol=1e-4)


def test_lengthscales_that_theory_does_not_speak_of(capsys):
    assert main(["show", str(CONFIGS / "boundary.yaml"), "lengthscales=[0.0001, 0.01]"]) == 2
    sentence = "lengthscales: expected lengthscales from 0.0005, ten of 20000 points long, to 0.125"
    assert sentence in capsys.readouterr().err
