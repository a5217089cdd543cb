"""Fits with new but equal optimisers, records and scores share one compiled program."""

import jax
import numpy as np
import optax
import pytest
from marks import slow

import attnkernel as ak

KEYS = np.array([[0, 1], [2, 3]], np.uint32)
X = np.linspace(0.0, 1.0, 23)
Y = np.sin(6.0 * X)
MODEL = ak.KernelRegression(ak.Gaussian(0.2))


def fit(optimizer, **options):
    options = {"key": jax.device_put(KEYS[0]), "steps": 3} | options
    score = options.pop("score", ak.squared_error)
    objective = ak.HoldOut(5, score=score)
    return ak.fit(MODEL, X, Y, objective=objective, optimizer=optimizer, **options)


def fits(optimizer, **options):
    keys = jax.device_put(KEYS)
    sizes = ak.HoldOut(np.array([3, 5]), at_most=5, score=options.pop("score", ak.squared_error))
    options |= {"key": keys, "objective": sizes, "in_axes": (None, None, 0), "steps": 3}
    return ak.fit_many(MODEL, X, Y, optimizer=optimizer, **options)


def scheduled(rate):
    schedule = optax.cosine_decay_schedule(rate, 10)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))


@pytest.mark.parametrize(("run", "make"), [(fit, scheduled), slow(fits, optax.adam)])
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
    assert np.any(np.asarray(other.history["loss"]) != np.asarray(same.history["loss"]))


@pytest.mark.parametrize("run", [fits, slow(fit)])
def test_equal_records_scores_and_filters_compile_nothing(programs, run):
    """And the fit holds the score that was given."""

    def with_functions(power):
        score = lambda predicted, y: abs(predicted - y) ** power  # noqa: E731
        found = run(
            optax.sgd(0.1),
            record=lambda model: {"power": model.kernel.lengthscale**power},
            score=score,
            trainable=lambda leaf: bool(power) and hasattr(leaf, "dtype"),
        )
        assert found.objective.score is score
        return found

    first = with_functions(2)
    programs.clear()
    same = with_functions(2)
    assert not programs
    np.testing.assert_array_equal(first.history["power"], same.history["power"])
    other = with_functions(3)
    assert programs
    lengthscale = np.asarray(MODEL.kernel.lengthscale)
    powers = np.asarray(other.history["power"])
    np.testing.assert_allclose(powers[..., 0], lengthscale**3, rtol=1e-6)


def test_a_list_that_changes_between_calls_changes_the_program(programs):
    powers = [1.0]
    record = lambda model: {"power": model.kernel.lengthscale ** powers[-1]}  # noqa: E731
    optimizer = optax.sgd(0.0)
    np.testing.assert_allclose(fit(optimizer, record=record).history["power"], 0.2, rtol=1e-6)
    powers.append(2.0)
    np.testing.assert_allclose(fit(optimizer, record=record).history["power"], 0.04, rtol=1e-6)
