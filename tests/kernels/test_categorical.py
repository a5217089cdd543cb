"""Kernels of categories: formulas, ends of the domain, derivatives, bounds, other libraries."""

import functools
import itertools
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from categorical_kernels import LEVELS, TABLE, aitchison_aitken, mixed, sample
from estimates import fitted_and_leverage, prediction_variance
from marks import slow
from refusals import assert_raises, assert_refused
from statsmodels.nonparametric import kernel_regression

import attnkernel as ak
from attnkernel import priors
from attnkernel.kernels import AitchisonAitken, Kernel, LiRacine, LiRacineOrdered, WangVanRyzin
from attnkernel.methods import Blockwise, Dense

QUERIES, KEYS, DIM = 11, 13, 3
EPS = np.finfo(np.float64).eps
RNG = np.random.default_rng(0)
Q = RNG.integers(0, LEVELS, (QUERIES, DIM)).astype(float)
K = RNG.integers(0, LEVELS, (KEYS, DIM)).astype(float)
STEPS = np.abs(Q[:, None] - K[None])


@eqx.filter_jit
def scores_of(kernel, q, k):
    """All pairs at once, and one by one."""
    return kernel.pairwise(q, k), Kernel.pairwise(kernel, q, k)


# --- values ---


def test_categorical_kernels_are_their_formulas(x64):
    """One bandwidth, or one of each column; one number of categories, or one of each column."""
    bandwidths = 0.3, 0.01, np.array([0.2, 0.75, 0.4])
    cases, levels = [], (2, 5, 7)
    for (make, formula, _), bandwidth in itertools.product(TABLE.values(), bandwidths):
        cases.append((make(bandwidth), bandwidth, np.log(formula(bandwidth, STEPS)).sum(axis=2)))
    for bandwidth in (0.3, np.array([0.2, 0.5, 0.4])):
        expected = np.log(aitchison_aitken(bandwidth, STEPS, levels)).sum(axis=2)
        cases.append((AitchisonAitken(bandwidth, levels), bandwidth, expected))

    @eqx.filter_jit
    def results(kernels):
        return [(scores_of(kernel, Q, K), kernel.bandwidth) for kernel in kernels]

    found = results([kernel for kernel, *_ in cases])
    for (both, of_kernel), (_, bandwidth, expected) in zip(found, cases, strict=True):
        for scores in both:
            np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-14)
        given = np.broadcast_to(bandwidth, np.shape(of_kernel))
        np.testing.assert_allclose(of_kernel, given, rtol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_ends_of_the_domain_are_exact(x64, name):
    make, formula, limit = TABLE[name]
    for bandwidth in (0.0, limit):
        kernel = make(ak.fixed(bandwidth))
        assert kernel.bandwidth == bandwidth
        with np.errstate(divide="ignore"):
            expected = np.log(formula(bandwidth, STEPS)).sum(axis=2)
        with jax.debug_nans(True):  # op by op: no NaN on the way either, such as of 0 · log 0
            scores = kernel.pairwise(jnp.asarray(Q), jnp.asarray(K))
        np.testing.assert_allclose(scores, expected, rtol=1e-14, atol=1e-14)


# --- derivatives ---


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("Aitchison and Aitken", Dense()),
        slow("Li and Racine, ordered", Dense()),
        slow("Li and Racine", Dense()),
        slow("Wang and van Ryzin", Blockwise(8, 16)),
    ],
)
def test_derivatives_are_finite_at_the_ends(name, method):
    make, _, limit = TABLE[name]
    x, v = (array.astype(np.float32) for array in sample())

    def value(kernel, x, v):
        call = functools.partial(ak.attend, kernel=kernel, prior=priors.ExcludeSelf())
        out, log_mass = call(x, x, v, method=method, return_log_mass=True)
        return jnp.sum(out**2) + jnp.sum(jnp.where(jnp.isneginf(log_mass), 0.0, log_mass))

    @jax.jit
    def derivatives(bandwidth, x, v):
        kernel = mixed(make, bandwidth)
        gradient = jax.grad(value, (0, 1, 2))
        along = jax.tree.map(jnp.ones_like, (kernel, jnp.zeros_like(x), v))
        slope_of_pair = jax.grad(lambda kernel, q: kernel.log_pair(q, jnp.zeros(1)))
        points = jnp.array([[0.0], [1.0], [3.0]])
        slope = jax.vmap(slope_of_pair, in_axes=(None, 0))(make(bandwidth), points)
        return *jax.jvp(gradient, (kernel, x, v), along), slope.bandwidth_parameter.z

    for end in (0.0, 1.0, 1e-30):  # a trained bandwidth rounded to an end stops short of it
        gradient, second, slopes = jax.device_get(derivatives(np.float32(end * limit), x, v))
        for leaf in jax.tree.leaves((gradient, second, slopes)):
            assert np.isfinite(leaf).all()
        if end != 1e-30:
            assert gradient[0].first.kernel.bandwidth_parameter.z == 0
            np.testing.assert_array_equal(slopes, 0.0)
        np.testing.assert_array_equal(gradient[1][:, [0, 2]], 0.0)  # categories are constants


# --- bounds ---


def test_upper_bound_is_the_largest_of_two_boxes(x64):
    kernels = [make(0.6) for make, *_ in TABLE.values()]
    pairs = [side(a[:-1], a[1:]) for a in (Q, K) for side in (np.minimum, np.maximum)]

    @eqx.filter_jit
    def results(kernels, points, pairs):
        def bound(kernel, q_low, q_high, k_low, k_high):
            def of_pair(*corners):
                return kernel.score_upper_bound(ak.kernels.PointBoxes(*corners))

            over_keys = jax.vmap(of_pair, in_axes=(None, None, 0, 0))
            return jax.vmap(over_keys, in_axes=(0, 0, None, None))(q_low, q_high, k_low, k_high)

        q, _, k, _ = points
        return [(one.pairwise(q, k), bound(one, *points), bound(one, *pairs)) for one in kernels]

    found = results(kernels, [Q, Q, K, K], pairs)
    for scores, of_points, of_pairs in jax.device_get(found):
        np.testing.assert_allclose(of_points, scores, rtol=32 * EPS, atol=32 * EPS)
        highest = np.maximum(scores[:-1], scores[1:])
        highest = np.maximum(highest[:, :-1], highest[:, 1:])
        assert (highest <= of_pairs + 32 * EPS * np.abs(highest)).all()


def test_bounds_in_the_share_of_the_limit(x64):
    x, _ = sample()
    lower, upper = AitchisonAitken(0.1, (3, 5)).search_box(jax.device_put(x[:, [0, 2]]))
    np.testing.assert_allclose(lower.bandwidth, [1e-4 * 2 / 3, 1e-4 * 4 / 5], rtol=1e-12)
    np.testing.assert_allclose(upper.bandwidth, [0.9999 * 2 / 3, 0.9999 * 4 / 5], rtol=1e-12)
    kernel = LiRacine(0.3)
    assert ak.kernels.rescaled(kernel, 3.0) is kernel
    assert set(ak.kernels.category_counts(kernel, 3)) == {0, 1, 2}


TRAINED = r"bandwidth must be above 0, and below 1\.0 to be fitted"
FIXED = r"must be (at least 0, and at most 1\.0|a finite).*; got"
X, V = sample()
TWO = LiRacine(np.array([0.1, 0.2]))


def test_wrong_bandwidths_and_numbers_of_categories_are_refused():
    assert_refused(
        *(
            (lambda bad=bad, of=of: LiRacine(of(bad)), message)
            for bad in (-0.1, 1.1, float("nan"), np.array([0.2, 2.0]))
            for of, message in ((lambda bad: bad, TRAINED), (ak.fixed, FIXED))
        ),
        *(
            (lambda bad=bad: AitchisonAitken(0.1, bad), r"categories.*integer, at least 2")
            for bad in (1, 0, (3, 1), (), True)
        ),
        (lambda: AitchisonAitken(0.8, 4), r"bandwidth must be .* below 0\.75 .*; got 0\.8"),
        (lambda: AitchisonAitken(TWO.bandwidth, (2, 3, 4)), r"shape \(3,\); got shape \(2,\)"),
        (lambda: LiRacine(np.ones((2, 2))), r"one per dimension.*\(2, 2\)"),
        (lambda: TWO.pairwise(*(jax.device_put(X),) * 2), r"2 bandwidths.* 3 columns"),
        (lambda: ak.attend(X, X, V, kernel=TWO), r"2 bandwidths.* 3 columns"),
    )


def test_repr_shows_bandwidths():
    assert repr(WangVanRyzin(np.array([0.2, 0.4]))) == "WangVanRyzin(bandwidth=[0.2, 0.4])"
    ends = LiRacine(ak.fixed(np.array([0.0, 1.0])))
    assert repr(ends) == "LiRacine(bandwidth=fixed([0.0, 1.0]))"
    assert repr(AitchisonAitken(0.5, 4)) == "AitchisonAitken(bandwidth=0.5, categories=4)"


# --- regression ---


def test_a_local_polynomial_of_categories_alone_is_a_constant(x64):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 3, (29, 2)).astype(float), rng.normal(size=29)
    kernel = LiRacine(np.array([0.3, 0.6]))
    constant, linear = (ak.KernelRegression(kernel, order=order) for order in (0, 1))

    @jax.jit
    def results(x, y):
        def of_model(model):
            variance = prediction_variance(model, x, x, jnp.ones(29))
            return model(x, x, y), *fitted_and_leverage(model, x, y), variance

        return of_model(constant), of_model(linear)

    for of_constant, of_linear in zip(*results(x, y), strict=True):
        np.testing.assert_allclose(of_linear, of_constant, rtol=1e-12)


def test_codes_outside_the_categories_are_refused(x64):
    x = np.c_[np.linspace(0, 1, 9), np.arange(9) % 2]
    y = np.sin(x[:, 0])
    model = ak.KernelRegression(ak.Gaussian(0.3).on(0) * AitchisonAitken(0.2, 2).on(1))
    message = r"Column 1 of {} .*0 to 1; row 2 .*{}"
    beyond = np.array([[0.1, 0.0], [0.2, 1.0], [0.3, 7.0]])
    assert_raises(message.format("x_new", "7"), model, beyond, x, y)
    wrong = np.where(np.arange(18).reshape(9, 2) == 5, 0.5, x)
    assert_raises(message.format("x", "0.5"), model, x, wrong, y)
    ordered = ak.KernelRegression(ak.Gaussian(0.3).on(0) * LiRacineOrdered(0.2).on(1))
    assert np.all(np.isfinite(ordered(x + np.array([0.0, 5.0]), x, y)))
    assert_raises("categories, integers; row 0", ordered, x + np.array([0.0, 0.5]), x, y)
    assert_raises(r"0 to 1; row 1 .*2", ak.fit, model, x * [1.0, 2.0], y)


# --- another library ---


def test_regression_on_mixed_data_is_that_of_statsmodels(x64):
    x, v = sample(n=41)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own future random numbers
        options = {"reg_type": "lc", "bw": np.array([0.2, 0.4, 0.6])}
        regression = kernel_regression.KernelReg(v[:, 0], x, "uco", **options)
        expected, _ = regression.fit()
    kernel = AitchisonAitken(0.2, 3).on(0) * ak.Gaussian(0.4).on(1) * WangVanRyzin(0.6).on(2)
    ours = ak.KernelRegression(kernel)(x, x, v[:, 0])
    np.testing.assert_allclose(ours, expected, rtol=1e-10)
