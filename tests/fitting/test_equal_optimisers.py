"""Fits with new but equal optimisers, records and scores share one compiled program."""

import jax
import numpy as np
import optax
import pytest

import attnkernel as ak

X = np.linspace(0.0, 1.0, 23)
Y = np.sin(6.0 * X)
MODEL = ak.KernelRegression(ak.Gaussian(0.2))


def fit(optimizer, **options):
    options = {"key": jax.random.PRNGKey(0), "steps": 3} | options
    score = options.pop("score", ak.squared_error)
    objective = ak.HoldOut(5, score=score)
    return ak.fit(MODEL, X, Y, objective=objective, optimizer=optimizer, **options)


def fits(optimizer, **options):
    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    sizes = ak.HoldOut(np.array([3, 5]), at_most=5, score=options.pop("score", ak.squared_error))
    options |= {"key": keys, "objective": sizes, "in_axes": (None, None, 0), "steps": 3}
    return ak.fit_many(MODEL, X, Y, optimizer=optimizer, **options)


def scheduled(rate):
    schedule = optax.cosine_decay_schedule(rate, 10)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))


@pytest.mark.parametrize("run", [fit, fits])
@pytest.mark.parametrize("make", [optax.adam, scheduled])
def test_an_equal_optimiser_compiles_nothing_and_another_its_own_program(programs, run, make):
    first = run(make(0.1))
    programs.clear()
    same = run(make(0.1))
    assert not programs
    np.testing.assert_array_equal(first.history["loss"], same.history["loss"])
    other = run(make(0.2))
    assert programs
    alone = run(optax.chain(make(0.2)))  # another function, which computes the same
    np.testing.assert_array_equal(other.history["loss"], alone.history["loss"])
    assert np.any(other.history["loss"] != same.history["loss"])


@pytest.mark.parametrize("run", [fit, fits])
def test_equal_records_scores_and_filters_compile_nothing(programs, run):
    def with_functions(power):
        return run(
            optax.sgd(0.1),
            record=lambda model: {"power": model.kernel.lengthscale**power},
            score=lambda predicted, y: abs(predicted - y) ** power,
            trainable=lambda leaf: bool(power) and hasattr(leaf, "dtype"),
        )

    first = with_functions(2)
    programs.clear()
    same = with_functions(2)
    assert not programs
    np.testing.assert_array_equal(first.history["power"], same.history["power"])
    other = with_functions(3)
    assert programs
    lengthscale = np.asarray(MODEL.kernel.lengthscale)
    np.testing.assert_allclose(other.history["power"][..., 0], lengthscale**3, rtol=1e-6)


def test_a_list_that_changes_between_calls_changes_the_program(programs):
    powers = [1.0]
    record = lambda model: {"power": model.kernel.lengthscale ** powers[-1]}  # noqa: E731
    optimizer = optax.sgd(0.0)
    np.testing.assert_allclose(fit(optimizer, record=record).history["power"], 0.2, rtol=1e-6)
    powers.append(2.0)
    np.testing.assert_allclose(fit(optimizer, record=record).history["power"], 0.04, rtol=1e-6)


@pytest.mark.parametrize("run", [fit, fits])
def test_the_fit_holds_the_score_that_was_given(run):
    score = lambda predicted, y: abs(predicted - y)  # noqa: E731
    assert run(optax.sgd(0.1), score=score).objective.score is score
