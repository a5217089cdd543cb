"""Fits with new but equal optimisers share one compiled program."""

import jax
import numpy as np
import optax
import pytest
from marks import slow

import attnkernel as ak
from attnkernel.fitting._train import comparable_optimizer

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


def labels(tree):
    return jax.tree.map(lambda _: "trained", tree)


def of_named_gradient(rate):
    def update(updates, state, params=None, *, grad, value, **_):
        return jax.tree.map(lambda leaf: -rate * value * leaf, grad), state

    return optax.GradientTransformationExtraArgs(lambda z: (), update)


OPTIMIZERS = {
    "adam": optax.adam,
    "sgd": lambda rate: optax.sgd(rate, momentum=0.9, nesterov=True),
    "chain": scheduled,
    "own schedule": lambda rate: optax.sgd(lambda step: rate / (1 + step)),
    "array": lambda rate: optax.sgd(np.float32(rate)),
    "inject_hyperparams": lambda rate: optax.inject_hyperparams(optax.adam)(learning_rate=rate),
    "multi_transform": lambda rate: optax.multi_transform(
        {"trained": optax.adam(rate), "fixed": optax.set_to_zero()}, labels
    ),
    "lbfgs": lambda rate: optax.lbfgs(rate, linesearch=None),
    "named gradient": of_named_gradient,
    "lbfgs with a line search": lambda rate: optax.lbfgs(memory_size=int(100 * rate)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimisers_are_equal_if_their_numbers_are(name):
    make, z = OPTIMIZERS[name], {"a": np.zeros((1, 2), np.float32), "b": np.zeros(1, np.float32)}
    one, same, other = (comparable_optimizer(make(rate), z, 1) for rate in (0.1, 0.1, 0.2))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other


def test_a_schedule_that_reads_another_number_changes_the_program():
    rates = [0.0]
    optimizer = optax.sgd(lambda step: rates[-1])
    assert float(fit(optimizer).model.kernel.lengthscale) == float(MODEL.kernel.lengthscale)
    rates.append(0.1)
    assert float(fit(optimizer).model.kernel.lengthscale) != float(MODEL.kernel.lengthscale)
