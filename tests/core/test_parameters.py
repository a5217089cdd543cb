"""Parameters of kernels, priors and rules: fixed ones are no leaves, fitted ones stay inside."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import attnkernel as ak
from attnkernel import priors

# what makes a part, where the parameter may be, the largest and the smallest of it that is given
PARTS = {
    "temperature": (ak.Softmax, lambda rule: rule.temperature, (0.0, np.inf), 0.05),
    "sink": (lambda m: ak.Softmax(sink_mass=m), lambda rule: rule.sink_mass, (0.0, np.inf), 1e-3),
    "alpha": (ak.Entmax, lambda rule: rule.alpha, (1.0, 2.0), 1.5),
    "temperature of an entmax": (
        lambda t: ak.Entmax(1.5, t),
        lambda rule: rule.temperature,
        (0.0, np.inf),
        2.0,
    ),
    "slope": (ak.Alibi, lambda prior: prior.slope, (0.0, np.inf), 0.3),
    "cap": (lambda c: ak.SoftCapped(ak.Gaussian(1.0), c), lambda k: k.cap, (0.0, np.inf), 20.0),
    "scale": (ak.DotProduct, lambda kernel: kernel.scale, (-np.inf, np.inf), 0.4),
    "scale of a cosine": (ak.CosineSimilarity, lambda k: k.scale, (-np.inf, np.inf), 0.4),
    "offset": (lambda b: ak.Polynomial(2, b), lambda k: k.offset, (-np.inf, np.inf), 0.4),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_number_is_fixed_and_no_leaf(name):
    make, value_of, _, start = PARTS[name]
    for number in (start, np.float64(start), np.asarray(start)):
        part = make(number)
        assert value_of(part) == start
        leaves = jax.tree.leaves(part)
        assert all(isinstance(leaf, jax.Array) for leaf in leaves)
        assert len(leaves) == (name == "cap")  # the lengthscale of the capped Gaussian
    assert hash(jax.tree.structure(make(start))) == hash(jax.tree.structure(make(start)))


@pytest.mark.parametrize("name", PARTS)
def test_an_array_of_jax_is_fitted_and_never_leaves_its_domain(x64, name):
    """Steps of any length, up and down: the value stays inside, and is what was given at first."""
    make, value_of, (low, high), start = PARTS[name]
    part = make(jnp.asarray(start))
    np.testing.assert_allclose(value_of(part), start, rtol=1e-12)
    params, fixed = eqx.partition(part, eqx.is_inexact_array)
    for step in (-30.0, -1.0, 1.0, 30.0):
        moved = eqx.combine(jax.tree.map(lambda leaf, step=step: leaf + step, params), fixed)
        assert low < value_of(moved) < high
    slope = jax.grad(lambda params: value_of(eqx.combine(params, fixed)))(params)
    assert max(abs(leaf) for leaf in jax.tree.leaves(slope)) > 0


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, "1", None, True, 1j, [0.5, "x"]])
def test_what_is_no_number_of_the_domain_is_refused(name, bad):
    make = PARTS[name][0]
    if bad is None and name in ("scale", "scale of a cosine"):
        return  # the default
    with pytest.raises((ValueError, TypeError)):  # TypeError: of the annotations, in tests
        make(bad)


@pytest.mark.parametrize("name", [name for name, row in PARTS.items() if row[2][0] == 0])
def test_numbers_below_a_domain_are_refused(name):
    for bad in (-1.0, jnp.asarray(-1.0), np.array([1.0, -2.0])):
        if name == "slope" and not isinstance(bad, jax.Array):
            continue  # a fixed one may favour what is far
        with pytest.raises(ValueError, match=r"must be .*; got .*-[12]"):
            PARTS[name][0](bad)


def test_a_fit_of_a_temperature_stays_above_zero(x64):
    """A start near 0 used to end below it."""
    rng = np.random.default_rng(0)
    x, y = rng.random(40), rng.normal(size=40)
    model = ak.KernelRegression(ak.Gaussian(0.3), rule=ak.Softmax(jnp.asarray(0.05)))
    fit = ak.fit(model, x, y, objective=ak.LeaveOneOut())
    assert np.all(fit.starts.end.rule.temperature > 0)
    steep = {"optimizer": optax.sgd(1e6), "steps": 5}
    sunk = ak.KernelRegression(ak.Gaussian(0.3), rule=ak.Softmax(sink_mass=jnp.asarray(1e-3)))
    assert ak.fit(sunk, x, y, objective=ak.LeaveOneOut(), **steep).model.rule.sink_mass >= 0


HEADS, ROWS, DIM = 4, 5, 3


@pytest.mark.parametrize(
    ("part", "of_head"),
    [
        ({"prior": ak.Alibi(heads=HEADS)}, lambda h: {"prior": ak.Alibi(2.0 ** (-2.0 * (h + 1)))}),
        (
            {"rule": ak.Softmax(np.array([0.5, 1.0, 2.0, 4.0]))},
            lambda h: {"rule": ak.Softmax(2.0 ** (h - 1))},
        ),
    ],
    ids=["slopes", "temperatures"],
)
@pytest.mark.parametrize("method", [ak.Dense(), ak.Blockwise(2, 2)], ids=repr)
def test_fixed_numbers_of_heads(x64, part, of_head, method):
    """They are those of each head, and no optimiser sees them."""
    rng = np.random.default_rng(1)
    q, k, v = rng.normal(size=(3, HEADS, ROWS, DIM))
    given = {name: ak.PerHead(value) for name, value in part.items()}
    assert not [leaf for leaf in jax.tree.leaves(given) if eqx.is_inexact_array(leaf)]
    shared = {"kernel": ak.DotProduct(), "method": method}

    @jax.jit
    def both(q, k, v):
        together = ak.attend(q, k, v, **shared, **given)
        heads = [ak.attend(q[h], k[h], v[h], **shared, **of_head(h)) for h in range(HEADS)]
        return together, jnp.stack(heads)

    np.testing.assert_allclose(*both(q, k, v), rtol=1e-12)
    with pytest.raises(ValueError, match=r"shape \(4,\).*PerHead"):
        ak.attend(q[0], k[0], v[0], **shared, **part)


def test_slopes_of_heads_are_those_of_the_paper():
    np.testing.assert_allclose(priors.alibi_slopes(8), 0.5 ** np.arange(1.0, 9.0))
    assert isinstance(priors.alibi_slopes(8), np.ndarray)
    for options in ({}, {"slope": 0.5, "heads": 8}, {"heads": 0}):
        with pytest.raises(ValueError, match=r"heads"):
            ak.Alibi(**options)


def test_what_is_shown_of_parameters():
    assert repr(ak.Softmax(0.5)) == "Softmax(temperature=0.5, sink_mass=0.0)"
    assert repr(ak.Alibi(0.25)) == "Alibi(slope=0.25)"
