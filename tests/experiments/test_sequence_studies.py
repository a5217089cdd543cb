"""Studies of sequence layers and of heads: estimators on drifting functions, associative recall,
heads as an ensemble of smoothers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from least_squares import local_polynomial

from experiments.config.registry import STUDIES
from experiments.reports.figures import smoothing_verdicts
from experiments.reports.predictions import half_width
from experiments.studies import head_errors
from experiments.studies.associative_recall import OfResiduals, OneLayer
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
            both = (np.roll(k, -1, axis=0), q)
            ahead, now = (by_rows(name, at, k, v, memory, rate) for at in both)
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
    cases = [(function, speed) for function in ("linear", "nonlinear") for speed in (0.0, 0.1)]
    assert [(row["function"], row["speed"]) for row in rows] == cases
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
        tokens, labels, asked = map(np.asarray, draw(pairs, jax.random.PRNGKey(pairs)))
        keys, values = tokens[: 2 * pairs : 2], tokens[1 : 2 * pairs : 2]
        assert len(set(keys)) == pairs
        assert (keys < 7).all()
        assert ((values >= 7) & (values < 16)).all()
        stored = dict(zip(keys, values - 7, strict=True))
        rows = np.flatnonzero(asked)
        assert rows.tolist() == list(range(2 * pairs, 3 * pairs))
        assert sorted(tokens[rows]) == sorted(keys)
        assert [stored[token] for token in tokens[rows]] == labels[rows].tolist()


@pytest.mark.slow
def test_softmax_of_residuals_is_that_of_a_loop(x64):
    x, layer = (
        np.random.default_rng(3).normal(size=(7, 4)),
        OfResiduals(4, 3, key=jax.random.key(0)),
    )
    layer = eqx.tree_at(lambda one: one.attention.output_proj, layer, eqx.nn.Identity())
    of = layer.attention
    projections = (of.query_proj, of.key_proj, of.value_proj)
    heads = [x @ np.asarray(each.weight).T for each in projections]
    q, k, v = (np.asarray(part)[:, 0] for part in layer.convolve(*(h[:, None] for h in heads)))
    unit = lambda rows: rows / np.sqrt(np.sum(rows**2, axis=1, keepdims=True) + 1e-6)  # noqa: E731
    rates = 1 / (1 + np.exp(-(x @ np.asarray(layer.rate.weight).T)[:, 0]))
    state, left, found = np.zeros((3, 4)), [], layer(x)
    for row, key, query in zip(range(7), unit(k), unit(q), strict=True):
        state = state + rates[row] * np.outer(key, v[row] - key @ state)
        left.append(v[row] - key @ state)
        weights = np.exp(k[: row + 1] @ q[row] / np.sqrt(3))
        expected = weights / weights.sum() @ np.array(left) + query @ state
        np.testing.assert_allclose(found[row], expected, rtol=1e-7)


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
    sizes = ("seeds=2", "steps=200", "tested=20", "size=16", "qk_size=8")
    run = run_study("associative_recall", *fields, *sizes)
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


def test_bias_variance_and_covariance_add_up_to_the_error():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=7)
    each = truth + 0.3 + rng.normal(size=(50, 1, 7)) + 0.5 * rng.normal(size=(50, 4, 7))
    found = head_errors.decompose_error(each, truth)
    terms = found["bias"] + found["variance"] + found["covariance"]
    np.testing.assert_allclose(terms, found["error"])
    np.testing.assert_allclose(found["variance"], np.mean(each.var(axis=0)) / 4)
    centred = each - each.mean(axis=0)
    pairs = [np.mean(centred[:, a] * centred[:, b]) for a in range(4) for b in range(4) if a != b]
    np.testing.assert_allclose(found["covariance"], 0.75 * np.mean(pairs))


def test_weights_have_the_least_leave_one_out_error_by_refits(x64):
    rng = np.random.default_rng(1)
    predictions = rng.normal(size=(25, 8))  # the noise is large: the residuals would shrink least
    y = predictions @ np.full(8, 0.2) + 2.0 * rng.normal(size=25)

    def solve(rows, shrinkage):
        p = predictions[rows]
        gram = p.T @ p + shrinkage * 25 * np.eye(8)
        return 1 / 8 + np.linalg.solve(gram, p.T @ (y[rows] - p @ np.full(8, 1 / 8)))

    errors = []
    for shrinkage in head_errors.SHRINKAGE:
        seen = [np.arange(25) != i for i in range(25)]
        left = [y[i] - predictions[i] @ solve(rows, shrinkage) for i, rows in enumerate(seen)]
        errors.append(np.mean(np.square(left)))
    best = head_errors.SHRINKAGE[np.argmin(errors)]
    assert best > head_errors.SHRINKAGE[0]
    expected = solve(np.full(25, True), best)
    found = jax.jit(head_errors.shrunken_weights)(predictions, y, 25)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_heads_are_kernel_regressions_on_blocks_of_rotated_columns(x64):
    rng = np.random.default_rng(2)
    x, q, y = rng.normal(size=(20, 4)), rng.normal(size=(3, 4)), rng.normal(size=20)
    rotation = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    candidates = np.array([0.4, 0.8, 1.6])
    found = jax.jit(head_errors.fit_heads, static_argnums=4)(x, y, q, rotation, 2, candidates, 20)

    def predict(ell, at, block, seen=1.0):
        a, b = (at @ rotation)[:, block], (x @ rotation)[:, block]
        return local_polynomial(a, b, ell, weights=seen) @ y

    blocks = [slice(0, 2), slice(2, 4)]
    criteria = [
        np.mean((np.mean([predict(ell, x, b, 1 - np.eye(20)) for b in blocks], axis=0) - y) ** 2)
        for ell in candidates
    ]
    ell = candidates[np.argmin(criteria)]
    assert found.lengthscale == ell
    expected = np.array([predict(ell, q, block) for block in blocks])
    np.testing.assert_allclose(found.each, expected, rtol=1e-9)
    weighted = np.asarray(found.weights) @ expected
    np.testing.assert_allclose(found.weighted, weighted, rtol=1e-9)


@pytest.mark.slow
def test_all_lengths_and_functions_share_a_program_and_have_the_results_of_their_own(
    x64, programs, monkeypatch
):
    monkeypatch.setattr("experiments.studies.head_errors.BLOCK_ROWS", 8)  # two of three are skipped
    queries = jnp.asarray(np.random.default_rng(1).normal(size=(5, 4)))
    eye, candidates = jnp.asarray(np.eye(4)), jnp.asarray([0.5, 1.0, 2.0])

    def fit(function, n, longest):
        keys = jax.random.split(jax.random.PRNGKey(n), 2)
        parts = {"queries": queries, "rotation": eye, "heads": 2, "lengthscales": candidates}
        function, n, noise = map(jnp.asarray, (function, n, 0.3))
        return head_errors.fit_data_sets(keys, function, noise, longest, n=n, **parts)

    padded = {function: fit(function, n, 24) for function, n in ((0, 7), (1, 13), (2, 24))}
    assert sum("fit_data_sets" in name for name in programs) == 1
    for ours, alone in zip(padded[0], fit(0, 7, 7), strict=True):
        np.testing.assert_allclose(ours, alone, rtol=1e-10)
    assert all(np.isfinite(part).all() for found in padded.values() for part in found)


@pytest.mark.slow
def test_sizes_of_heads_are_compared(run_study):
    small = ("rows=[64]", "sets=8", "queries=16", "heads=[1, 4]", "functions=[rough]")
    run = run_study("head_ensemble", *small)
    assert [row["heads"] for row in run.summary["rows"]] == [1, 4]
    assert all(row["deviation"] < 1e-9 for row in run.summary["rows"])
    assert len(run.summary["predictions"]) == 6
    (one,) = run.summary["claims"]
    of = {row["heads"]: row["less"]["mean"] / row["equal"]["mean"] for row in run.summary["rows"]}
    assert (one["ours"], one["control_figure"]) == pytest.approx((of[4], of[1]))


def test_smoothing_is_judged_by_the_minimum_error():
    nan = float("nan")
    found = smoothing_verdicts([0.1, 0.2, 0.3, 0.4, 0.5], [1.2, 1.0, 1.04, nan, 1.06])
    as_good, missing = "as good within 5 %", "no leave-one-out error"
    assert found == ["undersmoothed", "lowest error", as_good, missing, "oversmoothed"]
    assert smoothing_verdicts([0.1, 0.2], [nan, nan]) == [missing, missing]
    assert smoothing_verdicts([0.1], [0.25]) == ["error 0.25"]
