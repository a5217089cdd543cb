"""A call of inference compiles one program, and none for another level or another draw of a key."""

import jax
import jax.monitoring
import numpy as np
import optax
import pytest

import attnkernel as ak

X = np.linspace(0.0, 1.0, 23)
AT = np.linspace(0.0, 1.0, 7)
FUNCTIONS = {
    "bands": lambda fit, level, key: ak.bands(fit, AT, level=level),
    "simultaneous bands": lambda fit, level, key: ak.bands(
        fit, AT, level=level, kind="simultaneous", draws=40, key=key
    ),
    "conformal": lambda fit, level, key: ak.conformal(fit, AT, level=0.8),
    "local conformal": lambda fit, level, key: ak.conformal(fit, AT, level=0.8, local=True),
    "noise_variance": lambda fit, level, key: ak.noise_variance(fit, AT),
    "effective_count": lambda fit, level, key: ak.effective_count(fit, AT),
    "degrees_of_freedom": lambda fit, level, key: ak.degrees_of_freedom(fit),
    "wild_bootstrap": lambda fit, level, key: ak.wild_bootstrap(fit, AT, draws=3, key=key),
    "quantiles": lambda fit, level, key: ak.quantiles(fit, AT, [level]),
    "summarise": lambda fit, level, key: ak.summarise(fit),
}
ONE_MORE = {"wild_bootstrap"}  # a transpose of the draws


@pytest.fixture(scope="module")
def fit():
    model = ak.KernelRegression(ak.Gaussian(0.2))
    return ak.fit(model, X, np.sin(6 * X), optimizer=optax.sgd(0.0), steps=1)


@pytest.fixture
def programs():
    """The names of the programs that are compiled, but for the constants `jnp.asarray` makes."""
    names = []

    def listen(event, _, *, fun_name="", **__):
        if event == "/jax/core/compile/backend_compile_duration" and fun_name != "jit(stage)":
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_call_is_one_program(fit, programs, name):
    first, second = jax.random.key(1), jax.random.key(2)
    programs.clear()
    FUNCTIONS[name](fit, 0.8, first)
    most = 1 + (name in ONE_MORE)
    assert len(programs) <= most, programs
    FUNCTIONS[name](fit, 0.9, second)
    assert len(programs) <= most, programs
