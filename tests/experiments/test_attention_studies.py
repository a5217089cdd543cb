"""The chain from kernel regression to attention, as its configs run it, some of them small."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from experiments.__main__ import main

CONFIGS = Path(__file__).parents[2] / "configs"


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


def test_decoding_is_the_full_pass_and_its_state_has_one_size(tmp_path):
    overrides = ("size=8", "heads=2", "window=16", "compared=40", "lengths=[20, 40]", "repeats=1")
    found = run("cache", tmp_path, *overrides)
    assert max(found["deviations"].values()) < 1e-12
    full, ring, recurrent = (
        found["costs"][kind]["bytes"] for kind in ("full", "ring", "recurrent")
    )
    assert full[1] > 1.9 * full[0]
    assert ring[0] == ring[1] < full[0]
    assert recurrent[0] == recurrent[1] < ring[0]


def test_heads_over_sentences_look_where_roles_and_positions_say(tmp_path):
    largest = run("sentence", tmp_path)["largest"]
    found = {(row["head"], row["query"]): row["key"] for row in largest}
    assert found["verb to subject", "saw"] == "cat"
    assert found["determiner", "dog"] == "a"
    assert found["pronoun to noun", "she"] == "child"
    assert found["pronoun to noun", "it"] == "bank"
    for row in largest:
        assert row["positions"][1] <= row["positions"][0]
        if row["head"] == "previous token" and row["positions"][0]:
            assert row["positions"][1] == row["positions"][0] - 1


SHAPES = {
    "Gaussian": lambda r: np.exp(-0.5 * r**2),
    "boxcar": lambda r: 1.0 * (r <= 1),
    "triangular": lambda r: np.maximum(1 - r, 0),
    "Epanechnikov": lambda r: np.maximum(1 - r**2, 0),
}


def test_kernels_of_the_zoo_are_their_formulas(tmp_path):
    overrides = ("data.n=41", "tokens=17", "window=3", "dim=5", "window_of_cost=7", "repeats=1")
    found = run("zoo", tmp_path, *overrides, "lengths=[19, 37]", "counts=[8, 512]")
    figures = {
        name: np.load(tmp_path / "zoo" / "figures" / f"{name}.npz")
        for name in ("shapes", "fits", "heat_maps", "features", "cost")
    }
    x, y = (figures["fits"][name].astype(float) for name in "xy")
    line = np.linspace(-3, 3, 17)
    for name, shape in SHAPES.items():
        r = np.abs(figures["shapes"]["r"])
        drawn = figures["shapes"][name][abs(r - 1) > 1e-6]  # the boxcar ends there
        np.testing.assert_allclose(drawn, shape(r[abs(r - 1) > 1e-6]), atol=1e-5)
        of_line = shape(np.abs(line[:, None] - line))
        expected = of_line / of_line.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(figures["heat_maps"][name], expected, atol=1e-5)
        # leave-one-out, each point left out in turn
        weights = shape(np.abs(x[:, None] - x) / found["fits"][name]["lengthscale"])
        left_out = weights * (1 - np.eye(41))
        errors = (y - left_out @ y / left_out.sum(axis=1)) ** 2
        assert found["fits"][name]["leave_one_out"] == pytest.approx(errors.mean(), rel=1e-3)
    i = np.arange(17)
    back = i[:, None] - i
    for name, seen in {"softmax": back >= 0, "window": (back >= 0) & (back <= 3)}.items():
        weights = figures["heat_maps"][name]
        np.testing.assert_array_equal(weights > 0, seen)
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-5)
    softmax, alibi = (np.log(figures["heat_maps"][name][-1]) for name in ("softmax", "ALiBi"))
    np.testing.assert_allclose(np.diff(alibi - softmax), 0.2, atol=1e-4)
    for name in ("Gaussian", "softmax"):
        errors = found["features"][name]["error"]
        assert 0.35 < math.log(errors[0] / errors[1]) / math.log(64) < 0.65
    for cost in found["costs"].values():
        first, last = cost["seconds"]
        assert cost["order"] == pytest.approx(math.log(last / first) / math.log(37 / 19))


def test_one_role_per_token(capsys):
    config = str(CONFIGS / "sentence.yaml")
    bad = "sentences=[{tokens: [a, b, c], roles: [noun, verb]}]"
    assert main(["show", config, bad]) == 2
    assert "expected one role per token; got 2 roles and 3 tokens" in capsys.readouterr().err


def test_projections_are_trained_beside_kernels(tmp_path):
    overrides = ("kernels.steps=200", "projections.steps=600", "learned_heads=2")
    table = {row["model"]: row for row in run("projection", tmp_path, *overrides)["table"]}
    one = table["one Gaussian"]
    assert one["parameters"] == 1
    assert one["error"] < 0.03
    linear, learned = (
        table[name] for name in ("q · k of linear projections", "Gaussian of learned projections")
    )
    # scores that are linear in x cannot find the neighbours of x; learned ones can
    assert learned["error"] < 0.5 * linear["error"]


def test_a_small_model_learns_to_copy(tmp_path):
    overrides = ("vocabulary=16", "rows=32", "shortest=6", "longest=10", "size=32", "heads=2")
    found = run("induction", tmp_path, *overrides, "batch=32", "steps=800")
    assert found["accuracy"] > 0.8
    assert found["bigrams"] < 0.2
    assert found["accuracy_first"] < 0.3
    assert max(found["previous_token"][0]) > 0.3
    assert max(found["induction"][1]) > 0.5


def test_a_model_for_many_functions(tmp_path):
    overrides = ("contexts=[8, 32]", "heads=4", "hidden=16", "steps=600", "tested=40")
    table = run("in_context", tmp_path, *overrides)["table"]
    for row in table:
        errors = row["error"]
        assert errors["posterior"] < errors["learned"] < 1.5 * errors["tuned"]
    assert table[1]["error"]["learned"] < 0.4 * table[0]["error"]["learned"]
