"""A call of inference compiles one program: none for another level or key, or a similar size."""

import jax
import numpy as np
import optax
import pytest

import attnkernel as ak

AT = np.linspace(0.0, 1.0, 7)
FUNCTIONS = {
    "bands": lambda fit, at, level, key: ak.bands(fit, at, level=level),
    "simultaneous bands": lambda fit, at, level, key: ak.bands(
        fit, AT, level=level, kind="simultaneous", draws=40, key=key
    ),
    "bands of a derivative": lambda fit, at, level, key: ak.bands(
        fit, at, level=level, derivative=1
    ),
    "bands of clusters": lambda fit, at, level, key: ak.bands(
        fit, at, level=level, clusters=np.arange(len(fit.x)) // 2
    ),
    "average_derivative": lambda fit, at, level, key: ak.inference.average_derivative(
        fit, level=level
    ),
    "conformal": lambda fit, at, level, key: ak.conformal(fit, at, level=0.8),
    "local conformal": lambda fit, at, level, key: ak.conformal(fit, at, level=0.8, local=True),
    "noise_variance": lambda fit, at, level, key: ak.noise_variance(fit, at),
    "effective_count": lambda fit, at, level, key: ak.effective_count(fit, at),
    "degrees_of_freedom": lambda fit, at, level, key: ak.degrees_of_freedom(fit),
    "wild_bootstrap": lambda fit, at, level, key: ak.wild_bootstrap(fit, at, draws=3, key=key),
    "quantiles": lambda fit, at, level, key: ak.quantiles(fit, at, [level]),
    "summarise": lambda fit, at, level, key: ak.summarise(fit),
    "split conformal": lambda fit, at, level, key: ak.conformal(fit, at, kind="split", key=key),
    "density": lambda fit, at, level, key: ak.density(at, fit.x, kernel=ak.Gaussian(level)),
    "profile": lambda fit, at, level, key: ak.profile(
        fit.model, fit.x, fit.y, np.array([level, 0.5]), objective=ak.LeaveOneOut()
    ),
    "normal_reference": lambda fit, at, level, key: ak.normal_reference(fit.x),
    "relevance_test": lambda fit, at, level, key: ak.inference.relevance_test(
        fit, 0, draws=19, key=key
    ),
    "specification_test": lambda fit, at, level, key: ak.inference.specification_test(
        fit.x, fit.y, draws=19, key=key
    ),
}
NUMBER = {"split conformal": 3}  # a permutation, a fit, and the intervals


def fit(n):
    x = np.linspace(0.0, 1.0, n)
    model = ak.KernelRegression(ak.Gaussian(0.2))
    return ak.fit(model, x, np.sin(6 * x), optimizer=optax.sgd(0.0), steps=1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_call_is_one_program(programs, name):
    first, second = fit(25), fit(29)
    programs.clear()
    FUNCTIONS[name](first, AT, 0.8, jax.random.key(1))
    compiled = [name for name in programs if name != "jit(stage)"]  # constants of `jnp.asarray`
    assert len(compiled) <= NUMBER.get(name, 1), programs
    programs.clear()
    FUNCTIONS[name](first, AT, 0.9, jax.random.key(2))
    FUNCTIONS[name](second, np.linspace(0.0, 1.0, 5), 0.9, jax.random.key(2))
    assert not programs


def test_a_padded_split_and_profile_equal_those_of_the_rows_alone(x64, monkeypatch):
    def computed():
        found = fit(27)
        options, lengthscales = {"kind": "split", "key": jax.random.key(4)}, np.array([0.1, 0.5])
        bands = [ak.conformal(found, AT, level=level, **options) for level in (0.2, 0.5, 0.8)]
        return (
            [(band.lower, band.upper) for band in bands],
            ak.profile(found.model, found.x, found.y, lengthscales, objective=ak.LeaveOneOut()),
            ak.normal_reference(found.x),
            ak.density(AT, found.x, kernel=ak.Gaussian(0.2)),
        )

    padded = computed()
    monkeypatch.setattr("attnkernel._core.row_buckets.MAX_PADDED_ROWS", 0)
    for part, alone in zip(jax.tree.leaves(padded), jax.tree.leaves(computed()), strict=True):
        np.testing.assert_allclose(part, alone, rtol=1e-6)
