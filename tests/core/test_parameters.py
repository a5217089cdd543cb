"""Parameters of kernels, priors and rules: fixed ones are no leaves, fitted ones stay inside;
numbers held fixed stay as they are in a fit."""

import inspect
import math
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from refusals import assert_raises

import attnkernel as ak
from attnkernel import kernels, priors
from attnkernel.methods import Blockwise, Dense

# what makes a part, its parameter, where that may be, and a number in it
POSITIVE, REAL = (0.0, np.inf), (-np.inf, np.inf)
FIVE_CATEGORIES = partial(ak.kernels.AitchisonAitken, categories=5)
PARTS = {
    "temperature": (ak.Softmax, "temperature", POSITIVE, 0.05),
    "sink": (lambda m: ak.Softmax(sink_mass=m), "sink_mass", POSITIVE, 1e-3),
    "logarithm of a sink": (lambda b: ak.Softmax(log_sink_mass=b), "log_sink_mass", REAL, 0.4),
    "alpha": (ak.Entmax, "alpha", (1.0, 2.0), 1.5),
    "temperature of an entmax": (partial(ak.Entmax, ak.fixed(1.5)), "temperature", POSITIVE, 2.0),
    "slope": (ak.Alibi, "slope", POSITIVE, 0.3),
    "rate": (priors.Kerple, "rate", POSITIVE, 0.3),
    "scale of distances": (lambda r: priors.Kerple(scale=r), "scale", POSITIVE, 0.3),
    "cap": (lambda c: ak.kernels.SoftCapped(ak.DotProduct(), c), "cap", POSITIVE, 20.0),
    "scale": (ak.DotProduct, "scale", REAL, 0.4),
    "scale of a cosine": (ak.kernels.CosineSimilarity, "scale", REAL, 0.4),
    "offset": (lambda b: ak.kernels.Polynomial(2, b), "offset", REAL, 0.4),
    "scale of a polynomial": (lambda c: ak.kernels.Polynomial(2, scale=c), "scale", REAL, 0.4),
    "mixture": (lambda a: ak.kernels.RationalQuadratic(ak.fixed(1.0), a), "alpha", POSITIVE, 2.0),
    "chord": (lambda a: ak.Periodic(a, ak.fixed(1.0)), "lengthscale", POSITIVE, 0.4),
    "period": (partial(ak.Periodic, ak.fixed(1.0), train_period=True), "period", POSITIVE, 2.0),
    "bandwidth of 5 categories": (FIVE_CATEGORIES, "bandwidth", (0.0, 0.8), 0.3),
}
for kind in (ak.kernels.LiRacine, ak.kernels.WangVanRyzin, ak.kernels.LiRacineOrdered):
    PARTS[f"bandwidth of {kind.__name__}"] = (kind, "bandwidth", (0.0, 1.0), 0.3)
for kind in vars(kernels).values():
    if inspect.isclass(kind) and issubclass(kind, kernels.Scaled) and not inspect.isabstract(kind):
        held = {"alpha": ak.fixed(1.0)} if kind is ak.kernels.RationalQuadratic else {}
        make = partial(kind, **held)
        PARTS[f"lengthscale of {kind.__name__}"] = (make, "lengthscale", POSITIVE, 0.4)


@pytest.mark.parametrize("name", PARTS)
def test_a_fixed_number_is_no_leaf(name):
    make, parameter, _, start = PARTS[name]
    for number in (start, np.float64(start), np.asarray(start), jnp.asarray(start, float)):
        part = make(ak.fixed(number))
        np.testing.assert_allclose(getattr(part, parameter), start, rtol=1e-6)
        assert jax.tree.leaves(part) == []
    same = [hash(jax.tree.structure(make(ak.fixed(start)))) for _ in range(2)]
    assert same[0] == same[1]


def test_a_default_is_fixed():
    of_kernels = ak.DotProduct(), kernels.CosineSimilarity(), kernels.Polynomial()
    made = ak.Softmax(), ak.Alibi(heads=1), priors.Kerple(), *of_kernels
    assert not [leaf for leaf in jax.tree.leaves(made) if eqx.is_inexact_array(leaf)]


@pytest.mark.parametrize("name", PARTS)
def test_a_number_that_is_written_is_trained(x64, name):
    """Whether of Python, NumPy or JAX; the value is what was given, and has a slope."""
    make, parameter, _, start = PARTS[name]
    for number in (start, np.float64(start), np.asarray(start), jnp.asarray(start)):
        part = make(number)
        np.testing.assert_allclose(getattr(part, parameter), start, rtol=1e-12)
        params, static = eqx.partition(part, eqx.is_inexact_array)
        assert len(jax.tree.leaves(params)) == 1
        if number is start:
            value_of = lambda part, rest=static: getattr(eqx.combine(part, rest), parameter)  # noqa: E731
            (slope,) = jax.tree.leaves(jax.grad(value_of)(params))
            assert float(slope) != 0


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_no_optimiser_leaves_a_domain(x64, dtype):
    """200 steps of Adam at the learning rate 10, up or down all the way: one program for all."""
    parts = {name: make(start) for name, (make, _, _, start) in PARTS.items()}
    params, static = eqx.partition(parts, eqx.is_inexact_array)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    optimizer = optax.adam(10.0)

    @jax.jit
    def trained(params, slope):
        def step(carry, _):
            params, state = carry
            slopes = jax.tree.map(lambda leaf: jnp.full_like(leaf, slope), params)
            updates, state = optimizer.update(slopes, state)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, optimizer.init(params)), length=200)[0][0]

    for slope in (1.0, -1.0):
        moved = eqx.combine(trained(params, slope), static)
        for name, (_, parameter, (low, high), start) in PARTS.items():
            value = np.asarray(getattr(moved[name], parameter))
            assert low < value < high, name
            assert abs(value - start) > 1e-3 * abs(start), name


@pytest.mark.parametrize("name", [name for name, row in PARTS.items() if row[2][0] == 0])
def test_numbers_below_a_domain_are_refused(name):
    for bad in (-1.0, jnp.asarray(-1.0), np.array([1.0, -2.0])):
        assert_raises(r"must be .*; got .*-[12]", PARTS[name][0], bad)
        if name != "slope":  # a fixed one may favour what is far
            assert_raises(r"must be .*; got .*-[12]", PARTS[name][0], ak.fixed(bad))


def test_ends_of_a_domain_are_fixed_only():
    assert ak.Softmax(sink_mass=ak.fixed(0.0)).log_sink() is None
    assert ak.Entmax(ak.fixed(2.0)).alpha == 2.0
    assert_raises(r"positive.*got 0\.0.*ak\.fixed\(0\.0\)", ak.Softmax, sink_mass=0.0)
    assert_raises(r"below 2.*got 2\.0.*ak\.fixed\(2\.0\)", ak.Entmax, 2.0)
    with pytest.raises(ValueError, match="before a program is compiled"):
        jax.jit(lambda t: ak.Softmax(ak.fixed(t)).temperature)(1.0)


def fixed_and_trained():
    """Yields kernels with a fixed number and a trained one, and how to read the two."""
    both = ak.Gaussian(ak.fixed(0.3)).on(0) * ak.Gaussian(0.5).on(1)
    vector = ak.Gaussian(ak.fixed(np.array([0.3, 2.0])))
    yield both, lambda k: k.first.kernel.lengthscale, lambda k: k.second.kernel.lengthscale
    yield ak.kernels.RationalQuadratic(ak.fixed(0.3)), lambda k: k.lengthscale, lambda k: k.alpha
    yield ak.Periodic(0.5, ak.fixed(3.0)), lambda k: k.period, lambda k: k.lengthscale
    yield ak.Gaussian(metric=ak.fixed(np.eye(2) + 0.2)), lambda k: k.metric, lambda k: k.lengthscale
    yield vector * ak.Laplace(2.0), lambda k: k.first.lengthscale, lambda k: k.second.lengthscale
    mixed = ak.kernels.LiRacine(ak.fixed(0.2)).on(0) * ak.Gaussian(0.5).on(1)
    yield mixed, lambda k: k.first.kernel.bandwidth, lambda k: k.second.kernel.lengthscale


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::attnkernel.FitWarning")  # many kernels, of few rows
def test_a_fixed_number_of_a_kernel_stays_in_a_fit_in_which_others_move(x64):
    kernels, fixed_of, trained_of = zip(*fixed_and_trained(), strict=True)
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, 3, 30), rng.random(30)], axis=1)
    y = np.sin(6 * x[:, 1]) + 0.1 * rng.normal(size=30)
    model = ak.KernelRegression(math.prod(kernels[1:], start=kernels[0]))
    unfitted = float(eqx.filter_jit(ak.LeaveOneOut())(model, x, y))
    fit = ak.fit(model, x, y, objective=ak.LeaveOneOut(), starts=1)
    product = fit.model.kernel
    for i in reversed(range(len(kernels))):
        product, found = (product.first, product.second) if i else (None, product)
        np.testing.assert_array_equal(fixed_of[i](found), fixed_of[i](kernels[i]))
        assert float(trained_of[i](found)) != float(trained_of[i](kernels[i]))
    assert float(fit.loss) < unfitted


def test_a_fixed_number_of_a_kernel_is_rescaled(x64):
    """It stays no leaf, also by a traced factor; a period stays as it is."""
    kernel = ak.Periodic(ak.fixed(0.5), ak.fixed(3.0))
    longer = ak.kernels.rescaled(kernel, 2.0)
    assert (float(longer.lengthscale), longer.period, jax.tree.leaves(longer)) == (1.0, 3.0, [])
    traced = jax.jit(lambda factor: ak.kernels.rescaled(kernel, factor).lengthscale)(2.0)
    np.testing.assert_allclose(traced, 1.0, rtol=1e-12)


def test_a_model_of_fixed_numbers_is_not_fitted(x64):
    x, y = np.random.default_rng(0).random((2, 20))
    model = ak.KernelRegression(ak.Gaussian(ak.fixed(0.3)))
    message = "model has nothing to fit: every number is fixed"
    assert_raises(message, ak.fit, model, x, y, objective=ak.LeaveOneOut())
    free = ak.KernelRegression(ak.Gaussian(0.3))
    at = np.array([0.1, 0.3])
    profiles = [ak.profile(each, x, y, at, objective=ak.LeaveOneOut()) for each in (model, free)]
    np.testing.assert_allclose(*profiles, rtol=1e-13)


HEADS, ROWS, DIM = 4, 5, 3
TEMPERATURES = ak.fixed(np.array([0.5, 1.0, 2.0, 4.0]))


@pytest.mark.parametrize(
    ("name", "part", "of_head"),
    [
        ("prior", ak.Alibi(heads=HEADS), lambda h: ak.Alibi(ak.fixed(2.0 ** (-2.0 * (h + 1))))),
        ("rule", ak.Softmax(TEMPERATURES), lambda h: ak.Softmax(ak.fixed(2.0 ** (h - 1)))),
    ],
)
def test_fixed_numbers_of_heads(x64, name, part, of_head):
    """They are those of each head, summed at once, and no optimiser sees them."""
    q, k, v = np.random.default_rng(1).normal(size=(3, HEADS, ROWS, DIM))
    given = {name: ak.PerHead(part)}
    assert not [leaf for leaf in jax.tree.leaves(given) if eqx.is_inexact_array(leaf)]
    kernel, method = ak.DotProduct(), Blockwise(2, 2)

    @jax.jit
    def both(q, k, v):
        together = ak.attend(q, k, v, kernel=kernel, method=method, **given)
        alone = {"kernel": kernel, "method": Dense()}
        heads = [ak.attend(q[h], k[h], v[h], **alone, **{name: of_head(h)}) for h in range(HEADS)]
        return together, jnp.stack(heads)

    np.testing.assert_allclose(*both(q, k, v), rtol=1e-12)
    options = {"kernel": kernel, "method": method, name: part}
    assert_raises(r"shape \(4,\).*PerHead", ak.attend, q[0], k[0], v[0], **options)


def test_slopes_of_heads_are_those_of_the_paper():
    np.testing.assert_allclose(priors.alibi_slopes(8), 0.5 ** np.arange(1.0, 9.0))
    # six heads in the code of the paper, and in models trained with it
    of_six = [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    np.testing.assert_allclose(priors.alibi_slopes(6), of_six)
    assert isinstance(priors.alibi_slopes(8), np.ndarray)
    for options in ({}, {"slope": 0.5, "heads": 8}, {"heads": 0}):
        assert_raises(r"heads", ak.Alibi, **options)
