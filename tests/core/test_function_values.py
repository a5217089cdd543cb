"""Functions are equal by value: by their code and by what they read."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import attnkernel as ak
from attnkernel._core.comparable_functions import comparable_by_value
from attnkernel._core.function_values import function_value

RATE = 0.1
SETTINGS = {"rate": 0.1}


class Settings:
    rate = 0.1


def decayed(rate):
    return optax.exponential_decay(rate, 100, 0.9)


def labels(tree):
    return jax.tree.map(lambda _: "trained", tree)


OPTIMIZERS = {
    "adam": optax.adam,
    "sgd": lambda rate: optax.sgd(rate, momentum=0.9, nesterov=True),
    "rmsprop": optax.rmsprop,
    "chain": lambda rate: optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(rate, 100))
    ),
    "joined schedules": lambda rate: optax.sgd(
        optax.join_schedules([optax.constant_schedule(rate), decayed(rate)], [5])
    ),
    "own schedule": lambda rate: optax.sgd(lambda step: rate / (1 + step)),
    "array": lambda rate: optax.sgd(jnp.float32(rate)),
    "inject_hyperparams": lambda rate: optax.inject_hyperparams(optax.adam)(learning_rate=rate),
    "injected schedule": lambda rate: optax.inject_hyperparams(optax.adam)(decayed(rate)),
    "multi_transform": lambda rate: optax.multi_transform(
        {"trained": optax.adam(rate), "fixed": optax.set_to_zero()}, labels
    ),
    "masked": lambda rate: optax.masked(optax.adam(rate), {"a": True}),
    "lookahead": lambda rate: optax.lookahead(optax.adam(rate), 5, 0.5),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimisers_are_equal_if_their_numbers_are(name):
    make = OPTIMIZERS[name]
    one, same, other = (comparable_by_value(make(rate)) for rate in (0.1, 0.1, 0.2))
    assert one == same
    assert hash(tuple(one)) == hash(tuple(same))
    assert one != other


def of_cell(value):
    return lambda: value


def of_default(value):
    return lambda value=value: value


def of_attribute(value):
    def function():
        return function.value  # type: ignore[attr-defined]

    function.value = value  # type: ignore[attr-defined]
    return function


def of_partial(value):
    return jax.tree_util.Partial(lambda number: number, value)


@pytest.mark.parametrize("make", [of_cell, of_default, of_attribute, of_partial])
@pytest.mark.parametrize(
    ("value", "other"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (complex(1.0, 0.0), complex(1.0, -0.0)),
        ("a", "b"),
        ([1, 2], [1, 3]),
        ((1, 2), [1, 2]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.arange(2, dtype=np.int32), np.arange(2, dtype=np.uint32)),
        (np.float32(1.0), np.array(1.0, np.float32)),
        (np.arange(4), np.arange(4).reshape(2, 2)),
        (jnp.arange(3), np.arange(3, dtype=np.int32)),
        (jnp.asarray(1.0), jnp.float32(1.0)),  # only the first is weakly typed
        (jnp.float32, np.float32),
        (np.dtype("float32"), np.dtype("float64")),
        (ak.Gaussian(0.1), ak.Gaussian(0.2)),
        (ak.Gaussian(0.1), ak.Matern32(0.1)),
        (optax.adam(0.1), optax.adam(0.2)),
        (jnp.sin, jnp.cos),
        (np.sin, np.cos),
        (jax.lax.Precision.HIGH, jax.lax.Precision.HIGHEST),
        (len, min),
    ],
)
def test_what_a_function_reads_is_compared_by_type_and_value(make, value, other):
    key = function_value(make(value))
    assert key is not None
    assert key == function_value(make(value))
    assert hash(key) == hash(function_value(make(value)))
    assert key != function_value(make(other))


def test_not_a_number_equals_itself():
    assert function_value(of_cell(float("nan"))) == function_value(of_cell(-float("nan")))


def test_what_is_not_equal_by_value_equals_only_itself():
    assert function_value(of_cell(Settings())) is None
    assert function_value(of_cell(Settings)) is None
    assert function_value(lambda: Settings.rate) is None
    assert function_value(of_cell([[Settings]])) is None
    assert function_value(of_cell(np.array([Settings()]))) is None
    assert function_value(of_cell(jax.random.key(0))) is None
    assert function_value(of_cell([].append)) is None
    assert function_value(lambda: pytest.mark) is None  # a module that may change
    assert function_value(lambda: eval("RATE")) is None
    assert function_value(lambda: __import__("sys").maxsize) is None
    assert function_value(of_cell(list(range(20_000)))) is None
    nested = []
    for _ in range(200):
        nested = [nested]
    assert function_value(of_cell(nested)) is None
    function = of_cell(Settings())
    assert comparable_by_value(function) is function


def imports():
    from sys import maxsize  # noqa: PLC0415

    return maxsize


def sets_a_global():
    global RATE  # noqa: PLW0603
    RATE = 0.1


def test_a_function_that_imports_or_sets_a_global_has_no_value():
    assert function_value(imports) is None
    assert function_value(sets_a_global) is None


def test_a_traced_array_has_no_value():
    found = []

    @jax.jit
    def call(number):
        found.append(function_value(of_cell(number)))
        return number

    call(1.0)
    assert found == [None]


def test_globals_are_compared_by_value(monkeypatch):
    def function(x):
        return [RATE * SETTINGS["rate"] * each for each in x]

    before = function_value(function)
    assert before == function_value(function)
    monkeypatch.setitem(globals(), "RATE", 0.2)
    assert function_value(function) not in (None, before)
    monkeypatch.setitem(globals(), "RATE", 0.1)
    assert function_value(function) == before
    monkeypatch.setitem(SETTINGS, "rate", 0.2)
    assert function_value(function) not in (None, before)


def test_globals_that_an_inner_function_reads_are_compared(monkeypatch):
    def function():
        return [lambda: [RATE for _ in range(2)]]

    before = function_value(function)
    monkeypatch.setitem(globals(), "RATE", 0.2)
    assert function_value(function) not in (None, before)


def test_the_value_is_that_at_the_call():
    rates = [0.1]
    function = of_cell(rates)
    before = comparable_by_value(function)
    rates.append(0.2)
    assert comparable_by_value(function) != before
    assert before == comparable_by_value(of_cell([0.1]))


def recursive(number):
    return 1 if number == 0 else recursive(number - 1)


def test_functions_that_call_themselves_have_a_value():
    assert function_value(recursive) is not None

    def inner(number):
        return inner(number - 1)

    assert function_value(inner) is not None


def test_no_method_of_an_object_is_called():
    class Loud:
        def _refuse(self, *_):
            raise AssertionError

        __eq__ = __hash__ = __bool__ = __call__ = __iter__ = __getattr__ = __repr__ = _refuse  # type: ignore[assignment]

    assert function_value(of_cell(Loud())) is None
    assert function_value(of_cell({"a": [Loud()]})) is None


def test_a_comparable_function_keeps_its_name():
    assert comparable_by_value(recursive).__qualname__ == "recursive"
