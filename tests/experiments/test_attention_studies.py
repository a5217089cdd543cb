"""Studies that lead from kernel regression to attention: their configs, at small sizes."""

import math

import numpy as np
import pytest


@pytest.mark.slow
def test_each_step_of_the_derivation_is_an_identity(run_study):
    found = run_study("derivation").summary
    assert list(found["deviations"]) == [f"B{i}" for i in range(1, 9)]
    assert max(found["deviations"].values()) <= 1e-12
    without, scaled = found["scales"]["without"], found["scales"]["with"]
    # q · k has variance d, and 1 once divided by √d: the softmax then does not saturate
    np.testing.assert_allclose(without["variance"], found["dims"], rtol=0.25)
    np.testing.assert_allclose(scaled["variance"], 1.0, rtol=0.25)
    for name, saturated, kept in (("entropy", 0.1, 3.5), ("slope", 0.05, 0.15)):
        assert without[name][-1] < saturated
        assert min(scaled[name]) > kept


@pytest.mark.slow
def test_rules_maximise_their_objectives_and_entmax_is_a_compact_kernel(run_study):
    found = run_study("retrieval_rule", "trials=3", "points=9").summary
    for deviations in found["optimiser"].values():
        assert deviations["weights"] < 1e-6
        assert deviations["objective"] < 1e-12
    assert max(found["compact_kernels"].values()) < 1e-12
    # at a low temperature one key has all the weight, at a high one the weights are the prior
    prior = np.array([1, 1, 3, 1, 6]) / 12
    weights = np.asarray(found["regimes"]["prior_weights"])
    np.testing.assert_allclose(weights[0], [1, 0, 0, 0, 0], atol=1e-4)
    np.testing.assert_allclose(weights[-1], prior, atol=0.06)


@pytest.mark.slow
def test_temperature_goes_from_one_label_to_the_mean_of_all(run_study):
    found = run_study("temperature", "steps=500", "draws=50", style="dark").summary
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


@pytest.mark.slow
def test_decoding_with_a_cache_equals_the_full_pass(run_study):
    overrides = ("size=8", "heads=2", "window=16", "compared=40", "lengths=[20, 40]", "repeats=1")
    found = run_study("cache", *overrides).summary
    assert max(found["deviations"].values()) < 1e-12
    full, ring, recurrent = (
        found["costs"][kind]["bytes"] for kind in ("full", "ring", "recurrent")
    )
    assert full[1] > 1.9 * full[0]
    assert ring[0] == ring[1] < full[0]
    assert recurrent[0] == recurrent[1] < ring[0]


@pytest.mark.slow
def test_heads_over_sentences_attend_by_role_and_position(run_study):
    largest = run_study("sentence", style="dark").summary["largest"]
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


@pytest.mark.slow
def test_kernels_of_the_zoo_equal_their_formulas(run_study):
    overrides = ("data.n=41", "tokens=17", "window=3", "dim=5", "window_of_cost=7", "repeats=1")
    study = run_study("zoo", *overrides, "lengths=[19, 37]", "counts=[8, 512]", style="dark")
    assert study.figures.keys() == {"shapes", "fits", "heat_maps", "features", "cost"}
    found, figures = study.summary, {name: study.arrays(name) for name in study.figures}
    x, y = (figures["fits"][name].astype(float) for name in "xy")
    line = np.linspace(-3, 3, 17)
    for name, shape in SHAPES.items():
        r = np.abs(figures["shapes"]["r"])
        drawn = figures["shapes"][name][abs(r - 1) > 1e-6]  # the boxcar ends there
        np.testing.assert_allclose(drawn, shape(r[abs(r - 1) > 1e-6]), atol=1e-5)
        unnormalised = shape(np.abs(line[:, None] - line))
        expected = unnormalised / unnormalised.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(figures["heat_maps"][name], expected, atol=1e-5)
        # leave-one-out: the diagonal has no weight
        weights = shape(np.abs(x[:, None] - x) / found["fits"][name]["lengthscale"])
        left_out = weights * (1 - np.eye(41))
        errors = (y - left_out @ y / left_out.sum(axis=1)) ** 2
        assert found["fits"][name]["leave_one_out"] == pytest.approx(errors.mean(), rel=1e-3)
    i = np.arange(17)
    distance = i[:, None] - i
    causal = distance >= 0
    for name, allowed in {"softmax": causal, "window": causal & (distance <= 3)}.items():
        weights = figures["heat_maps"][name]
        np.testing.assert_array_equal(weights > 0, allowed)
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-5)
    softmax, alibi = (np.log(figures["heat_maps"][name][-1]) for name in ("softmax", "ALiBi"))
    np.testing.assert_allclose(np.diff(alibi - softmax), 0.2, atol=1e-4)
    for name in ("Gaussian", "softmax"):
        errors = found["features"][name]["error"]
        assert 0.35 < math.log(errors[0] / errors[1]) / math.log(64) < 0.65
    for cost in found["costs"].values():
        first, last = cost["seconds"]
        assert cost["order"] == pytest.approx(math.log(last / first) / math.log(37 / 19))


@pytest.mark.slow
def test_learned_projections_find_neighbours_that_linear_ones_cannot(run_study):
    overrides = ("kernels.steps=200", "projections.steps=600", "learned_heads=2")
    study = run_study("projection", *overrides)
    table = {row["model"]: row for row in study.summary["table"]}
    one = table["one Gaussian"]
    assert one["parameters"] == 1
    assert one["error"] < 0.03
    linear, learned = (
        table[name] for name in ("q · k of linear projections", "Gaussian of learned projections")
    )
    assert learned["error"] < 0.5 * linear["error"]


@pytest.mark.slow
def test_induction_heads_learn_to_copy(run_study):
    overrides = ("vocabulary=16", "rows=32", "shortest=6", "longest=10", "size=32", "heads=2")
    found = run_study("induction", *overrides, "batch=32", "steps=800").summary
    assert found["accuracy"] > 0.8
    assert found["bigrams"] < 0.2
    assert found["accuracy_first"] < 0.3
    assert max(found["previous_token"][0]) > 0.3
    assert max(found["induction"][1]) > 0.5


@pytest.mark.slow
def test_in_context_model_approaches_the_posterior_mean(run_study):
    overrides = ("contexts=[8, 32]", "heads=4", "hidden=16", "targets=16", "batch=16")
    table = run_study("in_context", *overrides, "steps=600", "tested=40").summary["table"]
    for row in table:
        errors = row["error"]
        assert errors["posterior"] < errors["learned"] < 1.5 * errors["tuned"]
    assert table[1]["error"]["learned"] < 0.4 * table[0]["error"]["learned"]
