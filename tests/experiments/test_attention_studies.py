"""Studies that lead from kernel regression to attention: their configs at small sizes, closed
forms."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from least_squares import local_polynomial
from statsmodels.api import OLS, add_constant

from experiments.reports.predictions import judge, where
from experiments.studies.context_errors import IN_N, IN_TAU, Case, in_closed_form, simulate
from experiments.studies.window_tasks import (
    EXPECTED,
    Family,
    Linear,
    Warp,
    draw,
    powers_of,
    predict,
)


@pytest.mark.slow
def test_each_step_of_the_derivation_is_an_identity(run_study):
    found = run_study("derivation", "dims=[4, 64, 4096]").summary
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
    kinds = ("full", "ring", "recurrent")
    full, ring, recurrent = (found["costs"][kind]["bytes"] for kind in kinds)
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


@pytest.mark.slow
def test_maps_of_the_zoo_are_those_of_formulas(run_study):
    overrides = ("data.n=41", "tokens=17", "window=3", "dim=5", "window_of_cost=7", "repeats=1")
    study = run_study("zoo", *overrides, "lengths=[19, 37]", "counts=[8, 512]", style="dark")
    figures = study.arrays("heat_maps").items()
    maps = {name.partition(": ")[2]: np.nan_to_num(weights) for name, weights in figures}
    line, i = np.linspace(-3, 3, 17), np.arange(17)
    expected = np.maximum(1 - (line[:, None] - line) ** 2, 0)
    expected = expected / expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(maps["Epanechnikov"], expected, atol=1e-5)
    np.testing.assert_array_equal(maps["window"] > 0, np.tri(17) * (i[:, None] - i <= 3))


@pytest.mark.slow
def test_learned_projections_find_neighbours_that_linear_ones_cannot(run_study):
    overrides = ("kernels.steps=200", "projections.steps=300", "learned_heads=2")
    study = run_study("projection", *overrides)
    table = {row["model"]: row for row in study.summary["table"]}
    one = table["one Gaussian"]
    assert one["parameters"] == 1
    assert one["error"] < 0.03
    learned = table["Gaussian of learned projections"]
    assert learned["error"] < 0.5 * table["q · k of linear projections"]["error"]


@pytest.mark.slow
def test_induction_heads_learn_to_copy(run_study):
    overrides = ("vocabulary=16", "rows=32", "shortest=6", "longest=10", "size=32", "heads=2")
    found = run_study("induction", *overrides, "batch=16", "steps=500").summary
    assert found["accuracy"] > 0.8
    assert found["bigrams"] < 0.2
    assert found["accuracy_first"] < 0.3
    assert max(found["previous_token"][0]) > 0.3
    assert max(found["induction"][1]) > 0.5


@pytest.mark.slow
def test_in_context_model_approaches_the_posterior_mean(run_study):
    overrides = ("contexts=[8]", "heads=4", "hidden=16", "targets=16", "batch=16")
    (row,) = run_study("in_context", *overrides, "steps=200", "tested=40").summary["table"]
    errors = row["error"]
    assert errors["posterior"] < errors["learned"] < 1.5 * errors["tuned"]


CASE = Case(np.array([0.5, 1.0, 2.0]), np.array([1.0, 0.3, 1.5]), 0.4)
TAU = np.array([2.7, 4.0, 8.0])


def draws(n, prompts, seed=0):
    """Contexts, labels, queries and slopes, in NumPy."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(prompts, 3)) / 3**0.5
    x = np.sqrt(CASE.context) * rng.normal(size=(prompts, n, 3))
    q = np.sqrt(CASE.queries) * rng.normal(size=(prompts, 3))
    return x, np.einsum("pnd,pd->pn", x, w) + CASE.noise * rng.normal(size=(prompts, n)), q, w


def errors(weights, y, q, w):
    found = (np.sum(weights * y, axis=1) - np.sum(q * w, axis=1)) ** 2
    return found.mean() / CASE.queries.mean(), found.std() / len(y) ** 0.5 / CASE.queries.mean()


def test_the_error_to_first_order_in_the_inverse_temperature_is_exact():
    x, y, q, w = draws(12, 100_000)
    scores = np.einsum("pd,pnd->pn", q, x)
    closed = in_closed_form(CASE, 12, TAU)[IN_TAU]
    for tau, expected in zip(TAU, closed, strict=True):
        found, spread = errors((1 + scores / tau) / 12, y, q, w)
        assert abs(found - expected) < 4 * spread
        assert spread < 0.02 * expected


def test_the_error_of_softmax_approaches_the_first_order_in_the_rows():
    n = 300
    x, y, q, w = draws(n, 10_000)
    scores = np.einsum("pd,pnd->pn", q, x) / TAU[1]
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    found, spread = errors(weights / weights.sum(axis=1, keepdims=True), y, q, w)
    expected = in_closed_form(CASE, n, TAU)[IN_N][1]
    assert abs(found - expected) < 0.02 * expected + 4 * spread
    assert in_closed_form(CASE, 300, np.array([2.4]))[IN_N] == np.inf  # 2 S Q / τ² above 1


def test_simulated_errors_and_criteria_are_those_of_softmax_in_numpy(x64):
    key, n, queries, tau = jax.random.PRNGKey(3), 9, 4, 2.0

    @jax.jit
    def results(key):
        found = simulate(key[None], jax.tree.map(jnp.asarray, CASE), n, queries, jnp.array([tau]))
        shapes = (3,), (n, 3), (queries, 3), (n,)
        keys = jax.random.split(key, 5)[:4]
        return found, [jax.random.normal(*one) for one in zip(keys, shapes, strict=True)]

    found, (w, x, q, noise) = jax.device_get(results(key))
    w, x, q = w / 3**0.5, np.sqrt(CASE.context) * x, np.sqrt(CASE.queries) * q
    y = x @ w + CASE.noise * noise

    def predict(at, x, y):
        weights = np.exp(at @ x.T / tau)
        return weights @ y / weights.sum(axis=-1)

    expected = np.mean((predict(q, x, y) - q @ w) ** 2) / CASE.queries.mean()
    np.testing.assert_allclose(found.softmax, [[expected]], rtol=1e-12)
    left_out = [predict(x[i], np.delete(x, i, 0), np.delete(y, i)) for i in range(n)]
    np.testing.assert_allclose(found.leave_one_out, [[np.mean((left_out - y) ** 2)]], rtol=1e-12)
    in_tau = y.mean() + (q @ x.T) @ y / (n * tau)
    expected = np.mean((in_tau - q @ w) ** 2) / CASE.queries.mean()
    np.testing.assert_allclose(found.first_order, [[expected]], rtol=1e-12)
    assert found.hold_out.shape == (1, 1)


def test_a_claim_is_judged_in_the_cases_that_it_concerns():
    claims = {"even numbers are below 5": where(lambda case: case % 2 == 0, lambda case: case < 5)}
    (found,) = judge(claims, [1, 2, 4, 6, 7], str)
    assert found == {"claim": "even numbers are below 5", "held": ["2", "4"], "failed": ["6"]}


def claims_of(run):
    """The rows of the ledger, each with its number inside the interval."""
    assert all(one["low"] <= one["ours"] <= one["high"] for one in run.summary["claims"])
    return run.summary["claims"]


@pytest.mark.slow
def test_choices_of_the_temperature_are_compared(run_study):
    run = run_study("context_temperature", "contexts=[16, 32]", "prompts=20", "temperatures=21")
    rows = run.summary["rows"]
    assert len(rows) == 14
    for row in rows:
        least = row["error"]["best of the prompt"]["mean"]
        assert all(one["mean"] >= least for one in row["error"].values())
        assert row["error"]["fixed"]["mean"] >= row["error"]["best of the case"]["mean"] - 1e-12
    assert len(run.summary["predictions"]) == 9
    *moved, optimum, _, _ = claims_of(run)
    best = {row["case"]: row["best"] for row in rows if row["n"] == 32}
    for one, case in zip(moved, ("more noise", "wider inputs"), strict=True):
        assert one["ours"] == pytest.approx(np.log(best[case] / best["as suited"]))
    formula = rows[7]["in_closed_form"]["first order in 1/τ"]
    assert optimum["ours"] == pytest.approx(np.log(best["as suited"] / formula))


def family(lengthscale=0.5, noise=0.3, growth=0.0, direction=(1.0,)):
    parts = (lengthscale, noise, growth, direction)
    return Family(*(jnp.asarray(np.array(part)) for part in parts))


def test_functions_have_their_covariance_and_labels_their_noise(x64):
    kind = family(growth=1.5, direction=(0.6, 0.8))

    @jax.jit
    def draw_tasks():
        keys = jax.random.split(jax.random.PRNGKey(0), 10_000)
        return jax.vmap(lambda key: draw(key, kind, 4, 2))(keys)

    tasks = draw_tasks()
    along = np.array(tasks.at) @ [0.6, 0.8]
    gap = np.square(along[:, 0] - along[:, 1])
    near, product = gap < 0.05, np.prod(np.array(tasks.truth), axis=1)
    expected = np.exp(-gap / (2 * 0.5**2))
    assert abs(np.mean(product[near] - expected[near])) < 0.06
    assert abs(np.mean(product[~near] - expected[~near])) < 0.06
    x = np.array(tasks.x) @ [0.6, 0.8]
    variance = 1 + np.square(0.3 * np.exp(1.5 * x))
    assert abs(np.mean(np.square(np.array(tasks.y)) / variance) - 1) < 0.06


@pytest.mark.parametrize("order", [0, 1])
def test_attention_on_embedded_inputs_is_kernel_regression_with_that_window(x64, order):
    task = jax.jit(lambda: draw(jax.random.PRNGKey(1), family(), 30, 5))()
    x, y, at = np.array(task.x)[:, 0], np.array(task.y), np.array(task.at)[:, 0]

    found = jax.jit(lambda: predict(Linear.of_windows(jnp.array(0.2)), task, order))()
    np.testing.assert_allclose(found, local_polynomial(at, x, 0.2, order) @ y, rtol=1e-8)
    if order == 0:  # the window at x is exp(a + b x): by quadrature of its inverse
        a, b = -1.2, 0.7
        steps = np.linspace(-1, 1, 200_001)
        phi = np.concatenate([[0.0], np.cumsum(np.exp(-a - b * (steps[1:] + steps[:-1]) / 2))])
        phi *= steps[1] - steps[0]
        between = np.interp(at, steps, phi)[:, None] - np.interp(x, steps, phi)
        found = jax.jit(lambda: predict(Warp(jnp.array(a), jnp.array(b)), task, 0))()
        expected = local_polynomial(at, x, weights=np.exp(-0.5 * between**2)) @ y
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_powers_and_their_intervals_are_those_of_least_squares():
    cases = np.array(list(itertools.product((10, 40, 90), (0.1, 0.5), (0.2, 1.0, 1.5))))
    windows = np.prod(cases ** [-0.3, 0.1, 1.0], axis=1)
    windows *= np.exp(0.2 * np.random.default_rng(0).normal(size=len(windows)))
    rows = [
        {"order": 0, **dict(zip(EXPECTED, case, strict=True)), "windows": {"best": window}}
        for case, window in zip(cases, windows, strict=True)
    ]
    found = powers_of(rows, "best")
    fitted = OLS(np.log(windows), add_constant(np.log(cases))).fit()
    halves = np.diff(fitted.conf_int(), axis=1)[1:, 0] / 2
    np.testing.assert_allclose(list(found["power"].values()), fitted.params[1:], rtol=1e-9)
    np.testing.assert_allclose(list(found["half"].values()), halves, rtol=1e-9)
    assert max(map(abs, found["shuffled"].values())) < 0.05


@pytest.mark.slow
def test_windows_are_learned_and_compared(run_study):
    small = ("contexts=[16, 32]", "steps=30", "tested=8", "orders=[0]", "windows=11")
    run = run_study("learned_window", *small, "lengthscales=[0.3, 1.0]", "noises=[0.1, 0.9]")
    rows = [row for row in run.summary["rows"] if row["n"] == 32]
    windows = {(row["lengthscale"], row["noise"]): row["windows"]["learned"] for row in rows}
    assert len(rows) == len(windows) == 4
    assert windows[0.3, 0.1] < min(windows[0.3, 0.9], windows[1.0, 0.1]) < windows[1.0, 0.9]
    assert all(row["across"] > row["along"] for row in run.summary["directions"])
    assert len(run.summary["predictions"]) == 8
    *powers, costs = claims_of(run)
    learned = run.summary["powers"][0]
    assert [one["ours"] for one in powers] == [learned[part] for part in EXPECTED]
    few, many = (
        np.mean([row["ratio"] for row in run.summary["rows"] if row["n"] == n]) - 1
        for n in (16, 32)
    )
    assert (costs["ours"], costs["control_figure"]) == pytest.approx((few, many))
