"""Kernels of categories, and of some columns: formulas, ends of the domain, and mixed data."""

import functools
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnkernel as ak
from attnkernel import priors

QUERIES, KEYS, DIM, LEVELS = 11, 13, 3, 5
RNG = np.random.default_rng(0)
Q, K = RNG.integers(0, LEVELS, (QUERIES, DIM)), RNG.integers(0, LEVELS, (KEYS, DIM))
STEPS = np.abs(Q[:, None] - K[None])
SAME = STEPS == 0


def aitchison_aitken(bandwidth, levels=LEVELS):
    return np.where(SAME, 1 - bandwidth, bandwidth / (np.asarray(levels) - 1))


def wang_van_ryzin(bandwidth):
    return np.where(SAME, 1 - bandwidth, (1 - bandwidth) / 2 * bandwidth**STEPS)


# how to make it, K of each column of all pairs, the largest bandwidth
TABLE = {
    "Aitchison and Aitken": (
        functools.partial(ak.AitchisonAitken, categories=LEVELS),
        aitchison_aitken,
        (LEVELS - 1) / LEVELS,
    ),
    "Li and Racine": (ak.LiRacine, lambda a: np.where(SAME, 1.0, a), 1.0),
    "Wang and van Ryzin": (ak.WangVanRyzin, wang_van_ryzin, 1.0),
    "Li and Racine, ordered": (ak.LiRacineOrdered, lambda a: np.asarray(a**STEPS), 1.0),
}
EVERY = pytest.mark.parametrize("name", list(TABLE))


def mixed(make, bandwidth=0.3):
    """Categories in two columns, a quantity between them."""
    return make(bandwidth).on(0, 2) * ak.Gaussian(0.5).on(1)


def sample(seed=0, n=29):
    rng = np.random.default_rng(seed)
    x = np.stack([rng.integers(0, 3, n), rng.normal(size=n), rng.integers(0, 5, n)], axis=1)
    return jnp.asarray(x, float), jnp.asarray(rng.normal(size=(n, 2)), float)


# --- categories ---


@EVERY
@pytest.mark.parametrize("bandwidth", [0.3, 0.01, np.array([0.2, 0.75, 0.4])])
def test_categorical_kernels_are_their_formulas(x64, name, bandwidth):
    make, formula, _ = TABLE[name]
    kernel, q, k = make(bandwidth), jnp.asarray(Q, float), jnp.asarray(K, float)
    expected = np.log(formula(bandwidth)).sum(axis=2)
    np.testing.assert_allclose(kernel.pairwise(q, k), expected, rtol=1e-12, atol=1e-14)
    one_by_one = [[kernel.log_pair(a, b) for b in k[:3]] for a in q[:2]]
    np.testing.assert_allclose(one_by_one, expected[:2, :3], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(kernel.bandwidth, bandwidth, rtol=1e-14)


def test_each_column_may_have_its_number_of_categories(x64):
    for bandwidth in (0.3, np.array([0.2, 0.5, 0.4])):
        kernel = ak.AitchisonAitken(bandwidth, (2, 5, 7))
        expected = np.log(aitchison_aitken(bandwidth, (2, 5, 7))).sum(axis=2)
        scores = kernel.pairwise(jnp.asarray(Q, float), jnp.asarray(K, float))
        np.testing.assert_allclose(scores, expected, rtol=1e-12)
        np.testing.assert_allclose(kernel.bandwidth, np.broadcast_to(bandwidth, 3), rtol=1e-14)


@EVERY
def test_ends_of_the_domain_are_exact(x64, name):
    make, formula, limit = TABLE[name]
    q, k = jnp.asarray(Q, float), jnp.asarray(K, float)
    for bandwidth in (0.0, limit):
        kernel = make(bandwidth)
        assert kernel.bandwidth == bandwidth
        with np.errstate(divide="ignore"):
            expected = np.log(formula(bandwidth)).sum(axis=2)
        with jax.debug_nans(True):  # none is formed on the way either, such as 0 · log 0
            scores = kernel.pairwise(q, k)
        np.testing.assert_allclose(scores, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "method"),
    [*((name, ak.Dense()) for name in TABLE), ("Wang and van Ryzin", ak.Blockwise(8, 16))],
)
def test_derivatives_are_finite_at_the_ends(name, method):
    make, _, limit = TABLE[name]
    x, v = (array.astype(jnp.float32) for array in sample())

    def value(kernel, x, v):
        call = functools.partial(ak.attend, kernel=kernel, prior=priors.LeaveOneOut())
        out, log_mass = call(x, x, v, method=method, return_log_mass=True)
        return jnp.sum(out**2) + jnp.sum(jnp.where(jnp.isneginf(log_mass), 0.0, log_mass))

    @jax.jit
    def everything(bandwidth, kernel, x, v):
        gradient = jax.grad(value, (0, 1, 2))
        change = (kernel, jnp.zeros_like(x), v)
        along = jax.tree.map(jnp.ones_like, change)
        through = jax.grad(lambda b: value(mixed(make, b), x, v))(bandwidth)
        return *jax.jvp(gradient, (kernel, x, v), along), through

    for end in (0.0, 1.0, 1e-30):
        bandwidth = jnp.float32(end * limit)
        kernel = mixed(make, bandwidth)
        gradient, second, through = everything(bandwidth, kernel, x, v)
        for leaf in jax.tree.leaves((gradient, second, through)):
            assert np.isfinite(leaf).all()
        assert end == 1e-30 or gradient[0].first.kernel.logit == 0
        np.testing.assert_array_equal(gradient[1][:, [0, 2]], 0.0)  # names do not move
        for step in (0.0, 1.0, 3.0):
            slope = jax.grad(lambda kernel, q, k: kernel.log_pair(q, k))(
                make(bandwidth), jnp.full(1, step), jnp.zeros(1)
            )
            assert np.isfinite(slope.logit) if end == 1e-30 else slope.logit == 0


@EVERY
def test_no_step_leaves_the_domain(name):
    make, _, limit = TABLE[name]
    for far in (-1e4, 1e4, -jnp.inf, jnp.inf):
        kernel = eqx.tree_at(lambda kernel: kernel.logit, make(0.3), jnp.float32(far))
        assert 0 <= kernel.bandwidth <= jnp.float32(limit)
        scores = kernel.pairwise(jnp.asarray(Q, float), jnp.asarray(K, float))
        assert not np.isnan(scores).any()
        assert (scores <= 1e-6).all()


def test_weights_of_all_categories_add_up_to_one(x64):
    levels = jnp.arange(7.0)[:, None]
    total = jnp.sum(jnp.exp(ak.AitchisonAitken(0.4, 7).pairwise(levels[:1], levels)))
    np.testing.assert_allclose(total, 1.0, rtol=1e-14)
    levels = jnp.arange(-200.0, 201.0)[:, None]
    total = jnp.sum(jnp.exp(ak.WangVanRyzin(0.8).pairwise(levels[200:201], levels)))
    np.testing.assert_allclose(total, 1.0, rtol=1e-14)


@EVERY
def test_upper_bound_is_the_largest_of_two_boxes(x64, name):
    kernel = TABLE[name][0](0.6)
    q, k = jnp.asarray(Q, float), jnp.asarray(K, float)
    for i in range(0, QUERIES - 1, 2):
        for j in range(0, KEYS - 1, 2):
            a, b = q[i : i + 2], k[j : j + 2]
            bound = kernel.upper_bound(a.min(0), a.max(0), b.min(0), b.max(0))
            assert (kernel.pairwise(a, b) <= bound).all()
            point = kernel.upper_bound(q[i], q[i], k[j], k[j])
            assert point == kernel.log_pair(q[i], k[j])


@pytest.mark.parametrize("make", [ak.LiRacine, functools.partial(ak.AitchisonAitken, categories=3)])
def test_a_stack_of_categorical_kernels(x64, make):
    stack = eqx.filter_vmap(make)(jnp.array([0.0, 0.3, 0.5]))
    x, v = sample()
    out = ak.attend(x[:, :1], x[:, :1], v, kernel=ak.PerHead(stack))
    for i, bandwidth in enumerate((0.0, 0.3, 0.5)):
        one = ak.attend(x[:, :1], x[:, :1], v, kernel=make(bandwidth))
        np.testing.assert_allclose(out[i], one, rtol=1e-13)


def test_bounds_in_the_share_of_the_limit(x64):
    x, _ = sample()
    lower, upper = ak.AitchisonAitken(0.0, (3, 5)).bounds(x[:, ::2])
    np.testing.assert_allclose(lower.bandwidth, [1e-4 * 2 / 3, 1e-4 * 4 / 5], rtol=1e-12)
    np.testing.assert_allclose(upper.bandwidth, [0.9999 * 2 / 3, 0.9999 * 4 / 5], rtol=1e-12)
    kernel = ak.LiRacine(0.3)
    assert kernel.stretched(3.0) is kernel
    assert set(kernel.categories(3)) == {0, 1, 2}


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan"), np.array([0.2, 2.0])])
def test_bandwidth_outside_its_domain_is_refused(bad):
    with pytest.raises(ValueError, match=r"bandwidth of LiRacine must lie from 0, .* to 1\.0; got"):
        ak.LiRacine(bad)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"AitchisonAitken must lie from 0, .* to 0\.75; got 0\.8"):
        ak.AitchisonAitken(0.8, 4)
    for bad in (1, 0, (3, 1), (), True):
        with pytest.raises(ValueError, match="categories must be a whole number from 2, or"):
            ak.AitchisonAitken(0.1, bad)
    with pytest.raises(ValueError, match=r"one number or 3, one per column; got shape \(2,\)"):
        ak.AitchisonAitken(np.array([0.1, 0.2]), (2, 3, 4))
    with pytest.raises(ValueError, match="one number or one per column; got shape"):
        ak.LiRacine(jnp.ones((2, 2)))
    x, v = sample()
    kernel = ak.LiRacine(jnp.array([0.1, 0.2]))
    for refused in (lambda: kernel.pairwise(x, x), lambda: ak.attend(x, x, v, kernel=kernel)):
        with pytest.raises(ValueError, match=r"has 2 bandwidths, .* have 3 columns"):
            refused()


def test_repr_shows_bandwidths():
    assert repr(ak.LiRacine(0.25)) == "LiRacine(bandwidth=0.25)"
    assert repr(ak.WangVanRyzin(np.array([0.0, 1.0]))) == "WangVanRyzin(bandwidth=[0, 1])"
    assert repr(ak.AitchisonAitken(0.5, 4)) == "AitchisonAitken(bandwidth=0.5, categories=4)"
    inside = []
    jax.jit(lambda v: inside.append(repr(ak.LiRacine(v))))(0.5)
    assert inside == ["LiRacine(logit=f32[])"]


# --- some columns ---


def test_a_kernel_on_columns_is_that_of_those_columns(x64):
    q, k = (jnp.asarray(np.random.default_rng(i).normal(size=(n, 5))) for i, n in ((0, 7), (1, 3)))
    for make in (lambda: ak.Gaussian(jnp.array([0.5, 2.0])), ak.DotProduct):
        for columns in ((0, 3), (4, 1), np.array([2, 3])):
            kernel, (a, b) = ak.On(make(), columns), columns
            expected = make().pairwise(q[:, [a, b]], k[:, [a, b]])
            np.testing.assert_allclose(kernel.pairwise(q, k), expected, rtol=1e-14)
            np.testing.assert_allclose(kernel.log_pair(q[1], k[2]), expected[1, 2], rtol=1e-14)
            assert kernel.columns == make().on(int(a), int(b)).columns == (a, b)
    assert ak.On(ak.Gaussian(), 2).columns == (2,)
    nested = ak.Gaussian().on(1).on(3, 0)
    np.testing.assert_allclose(nested.pairwise(q, k), ak.Gaussian().on(0).pairwise(q, k))


def test_one_kernel_on_columns_is_summed_as_that_kernel():
    x, v = jnp.zeros((3000, 5)), jnp.zeros((3000, 1))
    assert ak.select_method(x, x, v, kernel=ak.Epanechnikov(0.3).on(2)).method == ak.Sorted()
    both = ak.Epanechnikov(0.3).on(2) * ak.Epanechnikov(0.3).on(1)
    assert ak.select_method(x, x, v, kernel=both).method == ak.Blockwise()


@pytest.mark.parametrize(
    ("name", "method"),
    [*((name, ak.Dense()) for name in TABLE), ("Li and Racine", ak.Blockwise(8, 16))],
)
def test_mixed_data_are_a_product_over_columns(x64, name, method):
    kernel, (x, v) = mixed(TABLE[name][0]), sample()
    queries = x[:17]
    scores = kernel.first.kernel.pairwise(queries[:, ::2], x[:, ::2])
    scores = scores - 0.5 * ((queries[:, 1:2] - x[:, 1:2].T) / 0.5) ** 2
    expected = jax.nn.softmax(scores, axis=1) @ v

    def outputs(kernel, queries, x, v):
        return ak.attend(queries, x, v, kernel=kernel, method=method)

    @jax.jit
    def everything(arguments, along):
        gradient = jax.grad(lambda *a: jnp.sum(outputs(*a)), (0, 1, 2, 3))(*arguments)
        return *jax.jvp(outputs, arguments, along), gradient

    arguments = kernel, queries, x, v
    along = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), arguments)
    value, change, gradient = everything(arguments, along)
    np.testing.assert_allclose(value, expected, rtol=1e-11, atol=1e-12)
    both = zip(jax.tree.leaves(gradient), jax.tree.leaves(along), strict=True)
    np.testing.assert_allclose(jnp.sum(change), sum(jnp.vdot(a, b) for a, b in both), rtol=1e-9)
    # and by differences, in the bandwidth
    step = jax.tree.map(jnp.zeros_like, arguments)
    step = eqx.tree_at(lambda a: a[0].first.kernel.logit, step, jnp.asarray(1e-5))
    ahead, _, _ = everything(jax.tree.map(jnp.add, arguments, step), along)
    behind, _, _ = everything(jax.tree.map(jnp.subtract, arguments, step), along)
    slope = jnp.sum(ahead - behind) / 2e-5
    np.testing.assert_allclose(gradient[0].first.kernel.logit, slope, rtol=1e-6)


class Poisoned(ak.LiRacine):
    """NaN of categories that differ, which its bound rules out."""

    __init__ = ak.LiRacine.__init__

    def log_of(self, steps, share, rest, column):
        return jnp.where(steps > 20, jnp.nan, super().log_of(steps, share, rest, column))

    def upper_bound(self, *box):
        return ak.LiRacine(0.0).upper_bound(*box)


def test_blocks_of_other_categories_cost_nothing():
    """Sorted by category, with λ = 0: a block of others is never scored, whatever else it says."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(np.stack([np.repeat(10 * np.arange(8), 16), rng.normal(size=128)], axis=1))
    kernel = Poisoned(0.0).on(0) * ak.DotProduct().on(1)
    v = x[:, 1:]
    out = ak.attend(x, x, v, kernel=kernel, method=ak.Blockwise(16, 16))
    expected = ak.attend(x, x, v, kernel=ak.LiRacine(0.0).on(0) * ak.DotProduct().on(1))
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    # a bound of +inf, that of DotProduct, does not hide one of -inf
    bound = kernel.upper_bound(x[0], x[0], x[-1], x[-1])
    assert np.isneginf(bound)
    assert (ak.DotProduct() * ak.Gaussian()).upper_bound(x[0], x[0], x[-1], x[-1]) == np.inf


def test_bounds_stretch_and_categories_are_those_of_the_columns(x64):
    x, _ = sample()
    kernel = mixed(ak.LiRacine)
    lower, upper = kernel.bounds(x)
    alone = ak.Gaussian(0.5).bounds(x[:, 1:2])
    for side, expected, share in zip((lower, upper), alone, (1e-4, 1 - 1e-4), strict=True):
        assert side.second.kernel.lengthscale == expected.lengthscale
        np.testing.assert_allclose(side.first.kernel.bandwidth, share, rtol=1e-12)
        assert jax.tree.structure(side) == jax.tree.structure(kernel)
    longer = kernel.stretched(3.0)
    np.testing.assert_allclose(longer.second.kernel.lengthscale, 1.5, rtol=1e-14)
    assert longer.first.kernel.logit == kernel.first.kernel.logit
    assert set(kernel.categories(3)) == {0, 2}
    assert set(ak.LiRacine(0.1).on(4, 1).categories(5)) == {1, 4}
    assert set(ak.SoftCapped(kernel, 5.0).categories(3)) == {0, 2}
    assert set(ak.kernels._base.Stretched(kernel, 2.0).categories(3)) == {0, 2}
    assert set(ak.Gaussian().categories(3)) == set()


@pytest.mark.parametrize("bad", [-1, True, (), (0, -3), np.array([0.5])])
def test_columns_must_be_whole_numbers(bad):
    with pytest.raises(ValueError, match="columns must be a whole number from 0, or several"):
        ak.On(ak.Gaussian(), bad)


def test_columns_that_are_not_there_or_twice_are_refused():
    with pytest.raises(ValueError, match=r"can be taken once; got \(1, 1\)"):
        ak.Gaussian().on(1, 1)
    x, kernel = jnp.ones((5, 2)), ak.Gaussian().on(0, 2)
    sentence = "columns 0, 2, counted from 0, needs points of at least 3 dimensions; got 2"
    for refused in (
        lambda: kernel.pairwise(x, x),
        lambda: kernel.bounds(x),
        lambda: ak.attend(x, x, x, kernel=kernel * kernel),
    ):
        with pytest.raises(ValueError, match=sentence):
            refused()
    with pytest.raises(ValueError, match="same dimension; got 2 and 3"):
        ak.attend(x, jnp.ones((5, 3)), x, kernel=ak.Gaussian().on(0))


def test_a_fit_to_mixed_data_stays_in_its_domain(x64):
    rng = np.random.default_rng(5)
    group, x = rng.integers(0, 3, 61), rng.uniform(-2, 2, 61)
    y = np.sin(2 * x) + np.array([0.0, 0.1, 3.0])[group] + 0.1 * rng.normal(size=61)
    kernel = ak.LiRacine(0.0).on(0) * ak.Gaussian(0.5).on(1)
    points = np.stack([group, x], axis=1)
    fit = ak.fit(ak.KernelRegression(kernel), points, y, objective=ak.LeaveOneOut(), starts=3)
    first, second = fit.model.kernel.first.kernel, fit.model.kernel.second.kernel
    assert 1e-4 * (1 - 1e-9) <= first.bandwidth < 0.05
    assert 0.05 < second.lengthscale < 1.0
    blind = ak.fit(
        ak.KernelRegression(ak.Gaussian(0.5)), x, y, objective=ak.LeaveOneOut(), starts=1
    )
    assert fit.loss < 0.1 * blind.loss


# --- another library ---


def statsmodels(name):
    pytest.importorskip("statsmodels")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own future random numbers
        return pytest.importorskip(f"statsmodels.nonparametric.{name}")


@pytest.mark.parametrize(
    ("make", "theirs", "further"),
    [
        (TABLE["Aitchison and Aitken"][0], "aitchison_aitken", {"num_levels": LEVELS}),
        (ak.WangVanRyzin, "wang_ryzin", {}),
        (ak.LiRacine, "aitchison_aitken_reg", {}),
        (ak.LiRacineOrdered, "wang_ryzin_reg", {}),
    ],
)
def test_kernels_are_those_of_statsmodels(x64, make, theirs, further):
    # it counts the categories in the sample, where their number is not given
    function = getattr(statsmodels("kernels"), theirs)
    q, k = Q[:, 0].astype(float), K[:, 0].astype(float)
    for bandwidth in (0.0, 0.3, 0.7):
        expected = [function(bandwidth, k, point, **further) for point in q]
        ours = jnp.exp(make(bandwidth).pairwise(jnp.asarray(q)[:, None], jnp.asarray(k)[:, None]))
        np.testing.assert_allclose(ours, expected, rtol=1e-13, atol=1e-15)


def test_regression_on_mixed_data_is_that_of_statsmodels(x64):
    x, v = (np.asarray(a) for a in sample(n=41))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        regression = statsmodels("kernel_regression").KernelReg(
            v[:, 0], x, "uco", reg_type="lc", bw=np.array([0.2, 0.4, 0.6])
        )
        expected, _ = regression.fit()
    kernel = ak.AitchisonAitken(0.2, 3).on(0) * ak.Gaussian(0.4).on(1) * ak.WangVanRyzin(0.6).on(2)
    ours = ak.KernelRegression(kernel)(x, x, v[:, 0])
    np.testing.assert_allclose(ours, expected, rtol=1e-10)


def test_columns_may_come_as_one_sequence():
    assert ak.Gaussian(1.0).on((0, 2)).columns == ak.Gaussian(1.0).on(0, 2).columns == (0, 2)


def test_of_names_alone_a_polynomial_is_a_constant(x64):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 3, (29, 2)).astype(float), rng.normal(size=29)
    kernel = ak.LiRacine(np.array([0.3, 0.6]))
    constant, linear = (ak.KernelRegression(kernel, order=order) for order in (0, 1))
    np.testing.assert_allclose(linear(x, x, y), constant(x, x, y), rtol=1e-12)
    for of_linear, of_constant in zip(linear.smooth(x, y), constant.smooth(x, y), strict=True):
        np.testing.assert_allclose(of_linear, of_constant, rtol=1e-12)
    variance = np.ones(29)
    np.testing.assert_allclose(
        linear.noise(x, x, variance), constant.noise(x, x, variance), rtol=1e-12
    )


def test_codes_that_are_none(x64):
    x = np.c_[np.linspace(0, 1, 9), np.arange(9) % 2]
    y = np.sin(x[:, 0])
    model = ak.KernelRegression(ak.Gaussian(0.3).on(0) * ak.AitchisonAitken(0.2, 2).on(1))
    sentence = r"Column 1 of {} holds categories, 0 to 1; row 2 \(counted from 0\) has {}"
    with pytest.raises(ValueError, match=sentence.format("x_new", "7")):
        model(np.array([[0.1, 0.0], [0.2, 1.0], [0.3, 7.0]]), x, y)
    with pytest.raises(ValueError, match=sentence.format("x", "0.5")):
        model(x, np.where(np.arange(18).reshape(9, 2) == 5, 0.5, x), y)
    ordered = ak.KernelRegression(ak.Gaussian(0.3).on(0) * ak.LiRacineOrdered(0.2).on(1))
    assert np.all(np.isfinite(ordered(x + np.array([0.0, 5.0]), x, y)))
    with pytest.raises(ValueError, match="holds categories, whole numbers; row 0"):
        ordered(x + np.array([0.0, 0.5]), x, y)
    with pytest.raises(ValueError, match=r"0 to 1; row 1 \(counted from 0\) has 2"):
        ak.fit(model, x * [1.0, 2.0], y, objective=ak.LeaveOneOut())
