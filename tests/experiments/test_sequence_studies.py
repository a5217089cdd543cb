"""Studies of sequence layers: estimators on drifting functions, and associative recall."""

import equinox as eqx
import jax
import numpy as np
import pytest

from experiments.config.registry import STUDIES
from experiments.reports.predictions import half_width
from experiments.studies.associative_recall import OneLayer
from experiments.studies.sequence_estimators import LAYERS, errors_of_layer


def drifting(**fields):
    small = {"rows": 24, "dim": 3, "dim_v": 2, "sequences": 3}
    return STUDIES["test_time_regression"](study="test_time_regression", **small | fields)


@pytest.mark.parametrize("speed", [0.0, 0.2])
def test_the_oracle_of_linear_functions_is_the_kalman_filter(x64, speed):
    study, noise = drifting(), 0.3

    @jax.jit
    def drawn():
        data = study.draw(jax.random.PRNGKey(0), "linear", noise, speed)
        return data, study.posterior(data, "linear", noise, speed)

    data, found = drawn()
    k, v, q = map(np.asarray, data[:3])
    state, spread, expected = np.zeros((3, 2)), np.eye(3), []
    for t in range(study.rows):
        if t:
            spread = spread + speed**2 * np.eye(3)
        gain = spread @ k[t] / (k[t] @ spread @ k[t] + noise**2)
        state = state + np.outer(gain, v[t] - k[t] @ state)
        spread = spread - np.outer(gain, k[t] @ spread)
        expected.append(q[t] @ state)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


def by_rows(name, q, k, v, memory, rate):
    """The recurrences of two layers in NumPy."""
    alpha, state, mass, out = np.exp(-1 / memory), np.zeros((3, 2)), 0.0, []
    for t in range(len(k)):
        state, mass = alpha * state, alpha * mass + 1.0
        state = state + np.outer(k[t], rate * (v[t] - state.T @ k[t]) if name != "decay" else v[t])
        out.append(q[t] @ state / (mass if name == "decay" else 1.0))
    return np.array(out)


@pytest.mark.parametrize("name", ["decay", "gated delta"])
def test_scalars_have_the_least_error_one_step_ahead(x64, name):
    """Against all combinations, of recurrences in NumPy."""
    study = drifting()
    drawn = jax.jit(lambda: study.draw(jax.random.PRNGKey(1), "nonlinear", 0.2, 0.1))()
    k, v, q, truth = map(np.asarray, drawn)
    half, layer, best = study.rows // 2, LAYERS[name], (np.inf, None, None)
    for memory in layer.scalars["memory"]:
        for rate in layer.scalars.get("rate", (1.0,)):
            ahead, now = (
                by_rows(name, at, k, v, memory, rate) for at in (np.roll(k, -1, axis=0), q)
            )
            if name == "decay":
                late = ahead[:-1][len(ahead[:-1]) // 2 :], v[1:][len(v[1:]) // 2 :]
                factor = np.sum(late[0] * late[1]) / np.sum(late[0] ** 2)
                ahead, now = factor * ahead, factor * now
            start = (study.rows - 1) // 2
            error = np.mean((ahead[:-1][start:] - v[1:][start:]) ** 2)
            if error < best[0]:
                best = error, np.mean((now[half:] - truth[half:]) ** 2), {"memory": memory}
                best[2].update({"rate": rate} if "rate" in layer.scalars else {})
    error, scalars = jax.jit(errors_of_layer(layer))(k, v, q, truth)
    np.testing.assert_allclose(error, best[1], rtol=1e-9)
    assert {name: float(value) for name, value in scalars.items()} == pytest.approx(best[2])


@pytest.mark.slow
def test_layers_are_compared_with_the_oracle(run_study):
    fields = ("rows=64", "sequences=8", "speeds=[0.0, 0.1]", "noises=[0.1]")
    run = run_study("test_time_regression", *fields)
    rows = run.summary["rows"]
    assert [(row["function"], row["speed"]) for row in rows] == [
        (function, speed) for function in ("linear", "nonlinear") for speed in (0.0, 0.1)
    ]
    for row in rows:
        ratios = {name: one["ratio"] for name, one in row["layers"].items()}
        assert ratios.pop("oracle") == 1.0
        assert ratios.keys() == LAYERS.keys()
        assert min(ratios.values()) > 0.95
        assert row["layers"][row["best"]]["above_best"] == 0.0
    assert all(one["held"] or one["failed"] for one in run.summary["predictions"])
    assert list(run.figures) == ["errors"]


def recall(**fields):
    return STUDIES["associative_recall"](study="associative_recall", **fields)


def test_each_query_asks_for_the_value_of_its_key():
    study = recall(pairs=[2, 5], key_tokens=7, value_tokens=9)
    draw = jax.jit(lambda pairs, key: study.draw(key, pairs), static_argnums=0)
    for pairs in (2, 5):
        drawn = draw(pairs, jax.random.PRNGKey(pairs))
        tokens, labels, asked = map(np.asarray, drawn)
        keys, values = tokens[: 2 * pairs : 2], tokens[1 : 2 * pairs : 2]
        assert len(set(keys)) == pairs
        assert (keys < 7).all()
        assert ((values >= 7) & (values < 16)).all()
        stored = dict(zip(keys, values - 7, strict=True))
        rows = np.flatnonzero(asked)
        assert rows.tolist() == list(range(2 * pairs, 3 * pairs))
        assert sorted(tokens[rows]) == sorted(keys)
        assert [stored[token] for token in tokens[rows]] == labels[rows].tolist()


def test_every_layer_has_nearly_the_same_number_of_parameters():
    study, sizes = recall(), {}
    for name in study.layers:
        model = eqx.filter_eval_shape(OneLayer, study, name, key=jax.random.PRNGKey(0))
        leaves = jax.tree.leaves(model)
        sizes[name] = sum(leaf.size for leaf in leaves if hasattr(leaf, "size"))
    assert max(sizes.values()) < 1.01 * min(sizes.values())


@pytest.mark.slow
def test_softmax_learns_to_recall(run_study):
    fields = ("layers=[softmax, linear]", "pairs=[2, 4]", "key_tokens=8", "value_tokens=4")
    run = run_study(
        "associative_recall", *fields, "seeds=2", "steps=400", "tested=50", "size=16", "qk_size=8"
    )
    softmax, linear = run.summary["rows"]
    assert (softmax["layer"], linear["layer"]) == ("softmax", "linear")
    assert min(softmax["accuracy"]) > 0.9
    assert list(run.figures) == ["recall"]


def test_intervals_of_few_repetitions_are_those_of_student():
    """Intervals of five normal numbers cover their mean in 95 % of samples; with the quantile 1.96
    of the normal distribution, in place of Student's, they would in 88 %."""
    values = np.random.default_rng(0).normal(size=(5, 20_000))
    covered = np.mean(np.abs(values.mean(axis=0)) < half_width(values))
    assert abs(covered - 0.95) < 0.005
